"""Makes the next launch plan from the job and the journal, with the changes of all attempts so far.

Everything here is derived from run.json and the folded state, so that a keeper that adopts a run plans
exactly what the dead one would have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import msgspec

from supervisor.job.batch import BatchChange, BatchSpec, with_micro_batch
from supervisor.job.config.files import read_values
from supervisor.job.errors import JobError
from supervisor.job.knobs.measured_knobs import RankProcess
from supervisor.job.knobs.set_batch import why_not_changeable, why_size_unknown
from supervisor.job.knobs.setting_names import Place, Scalar, config_file, is_argument, place_of
from supervisor.job.launch.plan import (
    CheckpointCopy,
    LaunchPlan,
    build_plan,
    diff_lines,
    plan_as_record,
    wants_port,
)
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.base.control_input import Refused
from supervisor.keeper.base.job_secrets import require_nothing_hidden, with_hidden_words, with_secrets
from supervisor.preflight.network import free_port
from supervisor.run.control import RequestArgs
from supervisor.run.events import CheckpointCommitted, Decided
from supervisor.run.fold import fold
from supervisor.run.jsonl import NOT_DECODED
from supervisor.run.next_job import NextJob, next_job
from supervisor.run.paths import AttemptPaths, NodePaths, RunPaths, make_own, replace_file
from supervisor.run.records import Action, Decision, DecisionKind, FailureClass, Reason, SpecChange, Verdict
from supervisor.run.regular import read_regular, read_text
from supervisor.run.runfile import RunFile
from supervisor.run.state import Backoff, HeldOpen, RunState
from supervisor.text.redact import redact, redact_argv

Pairs: TypeAlias = tuple[tuple[str, str], ...]


class BadChange(Refused):
    """A change that a person requested is impossible: one line."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """How the next launch continues.

    Attributes:
        settings: the settings for it.
        switch: whether the resume flag is set, as `build_plan` takes it.
        copy: a changed copy of the checkpoint, made before the launch.
        checkpoint: the one to continue from, if any.
    """

    settings: tuple[tuple[str, str], ...] = ()
    switch: bool | None = None
    copy: CheckpointCopy | None = None
    checkpoint: CheckpointCommitted | None = None

    @property
    def at(self) -> int | None:
        """Its step."""
        return self.checkpoint.step if self.checkpoint is not None else None


def plan_next(
    record: RunFile, state: RunState, run: RunPaths, paths: AttemptPaths, env: Mapping[str, str]
) -> LaunchPlan:
    """The plan of attempt ``len(state.attempts) + 1``.

    Raises:
        JobError: the changes cannot be applied to this job, no port is free, or a secret is unknown here.
    """
    known = with_secrets(record.job, env)
    now = next_job(known, state)
    job = replace(now.job, entry_args=with_hidden_words(now.job.entry_args, known.entry_args))
    attempt = len(state.attempts) + 1
    point = next_resume_point(record, state, run, now, env)
    plan = plan_with(
        record,
        job,
        attempt,
        run,
        paths,
        env,
        batch=now.batch,
        changed_env=tuple(now.env.items()),
        set_args=settings_of(now, point),
        resume=point.switch,
        resume_at=point.at,
        port=free_port() if wants_port(job) else None,
        rank=measured_rank(state),
    )
    return replace(plan, copy=point.copy)


def measured_rank(state: RunState) -> RankProcess | None:
    """The process of a rank of the newest attempt that reported one."""
    for view in reversed(state.attempts):
        if view.measured is not None and view.measured.argv:
            return RankProcess(view.measured.argv, view.measured.words)
    return None


def next_resume_point(
    record: RunFile, state: RunState, run: RunPaths, now: NextJob, env: Mapping[str, str]
) -> ResumePoint:
    """How the next attempt continues; the first one does not."""
    if not state.attempts:
        return ResumePoint()
    from supervisor.keeper.planning.resume_points import resume_point  # not before a first launch

    return resume_point(record, state, run, now, env)


def settings_of(now: NextJob, point: ResumePoint) -> Pairs:
    """The settings of the next command line, from changes and from the resume point."""
    return tuple({**now.set_args, **dict(point.settings)}.items())


def plan_with(
    record: RunFile,
    job: JobSpec,
    attempt: int,
    run: RunPaths,
    paths: AttemptPaths,
    env: Mapping[str, str],
    *,
    batch: BatchSpec | None,
    changed_env: Pairs,
    set_args: Pairs,
    resume: bool | None,
    resume_at: int | None,
    port: int | None = None,
    node_dir: str = "",
    rank: RankProcess | None = None,
) -> LaunchPlan:
    """The plan of an attempt of this run. For the changes see `build_plan`; for `resume_at`, `ResumePoint.at`.

    Raises:
        JobError: the changes cannot be applied to this job, or a secret is unknown here.
    """
    plan = build_plan(
        job,
        attempt=attempt,
        interpreter=record.interpreter,
        run_dir=str(run.root),
        attempt_dir=str(paths.root),
        base_env=env,
        port=port,
        trainer_main=record.trainer_main,
        batch=batch,
        env=changed_env,
        set_args=set_args,
        resume=resume,
        telemetry_dir=str(paths.telemetry),
        stop_file=str(paths.stop_file),
        torchrun_dir=str(paths.torchrun),
        node_dir=node_dir,
        rank=rank,
        confirm=attempt > 1 and job.instrument,
    )
    require_nothing_hidden(plan)
    return replace(plan, resume_at=resume_at)


def requested_change(
    record: RunFile, state: RunState, args: RequestArgs, env: Mapping[str, str] | None = None
) -> SpecChange:
    """The changes of a person's restart, merged with those of a restart that was about to start.

    Raises:
        BadChange: the micro-batch does not divide the global batch, the script's setting is unknown, or the
            requested change cannot be passed on or contains a secret, which the journal would keep.
    """
    _check_words(args)
    if args.offered:
        return _offered(record, state, env or {})
    now, batch = next_job(record.job, state), None
    try:
        if args.argv is not None:
            now.typed_batch(args.argv)
            now = now.after(SpecChange(argv=args.argv), len(state.attempts))
        if args.micro_batch is not None:
            batch = _with_micro_batch(record, state, now, args.micro_batch, env or {})
    except JobError as error:
        raise BadChange(error.message) from error
    change = SpecChange(batch=batch, env=tuple(args.env.items()), argv=args.argv)
    is_edit = args.micro_batch is None and (args.argv is not None or bool(args.env))
    return _with_pending(change, state, now) if is_edit else change


def _with_pending(change: SpecChange, state: RunState, now: NextJob) -> SpecChange:
    """Add the change of a restart that is waiting or that a person stopped to edit: the edited text contained it.

    Other parts (variables, a copy of a config) stay unless the person set them; typed arguments with another batch win.
    """
    decision = state.attempts[-1].decision if state.attempts else None
    if decision is None or decision.kind is not DecisionKind.RESTART or decision.change is None:
        return change
    if not isinstance(state.condition, (Backoff, HeldOpen)):
        return change
    pending = decision.change
    batch = pending.batch if pending.batch is not None and now.current_batch == pending.batch.after else None
    merged = replace(pending, batch=batch, env=tuple({**dict(pending.env), **dict(change.env)}.items()))
    if change.argv is None:
        return merged
    # The arguments that make it resume are not part of the edited text.
    kept = tuple(pair for pair in pending.set_args if not is_argument(pair[0]) or pair[0] in now.set_args)
    return replace(merged, argv=change.argv, set_args=kept, from_scratch=False)


def _with_micro_batch(
    record: RunFile, state: RunState, now: NextJob, micro_batch: int, env: Mapping[str, str]
) -> BatchChange:
    before, knobs = now.current_batch, now.job.knobs
    if not knobs.can_change_batch:
        raise BadChange(why_not_changeable(knobs))
    if before is None:
        raise BadChange(": ".join(why_size_unknown(knobs)))
    batch = BatchChange(before, with_micro_batch(before, micro_batch))
    from supervisor.keeper.planning.resume_points import batch_refusal

    if refused := batch_refusal(record, state, batch.after, now.job.entry_args, env):
        raise BadChange(refused)
    return batch


def _offered(record: RunFile, state: RunState, env: Mapping[str, str]) -> SpecChange:
    """The plan that the waiting run shows on its card: for a decision, or for a restart that a person stopped."""
    from supervisor.keeper.planning.resume_points import batch_refusal

    decision = state.attempts[-1].decision if state.attempts else None
    if decision is None or decision.change is None or not isinstance(state.condition, HeldOpen):
        raise BadChange("nothing is on offer")
    change = decision.change
    arguments = next_job(record.job, state).job.entry_args
    if change.batch is not None and (
        refused := batch_refusal(record, state, change.batch.after, arguments, env)
    ):
        raise BadChange(refused)
    return change


def continuing(record: RunFile, state: RunState, env: Mapping[str, str], by: str) -> Decision:
    """A person's restart of a halted run, with the changes that policy had decided but not made, or would have made."""
    view, reason = state.attempts[-1], f"{by} continued it"
    if view.decision is not None and (
        view.decision.kind is DecisionKind.RESTART or view.decided_by != "policy"
    ):
        waits = view.decision.kind is DecisionKind.RESTART
        change = view.decision.change if waits else None
        return Decision(DecisionKind.RESTART, reason, change=change or SpecChange())
    if view.failure is None:
        return Decision(DecisionKind.RESTART, reason, change=SpecChange())
    from supervisor.keeper.planning.decisions import policy_input  # not before a first launch
    from supervisor.policy.decide import planned_change

    planned = planned_change(policy_input(record, state, env=env))
    if planned is None:
        return Decision(DecisionKind.RESTART, reason, change=SpecChange())
    return Decision(DecisionKind.RESTART, f"{reason}: {planned[1]}", change=planned[0])


def plan_continued(
    record: RunFile, state: RunState, run: RunPaths, env: Mapping[str, str], by: str
) -> tuple[LaunchPlan, str]:
    """The plan, with its changes, of the attempt that a keeper would start if `by` continued the run. Writes nothing.

    Raises:
        JobError: it cannot be made, for example because a secret is unknown here.
    """
    why = ""
    if state.attempts:
        number, decision = state.attempts[-1].number, continuing(record, state, env, by)
        why = decision.reason.partition(": ")[2]
        state = fold(state, Decided(t=0.0, attempt=number, decision=decision, by=by))
    return plan_next(record, state, run, run.node().attempt(len(state.attempts) + 1), env), why


def _check_words(args: RequestArgs) -> None:
    for name, value in args.env.items():
        if not name or "=" in name or "\0" in name + value:
            raise BadChange(f"{name!r} is not the name and value of a variable")
        if redact(name, value) != value:
            raise BadChange(
                f"{name} holds a secret, which the journal would keep: start the job again with it"
            )
    if args.argv is None:
        return
    if any("\0" in word for word in args.argv):
        raise BadChange("an argument holds a NUL byte")
    if redact_argv(args.argv) != args.argv:
        raise BadChange(
            "an argument holds a secret, which the journal would keep: start the job again with it"
        )


def write_plan(paths: AttemptPaths, plan: LaunchPlan) -> None:
    """Write plan.json, secrets redacted."""
    make_own(paths.root)
    replace_file(paths.plan, msgspec.json.format(msgspec.json.encode(plan_as_record(plan)), indent=1) + b"\n")


def planned_change(
    record: RunFile, state: RunState, run: RunPaths, node: NodePaths, env: Mapping[str, str]
) -> tuple[str, ...]:
    """The changes from the newest launch to the next, as a diff; empty if there are none or no plan."""
    before = node.attempt(len(state.attempts)).plan
    try:
        plan = plan_next(record, state, run, node.attempt(len(state.attempts) + 1), env)
        old = msgspec.json.decode(read_regular(before))
        values = {name: value for name, _ in plan.applied if (value := _held(plan.cwd, name)) is not None}
    except (JobError, OSError, *NOT_DECODED):
        return ()
    return diff_lines(old, plan_as_record(plan), values)


def _held(cwd: str, name: str) -> Scalar:
    """The value of a config file's key; None for any other setting, or if the file lacks the key.

    Raises:
        OSError: the file cannot be read.
    """
    if place_of(name) is not Place.FILE:
        return None
    file, _, key = name.partition("#")
    file = config_file(file)
    return read_values(file, read_text(Path(cwd, file))).get(key)


def journal_argv(plan: LaunchPlan) -> tuple[str, ...]:
    """The plan's argv without secrets."""
    return redact_argv(plan.argv)


def script_hash(job: JobSpec) -> str | None:
    """A short hash of the script if it is a single file: shows edits between attempts."""
    words = (job.entry, *job.entry_args) if job.entry_kind is EntryKind.COMMAND else ()
    named = next((word for word in words if word.endswith((".py", ".sh"))), None)
    script = job.entry if job.entry_kind is EntryKind.SCRIPT else named
    if script is None:
        return None
    try:
        data = read_regular(Path(job.cwd, script))
    except OSError:
        return None
    return hashlib.sha256(data).hexdigest()[:12]


def script_was_edited(state: RunState) -> bool:
    """Whether the newest attempt runs an edited script compared with the one before."""
    hashes = [view.script_hash for view in state.attempts if view.script_hash]
    return len(hashes) >= 2 and hashes[-1] != hashes[-2]


def spawn_verdict(message: str, *, disk_full: bool = False, killed: bool = False) -> Verdict:
    """The verdict on a launch that never started. `killed`: a signal ended it, so the command is not at fault."""
    failure, action = FailureClass.USAGE_ERROR, Action.STOP
    if disk_full:
        failure, action = FailureClass.DISK_FULL, Action.WAIT_DISK
    elif killed:
        failure, action = FailureClass.TERMINATED, Action.RESTART
    return Verdict(
        failure=failure,
        reason=Reason.OUTSIDE if killed and not disk_full else None,
        confidence=1.0,
        rank=None,
        ranks=(),
        node=None,
        title=f"could not be launched: {message}",
        cause=None,
        consequences=(),
        advice=("see plan.json of the attempt for the command",),
        action=action,
        fingerprint="spawn",
    )
