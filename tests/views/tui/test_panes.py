"""What stands in the panes beside the charts: GPUs, ranks, and what pre-flight found wanting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.series import GPU, HOST
from supervisor.views.tui.app import StokerApp
from tests.views.tui import recorded
from tests.views.tui.driving import drive, pane, shown, until
from tests.views.tui.recording import GIB, Recording


class Shared(Recording):
    """A run whose second GPU somebody else uses too."""

    def fact(self, event: ev.Event) -> None:
        super().fact(event)
        if isinstance(event, ev.NoteAdded):
            values: dict[str, float | None] = {
                "util_ratio": 0.9,
                "memory_used_bytes": 50 * GIB,
                "memory_total_bytes": 80 * GIB,
                "own_memory_bytes": 44 * GIB,
                "others_memory_bytes": 5 * GIB,
                "others_pid": 4711.0,
            }
            self.series.append(GPU, self.t, "1", self.number, values)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_shared_gpu_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    monkeypatch.setattr(recorded, "Recording", Shared)
    run = recorded.healthy(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        devices = pane(app, "devices").splitlines()
        assert [line for line in devices if "5.0G pid 4711" in line] == [
            line for line in devices if line.lstrip("│ ").startswith("GPU 1")
        ]

    drive(run, play, size=size)


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


def test_a_stall_is_counted_and_promises_no_end(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "No progress for 12 s: 1 rank in all_reduce" in pane(app, "notice")
        assert "ETA --:--:--" in pane(app, "header")

    drive(recorded.stalled(tmp_path / "run"), play)


@pytest.mark.parametrize("opens", ["v", "L", "M", "question_mark", "slash", "colon"])
@pytest.mark.parametrize("state", [recorded.succeeded, recorded.held])
def test_what_was_covered_is_there_again(
    tmp_path: Path, state: Callable[[Path], RunPaths], opens: str
) -> None:
    """Of a run in which nothing moves any more no tick paints what a page has covered."""
    run = state(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("4")
        await pilot.pause()
        before = shown(app).splitlines()[3:-3]
        for _ in range(2):
            await pilot.press(opens)
            await pilot.pause()
            await pilot.press("escape")
            await until(pilot, lambda: shown(app).splitlines()[3:-3] == before, "the same dashboard")

    drive(run, play)
