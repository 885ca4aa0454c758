"""Checkpoints of FSDP2: each rank writes its rows; any number of ranks, and one process, reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.disks import needs_full_device
from tests.trainer.runs import flags, losses, records, run, train_here
from trainer.checkpoint import storage
from trainer.checkpoint.shares import Rows, joined, share_name

WHOLE = torch.arange(28.0).view(7, 4)


def shares() -> list[dict[str, Any]]:
    """Of three ranks, as FSDP2 cuts seven rows: 3, 3 and 1; and a counter, which all have."""
    cut = [(0, WHOLE[:3]), (3, WHOLE[3:6]), (6, WHOLE[6:])]
    return [
        {"state": {"model": {"w": part}, "step": torch.tensor(5.0)}, "places": {"/model/w": [first, 7, 4]}}
        for first, part in cut
    ]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_rows_are_taken_out_of_files_that_another_number_of_ranks_wrote(ranks: int) -> None:
    rows = joined(shares(), by_rows=True)["model"]["w"]
    assert isinstance(rows, Rows)
    each = -(-7 // ranks)
    starts = [min(rank * each, 7) for rank in range(ranks)]
    taken = [rows[slice(start, min(start + each, 7))] for start in starts]
    assert torch.equal(torch.cat(taken), WHOLE)
    assert torch.equal(joined(shares(), by_rows=False)["model"]["w"], WHOLE)


def test_a_share_that_is_missing_is_no_checkpoint(tmp_path: Path) -> None:
    def written(names: range) -> Path:
        temporary = storage.begin(tmp_path, len(names))
        files: storage.Files = {}
        for at in names:
            files |= storage.write(temporary, share_name(at), shares()[at])
        return storage.finish(temporary, {}, files)

    path = written(range(3))
    assert torch.equal(storage.load(path).state["model"]["w"], WHOLE)
    assert float(storage.load(path, by_rows=True).state["step"]) == 5
    with pytest.raises(storage.CheckpointError, match="a share is missing"):
        storage.load(written(range(2)))
    (path / share_name(1)).unlink()
    with pytest.raises(storage.CheckpointError, match=r"share-00001\.pt is missing"):
        storage.load(path)


@pytest.mark.e2e
def test_two_ranks_shares_resume_on_four_and_on_one(tmp_path: Path) -> None:
    base: dict[str, Any] = {"num_iterations": 8, "depth": 2, "device_batch_size": 2, "ema_decay": 0.9}
    train_here(tmp_path / "one", **base)

    def ranks(count: int, name: str, **more: Any) -> dict[int, float]:
        (tmp_path / name).mkdir()
        words = flags(telemetry_dir="tel", checkpoint_dir="ck", shard="fsdp2", **{**base, **more})
        done = run(count, *words, cwd=tmp_path / name)
        assert done.returncode == 0, done.stderr
        return losses(tmp_path / name)

    whole = losses(tmp_path / "one")
    assert ranks(2, "two", save_every=4) == pytest.approx(whole, abs=1e-4)
    middle = tmp_path / "two" / "ck" / "step_00000004"
    assert {path.name for path in middle.iterdir()} == {
        storage.MARKER,
        storage.META,
        share_name(0),
        share_name(1),
    }
    late = {step: loss for step, loss in whole.items() if step > 4}
    assert ranks(4, "four", resume_from=middle) == pytest.approx(late, abs=1e-4)
    assert ranks(2, "again", resume_from=tmp_path / "four" / "ck", num_iterations=9).keys() == {9}
    train_here(tmp_path / "alone", **base, resume_from=str(middle))
    assert losses(tmp_path / "alone") == pytest.approx(late, abs=1e-4)


@pytest.mark.e2e
def test_a_share_that_cannot_be_written_is_no_checkpoint_on_all_ranks_alike(tmp_path: Path) -> None:
    needs_full_device()
    words = flags(telemetry_dir="tel", checkpoint_dir="ck", shard="fsdp2", device_batch_size=2, save_every=2)
    done = run(2, *words, "--fault=disk_full@4:0", cwd=tmp_path)
    assert done.returncode == 1
    assert "1 of 2 ranks have not written their share" in done.stderr
    assert "No space left on device" in done.stderr
    assert [r["step"] for r in records(tmp_path, kind="checkpoint_committed")] == [2]
    assert [path.name for path in storage.committed(tmp_path / "ck")] == ["step_00000002"]
