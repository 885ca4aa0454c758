"""The timeline entries of events: each event's own kind and values, and what the state adds to them. Pure.

There are no words here. `views.wording` has the wording of each kind in each language.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from msgspec.structs import replace

from supervisor.job.arguments.command_line import differing
from supervisor.job.spec import IN_CODE, BatchQuestion, Unread
from supervisor.run import events as ev
from supervisor.run.records import DecisionKind, FailureClass, Sameness
from supervisor.run.state import REQUESTED_STOPS, AttemptState, Moment, RunState, Tone
from supervisor.text.lines import read_amounts

POLICY = "policy"
"""The value of `events.Decided.by` for decisions that no user made."""
EVIDENCE_CHARS = 160

_Values: TypeAlias = dict[str, str | int | float | None]
_Shown: TypeAlias = tuple[Tone, _Values]
"""A tone, and values in addition to the event's own. The value `KIND` replaces the event's kind."""
KIND = "kind"

# Stops for these reasons have their request on the timeline.
_STOPS_REQUESTED = {ev.StopWhy.REQUEST, ev.StopWhy.RESTART}
# Decisions that a hold, or the end of the run, repeats at once with the same reason.
_SHOWN_BY_THE_NEXT = {DecisionKind.HOLD, DecisionKind.SUCCEED, DecisionKind.FAIL, DecisionKind.GIVE_UP}
# Requests whose own event is on the timeline.
_SHOWN_THEMSELVES = {ev.RequestKind.NOTE, ev.RequestKind.ANSWER}
_RESTARTS = {ev.RequestKind.RESTART, ev.RequestKind.RESTART_WITH}
_SAMENESS = {
    Sameness.SAME: Tone.GOOD,
    Sameness.SAME_WITHIN_NOISE: Tone.GOOD,
    Sameness.DIFFERS: Tone.BAD,
}
_SIGHTS = {ev.NodeSight.SILENT: Tone.WARN, ev.NodeSight.BACK: Tone.GOOD, ev.NodeSight.LEFT: Tone.WARN}
_MOST_LEFT = 5
# The changes that a launch makes on its own.
_LAUNCHER_FLAGS = {"--log-dir", "--master-port", "--master-addr", "--standalone", "--node-rank"}
_OF_ATTEMPT = re.compile(r"attempts/\d+/")
_OUTCOMES = {ev.Outcome.SUCCEEDED: Tone.GOOD, ev.Outcome.STOPPED: Tone.INFO}


# Events that always add an entry, with their own values.
_TONES: Mapping[type[ev.Event], Tone] = {
    ev.CheckpointKept: Tone.INFO,
    ev.ResumeMissed: Tone.BAD,
    ev.PlanConfirmed: Tone.GOOD,
    ev.Held: Tone.WARN,
    ev.RequestRefused: Tone.WARN,
    ev.StallFlagged: Tone.WARN,
    ev.StallEnded: Tone.INFO,
    ev.LossNotFinite: Tone.WARN,
    ev.LossFinite: Tone.INFO,
    ev.HangCountdown: Tone.WARN,
    ev.HangWithdrawn: Tone.INFO,
    ev.HangFound: Tone.BAD,
    ev.WaitingFor: Tone.WARN,
    ev.ProbeStarted: Tone.INFO,
    ev.ProbeEnded: Tone.INFO,
    ev.BatchFitted: Tone.GOOD,
    ev.NoteAdded: Tone.INFO,
}


def moment_of(event: ev.Event, state: RunState) -> Moment | None:
    """Return an event's timeline entry, or None if it has none, like most events. `state` is the state before the event."""
    tone = _TONES.get(type(event))
    shown = (tone, {}) if tone is not None else _shown(event, state)
    if shown is None:
        return None
    tone, more = shown
    own = {name: getattr(event, name) for name in event.__struct_fields__ if name not in {"t", "v"}}
    values = {KIND: event.__struct_config__.tag, **own, **more}
    kind = values.pop(KIND)
    texts_and_numbers = {
        name: value
        for name, value in values.items()
        if isinstance(value, str | int | float) and not isinstance(value, bool)
    }
    number = state.attempts[-1].number if state.attempts else None
    return Moment(
        t=_written_t(event, state) if isinstance(event, ev.CheckpointCommitted) else event.t,
        attempt=event.attempt if isinstance(event, ev.LaunchIntended) else number,
        kind=str(kind),
        tone=tone,
        values=texts_and_numbers,
    )


def _shown(event: ev.Event, state: RunState) -> _Shown | None:
    """Return how the timeline shows an event whose entry depends on its values or on the state, or None if it has none."""
    match event:
        case ev.Progress():
            return None  # nine events of ten
        case ev.KeeperStarted() if event.continued_by:
            return Tone.INFO, {KIND: "continued"}
        case ev.KeeperStarted() if event.adopted:
            return Tone.INFO, {KIND: "adopted"}
        case ev.ClockSet():
            by_s = event.ahead_s - state.clock_ahead_s
            return Tone.WARN, {KIND: "clock_forward" if by_s > 0 else "clock_back", "by_s": abs(by_s)}
        case ev.CheckpointCommitted():
            return Tone.GOOD, {"about": event.step, "step": None} if event.step_by_time else {}
        case ev.LaunchIntended():
            return _launch(event, state)
        case ev.PlanDiffers():
            return Tone.BAD, {"text": event.text}
        case ev.EvidenceSeen():
            return Tone.BAD, {"text": event.text[:EVIDENCE_CHARS]}
        case ev.RankFailing():
            return Tone.BAD, {"rank": event.rank if event.rank is not None else event.local_rank}
        case ev.StopIntended() if event.why not in _STOPS_REQUESTED:
            return Tone.INFO if event.why in REQUESTED_STOPS else Tone.WARN, {}
        case ev.StopStepTaken(step=ev.StopStep.SURVIVORS):
            return Tone.BAD, {KIND: "survivors", "pids": event.labels}
        case ev.ProcessesLeft():
            names = [f"{one.pid} {one.command}".rstrip() for one in event.processes]
            names[_MOST_LEFT:] = ["…"] if len(names) > _MOST_LEFT else []
            return Tone.WARN, {"processes": ", ".join(names)}
        case ev.AttemptEnded():
            return _ended(event, state.find(event.attempt))
        case ev.Diagnosed():
            return _verdict(event, state.find(event.attempt))
        case ev.Decided():
            return _decision(event, state.find(event.attempt))
        case ev.BatchAsked():
            return Tone.WARN, question_values(event.question)
        case ev.BatchAnswered():
            kind = {KIND: "batch_remembered"} if event.day else {}
            return Tone.INFO, {**answer_values(event.question, event.value), **kind}
        case ev.RequestDone() if event.request not in _SHOWN_THEMSELVES:
            return Tone.INFO, {"request": ev.RequestKind.RESTART} if event.request in _RESTARTS else {}
        case ev.LaunchCleared() if event.text:
            return Tone.INFO, {}
        case ev.Recovered():
            before = state.find(event.after)
            requested = before is not None and before.ended_on_request
            return (Tone.INFO, {KIND: "resumed"}) if requested else (Tone.GOOD, {})
        case ev.ResumeCompared():
            return Tone.INFO if event.asked else _SAMENESS.get(event.result, Tone.INFO), {}
        case ev.NodeSeen():
            failed = event.sight is ev.NodeSight.ENDED and event.exit_code != 0
            return Tone.BAD if failed else _SIGHTS.get(event.sight, Tone.INFO), {}
        case ev.RunEnded():
            return _OUTCOMES.get(event.outcome, Tone.BAD), {}
        case _:
            return None


def _written_t(event: ev.CheckpointCommitted, state: RunState) -> float:
    """Return when a checkpoint was written, if that was during its attempt. It may have been found much later."""
    attempt = state.find(event.attempt)
    written_t = state.now(event.written_t) if event.written_t is not None else event.t
    return written_t if attempt is not None and attempt.planned_t <= written_t <= event.t else event.t


def question_values(question: BatchQuestion) -> _Values:
    """Return the values to fill in for the sentence of a question."""
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
    """Return the values to fill in for the sentence of an answer."""
    if question.what is Unread.SCOPE:
        return {"number": question.number, "scope": value}
    if value == IN_CODE:
        return {"in_code": value}
    held = next((one.number for one in question.answers if one.value == value), None)
    return {str(question.what): value if held is None else f"{value} {held}"}


def _launch(event: ev.LaunchIntended, state: RunState) -> _Shown:
    """Return how a launch is shown. If the launch was requested, the request is the entry above it."""
    earlier = [a for a in state.attempts if a.number != event.attempt]
    if earlier and earlier[-1].decision is not None and earlier[-1].decided_by not in {"", POLICY}:
        changed = changed_arguments(earlier[-1], event)
        return Tone.INFO, {KIND: "launch_requested", "arguments": changed}
    return Tone.INFO, {}


def changed_arguments(before: AttemptState, after: ev.LaunchIntended | AttemptState) -> str:
    """Return the settings that changed, such as ``--lr 1e-2 → 3e-3, + --bf16, − --fused``, or "" if none did.

    Leaves out the resume argument, the launcher's own flags, and paths that differ only in the attempt's number.
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


def _ended(event: ev.AttemptEnded, attempt: AttemptState | None) -> _Shown:
    """Return how the end of an attempt is shown: who requested it or how it happened, and how much of its logs was read."""
    read, size, unit = read_amounts(event.log_read_bytes, event.log_size_bytes) or (None, None, None)
    amounts: _Values = {"read": read, "size": size, "unit": unit}
    if attempt is not None and attempt.stop is not None and attempt.ended_on_request:
        how = "restarted" if attempt.stop.why is ev.StopWhy.RESTART else "stopped"
        return Tone.INFO, {**amounts, KIND: "ended_on_request", "how": how, "by": attempt.stop.by}
    match event.exit_code:
        case None:  # unknown
            tone = Tone.WARN if unit else Tone.INFO
        case 0:
            tone = Tone.WARN if unit else Tone.GOOD
        case _:
            tone = Tone.BAD
    return tone, amounts


def _verdict(event: ev.Diagnosed, attempt: AttemptState | None) -> _Shown | None:
    """Return how a failure is shown."""
    if event.provisional or event.verdict.failure is FailureClass.HEALTHY:
        return None
    if attempt is not None and replace(attempt, verdict=event.verdict).ended_on_request:
        return None
    return Tone.BAD, {"title": event.verdict.title}


def _decision(event: ev.Decided, attempt: AttemptState | None) -> _Shown | None:
    """Return how the policy's decision is shown. A user's decision is shown as a request, and a stop as the attempt's end."""
    decision = event.decision
    if event.by != POLICY or decision.kind in _SHOWN_BY_THE_NEXT:
        return None
    if attempt is not None:
        again = attempt.decision is not None and attempt.decision.reason == decision.reason
        if again or (decision.kind is DecisionKind.STOP and attempt.ended_on_request):
            return None
    tones = {DecisionKind.RESTART: Tone.GOOD, DecisionKind.STOP: Tone.INFO}  # a stop was requested
    return tones.get(decision.kind, Tone.WARN), {"decision": decision.kind, "reason": decision.reason}
