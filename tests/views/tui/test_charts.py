"""A chart is zoomed, moved and read by keys, wheel and mouse; what was not a number is shown as that."""

from __future__ import annotations

import math
import re
from pathlib import Path

from textual.pilot import Pilot

from supervisor.run import events as ev
from supervisor.run.series import METRICS
from supervisor.views.tui.app import StokerApp
from tests.views.tui import recorded
from tests.views.tui.driving import drive, pane, shown, until


def title(app: StokerApp) -> str:
    return pane(app, "loss").splitlines()[0]


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
        head, top = pane(app, "loss").splitlines()[:2]
        assert "nan, inf at step 51, last " in head
        assert "∞" in top
        assert "×" in top
        await pilot.press("1", "right")
        assert "step 53  nan" in pane(app, "loss").splitlines()[0], "the cursor reads it too"
        await pilot.press("escape", "M")
        await until(pilot, lambda: "grad_norm" in shown(app), "the charts")
        for found in (r"loss ─+ nan ╮", r"grad_norm ─+ inf ╮"):
            assert re.search(found, shown(app)), shown(app)

    drive(rec.close(), play)


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
