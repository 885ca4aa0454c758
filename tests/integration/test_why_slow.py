"""`stoker why-slow` on real runs of two ranks, each with one planted cause."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.harness import SCRIPTS, run_headless, stoker
from tests.tiers import first

pytestmark = [pytest.mark.e2e, pytest.mark.serial]

# The cause, the finding that must come first, its rank, and words of its text.
CAUSES = [
    ("slow_disk", "data", 1, "waiting for data on rank 1"),
    ("none", "", None, ""),
    ("evaluation", "evaluation", None, "evaluation takes"),
    ("slow_loader", "data", None, "waiting for data on all ranks"),
    ("slow_rank", "compute", 1, "rank 1 computes"),
    ("collate", "data", None, "waiting for data on all ranks"),
    ("saves", "saves", None, "saving checkpoints takes"),
    ("compile", "first_steps", None, "they compile or warm up"),
    ("growing", "growing", None, "steps get longer"),
]


@pytest.mark.parametrize(("cause", "finding", "rank", "words"), first(2, CAUSES))
def test_the_planted_cause_is_found_first(
    tmp_path: Path, cause: str, finding: str, rank: int | None, words: str
) -> None:
    script = str(SCRIPTS / "slow" / "train.py")
    done, _, _ = run_headless("--nproc-per-node", "2", script, "--cause", cause, cwd=tmp_path)
    assert done.code == 0, done.err
    told = stoker("why-slow", "--json", cwd=tmp_path)
    assert told.code == 0, told
    findings = json.loads(told.out)["findings"]
    if not finding:
        assert findings == []
        return
    newest = findings[0]
    assert (newest["cause"], newest["rank"]) == (finding, rank), findings
    assert words in newest["text"]
    assert newest["share"] >= 0.05
