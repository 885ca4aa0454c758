"""Each key does what its word says: the right request, and only where it is possible."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from textual.binding import Binding
from textual.pilot import Pilot
from textual.widgets import Input

from supervisor.run.events import RequestKind, RequestRefused
from supervisor.run.journal import JournalWriter
from supervisor.run.ownership import Offer
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import read_run_file, write_run_file
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.dashboard.acting import KEYS
from supervisor.views.tui.shell.feeder import Adopter
from supervisor.views.tui.shell.prompts import AskLine
from tests.tiers import first
from tests.views.tui import recorded
from tests.views.tui.driving import drive, offered, on_dashboard, pane, plays, requests, shown, until

Maker = Callable[[Path], RunPaths]


@pytest.mark.parametrize(
    ("maker", "attempt", "keys"),
    [
        (recorded.healthy, 2, {"K": "stacks", "r y": "restart", "s y": "stop"}),
        (recorded.backing_off, 1, {"enter": "start_now", "escape": "hold", "r y": "hold restart"}),
        (recorded.held, 1, {"enter": "restart_with"}),
    ],
)
def test_a_key_sends_its_request(tmp_path: Path, maker: Maker, attempt: int, keys: dict[str, str]) -> None:
    """The question before `r` holds a restart that is counted down."""
    run = maker(tmp_path / "run")
    sent: list[str] = []

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        for pressed, kinds in keys.items():
            sent.extend(kinds.split())
            await pilot.press(*pressed.split())
            await until(pilot, lambda: len(requests(run)) == len(sent), pressed)

    drive(run, play)
    assert [str(request.kind) for request in requests(run)] == sent
    assert {request.if_attempt for request in requests(run)} == {attempt}


@plays(recorded.held)
async def test_smaller_batch_shows_its_arithmetic(app: StokerApp, pilot: Pilot[None], run: RunPaths) -> None:
    await pilot.press("b")
    assert isinstance(app.screen, AskLine)
    field = app.screen.query_one(Input)
    assert field.value == "8"
    assert "micro-batch 16 → 8, accumulation 2 → 4, global batch 64 unchanged" in shown(app)
    await pilot.press("backspace", "5", "enter")
    assert isinstance(app.screen, AskLine), "a number that does not divide is not sent"
    assert "does not divide" in shown(app)
    await pilot.press("backspace")
    await pilot.pause()
    assert "type how many samples a rank holds at once" in shown(app)
    await pilot.press("4")
    await pilot.pause()
    assert "micro-batch 16 → 4, accumulation 2 → 8, global batch 64 unchanged" in shown(app)
    await pilot.press("enter")
    await until(pilot, lambda: bool(requests(run)), "a request")
    (request,) = requests(run)
    assert request.kind is RequestKind.RESTART_WITH
    assert request.args.micro_batch == 4


@plays(recorded.held)
async def test_the_answer_to_a_request_is_shown(app: StokerApp, pilot: Pilot[None], run: RunPaths) -> None:
    await pilot.press("r", "y")
    await until(pilot, lambda: "asked the supervisor process" in pane(app, "notice"), "the notice")
    (request,) = requests(run)
    writer = JournalWriter(run.node().journal)
    writer.append(
        RequestRefused(t=recorded.T0, request_id=request.id, request="restart", by="me", reason="stale")
    )
    writer.close()
    await until(pilot, lambda: "restart refused: stale" in pane(app, "notice"), "the refusal")


def test_a_smaller_batch_is_not_offered_where_it_could_not_be_handed_on(tmp_path: Path) -> None:
    run = recorded.held(tmp_path / "run")
    record = read_run_file(run.run_json)
    knobs = dataclasses.replace(record.job.knobs, accumulation=None)
    write_run_file(
        run.run_json, msgspec.structs.replace(record, job=dataclasses.replace(record.job, knobs=knobs))
    )

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "smaller batch" not in pane(app, "footer")
        await pilot.press("b")
        await until(pilot, lambda: "no accumulation is known beside" in pane(app, "notice"), "the reason")
        assert on_dashboard(app)

    drive(run, play)


@pytest.mark.parametrize("maker", first(1, [recorded.held, recorded.healthy]))
@pytest.mark.fault("secrets and access", "`--read-only`: every key is pressed", "nothing is written or asked")
def test_read_only_writes_nothing_whatever_key_is_pressed(tmp_path: Path, maker: Maker) -> None:
    """Neither a request nor the file by which a screen shows a keeper that somebody watches who can act."""
    run = maker(tmp_path / "run")
    bindings = [one for one in KEYS if isinstance(one, Binding)]
    keys = [
        key
        for one in bindings
        for key in one.key.split(",")
        if one.action != "leave" and "quit" not in one.action
    ]

    def written() -> dict[Path, int]:
        files = [path for path in run.root.rglob("*") if path.is_file() and path != run.node().lock]
        return {path: path.stat().st_mtime_ns for path in files}

    before = written()
    assert len(keys) > 30

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        for key in keys:
            await pilot.press(key)
            for _ in range(3):  # what opened over the dashboard is answered, and left
                if on_dashboard(app):
                    break
                await pilot.press("y", "enter", "escape")

    drive(run, play, read_only=True)
    assert written() == before


def test_r_continues_a_run_that_is_over(tmp_path: Path) -> None:
    run, started = recorded.failed(tmp_path / "run"), list[RunPaths]()
    offer = Offer(actions=("attempt 2 resumes from its checkpoint at step 40",))

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "r continue" in pane(app, "footer")
        await pilot.press("r")
        await offered(app, pilot)
        assert "start the next attempt?" in shown(app)
        assert "resumes from its checkpoint at step 40" in shown(app)
        await pilot.press("y")
        await until(pilot, lambda: started == [run], "the start")
        assert "starting the next attempt" in pane(app, "notice")

    drive(run, play, keeper=False, continuer=Adopter(lambda _run: offer, started.append))


@plays(recorded.healthy, size=(160, 50))
async def test_each_pane_is_reached_by_its_number(app: StokerApp, pilot: Pilot[None], run: RunPaths) -> None:
    for keys, name in (("1", "loss"), ("2", "devices"), ("3", "ranks"), ("4l", "log"), ("5t", "timeline")):
        for key in keys:
            await pilot.press(key)
            assert app.focused is app.dashboard.panes.find(name)
    await pilot.press("z", "2")
    assert app.focused is app.dashboard.panes.find("devices")
    assert app.dashboard.panes.zoomed is None


@plays(recorded.failed, size=(80, 24), keeper=False)
async def test_a_pane_that_is_out_of_sight_is_shown_alone(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    await pilot.press("1")
    assert app.focused is app.dashboard.panes.card
    assert app.dashboard.panes.zoomed is None
    for key, name in (("2", "devices"), ("3", "ranks"), ("5", "timeline")):
        await pilot.press(key)
        assert app.focused is app.dashboard.panes.find(name)
        assert app.dashboard.panes.zoomed == name


@plays(recorded.healthy)
async def test_the_palette_finds_a_command_by_its_name_and_by_its_sentence(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    for typed, found in (
        ("compare", "M       compare"),
        ("pids", "p       processes"),
        ("gracefully", "s       stop"),
    ):
        await pilot.press("colon", *typed)
        await until(pilot, lambda found=found: found in shown(app), found)  # type: ignore[misc]
        await pilot.press("escape")
        await until(pilot, lambda: on_dashboard(app), "the dashboard")


@plays(recorded.healthy)
async def test_a_key_that_does_nothing_says_so_once(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    await pilot.press("w")
    assert "w does nothing here, ? shows the keys" in pane(app, "notice")
    app.dashboard.panes.notice.say("note: done")
    await pilot.press("j", "k", "shift", "ctrl+y")
    assert "note: done" in pane(app, "notice"), "keys that move, and those no person would miss, are no news"
    await pilot.press("f5")
    assert "F5 does nothing here" in pane(app, "notice")
