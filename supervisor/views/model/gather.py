"""Turns samples into what a view shows: tracks, latest readings, and pace. Reads no files.

`views.model.reader` feeds it samples as a run directory grows; `views.model.replay` does so as recorded time advances.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from supervisor.run import series as se
from supervisor.run.series import Rollup, Sample
from supervisor.run.state import RunState
from supervisor.text.stamps import local_shift
from supervisor.views.model.cause_context import Nearby
from supervisor.views.model.snapshot import Gpu, Machine, Rank, Snapshot
from supervisor.views.model.step_pace import Pace
from supervisor.views.model.thinned_series import Point, Recent, Track, Whole, single, smooth

if TYPE_CHECKING:
    from supervisor.run.runfile import RunFile

WHOLE_POINTS = 2048
RECENT_POINTS = 600
LOST_POINTS = 200
SPEEDS = ("tokens_per_sec", "samples_per_sec", "step_time_s", "data_wait_s", "mfu")
WHOLE_METRICS = ("loss", "val_loss", "lr", "grad_norm", *SPEEDS)
# Limits for other series: this many, each with this many points. A script that logs a number per layer then
# costs a bounded amount of memory (about 10 MiB).
OTHER_SERIES = 80
OTHER_POINTS = 1024
AXIS_FIELDS = frozenset(
    ["step", "total_steps", "epoch", "total_epochs", "epoch_step", "epoch_steps", "eta_s", *se.CONTEXT]
)
LONGEST_STEP_S = 4 * 3600.0
"""A printed step time longer than this must be the time since the start. In 400 real logs, no step took half an hour."""
TOGETHER_S = 0.5


class _Pool:
    """Readings from several devices, combined into points of minimum, mean and maximum."""

    def __init__(self) -> None:
        self._done = Recent(RECENT_POINTS)
        self._open: list[tuple[float, float, int]] = []

    def add(self, t: float, value: float | None, attempt: int) -> None:
        """Add a device's reading. Readings taken within half a second of each other form a single point."""
        if value is None:
            return
        if self._open and t - self._open[0][0] > TOGETHER_S:
            self._done.add(self._point())
            self._open.clear()
        self._open.append((t, value, attempt))

    def view(self) -> Track:
        """Return the points, oldest first."""
        return (*self._done.view(), self._point()) if self._open else ()

    def _point(self) -> Point:
        values = [value for _, value, _ in self._open]
        t, _, attempt = self._open[-1]
        return Point(t, None, min(values), sum(values) / len(values), max(values), len(values), attempt)


@dataclass(slots=True)
class _Keyed:
    """Data for a single GPU, rank or machine. Samples that a rank sent in an earlier attempt are stale."""

    tracks: dict[str, Recent]
    values: dict[str, float | None] = field(default_factory=dict)
    seen_t: float = 0.0
    stepped_t: float | None = None
    attempt: int = 0
    pace: Pace = field(default_factory=Pace)

    def take(self, sample: Sample) -> None:
        """Process a sample. Samples must arrive in time order."""
        step = sample.v.get("step")
        for name, value in sample.v.items():
            track = self.tracks.get(name)
            if track is not None and value is not None:
                track.add(single(sample.t, step, value, sample.a))
        if sample.a > self.attempt:
            self.attempt, self.values, self.seen_t, self.stepped_t = sample.a, {}, 0.0, None
            self.pace = Pace()
        if sample.a < self.attempt:
            return
        if step is not None:
            self.stepped_t = sample.t
            if "step_time_s" not in self.values:
                _keep_pace(self.pace, sample, step)
        self.seen_t = max(self.seen_t, sample.t)
        self.values.update(sample.v)

    def track(self, name: str) -> Track:
        """Return the history of a value, empty if there is none."""
        track = self.tracks.get(name)
        return track.view() if track is not None else ()

    def rank(self, key: str, attempt: int) -> Rank:
        """Return the state of this rank in `attempt`, which is the latest attempt."""
        is_current = self.attempt >= attempt
        return Rank(
            key=key,
            seen_t=self.seen_t if is_current else 0.0,
            stepped_t=self.stepped_t if is_current else None,
            pace_s=self.pace.seconds() if is_current else None,
            values=dict(self.values) if is_current else {},
            cpu=self.track("cpu_ratio"),
            rss=self.track("rss_bytes"),
        )


class Readings:
    """The latest readings of a node's GPUs, ranks and machine. Remote nodes, possibly with hundreds of ranks, get no history."""

    def __init__(self, *, with_history: bool) -> None:
        self._with_history = with_history
        self._ranks: dict[str, _Keyed] = {}
        self._gpus: dict[str, _Keyed] = {}
        self._machine = self._keyed("cpu_ratio", "memory_used_bytes")

    def take(self, stream: str, sample: Sample) -> None:
        """Process a GPU, rank or machine sample. Samples must arrive in time order."""
        if stream == se.GPU:
            if sample.k not in self._gpus:
                self._gpus[sample.k] = self._keyed("util_ratio", "memory_used_bytes")
            self._gpus[sample.k].take(sample)
        elif stream == se.HOST and sample.k == se.MACHINE_KEY:
            self._machine.take(sample)
        else:
            if sample.k not in self._ranks:
                self._ranks[sample.k] = self._keyed("cpu_ratio", "rss_bytes")
            self._ranks[sample.k].take(sample)

    def _keyed(self, *tracked: str) -> _Keyed:
        return _Keyed({name: Recent(RECENT_POINTS) for name in tracked if self._with_history})

    def ranks(self, attempt: int) -> dict[str, Rank]:
        """Return the state of every rank in `attempt`, which is the latest attempt."""
        return {key: keyed.rank(key, attempt) for key, keyed in sorted(self._ranks.items(), key=_numeric)}

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs, ordered by index."""
        return tuple(
            Gpu(
                index=int(key) if key.isdigit() else 0,
                seen_t=keyed.seen_t,
                values=dict(keyed.values),
                util=keyed.track("util_ratio"),
                memory=keyed.track("memory_used_bytes"),
            )
            for key, keyed in sorted(self._gpus.items(), key=_numeric)
        )

    def machine(self) -> Machine | None:
        """Return the machine's readings, or None if there are none."""
        keyed = self._machine
        if not keyed.seen_t:
            return None
        cpu, memory = keyed.track("cpu_ratio"), keyed.track("memory_used_bytes")
        return Machine(seen_t=keyed.seen_t, values=dict(keyed.values), cpu=cpu, memory=memory)


class Gatherer:
    """Collects a run's samples into series, readings and pace."""

    def __init__(self) -> None:
        self._series = {name: Whole(WHOLE_POINTS) for name in WHOLE_METRICS}
        self._lost: deque[Point] = deque(maxlen=LOST_POINTS)
        self._lost_since: Point | None = None
        # For series with a non-finite newest value: the attempt, and the word for the value.
        self._odd: dict[str, tuple[int, str]] = {}
        self._pace = Pace()
        self._number = 0
        self._epoch: tuple[int, float | None] = (0, None)  # attempt, and the last epoch in its log
        self._beside_loss: set[tuple[int, str]] = set()  # attempts and names of speeds
        self._readings = Readings(with_history=True)
        self._gpu_util, self._gpu_memory = _Pool(), _Pool()
        self._smoothed: tuple[Track, tuple[float, ...]] = ((), ())

    def take(self, stream: str, sample: Sample) -> None:
        """Process a sample. Samples must arrive in time order."""
        if stream == se.METRICS:
            self._take_metrics(sample)
            return
        self._readings.take(stream, sample)
        if stream == se.GPU:
            used, total = sample.v.get("memory_used_bytes"), sample.v.get("memory_total_bytes")
            self._gpu_util.add(sample.t, sample.v.get("util_ratio"), sample.a)
            self._gpu_memory.add(sample.t, used / total if used is not None and total else None, sample.a)

    def _take_metrics(self, sample: Sample) -> None:
        if (step := sample.v.get("step")) is not None:
            _keep_pace(self._pace, sample, step)
        known = self._epoch[1] if self._epoch[0] == sample.a else None
        named = sample.v.get("epoch")
        self._epoch = (sample.a, known if named is None else named)
        if sample.v.keys() <= AXIS_FIELDS:
            return  # a heading, not a reading
        self._number = max(self._number + 1, int(sample.v.get(se.READING) or 0))
        line_t = sample.v.get(se.LINE_T)
        origin = single(sample.t, step, 0.0, sample.a)._replace(
            epoch=self._epoch[1],
            number=self._number,
            late=se.LINE_T in sample.v,
            line_t=line_t + local_shift(line_t) if line_t is not None else None,
        )
        for name, value in sample.v.items():
            if name in SPEEDS and not self._is_trainings(name, sample):
                continue
            if value is not None:
                self._odd.pop(name, None)
                point = origin._replace(low=value, mean=value, high=value)
                if name == "step_time_s" and value > LONGEST_STEP_S:
                    continue
                self._add(name, point)
            elif name not in se.CONTEXT:  # null, written without a word by an older version
                self._odd[name] = (sample.a, sample.odd.get(name, "nan or inf"))
            if name == "loss":
                lost = float(sample.odd.get(name, "nan"))
                self._note_lost(origin._replace(low=lost, mean=lost, high=lost) if value is None else None)

    def _add(self, name: str, point: Point) -> None:
        if name in AXIS_FIELDS:
            return
        if name not in self._series and len(self._series) < len(WHOLE_METRICS) + OTHER_SERIES:
            self._series[name] = Whole(OTHER_POINTS)
        if (series := self._series.get(name)) is not None:
            series.add(point)

    def _note_lost(self, point: Point | None) -> None:
        """Record a point where the loss is not finite, or None once it is finite again."""
        known = self._lost_since
        self._lost_since = known if known and point and known.attempt == point.attempt else point
        if point is not None:
            self._lost.append(point)

    def _is_trainings(self, name: str, sample: Sample) -> bool:
        """Check whether a speed is from training. If speeds appear next to a loss, lines without a loss are from evaluation."""
        if "loss" in sample.v:
            self._beside_loss.add((sample.a, name))
            return True
        return (sample.a, name) not in self._beside_loss

    def take_rollup(self, rollup: Rollup) -> None:
        """Add a one-minute rollup of the metrics. It is older than any sample added later."""
        steps = rollup.v.get("step")
        step = steps[2] if steps else None
        epochs, late = rollup.v.get("epoch"), rollup.v.get(se.LINE_T)
        self._number += max((count for *_, count in rollup.v.values()), default=0)
        for name, (low, mean, high, count) in rollup.v.items():
            point = Point(
                rollup.t,
                step,
                low,
                mean,
                high,
                count,
                rollup.a,
                epoch=epochs[2] if epochs else None,
                number=self._number,
                late=late is not None,
                line_t=late[2] + local_shift(late[2]) if late else None,
            )
            self._add(name, point)

    def snapshot(
        self,
        revision: int,
        state: RunState,
        *,
        keeper_alive: bool,
        gone: bool,
        run_file: RunFile | None,
        nearby: Nearby,
        misplaced: str = "",
        recorded_t: float | None = None,
    ) -> Snapshot:
        """Return a snapshot of the run, including the given context."""
        series = {name: whole.view() for name, whole in self._series.items()}
        metrics = {name: series[name] for name in WHOLE_METRICS}
        loss_name = "loss"
        if not metrics["loss"] and not self._lost and metrics["val_loss"]:
            loss_name = "val_loss"  # the only loss of this run
        metrics["loss"] = series[loss_name]
        if self._smoothed[0] is not metrics["loss"]:
            self._smoothed = (metrics["loss"], smooth(metrics["loss"]))
        attempt = state.attempt.number if state.attempt is not None else 0
        is_paced = self._pace.attempt >= attempt
        return Snapshot(
            revision=revision,
            state=state,
            keeper_alive=keeper_alive,
            gone=gone,
            run_file=run_file,
            metrics=metrics,
            series={name: track for name, track in series.items() if track},
            smoothed=self._smoothed[1],
            loss_name=loss_name,
            lost=tuple(self._lost),
            lost_since=self._lost_since,
            odd=dict(self._odd),
            pace_s=self._pace.seconds() if is_paced else None,
            pace=self._pace.track() if is_paced else (),
            gpus=self._readings.gpus(),
            gpu_util=self._gpu_util.view(),
            gpu_memory=self._gpu_memory.view(),
            ranks=self._readings.ranks(attempt),
            machine=self._readings.machine(),
            nearby=nearby,
            misplaced=misplaced,
            recorded_t=recorded_t,
        )


def _numeric(item: tuple[str, object]) -> tuple[int, str]:
    key = item[0]
    return (int(key), key) if key.isdigit() else (1 << 30, key)


def _keep_pace(pace: Pace, sample: Sample, step: float) -> None:
    """Record when a step was logged: the time it was read or, if the log was read late, the time in the line."""
    if se.LINE_T not in sample.v:
        pace.add(sample.t, step, sample.a)
    elif (line_t := sample.v[se.LINE_T]) is not None:
        pace.add(line_t, step, sample.a, by_clock=True)
    else:
        pace.forget()
