# ruff: noqa: INP001 - a script, not a package
"""Draw the pictures of the documentation from recorded runs: ``python docs/pictures.py [FOLDER]``.

The recordings come from tests/views/tui/recorded.py and the clock stands still, so the same code draws the same
pictures. They fetch no font (scripts/terminal_svg.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # tests/ is no installed package

from rich.color_triplet import ColorTriplet  # noqa: E402

from scripts.terminal_svg import Frame, picture, rows_of  # noqa: E402
from supervisor.run.paths import RunPaths  # noqa: E402
from supervisor.views.appearance import Appearance, ThemeName  # noqa: E402
from supervisor.views.tui.app import StokerApp  # noqa: E402
from tests.views.tui import recorded  # noqa: E402
from tests.views.tui.camera import (  # noqa: E402
    NAME,
    Shot,
    browsed,
    opened,
    photograph,
    press,
    replayed,
    run_app,
    shown_in_colour,
    some_runs,
)
from tests.views.tui.driving import keeper_of, until  # noqa: E402

DARK = Appearance(ThemeName.DARK)


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture: what is opened (an app, and the run that has a keeper), its size in cells, what is pressed."""

    shot: Shot
    opens: Callable[[Path], tuple[StokerApp, RunPaths | None]]
    size: tuple[int, int] = (120, 36)


def live(
    recording: Callable[[Path], RunPaths], taste: Appearance = DARK
) -> Callable[[Path], tuple[StokerApp, RunPaths | None]]:
    """A run that has a keeper."""

    def opens(folder: Path) -> tuple[StokerApp, RunPaths | None]:
        run = recording(folder / NAME)
        return run_app(run, taste), run

    return opens


def runs(folder: Path) -> tuple[StokerApp, RunPaths | None]:
    """The list of runs; the first has a keeper."""
    found = some_runs(folder)
    return browsed(found, DARK), found[0]


def replay(folder: Path) -> tuple[StokerApp, RunPaths | None]:
    """A finished run, played."""
    return replayed(recorded.succeeded(folder / NAME), DARK, 0.6), None


PICTURES = (
    Picture(Shot("dashboard"), live(recorded.healthy)),
    Picture(Shot("failure"), live(recorded.backing_off)),
    Picture(Shot("why", ("v",), ("cause", "what followed")), live(recorded.backing_off), (120, 40)),
    Picture(Shot("smaller-batch", ("b",), ("per rank",)), live(recorded.held)),
    Picture(Shot("edit", ("e", "= --warmup 200"), ("+ --warmup 200",)), live(recorded.held)),
    Picture(Shot("metrics", ("M",), ("grad_norm",)), live(recorded.healthy)),
    Picture(Shot("advisories", ("a",), ("No progress",)), live(recorded.stalled), (120, 20)),
    Picture(Shot("log", ("L",), ("merged by arrival",)), live(recorded.backing_off), (120, 28)),
    Picture(Shot("replay", (), ("stepping",)), replay),
    Picture(Shot("runs", (), ("NameError",)), runs, (120, 16)),
    Picture(Shot("compare", ("space", "G", "space", "k", "c"), ("able-ant", "c mild-moth")), runs),
    Picture(Shot("help", ("question_mark",), ("Esc closes",)), live(recorded.healthy), (120, 40)),
    Picture(Shot("small-terminal"), live(recorded.healthy), (80, 24)),
    Picture(Shot("many-ranks"), live(recorded.many), (200, 50)),
    Picture(Shot("light"), live(recorded.healthy, Appearance(ThemeName.LIGHT))),
)


async def draw(wanted: Picture, app: StokerApp) -> str:
    """The picture as SVG."""
    async with app.run_test(size=wanted.size) as pilot:
        await until(pilot, lambda: opened(app), "the first screen")
        await pilot.pause()
        await press(pilot, wanted.shot.keys)
        await photograph(app, pilot, wanted.shot)
        rows = rows_of(shown_in_colour(app), wanted.size[0])
        page = ColorTriplet(*app.screen.background_colors[1].rgb)
        return picture([Frame(rows, 1.0)], wanted.size[0], "stoker", page=page)


def main(folder: Path) -> None:
    """Draw all of them into `folder`."""
    folder = folder.absolute()
    os.environ["TZ"] = "UTC"
    time.tzset()
    folder.mkdir(parents=True, exist_ok=True)
    for wanted in PICTURES:
        # Relative paths, as in a project of one's own: no picture shows a name that changes.
        with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
            app, run = wanted.opens(Path("runs"))
            with keeper_of(run) if run is not None else contextlib.nullcontext():
                svg = asyncio.run(draw(wanted, app))
        path = folder / f"{wanted.shot.name}.svg"
        path.write_text(svg, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures")
