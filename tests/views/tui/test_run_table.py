"""The table of runs, the stacks of a round, what is left on the terminal, a pager's command, charts under a cursor: without an app."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from rich.segment import Segment
from rich.style import Style
from textual.color import Color

from supervisor.run import state as st
from supervisor.run.events import Outcome, StallFlagged
from supervisor.run.paths import RunPaths
from supervisor.run.records import FailureClass
from supervisor.views.model.history import Track, single
from supervisor.views.model.run_filter import filter_trouble
from supervisor.views.model.run_list import (
    RunList,
    RunRow,
    Scope,
    SortKey,
    rate_of,
    short_reason,
)
from supervisor.views.tui import external_editor as editor
from supervisor.views.tui.charts.axes import Axis
from supervisor.views.tui.charts.curves import Look, Plot
from supervisor.views.tui.charts.plotting import Scale
from supervisor.views.tui.charts.zoomable import ChartPanel
from supervisor.views.tui.pages.stacks_screen import StackPage
from supervisor.views.tui.runs import table
from supervisor.views.tui.theme import filters
from supervisor.views.tui.widgets.paint import TextStyle
from supervisor.views.tui.widgets.panel import Panel
from supervisor.views.wording.translate import english
from tests.views.tui.still import attempt_of, running, state_of, text_of, track, verdict

STALL = StallFlagged(t=60.0, attempt=1, since=50.0, waited_s=10, stage="step", pace_s=1, flag_s=10)


@pytest.fixture(autouse=True)
def no_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels ask their app for the language."""
    monkeypatch.setattr(Panel, "tr", english)


def mouse(x: int = 0, y: int = 0) -> Any:
    """An event at a cell."""
    return SimpleNamespace(x=x, y=y, stop=lambda: None)


# -- the table of runs ------------------------------------------------------------------------------------------


def run_row(name: str, *, live: bool = True, folder: str = "/runs", **values: Any) -> RunRow:
    state = state_of(
        values.pop("condition", None),
        values.pop("attempt", None) or attempt_of(last_step=1840, verdict=verdict(FailureClass.CUDA_OOM)),
        name="gpt",
        last_t=90.0,
        **values,
    )
    return RunRow(RunPaths(Path(folder) / f"20261121-1412-{name}"), state, live)


def runs_panel(*rows: RunRow, scope: Scope | None = None, **values: Any) -> tuple[table.RunsPanel, list[Any]]:
    made, sent = table.RunsPanel(lambda: 100.0, scope or Scope(), id="runs"), list[Any]()
    made.post_message = lambda message: bool(sent.append(message)) or True  # type: ignore[method-assign, func-returns-value]
    made.list = RunList(**{"revision": 1, "rows": rows, "complete": True, **values})
    made.renew()
    return made, sent


RUNS = tuple(run_row(f"run-{number}") for number in range(9))


def test_the_cursor_stays_on_its_run_and_within_the_table() -> None:
    made, _ = runs_panel(*RUNS)
    assert (made.cursor, made.chosen) == (0, RUNS[0].run)
    for rows, cursor in ((1, 1), (10, 8), (1, 8), (-3, 5), (-10, 0), (-1, 0), (2, 2)):
        made.action_move(rows)
        assert made.cursor == cursor
    made.list = RunList(2, (run_row("new"), *RUNS), True)
    made.renew()
    assert (made.cursor, made.chosen) == (3, RUNS[2].run)
    made.query_text = "nothing-like-it"
    made.renew()
    assert (made.cursor, made.rows, made.chosen) == (0, [], RUNS[2].run)
    made.action_move(1)
    assert made.cursor == 0


def test_the_rows_around_the_cursor_and_what_a_click_does() -> None:
    made, sent = runs_panel(*RUNS)

    def shown(height: int) -> str:
        return "".join(line.split("run-")[1][0] for line in text_of(made.body(130, height)).splitlines()[1:])

    assert shown(5) == "0123"
    for rows, expected in ((3, "0123"), (1, "1234"), (-3, "1234"), (-1, "0123"), (8, "5678")):
        made.action_move(rows)
        assert shown(5) == expected
    assert shown(20) == "012345678", "nothing is left empty below"
    made.on_mouse_scroll_up(mouse(y=1))
    assert made.cursor == 5
    made.on_mouse_scroll_down(mouse(y=1))
    assert made.cursor == 8
    shown(5)
    for y in (0, 1, 6):
        made.on_click(mouse(y=y))
    assert (made.cursor, sent) == (8, [])
    made.on_click(mouse(y=2))
    assert (made.cursor, sent) == (5, [])
    made.on_click(mouse(y=2))
    assert [message.run for message in sent] == [RUNS[5].run]


@pytest.mark.parametrize(
    ("width", "texts"),
    [
        (97, ["run-0", "1 840   cuda_oom", "2.100", "10 s"]),
        (98, ["20261121-1412-run-0", "1 840/2 000   cuda_oom", "2.100", "10 s"]),
        (110, ["20261121-1412-run-0", "1 840/2 000   cuda_oom", "2.100", "1 m 40 s", "10 s"]),
        (127, ["20261121-1412-run-0", "gpt", "1 840/2 000   cuda_oom", "2.100", "1 m 40 s", "10 s"]),
    ],
)
def test_columns_come_with_the_width(width: int, texts: list[str]) -> None:
    made, _ = runs_panel(run_row("run-0", total_steps=2000, best_loss=2.1))
    head, line = text_of(made.body(width, 9)).splitlines()
    assert line.startswith("▸ ● stepping")
    at = 0
    for text in texts:
        assert text in line[at:], line
        at = line.index(text, at)
    assert ("1 m 40 s" in line) is ("took" in head) is (width >= 110)
    assert ("gpt" in line) is ("name" in head) is (width >= 127)
    assert len(line) <= width
    assert "folder" not in head


def test_a_wide_list_has_attempts_batch_and_rate_and_the_chosen_runs_command() -> None:
    command = ("train.py", "--lr", "3e-4")
    made, _ = runs_panel(dataclasses.replace(run_row("run-0"), command=command), run_row("run-1"))
    lines = text_of(made.body(152, 6)).splitlines()
    assert lines[0].rstrip().endswith("tries    batch       lr")
    assert lines[1].rstrip().endswith(f"1{' ' * 14}3e-4")
    assert lines[-1].strip() == "train.py --lr 3e-4"
    assert "tries" not in text_of(made.body(151, 6))
    made.action_move(1)
    assert "train.py" not in text_of(made.body(152, 6)).splitlines()[-1]
    made.query_text = "train.py"
    made.renew()
    assert [found.command for found in made.rows] == [command], "words of the command are searched too"


@pytest.mark.parametrize(
    ("words", "rate"),
    [
        (("train.py", "--lr", "3e-4"), "3e-4"),
        (("train.py", "--learning-rate=0.1", "--lr_decay", "2"), "0.1"),
        (("train.py", "optimizer.lr=1e-3", "lr=2e-3"), "2e-3"),
        (("train.py", "--lr"), ""),
        (("train.py", "--lr", "auto"), ""),
        (("lr.py", "4"), ""),
    ],
)
def test_the_rate_of_a_command(words: tuple[str, ...], rate: str) -> None:
    assert rate_of(words) == rate


def test_the_mark_and_the_state_of_a_run() -> None:
    over = st.Finished(outcome=Outcome.FAILED, exit_code=1, reason="")
    held = st.HeldOpen(attempt=1, reason="", decision=None)
    made, _ = runs_panel(
        run_row("run-0"),
        run_row("run-1", live=False),
        run_row("run-2", live=False, condition=over),
        run_row("run-3", condition=held),
    )
    made.marked = [made.rows[1].run]
    rows = list(made.body(130, 9))[1:]
    assert [text_of([row])[:17].strip() for row in rows] == [
        "▸ ● stepping",
        "◆? no supervisor",
        "✗ failed",
        "‖ waits for you",
    ]
    assert [row[2].style for row in rows] == [
        TextStyle.LIVE,
        TextStyle.WARN,
        TextStyle.BAD,
        TextStyle.WARN,
    ]
    assert [row[3].style for row in rows[:2]] == [TextStyle.STRONG, TextStyle.PLAIN]


def test_folders_are_named_where_runs_of_several_are_listed(tmp_path: Path) -> None:
    rows = run_row("run-0", folder="/data/a"), run_row("run-1", folder="/data/b")
    for everywhere, elsewhere, named in ((True, 1, True), (True, 0, False), (False, 1, False)):
        scope = Scope(Path("/data/a"), everywhere)
        made, _ = runs_panel(*rows, scope=scope, elsewhere=elsewhere)
        shown = text_of(made.body(160, 9))
        assert ("/data/b" in shown) is ("folder" in shown) is named
        left, right = (text_of([title]) for title in made.titles())
        assert ("/data/a · " in right) is named
        assert (
            left
            == {
                (True, 1): "runs in all folders (a: this folder only)",
                (True, 0): "runs in all folders",
                (False, 1): "runs in /data/a · 1 in other folders (a: all)",
            }[everywhere, elsewhere]
        )
        assert made.can_widen is bool(elsewhere)


@pytest.mark.parametrize(("cells", "shown"), [(48, "/" + "x" * 47), (49, "…" + "x" * 47)])
def test_a_long_folder_keeps_its_end(cells: int, shown: str) -> None:
    made, _ = runs_panel(*RUNS, scope=Scope(Path("/" + "x" * (cells - 1))))
    assert text_of([made.titles()[0]]) == f"runs in {shown}"


def test_the_title_counts_and_says_how_it_is_sorted() -> None:
    made, _ = runs_panel(*RUNS, complete=False)
    made.query_text, made.sort = "run-1", SortKey.LOSS
    made.renew()
    left, right = (text_of([title]) for title in made.titles())
    assert left == "runs · run-1"
    assert right == "1 of 9 · by best loss · reading…"
    unread = table.RunsPanel(lambda: 0.0, Scope(), id="r")
    assert not unread.ready
    assert text_of([unread.titles()[1]]) == "0 of 0 · by newest"


def test_without_a_run_it_teaches_and_without_a_match_it_says_so() -> None:
    made, _ = runs_panel()
    shown = text_of(made.body(80, 9))
    assert "no run yet" in shown
    assert "stoker run --nproc-per-node 2 train.py" in shown
    made, _ = runs_panel(complete=False)
    assert "no run matches" in text_of(made.body(80, 9))
    made, _ = runs_panel(*RUNS)
    made.query_text = "nothing-like-it"
    made.renew()
    assert text_of(made.body(80, 9)).strip() == "no run matches; / changes the filter, Esc clears it"


# -- stacks -------------------------------------------------------------------------------------------------------

STACKS = (
    "all wait",
    "== rank 0, pid 7",
    "  a",
    "  b",
    "== rank 1, pid 8",
    "  c",
    "  d",
    "  e",
    "== rank 2",
    "f",
)


def stacks(at: int | None = None, height: int = 4) -> StackPage:
    made = StackPage("0001.txt", STACKS, at, id="s")
    made.body(40, height)
    return made


@pytest.mark.parametrize(
    ("at", "height", "top"), [(None, 4, 0), (1, 4, 0), (6, 4, 4), (6, 9, 1), (10, 4, 6), (6, 20, 0)]
)
def test_stacks_open_at_the_line_that_a_verdict_points_at(at: int | None, height: int, top: int) -> None:
    made = stacks(at, height)
    assert made.row_at() == top
    shown = text_of(made.body(40, height)).splitlines()
    assert shown[0].split()[-1 if top else 0] == (STACKS[top].split()[-1] if top else "1" if at != 1 else "▸")
    assert sum(line.startswith("▸") for line in shown) == (at is not None)
    assert len(shown) == min(height, len(STACKS))


def test_stacks_are_scrolled_and_gone_through_rank_by_rank() -> None:
    made = stacks()

    def top() -> int:
        made.body(40, 4)
        return made.row_at()

    steps: tuple[tuple[Callable[[], None], int], ...] = (
        (lambda: made.action_move(1), 1),
        (lambda: made.action_page(1), 4),
        (lambda: made.action_page(-1), 1),
        (lambda: made.action_edge(1), 6),
        (lambda: made.action_move(5), 6),
        (lambda: made.to_rank(-1), 4),
        (lambda: made.to_rank(-1), 1),
        (lambda: made.to_rank(-1), 0),
        (lambda: made.to_rank(1), 1),
        (lambda: made.to_rank(1), 4),
        (lambda: made.to_rank(1), 6),
        (lambda: made.action_edge(-1), 0),
    )
    for act, expected in steps:
        act()
        assert top() == expected


def test_the_title_of_stacks_names_the_rank_in_sight() -> None:
    for at, moved, left, right in (
        (None, 0, "stacks · 0001.txt", "1-4 of 10"),
        (None, 2, "stacks · 0001.txt · rank 0", "3-6 of 10"),
        (6, 0, "stacks · 0001.txt · rank 1", "5-8 of 10"),
        (6, -3, "stacks · 0001.txt · rank 0", "2-5 of 10"),
        (10, 0, "stacks · 0001.txt · rank 2", "7-10 of 10"),
    ):
        made = stacks(at)
        made.action_move(moved)
        made.body(40, 4)
        assert [text_of([title]) for title in made.titles()] == [left, right]
    styles = [row[1].style for row in stacks(7, 20).body(40, 20)]
    assert styles[0] is styles[1] is TextStyle.KEY
    assert (styles[2], styles[6], styles[9]) == (TextStyle.DIM, TextStyle.STRONG, TextStyle.PLAIN)


# -- a pager, an editor ----------------------------------------------------------------------------------------------

SPOT = editor.Spot("/runs/a.log", 4096, 12)
UNCOUNTED = editor.Spot("/runs/a.log", 4096, None)


@pytest.mark.parametrize(
    ("env", "spot", "pager", "edited"),
    [
        ({}, SPOT, ["less", "-+r", "-+R", "-n", "+4096P", "--", "/runs/a.log"], ["nano", "+12", "/runs/a.log"]),
        ({"PAGER": "most -w", "EDITOR": "vim"}, SPOT, ["most", "-w", "+12", "/runs/a.log"], ["vim", "+12", "/runs/a.log"]),
        ({"PAGER": "most", "EDITOR": "vim"}, UNCOUNTED, ["most", "/runs/a.log"], ["vim", "/runs/a.log"]),
        ({"PAGER": "gone", "VISUAL": "hx", "EDITOR": "vim"}, SPOT, None, ["hx", "/runs/a.log:12"]),
        ({"PAGER": "'", "VISUAL": "gone", "EDITOR": "code -w"}, SPOT, None, ["code", "-w", "--goto", "/runs/a.log:12"]),
    ],
)  # fmt: skip
def test_the_command_of_a_pager_and_an_editor(
    monkeypatch: pytest.MonkeyPatch,
    env: dict[str, str],
    spot: editor.Spot,
    pager: list[str] | None,
    edited: list[str],
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "gone" else f"/bin/{name}")
    assert editor.pager_argv(spot, env) == (pager or editor.pager_argv(spot, {}))
    assert editor.editor_argv(spot, env) == edited
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert editor.pager_argv(spot, env) == "no pager: set PAGER, or install less"
    assert editor.editor_argv(spot, env) == "no editor: set EDITOR"


# -- looks -------------------------------------------------------------------------------------------------------------


def test_glyphs_become_plain_signs_of_the_same_width() -> None:
    for text, plain in (
        ("plain", "plain"),
        ("8 → 4", "8 ->4"),
        ("⠀", " "),
        ("⠁", "'"),
        ("⠄", "."),
        ("⡀", "."),
        ("⠅", ":"),
        ("⠆", "-"),
        ("⠇", "|"),
        ("⡇", "|"),
        ("字a", "??a"),
    ):
        assert filters.plain(text) == plain


def test_without_colour_what_stood_out_is_reversed_and_what_was_faint_is_dim() -> None:
    black = Color.parse("#000000")
    filtering = filters.no_colour("#ffffff")
    assert filters.no_colour("#ffffff") is filtering

    def style(text: str) -> Style:
        (segment,) = filtering.apply([Segment("x", Style.parse(text))], black)
        assert segment.style is not None
        assert segment.style.color is None
        assert segment.style.bgcolor is None
        return segment.style

    for text, dim, reverse in (
        ("#ffffff", False, False),
        ("#404040", True, False),
        ("bold #404040", False, False),
        ("#000000 on #ffffff", False, True),
        ("reverse #000000 on #ffffff", False, False),
        ("#ffffff on #101010", False, False),
        ("dim #ffffff", True, False),
        ("reverse #ffffff", False, True),
    ):
        found = style(text)
        assert (bool(found.dim), bool(found.reverse)) == (dim, reverse), text
    kept = style("italic underline strike #ffffff")
    assert kept.italic
    assert kept.underline
    assert kept.strike
    bare = Segment("x")
    assert filtering.apply([bare], black) == [bare]


# -- charts ------------------------------------------------------------------------------------------------------------


class Chart(ChartPanel):
    """A chart of given tracks, plotted on 22 dots from 0 to 10 with 3 cells before them."""

    def __init__(self, *tracks: Track) -> None:
        super().__init__(id="c")
        self.given = tracks
        self.plotted = Plot([], Scale(0.0, 10.0, 22), 3)
        self.sent: list[Any] = []

    def tracks(self) -> tuple[Track, ...]:
        return self.given

    def post_message(self, message: Any) -> bool:
        self.sent.append(message)
        return True


def test_the_cursor_moves_by_columns_within_the_chart() -> None:
    chart = Chart(track(*range(11)))
    assert not chart.check_action("plain", ())
    assert not chart.check_action("choose", ())
    assert chart.check_action("whole", ())
    chart.action_choose()
    assert chart.sent == []
    chart.action_cursor(-1)
    assert chart.look.cursor == 10, "it begins at the newest point"
    chart.action_cursor(-1)
    assert chart.look.cursor == pytest.approx(10 - 10 / 11)
    chart.action_cursor(1)
    chart.action_cursor(1)
    assert chart.look.cursor == 10
    assert chart.check_action("plain", ())
    assert chart.check_action("choose", ())
    chart.action_choose()
    assert chart.sent[0].point.step == 10
    chart.action_plain()
    assert chart.look == Look()
    chart.look = Look(window=(2.0, 8.0))
    assert chart.check_action("plain", ())
    chart.plotted = Plot([], Scale(2.0, 8.0, 22), 3)
    chart.action_cursor(1)
    assert chart.look.cursor == 8, "at the window's end"
    for empty in (Chart(), Chart(())):
        empty.action_cursor(1)
        empty.action_pan(1)
        empty.action_zoom_in()
        assert empty.look == Look()


def test_zoom_pan_and_axes() -> None:
    chart = Chart(track(*range(11)))
    chart.action_pan(1)
    assert chart.look.window is None
    chart.action_zoom_in()
    assert chart.look.window == pytest.approx((4, 10))
    chart.action_pan(-1)
    assert chart.look.window == pytest.approx((2.5, 8.5))
    chart.action_pan(1)
    chart.action_pan(1)
    assert chart.look.window == pytest.approx((4, 10))
    chart.action_zoom_in()
    chart.action_zoom_out()
    assert chart.look.window == pytest.approx((4, 10))
    chart.action_log()
    assert chart.look.log
    chart.action_log()
    assert not chart.look.log
    chart.action_whole()
    assert chart.look.window is None
    chart.given = (tuple(single(100.0 + at, float(at), 1.0, 1) for at in range(11)),)
    chart.look = Look(window=(4.0, 10.0), cursor=7.2)
    chart.action_axis()
    assert chart.look == Look(Axis.TIME, cursor=107.0)
    chart.action_axis()
    assert chart.axis is Axis.NUMBER
    chart.action_axis()
    assert chart.look == Look(cursor=7.0)


def test_the_mouse_points_at_a_place_of_the_chart() -> None:
    chart = Chart(track(*range(11)))
    for x, at in ((4, 0.0), (0, 0.0), (9, 5.0), (14, 10.0), (40, 10.0)):
        chart.on_click(mouse(x=x))
        assert chart.look.cursor == pytest.approx(at)
    chart.framed = False
    chart.on_click(mouse(x=8))
    assert chart.look.cursor == pytest.approx(5.0)
    chart.action_plain()
    chart.on_mouse_scroll_up(mouse(x=8))
    assert chart.look == Look(window=(pytest.approx(2.0), pytest.approx(8.0)))  # type: ignore[arg-type]
    chart.on_mouse_scroll_down(mouse(x=8))
    assert chart.look.window is None
    chart.plotted = Plot([], Scale(0.0, 10.0, 3), 3)
    chart.on_click(mouse(x=8))
    chart.on_mouse_scroll_up(mouse(x=8))
    assert chart.look == Look()


def test_a_line_of_a_log_is_shown_where_it_was_written() -> None:
    first = tuple(single(100.0 + at, float(at), 1.0, 1) for at in range(6))
    again = tuple(single(200.0 + at, float(at), 1.0, 2) for at in range(3, 6))
    chart = Chart((*first, *again))
    assert not chart.show_at(3.0, None, 3), "an attempt without points"
    assert not chart.show_at(None, None, 1)
    assert chart.show_at(3.4, 104.0, 1)
    assert chart.look.cursor == 3.0
    assert chart.show_at(None, 204.2, 2)
    assert chart.look.cursor == 4.0
    timed = Chart((single(100.0, None, 1.0, 1), single(105.0, None, 1.0, 1)))
    assert timed.show_at(1.0, 104.0, 1)
    assert timed.look == Look(cursor=105.0)


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (state_of(running()), "stepping"),
        (state_of(running(), attempt_of(stall=STALL)), "stalled"),
        (state_of(st.Finished(outcome=Outcome.GAVE_UP, exit_code=1, reason="")), "gave_up"),
        (
            state_of(
                st.Finished(outcome=Outcome.STOPPED, exit_code=0, reason=""), attempt_of(), mode="observed"
            ),
            "not_watched",
        ),
    ],
)
def test_every_word_of_the_state_column_is_a_filter(state: st.RunState, word: str) -> None:
    found = RunRow(RunPaths(Path("/runs/20261121-1412-otter")), state, live=True)
    ended = state_of(st.Finished(outcome=Outcome.SUCCEEDED, exit_code=0, reason=""))
    made, _ = runs_panel(found, RunRow(RunPaths(Path("/runs/20261121-1411-ant")), ended, live=False))
    shown = text_of(made.body(130, 12)).splitlines()[1]
    assert f" {word.replace('_', ' ')} " in shown
    for typed in (word, f"state:{word}", f"state={word}"):
        made.filter_by(typed)
        assert made.rows == [found], typed
        assert filter_trouble(typed) == ""


def test_what_is_wrong_with_a_filter_is_whole_at_80_columns() -> None:
    made, _ = runs_panel(*RUNS)
    made.filter_by("state:something-that-is-no-state")
    said = text_of(made.body(78, 9))
    assert "…" not in said
    assert said.split()[-3:] == ["docs/guide.md", "lists", "all"]


def test_a_click_on_a_columns_name_sorts_by_it_and_a_second_one_reverses() -> None:
    made, _ = runs_panel(*RUNS)
    made.on_resize(SimpleNamespace(size=SimpleNamespace(width=122)))  # type: ignore[arg-type]
    head = text_of(made.body(120, 9)).splitlines()[0]
    for name, key in (("step", SortKey.STEP), ("best", SortKey.LOSS), ("state", SortKey.STATE)):
        for reverse in (False, True):
            made.on_click(mouse(x=1 + head.index(name), y=1))
            assert (made.sort, made.reverse) == (key, reverse)
    made.on_click(mouse(x=1 + head.index("run"), y=1))
    assert made.sort is SortKey.STATE, "newest first has no column"


@pytest.mark.parametrize("width", [38, 46, 58, 74])
def test_a_narrow_list_has_state_name_and_step_whole(width: int) -> None:
    made, _ = runs_panel(run_row("brave-otter", condition=running(), attempt=attempt_of(last_step=1840)))
    head, line = text_of(made.body(width, 6)).splitlines()[:2]
    assert "stepping" in line
    assert "brave-otter" in line
    assert head.split()[:3] == ["state", "run", "verdict" if width < 48 else "step"]
    assert "1 840" in line
    assert "…" not in line


LABEL = "ValueError on rank 0: label 1001 out of range [0, 1000)"


@pytest.mark.parametrize(
    ("failure", "title", "short"),
    [
        (FailureClass.CODE_ERROR, LABEL, "ValueError: label 1001 out of range [0, 1000)"),
        (FailureClass.CODE_ERROR, "KeyError", "KeyError"),
        (FailureClass.USAGE_ERROR, "Wrong arguments on rank 0: unrecognized arguments: --seed 1", "unrecognized arguments: --seed 1"),
        (FailureClass.USAGE_ERROR, "Wrong arguments on rank 0", "usage_error"),
        (FailureClass.CODE_ERROR, "The program raised an exception on rank 0", "code_error"),
        (FailureClass.HOST_OOM, "Rank 1 was killed (SIGKILL); most often memory ran out on the host", "SIGKILL (host memory?)"),
        (FailureClass.HOST_OOM, "Host memory ran out on rank 1", "host_oom"),
        (FailureClass.WORKER_CRASH, "Rank 0 was killed (SIGKILL)", "SIGKILL"),
        (FailureClass.WORKER_CRASH, "Rank 0 crashed (SIGSEGV: invalid memory access)", "SIGSEGV"),
        (FailureClass.CUDA_OOM, "GPU memory ran out on rank 1", "cuda_oom"),
    ],
)  # fmt: skip
def test_a_verdict_is_its_reason_in_a_column(failure: FailureClass, title: str, short: str) -> None:
    assert short_reason(dataclasses.replace(verdict(failure), title=title)) == short


def test_a_failure_that_came_again_stands_once_in_the_column() -> None:
    failed = [attempt_of(number, verdict=verdict(FailureClass.CUDA_OOM)) for number in (1, 2)]
    row = run_row("brave-otter")
    again = dataclasses.replace(row, state=state_of(None, *failed))
    other = dataclasses.replace(
        row, state=state_of(None, failed[0], attempt_of(2, verdict=verdict(FailureClass.HANG)))
    )
    assert (again.history, other.history) == ("cuda_oom", "cuda_oom→hang")


def test_the_list_names_the_reason_of_a_failure_as_far_as_there_is_room() -> None:
    failed = attempt_of(verdict=dataclasses.replace(verdict(FailureClass.CODE_ERROR), title=LABEL))
    row = run_row(
        "brave-otter", condition=st.Finished(outcome=Outcome.FAILED, exit_code=1, reason=""), attempt=failed
    )
    made, _ = runs_panel(row, run_row("calm-crane", attempt=attempt_of(last_step=1840)))

    def lines(width: int, height: int = 8) -> list[str]:
        return text_of(made.body(width, height)).splitlines()

    whole = "ValueError: label 1001 out of range [0, 1000)"
    narrow = lines(38, 10)
    assert narrow[1].split() == ["▸", "✗", "failed", "brave-otter", "ValueErro…"]
    assert narrow[2].split() == ["●", "stepping", "calm-crane", "step", "1", "840"]
    assert narrow[-1].strip().startswith("ValueError: label 1001"), "below, what the column cuts"
    assert "ValueError: label…" in lines(78)[1]
    assert whole in lines(78)[-1]
    assert whole in lines(200)[1]
    assert whole not in lines(200)[-1]
    gap = lines(250)[1].partition(whole)[2]
    assert len(gap) - len(gap.lstrip()) < 12, "no wider than what it holds"
    made.filter_by("1001")
    assert [found.run for found in made.rows] == [row.run]


def test_by_name_is_by_what_a_width_shows_as_the_name() -> None:
    rows = [
        dataclasses.replace(
            run_row(words), state=msgspec.structs.replace(run_row(words).state, name=name), given=given
        )
        for words, name, given in (("wide-yak", "a.py", ""), ("able-ant", "z.py", ""), ("calm-cat", "m", "m"))
    ]
    made, _ = runs_panel(*rows)
    made.sort = SortKey.NAME

    def shown(width: int) -> list[str]:
        made.on_resize(SimpleNamespace(size=SimpleNamespace(width=width + 2)))  # type: ignore[arg-type]
        return [found.run.run_id[14:] for found in made.rows]

    assert shown(130) == ["wide-yak", "calm-cat", "able-ant"], "by the column of names"
    assert shown(100) == ["able-ant", "calm-cat", "wide-yak"], "ids, of which the date is no name"
    assert shown(78) == ["able-ant", "calm-cat", "wide-yak"], "calm-cat is shown as m"


def test_a_given_name_stands_in_the_column_of_names() -> None:
    made, _ = runs_panel(dataclasses.replace(run_row("still-frog"), given="oomfix"), run_row("calm-cat"))
    head, *lines = text_of(made.body(198, 9)).splitlines()
    at = head.index("name")
    names = {line[at:].split()[0] for line in lines[:2]}
    assert names == {"oomfix", run_row("calm-cat").state.name}


def test_the_learning_rate_is_the_one_of_the_newest_attempt() -> None:
    found = run_row("still-frog", attempt=attempt_of(argv=("torchrun", "a.py", "--lr", "3e-3")))
    made, _ = runs_panel(dataclasses.replace(found, command=("a.py", "--lr", "1e-2")))
    line = text_of(made.body(198, 9)).splitlines()[1]
    assert "3e-3" in line
    assert "1e-2" not in line


def test_by_state_is_by_the_word_in_its_column() -> None:
    states = (state_of(running()), state_of(running(), attempt_of(stall=STALL))) * 2
    made, _ = runs_panel(
        *(
            RunRow(RunPaths(Path(f"/runs/20261121-1412-r-{at}")), state, live=True)
            for at, state in enumerate(states)
        )
    )
    made.sort = SortKey.STATE
    made.renew()
    assert [found.run.run_id[-1] for found in made.rows] == ["1", "3", "0", "2"], "stalled, then stepping"
