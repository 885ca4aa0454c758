"""The first events of a keeper: the run, the keeper, and the pre-launch findings."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from supervisor import __version__
from supervisor.cluster.scheduler import scheduler_of
from supervisor.job.config.script_settings import is_plain_python
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.base.background import Background
from supervisor.keeper.base.ledger import RunContext
from supervisor.run import events as ev
from supervisor.run.records import Finding, FindingLevel
from supervisor.sources.processes import ProcessId, boot_id


def opening(
    context: RunContext, keeper: ProcessId, findings: tuple[Finding, ...] = (), *, continued_by: str = ""
) -> Iterator[ev.Event]:
    """Yield the events of a keeper that starts on a run: new, adopted, or `continued_by` a person."""
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
    """Return the number of ranks in the whole job from the arguments to the user's own launcher, or None if unknown."""
    if job.batch is not None and job.batch.ranks_known:
        return job.batch.world_size
    if job.world_size is not None:
        return job.world_size
    if job.entry_kind is EntryKind.COMMAND and not is_plain_python(job):
        return None
    return job.nproc_per_node * (int(job.nnodes) if job.nnodes.isdecimal() else 1)


class LaterChecks:
    """Runs checks that never refuse a launch in parallel with the launcher, so the start does not wait for them."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._checking: Background[list[Finding]] = Background("stoker-checks")

    def begin(self) -> None:
        """Start the checks in a thread, unless checks are off."""
        if self._context.record.settings.checks:
            self._checking.start(self._run)

    def journal(self) -> None:
        """Journal the relevant warnings once the checks are done."""
        for finding in self._checking.poll() or ():
            if finding.level is not FindingLevel.OK:
                self._context.ledger.emit(ev.PreflightFound(t=self._context.clock.wall(), finding=finding))

    def _run(self) -> list[Finding]:
        from supervisor.preflight.checks import beside, run_checks
        from supervisor.preflight.context import CheckContext
        from supervisor.preflight.interpreter import Interpreter

        record = self._context.record
        found = Interpreter(
            path=record.interpreter,
            version=record.python_version or "",
            torch_version=record.torch_version,
            why="",
            torch_cuda=record.torch_cuda,
            torch_hip=record.torch_hip,
        )
        context = CheckContext(record.job, self._context.run.root.parent, self._context.env, found)
        return run_checks(beside(), context)
