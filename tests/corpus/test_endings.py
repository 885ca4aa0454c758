"""How logs end: uncaught exceptions of any class in many layouts, and tracebacks that a program survived.

The expected answers in `endings.txt` were written before the first reading. Of 28 failing and 17 healthy ends 1 and 16 were right
then: an exception was only recognised by the usual ending of its class name. Those named `added-` came later.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from supervisor.sources.signature_files import Engine
from tests.corpus.scoring import DATA, verdict_on


class Ending(NamedTuple):
    """One log. `classes`: the accepted failure classes; `rank` and `cause`: for a failure, what the verdict names."""

    name: str
    classes: frozenset[str]
    rank: int | None
    cause: str
    text: str


def endings() -> list[Ending]:
    found = []
    for part in (DATA / "endings.txt").read_text(encoding="utf-8").split("=== ")[1:]:
        head, text = part.split("\n", 1)
        name, classes, *place = head.split(" | ")
        rank, cause = place or ("-", "")
        found.append(
            Ending(name, frozenset(classes.split()), None if rank == "-" else int(rank), cause.strip(), text)
        )
    return found


@pytest.mark.parametrize("ending", endings(), ids=lambda ending: ending.name)
def test_how_a_log_ends(ending: Ending, engine: Engine) -> None:
    verdict = verdict_on(ending.text, engine)
    assert verdict.failure.value in ending.classes
    if ending.cause:
        assert verdict.cause is not None
        assert ending.cause in verdict.cause.text
        assert verdict.rank == ending.rank or ending.rank is None
