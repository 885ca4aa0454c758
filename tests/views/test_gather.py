"""Samples become tracks: which series, whose, and of which attempt."""

from __future__ import annotations

from typing import Any

from supervisor.run.series import GPU, HOST, METRICS, RANKS, Rollup, Sample
from supervisor.run.state import AttemptState, RunState
from supervisor.views.model import gather
from supervisor.views.model.cause_context import Nearby
from supervisor.views.model.gather import Gatherer
from supervisor.views.model.snapshot import Snapshot


def sample(t: float, key: str = "job", attempt: int = 1, **values: float | None) -> Sample:
    return Sample(t=t, k=key, a=attempt, v=values)


def shown(made: Gatherer, attempts: int = 1) -> Snapshot:
    state = RunState(attempts=tuple(AttemptState(number=n + 1, planned_t=0.0) for n in range(attempts)))
    known: dict[str, Any] = {"keeper_alive": True, "gone": False, "run_file": None, "nearby": Nearby({})}
    return made.snapshot(1, state, **known)


def means(track: Any) -> list[float]:
    return [point.mean for point in track]


def test_each_metric_is_a_series_of_its_own_and_the_axes_are_none() -> None:
    made = Gatherer()
    for step in (1, 2):
        values: dict[str, Any] = {
            "step": float(step),
            "loss": 3.0 - step,
            "reward": 5.0 * step,
            "tokens_per_sec": 7.0,
        }
        made.take(METRICS, sample(step, **values, epoch=1.0, total_steps=9.0, eta_s=3.0))
    made.take(METRICS, sample(3, reward=None))
    snapshot = shown(made)
    assert means(snapshot.metrics["loss"]) == [2.0, 1.0]
    assert means(snapshot.series["loss"]) == [2.0, 1.0]
    assert means(snapshot.series["reward"]) == [5.0, 10.0]
    assert [point.step for point in snapshot.series["reward"]] == [1.0, 2.0]
    assert means(snapshot.metrics["tokens_per_sec"]) == means(snapshot.series["tokens_per_sec"]) == [7.0, 7.0]
    assert set(snapshot.series) == {"loss", "reward", "tokens_per_sec"}
    assert len(snapshot.smoothed) == 2


def test_a_speed_that_stood_beside_the_loss_does_not_go_on_beside_none() -> None:
    """An evaluation prints the cost of its batches under the name that training's has."""
    made = Gatherer()
    made.take(METRICS, sample(1, step=1.0, loss=2.0, step_time_s=0.5))
    made.take(METRICS, sample(2, step=2.0, step_time_s=0.002, auc=0.9))
    assert means(shown(made).metrics["step_time_s"]) == [0.5]
    for t in (3.0, 3.4):
        made.take(METRICS, sample(t, attempt=2, step=t / 0.4, step_time_s=0.4))
    assert means(shown(made, attempts=2).metrics["step_time_s"]) == [0.5, 0.4, 0.4], (
        "lines of their own in this attempt"
    )


def test_a_time_longer_than_any_step_is_the_one_since_the_start() -> None:
    """A resumed job may continue at a time of days, of which a few lines rise by a thousandth."""
    made = Gatherer()
    for n in range(1, 6):
        made.take(METRICS, sample(n, step=float(n), loss=2.0, step_time_s=120_000.0 + 5 * n))
    assert means(shown(made).metrics["step_time_s"]) == []


def test_without_a_loss_the_validation_loss_is_charted_under_its_name() -> None:
    made = Gatherer()
    made.take(METRICS, sample(1, step=1.0, acc=0.5, d_loss=3.0))
    assert shown(made).loss_name == "loss"
    made.take(METRICS, sample(2, step=2.0, val_loss=2.0))
    snapshot = shown(made)
    assert snapshot.loss_name == "val_loss"
    assert means(snapshot.metrics["loss"]) == [2.0]


def test_minutes_that_are_older_than_all_samples() -> None:
    made = Gatherer()
    rollup = {"step": (1.0, 5.0, 9.0, 9), "loss": (1.0, 2.0, 3.0, 9), "reward": (4.0, 5.0, 6.0, 9)}
    made.take_rollup(Rollup(t=60.0, k="job", a=1, v=rollup))
    made.take_rollup(Rollup(t=120.0, k="job", a=1, v={"reward": (1.0, 1.0, 1.0, 1)}))
    snapshot = shown(made)
    (point,) = snapshot.metrics["loss"]
    assert (point.step, point.low, point.mean, point.high, point.weight) == (9.0, 1.0, 2.0, 3.0, 9)
    assert means(snapshot.series["reward"]) == [5.0, 1.0]
    assert snapshot.series["reward"][1].step is None


def test_a_loss_that_is_no_number_has_its_place() -> None:
    made = Gatherer()
    made.take(METRICS, sample(1, step=4.0, loss=None, lr=None))
    assert [(point.t, point.step) for point in shown(made).lost] == [(1, 4.0)]
    assert shown(made).metrics["loss"] == ()


def test_since_when_the_loss_is_no_number() -> None:
    """A log that is attached later is read at one moment: all its samples have the same time."""
    made = Gatherer()

    def since() -> float | None:
        point = shown(made).lost_since
        return point.step if point is not None else None

    made.take(METRICS, sample(1, step=1.0, loss=None))
    assert since() == 1
    made.take(METRICS, sample(1, step=2.0, loss=1.5))
    assert since() is None
    for step in range(3, 4 + gather.LOST_POINTS):
        made.take(METRICS, sample(1, step=float(step), loss=None))
    assert since() == 3


def test_gpus_read_within_half_a_second_are_one_point() -> None:
    made = Gatherer()
    for t, key, used in ((1.0, "0", 2.0), (1.5, "1", 6.0), (2.1, "0", 8.0), (2.2, "10", None)):
        values: dict[str, Any] = {"util_ratio": t / 10, "memory_used_bytes": used, "memory_total_bytes": 10.0}
        made.take(GPU, sample(t, key, **values))
    made.take(GPU, sample(9.0, "1", util_ratio=None))
    snapshot = shown(made)
    assert [gpu.index for gpu in snapshot.gpus] == [0, 1, 10]
    assert [(point.low, point.high, point.weight) for point in snapshot.gpu_memory] == [
        (0.2, 0.6, 2),
        (0.8, 0.8, 1),
    ]
    assert [point.weight for point in snapshot.gpu_util] == [2, 2]
    assert snapshot.gpus[1].values["util_ratio"] is None, "the newest reading"
    assert snapshot.gpus[1].seen_t == 9.0
    assert means(snapshot.gpus[0].memory) == [2.0, 8.0]


def test_a_rank_is_what_it_is_in_the_newest_attempt() -> None:
    made = Gatherer()
    made.take(RANKS, sample(5.0, "0", step=3.0, step_time_s=1.0))
    made.take(HOST, sample(6.0, "0", cpu_ratio=0.5))
    made.take(HOST, sample(4.0, "machine", cpu_ratio=0.9, memory_used_bytes=7.0))
    rank = shown(made).ranks["0"]
    assert (rank.seen_t, rank.stepped_t, rank.values["step"], means(rank.cpu)) == (6.0, 5.0, 3.0, [0.5])
    machine = shown(made).machine
    assert machine is not None
    assert (machine.seen_t, means(machine.cpu)) == (4.0, [0.9])
    old = shown(made, attempts=2).ranks["0"]
    assert (old.seen_t, old.stepped_t, old.values, old.pace_s) == (0.0, None, {}, None)
    assert means(old.cpu) == [0.5]
    made.take(HOST, sample(9.0, "0", 2, cpu_ratio=0.1))
    made.take(HOST, sample(9.5, "0", 1, cpu_ratio=0.7))
    new = shown(made, attempts=2).ranks["0"]
    assert (new.seen_t, new.stepped_t, new.values) == (9.0, None, {"cpu_ratio": 0.1})
    assert means(new.cpu) == [0.5, 0.1, 0.7]
    assert shown(Gatherer()).machine is None
