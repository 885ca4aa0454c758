"""Values told by their place in the line and by no word: glued counters, pairs in brackets, bare columns."""

from __future__ import annotations

import re

from supervisor.sources.metrics.names import EPOCH, LOSS, MEMORY, STEP, TOTAL_EPOCHS, TOTAL_STEPS, VAL_LOSS
from supervisor.sources.metrics.readings import Reading
from supervisor.sources.metrics.values import PLAIN, WHOLE, memory_conversion

# What a pattern's groups hold.
_FIELDS = {
    "e": (EPOCH, WHOLE), "E": (TOTAL_EPOCHS, WHOLE), "s": (STEP, WHOLE), "S": (TOTAL_STEPS, WHOLE), "l": (LOSS, PLAIN), "v": (VAL_LOSS, PLAIN),
}  # fmt: skip
# "1epoch:train", ESPnet's.
_EPOCH_FIRST = re.compile(r"(?<![\w.])(?P<e>\d+)epoch\b")
# "ep3 it120", "Epoch12/100", "E24 S10879": counters glued to their names.
_GLUED = re.compile(
    r"(?<![\w./\\=:-])(?:(?:epoch|ep|e(?=\d+(?:/\d+)?[\s,|:\]]*(?:S|B|I|it|step|iter|batch)[\s:]*\d))(?P<e>\d+)(?:/(?P<E>\d+))?"
    r"|(?:step|iter|it|iteration|batch|(?<=\d )[SBI])(?P<s>\d+)(?:/(?P<S>\d+))?)(?![\w./=-]|\.\w)",
    re.IGNORECASE,
)
# "TRAIN Batch 0/100": WeNet prints the epoch and the batch, not a share.
_EPOCH_AND_BATCH = re.compile(r"\bTRAIN (?:\|[^|]*\| )?Batch (?P<e>\d+)/(?P<s>\d+)")
_HELD_OUT_EPOCH = re.compile(r"\bCV (?:\| )?Batch (?P<e>\d+)/\d+")
# "[1,  2000] loss: 2.169", "[  3]    1200 || B: 3.1": epoch and step.
_LEADING_PAIR = re.compile(r"\W*\[(?P<e>\d+),\s*(?P<s>\d+)\]\s+(?:train(?:ing)?[ _])?loss\b", re.IGNORECASE)
_LEADING_TWO = re.compile(r"\s*\[ *(?P<e>\d+)\] +(?P<s>\d+) \|\| ")
# "333 154 Loss=0.042": epoch and step.
_BARE_TWO = re.compile(r"\s*(?P<e>\d+)(?:\s+|\|)(?P<s>\d+)(?:\s+|\|)(?=loss\s?[=:])", re.IGNORECASE)
# Megatron's "memory (MB) | allocated: 1.2 | max allocated: 2.3": the unit is the line's, not the value's.
_MOST_MEMORY = re.compile(r"memory \((?P<unit>[MG]i?B)\) \|.*\bmax allocated: (?P<m>[\d.]+)")
# "第3轮", "第[3/50]轮", "第100步", "第3エポック", "3에폭": numbers before the counter's name.
_ORDINAL = re.compile(
    r"第\s*[\[(（]?\s*(?:(?P<e>\d+)(?:\s*/\s*(?P<E>\d+))?\s*[\])）]?\s*[个個]?\s*(?:轮|輪|epoch|エポック|에폭)|(?P<s>\d+)(?:\s*/\s*(?P<S>\d+))?\s*[\])）]?\s*[个個]?\s*(?:步|次迭代|step|iter|ステップ|스텝))"
)
_KOREAN = re.compile(
    r"(?<![\w.第])(?:(?P<e>\d+)(?:/(?P<E>\d+))?\s?(?:에폭|에포크|エポック)|(?P<s>\d+)(?:/(?P<S>\d+))?\s?(?:스텝|ステップ))"
)
# Lines of a counter and a loss and nothing else. How many digits there are must not matter: a line's shape is read without them.
_ALONE = (
    re.compile(r"(?P<s>\d+) train(?:_loss)? (?P<l>\d+\.\d+)\s*$"),
    re.compile(r"(?P<s>\d+) (?:val|test)(?:_loss)? (?P<v>\d+\.\d+)\s*$"),
    re.compile(r"\s*(?P<s>\d+)/ +(?P<S>\d+): (?P<l>\d+\.\d+)\s*$"),
    re.compile(r"(?P<s>\d+):\t(?P<l>-?\d+\.\d+)\s*$"),
)


def placed(text: str) -> list[Reading]:
    """What stands in known places of a (masked) line, beside what its names say."""
    out: list[Reading] = []
    for found in _GLUED.finditer(text):
        out += _readings(found, 5)
    if not text.isascii():
        for pattern in (_ORDINAL, _KOREAN):
            for found in pattern.finditer(text):
                out += _readings(found, 8)
    for pattern, rank in ((_EPOCH_FIRST, 5), (_EPOCH_AND_BATCH, 9), (_HELD_OUT_EPOCH, 9)):
        if (first := pattern.search(text)) is not None:
            out += _readings(first, rank)
    if (memory := _MOST_MEMORY.search(text)) is not None and (how := memory_conversion(memory["unit"])):
        out.append(Reading(MEMORY, "max allocated", 9, *memory.span("m"), how))
    for pattern in (_LEADING_PAIR, _LEADING_TWO, _BARE_TWO):
        if (first := pattern.match(text)) is not None:
            out += _readings(first, 5)
    return out


def without_ordinal(name: str) -> str:
    """A name without the counter that leads it: "第3轮 训练损失"."""
    return name if name.isascii() or (found := _ORDINAL.match(name)) is None else name[found.end() :].strip()


def alone(text: str) -> list[Reading]:
    """The values of a line that is nothing but a counter and a loss, without a name; empty for all others."""
    for pattern in _ALONE:
        if (found := pattern.match(text)) is not None:
            return _readings(found, 5)
    return []


def _readings(found: re.Match[str], rank: int) -> list[Reading]:
    return [
        Reading(_FIELDS[group][0], "", rank, *found.span(group), _FIELDS[group][1])
        for group, value in found.groupdict().items()
        if value is not None
    ]
