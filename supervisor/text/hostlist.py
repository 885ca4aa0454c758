"""SLURM's short form of host names, ``n[01-03,07],login1``: expanded without ``scontrol show hostnames``.

Source: "HOSTLIST EXPRESSIONS" in scontrol(1) and slurm.conf(5). Ranges keep their leading zeros.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Final

MOST_HOSTS: Final = 65_536
_PART: Final = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?")


def host_names(text: str, most: int = MOST_HOSTS) -> tuple[str, ...]:
    """All names of a list in order, at most `most`; text of another form stays unchanged."""
    found: list[str] = []
    for entry in filter(None, _entries(text.strip())):
        parts = [_choices(inside) if inside else (plain,) for inside, plain in _PART.findall(entry)]
        for names in product(*parts):
            if len(found) >= most:
                return tuple(found)
            found.append("".join(names))
    return tuple(found)


def _entries(text: str) -> Iterator[str]:
    """The parts between commas outside brackets."""
    depth = start = 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth <= 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _choices(inside: str) -> tuple[str, ...]:
    """``01-03,07`` as 01, 02, 03, 07."""
    found: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            found.append(part)
            continue
        first, last = match[1], match[2] or match[1]
        numbers = range(int(first), min(int(last), int(first) + MOST_HOSTS) + 1)
        found += [str(number).zfill(len(first)) for number in numbers]
    return tuple(found)
