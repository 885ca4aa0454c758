"""Takes secrets out of what is written or printed: tokens of known shapes, URLs, headers, named values, command lines.

Everything that came from outside passes here before it goes to a file of ours or to a terminal: arguments, variables, config
values, copied log lines. Three questions are asked of a text:

- Does it hold a token that tells what it is (``ghp_…``, a JWT, a private key, a password in a URL)? It is hidden anywhere.
- Does a name stand before a value? A name that is surely a secret's (``password``, ``api_key``) hides any value but a plain one
  (a number, ``true``, a path, ``$VAR``). A name that may be one (``key``, ``auth``) hides only a value that looks random.
- Is the value of one of the run's own secret variables or arguments in it (`Redactor`)? It is hidden wherever it stands.

What is hidden becomes `HIDDEN`; to do it twice changes nothing. A line of 100 characters costs some 50 µs: what is read to be
judged or charted does not pass here, only what is copied.
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
    WORD,
    Kind,
    hides,
    hides_in_text,
    is_plain,
    is_random,
    is_secret_name,
    kind_of_name,
    looks_secret,
    word_set,
    wordless,
)

__all__ = [
    "HIDDEN",
    "Redactor",
    "argv_spans",
    "is_secret_name",
    "redact",
    "redact_argv",
    "redact_lines",
    "redact_text",
    "secret_spans",
]

Span = tuple[int, int]


# -- tokens that tell what they are ----------------------------------------------------------------

# The published shapes of credentials, as the rule sets of scanners list them; each begins with something that nothing else does.
_TOKENS = Lazy(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{24,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}"
    r"|gl(?:pat|oas|dt|rtr?|cbt|ptt|ft|imt|agent|wt|soat|ffct)-[\w\-]{16,}(?:\.[\w\-]+)*"
    r"|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])|(?:IQoJb3JpZ2lu|F[wQ]oGZXIvYXdz)[A-Za-z0-9+/=]{20,}"
    r"|xox[a-z]-[A-Za-z0-9\-]{10,}|xapp-\d-[A-Za-z0-9\-]{10,}"
    r"|AIza[\w\-]{30,}|ya29\.[\w\-]{16,}|GOCSPX-[\w\-]{20,}|1//0[\w\-]{24,}"
    r"|eyJ[\w\-]{8,}\.[\w\-]{8,}\.[\w\-]+|eyJhcGlf[A-Za-z0-9+/_\-]{20,}={0,2}"
    r"|npm_[A-Za-z0-9]{30,}|pypi-AgE[\w\-]{20,}|dckr_[po]at_[\w\-]{20,}"
    r"|wandb_v\d_\w{30,}|local-[0-9a-f]{40}|KGAT_[0-9a-f]{24,}|nvapi-[\w\-]{40,}"
    r"|(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{10,}|gsk_[A-Za-z0-9]{40,}|r8_[A-Za-z0-9]{30,}|pplx-[A-Za-z0-9]{40,}|xai-[A-Za-z0-9]{40,}"
    r"|dapi[0-9a-f]{32}|do[oprt]_v1_[0-9a-f]{40,}|SG\.[\w\-]{16,}\.[\w\-]{16,}|(?:SK|key-)[0-9a-f]{32}"
    r"|(?:bot)?\d{8,10}:AA[\w\-]{30,}|[MNO][\w\-]{23,27}\.[\w\-]{6}\.[\w\-]{27,}"
    r"|hv[sbr]\.[\w\-]{20,}|AGE-SECRET-KEY-1[A-Z0-9]{50,}|glc_[\w+/=]{30,}|glsa_\w{30,}|sntry[su]_[\w+/=]{30,}"
    r"|sbp_[0-9a-f]{32,}|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}|lin_api_[A-Za-z0-9]{30,}|ntn_[A-Za-z0-9]{30,}|dp\.(?:pt|st|ct)\.[A-Za-z0-9.]{30,}"
    r"|PMAK-[0-9a-f\-]{40,}|tskey-[\w\-]{20,}|ATATT3[\w\-=]{40,}|AKCp[A-Za-z0-9]{50,}|LTAI[A-Za-z0-9]{16,}|pul-[0-9a-f]{40}"
    r"|[\w~.]{3}\dQ~[\w~.\-]{30,}"
    r")"
)
# Short beginnings, with which ordinary names begin too: what follows must look random.
_LOOSE = Lazy(r"(?<![A-Za-z0-9])(?:api_org_|sk-|ak-|as-|secret_)([A-Za-z0-9_\-]{16,})")
_PRIVATE_KEY = Lazy(
    r"-----BEGIN (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----(?P<body>.*?)(?:-----END (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_KEY_END = Lazy(r"-----END (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----")
# A line of a key's body that stands by itself: 64 characters of base64, here 60 to 76.
_BODY_LINE = Lazy(r"(?<![^\s\"'])[A-Za-z0-9+/]{60,76}={0,2}(?=\s|\\n|[\"']|$)")
_AWS_SECRET = Lazy(r"(?<![A-Za-z0-9/+=_.\-])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=_\-])")
_WEBHOOK = Lazy(
    r"(?i)hooks\.slack\.com/(?:services|workflows|triggers)/([^\s\"'<>]+)"
    r"|discord(?:app)?\.com/api/(?:v\d+/)?webhooks/([^\s\"'<>]+)"
    r"|\.webhook\.office\.com/([^\s\"'<>]+)|outlook\.office(?:365)?\.com/webhook/([^\s\"'<>]+)"
    r"|open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/v\d/hook/([^\s\"'<>]+)"
    r"|maker\.ifttt\.com/trigger/[^\s/]+/with/key/([^\s\"'<>]+)|hooks\.zapier\.com/hooks/catch/([^\s\"'<>]+)"
    r"|hc-ping\.com/([^\s\"'<>]+)"
)


def _tokens(text: str, low: str) -> Iterator[Span]:
    for found in _TOKENS.finditer(text):
        yield found.span()
    for found in _LOOSE.finditer(text):
        if is_random(found[1]) or (len(found[1]) >= 30 and found[1].isalnum()):
            yield found.span()
    if "private key" in low:
        for found in _PRIVATE_KEY.finditer(text):
            if found["body"].strip(" \\nr"):
                yield found.span("body")
        for found in _KEY_END.finditer(text):
            start = text.rfind("-----BEGIN", 0, found.start())
            if start < 0 and text[: found.start()].strip():  # its beginning was cut off
                yield 0, found.start()
    for found in _BODY_LINE.finditer(text):
        if _is_mixed(found[0]):
            yield found.span()
    if "aws" in low or "akia" in low or "asia" in low:
        for found in _AWS_SECRET.finditer(text):
            if _is_mixed(found[0]):
                yield found.span()
    for found in _WEBHOOK.finditer(text):
        yield next(span for span in map(found.span, range(1, 9)) if span[0] >= 0)


def _is_mixed(text: str) -> bool:
    """Whether base64 is random: small and large letters and digits, and not a path of words."""
    kinds = (str.islower, str.isupper, str.isdigit)
    return all(any(map(kind, text)) for kind in kinds) and text.count("/") <= 6 and wordless(text) >= 0.5


# -- URLs -----------------------------------------------------------------------------------------

_URL_CHARS: Final = 2048
"""Of a longer URL the rest is read as text: else a line of nothing but colons and slashes takes minutes."""
_URL_END = Lazy(r"[\s\"'<>`\\]|$")
_AUTHORITY_END = Lazy(r"[/?#]|$")
_PORT = Lazy(r"\d{1,5}(?:[/?#,]|$)")
_HOST_AFTER = Lazy(r"@(?=[\w.\-\[\]]+(?::\d+)?(?:[/?#,]|$))")
_QUERY = Lazy(r"[?&;]([A-Za-z0-9_.\-]{1,60})=([^&;\s\"'<>#]+)")
_QUERY_NAMES: Final = word_set(
    "sig signature x-amz-signature x-amz-credential x-amz-security-token x-goog-signature x-goog-credential "
    "awsaccesskeyid ossaccesskeyid hmac token auth key code"
)
_USER = Lazy(r"[a-z][a-z.\-_]{0,24}\d{0,3}|x-access-token|x-token-auth|oauth2?|git|_json_key")
_NO_PASSWORDS: Final = frozenset(("", "x-oauth-basic"))
_DSN = Lazy(r"(?<![\w:.\-])[\w.\-]+:([^\s@/\"']+)@(?:tcp|unix)\(")


def _urls(text: str, low: str) -> Iterator[Span]:
    at = text.find("://")
    while at >= 0:
        start = at + 3
        rest = text[start : start + _URL_CHARS]
        if "@" not in rest:
            at = text.find("://", start)
            continue
        end = _URL_END.search(rest)
        yield from _user_of_url(rest[: end.start()] if end else rest, start, low[max(0, at - 8) : at])
        at = text.find("://", start)
    for found in _QUERY.finditer(text):
        name, value = found[1].lower(), found[2]
        if name in {"key", "code"}:
            hide = looks_secret(value) or len(value) >= 16
        else:
            hide = name in _QUERY_NAMES or hides(found[1], value)
        if hide and not is_plain(value):
            yield found.span(2)
    if "@tcp(" in low or "@unix(" in low:
        for found in _DSN.finditer(text):
            yield found.span(1)


def _user_of_url(rest: str, start: int, scheme: str) -> Iterator[Span]:
    """The password of ``user:password@host``, also with an ``@`` or a ``/`` in it, and a token in the user's place."""
    cut = _AUTHORITY_END.search(rest)
    authority = rest[: cut.start()] if cut else rest
    at = authority.rfind("@")
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
    if user and user.lower() not in {"postgres", "oauth2"}:
        alone = password in _NO_PASSWORDS
        web = scheme.endswith(("http", "https", "ws", "wss"))
        if REFERENCE.fullmatch(user):
            return
        if (is_random(user) and len(user) >= 16) or (alone and web and not _USER.fullmatch(user)):
            yield start, start + len(user)


# -- headers, named values, flags -------------------------------------------------------------------

_AUTHORIZATION = Lazy(
    r"(?i)authorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:(?P<scheme>[A-Za-z][\w\-]{2,20})[ \t]+)?(?P<value>[^\s\"',]+)(?P<more>[^\"'\n]*)"
)
_SCHEMES: Final = word_set(
    "basic bearer token digest negotiate apikey api-key bot aws4-hmac-sha256 key oauth hawk sharedkey"
)
_BEARER = Lazy(r"(?i)\b(?:bearer|basic)[ \t]+([A-Za-z0-9._~+/\-]{12,}={0,2})")
_COOKIE = Lazy(r"(?i)\b(?:set-)?cookie[\"']?[ \t]{0,4}:[ \t]{0,4}[\"']?(?P<value>[^\"'\n=]{0,200}=[^\"'\n]*)")
_NAMED = Lazy(
    r"(?<![A-Za-z0-9_.\-])(?P<name>[A-Za-z_][\w.\-]{1,80})(?P<close>\\?[\"'])?\]?(?P<sep>[ \t]{0,20}(?:=>|:=|==?|:)[ \t]{0,20}|[ \t]is:?[ \t])[bru]{0,2}"
    r"(?:(?P<esc>\\[\"'])(?P<escaped>[^\\\n]*)|\"(?P<double>(?:[^\"\\\n]|\\.)*)|'(?P<single>(?:[^'\\\n]|\\.)*)|(?P<value>[^\s\"',]{1,512}))"
)
_TUPLE = Lazy(r"[\"']([A-Za-z_]\w{2,60})\\?[\"'][ \t]{0,4},[ \t]{0,4}\\?[\"']([^\"'\n\\]+)")
_ELEMENT = Lazy(r"<([A-Za-z_][\w.\-]{2,60})>([^<>\s]+)</")
_NAME_AND_VALUE = Lazy(
    r"\bname[\"']?:[ \t]*[\"']?([A-Za-z_]\w{2,60})[\"']?,?\s{1,40}[\"']?value[\"']?:[ \t]*[\"']?([^\s\"']+)"
)
# Where a value without quotes ends in a connection string or a query.
_NEXT_PAIR = Lazy(r"[;&](?=[\w .\-]{1,40}=)")
_VALUE_CHARS: Final = 512
_SPACE = Lazy(r"\s")
_FLAG = Lazy(
    r"(?<![^\s\"'=(\[,`])(?P<name>--?[A-Za-z][\w.\-]{1,80})(?P<sep>=|[ \t]+|\\?[\"'][ \t]{0,4},[ \t]{0,4}\\?[\"'])"
    r"(?:\"(?P<double>[^\"\n]*)|'(?P<single>[^'\n]*)|(?P<value>[^\s\"'\\]{1,512}))"  # _VALUE_CHARS
)
_SHORT_FLAG = Lazy(r"-\w")
_NETRC = Lazy(r"\b(?:login|account)\s+\S+\s+password\s+(\S+)")
_PASSWORD_LINE = Lazy(r"(?m)^[ \t]*(?:password|_authToken)[ \t]+(\S+)[ \t]*$")
_PASSPHRASE = Lazy(r"(?im)\bpassphrase\s{0,4}[:=]\s{0,4}[\"']?([^\"'\n]+)")
_PASS_ARGUMENT = Lazy(r"(?<![\w\-])(?:-?-pass(?:in|out)?[ \t=]+)pass:(\S+)")


def _headers(text: str, low: str) -> Iterator[Span]:
    if "authorization" in low:
        for found in _AUTHORIZATION.finditer(text):
            scheme = (found["scheme"] or "").lower()
            if scheme in _SCHEMES:
                whole = scheme in {"digest", "aws4-hmac-sha256", "oauth", "hawk"}
                yield found.start("value"), found.end("more" if whole else "value")
            elif not scheme and not PROSE.fullmatch(found["value"]) and not is_plain(found["value"]):
                yield found.span("value")
    if "bearer" in low or "basic" in low:
        for found in _BEARER.finditer(text):
            if any(map(str.isdigit, found[1])) or is_random(found[1]):
                yield found.span(1)
    if "cookie" in low:
        for found in _COOKIE.finditer(text):
            yield found.span("value")


def _named(text: str, low: str) -> Iterator[Span]:
    hidden_to = 0
    for found in _from_each_name(_NAMED, text):
        if found.start() < hidden_to:
            continue
        group = found.lastgroup or "value"
        start, end = found.span(group)
        if group == "value" and (cut := _NEXT_PAIR.search(text[start:end])):
            end = start + cut.start()
        spaced = found["sep"][-1:].isspace()
        if hides_in_text(found["name"], text[start:end], quoted=group != "value", spaced=spaced, text=low):
            hidden_to = _end_of_word(text, end) if end - start == _VALUE_CHARS else end
            yield start, hidden_to


def _pairs(text: str, low: str) -> Iterator[Span]:
    """Name and value apart: ``('HF_TOKEN', 'x')``, ``<password>x</password>``, ``name: HF_TOKEN`` above ``value: x``."""
    if "'" not in text and '"' not in text and "<" not in text and "value" not in low:
        return
    for pattern in (_TUPLE, _ELEMENT, _NAME_AND_VALUE):
        for found in pattern.finditer(text):
            name, value = found[1], found[2]
            sure = kind_of_name(name) is Kind.SURE or name.isupper()
            if sure and hides(name, value) and not value.startswith("-"):
                yield found.span(2)


def _flags(text: str, _low: str) -> Iterator[Span]:
    hidden_to = 0
    for found in _from_each_name(_FLAG, text):
        if found.start() < hidden_to:
            continue
        group = found.lastgroup or "value"
        value, name = found[group], found["name"].lstrip("-")
        if not value.startswith("--") and not _SHORT_FLAG.fullmatch(value) and hides(name, value):
            start, hidden_to = found.span(group)
            if hidden_to - start == _VALUE_CHARS:
                hidden_to = _end_of_word(text, hidden_to)
            yield start, hidden_to


def _passwords(text: str, low: str) -> Iterator[Span]:
    if "pass" in low:
        for pattern in (_NETRC, _PASS_ARGUMENT):
            for found in pattern.finditer(text):
                yield found.span(1)
        for found in _PASSPHRASE.finditer(text):
            if not is_plain(found[1]) and len(found[1].split()) >= 3:
                yield found.span(1)
    for found in _PASSWORD_LINE.finditer(text):
        if looks_secret(found[1]) or HEX.fullmatch(found[1]):
            yield found.span(1)


def _end_of_word(text: str, at: int) -> int:
    found = _SPACE.search(text, at)
    return found.start() if found else len(text)


def _from_each_name(pattern: Lazy, text: str) -> Iterator[re.Match[str]]:
    """All matches, also those within the value of another: ``TypeError: Config(hub_token='…')``."""
    found = pattern.search(text)
    while found is not None:
        yield found
        found = pattern.search(text, found.end("sep"))


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
# These take it after `login` only: `docker run -p` is a port.
_LOGINS: Final = word_set("docker podman nerdctl buildah skopeo crane helm oras az ibmcloud oc argocd cf")
# The word after `login` is the key itself.
_LOGIN_KEYS: Final = word_set("wandb vault comet")
_COMMANDS: Final = frozenset(_SHORT) | _LOGINS | _LOGIN_KEYS
_SPACES = Lazy(r"\S+")
_OPERATOR: Final = frozenset(("|", "||", "&", "&&", ";"))


def _in_command(words: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """(index, start, end) of secrets that a command takes by a short flag, or without any; never a number."""
    flag = login = ""
    keyed = is_login = False
    for index, word in enumerate(words):
        name = word.rpartition("/")[2]
        following = words[index + 1] if index + 1 < len(words) else ""
        if word in _OPERATOR or word.endswith(";"):
            flag = login = ""
            keyed = is_login = False
        elif name in _COMMANDS and not (flag and index and words[index - 1] == flag):
            flag, is_login = _SHORT.get(name, ""), False
            login = name if name in _LOGINS else ""
            keyed = name in _LOGIN_KEYS
        elif word == "login" and (login or keyed):
            is_login, flag = True, "-p" if login else ""
            if keyed and (looks_secret(following) or (len(following) >= 16 and HEX.fullmatch(following))):
                yield from _whole(index + 1, following)
        elif flag and (word == flag or (flag == "-u" and word in {"--user", "--proxy-user"})):
            yield from _whole(index + 1, following, pair=flag in {"-u", "-U"})
        elif flag in {"-p", "-P"} and not is_login and word.startswith(flag) and not word.startswith("--"):
            yield from ((at, start + 2, end + 2) for at, start, end in _whole(index, word[2:]))
        elif word in {"set", "config"} and index + 2 < len(words) and _is_setting(following):
            yield from _whole(index + 2, words[index + 2])


def _is_setting(word: str) -> bool:
    return "=" not in word and kind_of_name(word) is Kind.SURE


def _whole(index: int, word: str, *, pair: bool = False) -> Iterator[tuple[int, int, int]]:
    """A word, or of ``user:password`` what follows the colon."""
    start = 0
    if pair:
        at = next((at for at, char in enumerate(word) if char in ":%,"), -1)
        if at < 0:
            return
        start = at + 1
    value = word[start:]
    if value and HIDDEN not in value and not NUMBER.fullmatch(value) and not REFERENCE.fullmatch(value):
        yield index, start, len(word)


def _commands(text: str, low: str) -> Iterator[Span]:
    if not any(name in low for name in _COMMANDS):
        return
    places: list[Span] = []
    words: list[str] = []
    for found in _SPACES.finditer(text):
        start, end = found.span()
        while start < end and text[start] in "\"'`([{":
            start += 1
        while end > start and text[end - 1] in "\"'`)]},":
            end -= 1
        places.append((start, end))
        words.append(text[start:end])
    for index, start, end in _in_command(words):
        offset = places[index][0]
        yield offset + start, offset + end


# -- the redactor ---------------------------------------------------------------------------------

_RULES: Final = (_tokens, _urls, _headers, _named, _pairs, _flags, _passwords, _commands)


def secret_spans(text: str) -> list[Span]:
    """Where secrets stand in a text, in order and apart from each other."""
    low = text.lower()
    if len(low) != len(text):  # a letter that becomes two: only the search for words uses it
        low = low[: len(text)]
    return _merged(span for rule in _RULES for span in rule(text, low))


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _without(text: str, spans: Sequence[Span]) -> str:
    parts: list[str] = []
    at = 0
    for start, end in spans:
        parts += [text[at:start], HIDDEN]
        at = end
    return "".join([*parts, text[at:]])


def redact_text(text: str) -> str:
    """A line, or several, fit to be shown or written. A color in front of a secret does not save it: then both go."""
    raw = text.replace(r"\x1b", "\x1b")  # as it was before it was made printable
    if "\x1b" in raw:
        hidden = redact_text(bare := strip_escapes(raw))
        return text if hidden == bare else hidden
    return _without(text, spans) if (spans := _around_hidden(text, secret_spans(text))) else text


def _around_hidden(text: str, spans: list[Span]) -> list[Span]:
    """Spans without what is hidden already; a span that has nothing else is dropped."""
    if HIDDEN not in text:
        return spans
    return [
        (start, end) for start, end in spans if HIDDEN not in text[start:end] and text[start:end].strip("<>")
    ]


def redact_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Lines that belong together: a private key is hidden line by line, so that their number stays."""
    found: list[str] = []
    in_key = False
    for line in lines:
        begins = "-----BEGIN" in line and "PRIVATE KEY" in line
        ends = "-----END" in line and "PRIVATE KEY" in line
        if in_key and not ends and line.strip():
            found.append(HIDDEN)
        else:
            found.append(redact_text(line))
        in_key = (in_key or begins) and not ends
    return tuple(found)


def redact(name: str, value: str) -> str:
    """The value of a variable or a setting: hidden whole if the name says so, else as a text."""
    return HIDDEN if hides(name, value) else redact_text(value)


_ARGUMENT = Lazy(r"-{0,2}[A-Za-z_+][\w.+\-/]*")


def argv_spans(argv: Sequence[str]) -> list[list[Span]]:
    """Where secrets stand in each word of a command line: ``--api-key X``, ``--api-key=X``, ``mysql -pX``, ``A_TOKEN=X``."""
    spans: list[list[Span]] = [secret_spans(word) for word in argv]
    for index, start, end in _in_command(argv):
        spans[index].append((start, end))
    for index, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if equals and _ARGUMENT.fullmatch(name) and hides(name.lstrip("-+"), value):
            if spans[index] and not word.startswith("-") and " " in value:
                continue  # a line of shell: what is secret in it is found
            spans[index].append((len(name) + 1, len(word)))
        elif not equals and word.startswith("-") and index + 1 < len(argv):
            following = argv[index + 1]
            if not following.startswith("--") and hides(word.lstrip("-"), following):
                spans[index + 1].append((0, len(following)))
    return [_around_hidden(word, _merged(found)) for word, found in zip(argv, spans, strict=True)]


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line fit to be shown."""
    return tuple(
        _without(word, found) if found else word for word, found in zip(argv, argv_spans(argv), strict=True)
    )


_LEAST_KNOWN: Final = 6
NOT_TEXT: Final = frozenset(
    (
        "kind",
        "path",
        "artifact",
        "resume_copy",
        "stdout",
        "stderr",
        "source",
        "run_id",
        "host",
        "fingerprint",
        "change",
    )
)
"""Keys whose values are used, and not only shown: places of files, names, and what the next launch changes (a secret is refused there)."""


class Redactor:
    """Hides, besides all that, the values of secrets that are known: of a run's own variables and arguments.

    A value is known if it has at least 6 characters and is no plain word: it is searched for wherever it may be printed.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        values = {form for value in known for form in _forms(value)}
        longest_first = sorted(values, key=lambda value: (-len(value), value))
        self._known = (
            re.compile(r"(?<![A-Za-z0-9])(?:" + "|".join(map(re.escape, longest_first)) + r")(?![A-Za-z0-9])")
            if longest_first
            else None
        )

    @classmethod
    def of(cls, env: Iterable[tuple[str, str]], argv: Sequence[str] = ()) -> Redactor:
        """Of the secrets in an environment and a command line."""
        known = [piece for name, value in env for piece in _secrets_of(name, value)]
        for word, spans in zip(argv, argv_spans(argv), strict=True):
            known += [word[start:end] for start, end in spans]
        return cls(known)

    def text(self, text: str) -> str:
        """See `redact_text`."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        return redact_text(text)

    def data(self, value: Any) -> Any:
        """Plain data (of JSON) with every text in it redacted, but those under a key of `NOT_TEXT`."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: item if key in NOT_TEXT else self.data(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(item) for item in value]
        return value


def _secrets_of(name: str, value: str) -> Iterator[str]:
    if hides(name, value):
        yield from (line.strip() for line in value.splitlines())
    elif value and "=" not in name:
        yield from (value[start:end] for start, end in secret_spans(value))


def _forms(value: str) -> Iterator[str]:
    """A secret as it may be printed: as it is, in a URL, in JSON. Nothing where it is too plain to be searched for."""
    if len(value) < _LEAST_KNOWN or is_plain(value) or (len(value) < 16 and WORD.fullmatch(value)):
        return
    yield value
    yield quote(value, safe="")
    yield json.dumps(value)[1:-1]
