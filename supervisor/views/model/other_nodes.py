"""The nodes of a run other than node 0, as a view shows them: each journal's state and newest readings, no history.

They are read together, a little less often if there are many, so that a screen of 64 nodes stays quick.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec.structs import replace

from supervisor.run import series as se
from supervisor.run.journal import StateReader
from supervisor.run.node_files import LEADER, Pulse
from supervisor.run.paths import NodePaths, RunPaths
from supervisor.run.series import SeriesReader
from supervisor.run.state import RunState
from supervisor.views.model.gather import Readings
from supervisor.views.model.snapshot import Node, Snapshot

# Interval of reading all nodes; longer for many nodes, so that a file server gets at most some 200 requests a second.
LOOK_S = 1.0
LOOK_PER_NODE_S = 0.03
PIECE_BYTES = 1 << 20
# Of each stream at the start: about ten readings of eight ranks.
TAIL_BYTES = 1 << 14
STREAMS = (se.GPU, se.HOST, se.RANKS)


class _OtherNode:
    """One node other than node 0."""

    def __init__(self, number: int, run: RunPaths) -> None:
        self.number = number
        self.paths = run.node(number)
        self.pulse = Pulse(self.paths)
        self._journal = StateReader(self.paths.journal)
        self._series: dict[str, SeriesReader] = {}
        self._readings = Readings(with_history=False)

    def look(self) -> bool:
        """Read new data; returns whether there was any."""
        changed = False
        while self._journal.refresh(limit_bytes=PIECE_BYTES):
            changed = True
        for name in STREAMS:
            reader = self._series.get(name)
            if reader is None:
                reader = self._series[name] = SeriesReader(self.paths.series, name)
                reader.seek_tail(TAIL_BYTES)
            for sample in reader.read(limit_bytes=PIECE_BYTES):
                changed = True
                self._readings.take(name, sample)
        return changed

    def view(self, beat_t: float | None) -> Node:
        """The current state of the node."""
        state, attempt = self._journal.state, self._journal.state.attempt
        return Node(
            number=self.number,
            paths=self.paths,
            state=state,
            ranks=self._readings.ranks(attempt.number if attempt is not None else 0),
            gpus=self._readings.gpus(),
            machine=self._readings.machine(),
            beat_t=beat_t,
        )


class NodesReader:
    """Follows the nodes that node 0's journal names.

    Args:
        run: the run directory.
        monotonic: clock for the reading interval.
        wall: this machine's clock, for ages of heartbeats.
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
        self._leader = Pulse(run.node(LEADER))
        self._due = float("-inf")
        self.leader_beat_t: float | None = None
        self._views: dict[int, Node] = {}
        self.nodes: tuple[Node, ...] = ()

    def refresh(self, leader: RunState) -> bool:
        """Read all of them once a second, or less often; returns whether anything new can be shown. `leader`: node 0's state."""
        for number in leader.nodes.keys() - self._others.keys() - {LEADER}:
            self._others[number] = _OtherNode(number, self._run)
        if not self._others:
            return False
        now = self._monotonic()
        rest_s = max(LOOK_S, LOOK_PER_NODE_S * len(self._others))
        if now < self._due and len(self._views) == len(self._others):
            return False
        self._due = now + rest_s
        self._leader.look(now)
        beat_t, self.leader_beat_t = self.leader_beat_t, self._beat(self._leader, now, leader)
        has_news = beat_t != self.leader_beat_t
        for number, other in self._others.items():
            news, known = other.look(), self._views.get(number)
            other.pulse.look(now)
            beat_t = self._beat(other.pulse, now, leader)
            if news or known is None or known.beat_t != beat_t:
                self._views[number] = other.view(beat_t)
                has_news = True
        self.nodes = tuple(node for _, node in sorted(self._views.items()))
        return has_news

    def beside(self, snapshot: Snapshot, paths: NodePaths) -> Snapshot:
        """The snapshot of node 0 with all nodes. `paths`: node 0's."""
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
        """When a heartbeat last moved, in whole seconds, so that a slightly later reading is no change."""
        if leader.is_over:
            return None
        return round(self._wall() - pulse.silent_s(now)) if pulse.moved() else None
