"""What a run's journal knows of an attempt, put into the evidence.

Takes folded states as they are; nothing of `run` is imported before a caller has one, because ``stoker diagnose``
on plain logs does not pay for msgspec.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from supervisor.diagnosis.evidence import JobEvidence, SeenGroup, SeenHang
from supervisor.diagnosis.wording.run_values import present_of

if TYPE_CHECKING:
    from supervisor.job.spec import JobSpec
    from supervisor.run.events.health import RanksAt
    from supervisor.run.state import AttemptView, RankView, RunState

# Values of `run.events.StopWhy` that are our doing alone; "rank_died" and "hang" follow a failure.
OUR_STOPS = frozenset(("request", "signal", "restart", "requeue"))


# The run directory, seen from an attempt's folder: where paths in a keeper's verdicts begin.
FROM_ATTEMPT = "../../../.."


def with_journal_facts(
    job: JobEvidence,
    nodes: Iterable[tuple[RunState, AttemptView]],
    *,
    spec: JobSpec | None = None,
    run_root: str = FROM_ATTEMPT,
) -> JobEvidence:
    """The same evidence with the journals' facts of one attempt: a (state, attempt) for each node, the first leads.

    `spec`: the job as resolved, whose values advice quotes. `run_root`: the run directory, as paths in the verdict are to show it.
    """
    pairs = list(nodes)
    if not pairs:
        return job
    state, view = pairs[0]
    views = [own for _, own in pairs]
    stop = next((own.stop for own in views if own.stop is not None and own.stop.why.value in OUR_STOPS), None)
    ended_for = next((own.stop for own in views if own.stop is not None), None) if stop is None else None
    found = state.checkpoint
    last_steps = [own.last_step for own in views if own.last_step is not None]
    kills = [own.memory_kills for own in views]
    counted = [count for count in kills if count is not None]
    machine = job.machine
    # None was killed only if every node says so; one that counted some is enough for the other.
    if counted and (any(counted) or len(counted) == len(kills)):
        machine = machine._replace(cgroup_oom_kills=sum(counted))
    exits = [own.exit_code for own in views if own.exit_code is not None]
    return job._replace(
        exit_codes={**job.exit_codes, **_exit_codes(views)},
        launcher_exit=next((code for code in exits if code != 0), exits[0] if exits else job.launcher_exit),
        stop_reason=stop.why.value if stop is not None else None,
        last_step=max(last_steps, default=None),
        total_steps=state.total_steps,
        final_checkpoint=found is not None and found.attempt == view.number and found.final,
        world_size=state.world_size or job.world_size,
        ranks_per_node=len(view.ranks) or job.ranks_per_node,
        present=present_of(
            state,
            view,
            (rank.pid for own in views for rank in own.ranks.values() if rank.pid is not None),
            spec,
        ),
        hang=_hang(views, run_root) or _silence(state, view, run_root),
        machine=machine,
        ended_for=ended_for.why.value if ended_for is not None else None,
    )


def _hang(views: Iterable[AttemptView], run_root: str) -> SeenHang | None:
    """The hang for which the attempt was ended; one that was found and not acted on has no say."""
    for view in views:
        found = view.hang
        if found is not None and view.stop is not None and view.stop.why.value == "hang":
            path = f"{run_root}/{found.artifact}" if found.artifact is not None else ""
            groups = _groups(found.groups)
            return SeenHang(found.ranks, found.text, found.collective, path, found.line or 0, groups)
    return None


def _silence(state: RunState, view: AttemptView, run_root: str) -> SeenHang | None:
    """What the newest stacks showed, if no step came after them and they tell who kept the others waiting."""
    taken, moved = view.stacks, state.progress
    if taken is None or not taken.odd or not taken.groups:
        return None
    if moved is not None and moved.attempt == view.number and moved.t >= taken.t:
        return None
    path = f"{run_root}/{taken.artifact}" if taken.artifact is not None else ""
    groups = _groups(taken.groups)
    line = next((group.lines[0] for group in groups if taken.odd[0] in group.ranks and group.lines), None)
    return SeenHang(taken.odd, taken.text, taken.collective, path, line or 0, groups, ended_for_it=False)


def _groups(found: Iterable[RanksAt]) -> tuple[SeenGroup, ...]:
    return tuple(SeenGroup(at.ranks, at.doing, at.what, at.line_at, at.lines) for at in found)


def _exit_codes(views: Iterable[AttemptView]) -> dict[int, int]:
    ended: list[RankView] = [rank for view in views for rank in view.ranks.values()]
    return {
        rank.rank: rank.exit_code for rank in ended if rank.rank is not None and rank.exit_code is not None
    }
