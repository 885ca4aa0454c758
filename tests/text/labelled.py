"""100 secrets in 10 forms and 40 look-alikes, each with its label: what holds it, the text, and the secret in it, none of them anybody's.

Long ones are drawn from a fixed seed, so that no scanner of repositories takes this file for a leak; short ones are passwords as
people choose them, which only a name gives away.
"""

from __future__ import annotations

import random
import string
from enum import Enum
from typing import Final, NamedTuple

_RANDOM = random.Random(20261129)
_ALNUM = string.ascii_letters + string.digits
_HEX = "0123456789abcdef"


def _drawn(count: int, letters: str = _ALNUM) -> str:
    while True:
        text = "".join(_RANDOM.choice(letters) for _ in range(count))
        kinds = (str.isdigit, str.islower, str.isupper)
        if all(any(map(kind, text)) or not any(map(kind, letters)) for kind in kinds):
            return text


class Form(Enum):
    """Where a text comes from. The first five are words of a command line, as a shell reads them."""

    ARGUMENT = "argument"  # the next word, or behind `=`
    YACS = "yacs"  # KEY VALUE
    HYDRA = "hydra"  # a.b.c=VALUE
    PAIR = "user:value"
    VARIABLE = "variable"  # NAME=VALUE, one word
    CONFIG = "config"  # JSON, YAML, TOML, INI
    LOG = "log"
    URL = "url"
    TOKEN = "token"  # known by its shape, without a name
    WEBHOOK = "webhook"


WORDS: Final = frozenset((Form.ARGUMENT, Form.YACS, Form.HYDRA, Form.PAIR, Form.VARIABLE))


class Row(NamedTuple):
    """A text and the secret in it; of a look-alike the secret is empty."""

    form: Form
    text: str
    secret: str


_TEMPLATES: Final[dict[Form, tuple[tuple[str, str], ...]]] = {
    Form.ARGUMENT: (
        ("train.py --hf-token2 @@ --lr 3e-4", _drawn(20)),
        ("train.py --api_key1=@@ --lr 3e-4", "k3yOfKim"),
        ("train.py --db-pass @@ --passes 3", "hunter2"),
        ("train.py --dbPassword2 '@@'", "Summer 2026!"),
        ("train.py --wandbkey @@", _drawn(40, _HEX)),
        ("train.py --smtp-pw=@@", "m4il-Room"),
        ("train.py --accessToken1 @@ --epochs 3", _drawn(16)),
        ("train.py -password @@", "Tr0ub4dor"),
        ("train.py --hub.private_token=@@", "abc-d3f-ghi"),
        ("train.py --s3-secret-key2 '@@'", _drawn(40, _ALNUM + "/+")),
    ),
    Form.YACS: (
        ("train.py --cfg c.yaml db.password @@", "hunter2"),
        ("train.py --set db.password @@ SOLVER.MAX_ITER 100", "Summer2026!"),
        ("train.py LOGGER.WANDB_API_KEY @@ SOLVER.BASE_LR 0.1", _drawn(40, _HEX)),
        ("train.py --opts HUB.TOKEN @@", _drawn(18)),
        ("train.py MODEL.NAME r50 DB.PASSWD1 @@", "x9-Zebra"),
        ("train.py TRACKER.CLIENT_SECRET @@ OUTPUT_DIR out", _drawn(32)),
        ("train.py store.s3.secretAccessKey @@", _drawn(40, _ALNUM + "/+")),
        ("train.py --options log.slack_webhook @@", "https://chat.example.com/h/" + _drawn(20)),
        ("train.py DATA.DBPASS @@ DATA.WORKERS 4", "q7!Horse"),
        ("git config credential.token2 @@", _drawn(20)),
    ),
    Form.HYDRA: (
        ("train.py logger.wandb.api_key2=@@", _drawn(24)),
        ("train.py +db.dbpass=@@ trainer.max_epochs=3", "hunter2"),
        ("train.py ++hub.authToken=@@", "tok-4-kim"),
        ("train.py 'db.password=\"@@\"'", "Summer2026!"),
        ("train.py store.secret1=@@ model=small", "s3same"),
        ("train.py env.HF_TOKEN3=@@", "hf-Zz81"),
        ("train.py tracker.credentials=@@", "kim/" + _drawn(12)),
        ("train.py mlflow.tracking_pwd=@@", "m1flow!pw"),
        ("train.py +notify.slackWebhook=@@", "https://chat.example.com/h/" + _drawn(16)),
        ("train.py 'db={user: kim, pass: @@}'", "q7!Horse"),
    ),
    Form.PAIR: (
        ("train.py --user bob:@@ --lr 3", "s3same-Open"),
        ("train.py --user=bob:@@", _drawn(14)),
        ("train.py --auth kim:@@", "Summer2026!"),
        ("http --auth-user kim:@@ GET https://x.example.com", "Tr0ub4dor"),
        ("train.py --basic-auth='kim:@@'", "q7!Horse"),
        ("wget --proxy-user kim --proxy-password @@", "pr0xyRoom"),
        ("train.py --login kim@example.com:@@", "hunter2"),
        ("mlflow --credentials kim:@@", "m1flow"),
        ("train.py --userpwd kim:@@", "x9-Zebra"),
        ("curl -s -u kim:@@ https://x.example.com", "Horse7"),
    ),
    Form.VARIABLE: (
        ("MY_TOKEN2=@@", "abc9-kim"),
        ("PASSWD1=@@", "hunter2"),
        ("DBPASS=@@", "Summer"),
        ("SLACK_WEBHOOK=@@", "https://chat.example.com/h/" + _drawn(20)),
        ("GITHUBTOKEN=@@", _drawn(30)),
        ("OPENAI_KEY_2=@@", _drawn(32)),
        ("SMTP_PW=@@", "m4il-Room"),
        ("AZURE_STORAGE_KEY1=@@", _drawn(60, _ALNUM + "+/") + "=="),
        ("MY_TKN=@@", _drawn(24)),
        ("ROOTPW=@@", "t00r!"),
    ),
    Form.CONFIG: (
        ('{"hfToken2": "@@", "lr": 3e-4}', _drawn(12)),
        ("dbpass: @@", "Summer2026!"),
        ('smtp_pw = "@@"', "m4il-Room"),
        ('"passwd1": "@@",', "hunter2"),
        ("api-key-2: '@@'", "k3yOfKim"),
        ("[db]\nPassword2=@@\nport=5432", "Tr0ub4dor"),
        ("tracker:\n  accessKey1: @@\n  secretkey: none", _drawn(20)),
        ("slack.webhook: @@", "https://chat.example.com/h/" + _drawn(16)),
        ('admin_pass = "@@"  # changes in May', "q7!Horse"),
        ("{user: kim, passphrase2: '@@'}", "correct horse battery"),
    ),
    Form.LOG: (
        ("INFO logger: api key: @@", "k3y-0f-kim-77"),
        ("ERROR hub: Invalid access token: @@ (expired)", "tok-4-kim-81"),
        ("2026-11-29 12:00:01 DEBUG secret access key = @@", _drawn(40, _ALNUM + "/+")),
        ("Authorization: Bearer @@", _drawn(30)),
        ("> Authorization: ApiKey @@", _drawn(20)),
        ("RuntimeError: login failed, passwd1=@@ host=db", "hunter2"),
        ("Incorrect API key provided: @@.", _drawn(24)),
        ("merged config: db.password @@ SOLVER.MAX_ITER 100", "Summer2026!"),
        ("the client secret is @@, see the wiki", _drawn(16)),
        ("KeyError while reading {'dbpass': '@@', 'port': 5432}", "q7!Horse"),
    ),
    Form.URL: (
        ("fetching https://kim:@@@data.example.com/x.tar", "hunter2"),
        ("https://data.example.com/x.bin?api_key2=@@&page=3", _drawn(16)),
        ("postgresql+asyncpg://kim:@@@db:5432/runs", "q7!Horse"),
        ("GET /v1/models?accessToken=@@ HTTP/1.1", _drawn(24)),
        ("mongodb://app:@@@a:27017,b:27017/x?replicaSet=r", "m0ngo"),
        ("s3://AKIDkim7:@@@bucket/x", _drawn(20)),
        ("https://x.example.com/cb#access_token=@@&state=3", _drawn(24)),
        ("amqp://kim:@@@mq/%2f", "r4bbit"),
        ("git clone https://@@@git.example.com/x.git", _drawn(20)),
        ("https://b.example.com/x?X-Amz-Security-Token=@@", _drawn(60)),
    ),
    Form.TOKEN: (
        ("planetscale: pscale_tkn_@@ is read-only", _drawn(43)),
        ("pscale_pw_@@", _drawn(43)),
        ("401 for hf_@@", _drawn(34)),
        ("used github_pat_@@", _drawn(22) + "_" + _drawn(59)),
        ("key sk-proj-@@ was refused", _drawn(48)),
        ("new token fly_@@", _drawn(40)),
        ("cloud: dop_v1_@@", _drawn(64, _HEX)),
        ("sent eyJ@@ to the hub", f"{_drawn(20)}.eyJ{_drawn(60)}.{_drawn(43)}"),
        ("figma says figd_@@", _drawn(40)),
        ("login with AKIA@@ failed", _drawn(16, string.ascii_uppercase + "234567")),
    ),
    Form.WEBHOOK: (
        ("POST https://hooks.slack.com/services/@@ 404", f"T0{_drawn(8)}/B0{_drawn(8)}/{_drawn(24)}"),
        ("https://discord.com/api/webhooks/@@", f"123456789012345678/{_drawn(60)}"),
        ("https://discordapp.com/api/v10/webhooks/@@?wait=true", f"223456789012345678/{_drawn(60)}"),
        ("train.py --slack-webhook @@", "https://chat.example.com/h/" + _drawn(8)),
        ("notify: https://acme.webhook.office.com/@@", "webhookb2/" + _drawn(30)),
        ("https://chat.googleapis.com/v1/spaces/AAAA/messages?key=k&token=@@", _drawn(43)),
        ("https://mattermost.example.com/hooks/@@", _drawn(26, string.ascii_lowercase + string.digits)),
        ("https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=@@", "693a91f6-7acd-4bc4-97dc-0ec2sifa5aaa"),
        ("https://oapi.dingtalk.com/robot/send?access_token=@@", _drawn(64, _HEX)),
        ("notify.webhook_url=@@", "https://n.example.com/in/" + _drawn(10)),
    ),
}  # fmt: skip

SECRETS: Final = tuple(
    Row(form, text.replace("@@", secret), secret)
    for form, templates in _TEMPLATES.items()
    for text, secret in templates
)

LOOK_ALIKES: Final = tuple(
    Row(form, text, "")
    for form, texts in (
        (
            Form.ARGUMENT,
            (
                "train.py --tokenizer gpt2 --passes 3",
                "train.py --max_tokens 2048 --token_id 7",
                "train.py --bypass true --compass north",
                "train.py --passenger_count 4 --monkey george",
                "train.py --keyboard qwerty --turkey dinner",
                "train.py --secretary kim --api_version v2",
                "train.py --author kim --pad-token1 pad0",
                "train.py --num_passes2 two --key_dim 64",
                "train.py --tokens-per-sec2 fast --keypoints coco17",
                "train.py --user kim --user-group 1000:1000",
                "docker run --user 1000:1000 -p 8080:80 image",
            ),
        ),
        (
            Form.YACS,
            (
                "train.py MODEL.TOKENIZER bert2 SOLVER.BASE_LR 0.1",
                "train.py num_tokens 4096 DATA.TEXT_KEY caption1",
                "train.py MODEL.KEY_DIM d64 DATA.SORT_KEY len2",
                "train.py MODEL.PAD_TOKEN pad0 TRAIN.FORWARD_PASS v2",
                "train.py MODEL.AUTHOR kim7 TEST.BYPASS b1",
            ),
        ),
        (
            Form.HYDRA,
            (
                "train.py model.tokenizer=gpt2 data.key=image1",
                "train.py +model.image_token2=img2 trainer.max_tokens=4096",
                "train.py data.passes=all3 model.pass_through=x2",
                "train.py model.secretary=v2 model.n_keys=k64",
            ),
        ),
        (
            Form.VARIABLE,
            ("TOKENIZERS_PARALLELISM=false", "KEYBOARD=us2", "BYPASS_CACHE=v1", "API_VERSION=2026-11-29b", "NUM_TOKENS=4k"),
        ),
        (
            Form.CONFIG,
            (
                "pad_token2: pad0",
                '"primary_key": "id2", "sort_key": "len2"',
                "tokenizer: Qwen2TokenizerFast",
                "passband_hz: 3k",
                'token_type = "bpe2"',
                "secret_name: hf-credentials2",
            ),
        ),
        (
            Form.LOG,
            (
                "forward pass: 12.3ms, backward pass: 31.2ms",
                "api version: v2.13.0",
                "special token: tok2 was added",
                "the secret is out: loss falls",
                "cache key: fk3jq7w5xz2l",
                "keyboard: us-intl2, monkey: m2",
                "token 17: word2 of the prompt",
                "tokens: 2.1B, pass 2: 31s",
                "db.password is not set, api_key is missing",
            ),
        ),
    )
    for text in texts
)  # fmt: skip

# A second draw, after the rule was written: as the documentation and issues of pixi, Snowflake, watsonx, Open Cloud, SwanLab, Bark,
# shoutrrr, Prefect, ClearML, H2O, DVC, MLflow, Trackio, Domino, rclone, git-rsync, tldw, W&B, Tavily, Exa, Gcore, WinSCP, litellm
# and Telesherpa show them.
DOCUMENTED: Final = tuple(
    Row(form, text.replace("@@", secret), secret)
    for form, text, secret in (
        (Form.ARGUMENT, "pixi auth login repo.prefix.dev --token pfx_@@", "JQEV-m_" + _drawn(29)),
        (Form.ARGUMENT, "pixi auth login anaconda.org --conda-token @@", _drawn(16, string.ascii_uppercase)),
        (Form.ARGUMENT, "pixi auth login s3://b --s3-access-key-id kim7 --s3-session-token '@@'", _drawn(30, _ALNUM + "+/")),
        (Form.ARGUMENT, "snow sql --user kim --mfa-passcode @@", "482913"),
        (Form.ARGUMENT, "train.py --trackio_token @@ --init_from resume", "tr4ck-me"),
        (Form.ARGUMENT, "git-rsync --upstream-token @@ --mirror-token $MIRROR", "ups-tream7"),
        (Form.ARGUMENT, "rclone authorize drive client-7 @@", _drawn(24)),
        (Form.VARIABLE, "DI_APIKEY=@@", "w4tson-x"),
        (Form.VARIABLE, "HG_FACE_TOKEN=@@", _drawn(12)),
        (Form.VARIABLE, "CLIENTLOG_DEBUG_TOKEN=@@", "debugging"),
        (Form.VARIABLE, "RCLONE_CONFIG_PASS=@@", "hunter"),
        (Form.VARIABLE, "RCLONETOKEN=@@", _drawn(40)),
        (Form.YACS, "dvc remote modify --local myremote secret_access_key @@", "mysecret7"),
        (Form.YACS, "dvc remote modify --local myremote session_token @@", "my-session"),
        (Form.YACS, "dvc remote modify myremote connection_string AccountName=a;AccountKey=@@", _drawn(20)),
        (Form.LOG, "X-Telesherpa-Secret: @@", "sherpa99"),
        (Form.LOG, "INFO:root:Debug - Chat API Call - API Key: @@", "ch4t-api-key"),
        (Form.LOG, "[CREDENTIAL] Key @@... is rate-limited, backoff: 3s", _drawn(8)),
        (Form.LOG, "New Secret Key: @@", "g-core-s3"),
        (Form.LOG, "+ wandb login @@;", _drawn(40, _HEX)),
        (Form.LOG, "model_call_details: {'model': 'gpt', 'api_key': '@@', 'stream': True}", "litellm1"),
        (Form.URL, "BACKEND_STORE_URI=postgresql://user:@@@host:port/db", "st0re"),
        (Form.URL, "lark://open.larksuite.com/abc123?secret=@@", "xyz789"),
        (Form.URL, "GET https://api.day.app/@@/Training/ended", _drawn(22)),
        (Form.WEBHOOK, "LarkCallback(webhook_url='https://open.larkoffice.com/open-apis/bot/v2/hook/@@')", "7f3c2b1a-9e0d-4c5b-8a76-f1e2d3c4b5a6"),
        (Form.CONFIG, "bot_token = '@@'", "123456789:ABCdefGHIjklMNOpqrsTUVwxyz"),
        (Form.CONFIG, "credentials { access_key: @@ }", "ABCDEF7KIM"),
        (Form.CONFIG, "PrivateKeyPassphrase=@@", "open-sesame"),
        (Form.CONFIG, "      - MYSQL_ROOT_PASSWORD=@@", "t00r"),
        (Form.TOKEN, "search: tvly-dev-@@ is out of quota", _drawn(32)),
    )
)  # fmt: skip
# What no rule of ours can know: a second argument without a name, the first letters of a key, a value of a webhook that is none.
MISSED: Final = ("rclone authorize", "[CREDENTIAL]", "SWANLAB_WEBHOOK_VALUE")

DOCUMENTED_LOOK_ALIKES: Final = tuple(
    Row(form, text, "")
    for form, text in (
        (Form.CONFIG, '"coord_token": "<|coord|>", "det_token": "<|DET|>"'),
        (Form.CONFIG, '"image_reg_1_token": "img1", "end_of_turn_token": "eot_2"'),
        (Form.CONFIG, '"boi_token": "<start_of_image>", "caption_token": "cap0"'),
        (Form.CONFIG, '"num_key_value_heads": 8, "clean_up_tokenization_spaces": false'),
        (Form.CONFIG, '"model_specific_special_tokens": {"image_token": "<image_soft_token>"}'),
        (Form.CONFIG, "serviceAccountName: mlflow2"),
        (Form.CONFIG, "- secretRef:\n    name: mlflow-db-credentials2"),
        (Form.CONFIG, "bearer_token_command = get-token2 --fresh"),
        (Form.CONFIG, "tokens_per_second=2, keyfile=keys2.bin"),
        (Form.ARGUMENT, "snow sql --authenticator snowflake2 --oauth-flow auth-code"),
        (Form.ARGUMENT, "pixi auth login x --oauth-scope repo:read --oauth-client-id rattler2"),
        (Form.ARGUMENT, "snow sql --token-file-path /run/t --private-key-path k2.p8"),
        (Form.ARGUMENT, "jsrepo tokens github2 --logout"),
        (Form.ARGUMENT, "train.py --no_pass_manager v2 --wandb_key_metric loss2"),
        (Form.YACS, "train_script.py --opts MODEL.NAME resnet34 MODEL.MODEL_LIBRARY pytorchcv"),
        (Form.YACS, "dvc remote modify myremote credentialpath path/to/credentials2"),
        (Form.VARIABLE, "SWANLAB_WEBHOOK_VALUE=hello2"),
        (Form.LOG, "signature=1 adds X-Webhook-Signature (HMAC of the body)"),
        (Form.LOG, "Credential('5e429d6ecf8a5f36c5693e0f', 'my_db_cred', 'basic')"),
        (Form.LOG, "cred.credential_id: 5e429d6ecf8a5f36c5693e0f"),
    )
)
