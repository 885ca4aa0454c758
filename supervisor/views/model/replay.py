"""Replays a recorded run from the same journal and samples, at any speed, forward or backward.

A replay is read-only: it writes nothing and sends no requests.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from supervisor.run import series as se
from supervisor.run.events import Event, KeeperStarted
from supervisor.run.fold import fold, replay
from supervisor.run.journal import facts_in
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import BadRunFile, RunFile, read_run_file
from supervisor.run.series import Sample, SeriesReader, read_rollups
from supervisor.run.state import RunState
from supervisor.views.model.cause_context import NearbyReader
from supervisor.views.model.gather import Gatherer
from supervisor.views.model.snapshot import Snapshot

# Play this much of each stream sample by sample. Older data comes as one-minute roll-ups.
STREAM_BYTES = 64 << 20
SPEEDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 3600.0)
# The usual length of a replay, in seconds.
LASTS_S = 30.0


class NothingRecorded(Exception):  # noqa: N818 - a normal state, not an error
    """The run has no events to play. The message is a single line."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded run in time order. `facts_t` holds the times of the timeline events."""

    run: RunPaths
    run_file: RunFile | None
    events: tuple[Event, ...]
    samples: tuple[tuple[float, str, Sample], ...]
    past: tuple[se.Rollup, ...]
    facts_t: tuple[float, ...]

    @property
    def start_t(self) -> float:
        """The wall time of the first event."""
        return self.events[0].t

    @property
    def end_t(self) -> float:
        """The wall time of the last event or sample."""
        # Events of several keepers are not in time order.
        return max([*(event.t for event in self.events), *(sample[0] for sample in self.samples[-1:])])


def record_of(run: RunPaths, *, node: int = 0) -> Recording:
    """Read everything needed to replay a run.

    Raises:
        NothingRecorded: there is no journal, or it is empty.
    """
    paths = run.node(node)
    events = _ordered(facts_in(paths.journal))
    if not events:
        raise NothingRecorded(f"{run.root}: nothing was recorded here")
    samples: list[tuple[float, str, Sample]] = []
    past: list[se.Rollup] = []
    for stream in se.STREAMS:
        series = SeriesReader(paths.series, stream)
        cut = series.seek_tail(STREAM_BYTES)
        mine: list[tuple[float, str, Sample]] = []
        while found := series.read():
            mine += [(sample.t, stream, sample) for sample in found]
        if cut and stream == se.METRICS and mine:
            past = [r for r in read_rollups(paths.series, stream) if r.t + se.ROLLUP_S <= mine[0][0]]
        samples += mine
    samples.sort(key=lambda item: item[0])
    try:
        run_file: RunFile | None = read_run_file(run.run_json)
    except BadRunFile:
        run_file = None
    state = replay(events)
    facts_t = tuple(sorted({moment.t for moment in state.timeline}))
    return Recording(run, run_file, tuple(events), tuple(samples), tuple(past), facts_t)


def _ordered(events: Iterable[Event]) -> list[Event]:
    """Sort each keeper's events by time. Keepers stay in journal order, as the clock may have been set back between them."""
    lives: list[list[Event]] = [[]]
    for event in events:
        if isinstance(event, KeeperStarted):
            lives.append([])
        lives[-1].append(event)
    return [event for life in lives for event in sorted(life, key=lambda event: event.t)]


def fitting_speed(span_s: float) -> float:
    """Return the standard speed (recorded seconds per second) that plays the span in about half a minute."""
    return min(SPEEDS, key=lambda speed: abs(math.log(speed * LASTS_S / max(span_s, 1.0))))


class ReplayClock:
    """A clock of recorded time that runs `speed` times as fast as wall time and can pause or jump. Thread-safe.

    Args:
        start_t: the time at which the recording starts, in wall-clock seconds.
        end_t: the time at which the recording ends and the clock stops.
        speed: recorded seconds per second, or None to choose one that suits the length.
        monotonic: the clock that drives this one.
        waits: whether to wait at the start until `begin` is called, so that nothing plays before the user can see it.
    """

    def __init__(
        self,
        start_t: float,
        end_t: float,
        *,
        speed: float | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        waits: bool = False,
    ) -> None:
        self.start_t, self.end_t = start_t, end_t
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._speed = speed if speed is not None else fitting_speed(end_t - start_t)
        self._at = start_t
        self._since = monotonic()
        self._paused = False
        self._waits = waits

    def begin(self) -> None:
        """Start playing."""
        with self._lock:
            self._set(self._now())
            self._waits = False

    def now(self) -> float:
        """Return the current time in the recording, in wall-clock seconds."""
        with self._lock:
            return self._now()

    @property
    def speed(self) -> float:
        """The speed in recorded seconds per second."""
        return self._speed

    @property
    def paused(self) -> bool:
        """Whether the clock is stopped, either by the user or because it reached the end."""
        return self._paused or self.now() >= self.end_t

    def toggle(self) -> None:
        """Pause or resume. At the end, restart from the beginning."""
        with self._lock:
            at_end = self._now() >= self.end_t
            self._set(self.start_t if at_end else self._now())
            self._paused = not self._paused and not at_end

    def seek(self, t: float) -> None:
        """Jump to a time in the recording."""
        with self._lock:
            self._set(t)

    def faster(self, way: int) -> None:
        """Switch to the next higher (positive `way`) or lower standard speed."""
        with self._lock:
            self._set(self._now())
            if way > 0:
                self._speed = next((s for s in SPEEDS if s > self._speed), SPEEDS[-1])
            else:
                self._speed = next((s for s in reversed(SPEEDS) if s < self._speed), SPEEDS[0])

    def _set(self, t: float) -> None:
        self._at = min(max(t, self.start_t), self.end_t)
        self._since = self._monotonic()

    def _now(self) -> float:
        passed = 0.0 if self._paused or self._waits else (self._monotonic() - self._since) * self._speed
        return min(self._at + passed, self.end_t)


class ReplayReader:
    """Returns what a `reader.SnapshotReader` would have returned at the clock's current time. Not thread-safe."""

    def __init__(self, recording: Recording, clock: Callable[[], float]) -> None:
        self._recording = recording
        self._clock = clock
        self._event_times = list(accumulate((event.t for event in recording.events), max))
        self._sample_times = [t for t, _, _ in recording.samples]
        self._nearby = NearbyReader(recording.run)
        self._revision = 0
        self._last: Snapshot | None = None
        self._gathered = Gatherer()
        self._state = RunState()
        self._events = self._samples = 0
        self._at = float("-inf")
        self._rewind()

    def refresh(self) -> Snapshot:
        """Return the run's state at the clock's current time."""
        now = self._clock()
        back = now < self._at
        if back:
            self._rewind()
        events = bisect_right(self._event_times, now)
        samples = bisect_right(self._sample_times, now)
        if self._last is not None and now == self._at:
            return self._last
        self._revision += 1
        if self._last is not None and not back and (events, samples) == (self._events, self._samples):
            self._at = now
            self._last = msgspec.structs.replace(self._last, revision=self._revision, recorded_t=now)
            return self._last
        for event in self._recording.events[self._events : events]:
            self._state = fold(self._state, event)
        for _, stream, sample in self._recording.samples[self._samples : samples]:
            self._gathered.take(stream, sample)
        self._events, self._samples, self._at = events, samples, now
        self._last = self._gathered.snapshot(
            self._revision,
            # The replay uses the clock of the events, so later changes of the machine's clock do not matter.
            msgspec.structs.replace(self._state, clock_ahead_s=0.0, unknown_events=0),
            keeper_alive=self._state.keeper_pid is not None and self._state.keeper_left is None,
            gone=False,
            run_file=self._recording.run_file,
            recorded_t=now,
            nearby=self._nearby.refresh(self._state),
        )
        return self._last

    def _rewind(self) -> None:
        self._gathered, self._state = Gatherer(), RunState()
        for rollup in self._recording.past:
            self._gathered.take_rollup(rollup)
        self._events = self._samples = 0
        self._at = float("-inf")


def next_fact(facts_t: Sequence[float], now: float, way: int) -> float | None:
    """Return the time of the next or previous event, if any. Going back skips events passed less than a second ago."""
    if way > 0:
        at = bisect_right(facts_t, now + 1e-3)
        return facts_t[at] if at < len(facts_t) else None
    at = bisect_left(facts_t, now - 1.0) - 1
    return facts_t[at] if at >= 0 else None
