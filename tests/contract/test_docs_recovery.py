"""The tables of docs/recovery.md are those of the rules and of the matrix that the e2e tests run."""

from __future__ import annotations

import runpy
from pathlib import Path

from tests.integration.matrix import MATRIX
from trainer.faults import FaultKind, parse

ROOT = Path(__file__).parents[2]


def test_the_page_is_as_the_rules_and_the_matrix_are() -> None:
    text = (ROOT / "docs" / "recovery.md").read_text(encoding="utf-8")
    made = runpy.run_path(str(ROOT / "scripts" / "recovery_page.py"))
    assert made["page"](text) == text, "run scripts/recovery_page.py"


def test_every_fault_that_can_be_asked_for_is_in_the_matrix() -> None:
    asked = {fault.kind for case in MATRIX for fault in parse(case.fault)}
    assert asked == set(FaultKind)
