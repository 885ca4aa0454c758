"""Makes the next launch plan from the job and the journal, including all changes so far, and starts the attempt.

Every plan is derived from run.json and the folded state, so a keeper that adopts a run makes exactly the
plan that the dead keeper would have made.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from supervisor.job.arguments.command_line import value_of
from supervisor.job.batch import BatchChange, BatchSpec, with_micro_batch, with_world_size
from supervisor.job.config.files import read_values
from supervisor.job.errors import JobError
from supervisor.job.knobs.measured_knobs import RankProcess
from supervisor.job.knobs.set_batch import batch_values, why_not_changeable, why_size_unknown
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
from supervisor.keeper.base.ledger import RunContext
from supervisor.keeper.process.child import (
    Child,
    SpawnError,
    adopt,
    alive_of,
    end_all,
    raise_open_files_limit,
    spawn,
    started,
)
from supervisor.keeper.process.members import label_of
from supervisor.preflight.network import free_port
from supervisor.run import events as ev
from supervisor.run.control import RequestArgs
from supervisor.run.events import Decided
from supervisor.run.fold import fold
from supervisor.run.jsonl import NOT_DECODED
from supervisor.run.next_job import NextJob, next_job
from supervisor.run.node_files import Launch
from supervisor.run.paths import AttemptPaths, NodePaths, RunPaths, make_own, replace_file
from supervisor.run.records import Action, Decision, DecisionKind, FailureClass, Reason, SpecChange, Verdict
from supervisor.run.regular import read_regular, read_text
from supervisor.run.runfile import RunFile
from supervisor.run.state import Backoff, HeldOpen, RunState
from supervisor.text.redact import redact, redact_argv

log = logging.getLogger("stoker.keeper")


RDZV = "--rdzv-"
RDZV_ID = "--rdzv-id"
LR_SCALING = "--lr_scaling"


class BadChange(Refused):
    """The user requested an impossible change. The message is a single line."""


def plan_next(
    record: RunFile, state: RunState, run: RunPaths, paths: AttemptPaths, env: Mapping[str, str]
) -> LaunchPlan:
    """Return the plan for attempt ``len(state.attempts) + 1`` on a single machine.

    Raises:
        JobError: see `next_launch` and `plan_launch`.
    """
    launch, copy = next_launch(record, state, run, env)
    return plan_launch(record, launch, len(state.attempts) + 1, run, paths, env, state=state, copy=copy)


def next_launch(
    record: RunFile, state: RunState, run: RunPaths, env: Mapping[str, str], nodes: tuple[int, ...] = ()
) -> tuple[Launch, CheckpointCopy | None]:
    """Return what the next attempt changes on each of its `nodes` (empty on a single machine), and the checkpoint to copy first.

    Raises:
        JobError: the attempt cannot resume as required, its batch does not fit the nodes, or no port is free.
    """
    now = next_job(with_secrets(record.job, env), state)
    if nodes:
        now = replace(now, batch=batch_on(now, len(nodes)))
    settings: Mapping[str, str] = {}
    switch, copy, checkpoint = None, None, None
    if state.attempts:
        from supervisor.keeper.planning.resume_points import resume_point  # not before a first launch

        settings, switch, copy, checkpoint = resume_point(record, state, run, now, env)
    launch = Launch(
        nodes=nodes,
        args=now.job.entry_args if now.is_typed else None,
        batch=now.batch,
        env=tuple(now.env.items()),
        set_args=tuple({**now.set_args, **settings}.items()),
        resume=switch,
        resume_at=checkpoint.step if checkpoint is not None else None,
        raise_open_files=now.raise_open_files,
    )
    if not nodes:
        return launch, copy
    flags = record.job.torchrun_flags
    meets = any(flag.startswith(RDZV) for flag in flags)
    named = next((flag.partition("=")[2] for flag in flags if flag.partition("=")[0] == RDZV_ID), "")
    launch = msgspec.structs.replace(
        launch,
        master_port=record.job.master_port or (None if meets else free_port()),
        # An agent of an earlier attempt must not meet the agents of this one.
        rdzv_id=f"{named or run.run_id}-{len(state.attempts) + 1}" if meets else None,
    )
    return launch, copy


def batch_on(now: NextJob, nodes: int) -> BatchSpec | None:
    """Return the batch for this many nodes, keeping the global batch that all nodes together would have.

    Raises:
        JobError: using fewer nodes would change, or might change, the global batch.
    """
    job, batch = now.job, now.current_batch
    if nodes == job.most_nodes:
        return now.batch
    if batch is None or not batch.ranks_known:
        raise JobError("the global batch is not known")
    if job.entry_kind is EntryKind.TRAINER and value_of(now.words, LR_SCALING) not in {None, "none"}:
        raise JobError(f"{LR_SCALING} makes the learning rate depend on the ranks")
    fewer = with_world_size(batch, batch.world_size * nodes // job.most_nodes)
    batch_values(job.knobs, fewer, before=job.batch, local_world_size=job.nproc_per_node)  # can it be set?
    return fewer


def plan_launch(
    record: RunFile,
    launch: Launch,
    number: int,
    run: RunPaths,
    paths: AttemptPaths,
    env: Mapping[str, str],
    *,
    state: RunState | None = None,
    copy: CheckpointCopy | None = None,
) -> LaunchPlan:
    """Return this node's plan for attempt `number`. Every node makes its plan from the same launch and its own job.

    `state` is the run so far, which a launch on a single machine also uses. `copy` is made before the launch.

    Raises:
        JobError: a change cannot be applied to this node's job, no port is free, or a secret is unknown here.
    """
    known = job = with_secrets(record.job, env)
    port, rank = None, None
    if launch.nodes:
        flags = job.torchrun_flags
        if launch.rdzv_id is not None:
            kept = (flag for flag in flags if flag.partition("=")[0] != RDZV_ID)
            flags = (*kept, f"{RDZV_ID}={launch.rdzv_id}")
        job = replace(
            job,
            nnodes=str(len(launch.nodes)),
            node_rank=launch.nodes.index(record.node),
            master_port=launch.master_port,
            torchrun_flags=flags,
        )
    elif state is not None:
        job = next_job(job, state).job
        port = free_port() if wants_port(job) else None
        measured = (view.measured for view in reversed(state.attempts))
        rank = next((RankProcess(seen.argv, seen.words) for seen in measured if seen and seen.argv), None)
    if launch.args is not None:
        job = replace(job, entry_args=with_hidden_words(launch.args, known.entry_args))
    plan = build_plan(
        job,
        attempt=number,
        interpreter=record.interpreter,
        run_dir=str(run.root),
        attempt_dir=str(paths.root),
        base_env=env,
        port=port,
        trainer_main=record.trainer_main,
        batch=launch.batch,
        env=launch.env,
        set_args=launch.set_args,
        resume=launch.resume,
        node_dir=str(run.node(record.node).root) if launch.nodes else "",
        rank=rank,
        confirm=number > 1 and job.instrument,
    )
    require_nothing_hidden(plan)
    return replace(plan, resume_at=launch.resume_at, copy=copy)


def requested_change(
    record: RunFile, state: RunState, args: RequestArgs, env: Mapping[str, str] | None = None
) -> SpecChange:
    """Return the changes for a restart that the user requested, merged with those of a restart that was about to start.

    Raises:
        BadChange: the micro-batch does not divide the global batch, the script's setting is unknown, or the change
            cannot be passed on or contains a secret, which the journal would keep.
    """
    _check_words(args)
    now, batch = next_job(record.job, state), None
    waiting = state.attempts[-1].decision if state.attempts else None
    if args.offered:
        # The plan on the waiting run's card: for a decision, or for a restart that a person stopped.
        if waiting is None or waiting.change is None or not isinstance(state.condition, HeldOpen):
            raise BadChange("nothing is on offer")
        _require_batch(record, state, waiting.change.batch, now, env or {})
        return waiting.change
    try:
        if args.argv is not None:
            now.typed_batch(args.argv)
            now = now.after(SpecChange(argv=args.argv), len(state.attempts))
        if args.micro_batch is not None:
            before, knobs = now.current_batch, now.job.knobs
            if not knobs.can_change_batch:
                raise BadChange(why_not_changeable(knobs))
            if before is None:
                raise BadChange(": ".join(why_size_unknown(knobs)))
            batch = BatchChange(before, with_micro_batch(before, args.micro_batch))
    except JobError as error:
        raise BadChange(error.message) from error
    _require_batch(record, state, batch, now, env or {})
    change = SpecChange(batch=batch, env=tuple(args.env.items()), argv=args.argv)
    is_edit = args.micro_batch is None and (args.argv is not None or bool(args.env))
    waits = waiting is not None and waiting.kind is DecisionKind.RESTART
    if waiting is None or waiting.change is None or not (is_edit and waits):
        return change
    return _with_pending(change, waiting.change, state, now)


def _with_pending(change: SpecChange, pending: SpecChange, state: RunState, now: NextJob) -> SpecChange:
    """Add the change from a restart that is pending or that the user stopped in order to edit. The edited text already contained it.

    Other parts (variables, a config copy) are kept unless the user set them. The pending batch is dropped if the
    typed arguments specify a different batch.
    """
    if not isinstance(state.condition, (Backoff, HeldOpen)):
        return change
    batch = pending.batch if pending.batch is not None and now.current_batch == pending.batch.after else None
    merged = replace(pending, batch=batch, env=tuple({**dict(pending.env), **dict(change.env)}.items()))
    if change.argv is None:
        return merged
    # The edited text does not contain the arguments that make the script resume.
    kept = tuple(pair for pair in pending.set_args if not is_argument(pair[0]) or pair[0] in now.set_args)
    return replace(merged, argv=change.argv, set_args=kept, from_scratch=False)


def _require_batch(
    record: RunFile, state: RunState, batch: BatchChange | None, now: NextJob, env: Mapping[str, str]
) -> None:
    """Raise BadChange if the script would resume with a batch other than `batch`."""
    from supervisor.keeper.planning.resume_points import batch_refusal  # not before a first launch

    if batch is not None and (refused := batch_refusal(record, state, batch.after, now.job.entry_args, env)):
        raise BadChange(refused)


def continuing(record: RunFile, state: RunState, env: Mapping[str, str], by: str) -> Decision:
    """Return the decision for a user's restart of a halted run, with the changes that the policy planned or would have planned."""
    view, reason, change = state.attempts[-1], f"{by} continued it", SpecChange()
    decided = view.decision
    restarts = decided is not None and decided.kind is DecisionKind.RESTART
    if decided is not None and (restarts or view.decided_by != "policy"):
        change = (decided.change if restarts else None) or change
    elif view.failure is not None:
        from supervisor.keeper.planning.decisions import policy_input  # not before a first launch
        from supervisor.policy.decide import change_asked_for

        planned = change_asked_for(policy_input(record, state, env=env))
        if planned is not None:
            change, reason = planned[0], f"{reason}: {planned[1]}"
    return Decision(DecisionKind.RESTART, reason, change=change)


def plan_continued(
    record: RunFile, state: RunState, run: RunPaths, env: Mapping[str, str], by: str
) -> tuple[LaunchPlan, str]:
    """Return the plan for the attempt that would start if `by` continued the run, along with the reason for its changes.

    Raises:
        JobError: the plan cannot be made, for example because a secret is unknown here.
    """
    why = ""
    if state.attempts:
        number, decision = state.attempts[-1].number, continuing(record, state, env, by)
        why = decision.reason.partition(": ")[2]
        state = fold(state, Decided(t=0.0, attempt=number, decision=decision, by=by))
    return plan_next(record, state, run, run.node().attempt(len(state.attempts) + 1), env), why


def _check_words(args: RequestArgs) -> None:
    kept = "holds a secret, which the journal would keep: start the job again with it"
    for name, value in args.env.items():
        if not name or "=" in name or "\0" in name + value:
            raise BadChange(f"{name!r} is not the name and value of a variable")
        if redact(name, value) != value:
            raise BadChange(f"{name} {kept}")
    argv = args.argv or ()
    if any("\0" in word for word in argv):
        raise BadChange("an argument holds a NUL byte")
    if redact_argv(argv) != argv:
        raise BadChange(f"an argument {kept}")


def write_plan(paths: AttemptPaths, plan: LaunchPlan) -> None:
    """Write plan.json with secrets redacted."""
    make_own(paths.root)
    replace_file(paths.plan, msgspec.json.format(msgspec.json.encode(plan_as_record(plan)), indent=1) + b"\n")


def planned_change(
    record: RunFile, state: RunState, run: RunPaths, node: NodePaths, env: Mapping[str, str]
) -> tuple[str, ...]:
    """Return a diff from the latest launch to the next one. It is empty if nothing changes or there is no plan."""
    values: dict[str, Scalar] = {}
    try:
        plan = plan_next(record, state, run, node.attempt(len(state.attempts) + 1), env)
        old = msgspec.json.decode(read_regular(node.attempt(len(state.attempts)).plan))
        for name in (name for name, _ in plan.applied if place_of(name) is Place.FILE):
            file, _, key = name.partition("#")
            file = config_file(file)
            value = read_values(file, read_text(Path(plan.cwd, file))).get(key)
            values |= {name: value} if value is not None else {}
    except (JobError, OSError, *NOT_DECODED):
        return ()
    return diff_lines(old, plan_as_record(plan), values)


def script_hash(job: JobSpec) -> str | None:
    """Return a short hash of the script, used to detect edits between attempts, or None if it is not a single file."""
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
    """Check whether the script was edited between the latest attempt and the one before it."""
    hashes = [view.script_hash for view in state.attempts if view.script_hash]
    return len(hashes) >= 2 and hashes[-1] != hashes[-2]


def spawn_verdict(message: str, *, disk_full: bool = False, killed: bool = False) -> Verdict:
    """Return the verdict on a launch that never started. If `killed` (by a signal), the command is not at fault."""
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


# -- starting an attempt: the plan, its files, the intent, the spawn -------------------------------------


class StillAlive(Exception):  # noqa: N818 - a state of affairs, not an error
    """Processes from an earlier attempt are alive, so no new attempt may start. The message is a single line."""


class Launching:
    """Starts one attempt after another. Journals each intent before acting on it.

    Args:
        nodes: returns the nodes of the next attempt, empty on a single machine.
        announce: tells the other nodes about a launch that is in the journal and about to start.

    Attributes:
        took_over: whether an earlier keeper launched the latest attempt without journaling the launch.
    """

    def __init__(
        self,
        context: RunContext,
        nodes: Callable[[], tuple[int, ...]] = tuple,
        announce: Callable[[int, Launch], None] = lambda *_: None,
    ) -> None:
        self._context, self._node, self._record = context, context.node, context.record
        self._ledger, self._nodes, self._announce, self.took_over = context.ledger, nodes, announce, False

    def launch(self, reason: str) -> Child | None:
        """Plan the next attempt and start it. If it does not start, diagnose it and return None.

        Raises:
            JobError: the decision cannot be applied to this job.
            StillAlive: another attempt is still alive.
        """
        context, state = self._context, self._ledger.state
        number = len(state.attempts) + 1
        missed = self._missed(number, number - 1)
        launch, copy = next_launch(self._record, state, context.run, context.env, self._nodes())
        launch = msgspec.structs.replace(launch, reason=reason)
        return self._start(number, launch, missed, copy)

    def launch_ordered(self, number: int, launch: Launch) -> Child | None:
        """Start an attempt that another node ordered.

        Raises:
            JobError, StillAlive: see `launch`.
        """
        last = self._ledger.state.attempt
        missed = self._missed(number, last.number if last is not None else number)
        return self._start(number, launch, missed)

    def _missed(self, number: int, last: int) -> Child | None:
        """Return this attempt if it is already running but was never journaled, because its keeper died with the disk full.

        Raises:
            StillAlive: attempt `last` is still alive.
        """
        missed = adopt(self._node.attempt(number), self._context.mark)
        left = alive_of(self._context.mark, self._node.attempt(last)) if missed is None and last else ()
        if left:
            names = ", ".join(map(label_of, left))
            raise StillAlive(
                f"processes of this run are still alive and could not be ended: {names}: end them, then restart"
            )
        return missed

    def _start(
        self, number: int, launch: Launch, missed: Child | None, copy: CheckpointCopy | None = None
    ) -> Child | None:
        context, paths = self._context, self._node.attempt(number)
        emit, wall = self._ledger.emit, context.clock.wall
        plan = plan_launch(
            self._record, launch, number, context.run, paths, context.env, state=self._ledger.state, copy=copy
        )
        if copy is not None:
            from supervisor.keeper.planning.resume_points import make_copy  # not before a first launch

            make_copy(copy)
        try:
            write_plan(paths, plan)
        except OSError as error:
            log.error("%s: %s: the plan was not written", paths.plan, error.strerror)
        intended = ev.LaunchIntended(
            t=wall(),
            attempt=number,
            argv=redact_argv(plan.argv),
            reason=launch.reason,
            batch=plan.batch,
            resume=plan.resume,
            script_hash=script_hash(self._record.job),
            resume_at=plan.resume_at,
            resume_copy=copy.target if copy is not None else None,
        )
        emit(intended, durable=True)
        if script_was_edited(self._ledger.state):
            # Code edited between attempts is an unplanned change, so report it.
            text = "the script was edited since the last attempt"
            context.advise(number, "script_edited", text)
        self._announce(number, launch)
        if launch.raise_open_files:
            raise_open_files_limit()
        self.took_over = missed is not None
        try:
            child = missed or spawn(plan, paths, context.env)
        except SpawnError as error:
            log.error("attempt %d: %s", number, error)
            end_all(context.mark, paths)
            emit(ev.AttemptEnded(t=wall(), attempt=number, exit_code=127))
            verdict = spawn_verdict(str(error), disk_full=error.disk_full, killed=error.killed)
            emit(ev.Diagnosed(t=wall(), attempt=number, verdict=verdict))
            return None
        emit(started(child, number, wall()))
        return child
