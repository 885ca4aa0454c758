"""The ablation sees what matters, and nothing where nothing is switched off."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration.harness import ROOT

ABLATION = (sys.executable, str(ROOT / "bench" / "ablation.py"))
# Without it no line is a step: a log that trains is as unknown as an empty one.
MATTERS = "predicate diagnosis.scan.matched_lines.is_progress"


def table(keep: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(keep.read_text(encoding="utf-8"))
    return found


def rows(found: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{row['kind']} {row['name']}": row for row in found["pieces"]}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keep = tmp_path_factory.mktemp("ablation") / "table.json"
    command = [*ABLATION, "--sample", "24", "--only", MATTERS, "--keep", str(keep)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return keep


def test_what_is_known_to_matter_is_seen_and_nothing_off_changes_nothing(kept: Path) -> None:
    found = rows(table(kept))
    control = found.pop("control nothing is off")
    assert (control["contributes"], control["fields"], control["judged"]) == (
        "nothing",
        {},
        table(kept)["texts"],
    )
    assert found[MATTERS]["contributes"] == "matters"
    assert found[MATTERS]["wrong"]["class"] > 0
    assert found[MATTERS]["right"] == {}
