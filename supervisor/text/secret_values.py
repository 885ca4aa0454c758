"""Whether the value under a name is a secret: by the name, and by the value."""

from __future__ import annotations

import itertools
import re
from enum import Enum
from typing import Final

from supervisor.text.patterns import Lazy

HIDDEN: Final = "<redacted>"


class Kind(Enum):
    """What a name says of its value."""

    SURE = "sure"  # a secret, unless the value is plain
    LIKELY = "likely"  # a secret if it looks like one
    OPEN = "open"  # none


def word_set(words: str) -> frozenset[str]:
    """The words of a line."""
    return frozenset(words.split())


_CAMEL = Lazy(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_PARTS = Lazy(r"[A-Za-z0-9]+")
_SURE_WORDS: Final = word_set(
    "password passwd passphrase pwd secret secrets credential credentials creds apikey apitoken authtoken accesstoken "
    "secretkey accesskey privatekey authkey bearer webhook pgpass requirepass masterauth authorization"
)
_SURE_ENDINGS: Final = ("password", "passwd", "apikey", "secret", "passphrase")
# The word before "key" or "token" with which it is surely a secret.
_SURE_KEYS: Final = word_set(
    "api access secret private auth account encryption signing shared service deploy storage subscription ssh app client "
    "license wandb openai anthropic comet hf aws kaggle"
)
_SURE_TOKENS: Final = word_set(
    "api auth access bearer hf hub huggingface refresh session security github gitlab gh gl slack bot wandb neptune "
    "secret private personal client deploy oauth jwt csrf npm pypi write read service login identity sas"
)
# The word after it that makes it something about a secret.
_ABOUT: Final = word_set(
    "file path dir folder name names type env var count length len size limit url uri method mode scheme policy expiry "
    "expires ttl prompt field column index idx ids required enabled version format prefix suffix min max sock provider "
    "backend dim embedding embeddings emb mask loss acc accuracy weight weights padding position rate usage num endpoint "
    "manager store parallelism bytes error errors"
)
# Words with which "token" is one of a text, or a page of results.
_TEXT_TOKENS: Final = word_set(
    "pad eos bos unk mask sep cls special stop placeholder initializer instance class image video audio speech prompt "
    "trigger concept new start end num max min per n first last decoder forced added vocab sentinel tool think system "
    "assistant extra modifier tokenizer eot eod eom bom msg chat next prev input output text word sub total completion "
    "cached reasoning page continuation skip ignore begin"
)
_MAYBE_WORDS: Final = word_set("token auth pass pat sig signature cookie cookies sas")
_BARE: Final = word_set("token auth pass pat cookie")


def _words(name: str) -> list[str]:
    return [word.lower() for word in _PARTS.findall(_CAMEL.sub("_", name[-120:]))]


def kind_of_name(name: str) -> Kind:
    """What the name of a variable, a flag or a key says of its value."""
    if name in {"PWD", "OLDPWD", "SSH_AUTH_SOCK", "GPG_KEY"}:
        return Kind.OPEN  # folders, a socket, and the public key of Python's release manager in its images
    words = _words(name)
    if not words:
        return Kind.OPEN
    last = words[-1]
    if "webhook" in words:
        return Kind.SURE
    if last in _ABOUT and words[-3:] != ["access", "key", "id"]:
        return Kind.OPEN
    if any(word in _SURE_WORDS or word.endswith(_SURE_ENDINGS) for word in words):
        return Kind.SURE
    pairs = list(itertools.pairwise(words))
    if any(second == "key" and first in _SURE_KEYS for first, second in pairs):
        return Kind.SURE
    if "token" in words:
        if _TEXT_TOKENS.intersection(words) or last == "id":
            return Kind.OPEN
        if any(second == "token" and first in _SURE_TOKENS for first, second in pairs):
            return Kind.SURE
        return Kind.LIKELY
    return Kind.LIKELY if last == "key" or last in _MAYBE_WORDS else Kind.OPEN


def is_secret_name(name: str) -> bool:
    """Whether a variable or flag of this name may hold a secret."""
    return kind_of_name(name) is not Kind.OPEN


NUMBER = Lazy(r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[%a-zA-Z]?")
_PLAIN_WORD = Lazy(
    r"true|false|yes|no|on|off|none|null|nil|nan|inf|auto|default|unset|empty|undefined|unknown|missing|required|optional"
    r"|invalid|expired|disabled|enabled|str|int|bool|bytes|string|\*+|x+|\.+|-+|…",
    re.IGNORECASE,
)
# A reference to a value, a placeholder, a piece of code.
REFERENCE = Lazy(
    r"\$\{[^}]*\}?|\$\([^)]*\)?|\$[A-Z_][A-Z0-9_]*|\{\{?[^}]*\}?\}?|%[sd]|%\(\w+\)s|<[^>]*>?|\[[^\]]*\]?"
    r"|(?:self|args|cfg|conf|config|os|settings|env|opts|opt|kwargs|params|hparams|lambda)\b\.?.*|[A-Za-z_][\w.]*[(\[{].*"
)
_PATH = Lazy(
    r"(?:~|\.{1,2})?/[^\s:;]*|file://\S*|[\w.\-/]+\.(?:json|ya?ml|txt|pem|py|pt|pth|env|toml|cfg|ini|crt|pub|log|md)"
)
WORD = Lazy(r"[A-Za-z]?[a-z]{0,15}(?:[_\-][a-z]{1,15}){0,3}")
PROSE = Lazy(r"[A-Za-z]?[a-z']{1,15}[.,;:!?)]*")
HEX = Lazy(r"(?:sha\d{1,3}:|0x)?[0-9a-f]{6,}(?:-[0-9a-f]{2,}){0,6}|(?:sha\d{1,3}:|0x)?[0-9A-F]{6,}")
_SEGMENT = Lazy(r"[A-Za-z0-9]+")
_LETTERS = Lazy(r"[A-Z]?[a-z]{3,}")
_ODD = Lazy(r"[!@#$%^&*~+?]")


def is_plain(value: str, *, digits_too: bool = True) -> bool:
    """Whether a value is no secret, whatever its name: a number, a word of a config, a reference, a path."""
    return (
        not value
        or HIDDEN in value
        or (digits_too and NUMBER.fullmatch(value) is not None)
        or _PLAIN_WORD.fullmatch(value) is not None
        or REFERENCE.fullmatch(value) is not None
        or (_PATH.fullmatch(value) is not None and not is_random(max(value.split("/"), key=len)))
    )


def is_random(text: str) -> bool:
    """Whether a run of letters and digits is more likely drawn than written: few words in it, and digits."""
    found = _SEGMENT.findall(text)
    longest = max(found, key=len, default="")
    if len(longest) < 10 or longest.isdigit() or longest.isalpha():
        return len(longest) >= 20 and longest.isalpha() and not longest.islower() and wordless(longest) >= 0.5
    return wordless(longest) >= 0.5


def wordless(text: str) -> float:
    """The share of a text that is no run of three or more lower-case letters."""
    return len(_LETTERS.sub("", text)) / len(text)


def looks_secret(value: str) -> bool:
    """Whether a value under a name that need not be a secret's is one: random, or with the odd characters of passwords."""
    if len(value) < 8 or is_plain(value) or HEX.fullmatch(value):
        return False
    if len(value.split()) != 1:
        return False
    has_digit, has_letter = any(map(str.isdigit, value)), any(map(str.isalpha, value))
    return is_random(value) or (has_digit and has_letter and len(_ODD.findall(value)) >= 2)


def _is_password_name(name: str) -> bool:
    return any(part in name.lower() for part in ("pass", "pwd"))


def hides(name: str, value: str) -> bool:
    """Whether a value that was given on purpose (a variable, a flag, a setting) is a secret by its name."""
    kind = kind_of_name(name)
    if kind is Kind.OPEN or is_plain(value, digits_too=not _is_password_name(name)):
        return False
    if kind is Kind.SURE or looks_secret(value):
        return True
    words = _words(name)
    if name.isupper() or (words[-1] in _BARE and len(words) == 1):
        return words[-1] in _BARE or WORD.fullmatch(value) is None
    return "token" in words and WORD.fullmatch(value) is None


def hides_in_text(name: str, value: str, *, quoted: bool, spaced: bool, text: str) -> bool:
    """`text`: all of it, in small letters. The same for what may be prose or code: ``password: incorrect`` and ``token=hf_token`` are none."""
    kind = kind_of_name(name)
    if kind is Kind.OPEN or is_plain(value, digits_too=not _is_password_name(name)):
        return False
    if kind is Kind.SURE:
        if quoted:
            return True
        if spaced and PROSE.fullmatch(value):
            return False
        return not (WORD.fullmatch(value) and is_secret_name(value))
    bare = name.lower()
    if bare == "auth" and quoted and _BASE64_PAIR.fullmatch(value):
        return True
    if bare == "key" and HEX.fullmatch(value) and len(value) >= 32:
        return any(word in text for word in ("wandb", "kaggle", "username", "login"))
    if name.isupper() and not spaced:
        return hides(name, value)
    return looks_secret(value) or ("token" in bare and bool(HEX.fullmatch(value)) and len(value) >= 20)


_BASE64_PAIR = Lazy(r"[A-Za-z0-9+/]{8,}={0,2}")
