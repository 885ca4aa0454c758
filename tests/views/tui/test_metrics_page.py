"""The metrics page: a grid of charts that is paged, read and enlarged, with any number of runs in each."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.series import METRICS
from supervisor.views.model.gather import OTHER_SERIES
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.charts.axes import shifted
from supervisor.views.tui.charts.hues import run_letter, run_style
from supervisor.views.tui.pages import metrics
from supervisor.views.tui.pages.metrics import (
    CELL_HEIGHT,
    CELL_WIDTH,
    MetricsPage,
    grid_of,
    load_other,
    places_of,
)
from supervisor.views.tui.runs.picker import RunPicker
from supervisor.views.tui.widgets.paint import TextStyle
from tests.views.tui import recorded
from tests.views.tui.driving import command, drive, pane, shown, until

SIZES = pytest.mark.parametrize(
    "size", [(80, 24), (120, 40), (200, 50)], ids=lambda size: f"{size[0]}x{size[1]}"
)


def page_of(app: StokerApp) -> MetricsPage:
    return app.dashboard.query_one("#metrics", MetricsPage)


def layers(root: Path, *, series: int = 64, steps: int = 80) -> recorded.Recording:
    """A script that logs a number a layer beside its loss."""
    rec = recorded.Recording(root)
    rec.launch("first start")
    for step in range(1, steps + 1):
        layer_steps(rec, step, series)
    return rec


def layer_steps(rec: recorded.Recording, step: int, series: int = 64) -> None:
    rec.t += 1
    values: dict[str, float | None] = {"step": float(step), "loss": 2 + math.exp(-step / 30)}
    values |= {f"layer{n:02d}/norm": n + math.sin(step / (n + 1)) for n in range(series - 1)}
    rec.series.append(METRICS, rec.t, "job", 1, values)
    rec.fact(ev.Progress(t=rec.t, attempt=1, step=step))


def in_sight(app: StokerApp) -> list[str]:
    """The titles of the charts on the screen."""
    names = page_of(app).names()
    lines = [line for line in pane(app, "metrics").splitlines() if "╭" in line]
    words = [word for line in lines for title in line.split("╭ ")[1:] for word in title.split()[:2]]
    return [word for word in words if word in names]


@pytest.mark.parametrize(
    ("count", "width", "height", "shape"),
    [
        (64, 80, 21, (2, 2)),
        (64, 120, 35, (3, 3)),
        (64, 200, 45, (5, 5)),
        (7, 120, 35, (3, 3)),
        (4, 120, 35, (2, 2)),
        (2, 120, 35, (1, 2)),
        (1, 200, 45, (1, 1)),
        (3, 20, 5, (1, 1)),
    ],
)
def test_as_many_charts_as_fit_in_the_shape_that_looks_best(
    count: int, width: int, height: int, shape: tuple[int, int]
) -> None:
    assert grid_of(count, width, height) == shape


@pytest.mark.parametrize(("width", "height"), [(80, 19), (121, 35), (199, 44)])
def test_places_fill_the_width_and_do_not_overlap(width: int, height: int) -> None:
    shape = grid_of(64, width, height)
    places = places_of(shape, width, height, top=1)
    assert len(places) == shape[0] * shape[1]
    covered = {
        (x, y) for at in places for x in range(at.x, at.x + at.width) for y in range(at.y, at.y + at.height)
    }
    assert len(covered) == sum(at.width * at.height for at in places)
    assert {x for x, _ in covered} == set(range(width))
    assert max(y for _, y in covered) <= height
    assert all(at.width >= CELL_WIDTH and at.height >= CELL_HEIGHT for at in places)


@SIZES
def test_all_series_are_charted_page_by_page(tmp_path: Path, size: tuple[int, int]) -> None:
    run = layers(tmp_path / "run").close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M")
        page = page_of(app)
        names = page.names()
        assert len(names) == 64
        first = in_sight(app)
        assert first == names[: len(first)]
        assert f"1-{len(first)} of 64" in pane(app, "metrics")
        seen = list(first)
        for _ in range(63 // len(first)):
            await pilot.press("pagedown")
            seen += in_sight(app)
        assert seen == names, "each once, in order"
        await pilot.press("g")
        assert in_sight(app) == first
        await pilot.press(*["j"] * len(first))
        assert page.chosen == names[len(first)], "past the last one comes the next page"
        assert in_sight(app)[0] == page.chosen
        await pilot.press("k", "up")
        assert page.chosen in first

    drive(run, play, size=size)


@pytest.mark.parametrize("size", [(25, 6), (20, 5), (40, 4)])
def test_a_terminal_too_low_for_a_chart_cuts_it_off(tmp_path: Path, size: tuple[int, int]) -> None:
    run = layers(tmp_path / "run").close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M")
        await pilot.resize_terminal(*size)
        await pilot.press("pagedown", "j", "z")
        assert page_of(app).chosen

    drive(run, play, size=(80, 24))


def test_a_chart_at_full_size_and_back(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M", "j")
        page = page_of(app)
        grid = pane(app, "metrics")
        for there, back in (("enter", "escape"), ("z", "z"), ("o", "enter")):
            await pilot.press(there)
            assert in_sight(app) == ["val_loss"]
            assert "2 of 7" in pane(app, "metrics")
            assert pane(app, "metrics").splitlines()[1].count("─") > 80
            await pilot.press(back)
            await until(pilot, lambda: pane(app, "metrics") == grid, "the grid again")
        await pilot.press("z", "j")
        assert in_sight(app) == ["lr"], "the next one at full size"
        await pilot.press("escape", "escape")
        assert not page.display, "a second Esc closes the page"

    drive(recorded.healthy(tmp_path / "run"), play)


def test_one_cursor_reads_all_charts_at_the_same_step(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M")
        await until(pilot, lambda: pane(app, "metrics").count("└") >= 7, "all charts")
        before = pane(app, "metrics").splitlines()
        await pilot.press("right", *["left"] * 12)
        cursor = page_of(app).look.cursor
        assert cursor is not None
        lines = pane(app, "metrics").splitlines()
        assert "step 1 " in lines[1], "the chart that has the keys says where"
        titles = [at for at, line in enumerate(lines) if line.startswith("╭")]
        assert all(lines[at] != before[at] for at in titles), "each has its value of that step"
        assert sum(line.count("│") for line in lines) > sum(line.count("│") for line in before)
        await pilot.press("escape")
        assert pane(app, "metrics").splitlines() == before

    drive(recorded.healthy(tmp_path / "run"), play)


def test_a_chart_in_a_tiny_terminal_is_drawn_without_axes(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M")
        await until(pilot, lambda: "loss" in pane(app, "metrics"), "the page")
        shown = pane(app, "metrics")
        assert "nothing" not in shown
        assert "…" not in shown
        assert set(shown) & set("▁▂▃▄▅▆▇")

    drive(recorded.healthy(tmp_path / "run"), play, size=(30, 8))


def test_log_scale_and_smoothing_hold_for_all_charts(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M", "y", "w")
        head = pane(app, "metrics").splitlines()[0]
        assert "log · smoother" in head
        await pilot.press("w")
        assert "raw" in pane(app, "metrics").splitlines()[0]
        await pilot.press("x")
        assert "by time" in pane(app, "metrics").splitlines()[0]

    drive(recorded.healthy(tmp_path / "run"), play)


def test_a_chart_is_found_by_a_part_of_its_name_and_put_first(tmp_path: Path) -> None:
    run = layers(tmp_path / "run").close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M", "slash", *"norm 4", "enter")
        page = page_of(app)
        assert page.names() == [f"layer{n:02d}/norm" for n in (4, 14, 24, 34, *range(40, 50), 54)]
        assert "/norm 4" in pane(app, "metrics").splitlines()[0]
        await pilot.press("j", "space")
        assert page.names()[0] == "layer14/norm" == page.chosen
        assert "◆ layer14/norm" in pane(app, "metrics")
        await pilot.press("escape")
        assert len(page.names()) == 64
        assert page.names()[:2] == ["layer14/norm", "loss"]
        await pilot.press("space")
        assert page.names()[0] == "loss"
        await pilot.press("slash", *"nothing", "enter")
        assert "no chart has that in its name" in pane(app, "metrics")
        await pilot.press("j", "right", "plus", "space", "enter", "escape", "escape")
        assert len(page.names()) == 64

    drive(run, play)


def test_the_chosen_chart_is_kept_by_a_search_that_is_left_and_by_closing_the_page(tmp_path: Path) -> None:
    run = layers(tmp_path / "run").close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M", *"jjj")
        page = page_of(app)
        await until(pilot, lambda: page.chosen == "layer02/norm", "the fourth")
        await pilot.press("slash", *"norm 4")
        assert page.chosen == "layer04/norm"
        await pilot.press("escape")
        assert page.chosen == "layer02/norm", "the search was left"
        await pilot.press("slash", *"norm", "enter", "escape")
        assert page.chosen == "layer02/norm", "it is among those that were found"
        await pilot.press("M", "M")
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert page.chosen == "layer02/norm"

    drive(run, play)


def test_a_click_chooses_a_chart_and_puts_its_cursor_there(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M")
        page = page_of(app)
        await until(pilot, lambda: page.names()[4] in page._sight, "the grid")
        cell = page._sight[page.names()[4]]
        await pilot.click("#metrics", offset=(cell.x + cell.width - 2, cell.y + 4))
        assert page.chosen == page.names()[4]
        assert page.look.cursor == 1840, "at its right edge is the newest step"
        await pilot.click("#metrics", offset=(cell.x + cell.width // 2, cell.y + 4))
        assert page.look.cursor is not None
        assert 600 < page.look.cursor < 1200

    drive(recorded.healthy(tmp_path / "run"), play)


def test_a_key_waits_for_one_chart_and_the_others_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "DRAW_S", 0.0)
    run = layers(tmp_path / "run").close()
    passes: list[int] = []

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M")
        page = page_of(app)
        await until(pilot, lambda: len(page._drawn) == 25, "all charts in the end")
        body = page.body

        def counted(width: int, height: int) -> object:
            drawn = {name: each.how for name, each in page._drawn.items()}
            rows = body(width, height)
            passes.append(sum(drawn.get(name) != each.how for name, each in page._drawn.items()))
            return rows

        monkeypatch.setattr(page, "body", counted)
        await pilot.press("y")
        await until(pilot, lambda: sum(passes) == 25, "all charts, logarithmic")
        assert max(passes) == 1

    drive(run, play, size=(200, 50))


def test_new_points_reach_all_charts(tmp_path: Path) -> None:
    rec = layers(tmp_path / "run", series=9)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M")
        page = page_of(app)
        for step in range(81, 121):
            layer_steps(rec, step, 9)
        rec.series.close()
        await until(
            pilot,
            lambda: all(each.tracks[0][-1].step == 120 for each in page._drawn.values()),  # type: ignore[index]
            "the new points in each chart",
        )

    drive(rec.run, play)
    rec.close()


def test_of_what_comes_often_only_the_chart_with_the_keys_is_drawn_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "FRESH_S", 3600.0)
    rec = layers(tmp_path / "run", series=9)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M", "j")
        page = page_of(app)
        await until(pilot, lambda: len(page._drawn) == 9, "all charts")
        for step in range(81, 121):
            layer_steps(rec, step, 9)
        rec.series.close()
        await until(pilot, lambda: page.runs("loss")[0][-1].step == 120, "the new points")
        await until(
            pilot, lambda: f"{2 + math.exp(-4):.3f}" in pane(app, "metrics"), "the newest loss in its title"
        )
        ends = {name: each.tracks[0][-1].step for name, each in page._drawn.items()}  # type: ignore[index]
        assert ends == {name: 120 if name == page.chosen else 80 for name in page.names()}

    drive(rec.run, play)
    rec.close()


def test_a_chart_keeps_the_keys_when_another_series_appears_before_it(tmp_path: Path) -> None:
    rec = layers(tmp_path / "run", series=4)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M", "j", "z")
        page = page_of(app)
        assert in_sight(app) == ["layer00/norm"]
        for step in (81, 82):
            rec.t += 1
            rec.series.append(METRICS, rec.t, "job", 1, {"step": float(step), "val_loss": 2.0})
        rec.series.close()
        await until(pilot, lambda: page.names()[1] == "val_loss", "the validation loss")
        await until(pilot, lambda: "3 of 5" in pane(app, "metrics"), "its new place")
        assert in_sight(app) == ["layer00/norm"]

    drive(rec.run, play)
    rec.close()


def test_metrics_page_without_metrics_says_so(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M")
        assert "no metric seen yet" in pane(app, "metrics")
        await pilot.press("right", "plus", "j", "down", "space", "o", "enter", "pagedown")

    drive(recorded.empty(tmp_path / "run"), play)


def test_a_single_value_is_no_curve_yet(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    rec.series.append(METRICS, rec.t, "job", 1, {"step": 1.0, "loss": 2.5})

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M")
        assert "one value so far" in pane(app, "metrics")
        assert "2.500" in pane(app, "metrics")

    drive(rec.close(), play)


def test_a_series_that_nobody_named_is_charted(tmp_path: Path) -> None:
    run = layers(tmp_path / "run", series=201, steps=30).close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M")
        names = page_of(app).names()
        assert "layer01/norm" in names
        assert len(names) <= OTHER_SERIES + 1, "a number a layer costs a bounded amount of memory"

    drive(run, play)


OTHERS = ("20261121-0900-calm-crane", "20261121-0800-mild-moth", "20261120-0900-able-ant")


def some(folder: Path) -> RunPaths:
    """A run, and three others in its folder."""
    for name in OTHERS:
        recorded.succeeded(folder / name)
    return recorded.healthy(folder / "run")


def test_runs_are_chosen_from_the_list_and_have_a_hue_and_a_letter_each(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M", "c")
        picker = app.screen
        assert isinstance(picker, RunPicker)
        await until(pilot, lambda: len(picker.panel.rows) == 3, "the runs of the folder, without this one")
        await pilot.press("space", "j", "space", "j", "space")
        assert shown(app).count("◆") == 3
        await pilot.press("enter")
        page = page_of(app)
        await until(pilot, lambda: len(page.others) == 3, "the other runs")
        await until(pilot, lambda: pane(app, "metrics").count("└") >= 7, "all charts")
        lines = pane(app, "metrics").splitlines()
        assert "a this run  b calm-crane  c mild-moth  d able-ant" in lines[0]
        assert "a 2.308  b " in lines[3], "each value has its run's letter"
        assert "metrics values at step 1 000 " in lines[0], "the last one that all have"
        signs = {(sign, span.style) for row in page._rows[3:13] for span in row for sign in span.text}
        assert {(run_letter(at), run_style(at)) for at in range(4)} <= signs, "each curve ends in its letter"
        await pilot.press("z", "right")
        assert "step 1 840  a 2.070  b –  c –  d –" in pane(app, "metrics"), "they ended at step 1000"
        await until(pilot, lambda: "Esc clear cursor" in shown(app), "the cursor's own Esc")
        await pilot.press("escape")
        await until(pilot, lambda: "Esc all charts" in shown(app), "the one of a single chart")
        await pilot.press("escape")
        await until(pilot, lambda: "Esc close page" in shown(app), "the grid again")
        await pilot.press("c")
        assert app.screen.panel.marked == [other.run for other in page.others]  # type: ignore[attr-defined]
        await until(pilot, lambda: shown(app).count("◆") == 3, "the list with its marks")
        await pilot.press("space", "enter")
        await until(pilot, lambda: len(page.others) == 2, "one fewer")
        await pilot.press("c", "escape")
        await pilot.pause()
        assert len(page.others) == 2

    drive(some(tmp_path), play)


def test_the_list_over_the_page_names_its_keys(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M", "c")
        picker = app.screen
        await until(pilot, lambda: "? help" in shown(app), "the keys below the list")
        await pilot.press("question_mark")
        await until(pilot, lambda: "mark runs to compare" in shown(app), "the help")
        assert "ten down" in shown(app), "the table's own keys too"
        await pilot.press("escape")
        assert app.screen is picker

    drive(some(tmp_path), play)


def test_the_list_over_the_page_is_filtered(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M", "c")
        picker = app.screen
        assert isinstance(picker, RunPicker)
        await until(pilot, lambda: len(picker.panel.rows) == 3, "the runs")
        await pilot.press("slash", *"moth", "enter")
        assert [row.run.run_id for row in picker.panel.rows] == [OTHERS[1]]
        await pilot.press("space", "enter")
        await until(pilot, lambda: len(page_of(app).others) == 1, "the other run")
        assert "b mild-moth" in pane(app, "metrics")

    drive(some(tmp_path), play)


def test_more_runs_than_hues_keep_letters_of_their_own() -> None:
    assert [run_style(0), run_style(1)] == [TextStyle.LOSS, TextStyle.PACE]
    assert len({run_style(at) for at in range(6)}) == 6
    assert all(run_style(at) is not run_style(0) for at in range(1, 30)), "this run's hue is its alone"
    assert len({run_letter(at) for at in range(26)}) == 26


def test_without_colours_letters_stand_along_the_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[bool, int] = {}
    for colours in (True, False):
        if not colours:
            monkeypatch.setenv("NO_COLOR", "1")

        async def play(app: StokerApp, pilot: Pilot[None], *, colours: bool = colours) -> None:
            await pilot.press("M", "z", "c")
            picker = app.screen
            assert isinstance(picker, RunPicker)
            await until(pilot, lambda: len(picker.panel.rows) == 3, "the runs")
            await pilot.press("space", "enter")
            await until(pilot, lambda: "b calm-crane" in pane(app, "metrics"), "the legend")
            await pilot.pause()
            chart = "".join(pane(app, "metrics").splitlines()[4:-3])
            found[colours] = chart.count("b")

        drive(some(tmp_path / str(colours)), play)
    assert found[True] == 1
    assert found[False] >= 4


def test_a_comparison_names_the_largest_gap(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await command(app, pilot, "compare crane")
        await until(pilot, lambda: "b calm-crane" in pane(app, "metrics"), "the other run")
        assert "no gap beyond the noise" in pane(app, "metrics").splitlines()[1], "the same curves"
        page = page_of(app)
        worse = tuple(
            point._replace(mean=point.mean + (1.0 if (point.step or 0) > 500 else 0.0))
            for point in page.others[0].series["loss"]
        )
        rate = tuple(point._replace(mean=point.mean * 2) for point in page.others[0].series["lr"])
        page.compare_with(
            [replace(page.others[0], series={**page.others[0].series, "loss": worse, "lr": rate})]
        )
        line = pane(app, "metrics").splitlines()[1]
        found = re.search(
            r"largest gap: loss at step ([\d ]+): (\S+) here, (\S+) in calm-crane \((\d+)%\)", line
        )
        assert found is not None, line
        assert 500 < int(found[1].replace(" ", "")) <= 1000
        assert float(found[3]) - float(found[2]) == pytest.approx(1.0, abs=0.15)
        speed = tuple(
            point._replace(mean=point.mean / 4) for point in page.others[0].series["tokens_per_sec"]
        )
        page.compare_with(
            [replace(page.others[0], series={**page.others[0].series, "tokens_per_sec": speed})]
        )
        line = pane(app, "metrics").splitlines()[1]
        assert re.search(r"largest gap: tokens_per_sec at .*\(75%\) · loss at step", line), line
        page.compare_with([])
        assert "gap" not in pane(app, "metrics")
        await command(app, pilot, "compare nobody")
        await until(pilot, lambda: "no run named 'nobody'" in shown(app), "why not")

    drive(some(tmp_path), play, size=(160, 50))


def test_a_comparison_names_the_arguments_that_differ(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await command(app, pilot, "diff crane")
        await until(pilot, lambda: "b calm-crane" in pane(app, "metrics"), "the other run")
        page = page_of(app)
        mine = page.others[0].arguments
        assert mine == ("--lr", "3e-4")
        assert "the same arguments" in pane(app, "metrics").splitlines()[2]
        page.compare_with([replace(page.others[0], arguments=("--lr", "1e-3", "--seed", "7", "--bf16"))])
        line = pane(app, "metrics").splitlines()[2]
        assert "arguments:  lr 3e-4 | 1e-3  seed – | 7  bf16 – | on" in line
        page.compare_with([replace(page.others[0], arguments=None)])
        assert "arguments" not in pane(app, "metrics"), "those of a watched log are not known"

    drive(some(tmp_path), play, size=(160, 50))


def test_a_comparison_without_a_cursor_reads_the_last_step_of_both(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await command(app, pilot, "compare crane")
        await until(pilot, lambda: "b calm-crane" in pane(app, "metrics"), "the other run")
        page = page_of(app)
        whole = page.runs("loss")[0]
        page.compare_with([replace(page.others[0], series={"loss": whole})])
        assert "step" not in next(line for line in pane(app, "metrics").splitlines() if "▸ loss" in line)
        short = whole[: len(whole) // 2]
        page.compare_with([replace(page.others[0], series={"loss": short})])
        line = next(line for line in pane(app, "metrics").splitlines() if "▸ loss" in line)
        found = re.search(r"step ([\d ]+?)  a (\S+)  b (\S+)", line)
        assert found is not None, line
        assert int(found[1].replace(" ", "")) == round(short[-1].step or 0)
        assert found[2] == found[3], "the same curve, at the same step"

    drive(some(tmp_path), play, size=(160, 50))


def test_a_number_in_the_palette_is_a_step(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M")
        await command(app, pilot, "500")
        await until(pilot, lambda: page_of(app).look.cursor is not None, "the cursor")
        assert page_of(app).look.cursor == pytest.approx(500, abs=50)

    drive(some(tmp_path), play)


def test_the_time_of_each_run_counts_from_its_own_start(tmp_path: Path) -> None:
    mine, other = recorded.healthy(tmp_path / "mine"), recorded.healthy(tmp_path / "other")
    loaded = load_other(other)
    later = replace(
        loaded,
        series={name: shifted(track, 86400.0) for name, track in loaded.series.items()},
        start_t=loaded.start_t + 86400.0,
    )

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M", "x")
        page = page_of(app)
        page.compare_with([later])
        ours, theirs = page.runs("loss")
        assert [point.t for point in theirs] == pytest.approx([point.t for point in ours]), "a day later"
        assert "by time since the start" in pane(app, "metrics").splitlines()[0]
        await until(pilot, lambda: "30 m" in pane(app, "metrics"), "the axis")

    drive(mine, play)
