"""The key A on runs whose keeper is gone: of a real one what lives is taken over, of a forged one nothing is done."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from supervisor.cli.open_app import adopter
from supervisor.keeper.process.members import find_members
from supervisor.run.journal import read_state
from supervisor.run.ownership import keeper_is_alive
from supervisor.run.paths import RunPaths
from supervisor.run.state import Finished
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.dashboard.acting import KEYS
from supervisor.views.tui.shell.prompts import OfferScreen
from tests.conftest import wait_until
from tests.integration.harness import environment, stoker, wait_for_state
from tests.integration.test_forged_folders import (
    BACKOFF,
    ENDED,
    GONE,
    STEPS,
    Scene,
    contents,
    copied,
    forged,
    names_stranger,
    no_child,
    scene,
    trains,
)
from tests.tiers import first
from tests.views.tui.driving import offered, pane, shown, until

__all__ = ["no_child", "scene", "trains"]
pytestmark = pytest.mark.timeout(300)

FORGED: dict[str, Callable[[Scene], Path]] = {
    "about to restart": lambda scene: forged(scene, *ENDED, BACKOFF),
    "launching": lambda scene: forged(scene, GONE[0]),
    "names a stranger": names_stranger,
    "a copy of hard links": lambda scene: copied(scene, "-al"),
}
ACTS = [key for binding in KEYS for key in binding.key.split(",") if (binding.id or "").startswith("act.")]  # type: ignore[union-attr]  # ours are bindings


@pytest.mark.parametrize("name", first(1, FORGED))
def test_no_key_acts_on_a_forged_run(
    scene: Scene, name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    folder = FORGED[name](scene)
    before = contents(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(scene.place.parent / "state"))
    request.getfixturevalue("no_child")
    app = StokerApp(RunPaths(folder), adopter=adopter(os.environ))

    async def play() -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: app.dashboard.snapshot is not None, "the run")
            assert len(ACTS) > 8
            for key in ACTS:
                await pilot.press(key)
                await pilot.pause(0.05)
                assert not isinstance(app.screen, OfferScreen)
                await pilot.press("y", "enter", "escape")
            if name != "a copy of hard links":
                await pilot.press("A")
                await until(pilot, lambda: "not adopted: " in pane(app, "notice"), "the refusal")
            await pilot.pause(0.3)

    asyncio.run(play())
    now = contents(folder)
    assert now.keys() == before.keys()
    assert name == "a copy of hard links" or now == before
    assert not (scene.place / "pwned").exists()
    assert not list(scene.live.control.iterdir())


def is_looked_after(app: StokerApp) -> bool:
    """Whether the screen knows that a keeper holds the run."""
    return app.dashboard.snapshot is not None and app.dashboard.snapshot.keeper_alive


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_real_orphan_is_taken_over_once_it_was_said_what_that_does(tmp_path: Path) -> None:
    done = stoker("run", "--detach", "--python", sys.executable, "--", "sh", "-c", STEPS, cwd=tmp_path)
    assert done.code == 0, done.err
    run = RunPaths(tmp_path / "runs" / done.out.strip())
    assert wait_until(lambda: find_members(str(run.root)).ours, 30)
    keeper = read_state(run.node().journal).keeper_pid
    assert keeper is not None
    os.kill(keeper, signal.SIGKILL)
    assert wait_until(lambda: not keeper_is_alive(run.node().lock), 30)
    ours = find_members(str(run.root)).ours
    app = StokerApp(run, adopter=adopter(environment()))

    async def play() -> None:
        async with app.run_test(size=(160, 40)) as pilot:
            await until(pilot, lambda: "A adopts the run" in pane(app, "notice"), "the notice")
            await asked(pilot)
            await pilot.press("n")
            assert not keeper_is_alive(run.node().lock)
            await asked(pilot)
            await pilot.press("y")
            await until(pilot, lambda: is_looked_after(app), "the new keeper")
            await pilot.press("s", "y")
            await until(pilot, lambda: read_state(run.node().journal).is_over, "the end")

    async def asked(pilot: Pilot[None]) -> None:
        await pilot.press("A")
        await offered(app, pilot)
        text = shown(app)
        assert all(f"{process.pid} (" in text for process in ours[:2])
        assert "starts a new supervisor process on this host" in text
        assert "restart it by the run's policy" in text

    asyncio.run(play())
    state = wait_for_state(run, Finished)
    assert len(state.attempts) == 1
    assert state.keeper_pid != keeper
