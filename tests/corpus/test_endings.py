"""How logs end: uncaught exceptions of any class, tracebacks that a program survived, shells' notices, users' stops, trackers."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from supervisor.sources.signature_files import Engine
from tests.corpus.scoring import DATA, records, verdict_on


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


@pytest.mark.parametrize("record", records(DATA / "ends.jsonl"), ids=lambda record: str(record["id"]))
def test_how_a_log_without_a_signature_ends(record: dict[str, Any], engine: Engine) -> None:
    verdict = verdict_on(record["text"], engine)
    assert verdict.failure.value in record["accept"]
    if cause := record.get("cause"):
        assert verdict.cause is not None
        assert cause in verdict.cause.text
