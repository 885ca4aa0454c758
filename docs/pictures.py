# ruff: noqa: INP001 - a script, not a package
"""Draw the pictures of the documentation from recorded runs: ``python docs/pictures.py [FOLDER]``.

The recordings come from tests/tui/recorded.py and the clock stands still, so the same code draws the same
pictures.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # tests/ is no installed package

from textual.pilot import Pilot  # noqa: E402

from supervisor.run.paths import RunPaths  # noqa: E402
from supervisor.views.taste import Taste, ThemeName  # noqa: E402
from supervisor.views.tui.app import StokerApp  # noqa: E402
from tests.tui import recorded  # noqa: E402
from tests.tui.driving import clock_after, keeper_of, until  # noqa: E402


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture: a recorded run, a size in cells, the keys pressed before it is taken."""

    name: str
    recording: Callable[[Path], RunPaths]
    size: tuple[int, int] = (120, 40)
    keys: tuple[str, ...] = ()
    light: bool = False


PICTURES = (
    Picture("dashboard", recorded.healthy, (120, 36)),
    Picture("failure", recorded.backing_off, (120, 36)),
    Picture("smaller-batch", recorded.held, (120, 36), ("b",)),
    Picture("small-terminal", recorded.healthy, (80, 24)),
    Picture("many-ranks", recorded.many, (200, 50)),
    Picture("light", recorded.healthy, (120, 36), light=True),
)


async def draw(picture: Picture, run: RunPaths) -> str:
    """The picture as SVG."""
    app = StokerApp(run, clock=clock_after(run), taste=Taste(ThemeName.LIGHT if picture.light else None))
    async with app.run_test(size=picture.size) as pilot:
        await _settle(app, pilot)
        await pilot.press(*picture.keys)
        await pilot.pause()
        return app.export_screenshot(title="stoker")


async def _settle(app: StokerApp, pilot: Pilot[None]) -> None:
    await until(pilot, lambda: app.dashboard.snapshot is not None, "the first snapshot")
    await pilot.pause()


def main(folder: Path) -> None:
    """Draw all of them into `folder`."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    folder.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        with tempfile.TemporaryDirectory() as scratch:
            run = picture.recording(Path(scratch) / "20261121-1412-brave-otter")
            with keeper_of(run):
                svg = asyncio.run(draw(picture, run))
        (folder / f"{picture.name}.svg").write_text(svg, encoding="utf-8")
        print(folder / f"{picture.name}.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures")
