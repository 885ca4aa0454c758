"""The metrics page: a grid of charts that is paged, read and enlarged, with any number of runs in each."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import read_run_file
from supervisor.run.series import METRICS
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.charts.curves import shifted
from supervisor.views.tui.charts.hues import run_letter, run_style
from supervisor.views.tui.pages.metrics import (
    MetricsPage,
    OtherRun,
    grid_of,
    load_other,
    say_of,
)
from supervisor.views.tui.widgets.panel import View
from tests.views.tui import recorded
from tests.views.tui.driving import drive, pane, plays, shown, until
from tests.views.tui.still import snapshot_of, state_of, text_of, track


def page_of(app: StokerApp) -> MetricsPage:
    return app.dashboard.query_one("#metrics", MetricsPage)


def layers(root: Path, *, series: int = 24, steps: int = 20) -> recorded.Recording:
    """A script that logs a number a layer beside its loss."""
    rec = recorded.Recording(root)
    rec.launch("first start")
    for step in range(1, steps + 1):
        rec.t += 1
        values: dict[str, float | None] = {"step": float(step), "loss": 2 + math.exp(-step / 30)}
        values |= {f"layer{n:02d}/norm": n + math.sin(step / (n + 1)) for n in range(series - 1)}
        rec.series.append(METRICS, rec.t, "job", 1, values)
        rec.fact(ev.Progress(t=rec.t, attempt=1, step=step))
    return rec


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
        (64, 200, 45, (5, 5)),
        (7, 120, 35, (3, 3)),
        (2, 120, 35, (1, 2)),
        (1, 200, 45, (1, 1)),
        (3, 20, 5, (1, 1)),
    ],
)
def test_as_many_charts_as_fit_in_the_shape_that_looks_best(
    count: int, width: int, height: int, shape: tuple[int, int]
) -> None:
    assert grid_of(count, width, height) == shape


def test_all_series_are_charted_page_by_page_and_found_by_a_part_of_the_name(tmp_path: Path) -> None:
    run = layers(tmp_path / "run").close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M")
        page = page_of(app)
        names = page.names()
        assert len(names) == 24
        first = in_sight(app)
        assert first == names[: len(first)]
        assert f"1-{len(first)} of 24" in pane(app, "metrics")
        seen = list(first)
        for _ in range(23 // len(first)):
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
        await pilot.press("slash", *"norm 4", "enter")
        assert page.names() == ["layer04/norm", "layer14/norm"]
        assert "/norm 4" in pane(app, "metrics").splitlines()[0]
        await pilot.press("escape")
        assert len(page.names()) == 24
        await pilot.press("slash", *"nothing", "enter")
        assert "no chart has that in its name" in pane(app, "metrics")
        await pilot.press("j", "right", "plus", "enter", "escape", "escape")
        assert len(page.names()) == 24

    drive(run, play)


@plays(recorded.healthy)
async def test_a_chart_at_full_size_and_back(app: StokerApp, pilot: Pilot[None], run: RunPaths) -> None:
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


OTHERS = ("20261121-0900-calm-crane", "20261121-0800-mild-moth", "20261120-0900-able-ant")


def some(folder: Path) -> RunPaths:
    """A run, and three others in its folder."""
    for name in OTHERS:
        recorded.succeeded(folder / name)
    return recorded.healthy(folder / "run")


def test_runs_are_chosen_by_name_and_have_a_hue_and_a_letter_each(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("M", "c", *"calm-crane mild-moth able-ant", "enter")
        page = page_of(app)
        await until(pilot, lambda: len(page.others) == 3, "the other runs")
        await until(pilot, lambda: pane(app, "metrics").count("└") >= 7, "all charts")
        lines = pane(app, "metrics").splitlines()
        assert "a this run  b calm-crane  c mild-moth  d able-ant" in lines[0]
        assert "a 2.070  b " in lines[2], "each value has its run's letter"
        signs = {(sign, span.style) for row in page._rows[2:12] for span in row for sign in span.text}
        assert {(run_letter(at), run_style(at)) for at in range(4)} <= signs, "each curve ends in its letter"
        await pilot.press("z", "right")
        assert "step 1 840  a 2.070  b –  c –  d –" in pane(app, "metrics"), "they ended at step 1000"
        await until(pilot, lambda: "Esc clear cursor" in shown(app), "the cursor's own Esc")
        await pilot.press("escape")
        await until(pilot, lambda: "Esc all charts" in shown(app), "the one of a single chart")
        await pilot.press("escape")
        await until(pilot, lambda: "Esc close page" in shown(app), "the grid again")
        await pilot.press("c", "end", *["backspace"] * len(OTHERS[2]), "enter")
        await until(pilot, lambda: len(page.others) == 2, "one fewer")
        await pilot.press("c", *"no-such", "enter")
        await until(pilot, lambda: "no run named 'no-such'" in pane(app, "notice"), "why not")
        assert len(page.others) == 2

    drive(some(tmp_path), play)


def test_arguments_that_differ_stand_above_the_charts(tmp_path: Path, no_app: None) -> None:
    record = read_run_file(recorded.Recording(tmp_path / "run").close().run_json)
    curves = {"loss": track(3.0, 2.0, 1.0)}
    page = MetricsPage(id="metrics")
    page.view = View(snapshot_of(state_of(), metrics=curves, run_file=record), 1.0)

    def beside(*others: tuple[str, ...] | None, width: int = 80) -> list[str]:
        page.others = [
            OtherRun(RunPaths(tmp_path / name), curves, {}, given="mine" if at else "", arguments=args)
            for at, (name, args) in enumerate(zip(OTHERS, others, strict=False))
        ]
        return text_of(page.body(width, 12)).splitlines()

    same = ("--lr", "3e-4", "--batch_size", "16", "--compile")
    other = ("--lr", "1e-3", "--batch_size", "16")
    assert beside(other, same)[1] == " arguments:  lr 3e-4 | 1e-3 | 3e-4  compile on | – | on"
    assert beside(other, same, width=40)[1] == " arguments:  lr 3e-4 | 1e-3 | 3e-4  +1"
    assert beside(same, same)[1] == " the same arguments"
    assert beside(None, same)[1].startswith("╭ ▸ loss"), "of one they are not known"
    head, _, titles, *_ = beside(other, same)
    assert head.split() == ["metrics", "a", "this", "run", "b", "calm-crane", "c", "mine"]
    assert titles.endswith("a 1.000  b 1.000  c 1.000 ╮")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("val_loss", "0.250"),
        ("lr", "2.5e-1"),
        ("step_time_s", "250 ms"),
        ("rss_bytes", "0M"),
        ("util_ratio", "25 %"),
        ("mfu", "25 %"),
        ("grad_norm", "0.25"),
    ],
)
def test_a_value_is_written_in_the_unit_of_its_name(name: str, text: str) -> None:
    assert say_of(name)(0.25) == text


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
