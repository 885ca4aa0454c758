"""A run's or rank's state as a glyph, a word and a color, consistent across all views. Pure."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, TypeAlias

from supervisor.run import state as st
from supervisor.run.events import Outcome, Phase, StallFlagged, StopWhy
from supervisor.run.records import FailureClass
from supervisor.views import format as fm
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.widgets.paint import Span, TextStyle
from supervisor.views.wording.kinds import end_of_request, failing_text, reading_text, signal_name

if TYPE_CHECKING:
    from supervisor.views.model.run_list import RunRow

    Shown: TypeAlias = Snapshot | RunRow

# How long before the end of a held run the countdown starts.
SOON_S = 3600.0
# The events that follow without the user: a hang is ended, an attempt is started, a held run ends.
HANG, RESTART, WAIT = "hang", "restart", "wait"
END_UNSEEN = "○ ended: how is not known"
UNWATCHED = "○ no longer watched"
# The beginnings of state words, and their replacements in a column of the list of runs.
SHORT = (
    ("⚠ hang", "⚠ hang"),
    ("● reading", "● reading"),
    ("◆ stopping", "◆ stopping"),
    ("◆ ended", "◆ ended"),
    ("↻ restarts", "↻ backoff"),
    ("‖ waiting", "‖ waits for you"),
    (END_UNSEEN, "○ end unknown"),
    (UNWATCHED, "○ not watched"),
)


OUTCOMES = {
    Outcome.SUCCEEDED: Span("✓ succeeded", TextStyle.LIVE),
    Outcome.STOPPED: Span("■ stopped", TextStyle.PLAIN),
    Outcome.FAILED: Span("✗ failed", TextStyle.BAD),
    Outcome.GAVE_UP: Span("✗ gave up", TextStyle.BAD),
    Outcome.LOST: Span("? lost", TextStyle.BAD),
    Outcome.REFUSED: Span("✗ refused", TextStyle.BAD),
}


def listed_span(shown: Shown, now: float) -> Span:
    """Return the state, shortened to fit a column. The rules are those of `condition_span`, but no countdown is shown."""
    if not shown.keeper_alive and not shown.state.is_over:
        return Span("? no supervisor", TextStyle.WARN)
    whole, attempt = condition_span(shown, now), shown.state.attempt
    match shown.state.condition:
        case st.Finished() if shown.state.failed_for is not None:
            return Span("✗ stopped", whole.style)  # the verdict column shows the failure
        case st.Running() if attempt is not None and attempt.failing is not None:
            return Span("✗ failing", whole.style)
        case _:
            text = whole.text.replace(" for ", " ")
            text = next((short for long, short in SHORT if text.startswith(long)), text)
            return Span(text, whole.style)


def condition_span(shown: Shown, now: float) -> Span:
    """Return the glyph and word for the run's state."""
    condition = shown.state.condition
    attempt = shown.state.attempt
    requested = end_of_request(attempt) if attempt is not None else ""
    due, left_s = countdown(shown, now)
    match condition:
        case st.Preflight() if reading := reading_text(shown.state):
            return Span(f"○ {reading}", TextStyle.PLAIN)
        case st.Preflight():
            return Span("○ preflight", TextStyle.PLAIN)
        case st.Launching():
            return Span("○ launching", TextStyle.LIVE)
        case st.Running() if attempt is not None and attempt.failing is not None:
            return Span(f"✗ {failing_text(attempt, attempt.failing)}", TextStyle.BAD)
        case st.Running() if due == HANG:
            return Span(f"⚠ hang: ending in {left_s:.0f} s", TextStyle.BAD)
        case st.Running() if is_stalled(shown):
            return Span("⚠ stalled", TextStyle.WARN)
        case st.Running() if reading := reading_text(shown.state):
            return Span(f"● {reading}", TextStyle.LIVE)
        case st.Running() if attempt is not None and attempt.quiet_since is not None:
            return _quiet_span(attempt.quiet_since, now)
        case st.Running(phase=Phase.RENDEZVOUS) if shown.state.mode == "observed":
            return Span("● live", TextStyle.LIVE)
        case st.Running():
            # Without a keeper the state is unknown, so show the last state that a keeper wrote.
            known = shown.keeper_alive
            return Span(
                f"{'●' if known else '?'} {condition.phase}", TextStyle.LIVE if known else TextStyle.WARN
            )
        case st.Stopping():
            return Span(f"◆ stopping{f' ({condition.step})' if condition.step else ''}", TextStyle.WARN)
        case st.Ended():
            return Span("◆ ended, reading its logs", TextStyle.WARN)
        case st.DiagnosedAs() if requested:
            return Span(f"■ {requested}", TextStyle.PLAIN)
        case st.DiagnosedAs() if shown.state.is_end_unseen:
            return _end_unseen(attempt, now)
        case st.DiagnosedAs():
            healthy = condition.verdict.failure is FailureClass.HEALTHY
            return Span(
                "✓ done" if healthy else f"✗ {condition.verdict.failure}",
                TextStyle.LIVE if healthy else TextStyle.BAD,
            )
        case st.Backoff():
            return Span(f"↻ restarts in {fm.duration(max(0.0, condition.until - now))}", TextStyle.WARN)
        case st.HeldOpen() if due == WAIT:
            return Span(f"‖ waiting for you: ends in {fm.duration(left_s)}", TextStyle.WARN)
        case st.HeldOpen():
            return Span("‖ waiting for you", TextStyle.WARN)
        case st.Finished(outcome=Outcome.LOST) if shown.state.is_end_unseen:
            return _end_unseen(attempt, now)
        case st.Finished(outcome=Outcome.STOPPED) if requested:
            return Span(f"■ {requested}", TextStyle.PLAIN)
        case st.Finished(outcome=Outcome.STOPPED) if shown.state.mode == "observed":
            return Span(UNWATCHED, TextStyle.PLAIN)
        case st.Finished() if shown.state.failed_for is not None:
            return Span(f"✗ {shown.state.failed_for}, stopped", TextStyle.BAD)
        case st.Finished():
            return OUTCOMES[condition.outcome]


def _quiet_span(since: float, now: float) -> Span:
    return Span(f"○ quiet for {fm.age(max(0.0, now - since))}", TextStyle.WARN)


def _end_unseen(attempt: st.AttemptState | None, now: float) -> Span:
    """Return a notice saying how long an abandoned log has been quiet, or that stoker did not see the job finish."""
    if attempt is None or attempt.quiet_since is None:
        return Span(END_UNSEEN, TextStyle.WARN)
    return _quiet_span(attempt.quiet_since, now)


def stall_text(stall: StallFlagged, now: float) -> str:
    """Say how long there has been no progress, or no output if steps cannot be read."""
    lasts = fm.duration(max(0.0, now - stall.since))
    return f"No output for {lasts}" if stall.stage == "log" else f"No progress for {lasts}"


def is_stalled(shown: Shown) -> bool:
    """Check whether the keeper flagged a stall and is still watching."""
    attempt = shown.state.attempt
    return shown.keeper_alive and attempt is not None and attempt.stall is not None


def countdown(shown: Shown, now: float) -> tuple[str, float]:
    """Return the next automatic event (`HANG`, `RESTART` or `WAIT`; "" if none) and the seconds until it happens."""
    attempt, condition = shown.state.attempt, shown.state.condition
    if not shown.keeper_alive:
        return "", 0.0
    if isinstance(condition, st.Backoff):
        return RESTART, max(0.0, condition.until - now)
    if isinstance(condition, st.HeldOpen) and condition.until is not None and condition.until - now <= SOON_S:
        return WAIT, max(0.0, condition.until - now)
    if attempt is not None and attempt.countdown is not None:
        return HANG, max(0.0, attempt.countdown.until - now)
    return "", 0.0


def is_live(snapshot: Snapshot) -> bool:
    """Check whether the run will keep running or waiting after the user quits."""
    return not snapshot.state.is_over and not snapshot.gone


def leave_word(snapshot: Snapshot) -> str:
    """Return a label for the quit key that says what quitting does and what keeps running."""
    if not is_live(snapshot) or not snapshot.keeper_alive or snapshot.state.mode == "observed":
        return "leave"
    match snapshot.state.condition:
        case st.HeldOpen():
            return "leave (keeps waiting)" if is_held_unwatched(snapshot.state) else "leave and end run"
        case st.Backoff():
            return "leave (it restarts by itself)"
        case st.Running() | st.Launching() if not is_failing(snapshot):
            return "leave (training continues)"
        case _:
            return "leave"


def is_held_unwatched(state: st.RunState) -> bool:
    """Check whether a held run keeps waiting with no dashboard open. It does not if only an edit can fix it."""
    from supervisor.policy.rules import RULES  # imported only after a failure

    verdict = state.attempt.verdict if state.attempt is not None else None
    return verdict is None or RULES[verdict.failure].held_unwatched


def shows_failure(snapshot: Snapshot) -> bool:
    """Check whether the failure card replaces the charts, because an attempt failed and no new one is running."""
    attempt = snapshot.state.attempt
    if is_failing(snapshot):
        return True
    if attempt is None or attempt.failure is None:
        return False
    condition = snapshot.state.condition
    if isinstance(condition, st.Finished):
        return condition.outcome in {Outcome.FAILED, Outcome.GAVE_UP, Outcome.LOST}
    return isinstance(condition, (st.Ended, st.DiagnosedAs, st.Backoff, st.HeldOpen))


def is_failing(snapshot: Snapshot) -> bool:
    """Check whether a rank of the latest attempt is failing while its launcher is alive, so the evidence is provisional."""
    attempt, condition = snapshot.state.attempt, snapshot.state.condition
    if attempt is None or attempt.failing is None:
        return False
    if isinstance(condition, st.Stopping):
        return condition.why is StopWhy.RANK_DIED
    if isinstance(condition, st.Ended):
        return attempt.verdict is None or attempt.verdict_provisional
    return isinstance(condition, st.Running)


def failures(state: st.RunState) -> list[st.AttemptState]:
    """Return the failed attempts, oldest first, excluding any that the user stopped."""
    return [attempt for attempt in state.attempts if attempt.failure is not None]


def rank_state(rank: st.RankState, state: st.RunState, *, is_live: bool) -> tuple[str, TextStyle]:
    """Return the word and style for a rank's state. `state` is its node's state. `is_live` is true if a keeper manages the rank."""
    attempt = state.attempt
    if rank.exited:
        if rank.exit_code is None and attempt is not None and attempt.exit_code == 0:
            return "✓ done", TextStyle.DIM  # torchrun exited with 0, so the ranks did too
        if attempt is not None and attempt.ended_on_request:
            return "■ stopped", TextStyle.DIM
        if hung := _hung(attempt):
            return ("✗ hung", TextStyle.BAD) if rank.rank in hung else ("■ ended", TextStyle.DIM)
        return _exit_words(rank.exit_code)
    condition = state.condition
    if isinstance(condition, st.Stopping):
        return "stopping", TextStyle.WARN
    if not isinstance(condition, st.Running):
        return "ended", TextStyle.DIM
    stall, stacks = (attempt.stall, attempt.stacks) if attempt is not None else (None, None)
    if stall is not None and stacks is not None and stacks.odd and stacks.t >= stall.since:
        return ("⚠ stuck", TextStyle.WARN) if rank.rank in stacks.odd else ("waits", TextStyle.DIM)
    return str(condition.phase), TextStyle.LIVE if is_live else TextStyle.PLAIN


def _hung(attempt: st.AttemptState | None) -> tuple[int, ...]:
    """Return the ranks that the others waited for until they gave up or stoker stopped the attempt."""
    if attempt is None or attempt.verdict is None:
        return ()
    if attempt.hang is not None:
        return attempt.hang.ranks if attempt.verdict.failure is FailureClass.HANG else ()
    if attempt.verdict.failure is not FailureClass.NCCL_TIMEOUT or attempt.stacks is None:
        return ()
    return attempt.verdict.ranks if attempt.verdict.ranks == attempt.stacks.odd else ()


def _exit_words(code: int | None) -> tuple[str, TextStyle]:
    if code is None:
        return "✗ gone", TextStyle.BAD
    if code == 0:
        return "✓ done", TextStyle.DIM
    if code < 0:
        return f"✗ {signal_name(code)}", TextStyle.WARN if -code == signal.SIGTERM else TextStyle.BAD
    return f"✗ exit {code}", TextStyle.BAD
