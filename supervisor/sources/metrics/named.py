"""What a number with a name means: the name's meaning, corrected by its unit and by what the line said before."""

from __future__ import annotations

import re

from supervisor.sources.metrics.nameless import (
    field_of_rate,
    is_iteration_rate,
    is_step_of,
    is_step_rate,
)
from supervisor.sources.metrics.names import (
    EPOCH,
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
from supervisor.sources.metrics.readings import (
    Reading,
)
from supervisor.sources.metrics.tokens import Token
from supervisor.sources.metrics.values import (
    PLAIN,
    WHOLE,
    Conversion,
    How,
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
_STEP_RATE = re.compile(r"(?:step|iter|it)/(?:s|sec|second)$", re.IGNORECASE)
# What part of a step a time is.
_PHASES = frozenset({"data", "load", "loading", "forward", "backward", "optimizer", "comm"})
# What is counted in thousands by its name.
_KILO = frozenset({"kt_s", "ktok_s", "ktok_sec", "ktokens_s", "ktokens_sec", "ktps", "kwps"})


# A limit that a loss is compared with ("loss < 0.1"), a number of things ("loss on 1000 samples").
_COMPARED = re.compile(r"[<>]=?\s*$")
_COMPARED_WITH = re.compile(r"\s[<>]=?\s*\w")
_OF_THINGS = re.compile(
    r"\s+(?:samples|examples|batches|steps|iterations|epochs|gpus|ranks|workers|devices|tokens|sequences|images)\b",
    re.IGNORECASE,
)
_SAID_OF = re.compile(r"\bof\s*$", re.IGNORECASE)
_IN_UNITS = re.compile(r"\s+[KMGT]?(?:MACs?|FLOPs?|FLOPS|params?|parameters|bytes|[KMG]i?B|dB)\b")


# "GPU: allocated 1.2 GB, max allocated 3.4 GB": whose memory it is stands once.
_ALLOCATED = re.compile(r"(?:(?:max|peak|maximum|current)[ _])?alloc(?:ated)?$", re.IGNORECASE)
_ON_DEVICE = re.compile(r"\b(?:gpu|cuda|memory|mem|vram|device)\b", re.IGNORECASE)
_BYTES = frozenset({"MB", "GB", "MiB", "GiB"})
# {"name": "loss", "step": 12, "value": 3.9}: the name is a member of its own.
_NAME_OF_VALUE = re.compile(
    r"[\"'](?:name|metric|metric_name|tag|key)[\"']\s*:\s*[\"']([A-Za-z_][\w/. -]{0,40})[\"']", re.IGNORECASE
)


class NamedValues:
    """Keeps the readings of one line, and adds those of named numbers; the line's walker tells where it is."""

    def __init__(self, masked: str, *, evaluates: bool) -> None:
        self._text = masked
        self._evaluates = evaluates
        self._out: list[Reading] = []
        self._settings = 0
        self._trained_before = False  # the value before was a loss named as training's
        self._counts_all_time = False  # a "time" on this line is that of many steps
        self._step_of_evaluation = False

    def _add(
        self,
        field: str,
        token: Token,
        rank: int,
        conversion: Conversion,
        *,
        name: str = "",
        weak: bool = False,
    ) -> None:
        self._out.append(Reading(field, name, rank, token.start, token.end, conversion, weak))

    def _named(self, token: Token, found: Meaning, words: list[str]) -> None:
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
        evaluates = self._evaluates or found.is_eval
        if found.field == STEP and token.tail.lower() in {"t", "time", "s", "sec"}:
            found = Meaning(STEP_TIME, 5)
        elif (
            found.field == STEP and time_scale(unit) is not None and unit not in {"m", "M"} and not evaluates
        ):
            found = Meaning(STEP_TIME, 5)  # "Step: 25ms"
        elif found.field == "" and words == ["gpu"] and unit in _BYTES:
            found = Meaning(MEMORY, 5, weak=True)
        elif found.field == "" and _ALLOCATED.match(token.name) and unit in _BYTES:
            at_most = len(words) > 1
            found = Meaning(MEMORY, 9 if at_most else 5, weak=not _ON_DEVICE.search(self._text))
        elif (
            found.field == ""
            and time_scale(unit) is not None
            and is_step_of(unit)
            and not evaluates
            and _PHASES.isdisjoint(words)
        ):
            found = Meaning(STEP_TIME, 6)  # "speed: 0.2s/iter"
        elif found.field == STEP and evaluates and words == ["steps"]:
            return
        elif (
            (found.field == "" and (is_step_rate(token.tail) or is_iteration_rate(words)))
            or (found.field in {"", STEP_TIME} and _STEP_RATE.match(token.name))
        ) and not evaluates:
            self._add(STEP_TIME, token, 6, Conversion(How.INVERSE))
            return
        elif found.field == STEP and evaluates and words[-1] in {"iter", "batch"} and "{" in self._text:
            return  # {"mode": "val", "iter": 19}: the evaluation's own
        elif found.field in {"", TOKENS} and field_of_rate(unit) is not None and not evaluates:
            found = Meaning(field_of_rate(unit), max(6, found.rank))
        elif (
            found.field in {"", TOKENS}
            and not unit
            and field_of_rate(token.tail) is not None
            and not evaluates
        ):
            found = Meaning(field_of_rate(token.tail), 6)  # "throughput (img/s)"
        elif found.field == "" and words and EVAL_WORDS.issuperset(words) and self._trained_before:
            found = Meaning(VAL_LOSS, 5, is_eval=True)
        elif found.field == "" and evaluates and "_".join(words) in UNCALLED_LOSSES:
            found = Meaning(VAL_LOSS, 2, is_eval=True)
        elif found.field == STEP and self._settings and words == ["steps"]:
            return
        self._trained_before = found.field == LOSS and not TRAIN_WORDS.isdisjoint(words)
        if (words == ["train", "time"] and unit) or (
            found.weak and found.field == STEP_TIME and self._counts_all_time
        ):
            return  # the time since the start; since the last report
        if words[:1] in (["tick"], ["up"]):
            self._counts_all_time = True
        match found.field:
            case "step" | "epoch":
                how = Conversion(How.WHOLE, magnitude(unit)) if unit in {"k", "K", "M"} else WHOLE
                if found.field == EPOCH and not token.text.isdigit():
                    how = PLAIN
                if unit and unit not in {"k", "K", "M"}:
                    return
                self._step_of_evaluation |= evaluates and found.field == STEP
                self._add(found.field, token, found.rank, how)
            case "loss" | "val_loss":
                if token.bare and _SAID_OF.search(token.before):
                    return  # "the loss of 2.5 million people"
                if (unit and unit not in {"k", "K"}) or self._is_no_reading(token):
                    return
                of_training = not found.is_eval and not TRAIN_WORDS.isdisjoint(words)
                field = VAL_LOSS if evaluates and not of_training else LOSS
                if token.bare and token.text.isdigit() and len(words) > 2:
                    return
                self._add(field, token, found.rank, PLAIN, name=token.name)
            case "lr":
                if unit and unit != "%":
                    return
                if not evaluates or "lr" in words:
                    self._add(LR, token, found.rank, PLAIN, name=token.name)
            case "grad_norm":
                self._add(GRAD_NORM, token, found.rank, PLAIN, name=token.name, weak=found.weak)
            case "tokens_per_sec" | "samples_per_sec":
                self._rate(token, found, unit, evaluates=evaluates)
            case "mfu":
                if token.text.startswith("-"):
                    return  # nanoGPT's way to say that it does not know yet
                if unit == "%":
                    self._add(MFU, token, found.rank, Conversion(How.NUMBER, 0.01))
                else:
                    self._add(MFU, token, found.rank, Conversion(How.SHARE, self._mfu_scale(token)))
            case "memory_used_bytes":
                how_much = memory_conversion(
                    unit
                    or ("GB" if {"gb", "gib"} & set(words) else "MB" if {"mb", "mib"} & set(words) else "")
                )
                if how_much is not None:
                    self._add(MEMORY, token, found.rank, how_much, weak=found.weak, name=token.name)
            case "total_steps":
                self._add(TOTAL_STEPS, token, 1, WHOLE, weak=True)
            case "eta_s":
                scale = (
                    time_scale(unit)
                    if unit
                    else (1.0 if "eta" in token.name.lower() and "." not in token.text else None)
                )
                if "seconds" in words:
                    scale = 1.0
                if scale is not None and not evaluates:
                    self._add(ETA, token, 7, Conversion(How.NUMBER, scale))
            case "step_time_s":
                self._step_time(token, found, unit, words, evaluates=evaluates)
            case _:
                self._own(token, unit, weak=found.weak)

    def _name_beside(self) -> str:
        """The name that a record holds beside its "value", where it holds a counter too; "" otherwise."""
        counted = any(reading.field in {STEP, EPOCH} for reading in self._out)
        found = _NAME_OF_VALUE.findall(self._text) if counted and "{" in self._text else []
        return found[0] if len(found) == 1 else ""

    def _is_no_reading(self, token: Token) -> bool:
        """Whether a value behind the word loss is a limit that it is compared with, or a number of things."""
        return (
            _COMPARED.search(token.before) is not None
            or _COMPARED_WITH.match(self._text, token.stop) is not None
            or _IN_UNITS.match(self._text, token.stop) is not None
            or (token.bare and token.text.isdigit() and _OF_THINGS.match(self._text, token.stop) is not None)
        )

    def _mfu_scale(self, token: Token) -> float:
        # nanochat prints percent without the sign, with two decimals, also below one; others a fraction.
        short = len(token.text.partition(".")[2]) <= 2 and "tok/sec" in self._text
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
        self._add(field, token, found.rank, Conversion(How.NUMBER, scale), weak=found.weak, name=token.name)

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
            return  # "time (sec): 5.40": since when, it does not say
        if scale is None and tail:
            scale = time_scale(tail)
        if unit in {"k", "K"}:
            scale = 1e3 * (1e-3 if "ms" in words else 1.0)  # "elapsed_time_per_iteration_ms: 11.5K"
        if unit and scale is None:
            if is_step_rate(unit):
                self._add(STEP_TIME, token, found.rank, Conversion(How.INVERSE))
            return
        if per in {"sample", "img", "image", "epoch", "tick", "kimg"}:
            return
        if scale is None:
            scale = 1e-3 if "ms" in words else 1.0
        self._add(
            STEP_TIME, token, found.rank, Conversion(How.NUMBER, scale), name=token.name, weak=found.weak
        )

    def _own(self, token: Token, unit: str, *, weak: bool) -> None:
        """A value under the name that the log gives it, as printed."""
        name = token.name
        if (
            name.lower() in PROSE
            or not _NAME.match(name)
            or (token.bare and (" " in name and not SCORES & set(words_of(name))))
        ):
            return
        if token.bare and token.text.isdigit() and not SCORES & set(words_of(name)):
            return
        if unit in {"B", "bytes"}:
            return
        doubtful = token.bare and (not SCORES & set(words_of(name)) or (token.text.isdigit() and not unit))
        self._add("", token, 5, PLAIN, name=name, weak=weak or doubtful)


def _tail_unit(tail: str) -> str:
    return tail if tail.lower() in {"ms", "mb", "gb", "gib", "mib", "s", "%", "k", "m"} else ""
