"""What stands in the panes beside the charts: GPUs, ranks, and what pre-flight found wanting."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from supervisor.run import events as ev
from supervisor.run.series import GPU, HOST
from supervisor.views.tui.app import StokerApp
from tests.views.tui.driving import drive, pane
from tests.views.tui.recording import GIB, Recording


@pytest.mark.parametrize("others_bytes", [5 * GIB, 0.0])
def test_a_shared_gpu_is_advised_of_while_it_is_shared(tmp_path: Path, others_bytes: float) -> None:
    rec = Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 5)
    said = "GPU 1 is shared: process 4711 (python) of alice holds 5.0 GiB of its memory"
    rec.fact(ev.Advisory(t=rec.t, attempt=1, code="gpu_shared_1", text=said))
    rec.series.append(GPU, rec.t, "1", 1, {"own_memory_bytes": GIB, "others_memory_bytes": others_bytes})

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert (said in pane(app, "notice")) == bool(others_bytes)
        await pilot.press("a")
        assert said in pane(app, "advisories"), "the page keeps it"

    drive(rec.close(), play)


def test_a_rank_that_lives_and_does_not_step_grows_old(tmp_path: Path) -> None:
    rec = Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 5)
    for rank in "01":
        rec.series.append(HOST, rec.t + 40, rank, 1, {"cpu_ratio": 1.0, "rss_bytes": GIB})

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert pane(app, "ranks").count("42 s") == 2

    drive(rec.close(), play, later_s=42.0)
