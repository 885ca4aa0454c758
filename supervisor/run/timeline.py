"""The timeline entries of events: a kind with values, each value once. Pure.

There are no words here. `views.wording` words each kind in each language.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from msgspec.structs import replace

from supervisor.job.arguments.command_line import differing
from supervisor.job.spec import IN_CODE, BatchQuestion, Unread
from supervisor.run import events as ev
from supervisor.run.records import DecisionKind, FailureClass, Sameness, SpecChange
from supervisor.run.state import REQUESTED_STOPS, AttemptState, Moment, MomentKind, RunState, Tone
from supervisor.text.lines import read_amounts

POLICY = "policy"
"""`events.Decided.by` of decisions that no person made."""
EVIDENCE_CHARS = 160

_Values: TypeAlias = dict[str, str | int | float | None]
_Found: TypeAlias = tuple[MomentKind, Tone, _Values] | None

# Stops for these reasons have no request on the timeline.
_STOPS_SHOWN = {
    ev.StopWhy.SIGNAL,
    ev.StopWhy.RANK_DIED,
    ev.StopWhy.REQUEUE,
    ev.StopWhy.HANG,
    ev.StopWhy.TRIAL,
    ev.StopWhy.NOT_RESUMED,
    ev.StopWhy.PLAN_DIFFERS,
}
# Decisions that a hold, or the end of the run, repeats at once with the same reason.
_SHOWN_BY_THE_NEXT = {DecisionKind.HOLD, DecisionKind.SUCCEED, DecisionKind.FAIL, DecisionKind.GIVE_UP}
# Requests whose own event is on the timeline.
_SHOWN_THEMSELVES = {ev.RequestKind.NOTE, ev.RequestKind.ANSWER}
_RESTARTS = {ev.RequestKind.RESTART, ev.RequestKind.RESTART_WITH}
_SAMENESS = {
    Sameness.SAME: Tone.GOOD,
    Sameness.SAME_WITHIN_NOISE: Tone.GOOD,
    Sameness.DIFFERS: Tone.BAD,
    Sameness.UNKNOWN: Tone.INFO,
}
_SIGHTS = {
    ev.NodeSight.JOINED: Tone.INFO,
    ev.NodeSight.SILENT: Tone.WARN,
    ev.NodeSight.BACK: Tone.GOOD,
    ev.NodeSight.ENDED: Tone.INFO,
    ev.NodeSight.LEFT: Tone.WARN,
}
_MOST_LEFT = 5
# The changes that a launch makes on its own.
_LAUNCHER_FLAGS = {"--log-dir", "--master-port", "--master-addr", "--standalone", "--node-rank"}
_OF_ATTEMPT = re.compile(r"attempts/\d+/")
_OUTCOMES = {ev.Outcome.SUCCEEDED: Tone.GOOD, ev.Outcome.STOPPED: Tone.INFO}


# Events that always add a moment, whose values are fields of the event.
_PLAIN: Mapping[type[ev.Event], tuple[MomentKind, Tone, tuple[str, ...]]] = {
    ev.CheckpointKept: (MomentKind.KEPT, Tone.INFO, ("step", "copy", "why")),
    ev.ResumeMissed: (MomentKind.MISSED, Tone.BAD, ("step", "began")),
    ev.PlanConfirmed: (MomentKind.CONFIRMED, Tone.GOOD, ("planned",)),
    ev.PlanDiffers: (MomentKind.DIFFERS, Tone.BAD, ("text",)),
    ev.Held: (MomentKind.HELD, Tone.WARN, ("reason",)),
    ev.RequestRefused: (MomentKind.REFUSED, Tone.WARN, ("request", "reason")),
    ev.StallFlagged: (MomentKind.STALL, Tone.WARN, ("waited_s",)),
    ev.StallEnded: (MomentKind.STALL_ENDED, Tone.INFO, ("stalled_s",)),
    ev.LossNotFinite: (MomentKind.LOSS_NOT_FINITE, Tone.WARN, ("value", "step", "rank", "last")),
    ev.LossFinite: (MomentKind.LOSS_FINITE, Tone.INFO, ("step", "loss")),
    ev.HangCountdown: (MomentKind.HANG_COUNTDOWN, Tone.WARN, ("left_s",)),
    ev.HangWithdrawn: (MomentKind.HANG_WITHDRAWN, Tone.INFO, ("why",)),
    ev.HangFound: (MomentKind.HANG, Tone.BAD, ("text",)),
    ev.WaitingFor: (MomentKind.WAITING, Tone.WARN, ("text",)),
    ev.ProbeStarted: (MomentKind.PROBE, Tone.INFO, ("probe", "micro_batch")),
    ev.ProbeEnded: (MomentKind.PROBE_ENDED, Tone.INFO, ("probe", "micro_batch", "why")),
    ev.BatchFitted: (MomentKind.BATCH_FITTED, Tone.GOOD, ("text",)),
    ev.NoteAdded: (MomentKind.NOTE, Tone.INFO, ("text",)),
}


def moment_of(event: ev.Event, state: RunState) -> Moment | None:
    """Return an event's entry in the timeline, or None for most events. `state`: before the event."""
    found = _found(event, state)
    if found is None:
        return None
    kind, tone, values = found
    number = state.attempts[-1].number if state.attempts else None
    return Moment(
        t=_written_t(event, state) if isinstance(event, ev.CheckpointCommitted) else event.t,
        attempt=event.attempt if isinstance(event, ev.LaunchIntended) else number,
        kind=kind,
        tone=tone,
        values={name: value for name, value in values.items() if value is not None},
        change=_change_of(event, state) if isinstance(event, ev.RequestDone) else None,
    )


def _found(event: ev.Event, state: RunState) -> _Found:
    """Return the kind, tone and values of an event's entry."""
    if (plain := _PLAIN.get(type(event))) is not None:
        kind, tone, fields = plain
        return kind, tone, {name: getattr(event, name) for name in fields}
    match event:
        case ev.Progress():
            return None  # nine events of ten
        case ev.KeeperStarted() if event.continued_by:
            return MomentKind.CONTINUED, Tone.INFO, {"by": event.continued_by}
        case ev.KeeperStarted() if event.adopted:
            return MomentKind.ADOPTED, Tone.INFO, {}
        case ev.ClockSet():
            by_s = event.ahead_s - state.clock_ahead_s
            kind = MomentKind.CLOCK_FORWARD if by_s > 0 else MomentKind.CLOCK_BACK
            return kind, Tone.WARN, {"by_s": abs(by_s)}
        case ev.CheckpointCommitted():
            at = "about" if event.step_by_time else "step"
            return MomentKind.CHECKPOINT, Tone.GOOD, {at: event.step}
        case ev.LaunchIntended():
            return _launch(event, state)
        case ev.EvidenceSeen():
            values: _Values = {"rank": event.rank, "failure": event.failure}
            return MomentKind.EVIDENCE, Tone.BAD, {**values, "text": event.text[:EVIDENCE_CHARS]}
        case ev.RankFailing():
            rank = event.rank if event.rank is not None else event.local_rank
            values = {"rank": rank, "sign": event.sign, "exit_code": event.exit_code}
            return MomentKind.RANK_FAILING, Tone.BAD, values
        case ev.StopIntended() if event.why in _STOPS_SHOWN:
            tone = Tone.INFO if event.why in REQUESTED_STOPS else Tone.WARN
            return MomentKind.STOPPING, tone, {"why": event.why, "by": event.by}
        case ev.StopStepTaken(step=ev.StopStep.SURVIVORS):
            return MomentKind.SURVIVORS, Tone.BAD, {"pids": event.labels}
        case ev.ProcessesLeft():
            names = [f"{one.pid} {one.command}".rstrip() for one in event.processes]
            names[_MOST_LEFT:] = ["…"] if len(names) > _MOST_LEFT else []
            return MomentKind.PROCESSES_LEFT, Tone.WARN, {"why": event.why, "processes": ", ".join(names)}
        case ev.AttemptEnded():
            return _ended(event, state.find(event.attempt))
        case ev.Diagnosed():
            return _verdict(event, state.find(event.attempt))
        case ev.Decided():
            return _decision(event, state.find(event.attempt))
        case ev.BatchAsked():
            return MomentKind.ASKED, Tone.WARN, question_values(event.question)
        case ev.BatchAnswered():
            values = answer_values(event.question, event.value)
            if event.day:
                return MomentKind.REMEMBERED, Tone.INFO, {**values, "day": event.day}
            return MomentKind.ANSWERED, Tone.INFO, {**values, "by": event.by or None, "trial": event.trial}
        case ev.RequestDone() if event.request not in _SHOWN_THEMSELVES:
            request = ev.RequestKind.RESTART if event.request in _RESTARTS else event.request
            return MomentKind.REQUEST, Tone.INFO, {"by": event.by, "request": request}
        case ev.LaunchCleared() if event.text:
            return MomentKind.CLEARED, Tone.INFO, {"text": event.text}
        case ev.Recovered():
            before = state.find(event.after)
            requested = before is not None and before.ended_on_request
            kind, tone = (MomentKind.RESUMED, Tone.INFO) if requested else (MomentKind.RECOVERED, Tone.GOOD)
            return kind, tone, {"total_s": event.total_s}
        case ev.ResumeCompared():
            values = {"attempt": event.attempt, "result": event.result, "difference": event.difference}
            tone = Tone.INFO if event.asked else _SAMENESS[event.result]
            return MomentKind.COMPARED, tone, {**values, "text": event.text, "asked": event.asked or None}
        case ev.NodeSeen():
            values = {"node": event.node, "host": event.host, "sight": event.sight, "by": event.by}
            failed = event.sight is ev.NodeSight.ENDED and event.exit_code != 0
            tone = Tone.BAD if failed else _SIGHTS[event.sight]
            return MomentKind.NODE, tone, {**values, "exit_code": event.exit_code}
        case ev.RunEnded():
            tone = _OUTCOMES.get(event.outcome, Tone.BAD)
            return MomentKind.RUN_ENDED, tone, {"outcome": event.outcome, "reason": event.reason}
        case _:
            return None


def _written_t(event: ev.CheckpointCommitted, state: RunState) -> float:
    """Return when a checkpoint was written, if that was during its attempt. It may be found much later."""
    attempt = state.find(event.attempt)
    written_t = state.now(event.written_t) if event.written_t is not None else event.t
    return written_t if attempt is not None and attempt.planned_t <= written_t <= event.t else event.t


def question_values(question: BatchQuestion) -> _Values:
    """Return the values for the sentence of a question."""
    number = question.number
    if question.what is Unread.SCOPE:
        return {"knob": question.knob, "number": number}
    if question.what is Unread.MICRO and number is not None:
        times = question.passes if question.passes is not None and question.passes > 1 else None
        return {"samples": number, "ranks": question.ranks, "passes": times}
    if question.what is Unread.ACCUMULATION and number is not None:
        return {"summed": number}
    return {"which": question.what}


def answer_values(question: BatchQuestion, value: str) -> _Values:
    """Return the values for the sentence of an answer."""
    if question.what is Unread.SCOPE:
        return {"number": question.number, "scope": value}
    if value == IN_CODE:
        return {"in_code": value}
    held = next((one.number for one in question.answers if one.value == value), None)
    return {str(question.what): value if held is None else f"{value} {held}"}


def _launch(event: ev.LaunchIntended, state: RunState) -> _Found:
    """Return the entry of a launch. If it was requested, the request is the entry above."""
    earlier = [a for a in state.attempts if a.number != event.attempt]
    requested = (
        bool(earlier) and earlier[-1].decision is not None and earlier[-1].decided_by not in {"", POLICY}
    )
    if requested:
        changed = changed_arguments(earlier[-1], event) or None
        return MomentKind.LAUNCH_REQUESTED, Tone.INFO, {"attempt": event.attempt, "arguments": changed}
    return MomentKind.LAUNCH, Tone.INFO, {"attempt": event.attempt, "reason": event.reason}


def changed_arguments(before: AttemptState, after: ev.LaunchIntended | AttemptState) -> str:
    """Return the settings that differ later: ``--lr 1e-2 → 3e-3, + --bf16, − --fused``, or "" if none do.

    Leave out the resume, the launcher's own flags, and paths that differ only in the attempt's number.
    """
    resumed = {word for attempt in (before, after) for word in (attempt.resume or "").split()[:1]}
    parts = []
    for name, (old, new) in differing(*(_comparable(attempt.argv) for attempt in (before, after))):
        if name in resumed or name in _LAUNCHER_FLAGS:
            continue
        if old is None:
            parts.append(f"+ {name} {new}".rstrip())
        else:
            parts.append(f"− {name} {old}".rstrip() if new is None else f"{name} {old} → {new}")
    return ", ".join(parts)


def _comparable(argv: tuple[str, ...]) -> list[str]:
    return [_OF_ATTEMPT.sub("attempts/N/", word) for word in argv]


def _ended(event: ev.AttemptEnded, attempt: AttemptState | None) -> _Found:
    """Return the end of an attempt: who requested it or how it came, and how far its logs were read."""
    read, size, unit = read_amounts(event.log_read_bytes, event.log_size_bytes) or (None, None, None)
    values: _Values = {"attempt": event.attempt, "read": read, "size": size, "unit": unit}
    if attempt is not None and attempt.stop is not None and attempt.ended_on_request:
        how = "restarted" if attempt.stop.why is ev.StopWhy.RESTART else "stopped"
        return MomentKind.ENDED_ON_REQUEST, Tone.INFO, {**values, "how": how, "by": attempt.stop.by}
    match event.exit_code:
        case None:  # unknown
            tone = Tone.WARN if unit else Tone.INFO
        case 0:
            tone = Tone.WARN if unit else Tone.GOOD
        case _:
            tone = Tone.BAD
    return MomentKind.ENDED, tone, {**values, "exit_code": event.exit_code}


def _verdict(event: ev.Diagnosed, attempt: AttemptState | None) -> _Found:
    """Return a failure's title."""
    if event.provisional or event.verdict.failure is FailureClass.HEALTHY:
        return None
    if attempt is not None and replace(attempt, verdict=event.verdict).ended_on_request:
        return None
    return MomentKind.VERDICT, Tone.BAD, {"title": event.verdict.title}


def _decision(event: ev.Decided, attempt: AttemptState | None) -> _Found:
    """Return policy's decision. A person's decision is shown as a request, a stop as the attempt's end."""
    decision = event.decision
    if event.by != POLICY or decision.kind in _SHOWN_BY_THE_NEXT:
        return None
    if attempt is not None:
        again = attempt.decision is not None and attempt.decision.reason == decision.reason
        if again or (decision.kind is DecisionKind.STOP and attempt.ended_on_request):
            return None
    tone = Tone.GOOD if decision.kind is DecisionKind.RESTART else Tone.WARN
    return MomentKind.DECISION, tone, {"decision": decision.kind, "reason": decision.reason}


def _change_of(event: ev.RequestDone, state: RunState) -> SpecChange | None:
    """Return what a requested restart changes."""
    attempt = state.attempts[-1] if state.attempts else None
    if event.request not in _RESTARTS or attempt is None or attempt.decided_by != event.by:
        return None
    decision = attempt.decision
    return decision.change if decision is not None and decision.kind is DecisionKind.RESTART else None
