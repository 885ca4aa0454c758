"""Keeps secrets out of what is printed or written: variables, flags and well-known shapes of tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

HIDDEN: Final = "<redacted>"

# Whole words of a name. `key` alone would hide `primary_key_column`; as the last word it is a secret
# more often than not. `tokens` (plural) counts text and is not one.
_SECRET_NAME: Final = re.compile(
    r"(?:^|[_\-.])(?:token|secret|secrets|password|passwd|passphrase|pwd|credential|credentials|apikey|auth)(?:$|[_\-.])"
    r"|(?:^|[_\-.])key$|api_?key|access_?key|private_?key",
    re.IGNORECASE,
)
# Names that match the rule above and hold no secret.
_OPEN_NAME: Final = re.compile(
    r"(?:^|[_\-.])(?:pad|eos|bos|unk|mask|sep|cls|special|stop)[_-]?token", re.IGNORECASE
)
# The published shapes of common credentials: GitHub, Hugging Face, OpenAI-like, AWS, Slack, Google, JWT.
_SECRET_VALUE: Final = re.compile(
    r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_\-]{16,}"
    r"|AKIA[0-9A-Z]{16}|xox[abprs]-[A-Za-z0-9\-]{10,}|AIza[0-9A-Za-z_\-]{30,}"
    r"|eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]+)"
)
_URL_PASSWORD: Final = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)@")


def is_secret_name(name: str) -> bool:
    """Whether a variable or flag of this name holds a secret."""
    return bool(_SECRET_NAME.search(name)) and not _OPEN_NAME.search(name)


def redact(name: str, value: str) -> str:
    """`value` fit to be shown: hidden whole if `name` holds secrets, else with known token shapes hidden."""
    if value and is_secret_name(name):
        return HIDDEN
    return _URL_PASSWORD.sub(rf"\1:{HIDDEN}@", _SECRET_VALUE.sub(HIDDEN, value))


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line fit to be shown: ``--api-key X``, ``--api-key=X`` and ``api_key=X`` lose their values."""
    shown: list[str] = []
    hide_next = False
    for word in argv:
        name, equals, value = word.partition("=")
        if hide_next and not word.startswith("--"):
            shown.append(HIDDEN)
            hide_next = False
        elif equals:
            shown.append(f"{name}={redact(name.lstrip('-'), value)}")
            hide_next = False
        else:
            shown.append(redact("", word))
            hide_next = word.startswith("-") and is_secret_name(word.lstrip("-"))
    return tuple(shown)
