"""Draw terminal screens as SVG that looks the same everywhere: no font is fetched, and braille, blocks and frames are shapes."""  # noqa: INP001 - beside the scripts that use it

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from rich.ansi import AnsiDecoder
from rich.cells import cell_len
from rich.color import Color, blend_rgb
from rich.color_triplet import ColorTriplet
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme

Row = Sequence[Segment]

# A cell in SVG units, about what a terminal gives a font of 16.6: DejaVu Sans Mono, Menlo and the like advance 0.6 of their size.
CELL, LINE = 10.0, 20.0
FONT_SIZE = 16.6
BASELINE = 15.0
MARGIN, BAR = 12.0, 34.0
LIGHT, HEAVY, DOT = 1.4, 3.2, 2.7
# Only fonts that a machine has: a picture inside a page may fetch none.
FONTS = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
THEME = TerminalTheme(
    (15, 19, 23),
    (205, 211, 218),
    [(15, 19, 23), (254, 111, 111), (79, 209, 181), (241, 184, 75), (96, 165, 250), (192, 132, 252), (79, 209, 197), (205, 211, 218)],
    [(125, 136, 147), (254, 111, 111), (79, 209, 181), (241, 184, 75), (96, 165, 250), (192, 132, 252), (79, 209, 197), (255, 255, 255)],
)  # fmt: skip
_DIM = 0.4
_BRAILLE = range(0x2800, 0x2900)
# Bit of a braille pattern: its column and row among the 2 × 4 dots.
_DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
_QUARTERS = {"▖": "c", "▗": "d", "▘": "a", "▙": "acd", "▚": "ad", "▛": "abc", "▜": "abd", "▝": "b", "▞": "bc", "▟": "bcd"}  # fmt: skip
_SHADES = {"░": 0.25, "▒": 0.5, "▓": 0.75}
_WAYS = {"LEFT": ("l",), "RIGHT": ("r",), "UP": ("u",), "DOWN": ("d",), "HORIZONTAL": ("l", "r"), "VERTICAL": ("u", "d")}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Look:
    """How the characters of a run look: colours as `#rrggbb`."""

    colour: str
    behind: str | None
    bold: bool
    italic: bool
    underlined: bool


def rows_of(ansi: str, columns: int) -> list[list[Segment]]:
    """The rows of a screen that a terminal gave with its colour sequences (``tmux capture-pane -e -p``)."""
    console = Console(width=columns, color_system="truecolor", legacy_windows=False)
    # One decoder: tmux leaves a colour on from one line to the next.
    return [list(line.render(console, end="")) for line in AnsiDecoder().decode(ansi.rstrip("\n"))]


def _rgb(colour: Color | None, default: ColorTriplet, *, foreground: bool) -> ColorTriplet:
    if colour is None or colour.is_default:
        return default
    return colour.get_truecolor(THEME, foreground=foreground)


def look_of(style: Style | None, page: ColorTriplet) -> Look:
    """A style's colours as they come out, on a page of that colour."""
    style = style or Style()
    colour = _rgb(style.color, THEME.foreground_color, foreground=True)
    behind = _rgb(style.bgcolor, page, foreground=False)
    if style.reverse:
        colour, behind = behind, colour
    if style.dim:
        colour = blend_rgb(colour, behind, _DIM)
    return Look(
        colour.hex,
        None if behind == page else behind.hex,
        bool(style.bold),
        bool(style.italic),
        bool(style.underline),
    )


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _rect(x: float, y: float, width: float, height: float) -> str:
    return f"M{_number(x)} {_number(y)}h{_number(width)}v{_number(height)}h{_number(-width)}z"


def _block(char: str, x: float) -> str | None:
    """A block element as a filled path, in a cell that begins at `x`."""
    number = ord(char) - 0x2580
    if char in _QUARTERS:
        corners = {
            "a": (0.0, 0.0),
            "b": (CELL / 2, 0.0),
            "c": (0.0, LINE / 2),
            "d": (CELL / 2, LINE / 2),
        }
        places = (corners[corner] for corner in _QUARTERS[char])
        return "".join(_rect(x + left, top, CELL / 2, LINE / 2) for left, top in places)
    match number:
        case 0x00:
            return _rect(x, 0, CELL, LINE / 2)
        case 0x10:
            return _rect(x + CELL / 2, 0, CELL / 2, LINE)
        case 0x14:
            return _rect(x, 0, CELL, LINE / 8)
        case 0x15:
            return _rect(x + CELL * 7 / 8, 0, CELL / 8, LINE)
        case _ if 0x01 <= number <= 0x08:
            return _rect(x, LINE * (8 - number) / 8, CELL, LINE * number / 8)
        case _ if 0x09 <= number <= 0x0F:
            return _rect(x, 0, CELL * (16 - number) / 8, LINE)
    return None


def _frame(char: str, x: float) -> tuple[str, float] | None:
    """A box-drawing character of one weight as a stroked path, and its weight."""
    name = unicodedata.name(char, "")
    if not name.startswith("BOX DRAWINGS "):
        return None
    words = name.removeprefix("BOX DRAWINGS ").replace(" AND ", " ").split()
    weight = {"LIGHT": LIGHT, "HEAVY": HEAVY}.get(words[0])
    arc = "ARC" in words
    ways = [way for word in words[1:] if word != "ARC" for way in _WAYS.get(word, ("?",))]
    if weight is None or not ways or "?" in ways:
        return None
    middle, half = x + CELL / 2, LINE / 2
    ends = {"l": (x, half), "r": (x + CELL, half), "u": (middle, 0.0), "d": (middle, LINE)}
    if arc:
        (ax, ay), (bx, by) = (ends[way] for way in ways)
        points = (ax, ay, middle, half, bx, by)
        return "M{} {}Q{} {} {} {}".format(*map(_number, points)), weight
    if set(ways) == {"l", "r"}:
        return f"M{_number(x)} {_number(half)}h{_number(CELL)}", weight
    if set(ways) == {"u", "d"}:
        return f"M{_number(middle)} 0v{_number(LINE)}", weight
    path = "".join(
        f"M{_number(middle)} {_number(half)}L{_number(ends[w][0])} {_number(ends[w][1])}" for w in ways
    )
    return path, weight


def _dot_runs(places: Iterable[tuple[int, int]]) -> str:
    """Dots, by column of half a cell and by row of a quarter of a line: neighbours are one dashed stroke, whose round dashes are the dots."""
    path = []
    for row, dots in groupby(sorted((row, column) for column, row in places), key=lambda dot: dot[0]):
        columns = [column for _, column in dots]
        start = 0
        for at in range(1, len(columns) + 1):
            if at == len(columns) or columns[at] != columns[at - 1] + 1:
                x, y = CELL * (0.25 + columns[start] / 2), LINE * (1 + 2 * row) / 8
                length = CELL / 2 * (at - 1 - start) + 0.01
                path.append(f"M{_number(x)} {_number(y)}h{length:g}")
                start = at
    return "".join(path)


class _Shapes:
    """The shapes of one row, joined by how they are painted."""

    def __init__(self) -> None:
        self._paths: dict[tuple[str, str, float], list[str]] = defaultdict(list)
        self._dots: dict[str, list[tuple[int, int]]] = defaultdict(list)

    def take(self, char: str, x: float, colour: str) -> bool:
        """Draw a character as a shape; False: it is none."""
        if ord(char) in _BRAILLE:
            bits, first = ord(char) - _BRAILLE.start, 2 * round(x / CELL)
            self._dots[colour] += [
                (first + column, row) for bit, (column, row) in enumerate(_DOTS) if bits >> bit & 1
            ]
        elif char in _SHADES:
            self._paths["fill", colour, _SHADES[char]].append(_rect(x, 0, CELL, LINE))
        elif (block := _block(char, x)) is not None:
            self._paths["fill", colour, 1.0].append(block)
        elif (frame := _frame(char, x)) is not None:
            self._paths["line", colour, frame[1]].append(frame[0])
        else:
            return False
        return True

    def svg(self) -> Iterable[str]:
        """One path for each way of painting."""
        for (kind, colour, much), parts in self._paths.items():
            path = "".join(parts)
            match kind:
                case "fill":
                    shade = "" if much == 1.0 else f' fill-opacity="{much}"'
                    yield f'<path fill="{colour}"{shade} d="{path}"/>'
                case _:
                    yield f'<path class="s" stroke="{colour}" stroke-width="{much}" d="{path}"/>'
        for colour, places in self._dots.items():
            if places:
                yield f'<path class="o" stroke="{colour}" d="{_dot_runs(places)}"/>'


def draw_row(row: Row, page: ColorTriplet) -> str:
    """One row, with its top at 0."""
    behind: list[str] = []
    words: list[str] = []
    shapes = _Shapes()
    x = 0.0
    cells = [
        (char, look_of(segment.style, page))
        for segment in row
        if not segment.control
        for char in segment.text
    ]
    for look, run in groupby(cells, key=lambda cell: cell[1]):
        text = "".join(char for char, _ in run)
        width = cell_len(text) * CELL
        if look.behind is not None:
            behind.append(f'<path fill="{look.behind}" d="{_rect(x, 0, width, LINE)}"/>')
        word, start = "", x
        for char in text:
            if char.isspace() and not look.underlined and word and not word.endswith(" "):
                word += " "  # words a blank apart are written at once
            elif (char.isspace() and not look.underlined) or shapes.take(char, x, look.colour):
                words += _word(word, start, look)
                word = ""
            else:
                start = start if word else x
                word += char
            x += cell_len(char) * CELL
        words += _word(word, start, look)
    return "".join([*behind, *shapes.svg(), *words])


def _word(word: str, x: float, look: Look) -> list[str]:
    """Text on its cells: stretched to them, whatever font there is."""
    word = word.rstrip()
    if not word:
        return []
    length = _number(cell_len(word) * CELL)
    extra = "".join(
        attribute
        for wanted, attribute in (
            (look.bold, ' font-weight="bold"'),
            (look.italic, ' font-style="italic"'),
            (look.underlined, ' text-decoration="underline"'),
        )
        if wanted
    )
    return [
        f'<text x="{_number(x)}" y="{_number(BASELINE)}" textLength="{length}" fill="{look.colour}"{extra}>{escape(word, quote=False)}</text>'
    ]


@dataclass(frozen=True, slots=True)
class Frame:
    """A screen, and for how many seconds it is shown."""

    rows: Sequence[Row]
    lasts_s: float


def picture(
    frames: Sequence[Frame],
    columns: int,
    title: str,
    *,
    page: ColorTriplet = THEME.background_color,
    still: int = -1,
) -> str:
    """The SVG of a screen, or of several that follow each other for ever.

    Args:
        frames: what is shown, and for how long.
        columns: the width of the terminal in cells.
        title: above the screen.
        page: the colour of the terminal.
        still: which frame a reader sees who asked for no motion.
    """
    lines = max(len(frame.rows) for frame in frames)
    wide, high = columns * CELL, lines * LINE
    names: dict[str, str] = {}
    shown = []
    for number, frame in enumerate(frames):
        placed = []
        for line, row in enumerate(frame.rows):
            drawn = draw_row(row, page)
            if drawn:
                name = names.setdefault(drawn, f"r{len(names)}")
                placed.append(f'<use href="#{name}" y="{_number(line * LINE)}"/>')
        shown.append(f'<g transform="translate({_number(number * wide)})">{"".join(placed)}</g>')
    motion, moves = "", ""
    if len(frames) > 1:
        whole = sum(frame.lasts_s for frame in frames)
        at, stops = 0.0, []
        for number, frame in enumerate(frames):
            stops.append(f"{100 * at / whole:.3f}%{{transform:translateX({_number(-number * wide)}px)}}")
            at += frame.lasts_s
        quiet = _number(-(still % len(frames)) * wide)
        moves = ' class="m"'
        motion = (
            f".m{{animation:m {whole:.2f}s step-end infinite}}@keyframes m{{{''.join(stops)}}}"
            f"@media(prefers-reduced-motion:reduce){{.m{{animation:none;transform:translateX({quiet}px)}}}}"
        )
    full_wide, full_high = wide + 2 * MARGIN, high + BAR + MARGIN
    dots = "".join(
        f'<circle cx="{_number(MARGIN + 8 + 20 * n)}" cy="{_number(BAR / 2)}" r="6" fill="{colour}"/>'
        for n, colour in enumerate(("#fe6f6f", "#f1b84b", "#4fd1b5"))
    )
    light = sum(page) > 3 * 128
    defs = "".join(f'<g id="{name}">{drawn}</g>' for drawn, name in names.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_number(full_wide)} {_number(full_high)}" width="{_number(full_wide)}" height="{_number(full_high)}">'
        f"<style>text{{font-family:{FONTS};font-size:{FONT_SIZE}px;white-space:pre}}"
        f".s,.o{{fill:none}}.o{{stroke-width:{DOT};stroke-linecap:round;stroke-dasharray:.01 {CELL / 2 - 0.01:g}}}{motion}</style>"
        f"<title>{escape(title)}</title>"
        f'<rect width="100%" height="100%" rx="8" fill="{page.hex}" stroke="{"#c8ccd0" if light else "#3d4852"}"/>{dots}'
        f'<text x="50%" y="{_number(BAR / 2 + 6)}" text-anchor="middle" fill="{"#3d4852" if light else "#cdd3da"}">{escape(title)}</text>'
        f"<defs>{defs}</defs>"
        f'<svg x="{_number(MARGIN)}" y="{_number(BAR)}" width="{_number(wide)}" height="{_number(high)}"><g{moves}>{"".join(shown)}</g></svg>'
        "</svg>\n"
    )
