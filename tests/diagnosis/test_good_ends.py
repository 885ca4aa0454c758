"""Whether a log ended well after a line: what says so, and what takes it back."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.recovered_errors import ends_well
from supervisor.diagnosis.scan.matched_lines import Hit, SourceScan
from supervisor.diagnosis.scan.signature_tables import Role, Signature, Trait
from supervisor.run.records import FailureClass
from supervisor.text.prefixes import NOWHERE

GOOD, CLOSING, BAD = {Trait.GOOD_END}, {Trait.GOOD_END, Trait.CLOSING_LINE}, {Trait.BAD_END}


def scan(*ends: tuple[int, set[Trait]]) -> SourceScan:
    hits = tuple(
        Hit(
            Signature(
                0, "end", FailureClass.UNKNOWN, next(iter(Role)), None, 50, "x", traits=frozenset(traits)
            ),
            0,
            line,
            "x",
            NOWHERE,
        )
        for line, traits in ends
    )
    return SourceScan("log", NOWHERE, hits, 100, 1000, (), (), 1)


STEPS = [(12, "step 1"), (14, "step 2"), (16, "step 3"), (18, "step 4")]


@pytest.mark.parametrize(
    ("ends", "well"),
    [
        ([], False),
        ([(20, GOOD)], True),
        ([(10, GOOD)], False),
        ([(9, GOOD)], False),
        ([(11, GOOD)], True),
        ([(20, CLOSING)], True),
        ([(17, CLOSING)], True),
        ([(16, CLOSING)], False),
        ([(15, CLOSING)], False),
        ([(15, CLOSING), (20, GOOD)], True),
        ([(20, GOOD), (30, BAD)], False),
        ([(20, GOOD), (19, BAD)], True),
        ([(20, GOOD), (20, BAD)], False),
        ([(20, GOOD), (10, BAD), (9, BAD)], True),
        ([(20, GOOD), (25, BAD), (30, GOOD)], False),
    ],
)
def test_an_end_counts_after_the_line_and_until_a_bad_one(
    ends: list[tuple[int, set[Trait]]], well: bool
) -> None:
    assert ends_well(scan(*ends), 10, STEPS) is well


def test_a_closing_line_counts_only_where_training_went_on() -> None:
    assert not ends_well(scan((20, CLOSING)), 10, STEPS[:2])
    assert not ends_well(scan((20, CLOSING)), 12, STEPS[:3])
    assert not ends_well(scan((20, CLOSING)), 10, [(12, "step 1"), (13, "step 1"), (14, "step 2")]), (
        "one is drawn again"
    )
    assert ends_well(scan((20, GOOD)), 10, [])
