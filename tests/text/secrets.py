"""Texts with a secret, none of them anybody's, and texts that only look like it: data/secrets.jsonl, a row each.

`in`: a text, a line, words of a command line (`argv`), a variable (`env`), a text of a `Form`, or one as the documentation and
issues of some twenty programs show it, drawn after the rule was written (`documented`). `of`: the shape, the form or the name of the
variable. «…» is the secret; a row without it is a look-alike. ⟦36a⟧ stands for 36 letters of that kind, drawn from a fixed seed, so
that no scanner of repositories takes the file for a leak.
"""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

_ALNUM = string.ascii_letters + string.digits
_LETTERS = {
    "a": _ALNUM,
    "h": "0123456789abcdef",
    "b": _ALNUM + "+/",
    "d": string.digits,
    "u": string.ascii_uppercase,
    "v": string.ascii_uppercase + "234567",
    "l": string.ascii_lowercase + string.digits,
}
_RANDOM = random.Random(20261122)
_PATH = Path(__file__).parent / "data" / "secrets.jsonl"


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


class Planted(NamedTuple):
    """A text with a secret in it; of a look-alike the secret is empty."""

    of: str
    before: str
    secret: str = ""
    after: str = ""

    @property
    def text(self) -> str:
        return f"{self.before}{self.secret}{self.after}"

    @property
    def form(self) -> Form:
        return Form(self.of)


def _drawn(found: re.Match[str]) -> str:
    """So many letters, with a digit, a small and a large letter among them where there may be."""
    letters, kinds = _LETTERS[found[2]], (str.isdigit, str.islower, str.isupper)
    while True:
        text = "".join(_RANDOM.choice(letters) for _ in range(int(found[1])))
        if all(any(map(kind, text)) or not any(map(kind, letters)) for kind in kinds):
            return text


_DRAWN: Final = [
    json.loads(re.sub(r"⟦(\d+)(\w)⟧", _drawn, line))
    for line in _PATH.read_text(encoding="utf-8").splitlines()
]


def _planted(where: str) -> Iterator[Planted]:
    for row in _DRAWN:
        if row["in"] == where:
            yield Planted(row.get("of", ""), *re.split("[«»]", row["text"]))


IN_TEXT: Final = tuple(_planted("text"))
IN_ENV: Final = tuple((row.of, row.text, row.secret) for row in _planted("env"))
"""(name, value, secret): the secret is empty where there is none."""
LINES: Final = tuple(row.text for row in _planted("line"))
FORMS: Final = tuple(_planted("form"))
SECRETS: Final = tuple(row for row in FORMS if row.secret)
DOCUMENTED: Final = tuple(_planted("documented"))
IN_ARGV: Final = tuple(
    (row.get("of", ""), tuple(re.sub("[«»]", "", word) for word in row["words"]), next(iter(marked), ""))
    for row in _DRAWN
    if row["in"] == "argv" and (marked := re.findall("«(.*?)»", "\n".join(row["words"]))) is not None
)
"""(shape, words, secret): the secret is empty where there is none."""
# What no rule of ours can know: a second argument without a name, the first letters of a key, a value of a webhook that is none.
MISSED: Final = ("rclone authorize", "[CREDENTIAL]", "SWANLAB_WEBHOOK_VALUE")
