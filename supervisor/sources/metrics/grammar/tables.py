"""Tables in logs: a header row and the rows below it, in CSV, tabs, pipes or columns of blanks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from supervisor.sources.metrics.grammar.bars import find_bar
from supervisor.sources.metrics.grammar.judge import PART_RANK, rivals
from supervisor.sources.metrics.grammar.nameless import field_of_rate, is_step_rate
from supervisor.sources.metrics.grammar.tokens import mask
from supervisor.sources.metrics.grammar.values import (
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
from supervisor.sources.metrics.names import (
    EPOCH,
    ETA,
    GRAD_NORM,
    LOSS,
    LR,
    MEMORY,
    MFU,
    SAMPLES,
    STEP,
    STEP_TIME,
    TOKENS,
    TOTAL_EPOCHS,
    TOTAL_STEPS,
    VAL_LOSS,
    is_score,
    meaning,
    words_of,
)
from supervisor.sources.metrics.words import (
    SETTINGS,
    TRAIN_WORDS,
)

_CELL = re.compile(
    r"(?P<a>[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf|infinity))(?:/(?P<b>\d+)|\s?(?P<unit>%|[kKMGT]i?[bB]?|ms|s|us)|\s?(?P<rate>[A-Za-z]{1,12}/s(?:ec(?:ond)?)?))?(?:\s?\([^()]*\))?$",
    re.IGNORECASE,
)
_CLOCK = re.compile(
    r"(?:\d+:)+\d+(?:\.\d+)?$|\d{4}-\d\d-\d\d[ T][\d:.]+$|[\d./-]{3,10}[ T_]\d\d?:\d\d(?::\d\d)?$|n/?a$|-+$|none$|\?$|no log$|\[[^\]]*\]$",
    re.IGNORECASE,
)
# A table on its side: "| Name | lr | loss |" over "| Value | 0.1 | 2.3 |".
_NAMES = frozenset({"name", "metric", "metrics", "key"})
_VALUES = frozenset({"value", "values"})
_LIST = re.compile(r"\[\s*[-+\d]")
# "[   10%      ]", "[------------]": a mark before a row.
_MARK = re.compile(r"\[[\s\d%=>-]*\](?=\s{2,}\d|\s+[A-Za-z])")
_COLUMN = re.compile(r"[A-Za-z_#%][\w #%/.()@+'-]{0,30}$")
# Parts of a detector's loss: beside them "total" is their sum.
_PARTS = frozenset({"box", "obj", "cls", "dfl"})
_VALUED = re.compile(r"\d\.\d|\(\d+/\d+\)|\s\d+$")
_RULE = re.compile(r"[\s|+:=─━┼-]*$")
_PAIR_ROW = re.compile(
    r"\s*[|│┃]\s*(?P<name>[A-Za-z_][\w/ .@-]*?)\s*[|│┃]\s*(?P<value>[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|nan|inf))\s*[|│┃]\s*$",
    re.IGNORECASE,
)
_SECTION_ROW = re.compile(r"\s*\|\s*[A-Za-z_][\w ]*/\s*\|\s*\|\s*$")
_TWO_HEADER = re.compile(r"(?:^|\s)Training\s*\|\s*Validation\s*$")
_TWO = re.compile(
    r"(?P<name>[A-Za-z_][\w .@-]*?)\s*\|\s*(?P<train>[-+.\deE]+|nan|inf|N/A)\s*\|\s*(?P<valid>[-+.\deE]+|nan|inf|N/A)\s*$"
)


@dataclass(frozen=True, slots=True)
class Header:
    r"""A header row. `style` is "," "\t" "|" "  " (columns of blanks) or "two" (a name, training, validation).

    `starts`: where the columns begin, of a table of blanks: a row may leave cells empty.
    """

    style: str
    names: tuple[str, ...]
    starts: tuple[int, ...] = ()


def is_rule(text: str) -> bool:
    """A line that only draws (or is blank): it ends no table."""
    return _RULE.match(text) is not None


def is_section_row(text: str) -> bool:
    """`| train/   |        |`: a table of names and values, not one of settings."""
    return _SECTION_ROW.match(text) is not None


def find_header(text: str) -> Header | None:
    """Whether a line may be the header of a table of readings."""
    masked = mask(text)
    if _TWO_HEADER.search(masked):
        return Header("two", ("train", "valid"))
    bar = find_bar(text)
    if bar is not None:
        text = bar.rest.split("\x01")[0].rstrip(" :")
    if text.lstrip().startswith("# "):
        text = text.replace("#", " ", 1)  # a comment mark, as numpy writes it, is no column
    for style in (",", "\t", "|", "  "):
        places = _cells(text, style)
        cells = [cell.strip() for _, cell in places]
        if not 2 <= len(cells) <= 40 or not all(_COLUMN.match(cell) for cell in cells) or _is_report(cells):
            continue
        meanings = [meaning(_plain(cell)) for cell in cells]
        fields = {m.field for m in meanings}
        scores = sum(is_score(cell) for cell in cells)
        if len(cells) == 2 and not ({STEP, EPOCH} & fields and {LOSS, VAL_LOSS} & fields):
            continue
        if (
            ({STEP, EPOCH} & fields and (len(fields - {None}) >= 2))
            or (cells[0].lower() in _NAMES and fields & {LOSS, VAL_LOSS, LR} and len(cells) > 2)
            or (style == "\t" and meanings[0].field == LR and any(map(_is_training_loss, cells)))
            or (scores >= 2 and style != ",")
        ):
            settings = sum("_".join(words_of(cell)) in SETTINGS for cell in cells)
            starts = tuple(start for start, _ in places) if style == "  " else ()
            return Header(style, tuple(cells), starts) if settings * 2 < len(cells) else None
    return None


def _is_training_loss(cell: str) -> bool:
    """Whether a column's name says that its loss is training's: a table of trials rarely says whose it is."""
    return meaning(cell).field == LOSS and not TRAIN_WORDS.isdisjoint(words_of(cell))


def _is_report(cells: list[str]) -> bool:
    """Whether names have their values beside them: no header, though it looks like one."""
    return sum(_VALUED.search(cell) is not None for cell in cells) >= 2


def read_row(header: Header, text: str) -> Parsed | None:
    """A row under its header; None when the line is none."""
    if header.style == "two":
        return _two(text)
    if (
        header.style in {"  ", "\t"}
        and (bar := find_bar(text, in_row=True)) is not None
        and bar.rest.strip()[:1] not in {"\x01", ""}
    ):
        body = bar.rest.split("\x01")[0].rstrip(" :")
        extra = [Reading(b.field, "", 4, b.start, b.end, b.conversion) for b in bar.readings]
    else:
        body, extra = text, []
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
    out: list[Reading] = list(extra)
    numbers = 0
    for place, (name, (start, raw)) in enumerate(zip(names, cells, strict=True)):
        cell = raw.strip().rstrip(":")
        begin = start + len(raw) - len(raw.lstrip())
        match = _CELL.match(cell)
        if match is None and meaning(_plain(name)).field == ETA and seconds(cell) is not None:
            numbers += 1
            out.append(Reading(ETA, "", 5, begin, begin + len(cell), Conversion(How.DURATION)))
            continue
        if match is None:
            if cell and not _CLOCK.match(cell) and (place or meaning(_plain(name)).field in {STEP, EPOCH}):
                return None
            numbers += _LIST.match(cell) is not None
            continue
        numbers += 1
        if name == "total" and not _PARTS.isdisjoint(names):
            out.append(Reading(LOSS, name, 9, begin, begin + match.end("a"), PLAIN))
            continue
        out += _cell(name, match, begin)
    return Parsed(_one_of_each(out)) if numbers >= min(2, len(header.names)) and out else None


def _one_of_each(readings: list[Reading]) -> tuple[Reading, ...]:
    """Of several columns of one field the one that ranks highest, the first of equals; of losses that are all parts, none."""
    best: dict[str, Reading] = {}
    for reading in readings:
        if reading.field not in best or reading.rank > best[reading.field].rank:
            best[reading.field] = reading
    out = []
    for reading in readings:
        is_best = reading is best[reading.field]
        if reading.field in {LOSS, VAL_LOSS}:
            is_whole = is_best and not (reading.rank <= PART_RANK and rivals(readings, reading))
            out.append(reading if is_whole else reading._replace(field=""))
        elif is_best or not reading.field:
            out.append(reading)
    return tuple(out)


def _columns(starts: tuple[int, ...], cells: list[int]) -> list[int]:
    """Which column each cell of a row with holes stands under; a value too wide for its column pushes the next a little."""
    places = []
    for cell in cells:
        near = [place for place, start in enumerate(starts) if 0 <= cell - start <= 2]
        if near:
            places.append(near[-1])
    return places if len(set(places)) == len(places) else []


def read_pair_row(text: str, *, in_section: bool) -> Parsed | None:
    """`|    loss     | 12.9    |`: one name and value a row; None when the line is no such row."""
    match = _PAIR_ROW.match(text)
    if match is None:
        return None
    found = meaning(match["name"])
    counts = found.field in {EPOCH, STEP} and found.rank >= 7
    if found.rank == 3 and "/" in match["name"]:
        return NOTHING  # a part of a loss, in a block whose total may have a row of its own
    gauges = (found.field == GRAD_NORM and found.rank >= 8) or (
        found.field == LR and match["name"].lower().startswith(("train/", "optim/"))
    )
    if not (in_section or counts or gauges or found.field in {LOSS, VAL_LOSS}):
        return NOTHING
    value = _CELL.match(match["value"])
    if value is None:
        return NOTHING
    return Parsed(tuple(_cell(match["name"].strip(), value, match.start("value"))))


def _cell(name: str, match: re.Match[str], start: int) -> list[Reading]:
    found = meaning(_plain(name))
    if found.field == STEP and name.lower().endswith("(time)"):
        scale = time_scale(match["unit"] or "")
        return (
            [
                Reading(
                    STEP_TIME,
                    "",
                    5,
                    start + match.start("a"),
                    start + match.end("a"),
                    Conversion(How.NUMBER, scale),
                )
            ]
            if scale
            else []
        )
    a, b = match.span("a"), match.span("b")
    unit = (match["unit"] or "").lower()
    field = found.field
    place = (start + a[0], start + a[1])
    if match["rate"]:
        return _of_rate(match["rate"], name, place)
    if field is None:
        return []
    if field in {EPOCH, STEP}:
        whole = WHOLE if field == STEP or "." not in match["a"] else PLAIN
        out = [Reading(field, "", found.rank, *place, whole)]
        if match["b"]:
            total = TOTAL_EPOCHS if field == EPOCH else TOTAL_STEPS
            out.append(Reading(total, "", found.rank, start + b[0], start + b[1], WHOLE))
        return out
    if match["b"]:
        return []
    if field == MEMORY:
        how = memory_conversion(unit)
        return [Reading(MEMORY, name, found.rank, *place, how)] if how is not None else []
    if field == MFU:
        return [Reading(MFU, name, found.rank, *place, Conversion(How.SHARE, 0.01 if unit == "%" else 1.0))]
    if field == ETA and time_scale(unit) is not None:
        return [Reading(ETA, name, found.rank, *place, Conversion(How.NUMBER, time_scale(unit) or 1.0))]
    if field in {STEP_TIME, ETA}:
        return []
    if (
        field == ""
        and words_of(name)[-1:]
        and words_of(name)[-1] in {"images", "instances", "size", "time", "seen", "targets", "labels"}
    ):
        return []
    if found.is_eval and field == LOSS:
        field = VAL_LOSS
    how = Conversion(How.NUMBER, magnitude(unit)) if field in {TOKENS, SAMPLES} else PLAIN
    return [Reading(field, name, found.rank, *place, how)]


def _of_rate(unit: str, name: str, place: tuple[int, int]) -> list[Reading]:
    """A cell with its own unit: "3 samples/s", "12.3 it/s"."""
    if (field := field_of_rate(unit)) is not None:
        return [Reading(field, name, 6, *place, PLAIN)]
    return [Reading(STEP_TIME, name, 5, *place, Conversion(How.INVERSE))] if is_step_rate(unit) else []


def _plain(name: str) -> str:
    """A column's name without what stands in brackets, unless that is all."""
    return re.sub(r"\s*\([^()]*\)\s*$", "", name) or name


def _two(text: str) -> Parsed | None:
    masked = mask(text)
    begin = masked.rfind("\x01") + 1
    while begin < len(text) and text[begin] in " -":
        begin += 1
    match = re.compile(_TWO.pattern).search(text, begin)
    if match is None:
        return None
    name = match["name"].split(" - ")[-1].strip()
    out = []
    for column, held_out in (("train", False), ("valid", True)):
        value = _CELL.match(match[column])
        if value is None:
            continue
        found = meaning(name)
        readings = _cell(name, value, match.start(column))
        if found.field == MEMORY and "mb" in words_of(name):
            readings = [r._replace(conversion=Conversion(How.NUMBER, float(1 << 20))) for r in readings]
        if held_out:
            readings = [r._replace(field=VAL_LOSS) for r in readings if r.field == LOSS]
        out += readings
    return Parsed(tuple(out)) if out else NOTHING


def _cells(text: str, style: str) -> list[tuple[int, str]]:
    """The cells of a line with their places."""
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
