"""Add the journal's record of an attempt to the evidence: exits, stops, steps, stacks and the run's own values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from supervisor.diagnosis.evidence import JobEvidence, MachineRecords, RunValues, SeenHang
from supervisor.job.arguments.command_line import names_of
from supervisor.job.arguments.run_arguments import STOKER_FLAGS, TORCHRUN_FLAGS, by_spelling
from supervisor.job.knobs.conventions import find_loader
from supervisor.job.knobs.set_batch import divided_flag
from supervisor.job.spec import JobSpec
from supervisor.run.events import PlanDiffers, StopWhy
from supervisor.run.state import AttemptState, RunState

# Stops that only stoker caused. "rank_died" and "hang" follow a failure.
OUR_STOPS = frozenset((StopWhy.REQUEST, StopWhy.SIGNAL, StopWhy.RESTART, StopWhy.REQUEUE, StopWhy.TRIAL))
ALLOCATOR_NAMES = frozenset(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
# The run directory, relative to an attempt's folder. Paths in a keeper's verdicts begin with it.
FROM_ATTEMPT = "../../../.."


def with_journal_facts(
    job: JobEvidence,
    nodes: Iterable[tuple[RunState, AttemptState]],
    *,
    spec: JobSpec | None = None,
    run_root: str = FROM_ATTEMPT,
) -> JobEvidence:
    """Add what the journals recorded about an attempt. `nodes` has one (state, attempt) pair per node, leader first.

    `spec` is the resolved job; advice quotes its values. `run_root` is the run directory as shown in the verdict's paths.
    """
    pairs = list(nodes)
    if not pairs:
        return job
    state, view = pairs[0]
    views = [own for _, own in pairs]
    checkpoint = state.checkpoint
    last_steps = [own.last_step for own in views if own.last_step is not None]
    pids = (rank.pid for own in views for rank in own.ranks.values() if rank.pid is not None)
    our_stop, ended_for = _stops(views)
    differs = _differs(view)
    return job._replace(
        exit_codes={**job.exit_codes, **_exit_codes(views)},
        launcher_exit=_launcher_exit(views, job.launcher_exit),
        launcher_signal=_launcher_signal(views),
        stop_reason=our_stop,
        not_resumed=_not_resumed(view, differs),
        plan_differs=differs.text if differs is not None and not differs.of_resume else "",
        last_step=max(last_steps, default=None),
        total_steps=None if view.has_unread else state.total_steps,
        is_total_declared=_is_total_declared(state, spec),
        epochs=_epochs(state, view),
        is_code_own=spec is not None and spec.has_own_code,
        ended_t=view.ended_t,
        earlier_step=_earlier_step(state, views),
        final_checkpoint=checkpoint is not None and checkpoint.attempt == view.number and checkpoint.final,
        world_size=_ranks_of(view) or state.world_size or job.world_size,
        ranks_per_node=len(view.ranks) or job.ranks_per_node,
        run_values=run_values_of(state, view, pids, spec),
        hang=_hang(views, run_root) or _silence(state, view, run_root),
        machine=_with_kills(job.machine, views),
        ended_for=ended_for,
    )


def _exit_codes(views: Iterable[AttemptState]) -> dict[int, int]:
    known = ((rank.rank, rank.exit_code) for own in views for rank in own.ranks.values())
    return {rank: code for rank, code in known if rank is not None and code is not None}


def _launcher_exit(views: Sequence[AttemptState], known: int | None) -> int | None:
    exits = [own.exit_code for own in views if own.exit_code is not None]
    return next((code for code in exits if code != 0), exits[0] if exits else known)


def _differs(view: AttemptState) -> PlanDiffers | None:
    """Return how the attempt differed from its plan, if that is why stoker stopped it."""
    return view.differs if view.stop is not None and view.stop.why is StopWhy.PLAN_DIFFERS else None


def _ranks_of(view: AttemptState) -> int | None:
    """Return the number of ranks in this attempt. A job may restart with fewer."""
    batch = view.shown_batch
    return batch.world_size if batch is not None and batch.ranks_known else None


def _is_total_declared(state: RunState, spec: JobSpec | None) -> bool | None:
    """Return whether the user declared the total (False if arguments or epoch counts imply it), or None if it was reported."""
    if spec is not None and spec.total_steps == state.total_steps:
        return bool(spec.sources("run.total_steps"))
    return False if state.progress is not None and state.progress.epoch_steps is not None else None


def _epochs(state: RunState, view: AttemptState) -> tuple[int, int] | None:
    """Return an attempt's epoch and the planned number of epochs, if its log prints both."""
    told = state.progress
    if told is None or told.attempt != view.number or told.epoch is None or not told.total_epochs:
        return None
    return None if view.has_unread else (int(told.epoch), int(told.total_epochs))


def _earlier_step(state: RunState, views: Sequence[AttemptState]) -> tuple[int, int] | None:
    """Return the attempt and step that the run reached before an attempt that completed no steps, or None if there is none."""
    if any(own.last_step is not None for own in views):
        return None
    resumed = max((own.resumed_step for own in views if own.resumed_step is not None), default=-1)
    earlier = [
        (own.last_step, own.number)
        for own in state.attempts
        if own.number < views[0].number and own.last_step is not None
    ]
    step, number = max(earlier, default=(-1, 0))
    saved = (
        state.checkpoint.step if state.checkpoint is not None and not state.checkpoint.step_by_time else -1
    )
    return (number, max(step, resumed, saved)) if step >= 0 else None


def _not_resumed(view: AttemptState, differs: PlanDiffers | None) -> str:
    missed, stop = view.missed, view.stop
    if differs is not None and differs.of_resume:
        return differs.text
    if missed is None or stop is None or stop.why is not StopWhy.NOT_RESUMED:
        return ""
    return f"did not resume: began at step {missed.began}, not after checkpoint {missed.step}"


def _stops(views: Sequence[AttemptState]) -> tuple[str | None, str | None]:
    """Return why stoker stopped the attempt or, failing that, the failure that made it stop the remaining processes."""
    stops = [own.stop.why for own in views if own.stop is not None]
    ours = next((why.value for why in stops if why in OUR_STOPS), None)
    return (ours, None) if ours is not None else (None, next((why.value for why in stops), None))


def _launcher_signal(views: Sequence[AttemptState]) -> int | None:
    """Return the signal that killed a launcher, unless stoker was already stopping it and so may have sent the signal itself."""
    ended = (own for own in views if own.exit_code is not None and own.exit_code < 0)
    by_others = (own for own in ended if own.stop is None or (own.ended_t or own.stop.t) < own.stop.t)
    return next((-own.exit_code for own in by_others if own.exit_code is not None), None)


def _with_kills(machine: MachineRecords, views: Sequence[AttemptState]) -> MachineRecords:
    """Add the number of OOM kills. A count of 0 needs a record from every node; a nonzero count needs only one."""
    counted = [own.memory_kills for own in views if own.memory_kills is not None]
    if counted and (any(counted) or len(counted) == len(views)):
        return machine._replace(cgroup_oom_kills=sum(counted))
    return machine


def _hang(views: Iterable[AttemptState], run_root: str) -> SeenHang | None:
    """Return the hang for which stoker stopped the attempt. A hang that was only detected does not count."""
    for view in views:
        found = view.hang
        if found is not None and view.stop is not None and view.stop.why is StopWhy.HANG:
            path = f"{run_root}/{found.artifact}" if found.artifact is not None else ""
            groups = tuple(found.groups)
            return SeenHang(found.ranks, found.text, found.collective, path, found.line or 0, groups)
    return None


def _silence(state: RunState, view: AttemptState, run_root: str) -> SeenHang | None:
    """Return the latest stacks if no step followed and they show which ranks kept the others waiting."""
    taken, step = view.stacks, state.progress
    if taken is None or not taken.odd or not taken.groups:
        return None
    if step is not None and step.attempt == view.number and step.t >= taken.t:
        return None
    path = f"{run_root}/{taken.artifact}" if taken.artifact is not None else ""
    groups = tuple(taken.groups)
    line = next((group.lines[0] for group in groups if taken.odd[0] in group.ranks and group.lines), None)
    stopped = step is not None and step.attempt == view.number and view.stop is not None
    silent_s = view.stop.t - step.t if stopped and step is not None and view.stop is not None else None
    return SeenHang(
        taken.odd,
        taken.text,
        taken.collective,
        path,
        line or 0,
        groups,
        ended_for_it=False,
        silent_s=silent_s,
    )


# -- the run's own values --------------------------------------------------------------------------


def run_values_of(
    state: RunState, view: AttemptState, own_pids: Iterable[int], job: JobSpec | None
) -> RunValues:
    """Return the run's settings during this attempt. Fewer are available if the job is unknown (an observed run)."""
    batch = view.shown_batch
    values = RunValues(
        micro_batch=batch.micro_batch_per_rank if batch is not None else None,
        batch=batch,
        memory_base_bytes=view.memory_base_bytes or 0,
        trials=lambda: state.memory_trials,
        own_pids=frozenset(own_pids),
        allocator_set=_allocator_set(state, view, job),
    )
    if job is None:
        return values
    workers = job.loader.workers or find_loader(view.argv).workers
    knobs = state.answered_job(job).knobs
    return values._replace(
        batch_knob=knobs.batch or values.batch_knob,
        divided_batch=divided_flag(knobs, batch, local_world_size=job.nproc_per_node),
        keeps_global=knobs.keeps_global_batch or not knobs.refusal,
        workers_knob=workers[0] if workers is not None else values.workers_knob,
        workers=workers[1] if workers is not None else None,
        port=job.master_port,
        entry=job.entry,
        behind_entry=_behind_entry(job),
    )


def _behind_entry(job: JobSpec) -> tuple[str, ...]:
    """Return any `stoker run` flags that appear among the script's own arguments, as typed."""
    if job.entry_kind not in ("script", "module"):
        return ()
    known = by_spelling((*STOKER_FLAGS, *TORCHRUN_FLAGS))
    return tuple(dict.fromkeys(name for name in names_of(job.entry_args) if name in known))


def _allocator_set(state: RunState, view: AttemptState, job: JobSpec | None) -> bool:
    """Check whether the job or an earlier decision has already requested expandable segments."""
    env = list(job.env) if job is not None else []
    for earlier in state.attempts:
        if (
            earlier.number < view.number
            and earlier.decision is not None
            and earlier.decision.change is not None
        ):
            env += earlier.decision.change.env
    return any(name in ALLOCATOR_NAMES and "expandable_segments:True" in value for name, value in env)
