"""The meaning of a number: without a name by its unit, the next word or its position; with one by the name, corrected by unit and context."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from supervisor.sources.metrics.names import (
    EPOCH,
    EPOCH_TIME,
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
    TOTAL_STEPS,
    VAL_LOSS,
    Meaning,
    meaning,
    words_of,
)
from supervisor.sources.metrics.progress_bars import is_beside_training
from supervisor.sources.metrics.tokens import MASKED, Token, tokens
from supervisor.sources.metrics.values import (
    PLAIN,
    WHOLE,
    Conversion,
    How,
    Reading,
    magnitude,
    memory_conversion,
    time_scale,
)
from supervisor.sources.metrics.words import (
    EVAL_WORDS,
    PROSE,
    SCORES,
    TRAIN_WORDS,
    UNCALLED_LOSSES,
)

_AFTER = re.compile(
    r"\s*(?:\(?(?:bf16|fp16|fp32|fp8|tf32|model|est\.?)\)?\s+)?(mfu|rate|lr|loss|grad norm|epochs?|steps?|avg|left|remaining)\b",
    re.IGNORECASE,
)
# Names after their values all along the line.
_LOSS_AND_RATE = re.compile(r"\d loss\b.*\d (?:LR|lr|rate)\b")
# "1000: 2.1", "100 | loss …", "70<tab>images/sec: 152.2".
_BEHIND_COUNTER = re.compile(r"\s*(?::|\| )|\t[^\W\d]")
# "[120 | 312.41] loss=2.31": the step, and the time since the start.
_TIMED = re.compile(r"\|\s*[\d.:]+\s*\]")
_PER = re.compile(r"[_ ]per[_ ]")
_STEPS = frozenset({"it", "iter", "itr", "iteration", "step", "batch", "update"})
# What a time may be of that is no step: "0.02s/sample".
_OF_OTHERS = frozenset({"sample", "img", "image", "epoch", "tick", "kimg"})


# A longer number at the start of a line is a time in some unit.
MOST_DIGITS = 9


class _Bare:
    """A value without a name, and its surroundings.

    Attributes:
        word: the word after it, if it is a known one.
        place: its index among the line's values, from 0.
        is_alone: nothing was found before it on the line.
        scale: the seconds of its unit; None if that is not a time.
        rate: the field of its unit; None if that is not a throughput.
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
    def is_leading_counter(self) -> bool:
        """Whether it is a whole number at the line's start that the following text makes a counter."""
        is_first = self.place == 0 and self.token.text.isdigit() and len(self.token.text) <= MOST_DIGITS
        return is_first and _leads(self.text, self.token)

    @property
    def is_loss_of_darknet(self) -> bool:
        """Whether it is at darknet's position of the loss: after the step, both without names, before their named mean."""
        token = self.token
        is_behind_step = self.place == 1 and self.text[: token.start].strip().rstrip(":").isdigit()
        return is_behind_step and "." in token.text and "avg" in self.text[token.end : token.end + 24]


def _reading(
    field: str, rank: int, conversion: Conversion = PLAIN, *, weak: bool = False
) -> Callable[[_Bare], Reading]:
    return lambda one: Reading(field, "", rank, one.token.start, one.token.end, conversion, weak)


def _in_seconds(field: str, rank: int) -> Callable[[_Bare], Reading]:
    return lambda one: _reading(field, rank, Conversion(How.NUMBER, one.scale or 1.0))(one)


class _Rule(NamedTuple):
    """One row of the table of nameless values: the first rule whose `when` holds applies."""

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
        "| 312 ms, (312 ms",
        lambda one: one.unit in {"ms", "msec"} and one.place > 0 and one.token.before[-2:].strip() in {"|", "("},
        _reading(STEP_TIME, 3, Conversion(How.NUMBER, 1e-3), weak=True),
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
    """The meaning of a value without a name; None if unknown.

    Args:
        text: the masked line.
        token: the value.
        place: its index among the line's values, from 0.
        alone: nothing was found before it on the line.
        evaluates: this part of the line is about an evaluation.
    """
    one = _Bare(text, token, place, alone=alone)
    if evaluates and (one.rate is not None or not one.word):
        return None
    return next((rule.then(one) for rule in _RULES if rule.when(one)), None)


def _leads(text: str, token: Token) -> bool:
    """Whether the number starts the line as a counter: `[100] train_loss=…`, `1000: 2.1, …`, `100 | loss …`."""
    head = text[: token.start].strip(MASKED + " \t")
    tail = text[token.stop :].lstrip()
    bracketed = head[-1:] == "[" and not head.strip("[] ") and tail.startswith("]")
    timed = head == "[" and _TIMED.match(tail) is not None
    return bracketed or timed or (not head and _BEHIND_COUNTER.match(text, token.stop) is not None)


def field_of_rate(unit: str) -> str | None:
    """The field of a rate like `tok/s` or `img/sec`; None if it is not a training throughput."""
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
    """Whether a unit is per step (`s/iter`)."""
    return unit.partition("/")[2].strip() in _STEPS


def is_step_rate(unit: str) -> bool:
    """Whether a unit is steps per second."""
    top, slash, bottom = _PER.sub("/", unit.lower()).replace(" ", "").partition("/")
    return (
        bool(slash)
        and top in {"it", "its", "iter", "iters", "step", "steps", "batch", "batches"}
        and bottom in {"s", "sec", "second"}
    )


_NAME = re.compile(r"[A-Za-z_#一-鿿][\w@/.#% '+-]{0,60}$")


# A single step's name before the slash: the plural, per second, may mean steps of an environment.
_STEP_RATE = re.compile(
    r"(?:step|iter|it|train(?:ing)? steps)/(?:s|sec|second)$|.*/batches_per_second$", re.IGNORECASE
)
# The part of a step that a time covers.
_PHASES = frozenset({"data", "load", "loading", "forward", "backward", "optimizer", "comm"})
# Values whose names mean thousands.
_KILO = frozenset({"kt_s", "ktok_s", "ktok_sec", "ktokens_s", "ktokens_sec", "ktps", "kwps"})
# A limit for a loss ("loss < 0.1"), or a number of items ("loss on 1000 samples").
_COMPARED = re.compile(r"(?<![-=])[<>]=?\s*$")
_COMPARED_WITH = re.compile(r"\s[<>]=?\s*\w")
_OF_THINGS = re.compile(
    r"\s+(?:samples|examples|batches|steps|iterations|epochs|gpus|ranks|workers|devices|tokens|sequences|images)\b",
    re.IGNORECASE,
)
_DECIMAL_COMMA = re.compile(r",\d")
_SAID_OF = re.compile(r"\bof\s*$", re.IGNORECASE)
_IN_UNITS = re.compile(r"\s+[KMGT]?(?:MACs?|FLOPs?|FLOPS|params?|parameters|bytes|[KMG]i?B|dB)\b")


_TIME_OF_STEP = Meaning(STEP_TIME, 5)
_NOTHING = Meaning(None)


class LineValues:
    """The readings of one line, as its walker (`line`) finds them from left to right.

    Attributes:
        text: the masked line.
        tokens: its values.
        readings: the findings so far.
        settings: the number of setting names so far.
        evaluates: this part of the line is about held-out data.
        after_epoch: the previous value was the epoch.
        has_step_of_evaluation: a step was an evaluation's.
    """

    def __init__(self, masked: str, readings: Iterable[Reading], *, evaluates: bool) -> None:
        self.text = masked
        self.tokens = tokens(masked)
        self.readings: list[Reading] = [*readings]
        self.settings = 0
        self.evaluates = evaluates
        self.after_epoch = False
        self.has_step_of_evaluation = False
        self._trained_before = False  # the value before was a loss named as training's
        self._counts_all_time = False  # a "time" on this line is that of many steps

    def has(self, *fields: str) -> bool:
        """Whether any of these fields was found."""
        return any(reading.field in fields for reading in self.readings)

    def following(self, place: int) -> Token | None:
        """The value after the one at `place`."""
        return self.tokens[place + 1] if place + 1 < len(self.tokens) else None

    def add(
        self,
        field: str,
        token: Token,
        rank: int,
        conversion: Conversion,
        *,
        name: str = "",
        weak: bool = False,
    ) -> None:
        """Add a reading of a value."""
        self.readings.append(Reading(field, name, rank, token.start, token.end, conversion, weak))

    def add_named(self, token: Token, found: Meaning, words: list[str]) -> None:
        """Add a value by its name's meaning, corrected by its unit and the text before it."""
        if (
            found.field == ""
            and " " in token.name
            and "_" in (last := token.name.rsplit(None, 1)[-1])
            and (token.bare or "_" in token.name.partition(" ")[0])
        ):
            # "CV info cv_loss 88.1": words precede an identifier.
            token = token._replace(name=last)
            found, words = meaning(last), words_of(last)
        unit = token.unit or _tail_unit(token.tail)
        if words == ["time", "step"] and token.text.isdigit() and not unit:
            return  # "time step: 12": an environment's
        evaluates = self.evaluates or found.is_eval
        # "speed: 3.1 it/s"; steps a second may be those of an environment.
        is_named = unit.startswith("it") or not {"speed", "rate", "throughput"}.isdisjoint(words)
        is_rate = found.field == "" and is_named and is_step_rate(unit)
        if not evaluates and (is_rate or _is_rate_of_steps(found, token)):
            self.add(STEP_TIME, token, 6, Conversion(How.INVERSE))
            return
        if found.field == STEP:
            found = self._step(found, token, words, unit, evaluates=evaluates)
        elif found.field in {"", TOKENS}:
            found = self._by_unit(found, token, words, unit, evaluates=evaluates)
        if found.field is None:
            return
        self._trained_before = found.field == LOSS and not TRAIN_WORDS.isdisjoint(words)
        if (words == ["train", "time"] and unit) or (
            found.weak and found.field == STEP_TIME and self._counts_all_time
        ):
            return  # the time since the start; since the last report
        if words[:1] in (["tick"], ["up"]):
            self._counts_all_time = True
        self._take(token, found, words, unit, evaluates=evaluates)

    def _step(self, found: Meaning, token: Token, words: list[str], unit: str, *, evaluates: bool) -> Meaning:
        """The meaning of a value with a step's name: a step, a step's time (`Step: 25ms`), or nothing to chart."""
        if token.tail.lower() in {"t", "time", "s", "sec"}:
            return _TIME_OF_STEP
        if time_scale(unit) is not None and unit not in {"m", "M"} and not evaluates:
            is_of_many = words[-1][-1:] == "s"  # "(400 steps = 20.0s)"
            return _NOTHING if is_of_many else _TIME_OF_STEP
        if words == ["steps"] and (evaluates or self.settings):
            return _NOTHING
        if evaluates and words[-1] in {"iter", "batch"} and "{" in self.text:
            return _NOTHING  # {"mode": "val", "iter": 19}: the evaluation's own
        return found

    def _by_unit(
        self, found: Meaning, token: Token, words: list[str], unit: str, *, evaluates: bool
    ) -> Meaning:
        """The meaning of a value if its unit, or the value before it, says more than its name."""
        named = found.field != ""  # tokens a second by the name
        if not evaluates:
            if not named and time_scale(unit) is not None and is_step_of(unit) and _PHASES.isdisjoint(words):
                return Meaning(STEP_TIME, 6)  # "speed: 0.2s/iter"
            if field_of_rate(unit) is not None and is_beside_training(token.name):
                return _NOTHING  # "Preprocessing: 812.2 samples/s"
            if field_of_rate(unit) is not None:
                return Meaning(field_of_rate(unit), max(6, found.rank))
            if not unit and field_of_rate(token.tail) is not None:
                return Meaning(field_of_rate(token.tail), 6)  # "throughput (img/s)"
        if not named and words and EVAL_WORDS.issuperset(words) and self._trained_before:
            return Meaning(VAL_LOSS, 5, is_eval=True)
        if not named and evaluates and "_".join(words) in UNCALLED_LOSSES:
            return Meaning(VAL_LOSS, 2, is_eval=True)
        return found

    def _take(self, token: Token, found: Meaning, words: list[str], unit: str, *, evaluates: bool) -> None:
        """Store a value under its field, converted."""
        match found.field:
            case "step" | "epoch":
                self._counted(token, found, unit, evaluates=evaluates)
            case "loss" | "val_loss":
                self._loss(token, found, words, unit, evaluates=evaluates)
            case "lr":
                # A negative one is the logarithm.
                if unit in {"", "%"} and token.text[0] != "-" and (not evaluates or "lr" in words):
                    self.add(LR, token, found.rank, PLAIN, name=token.name)
            case "grad_norm":
                self.add(GRAD_NORM, token, found.rank, PLAIN, name=token.name, weak=found.weak)
            case "tokens_per_sec" | "samples_per_sec":
                self._rate(token, found, unit, evaluates=evaluates)
            case "mfu":
                if not token.text.startswith("-"):  # nanoGPT prints -100 until it is known
                    share = Conversion(How.SHARE, self._mfu_scale(token))
                    self.add(MFU, token, found.rank, Conversion(How.NUMBER, 0.01) if unit == "%" else share)
            case "memory_used_bytes":
                named = "GB" if {"gb", "gib"} & set(words) else "MB" if {"mb", "mib"} & set(words) else ""
                how_much = memory_conversion(unit or named)
                if how_much is not None:
                    self.add(MEMORY, token, found.rank, how_much, weak=found.weak, name=token.name)
            case "total_steps":
                self.add(TOTAL_STEPS, token, 1, WHOLE, weak=True)
            case "eta_s":
                if not evaluates and (scale := _scale_of_eta(token, unit)) is not None:
                    self.add(ETA, token, 7, Conversion(How.NUMBER, scale))
            case "step_time_s":
                self._step_time(token, found, unit, words, evaluates=evaluates)
            case "epoch_time_s":
                scale = time_scale(unit) if unit else 1.0
                if not evaluates and scale is not None:
                    how = Conversion(How.NUMBER, scale)
                    self.add(EPOCH_TIME, token, found.rank, how, name=token.name, weak=found.weak)
            case _:
                self._own(token, unit, weak=found.weak)

    def _counted(self, token: Token, found: Meaning, unit: str, *, evaluates: bool) -> None:
        if unit and unit not in {"k", "K", "M"}:
            return
        self.has_step_of_evaluation |= evaluates and found.field == STEP
        how = Conversion(How.WHOLE, magnitude(unit)) if unit else WHOLE
        if found.field == EPOCH and not token.text.isdigit():
            how = PLAIN
        self.add(found.field or STEP, token, found.rank, how, weak=found.weak)

    def _loss(self, token: Token, found: Meaning, words: list[str], unit: str, *, evaluates: bool) -> None:
        if token.bare and (_SAID_OF.search(token.before) or (token.text.isdigit() and len(words) > 2)):
            return  # "the loss of 2.5 million people"
        if (unit and unit not in {"k", "K"}) or self._is_no_reading(token):
            return
        of_training = not found.is_eval and not TRAIN_WORDS.isdisjoint(words)
        field = VAL_LOSS if evaluates and not of_training else LOSS
        self.add(field, token, found.rank, PLAIN, name=token.name, weak=found.weak)

    def _is_no_reading(self, token: Token) -> bool:
        """Whether a value after the word loss is a limit, or a number of items."""
        return (
            _COMPARED.search(token.before) is not None
            or _COMPARED_WITH.match(self.text, token.stop) is not None
            or _IN_UNITS.match(self.text, token.stop) is not None
            or (token.bare and token.text.isdigit() and _OF_THINGS.match(self.text, token.stop) is not None)
            or (token.text.isdigit() and _DECIMAL_COMMA.match(self.text, token.stop) is not None)
        )

    def _mfu_scale(self, token: Token) -> float:
        # nanochat prints percent without the sign and with two decimals, even below one; others fractions.
        short = len(token.text.partition(".")[2]) <= 2 and "tok/sec" in self.text
        return 0.01 if short else 1.0

    def _rate(self, token: Token, found: Meaning, unit: str, *, evaluates: bool) -> None:
        assert found.field is not None
        if evaluates or "tflop" in (unit + token.tail + token.name).lower():
            self._own(token, unit, weak=True)
            return
        scale = magnitude(unit if unit in {"k", "K", "M"} else token.scale_end)
        if "_".join(words_of(token.name)) in _KILO:
            scale *= 1e3
        self.add(
            found.field, token, found.rank, Conversion(How.NUMBER, scale), weak=found.weak, name=token.name
        )

    def _step_time(
        self, token: Token, found: Meaning, unit: str, words: list[str], *, evaluates: bool
    ) -> None:
        if evaluates:
            self._own(token, unit, weak=True)
            return
        tail = token.tail.lower()
        if not unit and tail and tail != "data" and words == ["time"]:
            return  # "time (sec): 5.40": of how many steps is unknown
        if is_step_rate(unit):
            self.add(STEP_TIME, token, found.rank, Conversion(How.INVERSE))
            return
        if unit.partition("/")[2].strip() in _OF_OTHERS:
            return
        if unit in {"k", "K"}:
            scale: float | None = 1.0 if "ms" in words else 1e3  # "elapsed_time_per_iteration_ms: 11.5K"
        elif unit or time_scale(tail) is not None:
            scale = time_scale(unit or tail)
        else:
            scale = 1e-3 if "ms" in words else 1.0
        if scale is not None:
            how = Conversion(How.NUMBER, scale)
            self.add(STEP_TIME, token, found.rank, how, name=token.name, weak=found.weak)

    def _own(self, token: Token, unit: str, *, weak: bool) -> None:
        """A value under the log's own name, as printed."""
        name = token.name
        if (
            name.lower() in PROSE
            or not _NAME.match(name)
            or (token.bare and " " in name and not SCORES & set(words_of(name)))
        ):
            return
        if token.bare and token.text.isdigit() and not SCORES & set(words_of(name)):
            return
        doubtful = token.bare and (not SCORES & set(words_of(name)) or (token.text.isdigit() and not unit))
        self.add("", token, 5, PLAIN, name=name, weak=weak or doubtful)


def _is_rate_of_steps(found: Meaning, token: Token) -> bool:
    """Whether a value is steps per second, by its name or the unit after its name."""
    if found.field == STEP_TIME:
        return _STEP_RATE.match(token.name) is not None
    return found.field == "" and (is_step_rate(token.tail) or _STEP_RATE.match(token.name) is not None)


def _scale_of_eta(token: Token, unit: str) -> float | None:
    """Seconds per unit of an ETA: from its name, as printed, or seconds if the name contains "eta" and the number has no decimals."""
    if unit:
        return time_scale(unit)
    return 1.0 if "eta" in token.name.lower() and "." not in token.text else None


def _tail_unit(tail: str) -> str:
    return tail if tail.lower() in {"ms", "mb", "gb", "gib", "mib", "s", "%", "k", "m"} else ""
