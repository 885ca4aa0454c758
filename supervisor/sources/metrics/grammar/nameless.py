"""Values without a name: what their unit, the word after them, or their place says that they are."""

from __future__ import annotations

import re

from supervisor.sources.metrics.grammar.tokens import MASKED, Token
from supervisor.sources.metrics.grammar.values import (
    PLAIN,
    WHOLE,
    Conversion,
    How,
    Reading,
    magnitude,
    memory_conversion,
    time_scale,
)
from supervisor.sources.metrics.names import (
    EPOCH,
    ETA,
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
)

_AFTER = re.compile(
    r"\s*(?:\(?(?:bf16|fp16|fp32|fp8|tf32|model|est\.?)\)?\s+)?(mfu|rate|lr|loss|grad norm|epochs?|steps?|avg|left|remaining)\b",
    re.IGNORECASE,
)
# Names behind their values all along the line.
_LOSS_AND_RATE = re.compile(r"\d loss\b.*\d (?:LR|lr|rate)\b")
# "[120 | 312.41] loss=2.31": the step, and the time since the start.
_TIMED = re.compile(r"\|\s*[\d.:]+\s*\]")
_PER = re.compile(r"[_ ]per[_ ]")
# "5000 iteration, loss: 0.3": the counter's name behind it.
_COUNTER_BEHIND = re.compile(
    r"\s(?:iter(?:ation)?s?|steps?|updates?)\s?[,:|]\s*[A-Za-z][\w/ .-]*\s?[:=]", re.IGNORECASE
)
_STEPS = frozenset({"it", "iter", "itr", "iteration", "step", "batch", "update"})


def nameless(text: str, token: Token, place: int, *, alone: bool, evaluates: bool) -> Reading | None:
    """What a value without a name means; None when nothing tells.

    Args:
        text: the masked line.
        token: the value.
        place: its number among the line's values, from 0.
        alone: nothing was found on the line before it.
        evaluates: this part of the line is about an evaluation.
    """
    unit = token.unit.lower()
    after = _AFTER.match(text, token.stop)
    word = after[1].lower() if after is not None else ""
    if evaluates and not word:
        return None

    def reading(field: str, rank: int, conversion: Conversion, *, weak: bool = False) -> Reading:
        return Reading(field, "", rank, token.start, token.end, conversion, weak)

    scale = time_scale(unit)
    rate = field_of_rate(unit)
    if rate is not None:
        return reading(rate, 6, Conversion(How.NUMBER, magnitude(token.scale_end)))
    if is_step_rate(unit):
        return reading(STEP_TIME, 4, Conversion(How.INVERSE))
    if scale is not None and is_step_of(unit):
        return reading(STEP_TIME, 6, Conversion(How.NUMBER, scale))
    if scale is not None and word in {"left", "remaining"} and "/" not in unit:
        return reading(ETA, 7, Conversion(How.NUMBER, scale))
    if unit == "/s" and not alone:
        return reading(SAMPLES, 4, PLAIN)
    if word == "mfu":
        return reading(MFU, 8, Conversion(How.NUMBER, 0.01) if unit == "%" else Conversion(How.SHARE))
    if word == "loss" and not unit and _LOSS_AND_RATE.search(text):
        return reading(LOSS, 4, PLAIN)
    if word in {"rate", "lr"} and not unit:
        return reading(LR, 4, PLAIN)
    if unit in {"ms", "msec"} and place and "|" in token.before:
        return reading(STEP_TIME, 3, Conversion(How.NUMBER, 1e-3), weak=True)
    if unit == "seconds" and place > 1 and "," in token.before:
        return reading(STEP_TIME, 3, PLAIN, weak=True)
    if unit:
        return None
    if (
        place == 0
        and token.text.isdigit()
        and (_leads(text, token) or _COUNTER_BEHIND.match(text, token.stop))
    ):
        return reading(STEP, 3, WHOLE, weak=True)
    # darknet begins with step and loss, and names neither; their mean has a name.
    counted = text[: token.start].strip().rstrip(":").isdigit()
    if (
        place == 1
        and counted
        and "." in token.text
        and "avg" in text[token.end : token.end + 24]
        and word != "avg"
    ):
        return reading(LOSS, 4, PLAIN)
    return None


def _leads(text: str, token: Token) -> bool:
    """Whether the number begins the line as a counter does: `[100] train_loss=…`, `1000: 2.1, …`, `100 | loss …`."""
    head = text[: token.start].strip(MASKED + " \t")
    tail = text[token.stop :].lstrip()
    bracketed = head[-1:] == "[" and not head.strip("[] ") and tail.startswith("]")
    timed = head == "[" and _TIMED.match(tail) is not None
    if (
        not head
        and text[token.stop : token.stop + 1] == "\t"
        and text[token.stop + 1 : token.stop + 2].isalpha()
    ):
        return True  # "70<tab>images/sec: 152.2"
    return bracketed or timed or (not head and tail.startswith((":", "| ")))


def field_of_rate(unit: str) -> str | None:
    """What a rate like `tok/s` or `img/sec` counts; None when it is none of training's throughput."""
    unit = _PER.sub("/", unit.lower()).replace(" ", "")
    top, slash, _ = unit.partition("/")
    if not slash or not unit.endswith(("/s", "/sec", "/second", "gpu", "device", "chip", "rank")):
        return None
    if top.startswith(("tok", "word")):
        return TOKENS
    if top.startswith(("sample", "im", "example", "seq", "sent", "ex", "utt", "clip", "item", "record")):
        return SAMPLES
    return None


def is_step_of(unit: str) -> bool:
    """Whether a unit is something for each step (`s/iter`)."""
    return unit.partition("/")[2].strip() in _STEPS


def is_step_rate(unit: str) -> bool:
    """Whether a unit is steps in a second."""
    top, slash, bottom = unit.lower().replace(" ", "").partition("/")
    return (
        bool(slash)
        and top in {"it", "its", "iter", "iters", "step", "steps"}
        and bottom in {"s", "sec", "second"}
    )


def is_iteration_rate(words: list[str]) -> bool:
    """Whether a name says iterations a second (`It/sec`); steps a second may be those of an environment."""
    return (
        len(words) == 2 and words[0] in {"it", "its", "iter", "iters"} and words[1] in {"s", "sec", "second"}
    )


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
