"""Text, token files and broken data as a training meets them, read here or by workers ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.runs import flags, losses, run, train_here
from trainer.checkpoint import storage
from trainer.config import DataError, UsageError
from trainer.data.__main__ import main as data_main
from trainer.data.loading import worker_count


def test_prepared_data_is_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "texts"
    source.mkdir()
    for number in range(40):
        (source / f"{number:02}.txt").write_text(f"Text number {number}. " * 20)
    assert data_main(["prepare", str(source), "--out", str(tmp_path / "out")]) == 0
    assert "vocabulary 256" in capsys.readouterr().out
    data = {
        "train_data_path": str(tmp_path / "out" / "train.bin"),
        "valid_data_path": str(tmp_path / "out" / "val.bin"),
    }
    assert train_here(tmp_path, None, **data, num_iterations=2, eval_every=2) == 0
    path = tmp_path / "ck" / "step_00000002"
    assert storage.load(path).meta["shape"]["vocab_size"] == 256
    assert data_main(["prepare", str(tmp_path / "nothing"), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_unusable_data_is_skipped_if_asked_for_and_not_for_ever(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 60, 32 * 400, dtype=np.uint16)
    tokens[32 * 40] = 999
    path = tmp_path / "t.bin"
    tokens.tofile(path)
    data: dict[str, Any] = {"train_data_path": str(path), "vocab_size": 64, "num_iterations": 45}
    with pytest.raises(DataError, match="token 999 is outside the vocabulary of 64"):
        train_here(tmp_path, None, **data)
    assert train_here(tmp_path / "on", None, **data, continue_on_error=True) == 0
    assert 43 <= len(losses(tmp_path / "on")) <= 44
    tokens[::32] = 999
    tokens.tofile(path)
    with pytest.raises(DataError):
        train_here(tmp_path / "all", None, **data, continue_on_error=True)


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [("t.bin", bytes(40), "max_seq_len"), ("t.jsonl", b'{"text": "good"}\n{"text": "cut\n', r"t\.jsonl:2")],
    ids=["too short", "no JSON"],
)
def test_data_that_cannot_be_used_is_named(tmp_path: Path, name: str, data: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=says):
        train_here(tmp_path, None, train_data_path=str(tmp_path / name))


@pytest.mark.e2e
def test_workers_read_ahead_and_change_nothing_and_their_death_is_told(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 256, 20_000, dtype=np.uint16)
    tokens.tofile(tmp_path / "t.bin")
    settings = flags(
        train_data_path="t.bin", vocab_size=256, telemetry_dir="tel", checkpoint_dir="ck", num_workers=1
    )
    done = run(1, *settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    train_here(tmp_path / "here", train_data_path=str(tmp_path / "t.bin"), vocab_size=256)
    assert losses(tmp_path) == pytest.approx(losses(tmp_path / "here"), abs=1e-6)
    killed = run(1, *settings, "--num_iterations=2000", "--fault=worker_killed@1", cwd=tmp_path)
    assert killed.returncode == 1
    assert "DataLoader worker" in killed.stderr
    assert "is killed by signal" in killed.stderr


def test_the_number_of_workers_follows_from_cores_and_ranks() -> None:
    assert [worker_count(-1, cores, ranks) for cores, ranks in ((2, 2), (16, 4), (64, 8), (1, 1))] == [
        0,
        3,
        4,
        0,
    ]
    assert worker_count(7, 2, 2) == 7
