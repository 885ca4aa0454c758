"""The failure card and the pages, row by row: what is said of each state, and what gives way in a low pane."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from supervisor.policy.health.slow_steps import LostTime, SpentOn
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.records import (
    Cause,
    Consequence,
    Decision,
    DecisionKind,
    FailureClass,
    SpecChange,
    UsedBatch,
)
from supervisor.views.model.cause_context import Nearby
from supervisor.views.model.step_times import StepTimes
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
from tests.views.tui.still import attempt_of, drawn, snapshot_of, state_of, text_of, verdict

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
    return state_of(condition, attempt_of(**known))


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


def test_a_change_is_said_in_one_line() -> None:
    changed = SpecChange(
        env=(("A", "1"),), set_args=(("--x", "1"),), new_port=True, from_scratch=True, argv=("a",)
    )
    whole = "A=1 · --x 1 · another port · from the start, without a checkpoint · "
    assert card.change_text(changed) == f"{whole}other arguments"
    assert card.change_text(changed, "--lr 1 → 2") == f"{whole}--lr 1 → 2"
    assert card.change_text(SpecChange()) == "as it was"


# -- the failure page ---------------------------------------------------------------------------------------


def failure_page(state: st.RunState, **values: Any) -> FailurePage:
    made = FailurePage(id="failure")
    made.view = View(snapshot_of(state, **values), 62.0)
    return made


def test_the_failures_of_a_run_are_gone_through_one_by_one() -> None:
    first, second = attempt_of(verdict=OOM), attempt_of(2, verdict=replace(OOM, cause=None))
    third = attempt_of(3, verdict=replace(OOM, cause=Cause("artifacts/stacks-1.txt", 3, "rank 1 sleeps")))
    made = failure_page(state_of(HELD, first, attempt_of(4), second, third))
    made.post_message = lambda _message: True  # type: ignore[method-assign, assignment]
    assert text_of([made.titles()[0]]) == "failure · attempt 3 (3 of 3, ← →) · L opens the stacks"
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


# -- step times, and the batch that failed -----------------------------------------------------------------


def times_page(times: StepTimes) -> list[str]:
    found = snapshot_of(failed(), nearby=Nearby({}, times=times))
    said = drawn(run_pages.TimesPage(id="times"), found, 60, 12)
    return [line[1:].rstrip() for line in said.splitlines() if line.strip()]


def test_the_page_of_step_times_says_the_share_of_each_cause() -> None:
    found = (
        LostTime(SpentOn.DATA, 0.62, "waiting for data on all ranks", None, "num_workers is 0"),
        LostTime(SpentOn.SAVES, 0.071, "saving checkpoints takes 5 s once"),
    )
    assert times_page(StepTimes(1200, 0.25, 8, found)) == [
        "1200 steps of 0.25 s on 8 ranks",
        "62 %   waiting for data on all ranks: num_workers is 0",
        "7 %    saving checkpoints takes 5 s once",
    ]
    assert times_page(StepTimes(1200, 0.25, 8))[1] == "nothing found that costs 5 % of the time or more"
    assert times_page(StepTimes(19, 0.25, 8))[0].startswith("too few steps were measured so far")


def test_the_failure_page_says_which_batch_it_was() -> None:
    used = UsedBatch(1, "/home/me/a/train.py:8", 2, 15, 40, ((16, 1920),), ("int64",), 16, (7,), 2.1)
    other = replace(used, rank=0, index=3, at="", times_usual=1.0)
    page = FailurePage(id="failure")
    said = drawn(
        page,
        snapshot_of(failed(verdict=replace(OOM, batches=(other, replace(other, index=4), used)))),
        120,
        40,
    )
    assert "rank 0: one of the batches 3 to 4 of epoch 2, 16 × 1920 int64" in said
    assert (
        "rank 1: batch 15 of epoch 2 of the DataLoader at …/a/train.py:8, 16 × 1920 int64, 2.1 × the usual size"
        in said
    )
