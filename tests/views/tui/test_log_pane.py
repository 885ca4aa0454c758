"""The log pane: every line as plain text, filtered, searched, followed, folded."""

from __future__ import annotations

from pathlib import Path

from textual import events
from textual.pilot import Pilot

from supervisor.run.paths import RunPaths
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.widgets.paint import TextStyle
from tests.diagnosis.launcher_logs import REPORT
from tests.views.tui import recorded
from tests.views.tui.driving import drive, pane, shown, until

HOSTILE = [
    "[bold red]markup[/] [@click=app.quit]click[/] [link=http://x]l[/link]",
    "\x1b[31mred\x1b[0m \x1b[2J\x1b[H cleared",
    "\x1b]52;c;aGVsbG8=\x07 clipboard \x1b]0;title\x07",
    "\x9b31m eight bit \x9d52;c;eHl6\x9c end",
    "right \u202eot tfel\u202c \u2066isolate\u2069 zero\u200bwidth",
    "tab\there\x00nul\x7fdel\x08back",
    "宽字符 wide é 🙂 done",
    "bad \udcff\udcfe bytes",
    "x" * (1 << 20) + " END",
]


def test_hostile_lines_are_plain_text(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    for text in HOSTILE:
        rec.say(0, text)
    rec.say(1, "last line of rank 1")
    run = rec.close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "last line of rank 1" in pane(app, "log"), "the log")
        await pilot.press("k", "j")
        await until(pilot, lambda: "markup" in pane(app, "log"), "what stands before the line of a megabyte")
        text = shown(app)
        assert "[bold red]markup[/] [@click=app.quit]click[/]" in text
        assert "red  cleared" in text
        assert "clipboard" in text
        for bad in ("\x1b", "\x9b", "\x9d", "\x07", "\x00", "\u202e", "\u2066", "\u200b", "aGVsbG8", "eHl6"):
            assert bad not in text
        panel = app.dashboard.log_panel
        assert all(strip.cell_length == panel.size.width for strip in panel._strips), "no row is torn"
        assert all(span.text.isprintable() for strip in panel._strips for span in strip)
        assert max(len(entry.text) for entry in panel.buffer.visible) < 20_000, "a megabyte is cut"
        await pilot.click("#log", offset=(14, 1))
        assert app.is_running

    drive(run, play, size=(120, 70))


def test_last_line_longer_than_what_is_read(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    rec.say(0, "y" * (3 << 20))
    run = rec.close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "yyyy" in pane(app, "log"), "the end of the line")

    drive(run, play)


def test_filter_by_rank_and_words(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        log = app.dashboard.log_panel
        everything = len(log.buffer.visible)
        await pilot.press("f", *"r1 dataloader")
        assert "UserWarning" in pane(app, "log"), "shown while it is typed"
        await pilot.press("enter")
        assert str(log.buffer.filter) == "rank 1 · “dataloader”"
        assert 0 < len(log.buffer.visible) < 10
        await pilot.press("escape")
        assert len(log.buffer.visible) == everything
        await pilot.press("right_square_bracket")
        assert log.buffer.filter.who == {"0"}
        await pilot.press("right_square_bracket")
        assert log.buffer.filter.who == {"1"}
        await pilot.press("right_square_bracket")
        assert not log.buffer.filter

    drive(run, play)


def test_filter_left_by_escape_changes_nothing(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("f", *"nothing like this")
        assert "no line of" in pane(app, "log")
        await pilot.press("escape")
        assert not app.dashboard.log_panel.buffer.filter

    drive(run, play)


def test_rank_is_chosen_in_the_table(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("3", "j", "enter")
        assert app.dashboard.log_panel.buffer.filter.who == {"1"}
        assert app.focused is app.dashboard.log_panel

    drive(run, play)


def test_search_jumps_and_marks(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        log = app.dashboard.log_panel
        await pilot.press("slash", *"step  1705", "enter")
        assert log.match is not None
        assert "step  1705" in pane(app, "log")
        assert not log.following
        await pilot.press("escape")
        assert log.following
        await pilot.press("slash", *"| loss 2", "enter")
        first = log.match
        await pilot.press("n")
        assert log.match is not None
        assert first is not None
        assert log.match < first
        await pilot.press("N")
        assert log.match == first

    drive(run, play)


def test_follow_and_freeze(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    for number in range(200):
        rec.say(0, f"line {number}")
    run = rec.close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        log = app.dashboard.log_panel
        assert "line 199" in pane(app, "log")
        await pilot.press("k")
        assert not log.following
        assert "line 199" not in pane(app, "log")
        rec.say(0, "line 200")
        await until(pilot, lambda: log.buffer.total == 202, "the new line")
        assert "line 200" not in pane(app, "log")
        assert "2 below" in pane(app, "log")
        await pilot.press("G")
        assert log.following
        assert "line 200" in pane(app, "log")
        rec.say(0, "line 201")
        await until(pilot, lambda: "line 201" in pane(app, "log"), "the followed line")
        await pilot.press("g")
        assert "line 0" in pane(app, "log")
        await pilot.press("space")
        assert log.following

    drive(run, play)


def test_wheel_scrolls_and_follows_again(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        log = app.dashboard.log_panel
        log.post_message(events.MouseScrollUp(log, 5, 3, 0, -1, 0, False, False, False))
        await until(pilot, lambda: not log.following, "the frozen log")
        assert "step  1840" not in pane(app, "log")
        log.post_message(events.MouseScrollDown(log, 5, 3, 0, 1, 0, False, False, False))
        await until(pilot, lambda: log.following, "the following log")

    drive(run, play)


def test_equal_lines_of_ranks_are_one(tmp_path: Path) -> None:
    run = recorded.many(tmp_path / "run", ranks=12, gpus=2)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "0-11 ×12" in pane(app, "log")

    drive(run, play)


def long_run(tmp_path: Path) -> RunPaths:
    """An observed log with more in it than is read when a run is opened."""
    log = tmp_path / "long.log"
    run = recorded.observed(tmp_path / "run", log)
    log.write_text("".join(f"line {number:05} of the log, and some words\n" for number in range(6000)))
    return run


def test_what_stands_before_the_opening_is_read_when_a_person_looks_back(tmp_path: Path) -> None:
    run = long_run(tmp_path)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        log = app.dashboard.log_panel
        await until(pilot, lambda: "line 05999" in pane(app, "log"), "the newest line")
        assert len(log.buffer.visible) < 3000, "the first frame waits for some screenfuls only"
        await pilot.press("pageup")
        seen = pane(app, "log")
        await until(pilot, lambda: log.buffer.visible[0].text.startswith("line 00000"), "the rest")
        assert len(log.buffer.visible) == 6000
        assert pane(app, "log").splitlines()[1:-1] == seen.splitlines()[1:-1], "what is in sight stays"
        await pilot.press("g")
        await until(pilot, lambda: "line 00000" in pane(app, "log"), "the oldest line")

    drive(run, play)


def test_oldest_and_search_reach_what_stands_before_the_opening(tmp_path: Path) -> None:
    run = long_run(tmp_path)

    async def oldest(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("g")
        await until(pilot, lambda: "line 00000" in pane(app, "log"), "the oldest line")

    async def search(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"line 00017", "enter")
        await until(pilot, lambda: "line 00017" in pane(app, "log"), "the match")
        assert app.dashboard.log_panel.match == 17

    drive(run, oldest)
    drive(run, search)


def reported(tmp_path: Path, more: int = 0) -> tuple[RunPaths, recorded.Recording]:
    """Rank 1 ran out of memory; torchrun says `more` of it, and ends with its own traceback."""
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(5, 200, every=5)
    rec.out_of_memory()
    for line in [*(f"shutting down, part {number}" for number in range(more)), *REPORT]:
        rec.say("agent", line)
    return rec.run, rec


def test_the_line_that_failed_is_kept_in_sight_until_a_person_scrolls(tmp_path: Path) -> None:
    run, rec = reported(tmp_path, more=40)
    rec.close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        log = app.dashboard.log_panel
        await until(pilot, lambda: "torch.OutOfMemoryError" in pane(app, "log"), "the cause")
        assert "at the failure" in pane(app, "log")
        assert "part 39" not in pane(app, "log")
        marked = [row for row in log._rows if any(span.ink is TextStyle.ROOT for span in row)]
        assert ["▌" in "".join(span.text for span in row) for row in marked] == [True]
        place = log.place()
        assert place is not None
        assert place.path is not None
        assert place.path.endswith("/1/stderr.log"), "L opens the logs there"
        await pilot.press("j")
        assert "frozen" in pane(app, "log"), "a person reads on from there"
        await pilot.press("G")
        assert "part 39" in pane(app, "log")
        assert log.following

    drive(run, play)


def test_a_new_attempt_is_followed_again(tmp_path: Path) -> None:
    run, rec = reported(tmp_path)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "▌torch.OutOfMemoryError" in pane(app, "log"), "the cause")
        rec.launch("restart")
        for number in range(60):
            rec.say(0, f"line {number}")
        await until(pilot, lambda: "line 59" in pane(app, "log"), "the new attempt's lines")

    drive(run, play)


def test_torchruns_own_traceback_is_one_line_until_it_is_opened(tmp_path: Path) -> None:
    run, rec = reported(tmp_path)
    rec.close()
    one = f"launcher: ChildFailedError: train.py FAILED, rank 1 exitcode 1 ({len(REPORT)} lines, o opens)"

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        log = app.dashboard.log_panel
        await until(pilot, lambda: one in pane(app, "log"), "the folded report")
        assert "Root Cause" not in pane(app, "log")
        await pilot.press("o")
        assert "raise ChildFailedError(" in pane(app, "log")
        assert len([entry for entry in log.buffer.visible if entry.text in REPORT]) > len(REPORT)
        await pilot.press("G", "o")
        assert one in pane(app, "log")
        await pilot.press("slash", *"root cause", "enter")
        assert "Root Cause (first observed failure):" in pane(app, "log"), "found in what was folded"

    drive(run, play, size=(120, 50))


def test_nothing_is_offered_to_open_where_nothing_is_folded(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("o")
        assert app.dashboard.log_panel.following
        assert not app.dashboard.log_panel.buffer.opened

    drive(run, play)
