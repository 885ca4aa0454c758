"""The failure card and the pages, row by row: what is said of each state, and what gives way in a low pane."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.records import (
    Cause,
    Consequence,
    Decision,
    DecisionKind,
    FailureClass,
    Reason,
    SpecChange,
)
from supervisor.views.model.cause_context import Context, Nearby
from supervisor.views.tui.pages import run_pages
from supervisor.views.tui.pages.failure import FailurePage
from supervisor.views.tui.pages.text_page import Page
from supervisor.views.tui.panels import failure_card as card
from supervisor.views.tui.panels.header import HeaderPanel
from supervisor.views.tui.panels.notice import NoticeBar
from supervisor.views.tui.panels.ranks_table import RanksPanel
from supervisor.views.tui.shell.help import HelpLine, HelpScreen
from supervisor.views.tui.widgets.paint import Row, Span
from supervisor.views.tui.widgets.panel import Panel, View
from tests.views.tui.still import attempt_of, drawn, running, snapshot_of, state_of, text_of, verdict

AGAIN = Decision(DecisionKind.RESTART, "it may pass", delay_s=10.0, change=SpecChange())
HELD = st.HeldOpen(attempt=1, reason="", decision=None)
OOM = verdict(
    FailureClass.CUDA_OOM,
    title="rank 1 ran out of memory",
    cause=Cause("log", 7, "CUDA out of memory"),
    advice=("use less", "or more", "or other", "a fourth"),
    consequences=(
        Consequence(FailureClass.NCCL_TIMEOUT, 0, "log", 9),
        Consequence(FailureClass.NCCL_TIMEOUT, 2, "log", 9),
        Consequence(FailureClass.TERMINATED, None, "log", 9),
    ),
)


pytestmark = pytest.mark.usefixtures("no_app")


def failed(condition: st.Condition = HELD, **values: Any) -> st.RunState:
    known: dict[str, Any] = {"ended_t": 61.0, "last_step": 7, "verdict": OOM, "decision": AGAIN, **values}
    mode = known.pop("mode", "launched")
    return state_of(condition, attempt_of(**known), mode=mode)


def card_of(state: st.RunState, width: int = 80, height: int = 40, now: float = 0.0) -> str:
    return drawn(card.FailureCard(id="card"), snapshot_of(state), width, height, now=now)


# -- the failure card ---------------------------------------------------------------------------------------


def test_in_a_low_pane_blank_rows_go_first_then_what_matters_least() -> None:
    whole = card_of(failed()).splitlines()
    lines = [line for line in whole if line.strip()]
    assert len(lines) < len(whole)
    for height in range(1, len(whole)):
        assert card_of(failed(), height=height).splitlines() == lines[:height]
    heads = [line.split()[0] for line in lines if not line.startswith("   ")]
    assert heads == ["rank", "cause", "next", "resume", "why", "then", "advice"]


BARE: dict[str, Any] = {"verdict": replace(OOM, cause=None, advice=(), consequences=())}
SCRATCH = "resume   from the first step, unless the script resumes by itself: no checkpoint is known"
OVER = st.Finished(outcome=ev.Outcome.FAILED, exit_code=3, reason="")
WAITING = st.Backoff(attempt=1, until=10.0, decision=AGAIN)
WATCHED = "next     stoker only watches this: it did not start it and restarts nothing"


@pytest.mark.parametrize(
    ("state", "now", "rows"),
    [
        (failed(with_fields(HELD, until=99.0), **BARE), 0, ["next     waiting for you: r, s (until 00:01)",
            SCRATCH]),
        (failed(**BARE), 0, ["next     waiting for you: r, s", SCRATCH]),
        (failed(verdict=replace(BARE["verdict"], failure=FailureClass.CODE_ERROR)), 0, ["next     waiting for you: r, s (leaving ends the run)",
            SCRATCH]),
        (failed(WAITING, **BARE), 0, ["next     restarts by itself in 10 s  ▱▱▱▱▱▱▱▱▱▱", "plan     as it was",
            SCRATCH]),
        (failed(WAITING, **BARE), 5, ["next     restarts by itself in 5 s  ▰▰▰▰▰▱▱▱▱▱", "plan     as it was",
            SCRATCH]),
        (failed(WAITING, **BARE), 99, ["next     restarts now  ▰▰▰▰▰▰▰▰▰▰", "plan     as it was", SCRATCH]),
        (failed(OVER, **BARE), 0, ["next     the run is over, exit code 3", "plan     as it was"]),
        (failed(decision=None, **BARE), 0, ["next     policy has not decided yet"]),
        (failed(mode="observed", **BARE), 0, [WATCHED,
            "to supervise it: stoker run --nproc-per-node N SCRIPT …"]),
        (failed(mode="observed", argv=("python", "train me.py"), **BARE), 0, [WATCHED,
            "to supervise it: stoker run -- python 'train me.py'"]),
    ],
)  # fmt: skip
def test_the_card_says_what_follows(state: st.RunState, now: float, rows: list[str]) -> None:
    why = [] if state.mode == "observed" or "policy has" in rows[0] else ["why      it may pass"]
    shown = [line.strip() for line in card_of(state, 100, now=now).splitlines() if line.strip()]
    assert shown == ["rank 1 ran out of memory", "cause    no line to point at", *rows, *why]


def test_without_a_supervisor_a_person_is_waited_for() -> None:
    panel = card.FailureCard(id="card")
    assert " next     waiting for a person" in drawn(panel, snapshot_of(failed(), keeper=False), 80, 40)


def test_a_change_is_said_in_one_line() -> None:
    changed = SpecChange(
        env=(("A", "1"),), set_args=(("--x", "1"),), new_port=True, from_scratch=True, argv=("a",)
    )
    whole = "A=1 · --x 1 · another port · from the start, without a checkpoint · "
    assert card.change_text(changed) == f"{whole}other arguments"
    assert card.change_text(changed, "--lr 1 → 2") == f"{whole}--lr 1 → 2"
    assert card.change_text(SpecChange()) == "as it was"


def test_the_card_says_what_is_known_so_far() -> None:
    failing = ev.RankFailing(
        t=90.0,
        attempt=1,
        local_rank=1,
        sign=ev.FailureSign.EXITING,
        text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.",
        path="t/attempt_0/1/stderr.log",
        line=4,
    )
    lives, gone = (
        st.RankState(local_rank=1, rank=1, exited=exited, exit_code=None) for exited in (False, True)
    )
    known: dict[str, Any] = {"ended_t": None, "decision": None, "verdict": None, "failing": failing}
    shown = card_of(failed(running(), **known, ranks={1: lives}), width=100).splitlines()
    error = "torch.OutOfMemoryError: CUDA out of memory; waiting for torchrun to end"
    assert shown[0] == f" rank 1 is exiting: {error}"
    assert any("stderr" in line and "4" in line for line in shown)
    shown = card_of(failed(running(), **known, ranks={1: gone}), width=100).splitlines()
    assert shown[0] == f" rank 1 died: {error}"
    early = {**known, "verdict": OOM, "verdict_provisional": True}
    panel = card.FailureCard(id="card")
    panel.view = View(snapshot_of(failed(running(), **early, ranks={1: gone})), 0.0)
    shown = text_of(panel.body(100, 40)).splitlines()
    assert shown[0] == f" rank 1 died: {error}"
    assert shown[1].split() == ["so", "far", *OOM.title.split()], "a verdict before its time bears a sign"
    assert [text_of([row]) for row in panel.titles()] == [
        "✗ attempt 1 is failing, step 7",
        "cuda_oom · so far",
    ]
    killed = with_fields(failing, sign=ev.FailureSign.GONE, exit_code=-9, text="", path="")
    shown = card_of(
        failed(running(), **{**known, "failing": killed}, ranks={1: gone}), width=100
    ).splitlines()
    assert shown[0] == " rank 1 died: SIGKILL; waiting for torchrun to end"


# -- the failure page ---------------------------------------------------------------------------------------

LOG = "t/1/stderr.log"
FELL = verdict(
    FailureClass.CUDA_OOM,
    title="rank 1 ran out of memory",
    rank=1,
    node=2,
    confidence=0.5,
    cause=Cause(LOG, 7, "CUDA out of memory"),
    advice=("use less", "or more"),
    consequences=(
        Consequence(FailureClass.NCCL_TIMEOUT, 0, "t/0/stderr.log", 9, "timed out"),
        Consequence(FailureClass.NCCL_TIMEOUT, 2, "t/2/stderr.log", 9, "timed out"),
        Consequence(FailureClass.TERMINATED, None, "log", 9, "bye"),
    ),
)
STACKS = "artifacts/stacks-1.txt"


def failure_page(state: st.RunState, **values: Any) -> FailurePage:
    made = FailurePage(id="failure")
    made.view = View(snapshot_of(state, **values), 62.0)
    return made


def page_lines(made: FailurePage, width: int = 80) -> list[str]:
    assert made.view is not None
    return text_of(made.rows(made.view, width)).splitlines()


def test_the_failure_page_tells_all_of_it() -> None:
    made = failure_page(failed(verdict=FELL, exit_code=1, decided_by="me"))
    assert page_lines(made) == [
        "✗ rank 1 ran out of memory",
        "cuda_oom · 50 % sure · rank 1 fell first · node 2 · step 7 · exit code 1",
        "not sure: read the evidence before you act",
        "",
        "cause",
        "log      t/1/stderr.log:7",
        "CUDA out of memory",
        "",
        "what followed  3 lines: consequences, not causes",
        "ranks 0,2   nccl timeout t/0/stderr.log:9 timed out",
        "a log       terminated log:9 bye",
        "",
        "what to do",
        "· use less",
        "· or more",
        "",
        "what stoker does",
        "restart     it may pass (decided by me)",
        "next        waiting for you: r, s",
        "resume      from the first step, unless the script resumes by itself: no",
        "            checkpoint is known",
    ]
    assert made.inner_keys() == [("L", "its log", "open_log"), ("y", "copy", "copy")]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"verdict": replace(FELL, rank=None, ranks=(0, 1), node=None, confidence=0.6)},
            "cuda_oom · 60 % sure · ranks 0-1 alike · step 7"),
        ({"verdict": replace(FELL, cause=Cause(STACKS, 3, "rank 1 sleeps")), "last_step": None},
            "cuda_oom · 50 % sure · rank 1 kept the others waiting · node 2 · before its first step"),
        ({"verdict": replace(FELL, reason=Reason.ENDED_EARLY, node=None)},
            "cuda_oom (ended early) · 50 % sure · rank 1 fell first · step 7"),
        ({"verdict_provisional": True}, "provisional: its processes are still ending, and more may come"),
        ({"verdict": replace(FELL, cause=None)}, "no line to point at: exit codes and silence told it"),
        ({"verdict": replace(FELL, consequences=FELL.consequences[:1])},
            "what followed  a consequence, not the cause"),
        ({"decided_by": "policy"}, "restart     it may pass"),
    ],
)  # fmt: skip
def test_the_failure_page_says_what_is_known_of_it(values: dict[str, Any], line: str) -> None:
    assert line in page_lines(failure_page(failed(**{"verdict": FELL, **values})))
    without = replace(FELL, consequences=(), advice=())
    lines = page_lines(failure_page(failed(**{**values, "verdict": without})))
    assert not {"what followed", "what to do"} & {line.partition("  ")[0] for line in lines}


def test_the_line_of_a_cause_stands_in_its_context() -> None:
    lines = tuple(f"line {number}" for number in range(1, 31))
    long = (*lines[:19], f"        {'CUDA out of memory ' * 3}".rstrip(), *lines[20:])
    state = failed(verdict=replace(FELL, cause=Cause(LOG, 20, "CUDA out of memory")))
    made = failure_page(state, nearby=Nearby({1: Context(LOG, 20, 1, long)}))
    shown = page_lines(made, 60)
    at = shown.index("log      t/1/stderr.log:20")
    assert shown[at + 1 : at + 26] == [
        *(f" {number:6} line {number}" for number in range(6, 20)),
        "▸    20         CUDA out of memory CUDA out of memory CUDA",
        "        out of memory",
        *(f" {number:6} line {number}" for number in range(21, 29)),
        "",
    ]
    gone = failure_page(state, nearby=Nearby({1: Context(LOG, 20, trouble="the log is gone")}))
    assert page_lines(gone)[6:8] == ["CUDA out of memory", "the log is gone"]


def test_the_failures_of_a_run_are_gone_through_one_by_one() -> None:
    first, second = attempt_of(verdict=FELL), attempt_of(2, verdict=replace(FELL, cause=None))
    third = attempt_of(3, verdict=replace(FELL, cause=Cause(STACKS, 3, "rank 1 sleeps")))
    made = failure_page(state_of(HELD, first, attempt_of(4), second, third))
    made.post_message = lambda _message: True  # type: ignore[method-assign, assignment]
    assert text_of([made.titles()[0]]) == "failure · attempt 3 (3 of 3, ← →) · L opens the stacks"
    assert "the same failure as attempts 1-2" in page_lines(made)
    others = ("← →", "other failure", "focused.attempt(-1)")
    assert made.inner_keys() == [others, ("L", "stacks", "open_log"), ("y", "copy", "copy")]
    for way, title in (
        (1, "3 (3 of 3, ← →) · L opens the stacks"),
        (-1, "2 (2 of 3, ← →)"),
        (-1, "1 (1 of 3, ← →) · L opens its log"),
        (-1, "1 (1 of 3, ← →) · L opens its log"),
        (1, "2 (2 of 3, ← →)"),
    ):
        made.action_attempt(way)
        assert text_of([made.titles()[0]]) == f"failure · attempt {title}"
    assert made.inner_keys() == [others]
    nothing = failure_page(state_of())
    nothing.action_attempt(-1)
    assert page_lines(nothing) == ["nothing has failed yet: when something does, its cause stands here"]
    assert (text_of([nothing.titles()[0]]), nothing.inner_keys()) == ("failure", [])


@pytest.mark.parametrize(
    "made",
    [
        FailurePage,
        card.FailureCard,
        run_pages.AdvisoriesPage,
        run_pages.ProcessesPage,
        HeaderPanel,
        NoticeBar,
        RanksPanel,
    ],
)
def test_what_shows_ages_is_drawn_each_second(made: type[Panel]) -> None:
    panel, times = made(id="pane"), list[float]()
    panel.repaint = lambda: times.append(panel.view.now if panel.view is not None else 0.0)  # type: ignore[method-assign]
    panel.tick(View(snapshot_of(state_of()), 7.0))
    assert times == [7.0]


# -- other pages --------------------------------------------------------------------------------------------


def page(panel: Panel, state: st.RunState, now: float = 0.0, width: int = 90) -> str:
    return text_of(panel.rows(View(snapshot_of(state), now), width))  # type: ignore[attr-defined]


STALL = ev.StallFlagged(
    t=60.0, attempt=1, since=50.0, waited_s=10, stage="step", pace_s=1.5, flag_s=10, act_s=300.0
)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "ended as a hang after 5 m 00 s at the earliest"),
        ({"stall": with_fields(STALL, act_s=None)}, "never ended by itself"),
        ({"kept": ev.HangKept(t=61.0, attempt=1, by="me")}, "me keeps waiting"),
        ({"countdown": ev.HangCountdown(t=61.0, attempt=1, until=92.0, left_s=30, text="", rule="")},
            "ended as a hang in 30 s"),
        ({"stacks": ev.StacksTaken(t=61.0, attempt=1, text="rank 1 sleeps", collective="all_reduce 5")},
            "all_reduce 5"),
    ],
)  # fmt: skip
def test_a_stall_is_explained(values: dict[str, Any], text: str) -> None:
    state = state_of(None, attempt_of(**{"stall": STALL, **values}))
    said = page(run_pages.AdvisoriesPage(id="advisories"), state, now=62.0)
    assert text in said
    assert "No progress for 12 s" in said
    assert "normally every 1.50 s" in said


class Text(Page):
    """A page of so many lines."""

    heading = "text"
    lines = 6

    def rows(self, view: View, width: int) -> list[Row]:
        return [(Span(f"{number}"),) for number in range(self.lines)]


def test_a_page_is_scrolled() -> None:
    panel = Text(id="text")
    assert panel.body(20, 4) == []
    panel.view = View(snapshot_of(state_of()), 0.0)

    def shown() -> str:
        return "".join(text_of(panel.body(20, 3)).split())

    assert shown() == "012"
    assert text_of([panel.titles()[1]]) == "1-3 of 6"
    for act, value, expected in (
        ("move", 1, "123"),
        ("page", 1, "345"),
        ("page", -1, "123"),
        ("edge", 1, "345"),
        ("edge", -1, "012"),
        ("move", -1, "012"),
    ):
        getattr(panel, f"action_{act}")(value)
        assert shown() == expected
    panel.body(20, 6)
    assert text_of([panel.titles()[1]]) == ""


# -- the help, the styles, what is wanting before a loss ------------------------------------------------------------


def test_a_key_that_is_taken_twice_is_the_first_ones() -> None:
    lines = [
        HelpLine("here", "Enter", "the log at the cursor"),
        HelpLine("act", "s", "stop gracefully: ask, then SIGTERM, then SIGKILL"),
        HelpLine("act", "r", "restart"),
        HelpLine("act", "Enter", "start the next attempt now"),
    ]
    screen = HelpScreen(lines)
    assert [line.group for line in screen.lines] == ["here", "act", "act"]
    shared = [
        HelpLine("time", "←", "back"),
        HelpLine("here", "← h", "left"),
        HelpLine("here", "Ctrl ←", "wider"),
    ]
    assert [line.key for line in HelpScreen(shared).lines] == ["←", "h", "Ctrl ←"]
