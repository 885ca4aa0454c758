"""Each state of a run and of a rank has its word, and says only what is known."""

from __future__ import annotations

from pathlib import Path

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


@pytest.mark.parametrize(
    ("condition", "text", "style"),
    [
        (st.Preflight(), "○ preflight", TextStyle.PLAIN),
        (
            st.Stopping(attempt=1, why=ev.StopWhy.REQUEST, by="me", step=ev.StopStep.SIGTERM),
            "◆ stopping (sigterm)",
            TextStyle.WARN,
        ),
        (st.Ended(attempt=1, exit_code=1), "◆ ended, reading its logs", TextStyle.WARN),
        (diagnosed(FailureClass.CUDA_OOM), "✗ cuda_oom", TextStyle.BAD),
        (st.Backoff(attempt=1, until=NOW + 61, decision=AGAIN), "↻ restarts in 1 m 01 s", TextStyle.WARN),
        (st.Backoff(attempt=1, until=NOW - 5, decision=AGAIN), "↻ restarts in 0 s", TextStyle.WARN),
        (finished(Outcome.LOST), "? lost", TextStyle.BAD),
        (finished(Outcome.REFUSED), "✗ refused", TextStyle.BAD),
    ],
)
def test_each_state_has_its_word(condition: st.Condition, text: str, style: TextStyle) -> None:
    assert words.condition_span(snapshot_of(state_of(condition)), NOW) == (text, style)


def test_without_a_keeper_nobody_knows_whether_it_runs_on() -> None:
    state = state_of(running(), attempt_of(stall=STALL, countdown=COUNTDOWN))
    assert words.condition_span(snapshot_of(state, keeper=False), NOW) == ("? stepping", TextStyle.WARN)
    assert words.countdown(snapshot_of(state, keeper=False), NOW) == ("", 0.0)
    assert not words.is_stalled(snapshot_of(state, keeper=False))


QUIET = attempt_of(log_checked=True, quiet_since=NOW - 7200)
UNSEEN = attempt_of(log_checked=True, ended_t=5.0, verdict=verdict(FailureClass.HEALTHY, confidence=0.5))


@pytest.mark.parametrize(
    ("state", "whole", "listed", "word"),
    [
        (state_of(running(), QUIET, mode="observed"), "○ quiet for 2 h", "○ quiet 2 h", "quiet"),
        (state_of(running(), attempt_of(), mode="observed"), "● reading", "● reading", "live"),
        (
            state_of(finished(Outcome.LOST), UNSEEN, mode="observed"),
            "○ ended: how is not known",
            "○ end unknown",
            "unknown",
        ),
        (
            state_of(finished(Outcome.STOPPED), QUIET, mode="observed"),
            "○ no longer watched",
            "○ not watched",
            "unwatched",
        ),
        (state_of(running(), attempt_of(stall=STALL)), "⚠ stalled", "⚠ stalled", "running"),
        (
            state_of(running(), attempt_of(stall=STALL, countdown=COUNTDOWN)),
            "⚠ hang: ending in 30 s",
            "⚠ hang",
            "running",
        ),
        (
            state_of(st.Backoff(attempt=1, until=NOW + 61, decision=AGAIN)),
            "↻ restarts in 1 m 01 s",
            "↻ backoff",
            "backoff",
        ),
        (
            state_of(st.HeldOpen(attempt=1, reason="", decision=None)),
            "‖ waiting for you",
            "‖ waits for you",
            "held",
        ),
    ],
)
def test_the_list_of_runs_has_the_state_by_the_rules_of_the_screen(
    state: st.RunState, whole: str, listed: str, word: str
) -> None:
    row = RunRow(RunPaths(Path("/runs/20261121-1412-brave-otter")), state, live=True)
    assert words.condition_span(snapshot_of(state), NOW).text == whole
    assert words.listed_span(row, NOW).text == listed
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
        (st.HeldOpen(attempt=1, reason="", decision=None), "leave (keeps waiting)"),
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
    snapshot = snapshot_of(state_of(running(), attempt))
    assert words.condition_span(snapshot, NOW) == (text, TextStyle.BAD)
    assert words.shows_failure(snapshot), "the card is there before any verdict"
    assert words.leave_word(snapshot) == "leave"


def gone(code: int | None, rank: int = 0) -> st.RankState:
    return st.RankState(local_rank=rank, rank=rank, exited=True, exit_code=code)
