"""Of a new attempt nothing is known until it says it; what an earlier one said is not of now."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.run.series import METRICS, RANKS
from supervisor.views.model.reader import SnapshotReader
from tests.views.tui.recording import Recording

SAID = ("loss", "lr", "grad_norm", "tokens_per_sec", "step_time_s", "data_wait_s")


@pytest.fixture
def again(tmp_path: Path) -> Recording:
    """Attempt 1 did 29 steps; attempt 2 was launched."""
    rec = Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 29)
    rec.out_of_memory()
    rec.launch("as asked")
    return rec


def test_a_new_attempt_has_no_loss_pace_or_steps_until_it_says_them(again: Recording) -> None:
    reader = SnapshotReader(again.run)
    snapshot = reader.refresh()
    assert [snapshot.latest(name) for name in SAID] == [None] * len(SAID)
    assert (snapshot.step_time_s, snapshot.pace_s, snapshot.pace) == ((None, False), None, ())
    for rank in snapshot.ranks.values():
        assert (rank.values, rank.stepped_t, rank.pace_s, rank.seen_t) == ({}, None, None, 0.0)
        assert rank.cpu, "what its processes took stays drawn"
    assert snapshot.best_loss == (snapshot.state.best_loss, snapshot.state.best_step)
    again.steps(1, 2)
    snapshot = reader.refresh()
    assert None not in [snapshot.latest(name) for name in SAID]
    assert {rank.values["step"] for rank in snapshot.ranks.values()} == {2}
    assert snapshot.pace_s is not None


def test_a_sample_of_the_attempt_before_that_comes_late_changes_nothing(again: Recording) -> None:
    again.steps(1, 2)
    again.series.append(RANKS, again.t + 1, "0", 1, {"step": 30.0, "step_time_s": 9.0})
    assert SnapshotReader(again.run).refresh().ranks["0"].values["step"] == 2


def test_the_best_of_losses_that_name_no_step_has_none(tmp_path: Path) -> None:
    rec = Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 9)
    rec.series.append(METRICS, rec.t + 0.1, "job", 1, {"epoch": 2.9, "loss": 9.0})
    snapshot = SnapshotReader(rec.run).refresh()
    assert snapshot.state.best_step is not None, "of the progress bar beside them"
    assert snapshot.best_loss == (snapshot.state.best_loss, None)
