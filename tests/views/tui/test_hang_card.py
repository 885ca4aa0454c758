"""A hang on the screen: card, page, ranks and stacks all name the rank that the others waited for."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from textual.pilot import Pilot

from supervisor.run import events as ev
from supervisor.run.events import RequestKind
from supervisor.run.journal import JournalWriter, read_state
from supervisor.run.paths import RunPaths
from supervisor.run.records import Cause, FailureClass
from supervisor.views.tui.app import StokerApp
from tests.keeper.fakes import verdict_of
from tests.views.tui import recorded
from tests.views.tui.driving import drive, pane, plays, requests, shown, until
from tests.views.tui.recording import Recording

PATH = "../../../../artifacts/stacks-1-1795270400.txt"
STACKS = """rank 1 in exists() at train.py:19, 1 rank in all_reduce at train.py:50

== rank 1, pid 4401, by py-spy
Thread 4401 (active): "MainThread"
    clean_cache (/home/me/gpt/train.py:19)
        while not os.path.exists("[red]lock[/red]"):
"""


def hung(root: Path) -> RunPaths:
    """Rank 1 loops while rank 0 waits in a collective; the attempt was ended for it and a person decides."""
    rec = Recording(root)
    rec.launch("first launch")
    rec.steps(1, 24)
    rec.fact(ev.AttemptEnded(t=rec.t, attempt=1, exit_code=1, last_step=24, rank_exit_codes={0: -15, 1: -9}))
    cause = Cause(PATH, 5, "rank 1 in exists() at train.py:19")
    verdict = replace(verdict_of(FailureClass.HANG), rank=1, ranks=(1,), cause=cause)
    rec.fact(ev.Diagnosed(t=rec.t, attempt=1, verdict=verdict))
    rec.fact(ev.Held(t=rec.t, attempt=1, reason="hang", until=rec.t + 86_400))
    run = rec.close()
    run.artifacts.mkdir()
    (run.artifacts / Path(PATH).name).write_text(STACKS, encoding="utf-8")
    return run


@plays(hung)
async def test_the_key_of_the_log_opens_the_stacks_and_leads_on_to_the_log(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    await pilot.press("v", "L")
    await pilot.pause()
    text = pane(app, "processes")
    assert "stacks-1-1795270400.txt, taken" in text
    assert "clean_cache (/home/me/gpt/train.py:19)" in text
    assert "[red]lock[/red]" in text
    await pilot.press("L")
    await until(pilot, lambda: app.dashboard.panes.log.is_whole, "the log")


@plays(recorded.counting_down, size=(80, 24))
async def test_a_countdown_stands_in_the_header_and_esc_keeps_waiting(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    assert "hang: ending in 27 s" in pane(app, "header").splitlines()[0]
    assert "Esc keep waiting" in pane(app, "footer")
    await pilot.press("a")
    assert "ended as a hang in 27 s" in pane(app, "advisories")
    assert "Esc close page" in pane(app, "footer")
    await pilot.press("escape")
    await until(pilot, lambda: "Esc keep waiting" in pane(app, "footer"), "the page's end")
    assert requests(run) == [], "the page was closed, and nothing else done"
    await pilot.press("escape")
    await until(pilot, lambda: bool(requests(run)), "the request")
    (request,) = requests(run)
    assert (request.kind, request.if_attempt) == (RequestKind.KEEP_WAITING, 1)


@plays(recorded.stalled)
async def test_who_looks_at_another_screen_is_told_that_a_countdown_began(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    await pilot.press("question_mark")
    last_t = read_state(run.node().journal).last_t
    assert last_t is not None
    journal = JournalWriter(run.node().journal)
    journal.append(
        ev.HangCountdown(t=last_t, attempt=1, until=last_t + 30, left_s=30.0, text="x", rule="lock_for_ever")
    )
    journal.close()
    said = "a hang is about to be ended, Esc on the dashboard keeps waiting"
    await until(pilot, lambda: said in [told.message for told in app._notifications], "the word")
    await until(pilot, lambda: "hang: ending in 28 s" in shown(app), "it on the screen")


def test_a_screen_that_may_act_is_seen_by_the_keeper_until_it_is_left(tmp_path: Path) -> None:
    run = recorded.stalled(tmp_path / "run")
    seen: list[str] = []

    async def play(_app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: any(run.control.iterdir()), "the viewer's file")
        seen.extend(path.name for path in run.control.iterdir())

    drive(run, play)
    assert [name.split("@")[0] for name in seen] == [f"viewer-{os.getpid()}"]
    assert not list(run.control.iterdir())
