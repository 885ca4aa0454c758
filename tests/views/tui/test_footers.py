"""Footers: what each key does now, of the screen that has the keys."""

from __future__ import annotations

from textual.pilot import Pilot

from supervisor.run.paths import RunPaths
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.shell.help import HelpScreen
from supervisor.views.tui.shell.screen_base import FooterBar
from tests.views.tui import recorded
from tests.views.tui.driving import plays, until
from tests.views.tui.log_driving import opened


def footer(app: StokerApp) -> str:
    return "".join(strip.text for strip in app.dashboard.query_one("#footer", FooterBar)._strips)


@plays(recorded.held)
async def test_esc_in_the_log_is_named_by_what_it_ends_first(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    await opened(app, pilot)
    for keys, word in (
        (("f", "r", "0", "enter"), "Esc clear filter"),
        (("slash", "l", "o", "s", "s", "enter"), "Esc close search"),
        (("V",), "Esc end selection"),
        (("escape",), "Esc close search"),
        (("escape",), "Esc clear filter"),
        (("escape",), "Esc end zoom"),
    ):
        await pilot.press(*keys)
        await until(pilot, lambda word=word: word in footer(app), word)  # type: ignore[misc]
        assert ("n ↑ older" in footer(app)) is (word != "Esc end zoom" and "filter" not in word)
    await pilot.press("escape")
    await until(pilot, lambda: not app.dashboard.panes.log.is_whole, "all panes")


@plays(recorded.backing_off)
async def test_the_log_alone_names_search_and_filter_before_rarer_keys(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    await opened(app, pilot)
    await until(pilot, lambda: "/ search  f filter  : line, time" in footer(app), "what a log is for")


@plays(recorded.backing_off)
async def test_esc_clears_a_charts_cursor_before_it_stops_a_restart_and_the_footer_says_so(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    assert "Esc stop the restart" in footer(app)
    await pilot.press("M", "left")
    await until(pilot, lambda: "Esc clear cursor" in footer(app), "the innermost")
    await pilot.press("escape")
    await until(pilot, lambda: "Esc close page" in footer(app), "the next")
    await pilot.press("escape")
    await until(pilot, lambda: "Esc stop the restart" in footer(app), "the veto")


@plays(recorded.healthy)
async def test_a_click_on_a_hint_does_what_its_key_does(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    at = footer(app).index("z zoom")
    await pilot.click("#footer", offset=(at, 0))
    await until(pilot, lambda: app.dashboard.panes.zoomed == "log", "the log alone")
    await pilot.click("#footer", offset=(footer(app).index("? help"), 0))
    await until(pilot, lambda: isinstance(app.screen, HelpScreen), "the help")
    assert footer(app).strip() == "", "no key of what is covered works"
    await pilot.press("escape")
    await until(pilot, lambda: "? help" in footer(app), "the keys again")
    await pilot.click("#footer", offset=(len(footer(app)) - 4, 0))
    await until(pilot, lambda: not app.is_running, "the app to leave")
