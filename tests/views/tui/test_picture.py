"""The first picture of a run: everything in it stands where the app puts it, in the app's colours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pyte
import pytest
from rich.color import Color, ColorSystem
from textual.pilot import Pilot

from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.records import Finding, FindingLevel
from supervisor.views.appearance import ThemeName
from supervisor.views.palette import PALETTES, Palette, chosen
from supervisor.views.splash.first_look import run_scene, runs_scene, start_scene
from supervisor.views.splash.picture import Depth, Look, depth_of, paint
from supervisor.views.tui.app import StokerApp
from supervisor.views.wording.translate import english
from tests.views.tui import recorded
from tests.views.tui.driving import drive, shown, until

DARK = Look(chosen(None, None), Depth.TRUE)
EDGES = frozenset("╭╮╰╯│")
SIZES = [(200, 50), (160, 45), (121, 41), (100, 30), (80, 24)]


def observed(root: Path) -> RunPaths:
    log = root.with_suffix(".log")
    log.write_text("step 1 loss 2.5\n", encoding="utf-8")
    return recorded.observed(root, log)


def screen_of(scene_text: str, size: tuple[int, int]) -> pyte.Screen:
    screen = pyte.Screen(*size)
    pyte.Stream(screen).feed("\x1b[?7l" + scene_text)
    return screen


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "make", [recorded.healthy, recorded.healthy_cpu, recorded.many, recorded.stalled, observed]
)
def test_nothing_in_it_moves_when_the_app_comes(
    tmp_path: Path, make: Callable[[Path], RunPaths], size: tuple[int, int]
) -> None:
    run = make(tmp_path / "20261121-0000-brave-otter")
    scene = run_scene(run, read_state(run.node().journal), english)
    screen = screen_of(paint(scene, DARK, *size), size)
    rows: list[str] = []

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        rows.extend(shown(app).splitlines())

    drive(run, play, size=size)
    edges = 0
    for y, (mine, its) in enumerate(zip(screen.display, rows, strict=True)):
        for x, char in enumerate(mine):
            if char in EDGES:
                edges += 1
                assert its[x : x + 1] == char, f"{make.__name__} {size} at {x},{y}:\n{mine}\n{its}"
    assert edges > 10
    # A wide header has more to the right of what is known; what is known is its beginning.
    for y in (0, 1):
        assert rows[y].startswith(screen.display[y].rstrip())
        assert screen.display[y].strip()


def test_the_list_of_runs_begins_as_it_goes_on(tmp_path: Path) -> None:
    recorded.healthy(tmp_path / "20261121-0000-brave-otter")
    screen = screen_of(paint(runs_scene(english), DARK, 120, 40), (120, 40))
    app = StokerApp(None, known=lambda: [RunPaths(tmp_path / "20261121-0000-brave-otter")])
    rows: list[str] = []

    async def play() -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: "brave-otter" in shown(app), "the run")
            rows.extend(shown(app).splitlines())

    asyncio.run(play())
    assert rows[0].startswith("╭ runs ")
    assert screen.display[0].startswith("╭ runs ─")
    for mine, its in zip(screen.display[1:], rows[1:], strict=True):
        assert all(a == b for a, b in zip(mine, its, strict=True) if a in EDGES)


@pytest.mark.parametrize("make", [recorded.failed, recorded.held, recorded.backing_off])
def test_where_a_card_may_stand_no_frame_is_promised(
    tmp_path: Path, make: Callable[[Path], RunPaths]
) -> None:
    run = make(tmp_path / "run")
    scene = run_scene(run, read_state(run.node().journal), english)
    assert scene.needs is None
    assert not EDGES & set("".join(screen_of(paint(scene, DARK, 120, 40), (120, 40)).display))


def test_a_start_says_what_is_known_and_what_is_found() -> None:
    finding = Finding(FindingLevel.WARNING, "shared memory", "only 64 MiB free in /dev/shm")
    before = paint(start_scene("gpt", "train.py --lr 1", (), english), DARK, 120, 40)
    after = paint(start_scene("gpt", "train.py --lr 1", (finding,), english), DARK, 120, 40)
    screen = screen_of(before, (120, 40))
    assert "○ starting" in screen.display[0]
    assert "gpt" in screen.display[1]
    assert sum("$ train.py --lr 1" in row for row in screen.display) == 1
    first = list(screen.display)
    pyte.Stream(screen).feed("\x1b[?7l" + after)
    changed = [row for row, old in zip(screen.display, first, strict=True) if row != old]
    assert len(changed) == 1
    assert "! shared memory: only 64 MiB free in /dev/shm" in changed[0]


def test_text_is_shown_not_obeyed_and_stays_in_its_pane() -> None:
    scene = start_scene("a\x1b[31mb", "echo \x1b[2J" + "長" * 300, (), english)
    screen = screen_of(paint(scene, DARK, 160, 40), (160, 40))
    assert "[31m" not in screen.display[1]
    assert "$ echo" in "\n".join(screen.display), "nothing was cleared"
    row = next(row for row in screen.buffer if "$" in {cell.data for cell in screen.buffer[row].values()})
    assert sum(screen.buffer[row][x].data == "│" for x in range(160)) == 4


@pytest.mark.parametrize(
    ("env", "depth"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, Depth.TRUE),
        ({"TERM": "tmux-256color"}, Depth.PALETTE),
        ({"TERM": "xterm"}, Depth.NONE),
        ({"TERM": "xterm-256color", "COLORTERM": "24bit", "NO_COLOR": "1"}, Depth.NONE),
    ],
)
def test_no_more_colours_than_the_terminal_has(env: dict[str, str], depth: Depth) -> None:
    assert depth_of(env) is depth
    look = Look(chosen(None, None), depth)
    text = paint(start_scene("gpt", "train.py", (), english), look, 120, 40)
    assert ("38;2;" in text, "38;5;" in text) == (depth is Depth.TRUE, depth is Depth.PALETTE)
    if depth is Depth.NONE:
        assert {part.partition("m")[0] for part in text.split("\x1b[")[1:] if "m" in part[:4]} <= {"0"}


@pytest.mark.parametrize("palette", PALETTES.values(), ids=lambda palette: palette.name)
def test_few_colours_are_the_app_s_own(palette: Palette) -> None:
    look = Look(palette, Depth.PALETTE)
    for colour in palette[2:]:
        number = Color.parse(str(colour)).downgrade(ColorSystem.EIGHT_BIT).number
        assert look.style(str(colour)).startswith(f"\x1b[38;5;{number}m")


def test_plain_ascii_is_nothing_else() -> None:
    look = Look(chosen(ThemeName.LIGHT, None), Depth.TRUE, plain_ascii=True)
    text = look.encode(paint(start_scene("größe", "train.py", (), english), look, 120, 40))
    assert text.isascii()
    assert b"+--" in text


def test_the_theme_that_is_remembered_unless_another_is_asked_for() -> None:
    assert chosen(None, "stoker-light").background == PALETTES[ThemeName.LIGHT].background
    assert chosen(ThemeName.DARK, "stoker-light") is PALETTES[ThemeName.DARK]
    assert chosen(None, "nobody's") is PALETTES[ThemeName.DARK]
