"""The sensors of one attempt: its logs, its telemetry, GPUs and processes, all onto one queue.

The collector knows the attempt's files and nothing of the run's state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.monitoring.log_monitor import LogKey, LogKind, LogWatch
from supervisor.keeper.monitoring.observations import Observation, RankGone
from supervisor.keeper.monitoring.sensors import Sensors
from supervisor.run.arrivals import ArrivalWriter
from supervisor.run.events import RankStarted
from supervisor.run.paths import AttemptPaths
from supervisor.run.state import AttemptState
from supervisor.sources.processes import ExitWatch, ProcessId
from supervisor.sources.signature_files import Engine
from supervisor.text.prefixes import Origin

AGENT = "agent.log"
# torchrun 1.9 and later logs one of these before it waits for the workers that it ends
# (torch/distributed/elastic/multiprocessing/api.py).
ENDING = (b"closing signal", b"failed (exitcode")
OWN_SIGNAL = (b"Received Signals.SIG", b"death signal")


class Collector:
    """Started once, told about ranks as they appear, and stopped once its `logs` are read to their end."""

    def __init__(
        self,
        paths: AttemptPaths,
        *,
        queue: SimpleQueue[Observation],
        clock: Clock,
        interval_s: float,
        engine: Callable[[], Engine],
        job: JobSpec,
        engine_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._paths = paths
        kind = job.entry_kind
        self._one_node = job.nnodes == "1"
        self._agent_kind = LogKind.RANK if kind is EntryKind.COMMAND else LogKind.AGENT
        self._ranks: dict[int, int] = {}
        self._agent_ending = threading.Event()
        self._stop = threading.Event()
        self._sensors = Sensors(self._stop, queue.put, clock, interval_s=interval_s, disk=str(paths.root))
        self._exits = ExitWatch(lambda local_rank, code: queue.put(RankGone(clock.wall(), local_rank, code)))
        self.logs = LogWatch(
            self._stop,
            put=queue.put,
            waiting=queue.qsize,
            clock=clock,
            engine=engine,
            rank_of=self._rank_of,
            measure=kind is not EntryKind.TRAINER,
            rules=job.metric_rules,
            on_agent=self._on_agent,
            engine_ready=engine_ready,
            arrived=self._on_arrival,
            read_before=lambda name: self._arrivals.end_of(name) if self._arrivals is not None else 0,
        )
        self._arrivals: ArrivalWriter | None = None

    def start(self) -> None:
        """Start the threads."""
        self._arrivals = ArrivalWriter(self._paths)
        self.logs.follow(LogKey(AGENT, self._agent_kind, Origin()), str(self._paths.agent_log))
        self.logs.start()
        self._sensors.start()

    def know(self, view: AttemptState) -> None:
        """Follow what an earlier keeper had found."""
        for rank in view.ranks.values():
            fact = RankStarted(
                t=0.0,
                attempt=view.number,
                local_rank=rank.local_rank,
                pid=rank.pid,
                start_time=rank.start_time,
                rank=rank.rank,
                stdout=rank.stdout,
                stderr=rank.stderr,
            )
            self.add_rank(fact)

    def add_rank(self, fact: RankStarted) -> None:
        """Watch a rank's process and its log files, which were found."""
        if fact.rank is not None:
            self._ranks[fact.local_rank] = fact.rank
        if fact.pid is not None and fact.start_time is not None:
            key = str(fact.rank if fact.rank is not None else fact.local_rank)
            self._sensors.watch(key, ProcessId(fact.pid, fact.start_time))
            self._exits.watch(fact.local_rank, ProcessId(fact.pid, fact.start_time))
        for stream, name in (("stdout", fact.stdout), ("stderr", fact.stderr)):
            if name is not None:
                origin = Origin(local_rank=fact.local_rank, stream=stream)
                self.logs.follow(LogKey(name, LogKind.RANK, origin), str(self._paths.root / name))

    def look(self) -> None:
        """Follow new files of telemetry and measurements."""
        if not self._paths.telemetry.is_dir():
            return
        for path in self._paths.telemetry.glob("*.jsonl"):
            for stem, kind in (("rank", LogKind.TELEMETRY), ("measured", LogKind.MEASURED)):
                digits = path.stem.removeprefix(stem)
                if digits != path.stem and digits.isdigit():
                    key = LogKey(f"telemetry/{path.name}", kind, Origin(rank=int(digits)))
                    self.logs.follow(key, str(path))

    def agent_is_ending(self) -> bool:
        """Whether torchrun has logged that it ends its workers because one failed (and not because of a signal)."""
        return self._agent_ending.is_set()

    def stop(self) -> None:
        """End the threads."""
        self._stop.set()
        self._exits.close()
        self.logs.close()
        if self._arrivals is not None:
            self._arrivals.close()
        self._sensors.join()

    def _on_arrival(self, log: str, end: int, since: float, t: float) -> None:
        if self._arrivals is not None:
            self._arrivals.note(log, end, since, t)

    def _on_agent(self, data: bytes) -> None:
        if any(word in data for word in ENDING) and not any(word in data for word in OWN_SIGNAL):
            self._agent_ending.set()

    def _rank_of(self, origin: Origin) -> int | None:
        if origin.rank is not None:
            return origin.rank
        if origin.local_rank is None:
            return None
        return self._ranks.get(origin.local_rank, origin.local_rank if self._one_node else None)
