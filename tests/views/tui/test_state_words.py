"""Each state of a run and of a rank has its word, and says only what is known."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.events import Outcome
from supervisor.run.paths import RunPaths
from supervisor.run.records import Decision, DecisionKind, FailureClass, Reason
from supervisor.views.model.run_list import RunRow, filtered
from supervisor.views.tui.pages.runs_table import STATE_CELLS
from supervisor.views.tui.panels import state_words as words
from supervisor.views.tui.widgets.paint import TextStyle
from tests.views.tui.still import attempt_of, running, snapshot_of, state_of, verdict

NOW = 100.0
STALL = ev.StallFlagged(t=60.0, attempt=1, since=50.0, waited_s=10, stage="step", pace_s=1, flag_s=10)
COUNTDOWN = ev.HangCountdown(t=90.0, attempt=1, until=130.4, left_s=60, text="", rule="")
STOPPED = ev.StopIntended(t=1.0, attempt=1, why=ev.StopWhy.REQUEST, by="me", grace_s=5)
AGAIN = Decision(DecisionKind.RESTART, "again")


def diagnosed(failure: FailureClass) -> st.DiagnosedAs:
    return st.DiagnosedAs(attempt=1, verdict=verdict(failure))


def finished(outcome: Outcome) -> st.Finished:
    return st.Finished(outcome=outcome, exit_code=1, reason="")


QUIET = attempt_of(log_checked=True, quiet_since=NOW - 7200)
UNSEEN = attempt_of(log_checked=True, ended_t=5.0, verdict=verdict(FailureClass.HEALTHY, confidence=0.5))
BEHIND = ev.Progress(t=0.0, attempt=1, lag_bytes=30_000_000, log_bytes=40_000_000)


def held(until: float | None = None) -> st.HeldOpen:
    return st.HeldOpen(attempt=1, reason="", decision=None, until=until)


def stopping(why: ev.StopWhy = ev.StopWhy.REQUEST, step: ev.StopStep | None = None) -> st.Stopping:
    return st.Stopping(attempt=1, why=why, by="me", step=step)


def observed(condition: st.Condition, attempt: st.AttemptState, **values: Any) -> st.RunState:
    return state_of(condition, attempt, mode="observed", **values)


@pytest.mark.parametrize(
    ("state", "text", "style"),
    [
        (state_of(st.Preflight()), "○ preflight", TextStyle.PLAIN),
        (observed(st.Preflight(), attempt_of()), "○ reading", TextStyle.PLAIN),
        (state_of(st.Launching(attempt=1)), "○ launching", TextStyle.LIVE),
        (state_of(running(phase=ev.Phase.RENDEZVOUS)), "● rendezvous", TextStyle.LIVE),
        (state_of(stopping()), "◆ stopping", TextStyle.WARN),
        (state_of(stopping(step=ev.StopStep.SIGTERM)), "◆ stopping (sigterm)", TextStyle.WARN),
        (state_of(st.Ended(attempt=1, exit_code=1)), "◆ ended, reading its logs", TextStyle.WARN),
        (state_of(diagnosed(FailureClass.CUDA_OOM)), "✗ cuda_oom", TextStyle.BAD),
        (state_of(diagnosed(FailureClass.HEALTHY)), "✓ done", TextStyle.LIVE),
        (observed(diagnosed(FailureClass.HEALTHY), QUIET), "○ quiet for 2 h", TextStyle.WARN),
        (observed(diagnosed(FailureClass.HEALTHY), UNSEEN), "○ ended: how is not known", TextStyle.WARN),
        (state_of(st.Backoff(attempt=1, until=NOW - 5, decision=AGAIN)), "↻ restarts in 0 s", TextStyle.WARN),
        (state_of(held(NOW + 3600)), "‖ waiting for you: ends in 1 h 00 m", TextStyle.WARN),
        (state_of(held(NOW + 3601)), "‖ waiting for you", TextStyle.WARN),
        (state_of(finished(Outcome.SUCCEEDED)), "✓ succeeded", TextStyle.LIVE),
        (state_of(finished(Outcome.STOPPED)), "■ stopped", TextStyle.PLAIN),
        (state_of(finished(Outcome.FAILED)), "✗ failed", TextStyle.BAD),
        (state_of(finished(Outcome.GAVE_UP)), "✗ gave up", TextStyle.BAD),
        (state_of(finished(Outcome.LOST)), "? lost", TextStyle.BAD),
        (state_of(finished(Outcome.REFUSED)), "✗ refused", TextStyle.BAD),
        (observed(finished(Outcome.LOST), QUIET), "○ quiet for 2 h", TextStyle.WARN),
        (observed(finished(Outcome.FAILED), QUIET), "✗ failed", TextStyle.BAD),
    ],
)  # fmt: skip
def test_each_state_has_its_word(state: st.RunState, text: str, style: TextStyle) -> None:
    assert words.condition_span(snapshot_of(state), NOW) == (text, style)


@pytest.mark.parametrize(
    ("state", "due", "left_s"),
    [
        (state_of(), "", 0.0),
        (state_of(running(), attempt_of(countdown=COUNTDOWN)), words.HANG, pytest.approx(30.4)),
        (state_of(st.Backoff(attempt=1, until=NOW + 9, decision=AGAIN)), words.RESTART, 9.0),
        (state_of(st.Backoff(attempt=1, until=NOW - 9, decision=AGAIN)), words.RESTART, 0.0),
        (state_of(held()), "", 0.0),
        (state_of(held(NOW + 3601)), "", 0.0),
        (state_of(held(NOW - 9)), words.WAIT, 0.0),
    ],
)
def test_what_follows_by_itself_and_when(state: st.RunState, due: str, left_s: float) -> None:
    assert words.countdown(snapshot_of(state), NOW) == (due, left_s)
    assert words.countdown(snapshot_of(state), NOW + 1e6)[1] == 0.0, "never less than nothing"
    assert words.countdown(snapshot_of(state, keeper=False), NOW) == ("", 0.0)


def test_without_a_keeper_nobody_knows_whether_it_runs_on() -> None:
    state = state_of(running(), attempt_of(stall=STALL, countdown=COUNTDOWN))
    assert words.condition_span(snapshot_of(state, keeper=False), NOW) == ("? stepping", TextStyle.WARN)
    assert not words.is_stalled(snapshot_of(state, keeper=False))


@pytest.mark.parametrize(
    ("state", "whole", "listed", "word"),
    [
        (observed(running(), QUIET), "○ quiet for 2 h", "○ quiet 2 h", "quiet"),
        (observed(running(), attempt_of()), "● reading", "● reading", "live"),
        (observed(running(), QUIET, progress=BEHIND), "● reading 40 MB, 25 %", "● reading", "quiet"),
        (observed(running(phase=ev.Phase.RENDEZVOUS), attempt_of(log_checked=True)), "● live", "● live",
            "live"),
        (observed(finished(Outcome.LOST), UNSEEN), "○ ended: how is not known", "○ end unknown", "unknown"),
        (observed(finished(Outcome.STOPPED), QUIET), "○ no longer watched", "○ not watched", "unwatched"),
        (state_of(st.Ended(attempt=1, exit_code=1)), "◆ ended, reading its logs", "◆ ended", "ended"),
        (state_of(stopping(step=ev.StopStep.SIGTERM)), "◆ stopping (sigterm)", "◆ stopping", "stopping"),
        (state_of(running(), attempt_of(stall=STALL)), "⚠ stalled", "⚠ stalled", "running"),
        (state_of(running(), attempt_of(stall=STALL, countdown=COUNTDOWN)), "⚠ hang: ending in 30 s",
            "⚠ hang", "running"),
        (state_of(st.Backoff(attempt=1, until=NOW + 61, decision=AGAIN)), "↻ restarts in 1 m 01 s",
            "↻ backoff", "backoff"),
        (state_of(held()), "‖ waiting for you", "‖ waits for you", "held"),
    ],
)  # fmt: skip
def test_the_list_of_runs_has_the_state_by_the_rules_of_the_screen(
    state: st.RunState, whole: str, listed: str, word: str
) -> None:
    row = RunRow(RunPaths(Path("/runs/20261121-1412-brave-otter")), state, live=True)
    span = words.condition_span(snapshot_of(state), NOW)
    assert span.text == whole
    assert words.listed_span(row, NOW) == (listed, span.style)
    dead = words.listed_span(dataclasses.replace(row, live=False), NOW)
    assert dead == ((listed, span.style) if state.is_over else ("? no supervisor", TextStyle.WARN))
    assert len(listed) <= STATE_CELLS
    assert row.word == word
    assert row.failure == ""


def test_a_failure_stays_visible_after_a_stop() -> None:
    failed = attempt_of(verdict=verdict(FailureClass.CUDA_OOM))
    state = state_of(finished(Outcome.STOPPED), failed)
    row = RunRow(RunPaths(Path("/runs/20261121-1412-brave-otter")), state, live=False)
    whole = "✗ cuda_oom, stopped"
    assert words.condition_span(snapshot_of(state), NOW) == (whole, TextStyle.BAD)
    assert words.listed_span(row, NOW) == ("✗ stopped", TextStyle.BAD)
    assert row.failure == "cuda_oom"
    for query in ("failed", "state:failed", "stopped", "state:stopped"):
        assert filtered([row], query, NOW) == [row]


def test_what_a_person_asked_for_is_no_failure() -> None:
    mine = attempt_of(stop=STOPPED, ended_t=5.0, verdict=verdict(FailureClass.TERMINATED, reason=Reason.USER))
    for condition in (diagnosed(FailureClass.TERMINATED), finished(Outcome.STOPPED)):
        span = words.condition_span(snapshot_of(state_of(condition, mine)), NOW)
        assert span.text.startswith("■ ")
        assert span.style is TextStyle.PLAIN
    assert words.failures(state_of(None, mine)) == []
    failed = attempt_of(2, ended_t=5.0, verdict=verdict(FailureClass.CUDA_OOM))
    assert words.failures(state_of(None, mine, failed)) == [failed]


@pytest.mark.parametrize(
    ("condition", "word"),
    [
        (running(), "leave (training continues)"),
        (st.Launching(attempt=1), "leave (training continues)"),
        (held(), "leave (keeps waiting)"),
        (st.Backoff(attempt=1, until=0, decision=AGAIN), "leave (it restarts by itself)"),
        (st.Ended(attempt=1, exit_code=1), "leave"),
        (finished(Outcome.FAILED), "leave"),
    ],
)
def test_what_leaving_does_not_end(condition: st.Condition, word: str) -> None:
    assert words.leave_word(snapshot_of(state_of(condition))) == word
    assert words.leave_word(snapshot_of(state_of(condition), keeper=False)) == "leave"
    assert words.leave_word(snapshot_of(state_of(condition), gone=True)) == "leave"
    assert words.leave_word(snapshot_of(state_of(condition, mode="observed"))) == "leave"


@pytest.mark.parametrize(
    ("failure", "word"),
    [
        (FailureClass.CUDA_OOM, "leave (keeps waiting)"),
        (FailureClass.CODE_ERROR, "leave and end run"),
    ],
)
def test_leaving_ends_a_run_that_only_an_edit_helps(failure: FailureClass, word: str) -> None:
    assert words.leave_word(snapshot_of(state_of(held(), attempt_of(verdict=verdict(failure))))) == word


FAILING = ev.RankFailing(t=90.0, attempt=1, local_rank=1, sign=ev.FailureSign.EXITING, text="ValueError: x")
RANKS = {0: st.RankState(local_rank=0, rank=0), 1: st.RankState(local_rank=1, rank=1)}


@pytest.mark.parametrize(
    ("exited", "sign", "text"),
    [
        (False, ev.FailureSign.EXITING, "✗ rank 1 is exiting"),
        (True, ev.FailureSign.EXITING, "✗ rank 1 died"),
        (True, ev.FailureSign.GONE, "✗ rank 1 died"),
    ],
)
def test_a_rank_that_fails_is_said_before_a_stall(exited: bool, sign: ev.FailureSign, text: str) -> None:
    ranks = {**RANKS, 1: msgspec.structs.replace(RANKS[1], exited=exited)}
    failing = msgspec.structs.replace(FAILING, sign=sign)
    attempt = attempt_of(failing=failing, ranks=ranks, stall=STALL, countdown=COUNTDOWN)
    state = state_of(running(), attempt)
    snapshot = snapshot_of(state)
    assert words.condition_span(snapshot, NOW) == (text, TextStyle.BAD)
    row = RunRow(RunPaths(Path("/runs/x")), state, live=True)
    assert words.listed_span(row, NOW) == ("✗ failing", TextStyle.BAD)
    assert words.shows_failure(snapshot), "the card is there before any verdict"
    assert words.leave_word(snapshot) == "leave"


OOM = verdict(FailureClass.CUDA_OOM)


@pytest.mark.parametrize(
    ("condition", "values", "fails", "shows"),
    [
        (running(), {}, True, True),
        (running(), {"failing": None}, False, False),
        (stopping(ev.StopWhy.RANK_DIED), {}, True, True),
        (stopping(ev.StopWhy.REQUEST), {}, False, False),
        (st.Ended(attempt=1, exit_code=1), {}, True, True),
        (st.Ended(attempt=1, exit_code=1), {"verdict": OOM, "verdict_provisional": True}, True, True),
        (st.Ended(attempt=1, exit_code=1), {"verdict": OOM}, False, True),
        (st.Ended(attempt=1, exit_code=1), {"failing": None}, False, False),
        (diagnosed(FailureClass.CUDA_OOM), {"verdict": OOM}, False, True),
        (st.Backoff(attempt=1, until=0, decision=AGAIN), {"verdict": OOM}, False, True),
        (held(), {"verdict": OOM}, False, True),
        (st.Launching(attempt=1), {"verdict": OOM}, False, False),
        (finished(Outcome.FAILED), {"verdict": OOM}, False, True),
        (finished(Outcome.GAVE_UP), {"verdict": OOM}, False, True),
        (finished(Outcome.LOST), {"verdict": OOM}, False, True),
        (finished(Outcome.STOPPED), {"verdict": OOM}, False, False),
    ],
)
def test_a_failure_is_on_the_screen_from_its_first_sign_until_another_attempt_runs(
    condition: st.Condition, values: dict[str, Any], fails: bool, shows: bool
) -> None:
    snapshot = snapshot_of(state_of(condition, attempt_of(**{"failing": FAILING, **values})))
    assert (words.is_failing(snapshot), words.shows_failure(snapshot)) == (fails, shows)


def gone(code: int | None, rank: int = 0) -> st.RankState:
    return st.RankState(local_rank=rank, rank=rank, exited=True, exit_code=code)


def stacks(t: float = STALL.since) -> ev.StacksTaken:
    return ev.StacksTaken(t=t, attempt=1, text="", odd=(1,))


HANG = ev.HangFound(t=9.0, attempt=1, waited_s=9.0, act_s=9.0, text="", ranks=(1,))
HUNG = {"hang": HANG, "verdict": verdict(FailureClass.HANG)}
TIMED_OUT = {"stacks": stacks(), "verdict": verdict(FailureClass.NCCL_TIMEOUT, ranks=(1,))}
OVER = st.Ended(attempt=1, exit_code=1)


@pytest.mark.parametrize(
    ("rank", "condition", "values", "word", "style"),
    [
        (RANKS[0], running(), {}, "stepping", TextStyle.LIVE),
        (RANKS[0], stopping(), {}, "stopping", TextStyle.WARN),
        (RANKS[0], OVER, {}, "ended", TextStyle.DIM),
        (RANKS[1], running(), {"stall": STALL}, "stepping", TextStyle.LIVE),
        (RANKS[1], running(), {"stall": STALL, "stacks": stacks()}, "⚠ stuck", TextStyle.WARN),
        (RANKS[0], running(), {"stall": STALL, "stacks": stacks()}, "waits", TextStyle.DIM),
        (RANKS[1], running(), {"stall": STALL, "stacks": stacks(STALL.since - 1)}, "stepping", TextStyle.LIVE),
        (gone(0), OVER, {}, "✓ done", TextStyle.DIM),
        (gone(7), OVER, {}, "✗ exit 7", TextStyle.BAD),
        (gone(-15), OVER, {}, "✗ SIGTERM", TextStyle.WARN),
        (gone(-9), OVER, {}, "✗ SIGKILL", TextStyle.BAD),
        (gone(None), OVER, {"exit_code": 1}, "✗ gone", TextStyle.BAD),
        (gone(None), OVER, {"exit_code": 0}, "✓ done", TextStyle.DIM),
        (gone(-15), OVER, {"exit_code": 0}, "✗ SIGTERM", TextStyle.WARN),
        (gone(-15), OVER, {"stop": STOPPED}, "■ stopped", TextStyle.DIM),
        (gone(-9, 1), OVER, HUNG, "✗ hung", TextStyle.BAD),
        (gone(-9, 0), OVER, HUNG, "■ ended", TextStyle.DIM),
        (gone(-9, 1), OVER, HUNG | {"verdict": OOM}, "✗ SIGKILL", TextStyle.BAD),
        (gone(-6, 1), OVER, TIMED_OUT, "✗ hung", TextStyle.BAD),
        (gone(-6, 0), OVER, TIMED_OUT, "■ ended", TextStyle.DIM),
        (gone(-6, 1), OVER, TIMED_OUT | {"stacks": None}, "✗ SIGABRT", TextStyle.BAD),
        (gone(-6, 1), OVER, {"stacks": stacks(), "verdict": OOM}, "✗ SIGABRT", TextStyle.BAD),
    ],
)  # fmt: skip
def test_each_state_of_a_rank_has_its_word(
    rank: st.RankState, condition: st.Condition, values: dict[str, Any], word: str, style: TextStyle
) -> None:
    state = state_of(condition, attempt_of(**values))
    assert words.rank_state(rank, state, is_live=True) == (word, style)
    unwatched = TextStyle.PLAIN if style is TextStyle.LIVE else style
    assert words.rank_state(rank, state, is_live=False) == (word, unwatched)
