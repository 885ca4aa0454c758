"""Values without a name: what they are by their unit, by the word behind them, or by their place in the line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from supervisor.sources.metrics.names import (
    ETA,
    LOSS,
    LR,
    MFU,
    SAMPLES,
    STEP,
    STEP_TIME,
    TOKENS,
)
from supervisor.sources.metrics.tokens import MASKED, Token
from supervisor.sources.metrics.values import (
    PLAIN,
    WHOLE,
    Conversion,
    How,
    Reading,
    magnitude,
    time_scale,
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


# A longer number at a line's beginning is a time in some unit.
MOST_DIGITS = 9


class _Bare:
    """A value without a name, and what stands around it.

    Attributes:
        word: the word behind it, if it is one of a few known ones.
        place: its number among the line's values, from 0.
        is_alone: nothing was found on the line before it.
        scale: the seconds of its unit; None where that is no time.
        rate: the field of its unit; None where that is no throughput.
    """

    def __init__(self, text: str, token: Token, place: int, *, alone: bool) -> None:
        after = _AFTER.match(text, token.stop)
        self.text = text
        self.token = token
        self.place = place
        self.is_alone = alone
        self.word = after[1].lower() if after is not None else ""
        self.unit = _PER.sub("/", token.unit.lower())
        self.scale = time_scale(self.unit)
        self.rate = field_of_rate(self.unit)

    @property
    def is_in_brackets(self) -> bool:
        """Whether the value and its unit stand in brackets of their own."""
        return self.token.before[-1:] == "(" and self.text[self.token.stop : self.token.stop + 1] == ")"

    @property
    def ends_row(self) -> bool:
        """Whether it is a decimal in the last of several cells, and all that stands there."""
        is_cell = self.token.before.endswith("| ") and not self.text[self.token.stop :].strip()
        return is_cell and "." in self.token.text

    @property
    def is_leading_counter(self) -> bool:
        """Whether it is a whole number at the line's beginning, and a counter by what follows."""
        is_first = self.place == 0 and self.token.text.isdigit() and len(self.token.text) <= MOST_DIGITS
        return is_first and (
            _leads(self.text, self.token) or _COUNTER_BEHIND.match(self.text, self.token.stop) is not None
        )

    @property
    def is_loss_of_darknet(self) -> bool:
        """Whether it stands where darknet prints the loss: behind the step, neither with a name, before their mean, which has one."""
        token = self.token
        return (
            self.place == 1
            and self.text[: token.start].strip().rstrip(":").isdigit()
            and "." in token.text
            and "avg" in self.text[token.end : token.end + 24]
            and self.word != "avg"
        )


def _reading(
    field: str, rank: int, conversion: Conversion = PLAIN, *, weak: bool = False
) -> Callable[[_Bare], Reading]:
    return lambda one: Reading(field, "", rank, one.token.start, one.token.end, conversion, weak)


def _in_seconds(field: str, rank: int) -> Callable[[_Bare], Reading]:
    return lambda one: _reading(field, rank, Conversion(How.NUMBER, one.scale or 1.0))(one)


class _Rule(NamedTuple):
    """One row of the table of nameless values: of a value the first rule whose `when` holds applies."""

    why: str
    when: Callable[[_Bare], bool]
    then: Callable[[_Bare], Reading | None]


_RULES = (
    _Rule(
        "a throughput by its unit",
        lambda one: one.rate is not None,
        lambda one: _reading(one.rate or "", 6, Conversion(How.NUMBER, magnitude(one.token.scale_end)))(one),
    ),
    _Rule("12.3 it/s", lambda one: is_step_rate(one.unit), _reading(STEP_TIME, 4, Conversion(How.INVERSE))),
    _Rule("0.2 s/it", lambda one: one.scale is not None and is_step_of(one.unit), _in_seconds(STEP_TIME, 6)),
    _Rule(
        "3 h left",
        lambda one: one.scale is not None and one.word in {"left", "remaining"} and "/" not in one.unit,
        _in_seconds(ETA, 7),
    ),
    _Rule("so many a second", lambda one: one.unit == "/s" and not one.is_alone, _reading(SAMPLES, 4)),
    _Rule("41.2% mfu", lambda one: one.word == "mfu" and one.unit == "%", _reading(MFU, 8, Conversion(How.NUMBER, 0.01))),
    _Rule("0.41 mfu", lambda one: one.word == "mfu", _reading(MFU, 8, Conversion(How.SHARE))),
    _Rule(
        "11.87 loss, 1e-12 LR",
        lambda one: one.word == "loss" and not one.unit and _LOSS_AND_RATE.search(one.text) is not None,
        _reading(LOSS, 4),
    ),
    _Rule("1e-12 lr", lambda one: one.word in {"rate", "lr"} and not one.unit, _reading(LR, 4)),
    _Rule(
        "| 312 ms, (312 ms)",
        lambda one: one.unit in {"ms", "msec"} and one.place > 0 and ("|" in one.token.before or one.is_in_brackets),
        _reading(STEP_TIME, 3, Conversion(How.NUMBER, 1e-3), weak=True),
    ),
    _Rule(
        "step 12 | loss 2.3 | 0.25s",
        lambda one: one.unit == "s" and one.place > 1 and one.ends_row,
        _reading(STEP_TIME, 3, weak=True),
    ),
    _Rule(
        ", 0.3 seconds",
        lambda one: one.unit == "seconds" and one.place > 1 and "," in one.token.before,
        _reading(STEP_TIME, 3, weak=True),
    ),
    _Rule("any other unit", lambda one: bool(one.unit), lambda _: None),
    _Rule("a counter at the beginning", lambda one: one.is_leading_counter, _reading(STEP, 3, WHOLE, weak=True)),
    _Rule("darknet's loss", lambda one: one.is_loss_of_darknet, _reading(LOSS, 4)),
)  # fmt: skip


def nameless(text: str, token: Token, place: int, *, alone: bool, evaluates: bool) -> Reading | None:
    """What a value without a name means; None when that is unknown.

    Args:
        text: the masked line.
        token: the value.
        place: its number among the line's values, from 0.
        alone: nothing was found on the line before it.
        evaluates: this part of the line is about an evaluation.
    """
    one = _Bare(text, token, place, alone=alone)
    if evaluates and (one.rate is not None or not one.word):
        return None
    return next((rule.then(one) for rule in _RULES if rule.when(one)), None)


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
    top, slash, bottom = _PER.sub("/", unit.lower()).replace(" ", "").partition("/")
    return (
        bool(slash)
        and top in {"it", "its", "iter", "iters", "step", "steps", "batch", "batches"}
        and bottom in {"s", "sec", "second"}
    )


def is_iteration_rate(words: list[str]) -> bool:
    """Whether a name means iterations a second (`It/sec`); steps a second may be those of an environment."""
    return (
        len(words) == 2 and words[0] in {"it", "its", "iter", "iters"} and words[1] in {"s", "sec", "second"}
    )
