"""A hang on the screen: card, page, ranks and stacks all name the rank that the others waited for."""

from __future__ import annotations

import os
from pathlib import Path

from textual.pilot import Pilot

from supervisor.run import events as ev
from supervisor.run.events import RequestKind
from supervisor.run.journal import JournalWriter, read_state
from supervisor.run.paths import RunPaths
from supervisor.run.records import Action, Cause, Consequence, DecisionKind, FailureClass, Verdict
from supervisor.views.tui.app import StokerApp
from tests.views.tui import recorded
from tests.views.tui.driving import drive, pane, requests, shown, until
from tests.views.tui.recording import Recording

PATH = "../../../../artifacts/stacks-1-1795270400.txt"
STACKS = """rank 1 in exists() at train.py:19, 1 rank in all_reduce at train.py:50

== rank 0, pid 4400, by py-spy
Thread 4400 (idle): "MainThread"
    all_reduce (/env/site-packages/torch/distributed/distributed_c10d.py:3252)
    main (/home/me/gpt/train.py:50)
        dist.all_reduce(total)

== rank 1, pid 4401, by py-spy
Thread 4401 (active): "MainThread"
    exists (<frozen genericpath>:19)
    clean_cache (/home/me/gpt/train.py:19)
        while not os.path.exists("[red]lock[/red]"):
    main (/home/me/gpt/train.py:48)
        clean_cache()
"""
ADVICE = (
    "Look why train.py:19 does not end (a loop without a bound, a lock, a file or a server that does not answer): "
    "the stacks show rank 1 in exists(), outside the collective."
)


def hung(root: Path, *, file: bool = True) -> RunPaths:
    """Rank 1 loops while rank 0 waits in a collective; the attempt was ended for it and a person decides."""
    rec = Recording(root)
    rec.launch("first launch")
    rec.steps(1, 24)
    groups = (
        ev.RanksAt(ranks=(1,), doing="own", what="in exists()", line_at="train.py:19", lines=(12,)),
        ev.RanksAt(ranks=(0,), doing="collective", what="in all_reduce", line_at="train.py:50", lines=(6,)),
    )
    text = STACKS.splitlines()[0]
    artifact = "artifacts/stacks-1-1795270400.txt"
    rec.t += 60
    rec.fact(
        ev.HangFound(
            t=rec.t,
            attempt=1,
            waited_s=60,
            act_s=60,
            text=text,
            ranks=(1,),
            artifact=artifact,
            line=12,
            groups=groups,
        )
    )
    rec.fact(ev.StopIntended(t=rec.t, attempt=1, why=ev.StopWhy.HANG, by="keeper", grace_s=5))
    rec.fact(ev.AttemptEnded(t=rec.t, attempt=1, exit_code=1, last_step=24, rank_exit_codes={0: -15, 1: -9}))
    followed = (
        Consequence(FailureClass.HANG, 0, PATH, 6, "", "waited for rank 1 in all_reduce at train.py:50"),
    )
    cause = Cause(PATH, 12, "rank 1 in exists() at train.py:19")
    verdict = Verdict(
        failure=FailureClass.HANG,
        reason=None,
        confidence=0.92,
        rank=1,
        ranks=(1,),
        node=None,
        title="Training hung on rank 1",
        cause=cause,
        consequences=followed,
        advice=(ADVICE,),
        action=Action.RESTART,
        fingerprint="f",
    )
    rec.fact(ev.Diagnosed(t=rec.t, attempt=1, verdict=verdict))
    rec.decide(DecisionKind.HOLD, "hang: it came back after a restart: look at the stacks and the device")
    rec.fact(ev.Held(t=rec.t, attempt=1, reason="hang", until=rec.t + 86_400))
    run = rec.close()
    run.artifacts.mkdir()
    if file:
        (run.artifacts / Path(artifact).name).write_text(STACKS, encoding="utf-8")
    return run


def test_the_key_of_the_log_opens_the_stacks_and_leads_on_to_the_log(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("v", "L")
        await pilot.pause()
        text = pane(app, "processes")
        assert "stacks-1-1795270400.txt, taken" in text
        assert "clean_cache (/home/me/gpt/train.py:19)" in text
        assert "[red]lock[/red]" in text
        await pilot.press("L")
        await until(pilot, lambda: bool(app.screen.query("#logpage")), "the log")

    drive(hung(tmp_path / "run"), play)


def test_a_countdown_stands_in_the_header_and_esc_keeps_waiting(tmp_path: Path) -> None:
    run = recorded.counting_down(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
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

    drive(run, play, size=(80, 24))


def test_who_looks_at_another_screen_is_told_that_a_countdown_began(tmp_path: Path) -> None:
    run = recorded.stalled(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        last_t = read_state(run.node().journal).last_t
        assert last_t is not None
        journal = JournalWriter(run.node().journal)
        journal.append(
            ev.HangCountdown(
                t=last_t, attempt=1, until=last_t + 30, left_s=30.0, text="x", rule="lock_for_ever"
            )
        )
        journal.close()
        said = "a hang is about to be ended, Esc on the dashboard keeps waiting"
        await until(pilot, lambda: said in [told.message for told in app._notifications], "the word")
        await until(pilot, lambda: "hang: ending in 28 s" in shown(app), "it on the screen")

    drive(run, play)


def test_a_screen_that_may_act_is_seen_by_the_keeper_until_it_is_left(tmp_path: Path) -> None:
    run = recorded.stalled(tmp_path / "run")
    seen: list[str] = []

    async def play(_app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: any(run.control.iterdir()), "the viewer's file")
        seen.extend(path.name for path in run.control.iterdir())

    drive(run, play)
    assert [name.split("@")[0] for name in seen] == [f"viewer-{os.getpid()}"]
    assert not list(run.control.iterdir())
