"""The fold: how each fact changes the state. Pure; no clock, no file, no thread."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import assert_never

from msgspec.structs import replace

from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run import timeline as tl
from supervisor.run.timeline import mark as _mark

_NO_MEASURE = {"t", "v", "attempt", "lows", "lag_bytes", "log_bytes"}
MEASURED = tuple(name for name in ev.Progress.__struct_fields__ if name not in _NO_MEASURE)
"""What a progress says of the job itself."""
_NO_STALL: dict[str, object] = {"stall": None, "only_flagged": None, "countdown": None, "kept": None}


def fold(state: st.RunState, event: ev.Event) -> st.RunState:
    """The state after `event`.

    Facts that contradict the state are kept as far as they make sense:
    a reader may open a journal that was cut, so the fold never raises.
    """
    return _apply(replace(state, last_t=event.t), event)


def replay(events: Iterable[ev.Event]) -> st.RunState:
    """The state after all of `events`, from nothing."""
    state = st.RunState()
    for event in events:
        state = fold(state, event)
    return state


def _apply(s: st.RunState, event: ev.Event) -> st.RunState:
    """One line a kind of fact; what takes more has a function of its own below."""
    match event:
        case ev.RunStarted():
            return _run_started(s, event)
        case ev.KeeperStarted():
            return _keeper_started(s, event)
        case ev.KeeperLeft():
            return replace(s, keeper_left=event.why)
        case ev.ClockSet():
            return _clock_set(s, event)
        case ev.PreflightFound():
            return replace(s, findings=(*s.findings, event.finding))
        case ev.LaunchIntended():
            return _launch_intended(s, event)
        case ev.AttemptStarted():
            s = _edit(s, event.attempt, started_t=event.t, pid=event.pid, start_time=event.start_time)
            return replace(s, condition=st.Running(attempt=event.attempt, phase=ev.Phase.RENDEZVOUS))
        case ev.RankStarted():
            return _rank_started(s, event)
        case ev.PhaseChanged():
            return _phase_changed(s, event)
        case ev.TrainerReady():
            base = event.memory_base_bytes
            return _edit(s, event.attempt, resumed_step=event.resumed_step, memory_base_bytes=base)
        case ev.Progress():
            return _progress(s, event)
        case ev.CheckpointCommitted():
            return _checkpoint_committed(s, event)
        case ev.EvidenceSeen():
            who = f"rank {event.rank}: " if event.rank is not None else ""
            return _mark(s, event.t, "bad", f"{who}{event.failure} — {event.text[:160]}")
        case ev.RankExited():
            return _rank_exited(s, event)
        case ev.StopIntended():
            return _stop_intended(s, event)
        case ev.StopStepTaken():
            return _stop_rung_taken(s, event)
        case ev.ProcessesLeft():
            return _processes_left(s, event)
        case ev.LogsDated():
            return _logs_dated(s, event)
        case ev.ProcessesGone():
            s = _edit(s, event.attempt, gone_t=event.t, exit_code=event.exit_code, stall=None)
            return replace(s, condition=st.Ended(attempt=event.attempt, exit_code=event.exit_code))
        case ev.AttemptEnded():
            return _attempt_ended(s, event)
        case ev.Diagnosed():
            return _diagnosed(s, event)
        case ev.Decided():
            return _decided(s, event)
        case ev.BackoffStarted():
            return _backoff_started(s, event)
        case ev.Held():
            return _held(s, event)
        case ev.RequestDone():
            return _request_done(s, event)
        case ev.RequestRefused():
            refused = replace(s, answered={**s.answered, event.request_id: event.reason})
            return _mark(refused, event.t, "warn", f"refused {event.request}: {event.reason}")
        case ev.Advisory():
            return replace(s, advisories=(*s.advisories, event)[-st.MAX_ADVISORIES :])
        case ev.StacksProbed():
            return _edit(s, event.attempt, stack_source=event.source, stack_note=event.note)
        case ev.StallFlagged():
            s = _edit(s, event.attempt, stall=event)
            return _mark(s, event.t, "warn", f"nothing moves for {event.waited_s:.0f} s")
        case ev.StacksTaken():
            return _edit(s, event.attempt, stacks=event)
        case ev.StallEnded():
            s = _edit(s, event.attempt, **_NO_STALL)
            return _mark(s, event.t, "info", f"it moves again, after {event.stalled_s:.0f} s")
        case ev.OnlyFlagged():
            return _edit(s, event.attempt, only_flagged=event)
        case ev.HangCountdown():
            s = _edit(s, event.attempt, countdown=event, only_flagged=None)
            return _mark(s, event.t, "warn", f"ended as a hang in {event.left_s:.0f} s")
        case ev.HangWithdrawn():
            s = _edit(s, event.attempt, countdown=None)
            return _mark(s, event.t, "info", f"not ended: {event.why}")
        case ev.HangKept():
            return _edit(s, event.attempt, countdown=None, kept=event)  # the request stands on the timeline
        case ev.HangFound():
            s = _edit(s, event.attempt, hang=event, countdown=None)
            return _mark(s, event.t, "bad", f"hang: {event.text}")
        case ev.MemoryMeasured():
            return _edit(s, event.attempt, trial=event.trial)
        case ev.ChangePlanned():
            return _edit(s, event.attempt, change=event.lines)
        case ev.WaitingFor():
            return _mark(replace(s, waiting=event), event.t, "warn", event.text)
        case ev.LaunchCleared():
            s = replace(s, waiting=None)
            return _mark(s, event.t, "info", event.text) if event.text else s
        case ev.Recovered() | ev.ResumeCompared():
            return _resumed(s, event)
        case ev.ProbeStarted():
            text = f"probe {event.probe}: does micro-batch {event.micro_batch} fit?"
            return _mark(replace(s, probing=event), event.t, "info", text)
        case ev.ProbeEnded():
            text = f"probe {event.probe}: micro-batch {event.micro_batch} {event.why}"
            return _mark(replace(s, probing=None, probes=(*s.probes, event)), event.t, "info", text)
        case ev.BatchFitted():
            return _mark(replace(s, fitted=event), event.t, "good", event.text)
        case ev.NoteAdded():
            return _mark(s, event.t, "info", f"note: {event.text}")
        case ev.RunEnded():
            return _run_ended(s, event)
        case _ as unreachable:
            assert_never(unreachable)


def _find(s: st.RunState, number: int) -> st.AttemptView | None:
    return next((a for a in reversed(s.attempts) if a.number == number), None)


def _edit(s: st.RunState, number: int, **changes: object) -> st.RunState:
    """The state with the fields of attempt `number` changed; unknown attempts are left alone."""
    attempts = tuple(replace(a, **changes) if a.number == number else a for a in s.attempts)
    return replace(s, attempts=attempts)


def _run_started(s: st.RunState, event: ev.RunStarted) -> st.RunState:
    return replace(
        s,
        run_id=event.run_id,
        name=event.name,
        mode=event.mode,
        host=event.host,
        source=event.source,
        total_steps=event.total_steps,
        world_size=event.world_size,
        started_t=event.t,
    )


def _keeper_started(s: st.RunState, event: ev.KeeperStarted) -> st.RunState:
    s = replace(s, keeper_pid=event.pid, boot_id=event.boot_id, keeper_left=None, clock_ahead_s=0.0)
    slurm_job = event.slurm_job or (None if event.continued_by else s.slurm_job)
    s = replace(s, host=event.host or s.host, slurm_job=slurm_job)
    if event.continued_by:
        return _mark(s, event.t, "info", f"{event.continued_by} continues the run")
    return _mark(s, event.t, "info", "a new keeper adopted the run") if event.adopted else s


def _clock_set(s: st.RunState, event: ev.ClockSet) -> st.RunState:
    by_s = event.ahead_s - s.clock_ahead_s
    text = (
        f"the machine's clock was set forward by {by_s:.0f} s: times here go on without the jump"
        if by_s > 0
        else f"the machine's clock was set back by {-by_s:.0f} s: times here go on without the jump"
    )
    return _mark(replace(s, clock_ahead_s=event.ahead_s), event.t, "warn", text)


def _resumed(s: st.RunState, event: ev.Recovered | ev.ResumeCompared) -> st.RunState:
    if isinstance(event, ev.ResumeCompared):
        return tl.said(_edit(s, event.attempt, compared=event), event.t, tl.compared(event))
    s = _edit(s, event.attempt, recovery=event)
    return tl.said(s, event.t, tl.recovered(event, _find(s, event.after)))


def _launch_intended(s: st.RunState, event: ev.LaunchIntended) -> st.RunState:
    view = st.AttemptView(
        number=event.attempt,
        argv=event.argv,
        reason=event.reason,
        batch=event.batch,
        resume=event.resume,
        script_hash=event.script_hash,
        planned_t=event.t,
    )
    s = replace(
        s,
        attempts=(*(a for a in s.attempts if a.number != event.attempt), view),
        condition=st.Launching(attempt=event.attempt),
        ended_t=None,  # a run that was over may be continued
        progress=None,
    )
    return tl.said(s, event.t, tl.launching(event, s.attempts[-2] if len(s.attempts) > 1 else None))


def _rank_started(s: st.RunState, event: ev.RankStarted) -> st.RunState:
    found = _find(s, event.attempt)
    if found is None:
        return s
    known = found.ranks.get(event.local_rank, st.RankView(local_rank=event.local_rank))
    seen = replace(
        known,
        rank=event.rank if event.rank is not None else known.rank,
        pid=event.pid if event.pid is not None else known.pid,
        start_time=event.start_time if event.start_time is not None else known.start_time,
        stdout=event.stdout or known.stdout,
        stderr=event.stderr or known.stderr,
    )
    return _edit(s, event.attempt, ranks={**found.ranks, event.local_rank: seen})


def _rank_exited(s: st.RunState, event: ev.RankExited) -> st.RunState:
    found = _find(s, event.attempt)
    if found is None:
        return s
    known = found.ranks.get(event.local_rank, st.RankView(local_rank=event.local_rank))
    code = event.exit_code if event.exit_code is not None else known.exit_code
    gone = replace(known, exited=True, exit_code=code)
    return _edit(s, event.attempt, ranks={**found.ranks, event.local_rank: gone})


def _phase_changed(s: st.RunState, event: ev.PhaseChanged) -> st.RunState:
    s = _edit(s, event.attempt, phase=event.phase, phase_t=event.t)
    if isinstance(s.condition, st.Running):
        s = replace(s, condition=st.Running(attempt=event.attempt, phase=event.phase))
    return s


def _checkpoint_committed(s: st.RunState, event: ev.CheckpointCommitted) -> st.RunState:
    found = _find(s, event.attempt)
    steps = (*found.checkpoint_steps, event.step) if found else (event.step,)
    s = _edit(s, event.attempt, checkpoint_steps=steps[-st.MAX_CHECKPOINT_STEPS :])
    kept = (*s.checkpoints, event)[-st.MAX_CHECKPOINTS :]
    s = replace(s, checkpoint=event, checkpoints=kept)
    return _mark(s, event.t, "good", f"checkpoint at step {event.step}", event.step)


def _progress(s: st.RunState, event: ev.Progress) -> st.RunState:
    found = _find(s, event.attempt)
    if found is not None:
        changes: dict[str, object] = {}
        if event.step is not None:
            changes["last_step"] = event.step
            if found.first_step is None:
                changes |= {"first_step": event.step, "first_step_t": event.t}
        if event.loss is not None:
            changes["last_loss"] = event.loss
            if found.first_loss is None:
                changes["first_loss"] = event.loss
        if changes:
            s = _edit(s, event.attempt, **changes)
    if event.step is not None and found is not None and found.first_step is None:
        s = _without_abandoned(s, event.attempt)
    merged = merge_progress(s.progress, event)
    condition = s.condition
    stepping = isinstance(condition, st.Running) and condition.phase in {
        ev.Phase.RENDEZVOUS,
        ev.Phase.LOADING,
    }
    if stepping and (event.step is not None or event.loss is not None):
        condition = st.Running(attempt=event.attempt, phase=ev.Phase.STEPPING)
    for step, loss in (*event.lows, (merged.step, event.loss)):
        s = _record(s, step, loss)
    return replace(
        s,
        progress=merged,
        total_steps=event.total_steps if event.total_steps is not None else s.total_steps,
        condition=condition,
    )


def _record(s: st.RunState, step: int | None, loss: float | None) -> st.RunState:
    """A loss that is the least so far is kept, with its step."""
    if loss is None or math.isnan(loss) or (s.best_loss is not None and loss >= s.best_loss):
        return s
    records = (*s.records, (step if step is not None else -1, loss))
    if len(records) > st.MAX_RECORDS:
        records = (*records[:-1][::2], records[-1])
    return replace(s, best_loss=loss, records=records)


def _without_abandoned(s: st.RunState, number: int) -> st.RunState:
    """The best loss without that of steps which attempt `number` does again; what bears no step stays."""
    found = _find(s, number)
    if found is None or not s.records:
        return s
    kept = tuple(record for record in s.records if record[0] < found.begins_at)
    return replace(s, records=kept, best_loss=kept[-1][1] if kept else None)


def merge_progress(old: ev.Progress | None, new: ev.Progress) -> ev.Progress:
    """Later values win; a value not said again stays, within one attempt. What says only how far the logs are read is no progress."""
    if old is None or old.attempt != new.attempt:
        return new
    said = [name for name in MEASURED if getattr(new, name) is not None]
    if not said:
        return replace(old, lows=new.lows, lag_bytes=new.lag_bytes, log_bytes=new.log_bytes)
    return replace(new, **{name: getattr(old, name) for name in MEASURED if name not in said})


def _stop_intended(s: st.RunState, event: ev.StopIntended) -> st.RunState:
    # A stop takes back the restart that a person had decided on while the attempt lived.
    again = event.why in {ev.StopWhy.RESTART, ev.StopWhy.RANK_DIED, ev.StopWhy.HANG}
    s = _edit(s, event.attempt, stop=event, **({} if again else {"decision": None, "decided_by": ""}))
    s = replace(s, condition=st.Stopping(attempt=event.attempt, why=event.why, by=event.by))
    return tl.said(s, event.t, tl.stopping(event))


def _stop_rung_taken(s: st.RunState, event: ev.StopStepTaken) -> st.RunState:
    if isinstance(s.condition, st.Stopping):
        s = replace(s, condition=replace(s.condition, rung=event.rung))
    if event.rung is not ev.StopStep.SURVIVORS:
        return s
    return _mark(s, event.t, "bad", f"processes that would not end: {', '.join(map(str, event.pids))}")


def _processes_left(s: st.RunState, event: ev.ProcessesLeft) -> st.RunState:
    found = _find(s, event.attempt)
    s = _edit(s, event.attempt, left=(*found.left, event) if found is not None else ())
    return _mark(s, event.t, "warn", tl.left(event))


def _attempt_ended(s: st.RunState, event: ev.AttemptEnded) -> st.RunState:
    found = _find(s, event.attempt)
    ranks = dict(found.ranks) if found else {}
    for local_rank, code in event.rank_exit_codes.items():
        known = ranks.get(local_rank, st.RankView(local_rank=local_rank))
        ranks[local_rank] = replace(known, exited=True, exit_code=code)
    changes: dict[str, object] = {
        "ended_t": found.gone_t if found and found.gone_t is not None else event.t,
        "exit_code": event.exit_code,
        "ranks": ranks,
        **_NO_STALL,
        "memory_kills": event.memory_kills,
        "log_read_bytes": event.log_read_bytes,
        "log_size_bytes": event.log_size_bytes,
    }
    if event.last_step is not None:
        changes["last_step"] = event.last_step
    s = _edit(s, event.attempt, **changes)
    s = replace(s, condition=st.Ended(attempt=event.attempt, exit_code=event.exit_code))
    return tl.said(s, event.t, tl.ended(event, _find(s, event.attempt)))


def _logs_dated(s: st.RunState, event: ev.LogsDated) -> st.RunState:
    found = _find(s, event.attempt)
    if found is None or (event.began_t is None and not event.over):
        return s
    s = _edit(s, event.attempt, started_t=event.began_t, found_over=event.over)
    if found.ended_t is not None and event.over_t is not None:
        s = _edit(s, event.attempt, ended_t=event.over_t)
    return s


def _diagnosed(s: st.RunState, event: ev.Diagnosed) -> st.RunState:
    s = _edit(s, event.attempt, verdict=event.verdict, verdict_provisional=event.provisional)
    if event.provisional:
        return s
    s = replace(s, condition=st.DiagnosedAs(attempt=event.attempt, verdict=event.verdict))
    return tl.said(s, event.t, tl.judged(event, _find(s, event.attempt)))


def _decided(s: st.RunState, event: ev.Decided) -> st.RunState:
    words = tl.decided(event, _find(s, event.attempt))
    return tl.said(_edit(s, event.attempt, decision=event.decision, decided_by=event.by), event.t, words)


def _backoff_started(s: st.RunState, event: ev.BackoffStarted) -> st.RunState:
    found = _find(s, event.attempt)
    if found is None or found.decision is None:
        return s
    waits = st.Backoff(
        attempt=event.attempt, until=event.until, decision=found.decision, delay_s=event.delay_s
    )
    return replace(s, condition=waits, ended_t=None)  # a run that was over may be continued


def _held(s: st.RunState, event: ev.Held) -> st.RunState:
    found = _find(s, event.attempt)
    held = st.HeldOpen(
        attempt=event.attempt,
        reason=event.reason,
        decision=found.decision if found else None,
        until=event.until,
    )
    return _mark(replace(s, condition=held), event.t, "warn", f"held: {event.reason}")


def _request_done(s: st.RunState, event: ev.RequestDone) -> st.RunState:
    s = replace(s, answered={**s.answered, event.request_id: "done"})
    if event.request is ev.RequestKind.NOTE:
        return s  # the note itself stands on the timeline
    return tl.said(s, event.t, tl.asked(event, s.attempts[-1] if s.attempts else None))


def _run_ended(s: st.RunState, event: ev.RunEnded) -> st.RunState:
    finished = st.Finished(outcome=event.outcome, exit_code=event.exit_code, reason=event.reason)
    return tl.said(replace(s, condition=finished, ended_t=event.t), event.t, tl.over(event))
