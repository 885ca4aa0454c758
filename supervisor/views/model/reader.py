"""The current state of a run, read from its directory as it grows.

`SnapshotReader.refresh` costs a few fstats when nothing changed; it is meant for one reading thread. Its
result is frozen and may be passed to any other thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from supervisor.run import series as se
from supervisor.run.control import Presence
from supervisor.run.journal import StateReader
from supervisor.run.ownership import keeper_is_alive, newer_notice, place_of
from supervisor.run.paths import RunPaths
from supervisor.run.series import SeriesReader, read_rollups
from supervisor.views.model.cause_context import NearbyReader
from supervisor.views.model.gather import Gatherer
from supervisor.views.model.snapshot import Snapshot

if TYPE_CHECKING:
    from supervisor.run.runfile import RunFile
    from supervisor.views.model.other_nodes import NodesReader

# The newest part of a stream, read line by line when a run is opened; older data comes from the
# one-minute roll-ups, so that a run of seven days opens at once.
TAIL_BYTES = 4 << 20
# For a watched log: the samples of some 4 GB, read in 3 s.
OBSERVED_BYTES = 16 << 20
# Of older data, this much, in pieces from the first sample on: 20,000 samples for some 2,000 points of a curve.
SPREAD_BYTES = 4 << 20
# Some 1,300 samples, read within 25 ms and 1 MiB; the rest comes with the next refresh.
PIECE_BYTES = 1 << 17
LIVENESS_S = 1.0


class SnapshotReader:
    """Follows one node of a run, and the others if it leads several. Not thread-safe: one thread reads.

    Args:
        run: the run directory; it may not exist yet, or vanish.
        node: the node whose journal and series are read.
        monotonic: clock for the interval of checking the keeper's lock.
        journal: the node's, if it was already read.
        presence: tells a live keeper that somebody who can act is watching; None: nobody can.
    """

    def __init__(
        self,
        run: RunPaths,
        *,
        node: int = 0,
        monotonic: Callable[[], float] = time.monotonic,
        journal: StateReader | None = None,
        presence: Presence | None = None,
    ) -> None:
        self._presence = presence
        self._run = run
        self._node = run.node(node)
        self._monotonic = monotonic
        self._state = journal or StateReader(self._node.journal, tail_first=True)
        self._series = {name: SeriesReader(self._node.series, name) for name in se.STREAMS}
        self._gathered = Gatherer()
        self._nearby = NearbyReader(run)
        self._nodes: NodesReader | None = None
        self._run_file: RunFile | None = None
        self._opened = False
        self._alive = False
        self._alive_due = float("-inf")
        self._was_gone = False
        self._misplaced = ""
        self._revision = 0
        self._last: Snapshot | None = None

    def folders(self) -> set[str]:
        """The folders in which facts are written."""
        return {str(self._node.root), str(self._node.series)}

    def look_again(self) -> None:
        """At the next `refresh`, also check what is otherwise checked once a second."""
        self._alive_due = float("-inf")

    def close(self) -> None:
        """Stop reading."""
        if self._presence is not None:
            self._presence.leave()

    def refresh(self) -> Snapshot:
        """Read new data and return the current state of the run.

        `Snapshot.revision` is the same as before when nothing changed.
        """
        before = self._state.state
        self._state.refresh()
        changed = self._state.state is not before
        if not self._opened:
            changed = self._opened = True
            self._open_series()
        changed |= self._read_series()
        if self._state.state.nodes:
            changed |= self._look_at_nodes()
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
            if self._nodes is not None and self._nodes.nodes:
                self._last = self._nodes.beside(self._last, self._node)
        return self._last

    def _look_at_nodes(self) -> bool:
        """Read the other nodes; returns whether anything changed there."""
        if self._nodes is None:
            from supervisor.views.model.other_nodes import NodesReader  # only runs on several nodes need it

            self._nodes = NodesReader(self._run, monotonic=self._monotonic)
        return self._nodes.refresh(self._state.state)

    def _open_series(self) -> None:
        """Position the readers: large streams at their tail, with the past from the roll-ups."""
        for name, reader in self._series.items():
            if self._state.state.mode == "observed" and name in {se.METRICS, se.RANKS}:
                # Its minutes are those in which it was read, which make no curve.
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
        """Read everything at first; later a piece of each stream, so that log lines never wait for old charts."""
        changed = False
        for name, reader in self._series.items():
            while samples := reader.read(limit_bytes=PIECE_BYTES):
                changed = True
                for sample in samples:
                    self._gathered.take(name, sample)
                if self._last is not None:
                    break
        return changed

    def _look_around(self) -> bool:
        """Check what no file growth shows: whether a keeper is alive, whether the folder exists, run.json."""
        now = self._monotonic()
        if now < self._alive_due:
            return False
        self._alive_due = now + LIVENESS_S
        gone = not self._run.root.is_dir()
        place = place_of(self._run)
        misplaced = self._misplaced if gone else place.notice
        alive = not misplaced and keeper_is_alive(self._node.lock)
        misplaced = misplaced or newer_notice(place, self._state.state.newer_version)
        if self._presence is not None and alive and self._state.state.mode == "launched":
            self._presence.refresh(now)
        changed = (alive, gone, misplaced) != (self._alive, self._was_gone, self._misplaced)
        self._alive, self._was_gone, self._misplaced = alive, gone, misplaced
        if self._run_file is None and self._run.run_json.exists():
            from supervisor.run.runfile import BadRunFile, read_run_file

            try:
                self._run_file = read_run_file(self._run.run_json)
                changed = True
            except BadRunFile:
                self._run_file = None  # a view works from the journal without it
        return changed
