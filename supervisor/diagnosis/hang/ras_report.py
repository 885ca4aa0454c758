"""NCCL's RAS report: who launched fewer collective operations than the others.

The lines are those of NCCL's src/ras/client_support.cc (2.24 to 2.28): a MISMATCH names, for each count, how many
ranks stand there, and lists the outliers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from supervisor.text.numbers import whole

_COMMUNICATOR = re.compile(r"^#\d+-\d+ \([0-9a-f]+\)")
_KIND = re.compile(r"different (?:collective|(\w+)) operation counts")
_MANY = re.compile(r"^\s+(\d+) ranks? ha(?:s|ve) launched up to operation (\d+)")
_NONE = re.compile(r"^\s+(\d+) ranks? ha(?:s|ve) not launched any operations")
_ONE = re.compile(r"^\s+Rank (\d+) has launched up to operation (\d+)")
_ONE_NONE = re.compile(r"^\s+Rank (\d+) has not launched any operations")
_LISTED = re.compile(r"^\s+Rank (\d+) -- GPU")


@dataclass(frozen=True, slots=True)
class RasLag:
    """Ranks of one communicator that launched fewer operations. `ranks` are ranks within that communicator."""

    ranks: tuple[int, ...]
    launched: int
    others_launched: int
    operation: str | None = None

    @property
    def text(self) -> str:
        """One line for people."""
        who = f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"ranks {', '.join(map(str, self.ranks))}"
        what = self.operation or "collective"
        return f"NCCL: {who} launched {what} {self.launched}, the others {self.others_launched}"


def read_ras(text: str) -> tuple[RasLag, ...]:
    """Who is behind, by communicator; empty when all stand alike or this is no report."""
    found: list[RasLag] = []
    operation: str | None = None
    counts: dict[int, tuple[int, list[int]]] = {}
    current: int | None = None

    def close() -> None:
        if len(counts) > 1:
            most = max(counts)
            for count in sorted(counts)[:-1]:
                ranks = counts[count][1]
                if ranks:
                    found.append(RasLag(tuple(ranks), count, most, operation))

    for line in text.splitlines():
        if _COMMUNICATOR.match(line) is not None:
            close()
            operation, counts, current = None, {}, None
        elif (kind := _KIND.search(line)) is not None:
            close()
            operation, counts, current = kind[1], {}, None
        elif (many := _MANY.match(line) or _NONE.match(line)) is not None:
            current = whole(many[2]) if many.re is _MANY else 0
            counts[current] = (whole(many[1]), [])
        elif (one := _ONE.match(line) or _ONE_NONE.match(line)) is not None:
            current = int(one[2]) if one.re is _ONE else 0
            counts.setdefault(current, (1, []))[1].append(int(one[1]))
        elif (listed := _LISTED.match(line)) is not None and current is not None:
            counts[current][1].append(whole(listed[1]))
    close()
    return tuple(found)
