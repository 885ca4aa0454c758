"""The fold: how each event changes the state. Pure, with no clock, files or threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeAlias, cast

from msgspec.structs import replace

from supervisor.job.spec import OF_BATCH, Unread
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.timeline import moment_of

_NO_MEASURE = {"t", "v", "attempt", "minima", "lag_bytes", "log_bytes"}
MEASURED = tuple(name for name in ev.Progress.__struct_fields__ if name not in _NO_MEASURE)
"""The fields of a progress event that describe the job itself."""
_measured = attrgetter(*MEASURED)
_TOTAL, _EPOCH_STEP, _EPOCH_STEPS, _ETA = map(
    MEASURED.index, ("total_steps", "epoch_step", "epoch_steps", "eta_s")
)
_BEFORE_STEPS = frozenset({ev.Phase.RENDEZVOUS, ev.Phase.LOADING})
STEPS_AFTER_S = 10.0
"""Peers of a failing rank may still log a step or two. A later step shows that the job continues."""
_NO_STALL: dict[str, object] = {"stall": None, "only_flagged": None, "countdown": None, "kept": None}


def fold(state: st.RunState, event: ev.Event) -> st.RunState:
    """Return the state after `event`.

    Events that contradict the state are applied as far as possible. The fold never raises, because a reader may open
    a truncated journal.
    """
    moment = moment_of(event, state)
    after = CHANGES[type(event)](replace(state, last_t=event.t), event)
    if moment is None:
        return after
    at = len(after.timeline)
    while moment.t < event.t and at and after.timeline[at - 1].t > moment.t:
        at -= 1  # it was noticed later than it happened
    timeline = (*after.timeline[:at], moment, *after.timeline[at:])
    return replace(after, timeline=timeline[-st.MAX_TIMELINE :])


def replay(events: Iterable[ev.Event], state: st.RunState | None = None) -> st.RunState:
    """Return the state after all of `events`, starting from `state` or from an empty one.

    Consecutive progress events, which make up most of a long journal, are folded together. This takes a third of the time.
    """
    state = state or st.RunState()
    for attempt, alike in groupby(
        events, lambda event: event.attempt if type(event) is ev.Progress else None
    ):
        if attempt is None:
            for event in alike:
                state = fold(state, event)
        else:
            state = _progress(state, *cast("Iterable[ev.Progress]", alike))
    return state


def _edit(s: st.RunState, number: int, **changes: object) -> st.RunState:
    """Return the state with some fields of attempt `number` changed. An unknown attempt changes nothing."""
    attempts = tuple(replace(a, **changes) if a.number == number else a for a in s.attempts)
    return replace(s, attempts=attempts)


def _given(event: ev.Event, *names: str) -> dict[str, Any]:
    """Return the named fields of an event, leaving out those without a value."""
    return {name: value for name in names if (value := getattr(event, name)) is not None}


def _run_started(s: st.RunState, event: ev.RunStarted) -> st.RunState:
    known = _given(event, "run_id", "name", "mode", "host", "source", "total_steps", "world_size")
    return replace(s, started_t=event.t, **known)


def _keeper_started(s: st.RunState, event: ev.KeeperStarted) -> st.RunState:
    s = replace(s, keeper_pid=event.pid, boot_id=event.boot_id, keeper_left=None, clock_ahead_s=0.0)
    slurm_job = event.slurm_job or (None if event.continued_by else s.slurm_job)
    return replace(s, host=event.host or s.host, slurm_job=slurm_job)


def _launch_intended(s: st.RunState, event: ev.LaunchIntended) -> st.RunState:
    planned = ("argv", "reason", "batch", "resume", "script_hash", "resume_copy", "resume_at")
    view = st.AttemptState(number=event.attempt, planned_t=event.t, **_given(event, *planned))
    return replace(
        s,
        attempts=(*(a for a in s.attempts if a.number != event.attempt), view),
        condition=st.Launching(attempt=event.attempt),
        ended_t=None,  # a finished run can be continued
        progress=None,
        waiting=None,
    )


def _attempt_started(s: st.RunState, event: ev.AttemptStarted) -> st.RunState:
    s = _edit(s, event.attempt, started_t=event.t, pid=event.pid, start_time=event.start_time)
    return replace(s, condition=st.Running(attempt=event.attempt, phase=ev.Phase.RENDEZVOUS))


def _edit_rank(s: st.RunState, event: ev.RankStarted | ev.RankExited, **changes: object) -> st.RunState:
    found = s.find(event.attempt)
    if found is None:
        return s
    known = found.ranks.get(event.local_rank, st.RankState(local_rank=event.local_rank))
    return _edit(s, event.attempt, ranks={**found.ranks, event.local_rank: replace(known, **changes)})


_OURS_AFTER_A_FAILURE = frozenset({ev.StopWhy.RANK_DIED, ev.StopWhy.HANG})


def _with_failure(s: st.RunState, event: ev.AttemptEvent) -> st.RunState:
    """Set an attempt's failure time to its first sign of failure. Recovery time is measured from there."""
    found = s.find(event.attempt)
    if found is None or found.failed_t is not None or getattr(event, "exit_code", 1) == 0:
        return s
    return _edit(s, event.attempt, failed_t=event.t)


def _rank_exited(s: st.RunState, event: ev.RankExited) -> st.RunState:
    s = _with_failure(_edit_rank(s, event, exited=True, **_given(event, "exit_code")), event)
    found = s.find(event.attempt)
    if found is None or found.failing is None or found.failing.local_rank != event.local_rank:
        return s
    ended_well = found.ranks[event.local_rank].exit_code == 0  # the rank logged an error but ended well
    return _edit(s, event.attempt, failing=None) if ended_well else s


def _phase_changed(s: st.RunState, event: ev.PhaseChanged) -> st.RunState:
    s = _edit(s, event.attempt, phase=event.phase, phase_t=event.t)
    if isinstance(s.condition, st.Running):
        s = replace(s, condition=st.Running(attempt=event.attempt, phase=event.phase))
    return s


def _checkpoint_committed(s: st.RunState, event: ev.CheckpointCommitted) -> st.RunState:
    found = s.find(event.attempt)
    steps = (*found.checkpoint_steps, event.step) if found else (event.step,)
    s = _edit(s, event.attempt, checkpoint_steps=steps[-st.MAX_CHECKPOINT_STEPS :])
    kept = (*s.checkpoints, event)[-st.MAX_CHECKPOINTS :]
    s = replace(s, checkpoint=event, checkpoints=kept)
    # A copy is no longer needed once the attempt that resumed from it wrote a newer checkpoint.
    newer = not s.unsound(event)
    copies = (k for k in s.kept if not (newer and k.attempt <= event.attempt and k.step < event.step))
    return replace(s, kept=tuple(copies))


def _evidence_seen(s: st.RunState, event: ev.EvidenceSeen) -> st.RunState:
    found = s.find(event.attempt)
    return s if found is None else _edit(s, event.attempt, step_at_evidence=found.last_step)


def _progress(s: st.RunState, *news: ev.Progress) -> st.RunState:
    """Fold one attempt's progress events, oldest first, all at once, because copying the state takes most of the time."""
    number, found = news[0].attempt, s.find(news[0].attempt)
    merged, total, best, best_step = (
        merge_progress(s.progress, *news),
        s.total_steps,
        s.best_loss,
        s.best_step,
    )
    at = s.progress.step if s.progress is not None and s.progress.attempt == number else None
    last_step, last_loss = (found.last_step, found.last_loss) if found is not None else (None, None)
    for event in news:
        step, loss = event.step, event.loss
        if step is not None:
            if found is not None and found.first_step is None:
                found = replace(found, first_step=step, first_step_t=event.t)
            if found is not None and found.failing is not None and event.t - found.failing.t > STEPS_AFTER_S:
                # The rank's launcher continues without it, or restarted it.
                found = replace(found, failing=None)
            last_step = at = step
        if loss is not None:
            if found is not None and found.first_loss is None:
                found = replace(found, first_loss=loss)
            last_loss = loss
        total = _total_after(event, total)
        for of, least in (*event.minima, (at, loss)) if event.minima or loss is not None else ():
            if least is not None and not math.isnan(least) and (best is None or least < best):
                best, best_step = least, of
    if found is not None:
        found = replace(found, last_step=last_step, last_loss=last_loss)
    begins = isinstance(s.condition, st.Running) and s.condition.phase in _BEFORE_STEPS
    trains = begins and any(event.step is not None or event.loss is not None for event in news)
    return replace(
        s,
        last_t=news[-1].t,
        attempts=tuple(found if found is not None and a.number == number else a for a in s.attempts),
        progress=merged,
        total_steps=total,
        best_loss=best,
        best_step=best_step,
        condition=st.Running(attempt=number, phase=ev.Phase.STEPPING) if trains else s.condition,
    )


def _total_after(event: ev.Progress, known: int | None) -> int | None:
    """Return the known total after an event. A step beyond it shows that it was only the total of one epoch."""
    if event.total_steps is not None:
        return event.total_steps or None
    return None if known is not None and event.step is not None and event.step > known else known


def merge_progress(old: ev.Progress | None, *news: ev.Progress) -> ev.Progress:
    """Merge one attempt's progress: later values win, and values not repeated persist. How far logs have been read is ignored."""
    if old is None or old.attempt != news[0].attempt:
        old, *rest = news
    else:
        rest = [*news]
    values, t = [*_measured(old)], old.t
    for new in rest:
        now = _measured(new)
        if now.count(None) == len(now):
            continue
        total = _total_after(new, values[_TOTAL])
        values, t = [was if one is None else one for was, one in zip(values, now, strict=True)], new.t
        values[_TOTAL] = total
        if new.step is not None:  # the log's values for an earlier step do not apply to this one
            values[_EPOCH_STEP], values[_EPOCH_STEPS] = new.epoch_step, new.epoch_steps
        if new.epoch_step is not None:  # the earlier ETA is stale
            values[_ETA] = new.eta_s
    return replace(news[-1], t=t, **dict(zip(MEASURED, values, strict=True))) if rest else old


def _stop_intended(s: st.RunState, event: ev.StopIntended) -> st.RunState:
    # A stop cancels a restart that a person had decided on while the attempt was running.
    again = event.why is ev.StopWhy.RESTART or event.why not in st.REQUESTED_STOPS
    s = _with_failure(s, event) if event.why in _OURS_AFTER_A_FAILURE else s
    s = _edit(s, event.attempt, stop=event, **({} if again else {"decision": None, "decided_by": ""}))
    return replace(s, condition=st.Stopping(attempt=event.attempt, why=event.why, by=event.by))


def _stop_step_taken(s: st.RunState, event: ev.StopStepTaken) -> st.RunState:
    if not isinstance(s.condition, st.Stopping):
        return s
    return replace(s, condition=replace(s.condition, step=event.step))


def _processes_left(s: st.RunState, event: ev.ProcessesLeft) -> st.RunState:
    found = s.find(event.attempt)
    return _edit(s, event.attempt, left=(*found.left, event)) if found is not None else s


def _processes_gone(s: st.RunState, event: ev.ProcessesGone) -> st.RunState:
    s = _edit(_with_failure(s, event), event.attempt, gone_t=event.t, exit_code=event.exit_code, stall=None)
    return replace(s, condition=st.Ended(attempt=event.attempt, exit_code=event.exit_code))


def _attempt_ended(s: st.RunState, event: ev.AttemptEnded) -> st.RunState:
    found = s.find(event.attempt)
    ranks = dict(found.ranks) if found else {}
    for local_rank, code in event.rank_exit_codes.items():
        known = ranks.get(local_rank, st.RankState(local_rank=local_rank))
        ranks[local_rank] = replace(known, exited=True, exit_code=code)
    gone_t = found.gone_t if found and found.gone_t is not None else event.t
    changes: dict[str, object] = {
        "ended_t": min(event.exit_t, gone_t) if event.exit_t is not None else gone_t,
        "exit_code": event.exit_code,
        "ranks": ranks,
        **_NO_STALL,
        "memory_kills": event.memory_kills,
        "log_read_bytes": event.log_read_bytes,
        "log_size_bytes": event.log_size_bytes,
    }
    if event.last_step is not None:
        changes["last_step"] = event.last_step
    s = _edit(_with_failure(s, event), event.attempt, **changes)
    return replace(s, condition=st.Ended(attempt=event.attempt, exit_code=event.exit_code))


def _logs_dated(s: st.RunState, event: ev.LogsDated) -> st.RunState:
    found = s.find(event.attempt)
    if found is None or (event.began_t is None and not event.over):
        return s
    s = _edit(
        s,
        event.attempt,
        started_t=event.began_t,
        found_over=event.over,
        day_guessed=event.day_guessed,
        stamped_t=event.over_t if event.copied else None,
    )
    if found.ended_t is not None and event.over_t is not None:
        s = _edit(s, event.attempt, ended_t=event.over_t)
    return s


def _log_quiet(s: st.RunState, event: ev.LogQuiet) -> st.RunState:
    found = s.find(event.attempt)
    if found is None:
        return s
    if event.since_t is None and found.ended_t is not None:
        # The job had not ended, so withdraw the records of its end.
        back = {"ended_t": None, "verdict": None, "log_read_bytes": None, "log_size_bytes": None}
        s = _edit(s, event.attempt, **back)
        phase = found.phase or ev.Phase.RENDEZVOUS
        s = replace(s, condition=st.Running(attempt=event.attempt, phase=phase))
    return _edit(s, event.attempt, quiet_since=event.since_t, log_checked=True)


def _diagnosed(s: st.RunState, event: ev.Diagnosed) -> st.RunState:
    s = _edit(s, event.attempt, verdict=event.verdict, verdict_provisional=event.provisional)
    if event.provisional:
        return s
    return replace(s, condition=st.DiagnosedAs(attempt=event.attempt, verdict=event.verdict))


def _backoff_started(s: st.RunState, event: ev.BackoffStarted) -> st.RunState:
    found = s.find(event.attempt)
    if found is None or found.decision is None:
        return s
    waits = st.Backoff(
        attempt=event.attempt, until=event.until, decision=found.decision, delay_s=event.delay_s
    )
    return replace(s, condition=waits, ended_t=None)  # a finished run can be continued


def _held(s: st.RunState, event: ev.Held) -> st.RunState:
    found = s.find(event.attempt)
    held = st.HeldOpen(
        attempt=event.attempt,
        reason=event.reason,
        decision=found.decision if found else None,
        until=event.until,
    )
    return replace(s, condition=held)


def _batch_answered(s: st.RunState, event: ev.BatchAnswered) -> st.RunState:
    """Apply an answer's batch to the attempts whose batch was unknown, replacing any earlier answer."""
    what = event.question.what
    # The previous setting's scope tells nothing about this setting.
    gone = {what, Unread.SCOPE} if what is Unread.MICRO else {what}
    answers = {k: one for k, one in s.answers.items() if k not in gone} | {what: event}
    if what not in OF_BATCH:
        return replace(s, answers=answers)
    before = s.answer.batch if s.answer is not None else None
    attempts = tuple(replace(a, batch=event.batch) if a.batch in (None, before) else a for a in s.attempts)
    return replace(s, answers=answers, attempts=attempts)


def _plan_differs(s: st.RunState, event: ev.PlanDiffers) -> st.RunState:
    """Drop an answer if the attempt that used it ran with a batch other than the planned one."""
    s = _edit(s, event.attempt, differs=event)
    given = s.answers.get(event.wrong) if event.wrong is not None else None
    if given is None:
        return s
    answers = {what: one for what, one in s.answers.items() if one is not given}
    return replace(s, answers=answers, wrong=(*s.wrong, given.value))


def _node_seen(s: st.RunState, event: ev.NodeSeen) -> st.RunState:
    found = s.find(event.attempt) if event.attempt is not None else None
    if event.sight is ev.NodeSight.ENDED and found is not None:
        changes: dict[str, object] = {"node_exits": {**found.node_exits, event.node: event.exit_code}}
        if event.stop is not None and found.stop is None:
            # Ranks that checkpoint together end together. Node 0's part may have ended before its keeper learns of the signal.
            stop = ev.StopIntended(
                t=event.t,
                attempt=found.number,
                why=event.stop,
                by=ev.on_node(event.node, event.by),
                grace_s=0.0,
            )
            changes["stop"] = stop
        s = _edit(s, found.number, **changes)
    return replace(s, nodes={**s.nodes, event.node: event})


def _run_ended(s: st.RunState, event: ev.RunEnded) -> st.RunState:
    finished = st.Finished(outcome=event.outcome, exit_code=event.exit_code, reason=event.reason)
    kept = () if event.outcome is ev.Outcome.SUCCEEDED else s.kept
    if s.attempt is not None:  # a person may continue the run at any later time, which is not a recovery
        s = _edit(s, s.attempt.number, failed_t=None)
    return replace(s, condition=finished, ended_t=event.t, kept=kept)


Change: TypeAlias = Callable[[st.RunState, Any], st.RunState]


def _nothing(s: st.RunState, _event: ev.Event) -> st.RunState:
    """Change nothing. The event may still appear on the timeline."""
    return s


def _answered(s: st.RunState, event: ev.RequestDone | ev.RequestRefused) -> st.RunState:
    answer = event.reason if isinstance(event, ev.RequestRefused) else "done"
    earlier = [*s.answered.items()][-st.MAX_ANSWERED :]
    return replace(s, answered={**dict(earlier), event.request_id: answer})


def _kept_as(field: str, **others: object) -> Change:
    """Return a change that stores the latest event of a kind in `field` and sets `others`."""
    return lambda s, event: _edit(s, event.attempt, **{field: event}, **others)


CHANGES: Mapping[type[ev.Event], Change] = {
    ev.RunStarted: _run_started,
    ev.NodeSeen: _node_seen,
    ev.KeeperStarted: _keeper_started,
    ev.KeeperLeft: lambda s, event: replace(s, keeper_left=event.why),
    ev.ClockSet: lambda s, event: replace(s, clock_ahead_s=event.ahead_s),
    ev.PreflightFound: lambda s, event: replace(s, findings=(*s.findings, event.finding)),
    ev.GpuFound: _nothing,
    ev.LaunchIntended: _launch_intended,
    ev.AttemptStarted: _attempt_started,
    ev.RankStarted: lambda s, event: _edit_rank(
        s, event, **_given(event, "rank", "pid", "start_time", "stdout", "stderr")
    ),
    ev.PhaseChanged: _phase_changed,
    ev.TrainerReady: lambda s, event: _edit(
        s, event.attempt, resumed_step=event.resumed_step, memory_base_bytes=event.memory_base_bytes
    ),
    ev.BatchMeasured: _kept_as("measured"),
    ev.PlanConfirmed: _kept_as("confirmed"),
    ev.PlanDiffers: _plan_differs,
    ev.Progress: _progress,
    ev.CheckpointCommitted: _checkpoint_committed,
    ev.CheckpointKept: lambda s, event: replace(s, kept=(*s.kept, event), waiting=None),
    ev.ResumeMissed: _kept_as("missed"),
    ev.EvidenceSeen: _evidence_seen,
    ev.RankExited: _rank_exited,
    ev.RankFailing: lambda s, event: _edit(s, event.attempt, failing=event, **_NO_STALL),
    ev.StopIntended: _stop_intended,
    ev.StopStepTaken: _stop_step_taken,
    ev.ProcessesLeft: _processes_left,
    ev.ProcessesGone: _processes_gone,
    ev.AttemptEnded: _attempt_ended,
    ev.LogsDated: _logs_dated,
    ev.LogQuiet: _log_quiet,
    ev.Diagnosed: _diagnosed,
    ev.Decided: lambda s, event: _edit(s, event.attempt, decision=event.decision, decided_by=event.by),
    ev.BackoffStarted: _backoff_started,
    ev.Held: _held,
    ev.RequestDone: _answered,
    ev.RequestRefused: _answered,
    ev.Advisory: lambda s, event: replace(s, advisories=(*s.advisories, event)[-st.MAX_ADVISORIES :]),
    ev.SlowRankFound: _kept_as("slow_rank"),
    ev.LossNotFinite: _kept_as("not_finite"),
    ev.LossFinite: _kept_as("finite_again"),
    ev.StacksProbed: _nothing,
    ev.StallFlagged: _kept_as("stall"),
    ev.StacksTaken: _kept_as("stacks"),
    ev.StallEnded: lambda s, event: _edit(s, event.attempt, **_NO_STALL),
    ev.OnlyFlagged: _kept_as("only_flagged"),
    ev.HangCountdown: _kept_as("countdown", only_flagged=None),
    ev.HangWithdrawn: lambda s, event: _edit(s, event.attempt, countdown=None),
    ev.HangKept: _kept_as("kept", countdown=None),
    ev.HangFound: _kept_as("hang", countdown=None),
    ev.MemoryMeasured: lambda s, event: _edit(s, event.attempt, trial=event.trial),
    ev.ChangePlanned: lambda s, event: _edit(s, event.attempt, change=event.lines),
    ev.WaitingFor: lambda s, event: replace(s, waiting=event),
    ev.LaunchCleared: lambda s, _event: replace(s, waiting=None),
    ev.Recovered: _kept_as("recovery"),
    ev.ResumeCompared: _kept_as("compared"),
    ev.BatchAsked: lambda s, event: replace(s, asked=event),
    ev.BatchAnswered: _batch_answered,
    ev.ProbeStarted: lambda s, event: replace(s, probing=event),
    ev.ProbeEnded: lambda s, event: replace(s, probing=None, probes=(*s.probes, event)),
    ev.BatchFitted: lambda s, event: replace(s, fitted=event),
    ev.NoteAdded: _nothing,
    ev.RunEnded: _run_ended,
}
"""How each kind of event changes the state. `run.timeline` decides what the event contributes to the timeline."""
