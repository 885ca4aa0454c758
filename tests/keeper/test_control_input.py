"""What a request or a signal makes a keeper do, and how it is answered. The keeper is a stand-in that notes what it is told."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from supervisor.keeper.base import control_input
from supervisor.keeper.base.background import BackgroundTask
from supervisor.keeper.base.control_input import CONTROL_INTERVAL_S, ControlInput, Refused
from supervisor.keeper.planning.launch_plans import BadChange
from supervisor.keeper.requests import carry_out
from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.events import Outcome, RequestKind, StopWhy
from supervisor.run.paths import RunPaths
from supervisor.run.records import Decision, DecisionKind
from tests.conftest import wait_until
from tests.keeper.fakes import FakeClock, verdict_of

CONDITIONS: dict[str, st.Condition] = {
    "preflight": st.Preflight(),
    "launching": st.Launching(attempt=1),
    "running": st.Running(attempt=1, phase=ev.Phase.STEPPING),
    "stopping": st.Stopping(attempt=1, why=ev.StopWhy.REQUEST, by="me"),
    "ended": st.Ended(attempt=1, exit_code=1),
    "diagnosed": st.DiagnosedAs(attempt=1, verdict=verdict_of()),
    "backoff": st.Backoff(attempt=1, until=1.0, decision=Decision(DecisionKind.RESTART, "again")),
    "held": st.HeldOpen(attempt=1, reason="", decision=None),
    "finished": st.Finished(outcome=Outcome.FAILED, exit_code=1, reason=""),
}
STOPS = dict.fromkeys(("launching", "running", "stopping"), "stop") | dict.fromkeys(
    ("preflight", "ended", "diagnosed", "backoff", "held"), "end_stopped"
)
RESTARTS = dict.fromkeys(("launching", "running", "ended", "backoff", "held"), "restart")
ALLOWED: dict[RequestKind, dict[str, str]] = {
    RequestKind.STOP: STOPS,
    RequestKind.STOP_NOW: STOPS,
    RequestKind.RESTART: RESTARTS,
    RequestKind.RESTART_WITH: RESTARTS,
    RequestKind.START_NOW: dict.fromkeys(("backoff", "ended"), "start_now"),
    RequestKind.HOLD: {"backoff": "hold"},
    RequestKind.STACKS: dict.fromkeys(("running", "stopping"), "dump_stacks"),
    RequestKind.PROFILE: {"running": "profile"},
    RequestKind.KEEP_WAITING: {},
    RequestKind.ANSWER: dict.fromkeys(CONDITIONS, "answer"),
    RequestKind.NOTE: dict.fromkeys(CONDITIONS, "note_added"),
}
"""What each request makes the keeper do, by condition; in all others it is refused."""
NOTHING_ENDS = "neither a hang nor a run that waits for you is about to be ended"
REFUSALS: dict[RequestKind, str] = {
    RequestKind.STOP: "the run is over",
    RequestKind.STOP_NOW: "the run is over",
    RequestKind.START_NOW: "no restart is waiting",
    RequestKind.HOLD: "no restart is waiting",
    RequestKind.STACKS: "nothing runs",
    RequestKind.PROFILE: "nothing runs",
    RequestKind.KEEP_WAITING: NOTHING_ENDS,
}
NO_RESTART = {
    "stopping": "it is stopping: ask again when it has ended",
    "finished": "the run is over: start it again with `stoker run`",
}


def refusal(kind: RequestKind, condition: str) -> str:
    return REFUSALS.get(kind) or NO_RESTART.get(condition, "a decision is being made: ask again")


def state_in(condition: st.Condition, mode: str = "launched", **attempt: object) -> st.RunState:
    only = st.AttemptState(number=1, planned_t=0.0, **attempt)  # type: ignore[arg-type]
    return st.RunState(condition=condition, attempts=(only,), mode=mode)


class Noting:
    """An actor that notes what it is told."""

    def __init__(self, state: st.RunState) -> None:
        self.state, self.facts, self.told = state, list[ev.Event](), list[tuple[Any, ...]]()
        self.raises: Exception | None = None
        self.monitor = self
        self.task: BackgroundTask[Any, str] | None = None

    def emit(self, event: ev.Event, *, durable: bool = False) -> None:
        self.facts.append(event)

    def dump_stacks(self) -> BackgroundTask[Any, str]:
        self.told.append(("dump_stacks",))
        assert self.task is not None
        return self.task

    def __getattr__(self, name: str) -> Any:
        def note(*args: object, **named: object) -> None:
            self.told.append((name, *args, named) if named else (name, *args))
            if self.raises is not None:
                raise self.raises

        return note


def input_of(tmp_path: Path, state: st.RunState) -> tuple[ControlInput, Noting, FakeClock, RunPaths]:
    run = RunPaths(tmp_path / "run")
    run.control.mkdir(parents=True)
    actor, clock = Noting(state), FakeClock()
    keeper = cast("Any", actor)
    asked = ControlInput(
        run,
        keeper,
        clock,
        dump_stacks=actor.dump_stacks,
        carry_out=None if state.mode == "observed" else lambda request, by: carry_out(keeper, request, by),
        stop=lambda why, by, now: keeper.stop(why, by, now=now),
    )
    return asked, actor, clock, run


def looked_until(seen: ControlInput, done: Callable[[], bool]) -> bool:
    def look() -> bool:
        seen.look()
        return done()

    return wait_until(look, 20.0)


def came_of(folder: Path, kind: RequestKind, state: st.RunState, **asked: Any) -> str:
    """What a request made the actor do, or why it was refused."""
    seen, actor, _, run = input_of(folder, state)
    actor.task = BackgroundTask("t", lambda: "stacks-1.txt", lambda found: found)
    control.send(run.control, kind, **{"args": control.RequestArgs(text="a note"), **asked})
    seen.look()
    refused = [fact.reason for fact in actor.facts if isinstance(fact, ev.RequestRefused)]
    noted = ["note_added" for fact in actor.facts if isinstance(fact, ev.NoteAdded)]
    return str((refused + noted + [told[0] for told in actor.told])[0])


@pytest.mark.fault("processes", "a request that was meant for an earlier attempt", "it is refused as stale")
@pytest.mark.parametrize("kind", list(RequestKind))
def test_what_each_request_means_in_each_condition(tmp_path: Path, kind: RequestKind) -> None:
    for name, condition in CONDITIONS.items():
        state, folder = state_in(condition), tmp_path / name
        found = came_of(folder / "1", kind, state)
        assert found == (ALLOWED[kind].get(name) or refusal(kind, name)), name
        assert came_of(folder / "2", kind, state, if_attempt=1) == found
        assert came_of(folder / "3", kind, state, if_attempt=2) == "stale"
        watched = came_of(folder / "4", kind, state_in(condition, mode="observed"))
        only_looks = kind in {RequestKind.NOTE, RequestKind.STACKS}
        assert watched == (found if only_looks else "stoker did not start this job: it only watches")


def test_a_request_for_the_first_attempt_of_a_run_without_one_is_stale(tmp_path: Path) -> None:
    assert came_of(tmp_path / "1", RequestKind.STOP, st.RunState(), if_attempt=1) == "stale"
    assert came_of(tmp_path / "2", RequestKind.STOP, st.RunState(), if_attempt=0) == "end_stopped"
    empty = control.RequestArgs(text="")
    assert came_of(tmp_path / "3", RequestKind.NOTE, st.RunState(), args=empty) == "a note without text"


def test_what_is_not_done_as_the_keeper_leaves_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_input, "LAST_ANSWER_S", 0.01)
    seen, actor, _, run = input_of(tmp_path, state_in(CONDITIONS["running"]))
    go = threading.Event()
    actor.task = BackgroundTask("t", lambda: go.wait(30), str)
    control.send(run.control, RequestKind.STACKS)
    seen.look()
    assert actor.facts == []
    seen.close()
    reasons = [fact.reason for fact in actor.facts if isinstance(fact, ev.RequestRefused)]
    assert reasons == ["the supervisor process left before it was done"]
    assert list(run.control.iterdir()) == []
    go.set()
    actor.task.close(30.0)


def test_what_waited_while_a_run_was_over_is_refused_once_it_is_continued(tmp_path: Path) -> None:
    seen, actor, clock, run = input_of(tmp_path, state_in(CONDITIONS["finished"]))
    stop, answered = (control.send(run.control, RequestKind.STOP) for _ in range(2))
    (run.control / "half.json").write_text("{")
    actor.state = msgspec.structs.replace(actor.state, answered={answered: "done"})
    seen.refuse_waiting("asked before")
    (refused,) = (fact for fact in actor.facts if isinstance(fact, ev.RequestRefused))
    assert refused.by
    told = (refused.t, refused.request_id, refused.request, refused.reason)
    assert told == (clock.wall(), stop, RequestKind.STOP, "asked before")
    assert [path.name for path in run.control.iterdir()] == ["half.json"], "that is refused as it is read"
    control.send(run.control, RequestKind.NOTE, args=control.RequestArgs(text=600 * "x"))
    seen.look()
    (note,) = (fact for fact in actor.facts if isinstance(fact, ev.NoteAdded))
    assert note == ev.NoteAdded(t=clock.wall(), text=500 * "x", by=refused.by)
    half = next(fact for fact in actor.facts if getattr(fact, "request_id", "") == "half")
    assert isinstance(half, ev.RequestRefused)
    assert (half.request, half.by, actor.told, list(run.control.iterdir())) == ("?", "?", [], [])


def test_keeping_waiting_needs_a_countdown_of_a_run_that_runs(tmp_path: Path) -> None:
    countdown = ev.HangCountdown(t=0.0, attempt=1, until=9.0, left_s=9, text="", rule="")
    states = (state_in(CONDITIONS["running"]), state_in(CONDITIONS["stopping"], countdown=countdown))
    for number, state in enumerate(states):
        found = came_of(tmp_path / str(number), RequestKind.KEEP_WAITING, state)
        assert found == NOTHING_ENDS


@pytest.mark.parametrize(
    ("kind", "condition", "told"),
    [
        (RequestKind.STOP, "running", ("stop", StopWhy.REQUEST, "kim", {"now": False})),
        (RequestKind.STOP_NOW, "running", ("stop", StopWhy.REQUEST, "kim", {"now": True})),
        (RequestKind.STOP, "backoff", ("end_stopped", "kim")),
        (RequestKind.RESTART, "backoff", ("restart", control.RequestArgs(), "kim", {"stop_first": False})),
        (RequestKind.RESTART, "running", ("restart", control.RequestArgs(), "kim", {"stop_first": True})),
        (RequestKind.START_NOW, "backoff", ("start_now",)),
        (RequestKind.HOLD, "backoff", ("hold", "kim stopped the restart")),
        (RequestKind.KEEP_WAITING, "silent", ("keep_waiting", "kim")),
        (RequestKind.KEEP_WAITING, "held", ("hold", "needs an edit")),
    ],
)
def test_each_request_is_done_and_answered(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: RequestKind,
    condition: str,
    told: tuple[object, ...],
) -> None:
    monkeypatch.setenv("LOGNAME", "kim")
    counting = ev.HangCountdown(t=0.0, attempt=1, until=9.0, left_s=9, text="", rule="")
    held = st.HeldOpen(attempt=1, reason="needs an edit", decision=None, until=5.0)
    state = {
        "silent": state_in(CONDITIONS["running"], countdown=counting),
        "held": state_in(held),
    }.get(condition) or state_in(CONDITIONS[condition])
    seen, actor, clock, run = input_of(tmp_path, state)
    asked = control.send(run.control, kind)
    seen.look()
    assert actor.told == [told]
    (fact,) = actor.facts
    assert isinstance(fact, ev.RequestDone)
    assert (fact.t, fact.request_id, fact.request) == (clock.wall(), asked, kind)
    assert (fact.by, fact.detail) == ("kim", "")
    assert list(run.control.iterdir()) == [], "what is answered is taken away"


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (Refused("there is no open question"), "there is no open question"),
        (BadChange("no such flag"), "no such flag"),
        (OSError("no room"), "no room"),
    ],
)
def test_what_cannot_be_done_is_answered_with_why(tmp_path: Path, raised: Exception, reason: str) -> None:
    seen, actor, _, run = input_of(tmp_path, state_in(CONDITIONS["running"]))
    actor.raises = raised
    asked = control.send(run.control, RequestKind.STOP)
    (run.control / "odd.json").write_text("{", encoding="utf-8")
    seen.look()
    first, second = actor.facts
    assert isinstance(first, ev.RequestRefused)
    assert isinstance(second, ev.RequestRefused)
    assert (first.request_id, first.request, first.reason) == (asked, "stop", reason)
    assert (second.request_id, second.request, second.by) == ("odd", "?", "?")
    assert second.reason.startswith("unreadable: ")
    assert list(run.control.iterdir()) == []


def no_room() -> str:
    raise OSError("no room")


@pytest.mark.parametrize("leaves", [False, True])
def test_stacks_are_answered_once_they_are_there(tmp_path: Path, leaves: bool) -> None:
    seen, actor, clock, run = input_of(tmp_path, state_in(CONDITIONS["running"]))
    for work, answer in ((lambda: "stacks-1.txt", "stacks-1.txt"), (no_room, "no room")):
        actor.facts.clear()
        actor.task = BackgroundTask("t", work, lambda found: found)
        asked = control.send(run.control, RequestKind.STACKS)
        clock.now += CONTROL_INTERVAL_S
        seen.look()
        if leaves:
            seen.close()
        else:
            assert looked_until(seen, lambda: bool(actor.facts))
        (fact,) = actor.facts
        assert isinstance(fact, ev.RequestDone | ev.RequestRefused)
        assert fact.request_id == asked
        assert (fact.detail if isinstance(fact, ev.RequestDone) else fact.reason) == answer
        assert list(run.control.iterdir()) == []


@pytest.mark.parametrize(
    ("numbers", "stops"),
    [
        ([signal.SIGTERM], [(StopWhy.SIGNAL, "SIGTERM", False)]),
        ([signal.SIGUSR1], [(StopWhy.REQUEUE, "SIGUSR1", False)]),
        (
            [signal.SIGINT, signal.SIGINT],
            [(StopWhy.SIGNAL, "Ctrl-C", False), (StopWhy.SIGNAL, "Ctrl-C", True)],
        ),
    ],
)
def test_a_signal_stops_and_a_second_ctrl_c_does_not_wait(
    tmp_path: Path, numbers: list[signal.Signals], stops: list[tuple[StopWhy, str, bool]]
) -> None:
    seen, actor, _, _ = input_of(tmp_path, state_in(CONDITIONS["running"]))
    kept = [*numbers, signal.SIGHUP]
    before = [signal.getsignal(number) for number in kept]
    undo = seen.install_signal_handlers()
    try:
        for done, number in enumerate(kept):
            os.kill(os.getpid(), number)
            assert looked_until(seen, lambda done=done: len(actor.told) >= min(done + 1, len(stops)))  # type: ignore[misc]
    finally:
        undo()
    assert actor.told == [("stop", why, by, {"now": now}) for why, by, now in stops]
    assert seen.interrupts == numbers.count(signal.SIGINT)
    assert [signal.getsignal(number) for number in kept] == before
