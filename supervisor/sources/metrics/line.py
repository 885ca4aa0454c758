"""Parses one log line with a slow, careful grammar. `metric_reader` caches the result for each line shape."""

from __future__ import annotations

import re

from supervisor.sources.metrics import lexicon
from supervisor.sources.metrics.counters import nameless, read_pair, read_ratio
from supervisor.sources.metrics.formats import ORDINAL, read_formats
from supervisor.sources.metrics.line_report import is_program_text, judge
from supervisor.sources.metrics.names import (
    Field,
    Meaning,
    field_of_rate,
    is_step_of,
    is_step_rate,
    meaning,
    words_of,
)
from supervisor.sources.metrics.progress_bars import find_bar, is_beside_training
from supervisor.sources.metrics.tokens import (
    BAR_RANK,
    MASKED,
    NOTHING,
    PLAIN,
    WHOLE,
    Conversion,
    Found,
    How,
    LineValues,
    Parsed,
    Reading,
    Token,
    is_adjacent,
    logged_behind,
    magnitude,
    mask,
    memory_conversion,
    name_of,
    time_scale,
)

# Counters at the start of a name: "Epoch38 Train Loss", "第3轮 训练损失" (`ORDINAL`).
_LED = re.compile(r"(?:(?:epoch|ep|e|step|iter|it|iteration|batch|[SBI])\d+\s+)+(?=[^\W\d])", re.IGNORECASE)
_LOSS_BEFORE = re.compile(
    r"\b((?:(?:train(?:ing)?|val(?:idation)?|test|eval(?:uation)?) )?loss)\b[^:=\d]*$", re.IGNORECASE
)
# The value of an option: "--loss 0.1".
_OPTION = re.compile(r"(?:^|[\s\[('\"=,])--[A-Za-z][\w.-]*['\"]?[,=\s]*['\"]?$")
_MORE_OF_LIST = re.compile(r",\s*['\"]?[-+]?\d|\), tensor\(")
# "loss --- train: 2.31 val: 2.42": the leading word applies to every set.
_LOSS_BEHIND = re.compile(r"\s+loss\b(?!\s*[:=(\d])", re.IGNORECASE)  # "Train: 0.31 loss"
_LOSS_OF_SETS = re.compile(r"\bloss\s*[-:=(|]+\s*$", re.IGNORECASE)
# The counter between a name and its value: "average positive_loss at step 200: 1.1".
_AT_COUNTER = re.compile(
    r"(?P<name>\S.*?) (?:at|after|in|for) (?P<counter>(?:global |train(?:ing)? )?(?:step|iteration|iter|epoch|batch|update))$",
    re.IGNORECASE,
)
# The name is a separate JSON member: {"name": "loss", "step": 12, "value": 3.9}.
_NAME_OF_VALUE = re.compile(
    r"[\"'](?:name|metric|metric_name|tag|key)[\"']\s*:\s*[\"']([A-Za-z_][\w/. -]{0,40})[\"']", re.IGNORECASE
)
_COUNTERS = frozenset({"step", "epoch", "steps", "iter", "update", "updates", "iteration"})
_COUNTED = frozenset({"batches", "samples", "examples", "iterations", "steps"})
_TIMES = frozenset({"time_batch", "time_step", "time_iter", "time_iteration"})
_NAME = re.compile(r"[A-Za-z_#一-鿿][\w@/.#% '+-]{0,60}$")
# Only the singular counts before the slash. "Steps per second" may count environment steps.
_STEP_RATE = re.compile(
    r"(?:step|iter|it|train(?:ing)? steps)/(?:s|sec|second)$|.*/batches_per_second$", re.IGNORECASE
)
# Things other than a step that a time may be per: "0.02s/sample".
_OF_OTHERS = frozenset({"sample", "img", "image", "epoch", "tick", "kimg"})
# Names for a part of a step, whose time is not the step time.
_PHASES = frozenset({"data", "load", "loading", "forward", "backward", "optimizer", "comm"})
# Names whose values are in thousands.
_KILO = frozenset({"kt_s", "ktok_s", "ktok_sec", "ktokens_s", "ktokens_sec", "ktps", "kwps"})
# A threshold for a loss ("loss < 0.1"), or the number of items ("loss on 1000 samples").
_COMPARED = re.compile(r"(?<![-=])[<>]=?\s*$")
_NO_READING_BEFORE = re.compile(
    r"\s[<>]=?\s*\w|\s+[KMGT]?(?:MACs?|FLOPs?|FLOPS|params?|parameters|bytes|[KMG]i?B|dB)\b"
)
_OF_THINGS = re.compile(
    r"\s+(?:samples|examples|batches|steps|iterations|epochs|gpus|ranks|workers|devices|tokens|sequences|images)\b",
    re.IGNORECASE,
)
_DECIMAL_COMMA = re.compile(r",\d")
_SAID_OF = re.compile(r"\bof\s*$", re.IGNORECASE)
_TIME_OF_STEP = Meaning(Field.STEP_TIME, 5)
_NOTHING = Meaning(None)
# A message printed while a bar was on the line. The message begins where the bar ends.
_GLUED = re.compile(r"\[\d[\d:]*<[^\]]*\](?=[^\s\]|,)])")
# DeepSpeed prints this line at startup, even in a program that counts its own steps.
_ENGINE_STARTS = re.compile(r"\bstep=0, skipped=0\b")


def parse_line(text: str, *, in_record: bool = False, evaluates: bool = False) -> Parsed:
    """Parse a clean line that has no launcher prefix.

    Args:
        text: the line.
        in_record: whether the line belongs to a heading above, in which case one name per line is enough.
        evaluates: whether the line is below a heading for held-out data.
    """
    masked = mask(text)
    if is_program_text(masked):
        return NOTHING
    if _ENGINE_STARTS.search(masked):
        return NOTHING._replace(once=True)
    bar = find_bar(masked) if "/" in masked else None
    bar_readings: tuple[Reading, ...] = ()
    if bar is not None and (message := logged_behind(text, masked, bar.end)) is not None:
        # A bar and the logger's line after it may have different owners, so each is judged on its own.
        bar = find_bar(masked[:message])
        assert bar is not None
        if not bar.readings:
            masked, bar = MASKED * message + masked[message:], None
        else:
            bar = bar._replace(rest=bar.rest + masked[message:])
    if bar is not None:
        if bar.works_on_other:
            return NOTHING._replace(once=bar.is_new)
        bar_readings, masked = bar.readings, bar.rest
    walker = _Walker(masked, bar_readings, evaluates=evaluates or (bar is not None and bar.evaluates))
    found = walker.read()
    if glued := _GLUED.search(text):
        found = _as_of_message(found, glued.end())
    parsed = judge(found, masked, has_bar=bool(bar_readings), in_record=in_record)
    is_of_held_out = walker.line.evaluates and bool(parsed.readings)
    return parsed._replace(evaluates=is_of_held_out, once=bar is not None and bar.is_new)


def _as_of_message(found: Found, begin: int) -> Found:
    """Prefer the message's values over the bar's, which are means or one step old. An epoch summary has no step."""
    of_message = {one.field: one for one in found.readings if one.start >= begin and one.field}
    is_of_epoch = Field.EPOCH in of_message and of_message[Field.EPOCH].conversion == WHOLE
    sums_up = is_of_epoch and Field.STEP not in of_message and Field.LOSS in of_message

    def is_of_bar(one: Reading) -> bool:
        return not sums_up if one.rank == BAR_RANK else one.field not in of_message

    return found._replace(readings=[one for one in found.readings if one.start >= begin or is_of_bar(one)])


class _Walker:
    """Walks the values on a line from left to right, along with the words between them."""

    def __init__(self, masked: str, bar: tuple[Reading, ...], *, evaluates: bool) -> None:
        self.line = LineValues(masked, bar, evaluates=evaluates)
        self._name_to_come = ""  # a name whose value follows a counter
        self._trained_before = False  # the previous value was a loss named as a training loss
        self._counts_all_time = False  # a "time" on this line covers many steps
        self._has_step_of_evaluation = False

    def read(self) -> Found:
        """Return all readings in order, without choosing among them."""
        line = self.line
        readings, is_whole = read_formats(line.text)
        line.readings += readings
        if is_whole:
            return Found(line.readings, 0)
        sums_up = False  # "time=45 minutes …": the line summarizes an epoch
        for place, found in enumerate(line.tokens):
            led = _LED.match(found.name) or (None if found.name.isascii() else ORDINAL.match(found.name))
            name = found.name[led.end() :].strip() if led is not None else ""
            token = found._replace(name=name) if name else found
            line.evaluates = _evaluates(line, token, place)
            if token.kind == "frac":
                read_pair(line, token, place)
                continue
            line.after_epoch = False
            if token.kind == "dur":
                field = meaning(token.name).field
                if field in {Field.ETA, Field.EPOCH_TIME} and not line.evaluates:
                    line.add(field, token, 8, Conversion(How.DURATION))
                elif field == Field.STEP_TIME:
                    sums_up = sums_up or token.text[0] != "0"
                    if not line.evaluates and words_of(token.name) == ["time"]:
                        line.add(Field.EPOCH_TIME, token, 3, Conversion(How.DURATION), weak=True)
            elif token.kind == "num":
                self._number(token, place)
            else:
                read_ratio(line, token)
        # "Test Step=0 Time=07:31": step and time belong to the evaluation
        is_of_evaluation = self._has_step_of_evaluation and not line.has(Field.LOSS, Field.VAL_LOSS, "")
        dropped = {Field.STEP} if is_of_evaluation else set()
        dropped |= {Field.STEP_TIME} if sums_up else set()
        return Found([one for one in line.readings if one.field not in dropped], line.settings)

    def _number(self, token: Token, place: int) -> None:
        line = self.line
        if token.name.lower() in {"rank", "global rank", "global_rank"} and token.text.isdigit():
            line.add(Field.RANK, token, 5, WHOLE)
            return
        if self._name_to_come and (not token.name or token.name in _COUNTED):
            token = token._replace(name=self._name_to_come, bare=False)
        self._name_to_come = ""
        if token.name == "value" and line.has(Field.STEP, Field.EPOCH):
            names = _NAME_OF_VALUE.findall(line.text)
            token = token._replace(name=names[0]) if len(names) == 1 else token
        is_last_cell = line.text.count("|") == 1 and not line.text[token.stop :].strip()
        if not token.name and token.before.rstrip()[-1:] == "|" and is_last_cell:
            name, tail, _ = name_of(token.before.rstrip()[:-1])  # "train CrossEntropyLoss |  8.12"
            token = token._replace(name=name, tail=tail, bare=False)
        if not token.name:
            reading = nameless(line.text, token, place, alone=not line.readings, evaluates=line.evaluates)
            line.readings += [reading] if reading is not None else []
        elif token.before[-1:] == "/" and token.before[-2:-1].isalpha():
            pass  # "Loss.Step/8": part of a name
        elif _is_setting(token):
            line.settings += 1
        else:
            self._named_number(token, next(iter(line.tokens[place + 1 : place + 2]), None))

    def _named_number(self, token: Token, following: Token | None) -> None:
        """Read a number that has a name. `following` is the next value."""
        line, words = self.line, words_of(token.name)
        is_set = bool(words) and (lexicon.TRAIN_WORDS | lexicon.EVAL_WORDS).issuperset(words)
        if is_set and (
            (not token.unit and _LOSS_BEHIND.match(line.text, token.stop))
            or _LOSS_OF_SETS.search(token.before, 0, token.before.rfind(token.name))
        ):
            token, words = token._replace(name=f"{token.name} loss"), [*words, "loss"]
        is_before_pair = following is not None and following.kind == "frac" and is_adjacent(following.before)
        if is_before_pair and set(words) <= lexicon.TRAIN_WORDS and token.text.isdigit():
            line.add(Field.EPOCH, token, 5, WHOLE)  # timm's "Train: 3 [ 120/1251", the step in brackets
            line.after_epoch = True
            return
        is_counted = following is not None and _counts(following)
        if is_counted and token.bare and (at := _AT_COUNTER.match(token.name)):
            self._name_to_come, token = at["name"], token._replace(name=at["counter"])
            words = words_of(token.name)
        found = _meaning_of(token, words)
        # With more numbers in the same brackets, the loss could be any of them.
        in_list = token.before.rstrip()[-1:] in {"[", "("} and _MORE_OF_LIST.match(line.text, token.stop)
        if found.field is None or (found.field in {Field.LOSS, Field.VAL_LOSS, ""} and in_list):
            return
        if token.bare and following is not None and is_counted and self._counts_loss(token, found, following):
            return
        if found.field != Field.STEP or not token.bare or token.text.isdigit():
            self._add_named(token, found, words)
            line.after_epoch = found.field == Field.EPOCH

    def _counts_loss(self, token: Token, found: Meaning, following: Token) -> bool:
        """Check whether a number stands between a loss's name and its value. If it is a named counter, only note the loss's name."""
        if found.field in {Field.LOSS, Field.VAL_LOSS} and token.text.isdigit():
            # "Train loss 120 0.7123", "Validation loss 1000: 0.51": the step, then the loss.
            if not following.name:  # "train loss of epoch 20: 0.12"
                is_epoch = words_of(token.name)[-1] in lexicon.EPOCH_NAMES
                self.line.add(Field.EPOCH if is_epoch else Field.STEP, token, 4, WHOLE)
            self._name_to_come = token.name
            return True
        if (
            found.field in {Field.STEP, Field.EPOCH}
            and (before := _LOSS_BEFORE.search(token.before)) is not None
        ):
            self._name_to_come = before[1]  # "Training loss (for one batch) at step 200: 1.1109"
        return False

    def _add_named(self, token: Token, found: Meaning, words: list[str]) -> None:
        """Add a value according to its name, corrected for its unit and the preceding text."""
        last = token.name.rsplit(None, 1)[-1]
        is_led = " " in token.name and "_" in last and (token.bare or "_" in token.name.partition(" ")[0])
        if found.field == "" and is_led:
            # "CV info cv_loss 88.1": words before an identifier.
            token = token._replace(name=last)
            found, words = meaning(last), words_of(last)
        tail = (
            token.tail if token.tail.lower() in {"ms", "mb", "gb", "gib", "mib", "s", "%", "k", "m"} else ""
        )
        unit = token.unit or tail
        if words == ["time", "step"] and token.text.isdigit() and not unit:
            return  # "time step: 12": an environment's time step
        evaluates = self.line.evaluates or found.is_eval
        if not evaluates and _is_rate_of_steps(found, token, words, unit):
            self.line.add(Field.STEP_TIME, token, 6, Conversion(How.INVERSE))
            return
        if found.field == Field.STEP:
            found = self._step(found, token, words, unit, evaluates=evaluates)
        elif found.field in {"", Field.TOKENS}:
            found = self._by_unit(found, token, words, unit, evaluates=evaluates)
        if found.field is None:
            return
        self._trained_before = found.field == Field.LOSS and not lexicon.TRAIN_WORDS.isdisjoint(words)
        is_time_of_all = found.weak and found.field == Field.STEP_TIME and self._counts_all_time
        if (words == ["train", "time"] and unit) or is_time_of_all:
            return  # the time since the start, or since the last report
        if words[:1] in (["tick"], ["up"]):
            self._counts_all_time = True
        self._take(token, found, words, unit, evaluates=evaluates)

    def _step(self, found: Meaning, token: Token, words: list[str], unit: str, *, evaluates: bool) -> Meaning:
        """Return the meaning of a value named "step": a step, a step time (`Step: 25ms`), or nothing."""
        if token.tail.lower() in {"t", "time", "s", "sec"}:
            return _TIME_OF_STEP
        if time_scale(unit) is not None and unit not in {"m", "M"} and not evaluates:
            is_of_many = words[-1][-1:] == "s"  # "(400 steps = 20.0s)"
            return _NOTHING if is_of_many else _TIME_OF_STEP
        # {"mode": "val", "iter": 19}: the evaluation's own counter
        is_of_evaluation = evaluates and words[-1] in {"iter", "batch"} and "{" in self.line.text
        is_announced = words == ["steps"] and (evaluates or self.line.settings)
        return _NOTHING if is_of_evaluation or is_announced else found

    def _by_unit(
        self, found: Meaning, token: Token, words: list[str], unit: str, *, evaluates: bool
    ) -> Meaning:
        """Return the meaning of a value that is better identified by its unit or the preceding value than by its name."""
        named = found.field != ""  # the name alone means tokens per second
        if not evaluates:
            if not named and time_scale(unit) is not None and is_step_of(unit) and _PHASES.isdisjoint(words):
                return Meaning(Field.STEP_TIME, 6)  # "speed: 0.2s/iter"
            if field_of_rate(unit) is not None:
                if is_beside_training(token.name):
                    return _NOTHING  # "Preprocessing: 812.2 samples/s"
                return Meaning(field_of_rate(unit), max(6, found.rank))
            if not unit and field_of_rate(token.tail) is not None:
                return Meaning(field_of_rate(token.tail), 6)  # "throughput (img/s)"
        if not named and lexicon.EVAL_WORDS.issuperset(words) and self._trained_before:
            return Meaning(Field.VAL_LOSS, 5, is_eval=True)
        if not named and evaluates and "_".join(words) in lexicon.UNCALLED_LOSSES:
            return Meaning(Field.VAL_LOSS, 2, is_eval=True)
        return found

    def _take(self, token: Token, found: Meaning, words: list[str], unit: str, *, evaluates: bool) -> None:
        """Convert a value and store it under its field."""
        add = self.line.add
        match found.field:
            case Field.STEP | Field.EPOCH:
                if unit in {"", "k", "K", "M"}:
                    self._has_step_of_evaluation |= evaluates and found.field == Field.STEP
                    is_whole = found.field == Field.STEP or token.text.isdigit()
                    how = Conversion(How.WHOLE, magnitude(unit)) if is_whole else PLAIN
                    add(found.field, token, found.rank, how, weak=found.weak)
            case Field.LOSS | Field.VAL_LOSS:
                self._loss(token, found, words, unit, evaluates=evaluates)
            case Field.LR:
                # A negative value is the logarithm.
                if unit in {"", "%"} and token.text[0] != "-" and (not evaluates or "lr" in words):
                    add(Field.LR, token, found.rank, PLAIN, name=token.name)
            case Field.GRAD_NORM:
                add(Field.GRAD_NORM, token, found.rank, PLAIN, name=token.name, weak=found.weak)
            case Field.TOKENS | Field.SAMPLES:
                self._rate(token, found, unit, evaluates=evaluates)
            case Field.MFU:
                if not token.text.startswith("-"):  # nanoGPT prints -100 until the first estimate
                    # nanochat prints percent without the sign, with two decimals. Others print fractions.
                    is_percent = len(token.text.partition(".")[2]) <= 2 and "tok/sec" in self.line.text
                    share = Conversion(How.SHARE, 0.01 if is_percent else 1.0)
                    add(Field.MFU, token, found.rank, Conversion(How.NUMBER, 0.01) if unit == "%" else share)
            case Field.MEMORY:
                named = "GB" if {"gb", "gib"} & set(words) else "MB" if {"mb", "mib"} & set(words) else ""
                how_much = memory_conversion(unit or named)
                if how_much is not None:
                    add(Field.MEMORY, token, found.rank, how_much, weak=found.weak, name=token.name)
            case Field.TOTAL_STEPS:
                add(Field.TOTAL_STEPS, token, 1, WHOLE, weak=True)
            case Field.ETA:
                # Without a unit: seconds if the name contains "eta" and the number has no decimals.
                is_plain = "eta" in token.name.lower() and "." not in token.text
                scale = time_scale(unit) if unit else 1.0 if is_plain else None
                if not evaluates and scale is not None:
                    add(Field.ETA, token, 7, Conversion(How.NUMBER, scale))
            case Field.STEP_TIME:
                self._step_time(token, found, unit, words, evaluates=evaluates)
            case Field.EPOCH_TIME:
                scale = time_scale(unit) if unit else 1.0
                if not evaluates and scale is not None:
                    how = Conversion(How.NUMBER, scale)
                    add(Field.EPOCH_TIME, token, found.rank, how, name=token.name, weak=found.weak)
            case _:
                self._own(token, unit, weak=found.weak)

    def _loss(self, token: Token, found: Meaning, words: list[str], unit: str, *, evaluates: bool) -> None:
        if token.bare and (_SAID_OF.search(token.before) or (token.text.isdigit() and len(words) > 2)):
            return  # "the loss of 2.5 million people"
        text, is_whole = self.line.text, token.text.isdigit()
        if (
            unit not in {"", "k", "K"}
            or _COMPARED.search(token.before)
            or _NO_READING_BEFORE.match(text, token.stop)
            or (token.bare and is_whole and _OF_THINGS.match(text, token.stop))
            or (is_whole and _DECIMAL_COMMA.match(text, token.stop))
        ):
            return
        of_training = not found.is_eval and not lexicon.TRAIN_WORDS.isdisjoint(words)
        field = Field.VAL_LOSS if evaluates and not of_training else Field.LOSS
        self.line.add(field, token, found.rank, PLAIN, name=token.name, weak=found.weak)

    def _rate(self, token: Token, found: Meaning, unit: str, *, evaluates: bool) -> None:
        assert found.field is not None
        if evaluates or "tflop" in (unit + token.tail + token.name).lower():
            self._own(token, unit, weak=True)
            return
        scale = magnitude(unit if unit in {"k", "K", "M"} else token.scale_end)
        if "_".join(words_of(token.name)) in _KILO:
            scale *= 1e3
        how = Conversion(How.NUMBER, scale)
        self.line.add(found.field, token, found.rank, how, weak=found.weak, name=token.name)

    def _step_time(
        self, token: Token, found: Meaning, unit: str, words: list[str], *, evaluates: bool
    ) -> None:
        if evaluates:
            self._own(token, unit, weak=True)
            return
        tail = token.tail.lower()
        if not unit and tail and tail != "data" and words == ["time"]:
            return  # "time (sec): 5.40": the number of steps it covers is unknown
        if is_step_rate(unit):
            self.line.add(Field.STEP_TIME, token, found.rank, Conversion(How.INVERSE))
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
            self.line.add(Field.STEP_TIME, token, found.rank, how, name=token.name, weak=found.weak)

    def _own(self, token: Token, unit: str, *, weak: bool) -> None:
        """Add a value, unconverted, under the name the log gives it."""
        name, is_whole = token.name, token.text.isdigit()
        is_score = not lexicon.SCORES.isdisjoint(words_of(name))
        if name.lower() in lexicon.PROSE or not _NAME.match(name):
            return
        if token.bare and not is_score and (" " in name or is_whole):
            return
        doubtful = token.bare and (not is_score or (is_whole and not unit))
        self.line.add("", token, 5, PLAIN, name=name, weak=weak or doubtful)


def _is_rate_of_steps(found: Meaning, token: Token, words: list[str], unit: str) -> bool:
    """Check from its name or unit whether a value is a rate in steps per second."""
    if found.field not in {"", Field.STEP_TIME}:
        return False
    if _STEP_RATE.match(token.name):
        return True
    # "speed: 3.1 it/s". Other names may mean environment steps per second.
    is_named = unit.startswith("it") or not {"speed", "rate", "throughput"}.isdisjoint(words)
    return found.field == "" and (is_step_rate(token.tail) or (is_named and is_step_rate(unit)))


def _evaluates(line: LineValues, token: Token, place: int) -> bool:
    """Check from the words before a value whether it is for held-out data, such as `Test:` or `[valid]`."""
    before = token.before
    own = before.rfind(token.name) if token.name else len(before)
    ahead = before[:own] if own >= 0 else before
    words = set(words_of(token.name))
    if (
        token.tail.lower() in lexicon.EVAL_WORDS
        or (words and words <= lexicon.EVAL_WORDS and (token.bare or before.lstrip(" \x01")[:1] == "["))
        or (words & lexicon.EVAL_WORDS and (token.kind == "frac" or words & _COUNTERS))
        # an evaluation result of a TensorFlow estimator
        or "aving dict" in ahead
        or "aving dict" in token.name
    ):
        return True
    is_led = place == 0 and not lexicon.EVAL_WORDS.isdisjoint(token.name.lower().split()[:-1])
    if is_led and not lexicon.TRAINS.search(line.text):
        return True  # "Val acc: 0.81 loss: 0.43"
    if held_out := lexicon.EVALUATES.search(ahead) or lexicon.TAG.search(ahead):
        return not lexicon.TRAINS.search(ahead) or ahead.lower().rfind("train") < held_out.start()
    return line.evaluates and not lexicon.TRAINS.search(ahead)


def _meaning_of(token: Token, words: list[str]) -> Meaning:
    """Return the meaning of a value's name, taking into account whether the value has decimals."""
    found = meaning(token.name.replace("'s ", " "))
    if found.field is None and "." in token.text and "_".join(words) in _TIMES:
        return Meaning(Field.STEP_TIME, 5)  # Composer's time/batch counts batches, as a whole number
    if found.field is not None and words == ["batch"] and token.bare and "." in token.text and not token.unit:
        return Meaning(Field.STEP_TIME, 5)
    return found


def _is_setting(token: Token) -> bool:
    """Check whether a value belongs to a command-line option or a settings object, or is named like a setting."""
    if _OPTION.search(token.before):
        return True
    if " " not in token.name and "." in token.name and token.name.partition(".")[0] in lexicon.SETTING_OF:
        return True
    joined = "_".join(words_of(token.name))
    is_setting = joined in lexicon.SETTINGS or token.name.lower() in lexicon.SETTINGS
    return is_setting and joined not in {"total_steps", "max_steps"}


def _counts(following: Token) -> bool:
    """Check whether the next value is an unnamed decimal preceded only by a separator."""
    between = following.before.strip()
    return (
        following.kind == "num"
        and "." in following.text
        and (between in {"", ":", "="} or between.rstrip(":= ") in _COUNTED)
    )
