"""A job of one process that somebody else started, attached by its pid."""

from __future__ import annotations

from pathlib import Path

from textual.pilot import Pilot

from supervisor.run import events as ev
from supervisor.run.series import HOST, METRICS
from supervisor.views.tui.app import StokerApp
from tests.views.tui.driving import drive, pane
from tests.views.tui.recording import Recording


def test_the_one_rank_has_the_step_of_the_job(tmp_path: Path) -> None:
    rec = Recording(tmp_path / "run", name="train.py", mode="observed", gpus=0, total_steps=None)
    rec.number = 1
    rec.fact(ev.LaunchIntended(t=rec.t, attempt=1, argv=(), reason="watching train.py"))
    rec.fact(ev.AttemptStarted(t=rec.t, attempt=1, pid=0, start_time=0.0))
    rec.fact(ev.RankStarted(t=rec.t, attempt=1, local_rank=0, rank=0))
    for step in (72, 73):
        rec.t += 5
        rec.series.append(METRICS, rec.t, "job", 1, {"step": step, "loss": 2.0})
        rec.series.append(HOST, rec.t, "0", 1, {"cpu_ratio": 0.9, "rss_bytes": 1e9, "threads": 4.0})
        rec.fact(ev.Progress(t=rec.t, attempt=1, step=step, loss=2.0))

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "73" in pane(app, "ranks")

    drive(rec.close(), play)
