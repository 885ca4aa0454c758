"""What a number with a name means: the name's meaning, corrected by its unit and by the words before it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from supervisor.sources.metrics.bars import is_beside_training
from supervisor.sources.metrics.nameless import (
    field_of_rate,
    is_iteration_rate,
    is_step_of,
    is_step_rate,
)
from supervisor.sources.metrics.names import (
    EPOCH,
    EPOCH_TIME,
    ETA,
    GRAD_NORM,
    LOSS,
    LR,
    MEMORY,
    MFU,
    STEP,
    STEP_TIME,
    TOKENS,
    TOTAL_STEPS,
    VAL_LOSS,
    Meaning,
    meaning,
    words_of,
)
from supervisor.sources.metrics.tokens import Token, tokens
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

_NAME = re.compile(r"[A-Za-z_#一-鿿][\w@/.#% '+-]{0,60}$")


# One step's name before the slash: steps a second, in the plural, may be those of an environment.
_STEP_RATE = re.compile(
    r"(?:step|iter|it|train(?:ing)? steps)/(?:s|sec|second)$|.*/batches_per_second$", re.IGNORECASE
)
# What part of a step a time is.
_PHASES = frozenset({"data", "load", "loading", "forward", "backward", "optimizer", "comm"})
# What is counted in thousands by its name.
_KILO = frozenset({"kt_s", "ktok_s", "ktok_sec", "ktokens_s", "ktokens_sec", "ktps", "kwps"})


# A limit that a loss is compared with ("loss < 0.1"), a number of things ("loss on 1000 samples").
_COMPARED = re.compile(r"(?<![-=])[<>]=?\s*$")
_COMPARED_WITH = re.compile(r"\s[<>]=?\s*\w")
_OF_THINGS = re.compile(
    r"\s+(?:samples|examples|batches|steps|iterations|epochs|gpus|ranks|workers|devices|tokens|sequences|images)\b",
    re.IGNORECASE,
)
_DECIMAL_COMMA = re.compile(r",\d")
_SAID_OF = re.compile(r"\bof\s*$", re.IGNORECASE)
_IN_UNITS = re.compile(r"\s+[KMGT]?(?:MACs?|FLOPs?|FLOPS|params?|parameters|bytes|[KMG]i?B|dB)\b")


# "GPU: allocated 1.2 GB, max allocated 3.4 GB": whose memory it is stands once.
_ALLOCATED = re.compile(r"(?:(?:max|peak|maximum|current)[ _])?alloc(?:ated)?$", re.IGNORECASE)
_ON_DEVICE = re.compile(r"\b(?:gpu|cuda|memory|mem|vram|device)\b", re.IGNORECASE)
_BYTES = frozenset({"MB", "GB", "MiB", "GiB"})
# How much memory there is.
_SIZES = frozenset({"total", "capacity", "limit"})
# {"name": "loss", "step": 12, "value": 3.9}: the name is a member of its own.
_NAME_OF_VALUE = re.compile(
    r"[\"'](?:name|metric|metric_name|tag|key)[\"']\s*:\s*[\"']([A-Za-z_][\w/. -]{0,40})[\"']", re.IGNORECASE
)
_TIME_OF_STEP = Meaning(STEP_TIME, 5)
_NOTHING = Meaning(None)


class LineValues:
    """The readings of one line, as its walker (`line`) finds them from left to right.

    Attributes:
        text: the masked line.
        tokens: its values.
        readings: what was found so far.
        settings: how many names of settings were met.
        evaluates: this part of the line is about held-out data.
        after_epoch: the value before was the epoch.
        has_step_of_evaluation: a step was an evaluation's own.
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
        """Whether one of these fields was found."""
        return any(reading.field in fields for reading in self.readings)

    def following(self, place: int) -> Token | None:
        """The value behind the one at `place`."""
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
        """Add a value by its name's meaning, corrected by its unit and by what stands before it."""
        if (
            found.field == ""
            and " " in token.name
            and "_" in (last := token.name.rsplit(None, 1)[-1])
            and (token.bare or "_" in token.name.partition(" ")[0])
        ):
            # "CV info cv_loss 88.1": words stand before an identifier.
            token = token._replace(name=last)
            found, words = meaning(last), words_of(last)
        unit = token.unit or _tail_unit(token.tail)
        if words == ["time", "step"] and token.text.isdigit() and not unit:
            return  # "time step: 12": an environment's
        evaluates = self.evaluates or found.is_eval
        # "speed: 3.1 it/s"; steps a second may be those of an environment.
        is_named = unit.startswith("it") or not {"speed", "rate", "throughput"}.isdisjoint(words)
        is_rate = found.field == "" and is_named and is_step_rate(unit)
        if not evaluates and (is_rate or _is_rate_of_steps(found, token, words)):
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
        """What a value with a step's name is: a step, the time of one (`Step: 25ms`), or nothing to chart."""
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
        """What a value is where its unit, or the value before it, means more than its name."""
        named = found.field != ""  # tokens a second by the name
        if not named and words == ["gpu"] and unit in _BYTES:
            return Meaning(MEMORY, 5, weak=True)
        if not named and unit in _BYTES and _SIZES.issuperset(words):
            return _NOTHING  # "Allocated: 0.1GB, Reserved: 0.9GB, Total: 4.0GB"
        if not named and _ALLOCATED.match(token.name) and unit in _BYTES:
            at_most = len(words) > 1
            return Meaning(MEMORY, 9 if at_most else 5, weak=not _ON_DEVICE.search(self.text))
        if not evaluates:
            if not named and time_scale(unit) is not None and is_step_of(unit) and _PHASES.isdisjoint(words):
                return Meaning(STEP_TIME, 6)  # "speed: 0.2s/iter"
            if field_of_rate(unit) is not None and is_beside_training(token.name):
                return Meaning(None)  # "Preprocessing: 812.2 samples/s"
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
        """Keep a value under the field that it was found to be of, converted."""
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
                if not evaluates and (scale := _scale_of_eta(token, words, unit)) is not None:
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

    def name_beside(self) -> str:
        """The name that a record holds beside its "value", where it holds a counter too; "" otherwise."""
        counted = self.has(STEP, EPOCH)
        found = _NAME_OF_VALUE.findall(self.text) if counted and "{" in self.text else []
        return found[0] if len(found) == 1 else ""

    def _is_no_reading(self, token: Token) -> bool:
        """Whether a value behind the word loss is a limit that it is compared with, or a number of things."""
        return (
            _COMPARED.search(token.before) is not None
            or _COMPARED_WITH.match(self.text, token.stop) is not None
            or _IN_UNITS.match(self.text, token.stop) is not None
            or (token.bare and token.text.isdigit() and _OF_THINGS.match(self.text, token.stop) is not None)
            or (token.text.isdigit() and _DECIMAL_COMMA.match(self.text, token.stop) is not None)
        )

    def _mfu_scale(self, token: Token) -> float:
        # nanochat prints percent without the sign, with two decimals, also below one; others a fraction.
        short = len(token.text.partition(".")[2]) <= 2 and "tok/sec" in self.text
        return 0.01 if short else 1.0

    def _rate(self, token: Token, found: Meaning, unit: str, *, evaluates: bool) -> None:
        assert found.field is not None
        field = found.field
        lower = unit.lower()
        if lower and "/" in lower:
            field = field_of_rate(lower) or ""
            if not field and lower.startswith("/"):
                field = found.field
        if "tflop" in (lower + token.tail.lower() + token.name.lower()):
            field = ""
        if evaluates or not field:
            self._own(token, unit, weak=True)
            return
        scale = magnitude(unit if unit in {"k", "K", "M"} else token.scale_end)
        if "_".join(words_of(token.name)) in _KILO:
            scale *= 1e3
        self.add(field, token, found.rank, Conversion(How.NUMBER, scale), weak=found.weak, name=token.name)

    def _step_time(
        self, token: Token, found: Meaning, unit: str, words: list[str], *, evaluates: bool
    ) -> None:
        tail = token.tail.lower()
        if evaluates:
            self._own(token, unit, weak=True)
            return
        per = unit.partition("/")[2].strip() if unit else ""
        scale = time_scale(unit) if unit else None
        if scale is None and tail and tail != "data" and words == ["time"]:
            return  # "time (sec): 5.40": of how many steps is unknown
        if scale is None and tail:
            scale = time_scale(tail)
        if unit in {"k", "K"}:
            scale = 1e3 * (1e-3 if "ms" in words else 1.0)  # "elapsed_time_per_iteration_ms: 11.5K"
        if unit and scale is None:
            if is_step_rate(unit):
                self.add(STEP_TIME, token, found.rank, Conversion(How.INVERSE))
            return
        if per in {"sample", "img", "image", "epoch", "tick", "kimg"}:
            return
        if scale is None:
            scale = 1e-3 if "ms" in words else 1.0
        self.add(
            STEP_TIME, token, found.rank, Conversion(How.NUMBER, scale), name=token.name, weak=found.weak
        )

    def _own(self, token: Token, unit: str, *, weak: bool) -> None:
        """A value under the name that the log gives it, as printed."""
        name = token.name
        if (
            name.lower() in PROSE
            or not _NAME.match(name)
            or (token.bare and " " in name and not (SCORES & set(words_of(name)) or _is_of_set(token)))
        ):
            return
        if token.bare and token.text.isdigit() and not SCORES & set(words_of(name)):
            return
        if unit in {"B", "bytes"}:
            return
        doubtful = token.bare and (not SCORES & set(words_of(name)) or (token.text.isdigit() and not unit))
        self.add("", token, 5, PLAIN, name=name, weak=weak or doubtful)


def _is_rate_of_steps(found: Meaning, token: Token, words: list[str]) -> bool:
    """Whether a value counts steps in a second, by its name or the unit behind its name."""
    if found.field == STEP_TIME:
        return _STEP_RATE.match(token.name) is not None
    return found.field == "" and (
        is_step_rate(token.tail) or is_iteration_rate(words) or _STEP_RATE.match(token.name) is not None
    )


def _scale_of_eta(token: Token, words: list[str], unit: str) -> float | None:
    """Seconds in one of an ETA's unit: of its name, or as printed, or seconds where the name holds "eta" and the number no decimals."""
    if "seconds" in words:
        return 1.0
    if unit:
        return time_scale(unit)
    return 1.0 if "eta" in token.name.lower() and "." not in token.text else None


def _is_of_set(token: Token) -> bool:
    """Whether a decimal is named by a set and what of it was measured: "Train error 0.31"."""
    first, _, rest = token.name.lower().partition(" ")
    return first in EVAL_WORDS | TRAIN_WORDS and rest in {"error", "err", "cost"} and "." in token.text


def _tail_unit(tail: str) -> str:
    return tail if tail.lower() in {"ms", "mb", "gb", "gib", "mib", "s", "%", "k", "m"} else ""
