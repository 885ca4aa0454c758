"""The run context shared by the keeper's components: paths, job, clock, journal, and the journal's state and first events."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from supervisor import __version__
from supervisor.cluster.scheduler import scheduler_of
from supervisor.job.config.script_settings import is_plain_python
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.run import events as ev
from supervisor.run.fold import fold, merge_progress
from supervisor.run.journal import SNAPSHOT_EVERY, JournalWriter, read_state, without_secrets, write_snapshot
from supervisor.run.paths import NodePaths, RunPaths
from supervisor.run.records import Finding, FindingLevel
from supervisor.run.runfile import RunFile
from supervisor.run.summaries import remember
from supervisor.sources.processes import ProcessId, boot_id
from supervisor.text.redact import Redactor

log = logging.getLogger("stoker.keeper")

MOST_WAITING = 10_000
"""Maximum number of events kept while the journal cannot be written: three hours at one per second, 1 KB each. Beyond that,
progress and phases are merged into the last waiting event of their kind.
"""
APART_S = ((16 << 20, 1.0), (48 << 20, 10.0), (1 << 62, 60.0))
"""Seconds between journaled reports of a repeating event, by maximum journal size. Progress adds 20 MB on the first day (250 bytes a second;
86 MB at worst, with 32 minima each), 2 MB a day for the next two weeks, then 0.4 MB a day. Phases and checkpoints add the same
amount.
"""
LEAST_SNAPSHOT_BYTES = 1 << 16
"""A shorter journal can be folded as fast as its snapshot can be read."""


class Ledger:
    """A node's journal and state. Only the keeper that holds the lock may have one.

    `redactor` removes secrets from each event before it is written and folded, so a replay yields the same state.

    Attributes:
        state: the fold of all events so far.
        adopted: whether another keeper started this journal.
        trouble: why events are waiting in memory; empty while they can be written.

    Raises:
        OSError: the journal cannot be opened.
    """

    def __init__(self, node: NodePaths, redactor: Redactor | None = None) -> None:
        self.redactor = redactor or Redactor()
        self._node = node
        self.state = read_state(node.journal)
        self.adopted = self.state.started_t is not None
        self._journal = JournalWriter(node.journal)
        self._path, self._snapshot_due = node.journal, self.size + SNAPSHOT_EVERY
        self.trouble, self._closed = "", False
        self._unwritten: deque[tuple[ev.Event, bool]] = deque()
        self._merged = 0

    @property
    def size(self) -> int:
        """The journal's size in bytes, or 0 if unknown."""
        try:
            return self._journal.size
        except OSError:
            return 0

    @property
    def apart_s(self) -> float:
        """Minimum number of seconds between reports of a repeating event. It grows with the journal. Only the latest report counts."""
        size = self.size
        return next(apart_s for below, apart_s in APART_S if size < below)

    def astray(self) -> str:
        """Return what happened to the journal if the run's folder was moved or deleted, or "" if it is in place."""
        return self._journal.astray()

    def emit(self, event: ev.Event, *, durable: bool = False) -> None:
        """Journal an event, then fold it. If the disk is full or its server is unreachable, write it later, in order.

        Raises:
            OSError: the journal is closed, so another process may be writing to it.
        """
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        event = without_secrets(event, self.redactor)
        self._keep(event, durable=durable)
        self.flush()
        self.state = fold(self.state, event)
        if (size := self.size) >= self._snapshot_due:
            self._snapshot_due = size + SNAPSHOT_EVERY
            self._write_snapshot(size)

    def _write_snapshot(self, size: int) -> None:
        """Snapshot a journal of `size` bytes if every event has been written. Without a snapshot, readers are just slower."""
        if not self._unwritten:
            with contextlib.suppress(OSError):
                write_snapshot(self._path, self.state, inode=self._journal.inode, offset=size)

    def _keep(self, event: ev.Event, *, durable: bool) -> None:
        if len(self._unwritten) >= MOST_WAITING and isinstance(event, (ev.Progress, ev.PhaseChanged)):
            # Progress and phases alternate, so the last waiting event of a kind is among the two newest.
            for at in (-1, -2):
                known = self._unwritten[at][0]
                if type(known) is type(event) and getattr(known, "attempt", None) == event.attempt:
                    if isinstance(known, ev.Progress) and isinstance(event, ev.Progress):
                        event = merge_progress(known, event)
                    self._unwritten[at] = (event, durable)
                    self._merged += 1
                    return
        self._unwritten.append((event, durable))

    def flush(self) -> None:
        """Write the events that could not be written earlier."""
        while self._unwritten:
            try:
                self._journal.append(self._unwritten[0][0], durable=self._unwritten[0][1])
            except OSError as error:
                why = error.strerror or os.strerror(error.errno or 0)
                if why != self.trouble:
                    log.error("journal: %s: events wait in memory until they can be written", why)
                self.trouble = why
                return
            self._unwritten.popleft()
        if self.trouble:
            lost = (
                f"{self._merged} reports of progress or phase were merged"
                if self._merged
                else "no event is missing"
            )
            log.warning("journal: it can be written again: %s", lost)
            self.trouble, self._merged = "", 0

    def close(self) -> None:
        """Close the journal. If the run has ended, cache its summary for the run list."""
        self.flush()
        if self._unwritten:
            log.error("journal: %d events could not be written: %s", len(self._unwritten), self.trouble)
        size = self.size  # own writes only, because another keeper may continue
        self._journal.close()
        if size >= LEAST_SNAPSHOT_BYTES and not self._closed:
            self._write_snapshot(size)
        self._closed = True
        if not self._unwritten:
            remember(self._node, self.state)


@dataclass(frozen=True, slots=True)
class RunContext:
    """A run's location, its job, and the destination for its events.

    `record` is the job and its initial settings, and `env` is the user's environment. `ledger` is the journal and its
    folded state. `others` are the other nodes whose evidence counts for a verdict. `same_boot` tells whether pids and
    start times from before this keeper are still valid.
    """

    run: RunPaths
    node: NodePaths
    record: RunFile
    env: Mapping[str, str]
    clock: Clock
    ledger: Ledger
    others: tuple[int, ...] = ()
    same_boot: bool = True

    @property
    def mark(self) -> str:
        """The folder that marks this keeper's processes; see `process.members`."""
        return str(self.node.root if self.record.settings.shared else self.run.root)

    def advise(self, attempt: int, code: str, text: str) -> None:
        """Journal an advisory about an attempt."""
        self.ledger.emit(ev.Advisory(t=self.clock.wall(), attempt=attempt, code=code, text=text))


# -- the first events of a keeper: the run, the keeper, and the pre-launch findings ---------------------


def opening(
    context: RunContext, keeper: ProcessId, findings: tuple[Finding, ...] = (), *, continued_by: str = ""
) -> Iterator[ev.Event]:
    """Yield the opening events for a keeper whose run is new, adopted, or being continued by the user `continued_by`."""
    record, job, now = context.record, context.record.job, context.clock.wall()
    adopted = context.ledger.adopted
    if not adopted:
        yield ev.RunStarted(
            t=now,
            run_id=context.run.run_id,
            name=job.name,
            mode="launched",
            host=record.host,
            total_steps=job.total_steps,
            world_size=world_size_of(job),
        )
        if (known := job.answered) is not None:
            yield ev.BatchAnswered(
                t=now, question=known.question, value=known.value, batch=job.batch, day=known.day
            )
    yield ev.KeeperStarted(
        t=now,
        pid=keeper.pid,
        boot_id=boot_id(),
        host=socket.gethostname() if adopted else None,
        slurm_job=scheduler_of(context.env).job,
        continued_by=continued_by,
        start_time=keeper.start_time,
        version=__version__,
        adopted=adopted,
        interactive=record.settings.interactive,
    )
    for finding in findings:
        yield ev.PreflightFound(t=now, finding=finding)


def world_size_of(job: JobSpec) -> int | None:
    """Return the total number of ranks in the job, or None if unknown. For a user's own launcher, use its arguments."""
    if job.batch is not None and job.batch.ranks_known:
        return job.batch.world_size
    if job.world_size is not None:
        return job.world_size
    if job.entry_kind is EntryKind.COMMAND and not is_plain_python(job):
        return None
    return job.nproc_per_node * (int(job.nnodes) if job.nnodes.isdecimal() else 1)


def later_findings(context: RunContext) -> list[Finding]:
    """Run the checks that cannot block a launch, and return their warnings."""
    from supervisor.preflight.checks import beside, run_checks
    from supervisor.preflight.context import CheckContext
    from supervisor.preflight.interpreter import Interpreter

    record = context.record
    found = Interpreter(
        path=record.interpreter,
        version=record.python_version or "",
        torch_version=record.torch_version,
        why="",
        torch_cuda=record.torch_cuda,
        torch_hip=record.torch_hip,
    )
    checked = run_checks(beside(), CheckContext(record.job, context.run.root.parent, context.env, found))
    return [finding for finding in checked if finding.level is not FindingLevel.OK]
