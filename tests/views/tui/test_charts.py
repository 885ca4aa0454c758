"""A chart is zoomed, moved and read by keys, wheel and mouse; what was not a number is shown as that."""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec
from textual.pilot import Pilot

from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.records import FailureClass
from supervisor.run.series import METRICS
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.charts.live import LossPanel, attempt_marks
from tests.views.tui import recorded
from tests.views.tui.driving import command, drive, pane, shown, until
from tests.views.tui.still import attempt_of, running, state_of, verdict


def loss_panel(app: StokerApp) -> LossPanel:
    return app.dashboard.query_one("#loss", LossPanel)


def falling_to_nan(root: Path) -> RunPaths:
    rec = recorded.Recording(root)
    rec.launch("first start")
    rec.steps(1, 50)
    for step in range(51, 55):
        rec.t += 1
        rec.series.append(METRICS, rec.t, "job", 1, {"step": step, "loss": math.nan})
        rec.fact(ev.Progress(t=rec.t, attempt=1, step=step))
    return rec.close()


def test_nan_and_inf_are_told_apart(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 50)
    for step, loss in ((51, math.inf), (52, math.nan), (53, math.nan)):
        rec.t += 1
        values = {"step": step, "loss": loss, "grad_norm": math.inf}
        rec.series.append(METRICS, rec.t, "job", 1, values)
        rec.fact(ev.Progress(t=rec.t, attempt=1, step=step))

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        title, top = pane(app, "loss").splitlines()[:2]
        assert "nan, inf at step 51, last " in title
        assert "∞" in top
        assert "×" in top
        await pilot.press("1", "right")
        assert "step 53  nan" in pane(app, "loss").splitlines()[0], "the cursor reads it too"
        await pilot.press("escape", "M")
        await until(pilot, lambda: "grad_norm" in shown(app), "the charts")
        for title in (r"loss ─+ nan ╮", r"grad_norm ─+ inf ╮"):
            assert re.search(title, shown(app)), shown(app)

    drive(rec.close(), play)


def test_cursor_reads_values_and_escape_takes_it_away(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("1", "right")
        first = pane(app, "loss").splitlines()[0]
        assert "step 1 840" in first
        await pilot.press(*["left"] * 5)
        second = pane(app, "loss").splitlines()[0]
        assert "step 1 " in second
        assert "step 1 840" not in second
        await pilot.press("escape")
        assert "best" in pane(app, "loss").splitlines()[0]
        assert loss_panel(app).has_focus, "Esc took the cursor, not the pane"

    drive(recorded.healthy(tmp_path / "run"), play)


def test_zoom_narrows_about_the_cursor_and_zero_shows_all(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("1")
        panel = loss_panel(app)
        whole = pane(app, "loss")
        await pilot.press("right", *["left"] * 20, "plus", "plus")
        window, cursor = panel.look.window, panel.look.cursor
        assert window is not None
        assert cursor is not None
        assert window[0] < cursor < window[1]
        await pilot.press("comma")
        assert panel.look.window is not None
        assert panel.look.window[0] < window[0]
        await pilot.press("minus", "minus", "minus", "minus")
        assert panel.look.window is None
        await pilot.press("plus", "0", "escape")
        assert pane(app, "loss") == whole

    drive(recorded.healthy(tmp_path / "run"), play)


def test_log_axis_and_time_axis(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("1", "y")
        assert "loss log" in pane(app, "loss").splitlines()[0]
        await pilot.press("x")
        text = pane(app, "loss")
        assert "by time since the start" in text
        assert text.splitlines()[-2].strip("│ ").split("  ")[0] == "10 m"

    drive(recorded.healthy(tmp_path / "run"), play)


def test_click_and_wheel(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.click("#loss", offset=(20, 5))
        panel = loss_panel(app)
        assert panel.look.cursor is not None
        kept = panel.look.cursor
        panel.action_zoom_in()
        assert panel.look.window is not None
        assert panel.look.cursor == kept

    drive(recorded.healthy(tmp_path / "run"), play)


def test_a_line_of_the_log_is_shown_in_the_chart(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        panel = loss_panel(app)
        assert panel.show_at(500.0, None, 2)
        assert panel.look.cursor == 500
        assert not panel.show_at(None, None, 2)
        assert not panel.show_at(1.0, None, 7)

    drive(recorded.healthy(tmp_path / "run"), play)


def test_attempts_are_marked(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "✗ OOM" in pane(app, "loss")

    drive(recorded.healthy(tmp_path / "run"), play)


def test_a_loss_that_is_no_number_is_said(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        text = pane(app, "loss")
        assert "nan since step 51, last " in text.splitlines()[0]
        assert "×" in text.splitlines()[1], "a cross stands in the chart"
        await pilot.press("a")
        await until(pilot, lambda: "loss: nan since step 51, last " in shown(app), "the page")
        assert "no sign of trouble" not in shown(app)

    drive(falling_to_nan(tmp_path / "run"), play)


def test_the_cursor_says_of_which_attempt_an_abandoned_point_is(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 100)
    rec.launch("from scratch")
    rec.steps(1, 30)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("1", "right")
        assert "attempt 1  step 100" in pane(app, "loss").splitlines()[0]
        await pilot.press(*["left"] * 38)
        title = pane(app, "loss").splitlines()[0]
        assert "step" in title
        assert "attempt" not in title

    drive(rec.close(), play)


def title(app: StokerApp) -> str:
    return pane(app, "loss").splitlines()[0]


def zigzag(root: Path) -> recorded.Recording:
    """Losses that jump: the smoothed one is never the newest."""
    rec = recorded.Recording(root)
    rec.launch("first start")
    for step in range(1, 41):
        rec.t += 1
        loss = 2.5 if step == 26 else 9.0 if step % 2 else 5.0
        rec.series.append(METRICS, rec.t, "job", 1, {"step": step, "loss": loss})
        rec.fact(ev.Progress(t=rec.t, attempt=1, step=step, loss=loss))
    return rec


def test_title_has_the_loss_as_it_was_said_beside_the_best_and_its_step(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "5.000 " in title(app)
        assert "best 2.500 at step 26" in title(app)
        await pilot.press("1", "x")
        assert "best 2.500" in title(app)
        assert "at step" not in title(app), "the other axis has no steps"

    drive(zigzag(tmp_path / "run").close(), play, size=(160, 40))


def test_title_drops_what_does_not_fit_and_keeps_the_loss(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        for width in (70, 60, 50, 44):
            await pilot.resize_terminal(width, 24)
            await until(pilot, lambda w=width: app.screen.size.width == w, "the new width")  # type: ignore[misc]
            await until(pilot, lambda: "5.000 " in title(app), f"the loss at {width} columns")

    drive(zigzag(tmp_path / "run").close(), play, size=(80, 24))


def test_a_log_of_which_nobody_knows_how_it_ended_has_no_mark_of_a_failure() -> None:
    doubtful = attempt_of(verdict=verdict(FailureClass.UNKNOWN), verdict_provisional=True, quiet_since=1.0)
    assert attempt_marks(state_of(running(), doubtful)) == []
    failed = msgspec.structs.replace(doubtful, verdict=verdict(FailureClass.CODE_ERROR))
    assert [mark.text for mark in attempt_marks(state_of(running(), failed))] == ["✗ code error"]


def test_a_new_attempt_has_no_loss_and_no_steps_until_it_says_them(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "–  best" in title(app)
        row = next(line for line in pane(app, "ranks").splitlines() if "rendezvous" in line)
        assert "–" in row
        assert " 29 " not in row
        assert "⚠" not in row
        rec.steps(1, 2)
        await until(pilot, lambda: f"{rec.loss(2):.3f}" in title(app), "the first loss of attempt 2")
        assert " 2 " in next(line for line in pane(app, "ranks").splitlines() if "stepping" in line)

    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 29)
    rec.out_of_memory()
    rec.t += 60
    rec.launch("as asked")
    drive(rec.run, play)
    rec.close()


def test_the_palette_takes_the_cursor_to_a_step(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 2000)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await command(app, pilot, "step 1200")
        assert "step 1 200" in pane(app, "loss").splitlines()[0]
        await command(app, pilot, "step 1k-1.5k")
        assert loss_panel(app).look.window == (1000.0, 1500.0)
        await command(app, pilot, "step 5000")
        await until(pilot, lambda: "the chart has steps 1 to 2 000" in pane(app, "notice"), "why not")
        await command(app, pilot, "step soon")
        await until(pilot, lambda: "soon: give a step" in pane(app, "notice"), "what may be typed")
        await pilot.press("M")
        await command(app, pilot, "step 700")
        assert "step 700" in pane(app, "metrics"), "the chart in sight"

    drive(rec.close(), play)


def test_the_cursor_goes_on_to_the_next_point_across_a_gap(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 40)
    rec.steps(1000, 1040)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await command(app, pilot, "step 39")
        await pilot.press("right")
        assert "step 40 " in title(app)
        await pilot.press("right")
        assert "step 1 000 " in title(app)
        await pilot.press("left")
        assert "step 40 " in title(app)

    drive(rec.close(), play)


def test_the_cursor_reads_its_value_where_there_is_no_room_for_the_range(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 3000)
    rec.launch("from scratch")
    rec.steps(1, 20)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await command(app, pilot, "step 1000")
        assert re.search(r"attempt 1  step (999|1 000)  \d", title(app))

    drive(rec.close(), play, size=(60, 30))


def test_a_step_is_shown_on_the_charts_while_a_card_stands_in_the_place_of_the_loss(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await command(app, pilot, "step 100")
        await until(pilot, lambda: "step 100 " in pane(app, "metrics"), "the chart")

    drive(recorded.held(tmp_path / "run"), play)


def test_a_step_is_shown_on_the_loss_that_stands_below_a_card(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert pane(app, "card").startswith("╭ [1] ✗ attempt 1 failed")
        assert pane(app, "loss").startswith("╭ loss "), "the card has its key"
        await command(app, pilot, "step 100")
        await until(pilot, lambda: "step 100 " in pane(app, "loss").splitlines()[0], "the chart")

    drive(recorded.held(tmp_path / "run"), play, size=(200, 50))


def test_a_validation_loss_alone_is_charted_under_its_name(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    for step in range(1, 50):
        rec.t += 1
        rec.series.append(METRICS, rec.t, "job", 1, {"step": step, "val_loss": 5 / step})
        rec.fact(ev.Progress(t=rec.t, attempt=1, step=step))

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "val_loss" in title(app)
        assert "no loss seen" not in pane(app, "loss")
        assert "○" not in pane(app, "loss"), "it is not drawn twice"

    drive(rec.close(), play)


def test_losses_that_are_all_no_number_make_no_curve_and_the_pane_says_so(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    for step in range(1, 5):
        rec.t += 1
        rec.series.append(METRICS, rec.t, "job", 1, {"step": step, "loss": math.nan})
        rec.fact(ev.Progress(t=rec.t, attempt=1, step=step))

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "nan since step 1" in pane(app, "loss").splitlines()[0]
        assert "no loss so far is a number" in pane(app, "loss")

    drive(rec.close(), play)
