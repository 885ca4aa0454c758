"""A snapshot is the run as its files say it, read as they grow."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from supervisor.run.paths import RunPaths
from supervisor.run.series import METRICS
from supervisor.views.model import reader as sn
from supervisor.views.model.reader import SnapshotReader
from tests.views.tui import recorded


def test_growth_is_seen(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    reader = SnapshotReader(rec.run)
    before = reader.refresh()
    rec.steps(1, 5)
    after = reader.refresh()
    assert after.revision > before.revision
    assert after.metrics["loss"][-1].step == 5
    assert after.metrics["lr"] is not before.metrics["lr"]


def test_where_only_lines_were_added_nothing_is_new(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 5)
    reader = SnapshotReader(rec.run, monotonic=lambda: 0.0)
    before = reader.refresh()
    rec.say(0, "a line")
    after = reader.refresh()
    assert after is before, "lines are read by the log engine"
    rec.steps(6, 7)
    assert reader.refresh().revision > after.revision


def test_absent_folder_and_half_lines(tmp_path: Path) -> None:
    assert SnapshotReader(RunPaths(tmp_path / "none")).refresh().gone
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 3)
    run = rec.close()
    metrics = run.node().series / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes() + b'{"t": 5, "k": "jo')
    assert SnapshotReader(run).refresh().metrics["loss"][-1].step == 3


def test_old_data_comes_from_rollups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rec = recorded.Recording(tmp_path / "run", gpus=0)
    rec.launch("first start")
    rec.steps(1, 400)
    run = rec.close()
    monkeypatch.setattr(sn, "TAIL_BYTES", 4096)
    loss = SnapshotReader(run).refresh().metrics["loss"]
    assert loss[0].weight > 1, "the first minutes are roll-ups"
    assert loss[0].step is not None
    assert loss[0].step < 60
    assert loss[-1].step == 400
    assert [p.t for p in loss] == sorted(p.t for p in loss)


def test_a_long_log_that_is_opened_again_keeps_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rec = recorded.Recording(tmp_path / "run", name="train.log", mode="observed", gpus=0, total_steps=None)
    for step in range(5000):
        rec.series.append(METRICS, rec.t, "job", 1, {"step": step, "loss": 2.0, "line_t": 1e9 + step})
    run = rec.close()
    monkeypatch.setattr(sn, "OBSERVED_BYTES", 50_000)
    monkeypatch.setattr(sn, "SPREAD_BYTES", 80_000)
    steps = [point.step or 0.0 for point in SnapshotReader(run).refresh().metrics["loss"]]
    assert (steps[0], steps[-1]) == (0.0, 4999.0)
    assert max(b - a for a, b in pairwise(steps)) < 1000
