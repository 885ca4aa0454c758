"""docs/reliability.md is what the tests' fault marks say, and there are enough of them."""

from __future__ import annotations

from scripts.reliability_page import AREAS, PAGE, page, rows

FEWEST = 50


def test_the_page_is_made_from_the_tests() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make pages`"
    assert PAGE.name in (PAGE.parents[1] / "README.md").read_text(encoding="utf-8")


def test_each_area_has_faults_and_none_is_there_twice() -> None:
    found = list(rows())
    assert len(found) >= FEWEST
    assert {row.area for row in found} == set(AREAS)
    assert len({(row.fault, row.promise) for row in found}) == len(found)
