"""With NO_COLOR no colour reaches the terminal: bold, dim and reversed characters tell what colours told."""

from __future__ import annotations

import io
import re
from functools import partial
from pathlib import Path

import pexpect
import pytest
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.theme import Theme

from supervisor.views.tui.widgets.filters import no_colour
from supervisor.views.tui.widgets.textual_theme import THEMES
from tests.integration.harness import STOKER, environment
from tests.views.tui import recorded
from tests.views.tui.driving import keeper_of
from tests.views.tui.wire import SIZE, Wire


def colours_in(sent: str) -> list[str]:
    """Every select-graphic-rendition parameter that names a colour (ECMA-48, 8.3.117)."""
    found = []
    for codes in re.findall(r"\x1b\[([\d;:]*)m", sent):
        found += [code for code in re.split("[;:]", codes) if re.fullmatch(r"[349]\d|10\d", code)]
    return [code for code in found if code not in {"39", "49"}]


@pytest.mark.parametrize("theme", THEMES.values(), ids=lambda theme: theme.name)
def test_what_colours_told_is_told_otherwise(theme: Theme) -> None:
    known = theme.to_color_system().generate() | theme.variables

    def told(colour: str, behind: str, *, bold: bool = False) -> str:
        style = Style(color=colour, bgcolor=behind, bold=bold or None)
        (segment,) = no_colour(known["foreground"]).apply(
            [Segment("x", style)], Color.parse(known["background"])
        )
        assert segment.style is not None
        assert segment.style.color is None
        assert segment.style.bgcolor is None
        names = ("bold", "dim", "reverse")
        return " ".join(name for name in names if getattr(segment.style, name))

    ground = known["background"]
    assert told(known["foreground"], ground) == ""
    assert told(known["strong"], ground, bold=True) == "bold"
    for sign in (known["accent"], known["secondary"], known["third"], known["fourth"], known["success"]):
        assert told(sign, ground) == ""
    assert told(known["band"], ground) == "dim", "the band behind a curve"
    assert told(known["warning"], ground) == ""
    assert told(known["error"], ground, bold=True) == "bold"
    assert told(known["dim"], ground) == "dim"
    assert told(known["faint"], ground) == "dim"
    assert told(ground, known["accent"]) == "reverse", "the cursor"
    assert told(ground, known["error"], bold=True) == "bold reverse", "the cause"
    assert told(known["foreground"], known["panel"]) == "", "a bar"


def lacks(screen: Wire, text: str) -> bool:
    return text not in screen.text()


def test_no_colour_is_sent(tmp_path: Path) -> None:
    run = recorded.backing_off(tmp_path / "20261121-1412-brave-otter")
    env = environment({"TERM": "xterm-256color", "COLORTERM": "truecolor", "NO_COLOR": "1"})
    command, *rest = [*STOKER, "attach", str(run.root)]
    sent = io.BytesIO()
    with keeper_of(run):
        process = pexpect.spawn(command, rest, cwd=str(tmp_path), env=env, dimensions=(SIZE[1], SIZE[0]))
        process.logfile_read = sent
        try:
            screen = Wire(process, SIZE)
            screen.wait_for("cuda_oom", "rank 1")
            for key, shown in (("?", "Esc closes"), ("v", "what followed"), ("L", "merged by arrival")):
                screen.press(key)
                screen.wait_for(shown)
                screen.press("\x1b")
                screen.until(partial(lacks, screen, shown))
            screen.press("q")
            screen.wait_for_exit()
        finally:
            process.close(force=True)
    stream = sent.getvalue().decode()
    assert "\x1b[1m" in stream
    assert colours_in(stream) == []
