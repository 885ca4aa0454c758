"""Formats without names for their values: one table of patterns, whose groups are the values.

This is the place for a format that only one family of programs prints (docs/metrics.md, "How to add a format"). A name that is
not known belongs into `words`, a unit into `values`, a bar into `bars`.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple

from supervisor.sources.metrics.names import EPOCH, LOSS, MEMORY, STEP, TOTAL_EPOCHS, TOTAL_STEPS, VAL_LOSS
from supervisor.sources.metrics.values import PLAIN, WHOLE, Conversion, Reading, memory_conversion

# What a pattern's groups are; `m` is memory, in the unit of the group `unit`.
_FIELDS: dict[str, tuple[str, Conversion]] = {
    "e": (EPOCH, WHOLE), "E": (TOTAL_EPOCHS, WHOLE), "s": (STEP, WHOLE), "S": (TOTAL_STEPS, WHOLE), "l": (LOSS, PLAIN), "v": (VAL_LOSS, PLAIN),
}  # fmt: skip


class Where(Enum):
    """Where in a line a pattern is looked for."""

    EVERYWHERE = auto()
    ONCE = auto()  # its first place
    FIRST = auto()  # the line begins with it
    WHOLE_LINE = auto()  # nothing else is read


class Format(NamedTuple):
    """One format.

    Attributes:
        example: a line that has it; a test reads it.
        pattern: groups `e` (epoch), `E` (epochs in all), `s` (step), `S`, `l` (loss), `v` (held-out loss), `m` and `unit` (memory).
        rank: of several readings of one field on a line the highest is meant; a counter with a plain name has 3 to 10 (see `words`).
    """

    example: str
    where: Where
    rank: int
    pattern: re.Pattern[str]


_ORDINAL = re.compile(
    r"第\s*[\[(（]?\s*(?:(?P<e>\d+)(?:\s*/\s*(?P<E>\d+))?\s*[\])）]?\s*[个個]?\s*(?:轮|輪|epoch|エポック|에폭)|(?P<s>\d+)(?:\s*/\s*(?P<S>\d+))?\s*[\])）]?\s*[个個]?\s*(?:步|次迭代|step|iter|ステップ|스텝))"
)
# How many digits a number has must not matter: a line's shape is kept without them.
FORMATS: tuple[Format, ...] = (
    Format("12 train_loss 2.3412", Where.WHOLE_LINE, 5, re.compile(r"(?P<s>\d+) (?:train(?:_loss)? (?P<l>\d+\.\d+)|(?:val|test)(?:_loss)? (?P<v>\d+\.\d+))\s*$")),
    Format("   100/ 200000: 27.81", Where.WHOLE_LINE, 5, re.compile(r"\s*(?P<s>\d+)/ +(?P<S>\d+): (?P<l>\d+\.\d+)\s*$")),
    Format("100:\t-2.81", Where.WHOLE_LINE, 5, re.compile(r"(?P<s>\d+):\t(?P<l>-?\d+\.\d+)\s*$")),
    # Counters glued to their names: also "Epoch12/100", "Epoch-3 | Batch-120", "E24 S10879".
    Format(
        "ep3 it120 loss 2.31",
        Where.EVERYWHERE,
        5,
        re.compile(
            r"(?<![\w./\\=:-])(?:(?:epoch[-_]?|ep|e(?=\d+(?:/\d+)?[\s,|:\]]*(?:S|B|I|it|step|iter|batch)[\s:]*\d))(?P<e>\d+)(?:/(?P<E>\d+))?"
            r"|(?:(?:step|iter|iteration|batch)[-_]?|it|(?<=\d )[SBI])(?P<s>\d+)(?:/(?P<S>\d+))?)(?![\w./=-]|\.\w)",
            re.IGNORECASE,
        ),
    ),
    # Also "第[3/50]轮", "第100步".
    Format(
        "第3轮 loss: 2.31",
        Where.EVERYWHERE,
        8,
        _ORDINAL,
    ),
    Format(
        "After 120 steps: loss 2.31",
        Where.FIRST,
        3,
        re.compile(
            r"\W*(?:after )?(?P<s>\d+) (?:steps|iterations|iters|batches|updates)\W+(?:(?:train|training|mean|average|the) )*loss\b", re.IGNORECASE
        ),
    ),
    # ESPnet: batches of an epoch, as a range.
    Format(
        "1epoch:train:101-200batch: loss=3.2",
        Where.ONCE,
        5,
        re.compile(r"(?<![\w.])(?P<e>\d+)epoch\b(?::train:\d+-(?P<s>\d+)batch\b)?"),
    ),
    # WeNet prints the epoch and the batch, not a share.
    Format("TRAIN Batch 0/100 loss 12.3", Where.ONCE, 9, re.compile(r"\bTRAIN (?:\|[^|]*\| )?Batch (?P<e>\d+)/(?P<s>\d+)")),
    Format("CV Batch 3/100 loss 12.3", Where.ONCE, 9, re.compile(r"\bCV (?:\| )?Batch (?P<e>\d+)/\d+")),
    # Megatron: the unit is the line's, not the value's.
    Format(
        "memory (MB) | allocated: 1.2 | max allocated: 2048.0",
        Where.ONCE,
        9,
        re.compile(r"memory \((?P<unit>[MG]i?B)\) \|.*\bmax allocated: (?P<m>[\d.]+)"),
    ),
    Format("[2][2080/7610], loss=2.45", Where.FIRST, 5, re.compile(r"\W*(?:\[[Tt]rain\]\s?)?\[ *(?P<e>\d+)\]\s?\[ *(?P<s>\d+)/ *(?P<S>\d+)\]")),
    # The epoch of all, and the step of the whole training.
    Format(
        "[41/41] 49300), Loss: 0.037",
        Where.FIRST,
        5,
        re.compile(r"\W*\[ *(?P<e>\d+)/(?P<E>\d+)\] +(?P<s>\d+)(?:\),?|[,:|]| [-|]) +(?=[A-Za-z][\w ]*[:=])"),
    ),
    Format(
        "3-epoch (99/44660): loss 11.2",
        Where.FIRST,
        9,
        re.compile(r"\W*(?P<e>\d+)(?:[- ]th)?[- ]epoch\b(?:\s*\((?P<s>\d+)/(?P<S>\d+)\))?\s*[:,|]", re.IGNORECASE),
    ),
    # MXNet's Speedometer: batches of an epoch, from 0.
    Format("Epoch[3] Batch [0-240] Speed: 25.02 samples/sec", Where.ONCE, 5, re.compile(r"\bBatch \[\d+-(?P<s>\d+)\]\s+Speed:")),
    # DARTS: step, loss, and one score or two; the step of "valid" counts that pass.
    Format(
        "train 350 1.405087e-01 95.019890 99.958282",
        Where.WHOLE_LINE,
        5,
        re.compile(
            r"\W*(?:train (?P<s>\d+) (?P<l>\d+\.\d+e[-+]\d+)|(?:valid|test) \d+ (?P<v>\d+\.\d+e[-+]\d+))(?: \d+\.\d+){1,2}\s*$"
        ),
    ),
    Format(
        "[1,  2000] loss: 2.169",
        Where.FIRST,
        5,
        re.compile(r"\W*\[(?P<e>\d+),\s*(?P<s>\d+)\]\s+(?:train(?:ing)?[ _])?loss\b", re.IGNORECASE),
    ),
    Format("[  3]    1200 || loss: 3.1", Where.FIRST, 5, re.compile(r"\s*\[ *(?P<e>\d+)\] +(?P<s>\d+) \|\| ")),
    Format(
        "333 154 Loss=0.042",
        Where.FIRST,
        5,
        re.compile(r"\s*(?P<e>\d+)(?:\s+|\|)(?P<s>\d+)(?:\s+|\|)(?=loss\s?[=:])", re.IGNORECASE),
    ),
)  # fmt: skip


def read_formats(text: str) -> tuple[list[Reading], bool]:
    """The values of a (masked) line whose place alone says what they are, and whether nothing else is to be read."""
    out: list[Reading] = []
    for form in FORMATS:
        if form.where is Where.EVERYWHERE:
            for found in form.pattern.finditer(text):
                out += _readings(found, form.rank)
        elif form.where is Where.ONCE:
            if (found_once := form.pattern.search(text)) is not None:
                out += _readings(found_once, form.rank)
        elif (led := form.pattern.match(text)) is not None:
            out += _readings(led, form.rank)
            if form.where is Where.WHOLE_LINE:
                return out, True
    return out, False


def without_ordinal(name: str) -> str:
    """A name without the counter that leads it: "第3轮 训练损失"."""
    return name if name.isascii() or (found := _ORDINAL.match(name)) is None else name[found.end() :].strip()


def _readings(found: re.Match[str], rank: int) -> list[Reading]:
    groups = found.groupdict()
    out = [
        Reading(field, "", rank, *found.span(group), conversion)
        for group, (field, conversion) in _FIELDS.items()
        if groups.get(group) is not None
    ]
    if "m" in groups and (how := memory_conversion(groups["unit"])) is not None:
        out.append(Reading(MEMORY, "max allocated", rank, *found.span("m"), how))
    return out
