"""Formats of specific programs that print values without names, so only a value's position shows what it means."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple

from supervisor.sources.metrics.names import Field
from supervisor.sources.metrics.tokens import PLAIN, WHOLE, Conversion, Reading, memory_conversion

# The meaning of each group in a pattern. `m` is memory, in the unit of the group `unit`.
_FIELDS: dict[str, tuple[str, Conversion]] = {
    "e": (Field.EPOCH, WHOLE), "E": (Field.TOTAL_EPOCHS, WHOLE), "s": (Field.STEP, WHOLE), "S": (Field.TOTAL_STEPS, WHOLE), "l": (Field.LOSS, PLAIN), "v": (Field.VAL_LOSS, PLAIN),
}  # fmt: skip


class Where(Enum):
    """Where in a line to look for a pattern."""

    EVERYWHERE = auto()
    ONCE = auto()  # the first match
    FIRST = auto()  # only at the start of the line
    WHOLE_LINE = auto()  # and read nothing else


class Format(NamedTuple):
    """A line format in which position determines meaning.

    Attributes:
        example: a sample line, used by a test.
        pattern: groups `e` (epoch), `s` (step), `E` and `S` (totals), `l` (loss), `v` (held-out loss), `m` and `unit` (memory).
        rank: of several readings of a field on a line, the highest rank wins. A plainly named counter has 3 to 10 (see
            `lexicon`).
    """

    example: str
    where: Where
    rank: int
    pattern: re.Pattern[str]


ORDINAL = re.compile(
    r"第\s*[\[(（]?\s*(?:(?P<e>\d+)(?:\s*/\s*(?P<E>\d+))?\s*[\])）]?\s*[个個]?\s*(?:轮|輪|epoch|エポック|에폭)|(?P<s>\d+)(?:\s*/\s*(?P<S>\d+))?\s*[\])）]?\s*[个個]?\s*(?:步|次迭代|step|iter|ステップ|스텝))"
)
# The number of digits must not matter, because a line's shape is cached without digits.
FORMATS: tuple[Format, ...] = (
    Format("12 train_loss 2.3412", Where.WHOLE_LINE, 5, re.compile(r"(?P<s>\d+) (?:train(?:_loss)? (?P<l>\d+\.\d+)|(?:val|test)(?:_loss)? (?P<v>\d+\.\d+))\s*$")),
    Format("   100/ 200000: 27.81", Where.WHOLE_LINE, 5, re.compile(r"\s*(?P<s>\d+)/ +(?P<S>\d+): (?P<l>\d+\.\d+)\s*$")),
    Format("100:\t-2.81", Where.WHOLE_LINE, 5, re.compile(r"(?P<s>\d+):\t(?P<l>-?\d+\.\d+)\s*$")),
    # Counters attached to their names. Also "Epoch12/100", "Epoch-3 | Batch-120", "E24 S10879".
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
    Format("第3轮 loss: 2.31", Where.EVERYWHERE, 8, ORDINAL),
    # ESPnet prints a range of batches within the epoch.
    Format(
        "1epoch:train:101-200batch: loss=3.2",
        Where.ONCE,
        5,
        re.compile(r"(?<![\w.])(?P<e>\d+)epoch\b(?::train:\d+-(?P<s>\d+)batch\b)?"),
    ),
    # WeNet prints the epoch and the batch, not a part of a total.
    Format("TRAIN Batch 0/100 loss 12.3", Where.ONCE, 9, re.compile(r"\bTRAIN (?:\|[^|]*\| )?Batch (?P<e>\d+)/(?P<s>\d+)")),
    Format("CV Batch 3/100 loss 12.3", Where.ONCE, 9, re.compile(r"\bCV (?:\| )?Batch (?P<e>\d+)/\d+")),
    # In Megatron, the unit belongs to the line, not to the value.
    Format(
        "memory (MB) | allocated: 1.2 | max allocated: 2048.0",
        Where.ONCE,
        9,
        re.compile(r"memory \((?P<unit>[MG]i?B)\) \|.*\bmax allocated: (?P<m>[\d.]+)"),
    ),
    # DARTS prints step, loss, and one or two scores. The step of "valid" counts that pass.
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
    Format("[2][2080/7610], loss=2.45", Where.FIRST, 5, re.compile(r"\W*(?:\[[Tt]rain\]\s?)?\[ *(?P<e>\d+)\]\s?\[ *(?P<s>\d+)/ *(?P<S>\d+)\]")),
    Format("[  3]    1200 || loss: 3.1", Where.FIRST, 5, re.compile(r"\s*\[ *(?P<e>\d+)\] +(?P<s>\d+) \|\| ")),
    Format(
        "333 154 Loss=0.042",
        Where.FIRST,
        5,
        re.compile(r"\s*(?P<e>\d+)(?:\s+|\|)(?P<s>\d+)(?:\s+|\|)(?=loss\s?[=:])", re.IGNORECASE),
    ),
)  # fmt: skip


def read_formats(text: str) -> tuple[list[Reading], bool]:
    """Return the values in a masked line that can be identified by position alone, and whether to stop parsing the line."""
    out: list[Reading] = []
    for form in FORMATS:
        if form.where is Where.EVERYWHERE:
            places = [*form.pattern.finditer(text)]
        else:
            found = form.pattern.search(text) if form.where is Where.ONCE else form.pattern.match(text)
            places = [found] if found is not None else []
        for place in places:
            groups = place.groupdict()
            for group, (field, conversion) in _FIELDS.items():
                if groups.get(group) is not None:
                    out.append(Reading(field, "", form.rank, *place.span(group), conversion))
            if "m" in groups and (how := memory_conversion(groups["unit"])) is not None:
                out.append(Reading(Field.MEMORY, "max allocated", form.rank, *place.span("m"), how))
        if places and form.where is Where.WHOLE_LINE:
            return out, True
    return out, False
