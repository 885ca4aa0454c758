"""A rank's state as a glyph and a word, with its colour (pure)."""

from __future__ import annotations

import signal

from supervisor.run import state as st
from supervisor.run.records import FailureClass
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.widgets.paint import TextStyle


def rank_state(rank: st.RankState, snapshot: Snapshot) -> tuple[str, TextStyle]:
    """Glyph and word of what became of a rank."""
    attempt = snapshot.state.attempt
    if rank.exited:
        if rank.exit_code is None and attempt is not None and attempt.exit_code == 0:
            return "✓ done", TextStyle.DIM  # torchrun ended well, so its ranks did
        if attempt is not None and attempt.ended_on_request:
            return "■ stopped", TextStyle.DIM
        if hung := _hung(attempt):
            return ("✗ hung", TextStyle.BAD) if rank.rank in hung else ("■ ended", TextStyle.DIM)
        return _exit_words(rank.exit_code)
    condition = snapshot.state.condition
    match condition:
        case st.Running() if odd := _kept_waiting_by(attempt):
            return ("⚠ stuck", TextStyle.WARN) if rank.rank in odd else ("waits", TextStyle.DIM)
        case st.Running():
            return str(condition.phase), TextStyle.LIVE if snapshot.keeper_alive else TextStyle.PLAIN
        case st.Stopping():
            return "stopping", TextStyle.WARN
        case _:
            return "ended", TextStyle.DIM


def _kept_waiting_by(attempt: st.AttemptState | None) -> tuple[int, ...]:
    """The ranks that the others wait for, as the stacks of an ongoing stall show; empty where they do not."""
    if attempt is None or attempt.stall is None or attempt.stacks is None:
        return ()
    return attempt.stacks.odd if attempt.stacks.t >= attempt.stall.since else ()


def _hung(attempt: st.AttemptState | None) -> tuple[int, ...]:
    """The ranks that the others waited for until we ended it, or until these gave up."""
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
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"✗ {name}", TextStyle.WARN if -code == signal.SIGTERM else TextStyle.BAD
    return f"✗ exit {code}", TextStyle.BAD
