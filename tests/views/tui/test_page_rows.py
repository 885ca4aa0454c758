"""The failure card and the pages, row by row: what is said of each state, and what gives way in a low pane."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace as with_fields
from textual.color import Color

from supervisor.job.batch import BatchChange, BatchSpec, describe_change
from supervisor.job.spec import KnobScope
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.events import Outcome
from supervisor.run.records import (
    Cause,
    Consequence,
    Decision,
    DecisionKind,
    Difference,
    FailureClass,
    Finding,
    FindingLevel,
    Sameness,
    SpecChange,
)
from supervisor.views import format as fm
from supervisor.views.model.replay import Recording, ReplayClock
from supervisor.views.tui.charts import live
from supervisor.views.tui.dashboard import failure_card as card
from supervisor.views.tui.dashboard.playback import ReplayBar
from supervisor.views.tui.dialogs.help import HelpLine, HelpScreen, key_names
from supervisor.views.tui.pages import advisories, failure, processes, settings
from supervisor.views.tui.pages.page import LABEL, PAGES, Page, labelled, new_page
from supervisor.views.tui.theme.textual_theme import LOOKS, THEMES, styles_of
from supervisor.views.tui.widgets.lists import ListPanel
from supervisor.views.tui.widgets.paint import Row, Span
from supervisor.views.tui.widgets.panel import Panel, View
from supervisor.views.wording.translate import english
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


@pytest.fixture(autouse=True)
def no_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels ask their app for the language."""
    monkeypatch.setattr(Panel, "tr", english)


def failed(condition: st.Condition = HELD, **values: Any) -> st.RunState:
    known: dict[str, Any] = {"ended_t": 61.0, "last_step": 7, "verdict": OOM, "decision": AGAIN, **values}
    return state_of(condition, attempt_of(**known))


def card_of(state: st.RunState, width: int = 80, height: int = 40, now: float = 0.0) -> str:
    return drawn(card.FailureCard(id="card"), snapshot_of(state), width, height, now=now)


# -- the failure card ---------------------------------------------------------------------------------------


def test_the_card_says_what_happened_and_what_followed() -> None:
    said = card_of(failed())
    assert "rank 1 ran out of memory" in said
    assert "CUDA out of memory" in said
    assert "nccl timeout (rank 0,2) · terminated" in said
    assert "or other" in said
    assert "a fourth" not in said, "three are enough"
    assert "not sure" not in said
    assert card_of(state_of(HELD)) == ""


@pytest.mark.parametrize(("confidence", "unsure"), [(0.59, True), (0.6, False)])
def test_a_verdict_that_is_not_sure_says_so(confidence: float, unsure: bool) -> None:
    state = failed(verdict=replace(OOM, confidence=confidence))
    assert ("not sure: read the evidence" in card_of(state)) is unsure


def test_in_a_low_pane_blank_rows_go_first_then_what_matters_least() -> None:
    whole = card_of(failed()).splitlines()
    lines = [line for line in whole if line.strip()]
    assert len(lines) < len(whole)
    for height in range(1, len(whole)):
        assert card_of(failed(), height=height).splitlines() == lines[:height]
    heads = [line.split()[0] for line in lines if not line.startswith("   ")]
    assert heads == ["rank", "cause", "next", "resume", "why", "then", "advice"]


def test_the_plan_is_whole_and_the_same_change_is_no_reason_besides() -> None:
    batch = BatchChange(BatchSpec(16, 1, 1), BatchSpec(8, 2, 1))
    reason = f"cuda_oom: {describe_change(batch)}: the largest smaller divisor"
    plan = Decision(DecisionKind.RESTART, reason, change=SpecChange(batch=batch, from_scratch=True))
    said = card_of(failed(st.Backoff(attempt=1, until=5.0, decision=plan), decision=plan))
    assert said.count("micro-batch 16 → 8") == 1
    assert "without a checkpoint" in " ".join(said.split())


@pytest.mark.parametrize(
    ("possible", "keys"),
    [
        ({"note", "accept", "smaller_batch", "edit", "restart", "stop", "stop_now"}, "Enter, b, e, r, s"),
        ({"edit", "restart", "stop"}, "e, r, s"),
        ({"note"}, ""),
    ],
)
def test_a_run_that_waits_names_the_keys_that_work(
    possible: set[str], keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card, "possible", lambda *_, **__: frozenset(possible))
    assert ("waiting for you: " + keys if keys else "waiting for a person") in card_of(failed())


@pytest.mark.parametrize(
    ("condition", "decision", "text"),
    [
        (HELD, AGAIN, "waiting for "),
        (
            st.HeldOpen(attempt=1, reason="", decision=None, until=125.0),
            AGAIN,
            f"(until {fm.day_and_time(125.0, 0.0)})",
        ),
        (st.Backoff(attempt=1, until=5.0, decision=AGAIN), AGAIN, "restarts by itself in 5 s"),
        (st.Backoff(attempt=1, until=0.0, decision=AGAIN), AGAIN, "restarts now"),
        (st.Finished(outcome=Outcome.FAILED, exit_code=4, reason=""), AGAIN, "the run is over, exit code 4"),
        (st.Ended(attempt=1, exit_code=1), None, "policy has not decided yet"),
    ],
)
def test_what_comes_next(condition: st.Condition, decision: Decision | None, text: str) -> None:
    assert text in card_of(failed(condition, decision=decision))


@pytest.mark.parametrize(("until", "full"), [(10.0, 0), (5.0, 5), (0.0, 10), (20.0, 0)])
def test_a_countdown_fills_up(until: float, full: int) -> None:
    said = card_of(failed(st.Backoff(attempt=1, until=until, decision=AGAIN)))
    assert said.count("▰") == full
    assert said.count("▱") == card.COUNT_CELLS - full


def test_of_a_job_that_stoker_did_not_start_it_names_the_command_that_would() -> None:
    state = failed(argv=("python", "train.py"))
    observed = with_fields(state, mode="observed")
    assert "to supervise it: stoker run -- python train.py" in card_of(observed)
    assert "--nproc-per-node N SCRIPT" in card_of(with_fields(failed(), mode="observed"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (SpecChange(), "as it was"),
        (SpecChange(new_port=True), "another port"),
        (SpecChange(from_scratch=True), "from the start, without a checkpoint"),
        (SpecChange(argv=("x",)), "other arguments"),
        (SpecChange(env=(("A", "1"),), set_args=(("--b", "2"),)), "A=1 · --b 2"),
        (
            SpecChange(batch=BatchChange(BatchSpec(8, 1, 2), BatchSpec(4, 2, 2)), new_port=True),
            "micro-batch 8 → 4, accumulation 1 → 2, global batch 16 unchanged · another port",
        ),
    ],
)
def test_a_change_in_one_line(change: SpecChange, text: str) -> None:
    assert card.change_text(change) == text
    held = replace(AGAIN, change=change)
    is_offer = change != SpecChange()
    assert (f"on offer {text}" in card_of(failed(decision=held), width=110)) is is_offer
    assert ("resume" in card_of(failed(decision=held))) is not change.from_scratch


def test_arguments_that_differ_are_named_where_they_are_known() -> None:
    change = SpecChange(argv=("--lr", "3e-3"), new_port=True)
    assert card.change_text(change, "--lr 1e-2 → 3e-3") == "another port · --lr 1e-2 → 3e-3"


def test_the_title_of_the_card() -> None:
    panel = card.FailureCard(id="card")
    panel.view = View(snapshot_of(failed()), 0.0)
    left, right = panel.titles()
    assert text_of([left]) == "✗ attempt 1 failed, step 7"
    assert text_of([right]) == "cuda_oom · 100 % sure"
    panel.view = View(snapshot_of(failed(last_step=None)), 0.0)
    assert text_of([panel.titles()[0]]) == "✗ attempt 1 failed, before its first step"
    panel.view = View(snapshot_of(state_of()), 0.0)
    assert panel.titles() == ((), ())


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


def test_the_card_knows_how_many_rows_it_needs() -> None:
    panel = card.FailureCard(id="card")
    view = View(snapshot_of(failed()), 0.0)
    needed = panel.needed_rows(view, 82)
    assert panel.view is None
    assert needed == len(card_of(failed()).splitlines()) + 2


# -- the failure page -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "kind", "text"),
    [
        (st.Backoff(attempt=1, until=65.0, decision=AGAIN), DecisionKind.RESTART, "continues in 1 m 05 s"),
        (HELD, DecisionKind.HOLD, "waiting for you"),
        (
            st.HeldOpen(attempt=1, reason="", decision=None, until=65.0),
            DecisionKind.HOLD,
            "waiting for you, for another 1 m 05 s",
        ),
        (
            st.Finished(outcome=Outcome.FAILED, exit_code=4, reason=""),
            DecisionKind.FAIL,
            "the run is over, exit code 4",
        ),
        (st.Ended(attempt=1, exit_code=1), DecisionKind.RESTART, "now"),
        (st.Ended(attempt=1, exit_code=1), DecisionKind.FAIL, "it stays so"),
    ],
)
def test_when_it_happens(condition: st.Condition, kind: DecisionKind, text: str) -> None:
    state = failed(condition)
    decision = replace(AGAIN, kind=kind)
    assert failure._when(snapshot_of(state), state.attempts[-1], decision, 0.0) == text
    two = state_of(condition, state.attempts[0], attempt_of(2))
    assert failure._when(snapshot_of(two), two.attempts[0], decision, 0.0) == "done: attempt 2 followed"


def test_what_each_key_would_do_instead() -> None:
    def keys(state: st.RunState, *, keeper: bool = True) -> str:
        return " ".join(key for key, _, _ in failure._choices(snapshot_of(state, keeper=keeper)))

    batch: dict[str, Any] = {"batch": BatchSpec(8, 1, 2)}
    assert keys(failed(**batch)) == "r b e s"
    assert keys(failed()) == "r e s", "without a batch that could be smaller"
    assert keys(failed(st.Backoff(attempt=1, until=5.0, decision=AGAIN), **batch)) == "Enter Esc Esc r b e s"
    assert keys(failed(), keeper=False) == ""
    assert keys(failed(st.Ended(attempt=1, exit_code=1))) == ""


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
        (
            {"countdown": ev.HangCountdown(t=61.0, attempt=1, until=92.0, left_s=30, text="", rule="")},
            "ended as a hang in 30 s",
        ),
        ({"stack_note": "no py-spy here"}, "no py-spy here"),
        (
            {"stacks": ev.StacksTaken(t=61.0, attempt=1, text="rank 1 sleeps", collective="all_reduce 5")},
            "all_reduce 5",
        ),
    ],
)
def test_a_stall_is_explained(values: dict[str, Any], text: str) -> None:
    state = state_of(None, attempt_of(**{"stall": STALL, **values}))
    said = page(advisories.AdvisoriesPage(id="advisories"), state, now=62.0)
    assert text in said
    assert "No progress for 12 s" in said
    assert "normally every 1.50 s" in said


def test_advisories_stand_newest_first() -> None:
    def advisory(text: str) -> ev.Advisory:
        return ev.Advisory(t=1.0, attempt=1, code="x", text=text)

    panel = advisories.AdvisoriesPage(id="advisories")
    said = page(panel, state_of(advisories=(advisory("older"), advisory("newer"))))
    assert said.index("newer") < said.index("older")
    assert "nothing to say" in page(panel, state_of())


def test_the_verdict_on_a_resume_stands_in_full_on_both_pages() -> None:
    text = " ".join(f"number {at}" for at in range(30))
    compared = ev.ResumeCompared(
        t=1.0, attempt=2, result=Sameness.DIFFERS, difference=Difference.DATA_ORDER, text=text
    )
    first = attempt_of(verdict=OOM, decision=AGAIN)
    after = attempt_of(2, compared=compared)
    whole = f"attempt 2: differs: data order: {text}"
    for state in (state_of(None, first, after), state_of(None, attempt_of(), after)):
        for panel in (advisories.AdvisoriesPage(id="advisories"), failure.FailurePage(id="failure")):
            said = " ".join(page(panel, state).split())
            assert "after the resume" in said
            assert whole in said
            assert "nothing to say" not in said


def test_findings_stand_gravest_first_with_what_to_do() -> None:
    levels = (FindingLevel.OK, FindingLevel.INFO, FindingLevel.WARNING, FindingLevel.REFUSE)
    findings = tuple(Finding(level, f"check_{level}", "found", f"fix {level}") for level in levels)
    panel = settings.PreflightPage(id="preflight")
    said = page(panel, state_of(findings=findings))
    places = [said.index(f"check {level}") for level in reversed(levels)]
    assert places == sorted(places)
    for glyph, level in zip("✗⚠·✓", reversed(levels), strict=True):
        assert f"{glyph} check {level}" in said
        assert f"→ fix {level}" in said
    bare = page(panel, state_of(findings=(Finding(FindingLevel.OK, "port", "free"),)))
    assert "→" not in bare
    assert "nothing was written down" in page(panel, state_of())


def test_settings_of_a_run_that_cannot_be_read_or_was_not_started_here() -> None:
    panel = settings.SettingsPage(id="settings")
    assert "run.json cannot be read" in page(panel, state_of())
    assert "only watches this run" in page(panel, state_of(mode="observed"))


def test_the_launcher_and_its_ranks() -> None:
    panel = processes.ProcessesPage(id="processes")
    ranks = {
        0: st.RankState(local_rank=0, rank=4, pid=77),
        1: st.RankState(local_rank=1, rank=5, exited=True, exit_code=3),
    }
    said = page(panel, state_of(None, attempt_of(ranks=ranks, pid=66), keeper_pid=55))
    for part in ("supervisor", "55", "lives", "66", "77", "stepping", "✗ exit 3"):
        assert part in said
    assert "nothing was launched yet" in page(panel, with_fields(state_of(), attempts=()))


def test_the_columns_of_processes_are_as_wide_as_their_head() -> None:
    assert [len(span.text) for span in processes._line("a", 1, Span("b"), "c", "d", "e", "f")] == [
        size for _, size in processes.COLUMNS
    ]
    assert text_of([processes._line("a", None, Span("b"))]).split() == ["a", "–", "b"]
    assert text_of([processes._line("a", 1, Span("b"), "c")]).endswith("      c"), (
        "numbers stand at the right"
    )


class Text(Page):
    """A page of so many lines with a foot."""

    heading = "text"
    lines = 6

    def rows(self, view: View, width: int) -> list[Row]:
        return [(Span(f"{number}"),) for number in range(self.lines)]

    def foot(self, view: View, width: int) -> list[Row]:
        return [(Span("foot"),)]


def test_a_page_is_scrolled_and_keeps_its_foot_in_sight_while_its_end_is_not() -> None:
    panel = Text(id="text")
    assert panel.body(20, 4) == []
    panel.view = View(snapshot_of(state_of()), 0.0)

    def shown(height: int) -> str:
        return "".join(text_of(panel.body(20, height)).split())

    assert shown(6) == "012345"
    assert text_of([panel.titles()[1]]) == ""
    assert shown(3) == "01foot"
    assert text_of([panel.titles()[1]]) == "1-2 of 6"
    for act, value, expected in (
        ("move", 1, "12foot"),
        ("page", 1, "23foot"),
        ("move", 1, "345"),
        ("page", -1, "12foot"),
        ("edge", 1, "345"),
        ("edge", -1, "01foot"),
        ("move", -1, "01foot"),
    ):
        getattr(panel, f"action_{act}")(value)
        assert shown(3) == expected
    panel.action_edge(1)
    panel.to_top()
    assert shown(3) == "01foot"
    assert shown(1) == "0foot", "one line is shown even where there is space for the foot alone"


def test_each_page_has_its_name_as_id() -> None:
    assert [new_page(name).id for name in PAGES] == list(PAGES)
    with pytest.raises(ValueError, match="no page"):
        new_page("other")


# -- the bar of a replay, and panes with a cursor ---------------------------------------------------------------------


def replay_bar(at: float, *, facts: tuple[float, ...] = (), speed: float = 60.0, width: int = 60) -> str:
    clock = ReplayClock(0.0, 100.0, speed=speed, monotonic=lambda: 0.0)
    clock.seek(at)
    clock._paused = True
    recording = cast("Recording", SimpleNamespace(facts_t=facts))
    panel = ReplayBar(clock, recording, id="replay")
    return text_of(panel.body(width, 1))


@pytest.mark.parametrize("at", [0.0, 50.0, 99.0, 100.0])
def test_a_replay_stands_where_its_time_is(at: float) -> None:
    said = replay_bar(at)
    assert len(said) == 60
    track = [cell for cell in said if cell in "━●┿"]
    assert track.index("●") == round(at / 100 * (len(track) - 1))
    assert said.startswith(" ■ " if at == 100.0 else " ‖ ")
    assert "60× " in said
    assert f" {int(at) if at < 60 else '1 m 39 s' if at == 99 else '1 m 40 s'}" in said
    assert "of 1 m 40 s" in said


def test_facts_are_marked_on_the_bar_and_it_gives_way() -> None:
    track = [cell for cell in replay_bar(0.0, facts=(0.0, 50.0, 100.0)) if cell in "━●┿"]
    last = len(track) - 1
    assert [at for at, cell in enumerate(track) if cell == "┿"] == [round(last / 2), last]
    assert "●" not in replay_bar(0.0, width=40)
    assert "Space play" in replay_bar(0.0, width=100)
    assert "Space" not in replay_bar(0.0, width=99)


class Numbers(ListPanel):
    """Rows that are their numbers."""

    rows_of_heading = 1

    def __init__(self, count: int) -> None:
        super().__init__(id="numbers")
        self._rows_there = count

    def heading(self, width: int) -> list[Row]:
        return [(Span("head"),)] * self.rows_of_heading

    def count(self) -> int:
        return self._rows_there

    def item(self, index: int, width: int) -> Row:
        return (Span(f"row {index}"),)


def listed(panel: Numbers, height: int) -> list[str]:
    return [text_of([row]).rstrip() for row in panel.body(20, height)]


def test_rows_that_do_not_fit_are_counted() -> None:
    assert listed(Numbers(3), 4) == ["head", "row 0", "row 1", "row 2"]
    assert listed(Numbers(4), 4) == ["head", "row 0", "row 1", "… 2 more"]
    assert listed(Numbers(0), 4) == ["head"]
    assert listed(Numbers(3), 1) == ["head"]


def test_the_row_of_the_cursor_is_in_sight() -> None:
    panel = Numbers(10)
    panel.cursor = 5
    assert listed(panel, 4) == ["head", "row 3", "row 4", "… 5 more"]
    panel.cursor = 99
    assert listed(panel, 4) == ["head", "row 7", "row 8", "row 9"]
    assert panel.cursor == 9
    panel.cursor = 8
    assert listed(panel, 4) == ["head", "row 7", "row 8", "row 9"], "it is in sight already"
    panel.cursor = -4
    assert listed(panel, 4)[1] == "row 0"
    panel.action_edge(1)
    assert panel.cursor == 9
    panel.action_edge(-1)
    assert panel.cursor == 0
    panel.action_page(1)
    assert panel.cursor == 3
    panel.action_move(-1)
    assert panel.cursor == 2


def test_a_list_that_got_shorter_fills_its_pane() -> None:
    panel = Numbers(9)
    panel.cursor = 8
    assert listed(panel, 4) == ["head", "row 6", "row 7", "row 8"]
    panel._rows_there = 4
    assert listed(panel, 4) == ["head", "row 1", "row 2", "row 3"]
    panel._rows_there = 2
    assert listed(panel, 4) == ["head", "row 0", "row 1"]
    assert panel.cursor == 1


# -- the help, the styles, what is wanting before a loss ------------------------------------------------------------


def test_keys_stand_in_columns_under_their_groups_and_a_key_that_is_taken_twice_is_the_first_ones() -> None:
    lines = [
        HelpLine("here", "Enter", "the log at the cursor"),
        HelpLine("act", "s", "stop gracefully: ask, then SIGTERM, then SIGKILL"),
        HelpLine("act", "r", "restart"),
        HelpLine("act", "Enter", "start the next attempt now"),
    ]
    screen = HelpScreen(lines)
    assert [line.group for line in screen.lines] == ["here", "act", "act"]
    assert [line.rstrip() for line in screen._text(73).plain.splitlines()] == [
        "here",
        "  Enter    the log at the cursor",
        "",
        "act",
        "  s        stop gracefully: ask,      r        restart",
        "           then SIGTERM, then",
        "           SIGKILL",
    ]
    assert len(screen._text(40).plain.splitlines()) == 7, "one column"
    stop = "stop gracefully: ask, then SIGTERM, then SIGKILL"
    low_first = HelpScreen([*(HelpLine("here", key, "back") for key in "abc"), HelpLine("here", "s", stop)])
    rows = low_first._text(110).plain.splitlines()
    assert rows[2].index("stop gracefully") == rows[4].index("SIGKILL"), "it stays in its own column"
    shared = [
        HelpLine("time", "←", "back"),
        HelpLine("here", "← h", "left"),
        HelpLine("here", "Ctrl ←", "wider"),
    ]
    assert [line.key for line in HelpScreen(shared).lines] == ["←", "h", "Ctrl ←"]


def test_keys_are_named_as_they_stand_on_a_keyboard() -> None:
    assert key_names("plus,equals_sign,up") == "+ = ↑"
    assert key_names("shift+left,comma") == "Shift-← ,"
    assert key_names("pagedown,ctrl+d,G") == "PgDn Ctrl-d G"


def test_the_style_of_each_kind_of_text_in_each_theme() -> None:
    for theme in THEMES.values():
        variables = {**theme.to_color_system().generate(), **theme.variables}
        styles = styles_of(variables)
        assert styles_of(variables) is styles, "made once for the same colours"
        for style, (ink, ground, bold) in LOOKS.items():
            assert styles[style].bold is (True if bold else None)
            assert styles[style].color == Color.parse(variables[ink]).rich_color
            assert styles[style].bgcolor == Color.parse(variables[ground]).rich_color


def test_warnings_of_pre_flight_stand_below_until_a_loss_is_there() -> None:
    found = Finding(
        FindingLevel.WARNING, "disk", "a filesystem that is nearly full", "free some of its space first"
    )
    state = state_of(findings=(found,))
    rows = live._wanting(snapshot_of(state), 30, 9, english)
    assert [text_of([row]) for row in rows] == [
        "",
        "   ⚠ a filesystem that is",
        "   nearly full",
        "   → free some of its space",
        "   first",
    ]
    assert live._wanting(snapshot_of(state), 30, 5, english) == rows
    assert live._wanting(snapshot_of(state), 30, 4, english) == []


def test_a_label_stands_beside_the_first_row_of_its_text() -> None:
    rows = labelled("why", " ".join(["word"] * 100), 40)
    texts = [text_of([row]) for row in rows]
    assert len(texts) == 6, "what is longer is cut"
    assert texts[0].startswith("why ")
    assert all(text.startswith(" " * LABEL) for text in texts[1:])
    assert len(labelled("why", "", 40)) == 1, "a label alone"
    assert len(labelled("why", "a b c d e f", 12, most=2, label_cells=4)) == 2


@pytest.mark.parametrize(
    ("scope", "text"),
    [
        (KnobScope.PER_RANK, "--bs (per rank)"),
        (KnobScope.UNKNOWN, "--bs (not known whether per rank or in all)"),
    ],
)
def test_what_is_not_known_of_a_batch_setting_is_named(scope: KnobScope, text: str) -> None:
    assert settings._knob_text("--bs", scope) == text
