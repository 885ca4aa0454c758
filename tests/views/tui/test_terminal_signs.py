"""The terminal's title, bell and notice: what is written, when, and that it is harmless."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.run import state as st
from supervisor.run.events import Outcome
from supervisor.run.records import FailureClass
from supervisor.views.appearance import Appearance, NoticeKind
from supervisor.views.tui.terminal_signs import KEEP_TITLE, RESTORE_TITLE, TerminalSigns
from supervisor.views.wording.translate import english
from tests.views.tui.still import attempt_of, running, snapshot_of, state_of, verdict

BAD_TITLE = "CUDA out of memory;\x1b]0;owned\x07 \x1b[2J HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz01234567"
BELL = "\a"


def signs(
    written: list[str], env: dict[str, str] | None = None, *, calls: bool = True, **asked: Any
) -> TerminalSigns:
    return TerminalSigns(Appearance(**asked), env or {"TERM": "xterm"}, written.append, english, calls=calls)


def finished(outcome: Outcome, number: int = 1) -> st.RunState:
    return state_of(st.Finished(outcome=outcome, exit_code=1, reason=""), attempt_of(number))


def failed(number: int = 1, *, so_far: bool = False) -> st.RunState:
    bad = verdict(FailureClass.CUDA_OOM, title=BAD_TITLE)
    attempt = attempt_of(number, verdict=bad, verdict_provisional=so_far)
    return state_of(st.DiagnosedAs(attempt=number, verdict=bad), attempt)


def going(number: int = 1) -> st.RunState:
    return state_of(running(number), attempt_of(number))


def calls_of(states: list[st.RunState], *, text: str = BELL, **asked: Any) -> list[int]:
    """Which of the moments called."""
    written: list[str] = []
    each = signs(written, **asked)
    found = []
    for at, state in enumerate(states):
        written.clear()
        each.take(snapshot_of(state), 0.0)
        found += [at] * sum(1 for piece in written if piece.startswith(text))
    return found


def test_by_default_the_title_alone_says_the_state_and_is_given_back() -> None:
    written: list[str] = []
    each = signs(written)
    for state in (going(), going(), failed(), finished(Outcome.FAILED)):
        each.take(snapshot_of(state), 0.0)
    each.close()
    name = going().run_id
    assert written == [
        f"{KEEP_TITLE}\x1b]2;● stepping · {name}\x1b\\",
        f"\x1b]2;✗ cuda_oom · {name}\x1b\\",
        f"\x1b]2;✗ failed · {name}\x1b\\",
        RESTORE_TITLE,
    ]


def test_a_failure_and_an_end_call_once_and_what_was_so_before_does_not() -> None:
    over = finished(Outcome.FAILED)
    assert calls_of([going(), failed(so_far=True), failed(), failed(), going(2), failed(2)], bell=True) == [
        2,
        5,
    ]
    assert calls_of([failed(), going(2), finished(Outcome.SUCCEEDED, 2)], bell=True) == [2]
    assert calls_of([over, over], bell=True) == []
    assert calls_of([going(), finished(Outcome.STOPPED)], bell=True) == [], "a person asked for that"
    assert calls_of([going(), failed()], bell=True, calls=False) == [], "recorded time"
    assert calls_of([going(), failed()]) == [], "off unless asked for"


@pytest.mark.parametrize(
    ("kind", "begin"), [("osc9", "\x1b]9;stoker: "), ("osc777", "\x1b]777;notify;stoker;")]
)
def test_a_notice_is_one_harmless_line_without_secrets(kind: str, begin: str) -> None:
    written: list[str] = []
    each = signs(written, notice=NoticeKind(kind))
    each.take(snapshot_of(going()), 0.0)
    each.take(snapshot_of(failed()), 0.0)
    (text,) = [piece for piece in written if piece.startswith(begin)]
    body = text.removeprefix(begin).removesuffix("\x1b\\")
    assert "CUDA out of memory" in body
    assert body.isprintable()
    assert "hf_abcd" not in body
    assert kind == "osc9" or ";" not in body


def test_a_long_name_is_cut_where_a_terminal_would_cut_it() -> None:
    written: list[str] = []
    each = signs(written, notice=NoticeKind.OSC9)
    for state in (going(), failed()):
        each.take(snapshot_of(state_of(state.condition, *state.attempts, run_id="x" * 300)), 0.0)
    title, _, notice = written
    assert title == f"{KEEP_TITLE}\x1b]2;{'● stepping · '.ljust(100, 'x')}\x1b\\"
    assert notice == f"\x1b]9;stoker: {'✗ cuda_oom · '.ljust(200, 'x')}\x1b\\"


def test_behind_a_multiplexer_the_bell_stands_in_and_old_consoles_get_no_sequence() -> None:
    written: list[str] = []
    each = signs(
        written, {"TERM": "tmux-256color", "TMUX": "/tmp/x,1,0"}, notice=NoticeKind.OSC9, title=False
    )
    each.take(snapshot_of(going()), 0.0)
    each.take(snapshot_of(failed()), 0.0)
    assert written == [BELL]
    written.clear()
    for console in ("linux", "dumb"):
        each = signs(written, {"TERM": console}, notice=NoticeKind.OSC9)
        each.take(snapshot_of(going()), 0.0)
        each.take(snapshot_of(failed()), 0.0)
        each.close()
        assert written == []
