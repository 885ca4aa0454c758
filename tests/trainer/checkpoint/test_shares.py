"""Checkpoints of FSDP2: each rank writes its rows; any number of ranks, and one process, reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

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


@pytest.mark.parametrize("ranks", [1, 2, 8])
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
