"""A terminal of 40 by 12 cells: what happened and what can be pressed are in sight, and nothing lies over anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from supervisor.views.tui.app import StokerApp
from tests.views.tui import recorded
from tests.views.tui.driving import drive, shown, until

SMALL = (40, 12)


@pytest.mark.parametrize(
    ("state", "head", "headline", "keys"),
    [
        ("healthy", "● stepping", "step  1840", ("? help", "s stop", "q leave")),
        ("held", "‖ waiting for you", "rank 1 ran out of GPU memory", ("[Enter accept]", "q leave")),
        ("failed", "✗ failed", "NameError: name 'los'", ("[v why]", "? help", "q leave")),
    ],
)
def test_the_state_the_headline_and_the_keys_are_in_sight(
    tmp_path: Path, state: str, head: str, headline: str, keys: tuple[str, ...]
) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: headline in shown(app), headline)
        lines = shown(app).splitlines()
        assert len(lines) == SMALL[1]
        assert head in lines[0]
        assert all(key in lines[-1] for key in keys), lines[-1]
        tops, bottoms = shown(app).count("╭"), shown(app).count("╰")
        assert tops == bottoms == 1, "one pane, whole"

    drive(getattr(recorded, state)(tmp_path / "20261121-1412-brave-otter"), play, size=SMALL)
