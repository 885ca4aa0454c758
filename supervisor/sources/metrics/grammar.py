"""One log line to its readings, by grammar. Slow and careful; `metrics` remembers what it learns a shape at a time."""

from __future__ import annotations

import re

from supervisor.sources.metrics.bars import find_bar
from supervisor.sources.metrics.judge import judge
from supervisor.sources.metrics.nameless import field_of_rate, is_step_of, is_step_rate, nameless
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
    TOTAL_EPOCHS,
    TOTAL_STEPS,
    VAL_LOSS,
    Meaning,
    meaning,
    words_of,
)
from supervisor.sources.metrics.readings import (
    NOTHING,
    RANK,
    Found,
    Parsed,
    Reading,
)
from supervisor.sources.metrics.tokens import Token, mask, tokens
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
    SETTINGS,
    TRAIN_WORDS,
    UNCALLED_LOSSES,
)

_EVALUATES = re.compile(
    r"(?<![\w./@-])(?:val|valid|validate|validating|validation|eval|evals|evaluate|evaluation|evaluating|test|testing|dev|heldout|held-out|验证|测试|(?-i:CV))(?![\w./@-]|\s*=|\s*:\s*(?:n/a|none|nan|-)\b)",
    re.IGNORECASE,
)
_TRAINS = re.compile(r"(?<![\w./@-])(?:train|training|训练)(?![\w./@-])", re.IGNORECASE)
_GLUED_EPOCH = re.compile(r"(?<![\w.])(\d+)epoch\b")
_FAILURE = re.compile(
    r"::\w+\[|\b(?:PASSED|FAILED)\b|\b(?:warn|print|raise|logger\.\w+)\(|(?:^|[\s\]:(])(?:[A-Za-z_][\w.]*)?(?:Error|Exception|Interrupt|Warning)\b(?::|$|\()|\bTraceback\b|^\s+File \"|\bassert(?:ion)?\b|^\s*\^+\s*$|Watchdog caught|timed out|\s//\s|\s\*\*\s|=\s*[\d.]+ \* [A-Za-z_]",
)
_NAME = re.compile(r"[A-Za-z_#一-鿿][\w@/.#% '+-]{0,60}$")
# "(0/4) Epoch 1, …": the rank of the world, where counters with names follow.
_RANK_OF = re.compile(r"\(\d+/\d+\) (?=.*\b(?:epoch|step|iter(?:ation)?|memory|batch)\b)", re.IGNORECASE)
_CHINESE = re.compile(r"第\s*(?P<e>\d+)\s*轮|第\s*(?P<s>\d+)(?:\s*/\s*(?P<t>\d+))?\s*(?:步|次迭代)")
_MEMORY_PAIR = re.compile(
    r"(?P<used>\d+(?:\.\d+)?)\s?(?P<u>[KMGT]i?B?)?\s?/\s?\d+(?:\.\d+)?\s?(?P<v>[KMGT]i?B?)?"
)
_COUNTED = frozenset({"batches", "samples", "examples", "iterations", "steps"})
_DEEPSPEED = re.compile(r"(?P<e>\d+)/(?P<s>\d+), (?:RunningAvg)?SamplesPerSec=")


def parse_line(text: str, *, in_record: bool = False) -> Parsed:
    """Read one clean line whose launcher's prefix is off.

    Args:
        text: the line.
        in_record: lines of this kind belong to a heading above, so that one name a line is enough.
    """
    masked = mask(text)
    if _FAILURE.search(masked):
        return NOTHING
    bar = find_bar(masked)
    bar_readings: tuple[Reading, ...] = ()
    if bar is not None:
        if bar.works_on_other:
            return NOTHING
        bar_readings = tuple(Reading(b.field, "", 2, b.start, b.end, b.conversion) for b in bar.readings)
        masked = bar.rest
    found = _Line(masked, bar_readings, evaluates=bar is not None and bar.evaluates).read()
    return judge(found, masked, has_bar=bool(bar_readings), in_record=in_record)


class _Line:
    """The values of one line, read from left to right with what the words between them say."""

    def __init__(self, masked: str, bar: tuple[Reading, ...], *, evaluates: bool) -> None:
        self._text = masked
        self._tokens = tokens(masked)
        self._evaluates = evaluates
        self._out: list[Reading] = list(bar)
        self._settings = 0
        self._after_epoch = False
        self._trained_before = False  # the value before was a loss named as training's
        self._counts_all_time = False  # a "time" on this line is that of many steps
        self._owed = ""  # a name whose value comes after a counter
        self._summary = False  # "time=45 minutes …": the line sums up an epoch

    def read(self) -> Found:
        """All readings, in order, before any choice between them."""
        if glued := _GLUED_EPOCH.search(self._text):
            self._out.append(Reading(EPOCH, "", 5, *glued.span(1), WHOLE))
        for found in _CHINESE.finditer(self._text):
            for group, field in (("e", EPOCH), ("s", STEP), ("t", TOTAL_STEPS)):
                if found[group] is not None:
                    self._out.append(Reading(field, "", 8, *found.span(group), WHOLE))
        for place, token in enumerate(self._tokens):
            self._section(token)
            if token.kind == "frac":
                self._fraction(token, place)
            elif token.kind == "dur":
                self._duration(token)
            elif token.kind == "num":
                self._number(token, place)
            else:
                self._ratio(token)
        if self._summary:
            self._out = [reading for reading in self._out if reading.field != STEP_TIME]
        return Found(self._out, self._settings)

    def _section(self, token: Token) -> None:
        """Words before a value that say which set it is from: `Test:`, `[valid]`, `"event": "eval"`."""
        before = token.before
        own = before.rfind(token.name) if token.name else len(before)
        ahead = before[:own] if own >= 0 else before
        if held_out := _EVALUATES.search(ahead):
            self._evaluates = not _TRAINS.search(ahead) or ahead.lower().rfind("train") < held_out.start()
        elif _TRAINS.search(ahead):
            self._evaluates = False
        words = set(words_of(token.name))
        if (
            token.tail.lower() in EVAL_WORDS
            or (token.bare and words and words <= EVAL_WORDS)
            or (
                EVAL_WORDS & words
                and (
                    token.kind == "frac" or words & {"step", "epoch", "steps", "iter", "updates", "iteration"}
                )
            )
        ):
            self._evaluates = True
        elif "aving dict" in ahead or "aving dict" in token.name:
            self._evaluates = True  # TensorFlow's estimators: the result of an evaluation

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

    def _fraction(self, token: Token, place: int) -> None:
        assert token.total is not None
        epoch_before, self._after_epoch = self._after_epoch, False
        if "%" in token.unit:
            return
        found = meaning(token.name) if token.name else Meaning("")
        if found.field != STEP and "/" in token.name and meaning(token.name.partition("/")[0]).field == STEP:
            found = meaning(token.name.partition("/")[0])  # 'global_step/max_steps': '78/176'
        first, slash, second = token.name.partition("/")
        if slash and meaning(first).field == EPOCH and meaning(second).field == STEP:
            self._out.append(Reading(EPOCH, "", 6, token.start, token.end, WHOLE))
            self._out.append(Reading(STEP, "", 6, *token.total, WHOLE))
            return
        words = set(words_of(token.name))
        adjacent = _is_adjacent(token.before)
        if found.field == EPOCH and (
            not token.bare or "epoch" in token.name.lower() or token.before.strip()[-1:] in "[("
        ):
            self._out.append(Reading(EPOCH, "", found.rank, token.start, token.end, WHOLE))
            self._out.append(Reading(TOTAL_EPOCHS, "", found.rank, *token.total, WHOLE))
            self._after_epoch = True
            return
        if found.field == STEP:
            if not self._evaluates:
                self._counter(token, found.rank)
            return
        if place == 0 and not token.name and _RANK_OF.match(self._text, max(0, token.start - 1)):
            self._add(RANK, token, 5, WHOLE)
            return
        if self._evaluates or (token.name and not words <= (TRAIN_WORDS | {"progress"})):
            return
        if epoch_before and adjacent:
            if not (token.share and "epoch" in self._tokens[place - 1].name.lower()):
                self._counter(token, 5)
            return
        following = self._tokens[place + 1] if place + 1 < len(self._tokens) else None
        if following is not None and following.kind == "frac" and _is_adjacent(following.before):
            self._out.append(Reading(EPOCH, "", 5, token.start, token.end, WHOLE))
            self._out.append(Reading(TOTAL_EPOCHS, "", 5, *token.total, WHOLE))
            self._after_epoch = True
            return
        deepspeed = _DEEPSPEED.match(self._text, token.start)
        if deepspeed is not None:
            # DeepSpeed's timer prints epoch_count/local_step here, not step/total.
            self._out.append(Reading(STEP, "", 5, *deepspeed.span("s"), WHOLE))
        elif (
            place <= 1 and not token.share and not token.before.strip(" \t\x01[(#>-*").strip()
        ) or words & TRAIN_WORDS:
            self._counter(token, 3)

    def _counter(self, token: Token, rank: int) -> None:
        assert token.total is not None
        how = Conversion(How.WHOLE, magnitude(token.unit)) if token.unit else WHOLE
        total = Conversion(How.WHOLE, magnitude(token.scale_end)) if token.scale_end else WHOLE
        self._out.append(Reading(STEP, "", rank, token.start, token.end, how))
        self._out.append(Reading(TOTAL_STEPS, "", rank, *token.total, total))

    def _duration(self, token: Token) -> None:
        self._after_epoch = False
        field = meaning(token.name).field
        if field == ETA and not self._evaluates:
            self._add(ETA, token, 8, Conversion(How.DURATION))
        elif field == STEP_TIME and token.text[:1] != "0":
            self._summary = True

    def _ratio(self, token: Token) -> None:
        """A pair with decimals: of these only used and total memory are wanted, and only the first."""
        found = meaning(token.name)
        match = _MEMORY_PAIR.match(self._text, token.start)
        if found.field != MEMORY or match is None:
            return
        how = memory_conversion(match["u"] or match["v"] or token.tail)
        if how is not None:
            self._out.append(Reading(MEMORY, token.name, found.rank, *match.span("used"), how, found.weak))

    def _number(self, token: Token, place: int) -> None:
        self._after_epoch = False
        if token.name.lower() in {"rank", "global rank", "global_rank"} and token.text.isdigit():
            self._add(RANK, token, 5, WHOLE)
            return
        if self._owed and (not token.name or token.name in _COUNTED):
            token = token._replace(name=self._owed, bare=False)
        self._owed = ""
        if not token.name or (token.bare and len(token.name) == 1 and token.name != "#"):
            reading = nameless(self._text, token, place, alone=not self._out, evaluates=self._evaluates)
            if reading is not None:
                self._out.append(reading)
            return
        words = words_of(token.name)
        joined = "_".join(words)
        if joined not in {"total_steps", "max_steps"} and (
            joined in SETTINGS or token.name.lower() in SETTINGS
        ):
            self._settings += 1
            return
        following = self._tokens[place + 1] if place + 1 < len(self._tokens) else None
        if (
            set(words) <= TRAIN_WORDS
            and token.text.isdigit()
            and following is not None
            and following.kind == "frac"
            and _is_adjacent(following.before)
        ):
            # timm prints the epoch behind "Train:" and the step in brackets.
            self._add(EPOCH, token, 5, WHOLE)
            self._after_epoch = True
            return
        found = meaning(token.name.replace("'s ", " "))
        if found.field is None:
            return
        if (
            found.field in {LOSS, VAL_LOSS}
            and token.bare
            and token.text.isdigit()
            and following is not None
            and _counts(following)
        ):
            # "Train loss 120 0.7123", "Validation loss 1000: 0.51": the step, then the loss.
            if not following.name:
                self._add(STEP, token, 4, WHOLE)
            self._owed = token.name
            return
        if words == ["batch"] and token.bare and "." in token.text and not token.unit:
            found = Meaning(STEP_TIME, 5)
        if token.bare and found.field in {STEP, EPOCH} and not token.text.isdigit():
            return
        self._named(token, found, words)
        self._after_epoch = found.field == EPOCH

    def _named(self, token: Token, found: Meaning, words: list[str]) -> None:
        unit = token.unit or _tail_unit(token.tail)
        evaluates = self._evaluates or found.is_eval
        if found.field == STEP and token.tail.lower() in {"t", "time", "s", "sec"}:
            found = Meaning(STEP_TIME, 5)
        elif (
            found.field == STEP and time_scale(unit) is not None and unit not in {"m", "M"} and not evaluates
        ):
            found = Meaning(STEP_TIME, 5)  # "Step: 25ms"
        elif found.field == "" and time_scale(unit) is not None and is_step_of(unit) and not evaluates:
            found = Meaning(STEP_TIME, 6)  # "speed: 0.2s/iter"
        elif found.field == STEP and evaluates and words == ["steps"]:
            return
        elif found.field == "" and is_step_rate(token.tail) and not evaluates:
            self._add(STEP_TIME, token, 6, Conversion(How.INVERSE))
            return
        elif found.field == STEP and evaluates and words[-1] in {"iter", "batch"} and "{" in self._text:
            return  # {"mode": "val", "iter": 19}: the evaluation's own
        elif found.field == "" and field_of_rate(unit) is not None and not evaluates:
            found = Meaning(field_of_rate(unit), 6)
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
                self._add(found.field, token, found.rank, how)
            case "loss" | "val_loss":
                if unit and unit not in {"k", "K"}:
                    return
                field = VAL_LOSS if evaluates else LOSS
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


def _counts(following: Token) -> bool:
    """Whether a decimal without a name of its own follows at once."""
    between = following.before.strip()
    return (
        following.kind == "num"
        and "." in following.text
        and (between in {"", ":"} or between.rstrip(": ") in _COUNTED)
    )


def _is_adjacent(before: str) -> bool:
    """Whether nothing but brackets and blanks stands between a value and the one before."""
    return not before.strip(" \t[](),:|>-") and len(before) <= 8


def _tail_unit(tail: str) -> str:
    return tail if tail.lower() in {"ms", "mb", "gb", "gib", "mib", "s", "%", "k", "m"} else ""
