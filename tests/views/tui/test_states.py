"""What is old shows its age, what stands still is not said to move, and what has no room is summed up."""

from __future__ import annotations

from pathlib import Path

import msgspec
from textual.pilot import Pilot

from supervisor.run import events as ev
from supervisor.run.records import Difference, FailureClass, Sameness
from supervisor.views.tui.app import StokerApp
from tests.keeper.fakes import verdict_of
from tests.views.tui import recorded
from tests.views.tui.driving import drive, pane, until


def test_news_from_before_a_failure_goes_when_its_card_comes(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 30)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        app.dashboard.panes.notice.say("3 lines copied")
        rec.fact(ev.Progress(t=rec.t, attempt=1, step=31, loss=3.0))
        await until(pilot, lambda: "31" in pane(app, "header"), "the next step")
        assert "3 lines copied" in pane(app, "notice"), "the state is the same"
        rec.fact(ev.ProcessesGone(t=rec.t, attempt=1, exit_code=1))
        rec.fact(
            ev.Diagnosed(t=rec.t, attempt=1, verdict=verdict_of(FailureClass.HOST_OOM), provisional=True)
        )
        await until(pilot, lambda: "it broke" in pane(app, "card"), "the card")
        assert "copied" not in pane(app, "notice")
        app.dashboard.panes.notice.say("4 lines copied")
        await pilot.pause()
        assert "4 lines copied" in pane(app, "notice"), "news of now"

    drive(rec.run, play)
    rec.close()


def test_another_training_after_a_resume_is_in_the_notice_and_on_the_card(tmp_path: Path) -> None:
    text = "samples of a step 16 → 8"
    differs = ev.ResumeCompared(
        t=0.0, attempt=1, result=Sameness.DIFFERS, difference=Difference.GLOBAL_BATCH, text=text
    )

    def recording(name: str) -> recorded.Recording:
        rec = recorded.Recording(tmp_path / name)
        rec.launch("first start")
        rec.steps(1, 30)
        rec.fact(msgspec.structs.replace(differs, t=rec.t))
        return rec

    async def runs(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(
            pilot, lambda: f"resumed, differs: global batch: {text}" in pane(app, "notice"), "the notice"
        )
        assert "attempt 1: differs: global batch:" in pane(app, "timeline")

    drive(recording("runs").close(), runs, size=(160, 50))

    rec = recording("failed")
    rec.fact(ev.ProcessesGone(t=rec.t, attempt=1, exit_code=1))
    rec.fact(ev.Diagnosed(t=rec.t, attempt=1, verdict=verdict_of(FailureClass.HOST_OOM), provisional=True))

    async def failed(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: f"resumed, differs: global batch: {text}" in pane(app, "card"), "the card")

    drive(rec.close(), failed)
