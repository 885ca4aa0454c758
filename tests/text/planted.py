"""Secrets of every shape that is known to stand in arguments, variables, configs, logs and URLs, none of them anybody's.

They are drawn from a fixed seed, so that no scanner of repositories takes this file for a leak.
"""

from __future__ import annotations

import random
import string
from typing import NamedTuple

_RANDOM = random.Random(20261122)
_ALNUM = string.ascii_letters + string.digits
_HEX = "0123456789abcdef"


def drawn(count: int, letters: str = _ALNUM) -> str:
    """So many letters, with a digit, a small and a large letter among them where there may be."""
    while True:
        text = "".join(_RANDOM.choice(letters) for _ in range(count))
        kinds = (str.isdigit, str.islower, str.isupper)
        if all(any(map(kind, text)) or not any(map(kind, letters)) for kind in kinds):
            return text


class Planted(NamedTuple):
    """A text with a secret in it. `shape`: what kind of thing it is."""

    shape: str
    secret: str
    before: str
    after: str = ""

    @property
    def text(self) -> str:
        return f"{self.before}{self.secret}{self.after}"


def _password() -> str:
    return f"{drawn(5)}!{drawn(4)}"


_KEY_BODY = "\n".join(drawn(64, _ALNUM + "+/") for _ in range(4))

IN_TEXT: tuple[Planted, ...] = (
    Planted("github", "ghp_" + drawn(36), "remote: bad credentials for "),
    Planted("github", "github_pat_" + drawn(22) + "_" + drawn(59), "clone with ", " failed"),
    Planted("gitlab", "glpat-" + drawn(20), "fatal: authentication failed, token was ", "."),
    Planted("gitlab", "gldt-" + drawn(20), "deploy: "),
    Planted("hugging face", "hf_" + drawn(34), "401 Client Error for token ", " at hub"),
    Planted("openai", "sk-proj-" + drawn(48), "Incorrect API key provided: ", ". You can find"),
    Planted("anthropic", "sk-ant-api03-" + drawn(90), "key="),
    Planted("openrouter", "sk-or-v1-" + drawn(64, _HEX), "using "),
    Planted("groq", "gsk_" + drawn(52), "groq: "),
    Planted("nvidia", "nvapi-" + drawn(64), "NGC login with "),
    Planted("replicate", "r8_" + drawn(37), ""),
    Planted("slack", "xoxb-123456789012-123456789012-" + drawn(24), "slack: "),
    Planted("slack webhook", f"T0{drawn(8)}/B0{drawn(8)}/{drawn(24)}", "POST https://hooks.slack.com/services/", " 404"),
    Planted("discord webhook", f"123456789012345678/{drawn(60)}", "https://discord.com/api/webhooks/", " gone"),
    Planted("teams webhook", f"webhookb2/{drawn(30)}", "https://acme.webhook.office.com/", ""),
    Planted("telegram", f"{drawn(9, string.digits)}:AA{drawn(33)}", "https://api.telegram.org/bot", "/sendMessage"),
    Planted("npm", "npm_" + drawn(36), "//registry.npmjs.org/:_authToken="),
    Planted("pypi", "pypi-AgEIcHlwaS5vcmc" + drawn(60), "twine upload -u __token__ -p "),
    Planted("docker", "dckr_pat_" + drawn(27), "docker login -u me -p ", " registry.example.com"),
    Planted("google", "ya29." + drawn(60), "access token "),
    Planted("google", "AIza" + drawn(35), "https://maps.googleapis.com/maps?key="),
    Planted("wandb", "wandb_v1_" + drawn(27) + "_" + drawn(50), "wandb: key "),
    Planted("wandb", drawn(40, _HEX), 'wandb.login(key="', '")'),
    Planted("wandb", drawn(40, _HEX), "RuntimeError: ran `wandb login ", "` and failed"),
    Planted("kaggle", "KGAT_" + drawn(32, _HEX), "kaggle: "),
    Planted("kaggle", drawn(32, _HEX), '{"username":"kim","key":"', '"}'),
    Planted("aws", "AKIA" + drawn(16, string.ascii_uppercase + "234567"), "aws: no such key "),
    Planted("aws", drawn(40, _ALNUM + "+/"), "aws_secret_access_key = "),
    Planted("aws", "IQoJb3JpZ2lu" + drawn(200, _ALNUM + "+/"), "export AWS_SESSION_TOKEN="),
    Planted("azure", drawn(86, _ALNUM + "+/") + "==", "AccountName=acme;AccountKey=", ";EndpointSuffix=core.windows.net"),
    Planted("azure", drawn(3) + "8Q~" + drawn(34), "client: "),
    Planted("databricks", "dapi" + drawn(32, _HEX), "host x token: "),
    Planted("stripe", "sk_live_" + drawn(24), ""),
    Planted("sendgrid", f"SG.{drawn(22)}.{drawn(43)}", "mail: "),
    Planted("vault", "hvs." + drawn(90), "vault "),
    Planted("jwt", f"eyJ{drawn(30)}.eyJ{drawn(80)}.{drawn(43)}", "id: "),
    Planted("neptune", "eyJhcGlfYWRkcmVzcyI6" + drawn(80) + "==", "NEPTUNE: "),
    Planted("signed url", drawn(64, _HEX), "https://b.s3.amazonaws.com/x.tar?X-Amz-Date=20261122&X-Amz-Signature=", "&X-Amz-Expires=3600"),
    Planted("signed url", drawn(80, _HEX), "https://storage.googleapis.com/b/o?X-Goog-Algorithm=G&X-Goog-Signature="),
    Planted("signed url", drawn(43, _ALNUM) + "%3D", "https://acme.blob.core.windows.net/d?sv=2024-11-04&sr=c&sig=", "&se=2027"),
    Planted("signed url", drawn(24), "GET https://data.example.com/x.bin?token=", " HTTP/1.1"),
    Planted("url password", _password(), "https://kim:", "@git.example.com/x.git"),
    Planted("url password", "pa@ss" + drawn(4), "https://u:", "@host/x"),
    Planted("url token", drawn(20), "https://", "@host.example.com/simple"),
    Planted("connection string", "pw/" + drawn(6), "psycopg2.OperationalError: postgres://u:", "@db:5432/x"),
    Planted("connection string", drawn(9), "redis://:", "@cache:6379/0"),
    Planted("connection string", drawn(9), "mongodb+srv://app:", "@cluster0.mongodb.net/x"),
    Planted("connection string", _password(), "kim:", "@tcp(127.0.0.1:3306)/x"),
    Planted("connection string", _password(), "Server=db;User Id=kim;Password=", ";Database=x"),
    Planted("header", drawn(40), "curl -H 'Authorization: Bearer ", "' https://api.example.com"),
    Planted("header", drawn(24) + "==", "> Authorization: Basic "),
    Planted("header", drawn(20), 'headers={"Authorization": "token ', '"}'),
    Planted("header", drawn(20), "X-Api-Key: "),
    Planted("header", drawn(20), "PRIVATE-TOKEN: "),
    Planted("header", f"session={drawn(20)}; other=1", "Cookie: "),
    Planted("json", drawn(12), '{"api_key": "', '", "lr": 3e-4}'),
    Planted("json", drawn(12), '{\\"client_secret\\": \\"', '\\"}'),
    Planted("json", "dXNlcjpwYXNzd29yZA==", '"auths": {"r.example.com": {"auth": "', '"}}'),
    Planted("yaml", drawn(12), "  api_key: "),
    Planted("yaml", _password(), "db_password: "),
    Planted("yaml", "correct horse battery staple", "passphrase: "),
    Planted("python", drawn(12), "connect(host='db', password='", "', port=1)"),
    Planted("python", drawn(12), "TypeError: Config(hub_token='", "') got an unexpected"),
    Planted("shell", drawn(12), 'bash -c "HF_TOKEN=', ' python train.py"'),
    Planted("shell", _password(), "+ export PGPASSWORD="),
    Planted("flag", drawn(12), "train.py --api-key ", " --lr 3"),
    Planted("flag", drawn(12), "train.py --password=", " --lr 3"),
    Planted("flag", drawn(12), "Command '['python', 'x.py', '--hub_token', '", "']' returned non-zero exit status 1."),
    Planted("short flag", drawn(12), "mysql -u root -p", " db"),
    Planted("short flag", drawn(12), "sshpass -p ", " ssh -p 22 host"),
    Planted("short flag", drawn(12), "redis-cli -h x -a ", " ping"),
    Planted("short flag", drawn(12), "curl -u kim:", " https://x"),
    Planted("python", drawn(12), "os.environ['HF_TOKEN'] = '", "'"),
    Planted("python", drawn(12), "env: [('HF_TOKEN', '", "')]"),
    Planted("xml", drawn(12), "<server><password>", "</password></server>"),
    Planted("prose", drawn(12), "Error: password is '", "' for kim"),
    Planted("prose", drawn(20), "the token is ", " and it has expired"),
    Planted("yaml", drawn(12), "- name: HF_TOKEN\n  value: "),
    Planted("short flag", drawn(12), "curl --user kim:", " https://x"),
    Planted("netrc", drawn(40, _HEX), "machine api.wandb.ai login user password "),
    Planted("openssl", drawn(12), "openssl rsa -passin pass:", " -in k.pem"),
    Planted("private key", _KEY_BODY, "-----BEGIN OPENSSH PRIVATE KEY-----\n", "\n-----END OPENSSH PRIVATE KEY-----"),
    Planted("private key", drawn(64, _ALNUM + "+/"), ""),
    Planted("private key", drawn(30, _ALNUM + "+/"), "-----BEGIN RSA PRIVATE KEY-----\\n"),
)  # fmt: skip

# (shape, argv, secret)
IN_ARGV: tuple[tuple[str, tuple[str, ...], str], ...] = tuple(
    (shape, words, secret)
    for shape, words, secret in (
        (shape, tuple(word.replace("@@", secret) for word in template), secret)
        for shape, template, secret in (
            ("flag", ("train.py", "--api-key", "@@", "--lr", "3"), "abc"),
            ("flag", ("train.py", "--token=@@"), drawn(8)),
            ("flag", ("train.py", "--token", "@@"), "abc"),
            ("flag", ("train.py", "--wandb_api_key=@@"), drawn(40, _HEX)),
            ("flag", ("train.py", "--hub_token", "@@"), "hf_" + drawn(34)),
            ("flag", ("train.py", "--password", "@@"), "12345678"),
            ("flag", ("train.py", "--db.password=@@"), "12345678"),
            ("assignment", ("train.py", "hub.token=@@"), drawn(12)),
            ("assignment", ("train.py", "+logger.comet.api_key=@@"), drawn(25)),
            ("env", ("docker", "run", "--env", "PGPASS=@@", "image"), drawn(8)),
            ("env", ("docker", "run", "-e", "NEPTUNE_API_TOKEN=@@"), drawn(30)),
            ("env", ("env", "CLEARML_API_SECRET_KEY=@@", "python", "t.py"), drawn(30)),
            ("short flag", ("mysql", "-u", "root", "-p", "@@"), drawn(8)),
            ("short flag", ("mysqldump", "-p@@", "db"), drawn(8)),
            ("short flag", ("sshpass", "-p", "@@", "ssh", "-p", "22", "h"), drawn(8)),
            ("short flag", ("docker", "login", "-u", "me", "-p", "@@", "r"), drawn(8)),
            ("short flag", ("redis-cli", "-a", "@@"), drawn(8)),
            ("short flag", ("curl", "-u", "kim:@@", "https://x"), drawn(8)),
            ("shell", ("bash", "-c", "HF_TOKEN=@@ python train.py"), drawn(12)),
            ("shell", ("bash", "-c", "mysql -p @@ < x.sql"), drawn(12)),
            ("header", ("curl", "-H", "Authorization: Bearer @@"), drawn(30)),
            ("url", ("pip", "install", "--index-url", "https://@@@pypi.example.com/simple"), drawn(20)),
            ("url", ("train.py", "--db", "postgres://u:@@@h/x"), drawn(8)),
            ("url", ("train.py", "--data=https://b.example.com/x?sig=@@&se=1"), drawn(30)),
            ("login", ("wandb", "login", "@@"), drawn(40, _HEX)),
            ("set", ("aws", "configure", "set", "aws_secret_access_key", "@@"), drawn(40)),
            ("json", ("train.py", "--config-json", '{"api_key": "@@", "lr": 1}'), drawn(12)),
            ("webhook", ("train.py", "--notify", "https://hooks.slack.com/services/@@"), f"T0/B0/{drawn(20)}"),
        )
    )
)  # fmt: skip

# (name, value, secret)
IN_ENV: tuple[tuple[str, str, str], ...] = tuple(
    (name, value, value) if isinstance(value, str) else (name, value[0] % value[1], value[1])
    for name, value in (
        ("HF_TOKEN", "hf_" + drawn(34)), ("WANDB_API_KEY", drawn(40, _HEX)), ("AWS_SECRET_ACCESS_KEY", drawn(40, _ALNUM + "/+")),
        ("AWS_SESSION_TOKEN", "IQoJb3JpZ2lu" + drawn(80)), ("DB_PASS", drawn(8)), ("PGPASSWORD", drawn(8)), ("MYSQL_PWD", drawn(8)),
        ("COMET_API_KEY", drawn(25)), ("NEPTUNE_API_TOKEN", "eyJhcGlfYWRkcmVzcyI6" + drawn(60)), ("CLEARML_API_SECRET_KEY", drawn(50)),
        ("MLFLOW_TRACKING_PASSWORD", drawn(9)), ("KAGGLE_KEY", drawn(32, _HEX)), ("GITLAB_TOKEN", "glpat-" + drawn(20)),
        ("DATABASE_URL", ("postgres://u:%s@h/x", drawn(9))), ("SLACK_WEBHOOK_URL", "https://hooks.slack.com/services/" + drawn(20)),
        ("MY_TOKEN", drawn(9)), ("SSH_PRIVATE_KEY", "-----BEGIN RSA PRIVATE KEY-----\n" + _KEY_BODY),
        ("AZURE_STORAGE_CONNECTION_STRING", ("AccountName=a;AccountKey=%s;x=y", drawn(80, _ALNUM + "+/") + "==")),
        ("TWINE_PASSWORD", "pypi-AgE" + drawn(80)), ("REDIS_URL", ("redis://:%s@h:1/0", drawn(9))), ("SECRET", "abc"),
    )
)  # fmt: skip
