"""The screens in Chinese: nothing of ours is left in English, columns line up, pictures at two sizes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from supervisor.run.paths import RunPaths
from supervisor.views.appearance import Appearance, Lang
from supervisor.views.tui.app import StokerApp
from tests.views.tui import recorded
from tests.views.tui.camera import stand_still
from tests.views.tui.chinese import InOwnWords
from tests.views.tui.driving import clock_after, is_read, keeper_of, pane, shown, until

STATES: dict[str, Callable[[Path], RunPaths]] = {
    "healthy": recorded.healthy,
    "cpu": recorded.healthy_cpu,
    "backing_off": recorded.backing_off,
    "held": recorded.held,
    "succeeded": recorded.succeeded,
    "failed": recorded.failed,
    "empty": recorded.empty,
}
NAME = "20261121-1412-brave-otter"
# Words that Chinese engineers leave as they are, names of keys, and what the recorded job is called.
KEPT = frozenset(
    """stoker brave otter gpt d12 rank GPU RAM CPU cpu pid ms tok lr ETA OOM MHz shm keeper torchrun Space Enter Esc
    worker SIGTERM bf16 num_workers pin_memory persistent_workers device_batch_size TORCH_COMPILE_DISABLE cuda_oom
    code_error MiB GiB train""".split()  # noqa: SIM905 - a list of words is read as words
)


@pytest.fixture(autouse=True)
def _in_the_products_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "Recording", InOwnWords)


def app_of(run: RunPaths) -> StokerApp:
    return StokerApp(run, clock=clock_after(run), appearance=Appearance(lang=Lang.ZH))


def after(
    run: RunPaths, size: tuple[int, int], keys: tuple[str, ...], look: Callable[[StokerApp], None]
) -> None:
    """Open a run in Chinese, press keys, look."""
    app = app_of(run)

    async def play() -> None:
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: is_read(app), "the whole of the run")
            await pilot.pause()
            await pilot.press(*keys)
            await pilot.pause()
            look(app)

    with keeper_of(run):
        asyncio.run(play())


def english_in(text: str) -> set[str]:
    """Words that are neither kept nor parts of evidence (after its dash), notes, paths, flags and assignments."""
    bare = re.sub(r"[—].*|备注：.*|\S*/\S+|--[\w-]+|\S+=\S*|`[^`]*`|\S+\.py\S*", " ", text)
    return {word for word in re.findall(r"[A-Za-z][A-Za-z_0-9]+", bare) if word not in KEPT}


def ours(app: StokerApp) -> str:
    """The dashboard's own text: not the log's lines, not those of the cause."""
    names = (
        "header",
        "loss",
        "util",
        "memory",
        "devices",
        "ranks",
        "attempts",
        "tiles",
        "timeline",
        "notice",
    )
    panes = [pane(app, name) for name in (*names, "footer")]
    return "\n".join(panes)


@pytest.mark.parametrize("state", STATES)
def test_nothing_of_the_dashboard_is_left_in_english(tmp_path: Path, state: str) -> None:
    def look(app: StokerApp) -> None:
        assert english_in(ours(app)) <= {"DataLoader", "bus", "code", "error", "docker", "run"}, (
            "what to do about shm"
        )
        log = pane(app, "log").splitlines()
        assert "日志" in log[0] or not log

    after(STATES[state](tmp_path / NAME), (200, 50), (), look)


def test_help_and_dialogs_are_in_chinese(tmp_path: Path) -> None:
    root = tmp_path / NAME

    def help_(app: StokerApp) -> None:
        lines = shown(app).splitlines()
        assert any("换微批次重启" in line for line in lines)

    def batch(app: StokerApp) -> None:
        text = shown(app)
        assert "换批次重启" in text
        assert "微批次 8 → 4，累积 4 → 8，全局批次 64 不变" in text
        assert "这会在第 1 840+ 步结束第 2 次尝试；下一次从第 1 800 步的检查点" in text

    def stop(app: StokerApp) -> None:
        assert "停止？可能丢失：第 1 800 步检查点之后的 40 步" in shown(app)

    run = recorded.healthy(root)
    after(run, (120, 40), ("question_mark",), help_)
    after(run, (120, 40), ("b",), batch)
    after(run, (120, 40), ("s",), stop)


def test_the_list_of_runs_is_in_chinese(tmp_path: Path) -> None:
    runs = [state(tmp_path / f"20261121-141{at}-brave-otter") for at, state in enumerate(STATES.values())]
    app = StokerApp(None, known=lambda: runs, clock=clock_after(runs[0]), appearance=Appearance(lang=Lang.ZH))

    async def play() -> None:
        async with app.run_test(size=(120, 24)) as pilot:
            browser = app.browser
            assert browser is not None
            await until(pilot, lambda: browser.panel.list is not None and browser.panel.list.complete, "runs")
            await pilot.pause()
            listed = shown(app)
            assert not english_in(listed.replace("lr looks high", "")), "all but what a person wrote"
            assert "? 无监督进程" in listed
            assert "按最新" in listed
            await pilot.press("x")
            await pilot.pause()
            assert not english_in(shown(app).replace("lr looks high", ""))

    asyncio.run(play())


def test_plain_ascii_is_english_and_says_so(tmp_path: Path) -> None:
    run = recorded.empty(tmp_path / NAME)
    app = StokerApp(run, clock=clock_after(run), appearance=Appearance(ascii=True, lang=Lang.ZH))
    assert app.tr("elapsed") == "elapsed"

    async def play() -> None:
        async with app.run_test(size=(120, 40), notifications=True) as pilot:
            await until(pilot, lambda: "Chinese cannot be written in" in shown(app), "the remark")
            assert shown(app).isascii()

    asyncio.run(play())


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(
    ("state", "keys"),
    [
        ("healthy", ()),
        ("backing_off", ()),
        ("held", ("v",)),
        ("healthy", ("question_mark",)),
        ("healthy", ("b",)),
    ],
    ids=["dashboard", "card", "failure", "help", "batch"],
)
def test_picture(
    snap_compare: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    keys: tuple[str, ...],
    size: tuple[int, int],
) -> None:
    monkeypatch.chdir(tmp_path)  # the failure page shows a path, which must be the same everywhere
    run = STATES[state](Path(NAME))
    app = app_of(run)

    async def settle(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: is_read(app), "the whole of the run")
        await pilot.pause()
        await pilot.press(*keys)
        await pilot.pause()
        await stand_still(app, pilot)

    with keeper_of(run):
        assert snap_compare(app, terminal_size=size, run_before=settle)
