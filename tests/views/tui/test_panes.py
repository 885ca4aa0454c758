"""What stands in the panes beside the charts: GPUs, ranks, and what pre-flight found wanting."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.records import Finding, FindingLevel
from supervisor.run.series import GPU, HOST
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.dashboard.devices import expected_memory_bytes
from supervisor.views.tui.dashboard.ranks import ORDERS
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


def test_memory_is_shown_against_what_was_expected(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        snapshot = app.dashboard.snapshot
        assert snapshot is not None
        # 16 samples took 79.2 GiB, 6.4 of them before the first: 8 samples take 6.4 + 72.8 / 2.
        assert expected_memory_bytes(snapshot.state) == pytest.approx(42.8 * GIB)
        devices = pane(app, "devices")
        assert "expected 42.8G a rank" in devices
        assert devices.count("┃") == 3, "a mark on each bar, and what it means"

    drive(run, play)


def test_nothing_is_expected_where_nothing_was_measured(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "expected" not in pane(app, "devices")
        assert "┃" not in pane(app, "devices")

    drive(recorded.many(tmp_path / "run"), play)


def test_last_line_of_a_rank_stands_beside_it_or_below(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("3")
        assert pane(app, "ranks").splitlines()[-2].startswith("│rank 0  step  1840 | loss")
        await pilot.press("j")
        assert pane(app, "ranks").splitlines()[-2].startswith("│rank 1  step  1840 | loss")
        await pilot.resize_terminal(200, 50)
        await until(pilot, lambda: "last line" in pane(app, "ranks"), "the column")
        assert all("step  1840 | loss" in line for line in pane(app, "ranks").splitlines()[2:4])

    drive(run, play, size=(80, 24))


def test_the_last_line_of_a_rank_hides_no_rank(tmp_path: Path) -> None:
    rec = Recording(tmp_path / "run", ranks=4, gpus=0)
    rec.launch("first start")
    rec.steps(1, 20)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "20" in pane(app, "ranks").splitlines()[5]
        await pilot.press("3", "j")
        shown = pane(app, "ranks").splitlines()
        assert [line.split()[1] for line in shown[2:6]] == ["0", "1", "2", "3"]
        assert "loss" not in shown[5]

    drive(rec.close(), play, size=(120, 40))


def test_a_rank_that_lives_and_does_not_step_grows_old(tmp_path: Path) -> None:
    rec = Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 5)
    for rank in "01":
        rec.series.append(HOST, rec.t + 40, rank, 1, {"cpu_ratio": 1.0, "rss_bytes": GIB})

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert pane(app, "ranks").count("42 s") == 2

    drive(rec.close(), play, later_s=42.0)


def test_ranks_are_sorted_by_every_column(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")
    shown = set(ORDERS) - {"compute", "peak"}  # which no rank of this run reports

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("3", "z")
        seen = set()
        for _ in ORDERS:
            await pilot.press("o")
            seen.add(app.dashboard.ranks_panel.by)
            assert len([line for line in pane(app, "ranks").splitlines() if "stepping" in line]) == 2
        assert seen == shown
        app.dashboard.ranks_panel.sort_by("skew")
        assert pane(app, "ranks").splitlines()[2].startswith("│    1 "), "the slow one first"

    drive(run, play, size=(200, 50))


def test_a_stall_is_counted_and_promises_no_end(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "No progress for 12 s: 1 rank in all_reduce" in pane(app, "notice")
        assert "ETA --:--:--" in pane(app, "header")

    drive(recorded.stalled(tmp_path / "run"), play)


NOT_RESTARTED = Finding(
    FindingLevel.WARNING,
    "restarts",
    "no smaller restart after out of memory: no accumulation is known beside --batch_size "
    "(--accumulation-knob, or --allow-smaller-global); "
    "no restart after a crash beyond the first step: no resume flag is known (--resume-knob)",
)


def begun(root: Path, attempts: int) -> RunPaths:
    """A run that was found wanting before its launch."""
    rec = Recording(root)
    rec.fact(ev.PreflightFound(t=rec.t, finding=NOT_RESTARTED))
    for _ in range(attempts):
        rec.launch("first start")
    return rec.close()


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("attempts", [0, 1])
def test_what_is_wanting_is_said_at_the_start(tmp_path: Path, size: tuple[int, int], attempts: int) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "/dev/shm has 64 MiB" in pane(app, "notice")
        assert "1 more P why" in pane(app, "notice")
        if size[1] > 24:
            assert "--resume-knob" in pane(app, "loss")

    drive(begun(tmp_path / "run", attempts), play, size=size)


@pytest.mark.parametrize(("attempts", "later_s"), [(2, 2.0), (1, 700.0)])
def test_it_is_not_said_for_ever(tmp_path: Path, attempts: int, later_s: float) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "/dev/shm" not in pane(app, "notice")

    drive(begun(tmp_path / "run", attempts), play, later_s=later_s)


def test_missing_flags_are_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.views.tui.recording.FINDINGS", ())

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        wanted = "⚠ some failures will not restart: add --accumulation-knob, --resume-knob"
        assert wanted in pane(app, "notice")

    drive(begun(tmp_path / "run", 1), play, size=(80, 24))


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


@pytest.mark.parametrize("opens", ["M", "z"])
def test_what_came_behind_a_page_is_there_when_it_closes(tmp_path: Path, opens: str) -> None:
    rec = Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 20)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("3", opens)
        await pilot.pause()
        rec.steps(21, 40)
        rec.say(0, "the last line of all")
        rec.series.close()
        await until(
            pilot, lambda: re.search(r"step +40\b", shown(app)) is not None, "the last step in the header"
        )
        await pilot.press("escape")
        await until(pilot, lambda: "the last line of all" in pane(app, "log"), "the line")
        await until(pilot, lambda: " 40 " in pane(app, "ranks"), "the ranks' step")

    drive(rec.run, play)


def test_the_ranks_pane_says_how_long_the_others_wait_for_the_slow_one(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(1, 100)
    rec.fact(ev.SlowRankFound(t=rec.t, attempt=1, rank=1, lost_s=0.371, step_s=0.512))

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "⚠ slow: 1, others wait 371ms" in pane(app, "ranks").splitlines()[0]
        assert "+371ms" in pane(app, "ranks")

    drive(rec.close(), play)
