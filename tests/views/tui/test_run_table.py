"""The table of runs, the stacks of a round, what is left on the terminal, a pager's command, charts under a cursor: without an app."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.run.paths import RunPaths
from supervisor.run.records import FailureClass
from supervisor.views.model.run_list import (
    RunList,
    RunRow,
    Scope,
)
from supervisor.views.model.thinned_series import Track, single
from supervisor.views.tui.charts.braille import Scale
from supervisor.views.tui.charts.curves import Axis, Look, Plot
from supervisor.views.tui.charts.zoomable import ChartPanel
from supervisor.views.tui.pages import runs_table as table
from supervisor.views.tui.shell import external_editor as editor
from tests.views.tui.still import attempt_of, state_of, text_of, track, verdict

pytestmark = pytest.mark.usefixtures("no_app")


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


def test_the_folder_of_the_cursors_run_is_named_where_runs_of_several_are_listed(tmp_path: Path) -> None:
    rows = run_row("run-0", folder="/data/a"), run_row("run-1", folder="/data/b")
    for everywhere, elsewhere, named in ((True, 1, True), (True, 0, False), (False, 1, False)):
        scope = Scope(Path("/data/a"), everywhere)
        made, _ = runs_panel(*rows, scope=scope, elsewhere=elsewhere)
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


# -- an editor ----------------------------------------------------------------------------------------------

SPOT = editor.Spot("/runs/a.log", 4096, 12)
UNCOUNTED = editor.Spot("/runs/a.log", 4096, None)


@pytest.mark.parametrize(
    ("env", "spot", "edited"),
    [
        ({}, SPOT, ["nano", "+12", "/runs/a.log"]),
        ({"EDITOR": "vim"}, UNCOUNTED, ["vim", "/runs/a.log"]),
        ({"VISUAL": "hx", "EDITOR": "vim"}, SPOT, ["hx", "/runs/a.log:12"]),
        ({"VISUAL": "gone", "EDITOR": "code -w"}, SPOT, ["code", "-w", "--goto", "/runs/a.log:12"]),
        ({"EDITOR": "vi 'unfinished"}, SPOT, ["nano", "+12", "/runs/a.log"]),
    ],
)
def test_the_command_of_an_editor(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], spot: editor.Spot, edited: list[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "gone" else f"/bin/{name}")
    assert editor.editor_argv(spot, env) == edited
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert editor.editor_argv(spot, env) == "no editor: set EDITOR"


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


def test_zoom_and_axes() -> None:
    chart = Chart(track(*range(11)))
    chart.action_zoom_in()
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
    chart.plotted = Plot([], Scale(0.0, 10.0, 3), 3)
    chart.on_click(mouse(x=8))
    assert chart.look == Look()


def test_the_cursor_goes_a_column_at_a_time_and_never_past_a_point_it_could_show() -> None:
    chart = Chart(track(*range(11)))
    for way, at in ((1, 10.0), (1, 10.0), (-1, 9.0), (-1, 8.0), (1, 9.0)):
        chart.action_cursor(way)
        assert chart.look.cursor == at
    chart = Chart(tuple(single(float(at), at / 4, 1.0, 1) for at in range(41)))
    chart.look = Look(window=(4.0, 8.0))
    for way, at in ((-1, 10.0), (-1, 9.25), (-1, 8.5), (1, 9.25), (1, 10.0)):
        chart.action_cursor(way)
        assert chart.look.cursor == at, "the farthest of those in the next column"
    empty = Chart(())
    empty.action_cursor(1)
    empty.action_zoom_in()
    assert empty.look == Look()


def test_a_log_lines_place_is_shown_on_the_chart() -> None:
    points = tuple(single(100.0 + at, float(at), 1.0, 1 + at // 6) for at in range(11))
    chart = Chart(points)
    for step, t, attempt, at in (
        (3.2, 109.0, 1, 3.0),
        (3.2, None, 2, 6.0),
        (None, 103.4, 1, 3.0),
        (None, 99.0, 2, 6.0),
    ):
        assert chart.show_at(step, t, attempt)
        assert chart.look.cursor == at
    assert not chart.show_at(3.0, 103.0, 3), "an attempt without points"
    assert not chart.show_at(None, None, 1)
    chart.given = (tuple(point._replace(step=None) for point in points),)
    assert chart.show_at(3.0, 104.2, 1)
    assert chart.look.cursor == 104.0, "by time where there are no steps"
    chart.given = ()
    assert not chart.show_at(3.0, 103.0, 1)


def test_the_keys_of_a_chart_are_those_that_do_something() -> None:
    chart = Chart(track(*range(11)))
    looks = ("← →", "cursor", "focused.cursor(-1)"), ("+ -", "zoom", "focused.zoom_in")
    draws = ("y", "log scale", "focused.log"), ("x", "axis", "focused.axis")
    assert chart.inner_keys() == [*looks, *draws]
    assert chart.modes() == []
    assert [chart.check_action(name, ()) for name in ("plain", "choose", "log")] == [False, False, True]
    chart.action_choose()
    chart.look = Look(Axis.TIME, log=True, window=(2.0, 5.0))
    assert (chart.closes(), chart.check_action("plain", ())) == ("whole range", True)
    assert chart.modes() == ["log", "by time since the start", "zoomed, 0 shows all"]
    chart.look = Look(log=True, window=(2.0, 5.0), cursor=3.2)
    assert chart.inner_keys() == [
        looks[0],
        ("Enter", "its log", "focused.choose"),
        looks[1],
        ("0", "all", "focused.whole"),
        ("y", "linear scale", "focused.log"),
        draws[1],
    ]
    assert chart.closes() == "clear cursor"
    chart.action_choose()
    assert [message.point for message in chart.sent if isinstance(message, ChartPanel.Chosen)] == [
        chart.given[0][3]
    ]
    chart.action_plain()
    assert chart.look == Look(log=True)
