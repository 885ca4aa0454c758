"""Reads tables in logs: a header row and the rows below it, separated by commas, tabs or pipes, or aligned in columns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from supervisor.sources.metrics import lexicon
from supervisor.sources.metrics.line_report import rivals
from supervisor.sources.metrics.names import (
    PART_RANK,
    SOLE_RANK,
    Field,
    field_of_rate,
    is_score,
    meaning,
    words_of,
)
from supervisor.sources.metrics.progress_bars import find_bar
from supervisor.sources.metrics.tokens import (
    MASKED,
    NOTHING,
    PLAIN,
    WHOLE,
    Conversion,
    How,
    Parsed,
    Reading,
    magnitude,
    memory_conversion,
    seconds,
    time_scale,
)

_CELL = re.compile(
    r"(?P<a>[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf|infinity))(?:/(?P<b>\d+)|\s?(?P<unit>%|[kKMGT]i?[bB]?|ms|s|us)|\s?(?P<rate>[A-Za-z]{1,12}/s(?:ec(?:ond)?)?))?(?:\s?\([^()]*\))?$",
    re.IGNORECASE,
)
_CLOCK = re.compile(
    r"(?:\d+:)+\d+(?:\.\d+)?$|\d{4}-\d\d-\d\d[ T][\d:.]+$|[\d./-]{3,10}[ T_]\d\d?:\d\d(?::\d\d)?$|n/?a$|-+$|none$|\?$|no log$|\[[^\]]*\]$",
    re.IGNORECASE,
)
# A transposed table: "| Name | lr | loss |" over "| Value | 0.1 | 2.3 |".
_NAMES = frozenset({"name", "metric", "metrics", "key"})
_VALUES = frozenset({"value", "values"})
_LIST = re.compile(r"\[\s*[-+\d]")
# A marker before a row: "[   10%      ]", "[------------]".
_MARK = re.compile(r"\[[\s\d%=>-]*\](?=\s{2,}\d|\s+[A-Za-z])")
_COLUMN = re.compile(r"[A-Za-z_#%][\w #%/.()@+'-]{0,30}$")
# Parts of a detector's loss. Beside these columns, "total" is the sum of the parts.
_PARTS = frozenset({"box", "obj", "cls", "dfl"})
# A column with one of these words last counts evaluated items or gives a duration.
_COUNTED_THINGS = frozenset({"images", "instances", "size", "time", "seen", "targets", "labels"})
_VALUED = re.compile(r"\d\.\d|\(\d+/\d+\)|\s\d+$")
_PAIR_ROW = re.compile(
    r"\s*[|│┃]\s*(?P<name>[A-Za-z_][\w/ .@-]*?)\s*[|│┃]\s*(?P<value>[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|nan|inf))\s*[|│┃]\s*$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Header:
    r"""A header row. `style` is "," "\t" "|" or "  " (columns aligned with spaces).

    `starts` holds the column positions in a space-aligned table, where a row may leave cells empty.
    """

    style: str
    names: tuple[str, ...]
    starts: tuple[int, ...] = ()


def find_header(text: str) -> Header | None:
    """Return the header if a line looks like one for a table of readings, or None otherwise."""
    bar = find_bar(text)
    if bar is not None:
        text = bar.rest.split(MASKED)[0].rstrip(" :")
    if text.lstrip().startswith("# "):
        text = text.replace("#", " ", 1)  # numpy's comment mark is not a column
    for style in (",", "\t", "|", "  "):
        places = _cells(text, style)
        cells = [cell.strip() for _, cell in places]
        if 2 <= len(cells) <= 40 and all(map(_COLUMN.match, cells)) and _heads_readings(cells, style):
            settings = sum("_".join(words_of(cell)) in lexicon.SETTINGS for cell in cells)
            starts = tuple(start for start, _ in places) if style == "  " else ()
            return Header(style, tuple(map(_whole, cells)), starts) if settings * 2 < len(cells) else None
    return None


def _whole(cell: str) -> str:
    """Drop an unmatched parenthesis whose partner is in a different column: "Box(P", "R", "mAP50-95)"."""
    is_whole = cell.count("(") == cell.count(")")
    return cell if is_whole else cell.replace("(", " ").replace(")", "").strip()


def _heads_readings(cells: list[str], style: str) -> bool:
    """Check whether column names stand for readings: a counter next to another field, or several scores."""
    if sum(_VALUED.search(cell) is not None for cell in cells) >= 2:
        return False  # names with their values beside them
    meanings = [meaning(_plain(cell)) for cell in cells]
    fields = {found.field for found in meanings}
    is_counted = not fields.isdisjoint({Field.STEP, Field.EPOCH})
    if len(cells) == 2:
        return is_counted and not fields.isdisjoint({Field.LOSS, Field.VAL_LOSS})
    is_on_its_side = cells[0].lower() in _NAMES and not fields.isdisjoint(
        {Field.LOSS, Field.VAL_LOSS, Field.LR}
    )
    is_by_rate = style == "\t" and meanings[0].field == Field.LR
    has_scores = style != "," and sum(map(is_score, cells)) >= 2
    return (is_counted and len(fields - {None}) >= 2) or is_on_its_side or is_by_rate or has_scores


def read_row(header: Header, text: str) -> Parsed | None:
    """Read a row of the table with this header. Return None if the line is not a row."""
    body, readings = _without_bar(header, text)
    cells = _cells(body, header.style)
    if header.names[0].lower() in _NAMES and cells[0][1].strip().lower() not in _VALUES:
        return None
    if len(cells) != len(header.names) and header.style == "  ":
        cells = [(m.start(), m.group()) for m in re.finditer(r"\S+", body)]
    names = header.names
    if 2 < len(cells) < len(names):
        names = tuple(names[place] for place in _columns(header.starts, [start for start, _ in cells]))
    if len(cells) != len(names):
        return None
    numbers = 0
    for place, (name, (start, raw)) in enumerate(zip(names, cells, strict=True)):
        found = _cell_of_row(name, raw, start, is_first=place == 0, names=names)
        if found is None:
            return None
        numbers += found.is_number
        readings += found.readings
    return Parsed(_one_of_each(readings)) if numbers >= min(2, len(header.names)) and readings else None


def _without_bar(header: Header, text: str) -> tuple[str, list[Reading]]:
    """Return a row without the progress bar that follows it, and the bar's readings."""
    bar = find_bar(text, in_row=True) if header.style in {"  ", "\t"} else None
    if bar is None or bar.rest.strip()[:1] in {MASKED, ""}:
        return text, []
    readings = [reading._replace(rank=4) for reading in bar.readings]
    return bar.rest.split(MASKED)[0].rstrip(" :"), readings


class _Cell(NamedTuple):
    """A cell's contents. A list of numbers counts as a number."""

    is_number: bool
    readings: list[Reading]


def _cell_of_row(name: str, raw: str, start: int, *, is_first: bool, names: tuple[str, ...]) -> _Cell | None:
    """Parse a cell of a table row. Return None if its text cannot belong to a row."""
    cell = raw.strip().rstrip(":")
    begin = start + len(raw) - len(raw.lstrip())
    match = _CELL.match(cell)
    field = meaning(_plain(name)).field
    if match is None and field == Field.ETA and seconds(cell) is not None:
        return _Cell(True, [Reading(Field.ETA, "", 5, begin, begin + len(cell), Conversion(How.DURATION))])
    if match is None:
        is_text = cell and not _CLOCK.match(cell) and (not is_first or field in {Field.STEP, Field.EPOCH})
        return None if is_text else _Cell(_LIST.match(cell) is not None, [])
    if is_first and match["b"] and field not in {Field.STEP, Field.EPOCH}:
        return None  # a row of the surrounding table
    if name == "total" and not _PARTS.isdisjoint(names):
        return _Cell(True, [Reading(Field.LOSS, name, 9, begin, begin + match.end("a"), PLAIN)])
    return _Cell(True, _readings(name, match, begin))


def _one_of_each(readings: list[Reading]) -> tuple[Reading, ...]:
    """Keep one column per field: the first of those with the highest rank. If all losses are parts, keep none of them."""
    best: dict[str, Reading] = {}
    for reading in readings:
        if reading.field not in best or reading.rank > best[reading.field].rank:
            best[reading.field] = reading
    out = []
    for reading in readings:
        is_best = reading is best[reading.field]
        if reading.field in {Field.LOSS, Field.VAL_LOSS}:
            is_whole = is_best and not (reading.rank <= PART_RANK and rivals(readings, reading))
            out.append(reading if is_whole else reading._replace(field=""))
        elif is_best or not reading.field:
            out.append(reading)
    return tuple(out)


def _columns(starts: tuple[int, ...], cells: list[int]) -> list[int]:
    """Return the column of each cell in a row with gaps. An overly wide value shifts the next one slightly."""
    places = []
    for cell in cells:
        near = [place for place, start in enumerate(starts) if 0 <= cell - start <= 2]
        if near:
            places.append(near[-1])
    return places if len(set(places)) == len(places) else []


def read_pair_row(text: str, *, in_section: bool) -> Parsed | None:
    """Read a row with one name and one value, such as `|    loss     | 12.9    |`. Return None for other lines."""
    match = _PAIR_ROW.match(text)
    if match is None:
        return None
    found = meaning(match["name"])
    counts = found.field in {Field.EPOCH, Field.STEP} and found.rank >= 7
    is_loss = found.field in {Field.LOSS, Field.VAL_LOSS}
    if (found.rank == 3 and "/" in match["name"]) or (is_loss and found.rank == SOLE_RANK):
        return NOTHING  # part of a loss, in a block whose total may have its own row
    gauges = (found.field == Field.GRAD_NORM and found.rank >= 8) or (
        found.field == Field.LR and match["name"].lower().startswith(("train/", "optim/"))
    )
    if not (in_section or counts or gauges or is_loss):
        return NOTHING
    value = _CELL.match(match["value"])
    if value is None:
        return NOTHING
    return Parsed(tuple(_readings(match["name"].strip(), value, match.start("value"))))


def _readings(name: str, match: re.Match[str], start: int) -> list[Reading]:
    """Return the readings in a cell. `start` is its position in the line."""
    found = meaning(_plain(name))
    unit = (match["unit"] or "").lower()
    place = (start + match.start("a"), start + match.end("a"))
    if (rate := field_of_rate(match["rate"] or "")) is not None:
        return [Reading(rate, name, 6, *place, PLAIN)]  # "3 samples/s"
    if found.field == Field.STEP and name.lower().endswith("(time)"):
        scale = time_scale(unit)
        return [Reading(Field.STEP_TIME, "", 5, *place, Conversion(How.NUMBER, scale))] if scale else []
    if found.field in {Field.EPOCH, Field.STEP}:
        is_step = found.field == Field.STEP
        whole = WHOLE if is_step or "." not in match["a"] else PLAIN
        out = [Reading(found.field, "", found.rank, *place, whole)]
        if match["b"]:
            total = (start + match.start("b"), start + match.end("b"))
            out.append(
                Reading(Field.TOTAL_STEPS if is_step else Field.TOTAL_EPOCHS, "", found.rank, *total, WHOLE)
            )
        return out
    how = (
        _conversion(found.field, name, unit, match["a"])
        if found.field is not None and not match["b"]
        else None
    )
    if found.field is None or how is None:
        return []
    field = Field.VAL_LOSS if found.is_eval and found.field == Field.LOSS else found.field
    return [Reading(field, name, found.rank, *place, how)]


def _conversion(field: str, name: str, unit: str, text: str) -> Conversion | None:
    """Return the conversion from a cell to a number, or None if the cell should not be plotted."""
    match field:
        case Field.MEMORY:
            return memory_conversion(unit)
        case Field.MFU:
            return Conversion(How.SHARE, 0.01 if unit == "%" else 1.0)
        case Field.ETA:
            scale = time_scale(unit)
            return Conversion(How.NUMBER, scale) if scale is not None else None
        case Field.STEP_TIME:
            return None
        case Field.LR if text[0] == "-":
            return None  # the logarithm
        case Field.TOKENS | Field.SAMPLES:
            return Conversion(How.NUMBER, magnitude(unit))
        case "" if not _COUNTED_THINGS.isdisjoint(words_of(name)[-1:]):
            return None
        case _:
            return PLAIN


def _plain(name: str) -> str:
    """Drop the parenthesized part of a column name, unless nothing else is left."""
    return re.sub(r"\s*\([^()]*\)\s*$", "", name) or name


def _cells(text: str, style: str) -> list[tuple[int, str]]:
    """Split a line into (position, cell) pairs."""
    if style == "  ":
        if (mark := _MARK.match(text)) is not None:
            text = " " * mark.end() + text[mark.end() :]
        return [(m.start(), m.group()) for m in re.finditer(r"\S+(?: \S+)*", text)]
    cells: list[tuple[int, str]] = []
    place = 0
    for cell in text.split(style):
        cells.append((place, cell))
        place += len(cell) + 1
    if style == "|" and len(cells) > 2 and not cells[0][1].strip():
        cells = cells[1:]  # the outer border
    if style in {"|", "\t"} and len(cells) > 2 and not cells[-1][1].strip():
        cells = cells[:-1]
    return cells
