"""Everything a view shows about a run at one moment. Frozen, so any thread may use it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from supervisor.run.paths import NodePaths
from supervisor.run.state import A_PIPE, RunState
from supervisor.views.logs.sources import NodeLogs
from supervisor.views.model.cause_context import Nearby
from supervisor.views.model.step_pace import (
    BURST_S,
    GAPS,
    LEAST_EPOCHS,
    LEAST_STEPS,
    NEWEST_EPOCHS,
    epoch_times,
    epochs_apart,
    job_pace,
)
from supervisor.views.model.thinned_series import Point, Track, median

if TYPE_CHECKING:
    from supervisor.run.runfile import RunFile


class Gpu(msgspec.Struct, frozen=True):
    """A GPU: its latest readings (None if missing) and two histories."""

    index: int
    seen_t: float
    values: dict[str, float | None]
    util: Track
    memory: Track


class Rank(msgspec.Struct, frozen=True):
    """A rank: its latest training sample and the latest reading of its process.

    `stepped_t` is the time of its latest sample with a step, or None if its steps cannot be distinguished
    from the job's. `pace_s` is seconds per step according to log line times, for a log without step times.
    All values are for the latest attempt and stay unknown (`seen_t` is 0) until it logs something.
    """

    key: str
    seen_t: float
    stepped_t: float | None
    pace_s: float | None
    values: dict[str, float | None]
    cpu: Track
    rss: Track


class Machine(msgspec.Struct, frozen=True):
    """The host: its latest readings and two histories."""

    seen_t: float
    values: dict[str, float | None]
    cpu: Track
    memory: Track


class Node(msgspec.Struct, frozen=True):
    """A node of a multi-node run: its own journal and its latest readings, without histories.

    `beat_t` is when its heartbeat last moved, on this machine's clock, or None if it never did.
    """

    number: int
    paths: NodePaths
    state: RunState
    ranks: dict[str, Rank]
    gpus: tuple[Gpu, ...]
    machine: Machine | None
    beat_t: float | None


class Snapshot(msgspec.Struct, frozen=True):
    """The current state of a run.

    `metrics` maps series names to points; `smoothed` holds the smoothed loss. `loss_name` is the log's own name for
    the value shown as the loss, if there are several losses and no total. `series` has every metric in full under its
    own name. `lost` holds the latest non-finite losses, and `lost_since` is the first one not followed by a finite loss.
    For each series whose latest value is non-finite, `odd` gives the attempt and how the value was written.
    `keeper_alive` means that a keeper holds the lock; `gone` means that the run directory was removed. `misplaced` is
    the notice for a directory other than the one where the run was started, or "". `pace` holds the latest attempt's most
    recent gaps between logged steps, and `pace_s` is their median in seconds per step. `gpu_util` and `gpu_memory` are
    ratios over all of this node's devices. `recorded_t` is the current time in a replay. `nodes` lists all nodes of
    a multi-node run, node 0 first, and is otherwise empty. All other fields describe node 0.
    """

    revision: int
    state: RunState
    keeper_alive: bool
    gone: bool
    run_file: RunFile | None
    metrics: dict[str, Track]
    series: dict[str, Track]
    smoothed: tuple[float, ...]
    lost: Track
    pace_s: float | None
    pace: Track
    gpus: tuple[Gpu, ...]
    gpu_util: Track
    gpu_memory: Track
    ranks: dict[str, Rank]
    machine: Machine | None
    nearby: Nearby
    misplaced: str = ""
    recorded_t: float | None = None
    loss_name: str = "loss"
    nodes: tuple[Node, ...] = ()
    lost_since: Point | None = None
    odd: dict[str, tuple[int, str]] = {}

    @property
    def node_logs(self) -> tuple[NodeLogs, ...]:
        """In a multi-node run, the directory that lists each node's logs."""
        return tuple(NodeLogs(node.number, node.paths, node.state) for node in self.nodes)

    @property
    def step(self) -> int | None:
        """The latest step of the latest attempt."""
        attempt, progress = self.state.attempt, self.state.progress
        if attempt is not None:
            return attempt.last_step
        return progress.step if progress is not None else None

    @property
    def step_time_s(self) -> tuple[float | None, bool]:
        """The job's seconds per step, and whether they were derived from log times; see `step_pace.job_pace`."""
        newest = self.metrics["step_time_s"][-max(len(self.pace), LEAST_STEPS) :]
        logged = (point.mean for point in newest if self.is_current(point.attempt))
        return job_pace(self.latest("step_time_s"), logged, self.gap_s, len(self.gaps))

    @property
    def gap_s(self) -> float | None:
        """Seconds per step, computed from the gaps."""
        gaps = self.gaps
        return self.pace_s if gaps is self.pace else median(gap.mean for gap in gaps)

    @property
    def gaps(self) -> Track:
        """The gaps in `pace` that reflect the job's speed, excluding the first lines read from a pipe, which were written earlier."""
        state = self.state
        if state.source != A_PIPE or state.attempt is None:
            return self.pace
        begun_t = state.attempt.planned_t
        return tuple(gap for gap in self.pace if not 0 <= gap.t - begun_t <= BURST_S)

    @property
    def epoch_times(self) -> tuple[Track, bool]:
        """The latest attempt's epoch durations, and whether they were derived from log times. Empty if step times are known."""
        if self.step_time_s[0] is not None:
            return (), False
        printed = tuple(
            point
            for point in self.series.get("epoch_time_s", ())
            if point.epoch is not None and self.is_current(point.attempt)
        )
        if printed:
            return epoch_times(printed), False
        losses = self.metrics.get("loss", ())[-GAPS:]
        return epochs_apart(tuple(point for point in losses if self.is_current(point.attempt))), True

    @property
    def epoch_time_s(self) -> tuple[float | None, bool]:
        """The latest epoch time, and whether it was derived. A derived time is a median, so a single evaluation does not skew it."""
        track, is_derived = self.epoch_times
        if is_derived:
            known = track[-NEWEST_EPOCHS:] if len(track) >= LEAST_EPOCHS else ()
            return median(point.mean for point in known), bool(known)
        return (track[-1].mean if track else None), False

    def latest(self, name: str) -> float | None:
        """Return the latest logged value of a metric, or None until the latest attempt logs one."""
        track = self.metrics.get(name, ())
        return track[-1].mean if track and self.is_current(track[-1].attempt) else None

    def not_finite(self, name: str) -> str:
        """Return a metric's latest value as written if it is nan, inf or -inf, else "". Older data may only say "nan or inf"."""
        attempt, word = self.odd.get(name, (0, ""))
        return word if word and self.is_current(attempt) else ""

    def is_current(self, attempt: int) -> bool:
        """Check whether values from `attempt` are current. A later attempt makes them stale."""
        newest = self.state.attempt
        return newest is None or attempt >= newest.number

    @property
    def best_loss(self) -> tuple[float | None, int | None]:
        """The lowest loss of all attempts, and its step."""
        if self.loss_name != "loss":
            return None, None  # for several losses, the journal has only the total
        samples = self.metrics["loss"]
        # If a log's losses have only epochs, the step is from a progress bar, which may be ahead.
        has_step = not samples or samples[-1].step is not None
        return self.state.best_loss, self.state.best_step if has_step else None
