"""The pictures of the docs look the same everywhere: they fetch nothing, and what fonts draw unevenly is drawn as shapes."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from scripts.terminal_svg import THEME, Frame, draw_row, picture, rows_of
from tests.integration.harness import ROOT

PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
SHAPES = re.compile("[\u2500-\u2503\u256d-\u2570\u2580-\u259f\u2800-\u28ff]")


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_fetches_nothing_and_names_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    root = ET.fromstring(text)
    assert not re.search(r"url\(|@import|@font-face|<image|<script|https?://(?!www\.w3\.org/)", text)
    words = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert not [word for word in words if SHAPES.search(word)]
    assert not [word for word in words if "/work/" in word or "/root" in word]


def test_a_colour_that_a_terminal_leaves_on_goes_on_in_the_next_line() -> None:
    first, second = rows_of("\x1b[38;2;1;2;3mone\ntwo\x1b[0m\n", 10)
    assert "#010203" in draw_row(first, THEME.background_color)
    assert "#010203" in draw_row(second, THEME.background_color)


def test_words_stand_on_their_cells_and_neighbouring_dots_are_one_stroke() -> None:
    drawn = draw_row(rows_of("⣿⣿ a  學 │", 20)[0], THEME.background_color)
    root = ET.fromstring(f"<g>{drawn}</g>")
    assert [(one.get("x"), one.get("textLength"), one.text) for one in root.iter("text")] == [
        ("30", "10", "a"),
        ("60", "20", "學"),
    ]
    dots, frame = (
        next(one.get("d") or "" for one in root.iter("path") if one.get("class") == name) for name in "os"
    )
    assert dots.count("M") == 4, "one stroke for each row of dots"
    assert frame == "M95 0v20"


def test_frames_share_their_equal_rows_and_one_stands_still_for_who_asked_for_that() -> None:
    frames = [Frame(rows_of(f"same\n{n}", 10), 1.0) for n in range(3)]
    text = picture(frames, 10, "demo", still=1)
    assert text.count(">same<") == 1
    assert "prefers-reduced-motion:reduce){.m{animation:none;transform:translateX(-100px)}}" in text
    assert "66.667%{transform:translateX(-200px)}" in text
    assert "animation" not in picture(frames[:1], 10, "still")
