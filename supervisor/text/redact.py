"""Remove secrets from output: tokens in known formats, URLs, headers, named values and command lines.

All text from outside passes through this module before stoker writes or prints it: arguments, variables, config values and
copied log lines. The module asks three questions about a text:

- Does it contain a recognizable token (``ghp_…``, a JWT, a private key, a password in a URL)? Such a token is always hidden.
- Is there a name before a value? A clearly secret name (``password``, ``api_key``) hides any value except a plain
  one (a number, ``true``, a path, ``$VAR``). A possibly secret name (``key``, ``auth``) hides a value that looks random.
- Does it contain the value of one of the run's own secret variables or arguments (`Redactor`)? It too is always hidden.

Secrets become `HIDDEN`. A second pass changes nothing. A 100-character line takes about 25 µs, so only copied text passes
through here, not text that is merely scanned or charted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from supervisor.text.decode import strip_escapes
from supervisor.text.patterns import Lazy
from supervisor.text.secret_values import (
    HEX,
    HIDDEN,
    NUMBER,
    PROSE,
    REFERENCE,
    STEMS,
    WORD,
    Kind,
    hides,
    hides_in_text,
    hides_next,
    is_plain,
    is_random,
    kind_of_name,
    longest_segment,
    looks_secret,
    word_set,
    wordless,
)

__all__ = ["HIDDEN", "Redactor", "argv_spans", "redact", "redact_argv", "redact_lines", "redact_text"]

Span = tuple[int, int]


# -- recognizable tokens ----------------------------------------------------------------------------

# The published shapes of credentials, from the rule sets of scanners: AWS, Google, JSON web tokens, Neptune, Databricks, Twilio,
# Mailgun, W&B, SendGrid, Vault, Doppler, Telegram, Discord, GitLab, Slack, GitHub, Stripe, Anthropic, OpenAI, Sentry, Docker, PyPI,
# NVIDIA, Postman, Tailscale, PlanetScale, age, Atlassian, Artifactory, Azure.
_SHAPED = Lazy(
    r"(?<![A-Za-z0-9])(?:(?:AKIA|ASIA|ABIA|ACCA|LTAI)[A-Z0-9]{16}(?![A-Za-z0-9])"
    r"|(?:IQoJb3JpZ2lu|F[wQ]oGZXIvYXdz)[A-Za-z0-9+/=]{20,}|AIza[\w\-]{30,}|ya29\.[\w\-]{16,}|1//0[\w\-]{24,}|GOCSPX-[\w\-]{20,}"
    r"|eyJ[\w\-]{8,}\.[\w\-]{8,}\.[\w\-]+|eyJhcGlf[A-Za-z0-9+/_\-]{20,}={0,2}|dapi[0-9a-f]{32}|(?:SK|key-)[0-9a-f]{32}"
    r"|local-[0-9a-f]{40}|wandb_v\d_\w{30,}|SG\.[\w\-]{16,}\.[\w\-]{16,}|hv[sbr]\.[\w\-]{20,}|dp\.(?:pt|st|ct)\.[\w.]{30,}"
    r"|(?:bot)?\d{8,10}:AA[\w\-]{30,}|[MNO][\w\-]{23,27}\.[\w\-]{6}\.[\w\-]{27,}"
    r"|gl(?:pat|oas|dt|rtr?|cbt|ptt|ft|imt|agent|wt|soat|ffct)-[\w\-]{16,}(?:\.[\w\-]+)*|x(?:ox[a-z]|app-\d)-[A-Za-z0-9\-]{10,}"
    r"|(?:hf|KGAT)_[A-Za-z0-9]{24,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}"
    r"|[sr]k_(?:live|test)_[A-Za-z0-9]{10,}|sk-(?:ant|proj|or)-[\w\-]{20,}|sntry[su]_[\w+/=]{30,}"
    r"|dckr_[po]at_[\w\-]{20,}|pypi-AgE[\w\-]{20,}|nvapi-[\w\-]{40,}|PMAK-[0-9a-f\-]{40,}|tskey-[\w\-]{20,}|pscale_[a-z]+_[\w\-.]{32,}"
    r"|AGE-SECRET-KEY-1[A-Z0-9]{50,}|ATATT3[\w\-=]{40,}|AKCp[A-Za-z0-9]{50,}|[\w~.]{3}\dQ~[\w~.\-]{30,})"
)
# Prefixes that ordinary names also have. The rest must look random.
_PREFIXED = Lazy(
    r"(?<![A-Za-z0-9])(?:(?:npm|gsk|r8|do[oprt]_v1|gls?[ac]|sbp"
    r"|shp(?:at|ca|pa|ss)|lin_api|ntn|fm2|secret|api_org)_|(?:[sa]k|as|pplx|xai|pul)-)([\w\-+/=]{16,})"
)
# Tokens of unlisted vendors: a short prefix, then a random word with all three kinds of characters.
_UNLISTED = Lazy(r"(?<![A-Za-z0-9/.])[a-z][a-z0-9]{1,11}(?:[_\-][a-z0-9]{1,8}){0,2}[_\-]([\w\-]{24,})")
_PRIVATE_KEY = Lazy(
    r"-----BEGIN (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----(?P<body>.*?)(?:-----END (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_KEY_END = Lazy(r"-----END (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----")
# A line of a key's body on its own: 64 characters of base64, here 60 to 76.
_BODY_LINE = Lazy(r"(?<![^\s\"'])[A-Za-z0-9+/]{60,76}={0,2}(?=\s|\\n|[\"']|$)")
_AWS_SECRET = Lazy(r"(?<![A-Za-z0-9/+=_.\-])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=_\-])")
_WEBHOOK = Lazy(
    r"(?i)(?:(?<![a-z])(?:web)?hooks?[\w.\-]*|/with/key|hc-ping\.com|api\.day\.app|/bot/v\d/hook)/([^\s\"'<>]+)"
)


def _tokens(text: str, low: str) -> Iterator[Span]:
    if "private key" in low:
        for found in _PRIVATE_KEY.finditer(text):
            if found["body"].strip(" \\nr"):
                yield found.span("body")
        for found in _KEY_END.finditer(text):
            start = text.rfind("-----BEGIN", 0, found.start())
            if start < 0 and text[: found.start()].strip():  # the beginning of the key was cut off
                yield 0, found.start()
    if max(map(len, text.split()), default=0) < 16:
        return
    for found in _SHAPED.finditer(text):
        yield found.span()
    for found in _PREFIXED.finditer(text):
        if is_random(found[1]) or len(longest_segment(found[1])) >= 30:
            yield found.span()
    for found in _UNLISTED.finditer(text):
        if len(segment := longest_segment(found[1])) >= 20 and _is_mixed(segment):
            yield found.span()
    is_aws = "aws" in low or "akia" in low or "asia" in low
    for found in (*_BODY_LINE.finditer(text), *(_AWS_SECRET.finditer(text) if is_aws else ())):
        if _is_mixed(found[0]):
            yield found.span()
    has_hook = any(map(low.__contains__, ("hook", "/with/key", "hc-ping", "api.day")))
    for found in _WEBHOOK.finditer(text) if has_hook else ():
        if is_random(found[1]):
            yield found.span(1)


def _is_mixed(text: str) -> bool:
    """Check whether base64 text looks random, i.e. mixes lowercase, uppercase and digits and is not a path made of words."""
    kinds = (str.islower, str.isupper, str.isdigit)
    return all(any(map(kind, text)) for kind in kinds) and text.count("/") <= 6 and wordless(text) >= 0.5


# -- URLs -----------------------------------------------------------------------------------------

# The rest of a longer URL is read as text, because a line of colons and slashes would take minutes.
_URL = Lazy(r"://(?=([^\s\"'<>`\\]{1,2048}))")
_AUTHORITY = Lazy(r"^[^/?#]*")
_PORT = Lazy(r"\d{1,5}(?:[/?#,]|$)")
_HOST_AFTER = Lazy(r"@(?=[\w.\-\[\]]+(?::\d+)?(?:[/?#,]|$))")
_QUERY = Lazy(r"[?&;#]([A-Za-z0-9_.\-]{1,60})=([^&;\s\"'<>#]+)")
_QUERY_NAME = Lazy(r"(?:x-\w+-)?(?:sig|signature|hmac|token|auth)|(?:aws|oss)accesskeyid")
_USER = Lazy(r"[a-z][a-z.\-_]{0,24}\d{0,3}|x-access-token|x-token-auth|oauth2?|git|_json_key")
_DSN = Lazy(r"(?<![\w:.\-])[\w.\-]+:([^\s@/\"']+)@(?:tcp|unix)\(")


def _urls(text: str, low: str) -> Iterator[Span]:
    for found in _URL.finditer(text) if "@" in text else ():
        yield from _user_of_url(found[1], found.start(1), low[: found.start()])
    for found in _QUERY.finditer(text) if "=" in text else ():
        name, value = found[1].lower(), found[2]
        if name in {"key", "code"}:
            hide = looks_secret(value) or len(value) >= 16
        else:
            hide = _QUERY_NAME.fullmatch(name) is not None or hides(found[1], value)
        if hide and not is_plain(value):
            yield found.span(2)
    for found in _DSN.finditer(text) if "@tcp(" in low or "@unix(" in low else ():
        yield found.span(1)


def _user_of_url(rest: str, start: int, scheme: str) -> Iterator[Span]:
    """Yield the password in ``user:password@host``, even if it contains ``@`` or ``/``, and any token used as the user name."""
    at = _AUTHORITY.findall(rest)[0].rfind("@")
    if at < 0:
        user, colon, after = rest.partition(":")
        if not colon or "/" in user or "@" in user or _PORT.match(after) or "@" not in after:
            return
        at = max((found.start() for found in _HOST_AFTER.finditer(rest)), default=-1)
        if at < 0:
            return
    user, colon, password = rest[:at].partition(":")
    if colon and password and not REFERENCE.fullmatch(password):
        yield start + len(user) + 1, start + at
    if user and user.lower() not in {"postgres", "oauth2"} and not REFERENCE.fullmatch(user):
        alone = password in {"", "x-oauth-basic"} and scheme.endswith(("http", "https", "ws", "wss"))
        if (is_random(user) and len(user) >= 16) or (alone and not _USER.fullmatch(user)):
            yield start, start + len(user)


# -- headers, named values, flags -------------------------------------------------------------------

_AUTHORIZATION = Lazy(
    r"(?i)authorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:(?:digest|aws4-hmac-sha256|oauth|hawk)[ \t]+([^\"'\n]+)"
    r"|(?:basic|bearer|token|negotiate|api-?key|bot|key|sharedkey)[ \t]+([^\s\"',]+)|([^\s\"',]+))"
)
_BEARER = Lazy(r"(?i)\b(?:bearer|basic)[ \t]+([A-Za-z0-9._~+/\-]{12,}={0,2})")
_COOKIE = Lazy(r"(?i)\b(?:set-)?cookie[\"']?[ \t]{0,4}:[ \t]{0,4}[\"']?(?P<value>[^\"'\n=]{0,200}=[^\"'\n]*)")


def _headers(text: str, low: str) -> Iterator[Span]:
    for found in _AUTHORIZATION.finditer(text) if "authorization" in low else ():
        if found.lastindex != 3 or not (PROSE.fullmatch(found[3]) or is_plain(found[3])):
            yield found.span(found.lastindex or 0)
    for found in _BEARER.finditer(text) if "bearer" in low or "basic" in low else ():
        if any(map(str.isdigit, found[1])) or is_random(found[1]):
            yield found.span(1)
    for found in _COOKIE.finditer(text) if "cookie" in low else ():
        yield found.span("value")


_STEMS: Final = STEMS | {"user", "login"}
_VALUE_CHARS: Final = 512
# A name in lower case, its separator, and its value.
_NAMED = Lazy(
    rf"(?<![\w.\-])(?=[\w.\-]*?(?:{'|'.join(sorted(_STEMS))}))(?P<name>-{{0,2}}[a-z_][\w.\-]{{1,119}})"
    r"(?P<sep>\\*[\"']?\]?[ \t]{0,20}(?:=>|:=|==?|:)[ \t]{0,20}|[ \t](?:is|was|provided):?[ \t]"
    r"|\\*[\"'][ \t]{0,4},[ \t]{0,4}(?=\\*[\"'])|>|[ \t]+)(?:[bru]{1,2}(?=[\"']))?"
    r"(?:\\+[\"'](?P<escaped>[^\\\n]*)|\"(?P<double>(?:[^\"\\\n]|\\.)*)|'(?P<single>(?:[^'\\\n]|\\.)*)"
    rf"|(?P<value>[^\s\"']{{1,{_VALUE_CHARS}}}))"
)
# The end of a value without quotes: in a list, a connection string, a query.
_VALUE_END = Lazy(r",|</|\.$|[;&](?=[\w .\-]{1,40}=)")
_WORD_BEFORE = Lazy(r"[A-Za-z]+(?= $)")
_SHORT_FLAG = Lazy(r"-\w")
# Flags that take ``user:password``, or OpenSSL's ``pass:password``.
_USERS = Lazy(r"(?:\w+-)?(?:user|login|auth)|pass(?:in|out)")
_USER_AND = Lazy(r"[\w.@+\-]+:(?=[^/])")
_NAME_AND_VALUE = Lazy(
    r"\bname[\"']?:[ \t]*[\"']?([A-Za-z_]\w{2,60})[\"']?,?\s{1,40}[\"']?value[\"']?:[ \t]*[\"']?([^\s\"']+)"
)
_NETRC = Lazy(r"\b(?:login|account)\s+\S+\s+password\s+(\S+)")
_PASSPHRASE = Lazy(r"(?i)\bpassphrase[ \t]{0,4}[:=][ \t]{0,4}[\"']?((?:[^\s\"']+[ \t]+){2}[^\"'\n]+)")
_SPACE = Lazy(r"\s|$")


def _named(text: str, low: str) -> Iterator[Span]:
    found = _NAMED.search(low) if any(map(low.__contains__, _STEMS)) else None
    hidden_to = 0
    while found is not None:
        start, end = found.span(found.lastgroup or "value")
        if found.start() >= hidden_to:
            is_bare = found["value"] is not None
            cut = _VALUE_END.search(text[start:end]) if is_bare and found["name"][0] != "-" else None
            end = start + cut.start() if cut else end
            if (secret := _secret_at(text, low, found, text[start:end])) >= 0:
                after = _SPACE.search(text, end) if is_bare and end - start == _VALUE_CHARS else None
                hidden_to = after.start() if after else end
                yield start + secret, hidden_to
        found = _NAMED.search(low, found.end("sep"))  # the value may hold a name: ``Config(hub_token='…')``
    for pair in _NAME_AND_VALUE.finditer(text) if "value" in low else ():
        if (kind_of_name(pair[1]) is Kind.SURE or pair[1].isupper()) and hides(pair[1], pair[2]):
            yield pair.span(2)
    if "pass" in low:
        yield from (found.span(1) for found in _NETRC.finditer(text))
        yield from (found.span(1) for found in _PASSPHRASE.finditer(text) if not is_plain(found[1]))


def _secret_at(text: str, low: str, found: re.Match[str], value: str) -> int:
    """Return where a secret starts in the value after a name, or -1 if there is none."""
    at, sep = found.start(), found["sep"]
    name = text[at : found.end("name")]
    if name.startswith("-"):
        return -1 if _SHORT_FLAG.fullmatch(value) else _secret_of_flag(name, value)
    if sep == ">" or "," in sep:  # `<password>V</password>`, `('HF_TOKEN', 'V')`
        sure = kind_of_name(name) is Kind.SURE or (name.isupper() and "_" in name)
        is_pair = low[:at].endswith("<") if sep == ">" else name.isupper() or not WORD.fullmatch(value)
        hide = sure and is_pair and hides(name, value) and value[:1] != "-"
    elif sep.isspace():
        hide = hides_next(name, value, given=False)
    else:
        before = _WORD_BEFORE.findall(text[max(0, at - 20) : at])  # ``API key: …``
        whole = "_".join((*before, name)) if name.isalpha() else name
        hide = hides_in_text(whole, value, quoted=not found["value"], spaced=sep[-1].isspace(), text=low)
    return 0 if hide else -1


def _secret_of_flag(flag: str, value: str) -> int:
    """Return where a secret starts in a flag's value: at 0 or after a user name, or -1 if there is none."""
    name = flag.lstrip("-+")
    if value.startswith("--"):
        return -1
    if hides(name, value):
        return 0
    if _USERS.fullmatch(name.lower()) and (user := _USER_AND.match(value)):
        password = value[user.end() :]
        if not is_plain(password) and password != value[: user.end() - 1]:  # `docker run --user app:app`
            return user.end()
    return -1


# -- commands that take a password by a short flag ----------------------------------------------------

_DATABASES: Final = "mysql mysqldump mysqladmin mysqlimport mysqlsh mariadb mariadb-dump mongo mongosh mongodump mongorestore sshpass 7z 7za"
_SHORT: Final[Mapping[str, str]] = {
    **dict.fromkeys(_DATABASES.split(), "-p"),
    **dict.fromkeys(word_set("ldapsearch ldapadd ldapmodify ldappasswd"), "-w"),
    **dict.fromkeys(word_set("sqlcmd bcp zip unzip"), "-P"),
    **dict.fromkeys(word_set("curl lftp"), "-u"),
    "redis-cli": "-a",
    "smbclient": "-U",
}
# These commands take it only after `login`: for `docker run`, -p is a port.
_LOGINS: Final = word_set("docker podman nerdctl buildah skopeo crane helm oras az ibmcloud oc argocd cf")
# The word after `login` is the key.
_LOGIN_KEYS: Final = word_set("wandb vault comet")
_COMMANDS: Final = frozenset(_SHORT) | _LOGINS | _LOGIN_KEYS
_COMMAND = Lazy(rf"(?<![\w\-])(?:{'|'.join(sorted(_COMMANDS))})\s")
_SHELL_WORD = Lazy(r"[\"'`(\[{]*(\S+)")
_OPERATOR: Final = word_set("| || & && ;")
_COLON = Lazy(r"[:%,]")


def _in_command(words: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Yield (index, start, end) for secrets that a command takes after a short flag or without one. Numbers are skipped."""
    flag = login = ""
    for index, word in enumerate(words):
        name = word.rpartition("/")[2]
        following = words[index + 1] if index + 1 < len(words) else ""
        at, start, value = index + 1, 0, ""
        if word in _OPERATOR or word.endswith(";"):
            flag = login = ""
        elif name in _COMMANDS and not (flag and index and words[index - 1] == flag):
            flag, login = _SHORT.get(name, ""), "" if name in _SHORT else name
        elif word == "login" and login:
            flag = "-p" if login in _LOGINS else ""
            if not flag and (looks_secret(following) or (len(following) >= 16 and HEX.fullmatch(following))):
                value = following
        elif flag and word == flag:
            colon = _COLON.search(following)
            start = 0 if flag not in {"-u", "-U"} else colon.end() if colon else len(following)
            value = following[start:]
        elif flag in {"-p", "-P"} and not login and word.startswith(flag) and not word.startswith("--"):
            at, start, value = index, 2, word[2:]
        if value and HIDDEN not in value and not NUMBER.fullmatch(value) and not REFERENCE.fullmatch(value):
            yield at, start, start + len(value)


def _commands(text: str, low: str) -> Iterator[Span]:
    if _COMMAND.search(low) is None:
        return
    found = [(word.start(1), word[1].rstrip("\"'`)]},")) for word in _SHELL_WORD.finditer(text)]
    for index, start, end in _in_command([word for _, word in found]):
        offset = found[index][0]
        yield offset + start, offset + end


# -- the redactor ---------------------------------------------------------------------------------

_RULES: Final = (_tokens, _urls, _headers, _named, _commands)
_CAPITALS = Lazy(r"[A-Z]+")


def secret_spans(text: str) -> list[Span]:
    """Return the positions of secrets in a text, in order and without overlaps."""
    low = text.lower()
    if len(low) != len(text):  # a letter whose lower case is two characters
        low = _CAPITALS.sub(lambda found: found[0].lower(), text)
    return _merged(span for rule in _RULES for span in rule(text, low))


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _without(text: str, spans: Sequence[Span]) -> str:
    for start, end in reversed(spans):
        text = f"{text[:start]}{HIDDEN}{text[end:]}"
    return text


def redact_text(text: str) -> str:
    """Redact text for display or for a file. Color codes are removed too, so they cannot shield a secret."""
    raw = text.replace(r"\x1b", "\x1b")  # the form before it was made printable
    if "\x1b" in raw:
        hidden = redact_text(bare := strip_escapes(raw))
        return text if hidden == bare else hidden
    return _without(text, _around_hidden(text, secret_spans(text)))


def _around_hidden(text: str, spans: list[Span]) -> list[Span]:
    """Return the spans, leaving out those that are already hidden or empty."""
    if HIDDEN not in text:
        return spans
    return [
        (start, end) for start, end in spans if HIDDEN not in text[start:end] and text[start:end].strip("<>")
    ]


def redact_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Redact lines that belong together. A private key is hidden line by line, to preserve the line count."""
    found: list[str] = []
    in_key = False
    for line in lines:
        ends = "-----END" in line and "PRIVATE KEY" in line
        found.append(HIDDEN if in_key and not ends and line.strip() else redact_text(line))
        in_key = (in_key or ("-----BEGIN" in line and "PRIVATE KEY" in line)) and not ends
    return tuple(found)


def redact(name: str, value: str) -> str:
    """Redact the value of a variable or setting: entirely if its name calls for it, otherwise as text."""
    return HIDDEN if hides(name, value) else redact_text(value)


_ARGUMENT = Lazy(r"-{0,2}[A-Za-z_+][\w.+\-/]*")


def argv_spans(argv: Sequence[str]) -> list[list[Span]]:
    """Return each word's secret spans, e.g. in ``--api-key X``, ``--api-key=X``, ``mysql -pX``, ``A_TOKEN=X``, ``db.token X``."""
    spans: list[list[Span]] = [secret_spans(word) for word in argv]
    for index, start, end in _in_command(argv):
        spans[index].append((start, end))
    for index, word in enumerate(argv):
        name, equals, value = word.partition("=")
        at, before = (index, len(name) + 1) if equals else (index + 1, 0)
        is_flag = word.startswith("-")
        if at == len(argv) or not ((is_flag and not equals) or _ARGUMENT.fullmatch(name)):
            continue
        if equals and spans[index] and not is_flag and " " in value:
            continue  # in a shell line, its own secrets are already found
        if equals or is_flag:
            secret = _secret_of_flag(name, argv[at][before:])
        else:
            secret = 0 if hides_next(name, argv[at], given=True) else -1
        if secret >= 0:
            spans[at].append((before + secret, len(argv[at])))
    return [_around_hidden(word, _merged(found)) for word, found in zip(argv, spans, strict=True)]


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Redact a command line for display."""
    return tuple(map(_without, argv, argv_spans(argv)))


_LEAST_KNOWN: Final = 6
NOT_TEXT: Final = word_set(
    "kind path artifact resume_copy stdout stderr source run_id host fingerprint change"
)
"""Keys whose values are used, not just shown: paths, names, and changes for the next launch (where secrets are refused)."""


class Redactor:
    """Also hides known secret values, taken from a run's own variables and arguments.

    A value is hidden anywhere in the output if it has at least 6 characters and is not a plain word.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        values = {form for value in known for form in _forms(value)}
        longest_first = sorted(values, key=lambda value: (-len(value), value))
        any_of = "|".join(map(re.escape, longest_first)) or "(?!)"
        self._known = re.compile(rf"(?<![A-Za-z0-9])(?:{any_of})(?![A-Za-z0-9])")

    @classmethod
    def of(cls, env: Iterable[tuple[str, str]], argv: Sequence[str] = ()) -> Redactor:
        """Build a redactor for the secrets in an environment and a command line."""
        known: list[str] = []
        for name, value in env:
            if hides(name, value):
                known += map(str.strip, value.splitlines())
            elif value and "=" not in name:
                known += [value[start:end] for start, end in secret_spans(value)]
        for word, spans in zip(argv, argv_spans(argv), strict=True):
            known += [word[start:end] for start, end in spans]
        return cls(known)

    def text(self, text: str) -> str:
        """Redact known values and everything that `redact_text` finds."""
        return redact_text(self._known.sub(HIDDEN, text))

    def data(self, value: Any) -> Any:
        """Return plain data (from JSON) with every string redacted, except values under a key in `NOT_TEXT`."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: item if key in NOT_TEXT else self.data(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(item) for item in value]
        return value


def _forms(value: str) -> Iterator[str]:
    """Yield the forms in which a secret may be printed (plain, URL, JSON), or nothing if it is too common to search for."""
    value = value.strip("\"'{}[]() ")
    user = _USER_AND.match(value)
    for known in (value, value[user.end() :]) if user else (value,):
        if (
            len(known) >= _LEAST_KNOWN
            and not is_plain(known)
            and (len(known) >= 16 or not WORD.fullmatch(known))
        ):
            yield from (known, quote(known, safe=""), json.dumps(known)[1:-1])
