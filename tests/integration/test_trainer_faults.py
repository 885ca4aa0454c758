"""Errors that all ranks must hear of alike. Each fault under stoker: test_recovery_matrix.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.disks import needs_full_device
from tests.tiers import first
from tests.trainer.runs import MAIN, flags, records, run


def ends(folder: Path) -> list[dict[str, Any]]:
    """The last record of each rank."""
    return [records(folder, rank=rank)[-1] for rank in (0, 1)]


@pytest.mark.e2e
def test_a_write_that_fails_beside_the_training_ends_all_ranks_at_the_same_step(tmp_path: Path) -> None:
    needs_full_device()
    args = flags(num_iterations=500, save_every=4, telemetry_dir="tel", checkpoint_dir="ck")
    done = run(2, *args, "--fault=disk_full@8", cwd=tmp_path)
    assert done.returncode == 1
    last = ends(tmp_path)
    assert [end["exit_code"] for end in last] == [1, 1]
    assert last[0]["reason"] == last[1]["reason"]
    assert "step_00000008 could not be written: No space left on device" in last[1]["reason"]
    assert last[0]["step"] == last[1]["step"] < 500
    assert [p.name for p in (tmp_path / "ck").iterdir()] == ["step_00000004"]
    assert [r["step"] for r in records(tmp_path, kind="checkpoint_committed")] == [4]


@pytest.mark.e2e
@pytest.mark.parametrize("rank", first(1, [None, 1]))
def test_debug_names_by_rank_what_gets_no_gradient_before_ddp_gives_its_index(
    rank: int | None, tmp_path: Path
) -> None:
    fault = "unused_parameter@0" + (f":{rank}" if rank is not None else "")
    args = flags(telemetry_dir="tel", checkpoint_dir="ck", fault=fault)
    named = run(2, *args, "--debug", cwd=tmp_path)
    assert named.returncode == 1
    reasons = [end["reason"] for end in ends(tmp_path)]
    assert "without gradient on rank 1: spare; --find_unused_parameters allows them" in reasons[1]
    assert ("rank 0: spare" if rank is None else "on another rank") in reasons[0]
    assert "Expected to have finished reduction" not in named.stderr
    if rank is None:
        plain = run(2, *args, cwd=tmp_path)
        assert plain.returncode == 1
        assert "Expected to have finished reduction" in plain.stderr
        assert run(2, *args, "--find_unused_parameters", "--debug", cwd=tmp_path).returncode == 0


def test_every_fault_is_told_of_where_the_flag_is_explained() -> None:
    from trainer.faults import FaultKind

    text = (MAIN.parents[1] / "docs" / "telemetry.md").read_text()
    assert all(f"`{kind}" in text for kind in FaultKind)
