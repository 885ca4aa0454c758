"""Decide from a name and its value whether the value is a secret.

A name is split into words at capitals and at anything but letters and digits. Digits at the end of a word
are dropped, so ``dbPassword2``, ``DB-PASSWORD`` and ``db.password`` are the same.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from supervisor.text.patterns import Lazy

HIDDEN: Final = "<redacted>"


class Kind(Enum):
    """How likely it is that a name's value is a secret."""

    SURE = "sure"  # a secret, unless the value is plain
    LIKELY = "likely"  # a secret if the value looks secret
    OPEN = "open"  # not a secret


def word_set(words: str) -> frozenset[str]:
    """Split a line into a set of words."""
    return frozenset(words.split())


# Every secret's name contains one of these.
STEMS: Final = word_set("key token tkn pass pw secret cred auth bearer webhook pat pin sig sas cookie")
_CAMEL = Lazy(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_BETWEEN = Lazy(r"\d*[^a-z0-9]+|(?<=[a-z])(?=(?:token|tkn)\d*[^a-z0-9])")
# Secrets on their own, even at the end of a word: `MYSQLPASSWORD`.
_ENDS: Final = tuple(
    word_set("password passwords passwort passwd passphrase secret secrets credential credentials")
)
_WORDS: Final = word_set("pwd passcode cred creds bearer authorization webhook")
# Secrets if they have an owner, as a separate word or joined to it: `api_key`, `apikey`, `DBPASS`.
_OWNED = Lazy(r"(.*?)(keys?|token|tkn|pass|pwd?|auth)")
_OWNERS: Final = word_set(
    "api access secret private auth account service deploy ssh app client license encryption signing shared storage "
    "subscription wandb openai anthropic comet hf hub huggingface aws azure kaggle github gitlab gh gl git slack neptune "
    "admin bot npm pypi oauth jwt csrf security"
)
_OWNERS_OF: Final = {
    "k": _OWNERS,
    "t": _OWNERS | word_set("session identity sas refresh personal bearer write read login"),
    "p": _OWNERS
    | word_set("db pg my mysql sql mongo redis root user login ftp smtp mail ldap proxy key store require"),
    "a": word_set("basic master"),
}
# Possible secrets as a last word.
_MAYBE: Final = word_set("key token tkn auth pass pw pat pin sig signature cookie cookies sas")
# A last word that makes the name a property of a secret.
_ABOUT: Final = word_set(
    "file path dir folder name names type env var count len length size limit url uri method mode scheme policy expiry "
    "expires ttl prompt field column index idx id ids required enabled version format prefix suffix min max sock provider "
    "backend dim embedding embeddings emb mask loss acc accuracy weight weights padding position rate usage num endpoint "
    "manager helper command metric store parallelism bytes error errors"
)
# With these words, a token belongs to text or to a page of results.
_OF_TEXT: Final = word_set(
    "pad eos bos unk mask sep cls special stop placeholder initializer instance class image video audio speech prompt "
    "trigger concept new start end num max min per n first last decoder forced added vocab sentinel tool think system "
    "assistant extra modifier tokenizer eot eod eom bom msg chat next prev input output text word sub total completion "
    "cached reasoning page continuation skip ignore begin"
)
# A word before `key` for a table's key or a pass over data.
_OF_DATA: Final = word_set(
    "cache sort text json data dataset image label input output index group public forward backward single two n num"
)
_BARE: Final = word_set("token tkn auth pass pw pat cookie")
# Folders, a socket, and the public key of Python's release manager in its images.
_NO_SECRETS: Final = word_set("PWD OLDPWD SSH_AUTH_SOCK GPG_KEY")


def _words(name: str) -> list[str]:
    return _BETWEEN.sub(" ", _CAMEL.sub("_", name[-120:]).lower() + "_").split()


def kind_of_name(name: str) -> Kind:
    """Return what the name of a variable, flag or key suggests about its value."""
    if name in _NO_SECRETS or not any(map(name[-120:].lower().__contains__, STEMS)):
        return Kind.OPEN
    words = _words(name)
    about = words[-1] in _ABOUT and words[-3:] != ["access", "key", "id"]
    if about and "webhook" not in words:
        return Kind.OPEN
    for before, word in zip(["", *words], words, strict=False):
        owned = _OWNED.fullmatch(word)
        is_owned = owned is not None and (owned[1] or before) in _OWNERS_OF[owned[2][0]]
        if is_owned or word in _WORDS or word.endswith(_ENDS):
            return Kind.SURE
    if "token" in words:
        return Kind.LIKELY if _OF_TEXT.isdisjoint(words) else Kind.OPEN
    is_likely = words[-1] in _MAYBE and _OF_DATA.isdisjoint(words[-2:-1])
    return Kind.LIKELY if is_likely else Kind.OPEN


def is_secret_name(name: str) -> bool:
    """Check whether a variable or flag with this name may hold a secret."""
    return kind_of_name(name) is not Kind.OPEN


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
_ODD = Lazy(r"[!@#$%^&*~+?]")


def is_plain(value: str, *, digits_too: bool = True) -> bool:
    """Check whether a value cannot be a secret, whatever its name, i.e. is a number, a config word, a reference or a path."""
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
    """Check whether a text looks random, meaning that its longest segment is long and consists mostly of non-words."""
    longest = longest_segment(text)
    if len(longest) < 10 or longest.isdigit() or longest.isalpha():
        return len(longest) >= 20 and longest.isalpha() and not longest.islower() and wordless(longest) >= 0.5
    return wordless(longest) >= 0.5


def wordless(text: str) -> float:
    """Return the fraction of a text that lies outside runs of three or more lowercase letters."""
    return len(_LETTERS.sub("", text)) / len(text)


def looks_secret(value: str) -> bool:
    """Check whether a value with an ambiguous name is a secret, i.e. it is random or has odd characters like a password."""
    if len(value) < 8 or is_plain(value) or HEX.fullmatch(value):
        return False
    if len(value.split()) != 1:
        return False
    has_digit, has_letter = any(map(str.isdigit, value)), any(map(str.isalpha, value))
    return is_random(value) or (has_digit and has_letter and len(_ODD.findall(value)) >= 2)


def _judged(name: str, value: str) -> tuple[Kind, list[str]]:
    """Return the name's kind (`Kind.OPEN` for a plain value) and its words. A number can be secret only as a password."""
    kind, words = kind_of_name(name), _words(name)
    password = any(word.endswith(("password", "passwd", "passcode", "pass", "pwd", "pw")) for word in words)
    return (Kind.OPEN if kind is Kind.OPEN or is_plain(value, digits_too=not password) else kind), words


def hides(name: str, value: str) -> bool:
    """Check whether a value that was set on purpose (a variable, flag or setting) is a secret, judging by its name."""
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
    if looks_secret(value):
        return given or kind is Kind.SURE
    is_setting = len(words) > 1 or name.isupper()
    if given:
        return kind is Kind.SURE and (is_setting or WORD.fullmatch(value) is None)
    is_prose = value.rstrip(".,;:!?)").isalpha() or not value[0].isalnum() or _VERSION.match(value)
    return kind is Kind.SURE and is_setting and not is_prose


def hides_in_text(name: str, value: str, *, quoted: bool, spaced: bool, text: str) -> bool:
    """Check whether a value in `text` (lowercase prose or code) is secret. ``password: incorrect`` and ``token=hf_token`` are not."""
    kind, words = _judged(name, value)
    if kind is Kind.SURE:
        is_prose = spaced and PROSE.fullmatch(value)
        return quoted or not (is_prose or (WORD.fullmatch(value) and is_secret_name(value)))
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


_BASE64_PAIR = Lazy(r"[A-Za-z0-9+/]{8,}={0,2}")
