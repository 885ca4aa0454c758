"""Reads the current state of a run from its directory as it grows.

When nothing has changed, `SnapshotReader.refresh` costs a few fstats. Call it from a single reader
thread; the result is frozen and can be passed to any other thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from supervisor.run import series as se
from supervisor.run.heartbeat import Heartbeat, Pulse
from supervisor.run.journal import StateReader
from supervisor.run.node_files import LEADER
from supervisor.run.ownership import keeper_is_alive, newer_notice, place_of
from supervisor.run.paths import NodePaths, RunPaths
from supervisor.run.series import SeriesReader, read_rollups
from supervisor.run.state import RunState
from supervisor.views.model.cause_context import NearbyReader
from supervisor.views.model.gather import Gatherer, Readings
from supervisor.views.model.snapshot import Node, Snapshot

if TYPE_CHECKING:
    from supervisor.run.runfile import RunFile

# The newest part of a stream, read line by line when a run is opened. Older data comes from the
# one-minute roll-ups, so that a run of seven days opens at once.
TAIL_BYTES = 4 << 20
# For a watched log: the samples of about 4 GB, read in 3 s.
OBSERVED_BYTES = 16 << 20
# Read this much older data, in pieces from the first sample on: 20,000 samples for 2,000 points of a curve.
SPREAD_BYTES = 4 << 20
LIVENESS_S = 1.0
# Interval for reading the other nodes; longer for many nodes, to send a file server about 200 requests a second at most.
LOOK_S = 1.0
LOOK_PER_NODE_S = 0.03
# Read this much of each stream of another node at the start: about ten readings of eight ranks.
NODE_TAIL_BYTES = 1 << 14


class SnapshotReader:
    """Reads a node of a run and, if that node leads a multi-node run, all the others. Not thread-safe.

    Args:
        run: the run directory, which need not exist yet and may vanish.
        node: the node whose journal and series to read.
        monotonic: clock that paces checks of the keeper's lock.
        journal: the node's journal, if it has already been read.
        presence: tells a live keeper that a user who can act is watching, or None for a read-only view.
    """

    def __init__(
        self,
        run: RunPaths,
        *,
        node: int = 0,
        monotonic: Callable[[], float] = time.monotonic,
        journal: StateReader | None = None,
        presence: Heartbeat | None = None,
    ) -> None:
        self._presence = presence
        self._run = run
        self._node = run.node(node)
        self._monotonic = monotonic
        self._state = journal or StateReader(self._node.journal, tail_first=True)
        self._series = {name: SeriesReader(self._node.series, name) for name in se.STREAMS}
        self._gathered = Gatherer()
        self._nearby = NearbyReader(run)
        self._nodes = NodesReader(run, monotonic=monotonic)
        self._run_file: RunFile | None = None
        self._opened = False
        self._alive = False
        self._alive_due = float("-inf")
        self._was_gone = False
        self._misplaced = ""
        self._revision = 0
        self._last: Snapshot | None = None

    def look_again(self) -> None:
        """Make the next `refresh` repeat the checks that normally run once a second."""
        self._alive_due = float("-inf")

    def close(self) -> None:
        """Stop reading."""
        if self._presence is not None:
            self._presence.remove()

    def refresh(self) -> Snapshot:
        """Read new data and return the current state of the run.

        `Snapshot.revision` stays the same if nothing has changed.
        """
        before = self._state.state
        self._state.refresh()
        changed = self._state.state is not before
        if not self._opened:
            changed = self._opened = True
            self._open_series()
        changed |= self._read_series()
        if self._state.state.nodes:
            changed |= self._nodes.refresh(self._state.state)
        nearby = self._nearby.refresh(self._state.state)
        changed |= self._look_around() or (self._last is not None and nearby is not self._last.nearby)
        if changed or self._last is None:
            self._revision += 1
            self._last = self._gathered.snapshot(
                self._revision,
                self._state.state,
                keeper_alive=self._alive,
                gone=self._was_gone,
                run_file=self._run_file,
                nearby=nearby,
                misplaced=self._misplaced,
            )
            if self._nodes.nodes:
                self._last = self._nodes.beside(self._last, self._node)
        return self._last

    def _open_series(self) -> None:
        """Seek large streams to their tail and fill in older data from the rollups."""
        for name, reader in self._series.items():
            if self._state.state.mode == "observed" and name in {se.METRICS, se.RANKS}:
                # In a watched log, roll-up minutes are the times of reading, which do not make a curve.
                if reader.seek_tail(OBSERVED_BYTES) and name == se.METRICS:
                    for sample in reader.before(SPREAD_BYTES):
                        self._gathered.take(name, sample)
            elif reader.seek_tail(TAIL_BYTES) and name == se.METRICS:
                first = reader.read(limit_bytes=1 << 20)
                until = first[0].t if first else float("inf")
                for rollup in read_rollups(self._node.series, name):
                    if rollup.t + se.ROLLUP_S <= until:
                        self._gathered.take_rollup(rollup)
                for sample in first:
                    self._gathered.take(name, sample)

    def _read_series(self) -> bool:
        changed = False
        for name, reader in self._series.items():
            while samples := reader.read():
                changed = True
                for sample in samples:
                    self._gathered.take(name, sample)
        return changed

    def _look_around(self) -> bool:
        """Check for changes that file growth does not reveal: in the keeper, the run directory or run.json."""
        now = self._monotonic()
        if now < self._alive_due:
            return False
        self._alive_due = now + LIVENESS_S
        gone = not self._run.root.is_dir()
        place = place_of(self._run)
        misplaced = self._misplaced if gone else place.refusal
        alive = not misplaced and keeper_is_alive(self._node.lock)
        misplaced = misplaced or newer_notice(place, self._state.state.newer_version)
        if self._presence is not None and alive and self._state.state.mode == "launched":
            self._presence.beat(now)
        changed = (alive, gone, misplaced) != (self._alive, self._was_gone, self._misplaced)
        self._alive, self._was_gone, self._misplaced = alive, gone, misplaced
        if self._run_file is None and self._run.run_json.exists():
            from supervisor.run.runfile import BadRunFile, read_run_file

            try:
                self._run_file = read_run_file(self._run.run_json)
                changed = True
            except BadRunFile:
                self._run_file = None  # a view then works from the journal alone
        return changed


# -- the other nodes of a run -----------------------------------------------------------------------------


class _OtherNode:
    """A node other than node 0: its journal state and latest readings, without history."""

    def __init__(self, number: int, run: RunPaths) -> None:
        self.number, self.paths = number, run.node(number)
        self.pulse = Pulse(self.paths.heartbeat)
        self.view: Node | None = None
        self._journal = StateReader(self.paths.journal)
        self._series: dict[str, SeriesReader] = {}
        self._readings = Readings(with_history=False)

    def look(self, beat_t: float | None) -> bool:
        """Read new data and return whether `view` changed. `beat_t` is when the node's heartbeat last moved."""
        changed = self.view is None or self.view.beat_t != beat_t
        while self._journal.refresh(limit_bytes=1 << 20):
            changed = True
        for name in (se.GPU, se.HOST, se.RANKS):
            if name not in self._series:
                self._series[name] = SeriesReader(self.paths.series, name)
                self._series[name].seek_tail(NODE_TAIL_BYTES)
            for sample in self._series[name].read(limit_bytes=1 << 20):
                changed = True
                self._readings.take(name, sample)
        if changed:
            state = self._journal.state
            self.view = Node(
                number=self.number,
                paths=self.paths,
                state=state,
                ranks=self._readings.ranks(state.attempt.number if state.attempt is not None else 0),
                gpus=self._readings.gpus(),
                machine=self._readings.machine(),
                beat_t=beat_t,
            )
        return changed


class NodesReader:
    """Follows every node listed in node 0's journal.

    Args:
        run: the run directory.
        monotonic: clock that paces reads.
        wall: this machine's clock, used for heartbeat ages.
    """

    def __init__(
        self,
        run: RunPaths,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._run = run
        self._monotonic = monotonic
        self._wall = wall
        self._others: dict[int, _OtherNode] = {}
        self._leader = Pulse(run.node(LEADER).heartbeat)
        self._due = float("-inf")
        self.leader_beat_t: float | None = None
        self.nodes: tuple[Node, ...] = ()

    def refresh(self, leader: RunState) -> bool:
        """Read all nodes, at most once a second. Return whether there is anything new to show. `leader` is node 0's state."""
        new = leader.nodes.keys() - self._others.keys() - {LEADER}
        self._others.update({number: _OtherNode(number, self._run) for number in new})
        now = self._monotonic()
        if not self._others or (now < self._due and not new):
            return False
        self._due = now + max(LOOK_S, LOOK_PER_NODE_S * len(self._others))
        before, self.leader_beat_t = self.leader_beat_t, self._beat(self._leader, now, leader)
        changed = [other.look(self._beat(other.pulse, now, leader)) for other in self._others.values()]
        self.nodes = tuple(
            view for _, each in sorted(self._others.items()) if (view := each.view) is not None
        )
        return any(changed) or before != self.leader_beat_t

    def beside(self, snapshot: Snapshot, paths: NodePaths) -> Snapshot:
        """Return node 0's snapshot with all nodes added. `paths` are node 0's paths."""
        own = Node(
            number=LEADER,
            paths=paths,
            state=snapshot.state,
            ranks=snapshot.ranks,
            gpus=snapshot.gpus,
            machine=snapshot.machine,
            beat_t=self.leader_beat_t,
        )
        return replace(snapshot, nodes=(own, *self.nodes))

    def _beat(self, pulse: Pulse, now: float, leader: RunState) -> float | None:
        """Return when a heartbeat last moved, rounded to whole seconds so that jitter does not count as a change."""
        pulse.look(now)
        return round(self._wall() - pulse.silent_s(now)) if pulse.moved() and not leader.is_over else None
