"""Remove secrets from output: tokens of known shapes, URLs, headers, named values, command lines.

All text from outside passes through this module before stoker writes or prints it: arguments, variables, config values and
copied log lines. The module asks three questions about a text:

- Does it contain a recognizable token (``ghp_…``, a JWT, a private key, a password in a URL)? Such a token is always hidden.
- Is there a name before a value? A clearly secret name (``password``, ``api_key``) hides every value except plain
  ones (a number, ``true``, a path, ``$VAR``). A possibly secret name (``key``, ``auth``) hides values that look random.
- Does it contain the value of one of the run's own secret variables or arguments (`Redactor`)? It is always hidden.

Secrets become `HIDDEN`. A second pass changes nothing. A 100-character line takes about 25 µs, so only copied text passes
through here, not text that is merely scanned or charted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Final
from urllib.parse import quote

from supervisor.text.decode import strip_escapes
from supervisor.text.patterns import Lazy

HIDDEN: Final = "<redacted>"
Span = tuple[int, int]


class Kind(Enum):
    """How likely it is that a name's value is a secret."""

    SURE = "sure"  # a secret, unless the value is plain
    LIKELY = "likely"  # a secret if the value looks secret
    OPEN = "open"  # not a secret


def _word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Every secret's name contains one of these, or a user's password follows it.
_STEMS: Final = _word_set(
    "key token tkn pass pw secret cred auth bearer webhook pat pin sig sas cookie user login"
)
_CAMEL = Lazy(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_BETWEEN = Lazy(r"\d*[^a-z0-9]+|(?<=[a-z])(?=(?:token|tkn)\d*[^a-z0-9])")
# Secrets on their own, even at the end of a word: `MYSQLPASSWORD`.
_ENDS: Final = tuple(
    _word_set("password passwords passwort passwd passphrase secret secrets credential credentials")
)
_WORDS: Final = _word_set("pwd passcode cred creds bearer authorization webhook")
# Secrets if they have an owner, as a separate word or joined to it: `api_key`, `apikey`, `DBPASS`.
_OWNED = Lazy(r"(.*?)(?:keys?|token|tkn|pass|pwd?|auth)")
_OWNERS: Final = _word_set(
    "api access secret private account service deploy ssh app client license encryption signing shared storage subscription "
    "wandb openai anthropic comet hf hub huggingface aws azure kaggle github gitlab gh gl git slack neptune admin bot npm pypi "
    "oauth auth jwt csrf security session identity sas refresh personal bearer write read login db pg my mysql sql mongo redis "
    "root user ftp smtp mail ldap proxy key store require basic master"
)
# Possible secrets as a last word.
_MAYBE: Final = _word_set("key token tkn auth pass pw pat pin sig signature cookie cookies sas")
# A last word that makes the name a property of a secret.
_ABOUT: Final = _word_set(
    "file path dir folder name names type env var count len length size limit url uri method mode scheme policy expiry "
    "expires ttl prompt field column index idx id ids required enabled version format prefix suffix min max sock provider "
    "backend dim embedding embeddings emb mask loss acc accuracy weight weights padding position rate usage num endpoint "
    "manager helper command metric store parallelism bytes error errors"
)
# With these words, a token belongs to text or to a page of results.
_OF_TEXT: Final = _word_set(
    "pad eos bos unk mask sep cls special stop placeholder initializer instance class image video audio speech prompt "
    "trigger concept new start end num max min per n first last decoder forced added vocab sentinel tool think system "
    "assistant extra modifier tokenizer eot eod eom bom msg chat next prev input output text word sub total completion "
    "cached reasoning page continuation skip ignore begin"
)
# A word before `key` for a table's key or a pass over data.
_OF_DATA: Final = _word_set(
    "cache sort text json data dataset image label input output index group public forward backward single two n num"
)
_BARE: Final = _word_set("token tkn auth pass pw pat cookie")
# Folders, a socket, and the public key of Python's release manager in its images.
_NO_SECRETS: Final = _word_set("PWD OLDPWD SSH_AUTH_SOCK GPG_KEY")


def _words(name: str) -> list[str]:
    """Split a name at capitals and at any character but letters and digits: `dbPassword2` is `DB-PASSWORD`."""
    return _BETWEEN.sub(" ", _CAMEL.sub("_", name[-120:]).lower() + "_").split()


def kind_of_name(name: str) -> Kind:
    """Return what the name of a variable, flag or key suggests about its value."""
    if name in _NO_SECRETS or not any(map(name[-120:].lower().__contains__, _STEMS)):
        return Kind.OPEN
    words = _words(name)
    about = words[-1] in _ABOUT and words[-3:] != ["access", "key", "id"]
    if about and "webhook" not in words:
        return Kind.OPEN
    for before, word in zip(["", *words], words, strict=False):
        owned = _OWNED.fullmatch(word)
        is_owned = owned is not None and (owned[1] or before) in _OWNERS
        if is_owned or word in _WORDS or word.endswith(_ENDS):
            return Kind.SURE
    if "token" in words:
        return Kind.LIKELY if _OF_TEXT.isdisjoint(words) else Kind.OPEN
    is_likely = words[-1] in _MAYBE and _OF_DATA.isdisjoint(words[-2:-1])
    return Kind.LIKELY if is_likely else Kind.OPEN


NUMBER = Lazy(r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[%a-zA-Z]?")
_PLAIN_WORD = Lazy(
    r"true|false|yes|no|on|off|none|null|nil|nan|inf|auto|default|unset|empty|undefined|unknown|missing|required|optional"
    r"|invalid|expired|disabled|enabled|str|int|bool|bytes|string|\*+|x+|\.+|-+|…",
    re.IGNORECASE,
)
# A reference to a value, a placeholder, or a piece of code.
REFERENCE = Lazy(
    r"\$\{[^}]*\}?|\$\([^)]*\)?|\$[A-Z_][A-Z0-9_]*|\{\{?[^}]*\}?\}?|%[sd]|%\(\w+\)s|<[^>]*>?|\[[^\]]*\]?"
    r"|(?:self|args|cfg|conf|config|os|settings|env|opts|opt|kwargs|params|hparams)(?:[.\[].*)?|lambda\b.*|[A-Za-z_][\w.]*[(\[{].*"
)
_PATH = Lazy(
    r"(?:~|\.{1,2})?/[^\s:;]*|file://\S*|[\w.\-/]+\.(?:json|ya?ml|txt|pem|py|pt|pth|env|toml|cfg|ini|crt|pub|log|md)"
)
WORD = Lazy(r"[A-Za-z]?[a-z]{0,15}(?:[_\-][a-z]{1,15}){0,3}")
PROSE = Lazy(r"[A-Za-z]?[a-z']{1,15}[.,;:!?)]*")
HEX = Lazy(r"(?:sha\d{1,3}:|0x)?[0-9a-f]{6,}(?:-[0-9a-f]{2,}){0,6}|(?:sha\d{1,3}:|0x)?[0-9A-F]{6,}")
_VERSION = Lazy(r"v?\d+(?:\.\d+)+")
_SEGMENT = Lazy(r"[A-Za-z0-9]+")
_LETTERS = Lazy(r"[A-Z]?[a-z]{3,}")
_BASE64_PAIR = Lazy(r"[A-Za-z0-9+/]{8,}={0,2}")
_ODD = Lazy(r"[!@#$%^&*~+?]")


def is_plain(value: str, *, digits_too: bool = True) -> bool:
    """Check whether a value cannot be a secret under any name: a number, a config word, a reference or a path."""
    return (
        not value
        or HIDDEN in value
        or (digits_too and NUMBER.fullmatch(value) is not None)
        or _PLAIN_WORD.fullmatch(value) is not None
        or REFERENCE.fullmatch(value) is not None
        or (_PATH.fullmatch(value) is not None and not is_random(max(value.split("/"), key=len)))
    )


def longest_segment(text: str) -> str:
    """Return the longest run of letters and digits."""
    return max(_SEGMENT.findall(text), key=len, default="")


def is_random(text: str) -> bool:
    """Check whether text looks random, meaning that its longest segment is long and consists mostly of non-words."""
    longest = longest_segment(text)
    if len(longest) < 10 or longest.isdigit() or longest.isalpha():
        return len(longest) >= 20 and longest.isalpha() and not longest.islower() and wordless(longest) >= 0.5
    return wordless(longest) >= 0.5


def wordless(text: str) -> float:
    """Return the fraction of the text that lies outside runs of three or more lowercase letters."""
    return len(_LETTERS.sub("", text)) / len(text)


def looks_secret(value: str) -> bool:
    """Check whether a value under an ambiguous name is a secret: it looks random or has odd characters like a password."""
    if len(value) < 8 or len(value.split()) != 1 or is_plain(value) or HEX.fullmatch(value):
        return False
    has_digit, has_letter = any(map(str.isdigit, value)), any(map(str.isalpha, value))
    return is_random(value) or (has_digit and has_letter and len(_ODD.findall(value)) >= 2)


def _judged(name: str, value: str) -> tuple[Kind, list[str]]:
    """Return the name's kind (`Kind.OPEN` for a plain value) and its words. A number can be secret only as a password."""
    kind, words = kind_of_name(name), _words(name)
    password = any(word.endswith(("password", "passwd", "passcode", "pass", "pwd", "pw")) for word in words)
    return (Kind.OPEN if kind is Kind.OPEN or is_plain(value, digits_too=not password) else kind), words


def hides(name: str, value: str) -> bool:
    """Check whether an explicitly set value (a variable, flag or setting) is a secret, judging by its name."""
    kind, words = _judged(name, value)
    if kind is not Kind.LIKELY or looks_secret(value):
        return kind is not Kind.OPEN
    if name.isupper() or (words[-1] in _BARE and len(words) == 1):
        return words[-1] in _BARE or WORD.fullmatch(value) is None
    return "token" in words and WORD.fullmatch(value) is None


def hides_next(name: str, value: str, *, given: bool) -> bool:
    """Check whether the word after a name is its secret value (``db.password V`` in yacs). `given` is true on a command line."""
    kind, words = _judged(name, value)
    if kind is Kind.OPEN or value.startswith("-") or "=" in value.rstrip("=") or _PATH.fullmatch(name):
        return False
    is_sure, is_setting = kind is Kind.SURE, len(words) > 1 or name.isupper()
    if looks_secret(value) or (given and WORD.fullmatch(value) is None):
        return is_sure or (given and looks_secret(value))
    is_prose = value.rstrip(".,;:!?)").isalpha() or not value[0].isalnum() or _VERSION.match(value)
    return is_sure and is_setting and (given or not is_prose)


def hides_in_text(name: str, value: str, *, quoted: bool, spaced: bool, text: str) -> bool:
    """Check whether a value in `text` (lowercase prose or code) is secret. ``password: incorrect`` and ``token=hf_token`` are not."""
    kind, words = _judged(name, value)
    if kind is Kind.SURE:
        is_prose = spaced and PROSE.fullmatch(value)
        return quoted or not (is_prose or (WORD.fullmatch(value) and kind_of_name(value) is not Kind.OPEN))
    if kind is Kind.OPEN:
        return False
    bare = name.lower()
    if bare == "auth" and quoted and _BASE64_PAIR.fullmatch(value):
        return True
    if bare == "key" and HEX.fullmatch(value) and len(value) >= 32:
        return any(word in text for word in ("wandb", "kaggle", "username", "login"))
    if name.isupper() and not spaced:
        return hides(name, value)
    if bare in {"pass", "pw"} and _ODD.search(value) and any(map(str.isdigit, value)):
        return True
    return looks_secret(value) or ("token" in words and bool(HEX.fullmatch(value)) and len(value) >= 20)


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
    """Check whether base64 text is random: it mixes lowercase, uppercase and digits, and is not a path made of words."""
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
    """Yield the password in ``user:password@host``, even if it contains ``@`` or ``/``, and a token in place of the user."""
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

_GAP: Final = r"[\s\0]"  # a blank, or the border between two arguments
_VALUE: Final = rf"[\"'`(\[{{]*(?P<value>[^\s\0]+?)(?=[\"'`)\]}},]*(?:{_GAP}|$))"
# Tools, and what stands before the secret in their words.
_COMMANDS: Final = (
    ("mysql|mysqldump|mysqladmin|mysqlimport|mysqlsh|mariadb|mariadb-dump|mongo|mongosh|mongodump|mongorestore|sshpass|7za?",
     rf"-p{_GAP}*"),
    ("ldapsearch|ldapadd|ldapmodify|ldappasswd", rf"-w{_GAP}+"),
    ("sqlcmd|bcp|zip|unzip", rf"-P{_GAP}*"),
    ("curl|lftp|smbclient", rf"-[uU]{_GAP}+[\"']?[^\s\0:%,]+[:%,]"),
    ("redis-cli", rf"-a{_GAP}+"),
    # For `docker run`, -p is a port.
    ("docker|podman|nerdctl|buildah|skopeo|crane|helm|oras|az|ibmcloud|oc|argocd|cf", rf"login{_GAP}(?:.{{0,400}}?{_GAP})??-p{_GAP}+"),
    ("wandb|vault|comet", rf"login{_GAP}+"),  # the next word is the key
)  # fmt: skip
_TOOL = Lazy(rf"(?<![\w\-])(?:{'|'.join(f'({names})' for names, _ in _COMMANDS)})(?={_GAP})")
_BEFORE_SECRET: Final = tuple(Lazy(rf"(?<={_GAP}){flag}{_VALUE}", re.DOTALL) for _, flag in _COMMANDS)
_OPERATOR = Lazy(rf"{_GAP}(?:\|\|?|&&?|;){_GAP}|;{_GAP}")


def _commands(text: str, low: str) -> Iterator[Span]:
    """Yield the secrets passed to a command after a short flag or as a bare argument. Skip numbers."""
    tools = [*_TOOL.finditer(text)] if _TOOL.search(low) else []
    for tool, following in zip(tools, [*tools[1:], None], strict=False):
        words = text[tool.end() : None if following is None else following.start()]
        over = _OPERATOR.search(words)
        words = words[: over.start()] if over is not None else words
        kind = (tool.lastindex or 1) - 1
        for found in _BEFORE_SECRET[kind].finditer(words):
            value = found["value"]
            if kind == len(_COMMANDS) - 1:
                is_key = looks_secret(value) or (len(value) >= 16 and HEX.fullmatch(value))
            else:
                is_key = not (HIDDEN in value or NUMBER.fullmatch(value) or REFERENCE.fullmatch(value))
            if is_key:
                yield tool.end() + found.start("value"), tool.end() + found.end("value")


# -- the redactor ---------------------------------------------------------------------------------

_RULES: Final = (_tokens, _urls, _headers, _named, _commands)
_CAPITALS = Lazy(r"[A-Z]+")


def secret_spans(text: str) -> list[Span]:
    """Return the positions of secrets in a text, in order and without overlaps."""
    low = text.lower()
    if len(low) != len(text):  # a letter whose lower case is two characters
        low = _CAPITALS.sub(lambda found: found[0].lower(), text)
    return _merged(text, (span for rule in _RULES for span in rule(text, low)))


def _merged(text: str, spans: Iterable[Span]) -> list[Span]:
    """Return the spans in order and without overlaps, without those that are already hidden."""
    merged: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    if HIDDEN not in text:
        return merged
    parts = ((span, text[slice(*span)]) for span in merged)
    return [span for span, part in parts if HIDDEN not in part and part.strip("<>")]


def _without(text: str, spans: Sequence[Span]) -> str:
    for start, end in reversed(spans):
        text = f"{text[:start]}{HIDDEN}{text[end:]}"
    return text


def redact_text(text: str) -> str:
    """Redact lines for display or a file. If they contain a secret, color codes are removed too, so they cannot shield it."""
    raw = text.replace(r"\x1b", "\x1b")  # the form before it was made printable
    if "\x1b" in raw:
        hidden = redact_text(bare := strip_escapes(raw))
        return text if hidden == bare else hidden
    return _without(text, secret_spans(text))


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
    """Return where secrets are in each word: ``--api-key X``, ``--api-key=X``, ``mysql -pX``, ``A_TOKEN=X``, ``db.token X``."""
    spans: list[list[Span]] = [secret_spans(word) for word in argv]
    joined = "\0".join(word.replace("\0", " ") for word in argv)
    for start, _ in _commands(joined, joined):
        index = joined.count("\0", 0, start)
        spans[index].append((start - joined.rfind("\0", 0, start) - 1, len(argv[index])))
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
    return [_merged(word, found) for word, found in zip(argv, spans, strict=True)]


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Redact a command line for display."""
    return tuple(map(_without, argv, argv_spans(argv)))


NOT_TEXT: Final = _word_set(
    "kind path artifact resume_copy stdout stderr source run_id host fingerprint change"
)
"""Keys whose values are used, not just shown: file locations, names, and the next launch's changes (where secrets are refused)."""


class Redactor:
    """A redactor that also hides known secret values, taken from a run's own variables and arguments.

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
    """Yield the forms in which a secret may be printed (plain, URL-quoted, JSON), or nothing if it is too common a string."""
    value = value.strip("\"'{}[]() ")
    user = _USER_AND.match(value)
    for known in (value, value[user.end() :]) if user else (value,):
        is_common = len(known) < 6 or (len(known) < 16 and WORD.fullmatch(known)) or is_plain(known)
        if not is_common:
            yield from (known, quote(known, safe=""), json.dumps(known)[1:-1])
