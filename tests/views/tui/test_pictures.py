"""Pictures of each state at three sizes, compared cell by cell with those kept in __snapshots__.

A difference is a question, not an error: look at snapshot_report.html, then ``pytest --snapshot-update``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytest_textual_snapshot import SVGImageExtension  # type: ignore[import-untyped]
from syrupy.assertion import SnapshotAssertion
from textual.pilot import Pilot

from supervisor.run.paths import RunPaths
from supervisor.views.appearance import Appearance, ThemeName
from supervisor.views.tui.app import StokerApp
from tests.views.tui import recorded
from tests.views.tui.camera import NAME, Shot, replayed, run_app, shoot, stand_still
from tests.views.tui.driving import clock_after, is_read, keeper_of, until

SIZES = [(80, 24), (120, 40), (200, 50)]
STATES: dict[str, Callable[[Path], RunPaths]] = {
    "healthy": recorded.healthy,
    "cpu": recorded.healthy_cpu,
    "backing_off": recorded.backing_off,
    "held": recorded.held,
    "succeeded": recorded.succeeded,
    "failed": recorded.failed,
}


def compare(
    snap_compare: Any,
    run: RunPaths,
    size: tuple[int, int],
) -> None:
    """Compare the app on a run with its kept picture, at a size."""
    app = StokerApp(run, clock=clock_after(run))

    async def settle(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: is_read(app), "the whole of the run")
        await pilot.pause()
        await stand_still(app, pilot)

    with keeper_of(run):
        assert snap_compare(app, terminal_size=size, run_before=settle)


SMALL, USUAL, LARGE = SIZES
SHOWN = [
    *((state, SMALL) for state in ("healthy", "held")),
    *((state, USUAL) for state in STATES),
    ("backing_off", LARGE),
]


def named(value: object) -> str:
    """A state, or a size as 80x24."""
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize(("state", "size"), SHOWN, ids=named)
def test_state(snap_compare: Any, tmp_path: Path, state: str, size: tuple[int, int]) -> None:
    compare(snap_compare, STATES[state](tmp_path / "20261121-1412-brave-otter"), size)


def test_observed_log(snap_compare: Any, tmp_path: Path) -> None:
    run = recorded.observed(tmp_path / "20261121-1412-calm-crane", tmp_path / "train.log")
    compare(snap_compare, run, (120, 40))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the same name at any time: pages show paths."""
    monkeypatch.chdir(tmp_path)
    return Path("runs")


def keep_all(snapshot: SnapshotAssertion, pictures: dict[str, str]) -> None:
    """Compare pictures with those kept; all that differ are named at once."""
    kept = snapshot.use_extension(SVGImageExtension)
    assert [name for name, svg in pictures.items() if kept(name=name) != svg] == []


PAGES = (
    Shot("metrics", ("M",), ("grad_norm",)),
    Shot("advisories", ("a",), ("num_workers",)),
    Shot("processes", ("p",), ("torchrun",)),
    Shot("preflight", ("P",), ("interpreter",)),
    Shot("settings", ("i",), ("command",)),
)
OVER_IT = (
    Shot("edit", ("e",), ("what follows",)),
    Shot("palette", ("colon", "=lo"), ("any size",)),
)
DARK = (ThemeName.DARK,)


def test_pages(snapshot: SnapshotAssertion, runs: Path) -> None:
    run = recorded.healthy(runs / NAME)
    keep_all(snapshot, shoot(run_app(run, Appearance()), run, PAGES, [USUAL], DARK))


def test_what_asks(snapshot: SnapshotAssertion, runs: Path) -> None:
    run = recorded.held(runs / NAME)
    keep_all(snapshot, shoot(run_app(run, Appearance()), run, OVER_IT, [USUAL], DARK))


def test_failure_page_and_log(snapshot: SnapshotAssertion, runs: Path) -> None:
    run = recorded.backing_off(runs / NAME)
    shots = (Shot("failure", ("v",), ("cause", "what followed")), Shot("log", ("L",), ("step", "line")))
    keep_all(snapshot, shoot(run_app(run, Appearance()), run, shots, [USUAL], DARK))


def test_replay(snapshot: SnapshotAssertion, runs: Path) -> None:
    app = replayed(recorded.succeeded(runs / NAME), Appearance(), 0.6)
    keep_all(snapshot, shoot(app, None, (Shot("replay", (), ("stepping",)),), [USUAL], DARK))


@pytest.mark.parametrize(
    ("state", "appearance"),
    [("healthy", Appearance(ThemeName.SAFE)), ("backing_off", Appearance(ascii=True))],
    ids=["safe", "ascii"],
)
def test_other_tastes(
    snapshot: SnapshotAssertion, tmp_path: Path, state: str, appearance: Appearance
) -> None:
    run = STATES[state](tmp_path / NAME)
    keep_all(snapshot, shoot(run_app(run, appearance), run, (Shot(state),), [USUAL]))
