"""Reads one log line by grammar. Slow and careful; `metrics` caches the result per shape."""

from __future__ import annotations

import re

from supervisor.sources.metrics.counters import (
    read_formats,
    read_pair,
    read_ratio,
    without_ordinal,
)
from supervisor.sources.metrics.line_report import is_program_text, judge
from supervisor.sources.metrics.names import (
    EPOCH,
    EPOCH_TIME,
    ETA,
    LOSS,
    STEP,
    STEP_TIME,
    VAL_LOSS,
    Meaning,
    meaning,
    words_of,
)
from supervisor.sources.metrics.prefix import logged_behind
from supervisor.sources.metrics.progress_bars import find_bar
from supervisor.sources.metrics.tokens import MASKED, Token, is_adjacent, mask, name_of
from supervisor.sources.metrics.value_meaning import (
    LineValues,
    nameless,
)
from supervisor.sources.metrics.values import (
    BAR_RANK,
    NOTHING,
    RANK,
    WHOLE,
    Conversion,
    Found,
    How,
    Parsed,
    Reading,
)
from supervisor.sources.metrics.words import (
    EPOCH_NAMES,
    EVAL_WORDS,
    EVALUATES,
    SETTING_OF,
    SETTINGS,
    TAG,
    TRAIN_WORDS,
    TRAINS,
)

_LOSS_BEFORE = re.compile(
    r"\b((?:(?:train(?:ing)?|val(?:idation)?|test|eval(?:uation)?) )?loss)\b[^:=\d]*$", re.IGNORECASE
)
# A value of an option: "--loss 0.1".
_OPTION = re.compile(r"(?:^|[\s\[('\"=,])--[A-Za-z][\w.-]*['\"]?[,=\s]*['\"]?$")
# The rest of a preceding counter at the start of a name: "Epoch38 Train Loss", "steps training loss".
_LED = re.compile(
    r"(?:(?:epoch|ep|e|step|iter|it|iteration|batch|[SBI])\d+\s+|(?:steps|epochs|iters|iterations|batches)\s+(?!per\b|/))+(?=[^\W\d])",
    re.IGNORECASE,
)
_MORE_OF_LIST = re.compile(r",\s*['\"]?[-+]?\d|\), tensor\(")
# "loss --- train: 2.31 val: 2.42": the first word is for all sets.
_LOSS_BEHIND = re.compile(r"\s+loss\b(?!\s*[:=(\d])", re.IGNORECASE)  # "Train: 0.31 loss"
_LOSS_OF_SETS = re.compile(r"\bloss\s*[-:=(|]+\s*$", re.IGNORECASE)
# The counter after a name, before its value: "average positive_loss at step 200: 1.1".
_AT_COUNTER = re.compile(
    r"(?P<name>\S.*?) (?:at|after|in|for) (?P<counter>(?:global |train(?:ing)? )?(?:step|iteration|iter|epoch|batch|update))$",
    re.IGNORECASE,
)
# The name is a separate member: {"name": "loss", "step": 12, "value": 3.9}.
_NAME_OF_VALUE = re.compile(
    r"[\"'](?:name|metric|metric_name|tag|key)[\"']\s*:\s*[\"']([A-Za-z_][\w/. -]{0,40})[\"']", re.IGNORECASE
)
_COUNTERS = frozenset({"step", "epoch", "steps", "iter", "update", "updates", "iteration"})
# A message that was printed while a bar stood on the line: it begins where the bar ends.
_GLUED = re.compile(r"\[\d[\d:]*<[^\]]*\](?=[^\s\]|,)])")
_TIMES = frozenset({"time_batch", "time_step", "time_iter", "time_iteration"})
_COUNTED = frozenset({"batches", "samples", "examples", "iterations", "steps"})


# Printed by DeepSpeed at its start, also in a program with its own step count.
_ENGINE_STARTS = re.compile(r"\bstep=0, skipped=0\b")


def parse_line(text: str, *, in_record: bool = False, evaluates: bool = False) -> Parsed:
    """Read one clean line without its launcher prefix.

    Args:
        text: the line.
        in_record: such lines belong to a heading above, so one name per line is enough.
        evaluates: the line is below a heading of held-out data.
    """
    masked = mask(text)
    if is_program_text(masked):
        return NOTHING
    if _ENGINE_STARTS.search(masked):
        return NOTHING._replace(once=True)
    bar = find_bar(masked)
    bar_readings: tuple[Reading, ...] = ()
    if bar is not None and (message := logged_behind(text, masked, bar.end)) is not None:
        # The owner of a bar before a logger's line says nothing about that line, and vice versa.
        bar = find_bar(masked[:message])
        assert bar is not None
        if not bar.readings:
            masked, bar = MASKED * message + masked[message:], None
        else:
            bar = bar._replace(rest=bar.rest + masked[message:])
    if bar is not None:
        if bar.works_on_other:
            return NOTHING._replace(once=bar.is_new)
        bar_readings = tuple(
            Reading(b.field, "", BAR_RANK, b.start, b.end, b.conversion) for b in bar.readings
        )
        masked = bar.rest
    walker = _Walker(masked, bar_readings, evaluates=evaluates or (bar is not None and bar.evaluates))
    found = walker.read()
    if glued := _GLUED.search(text):
        found = _as_of_message(found, glued.end())
    parsed = judge(found, masked, has_bar=bool(bar_readings), in_record=in_record)
    parsed = parsed._replace(evaluates=walker.evaluates and bool(parsed.readings))
    return parsed._replace(once=True) if bar is not None and bar.is_new else parsed


def _as_of_message(found: Found, begin: int) -> Found:
    """Where both report a field, the message's value counts: the bar shows a mean, or the step before. A message about a whole epoch belongs to no step."""
    of_message = {one.field: one for one in found.readings if one.start >= begin and one.field}
    is_of_epoch = EPOCH in of_message and of_message[EPOCH].conversion == WHOLE
    sums_up = is_of_epoch and STEP not in of_message and LOSS in of_message

    def is_of_bar(one: Reading) -> bool:
        return not sums_up if one.rank == BAR_RANK else one.field not in of_message

    return found._replace(readings=[one for one in found.readings if one.start >= begin or is_of_bar(one)])


class _Walker:
    """Walks through a line's values from left to right, with the words between them."""

    def __init__(self, masked: str, bar: tuple[Reading, ...], *, evaluates: bool) -> None:
        self._line = LineValues(masked, bar, evaluates=evaluates)
        self._name_to_come = ""  # a name whose value comes after a counter
        self._sums_up = False  # "time=45 minutes …": the line sums up an epoch

    @property
    def evaluates(self) -> bool:
        """Whether the line's last value is from held-out data."""
        return self._line.evaluates

    def read(self) -> Found:
        """All readings, in order, without choosing between them."""
        line = self._line
        readings, is_whole = read_formats(line.text)
        line.readings += readings
        if is_whole:
            return Found(line.readings, 0)
        for place, found in enumerate(line.tokens):
            behind_pair = place > 0 and line.tokens[place - 1].kind == "frac"
            led = _LED.match(found.name)
            name = found.name[led.end() :] if led and (led[0][-2:-1].isdigit() or behind_pair) else found.name
            token = found._replace(name=without_ordinal(name) or name)
            line.evaluates = _evaluates(line, token, place)
            match token.kind:
                case "frac":
                    read_pair(line, token, place)
                case "dur":
                    self._duration(token)
                case "num":
                    self._number(token, place)
                case _:
                    read_ratio(line, token)
        # "Test Step=0 Time=07:31": the evaluation's own
        is_of_evaluation = line.has_step_of_evaluation and not line.has(LOSS, VAL_LOSS, "")
        dropped = {STEP} if is_of_evaluation else set()

        def is_dropped(one: Reading) -> bool:
            is_of_all = self._sums_up and one.field == STEP_TIME and one.conversion.how is not How.INVERSE
            return is_of_all or one.field in dropped

        return Found([reading for reading in line.readings if not is_dropped(reading)], line.settings)

    def _duration(self, token: Token) -> None:
        line = self._line
        line.after_epoch = False
        field = meaning(token.name).field
        words = words_of(token.name)
        if field == ETA and not line.evaluates:
            is_of_part = not {"loop", "epoch"}.isdisjoint(words)
            line.add(ETA, token, 7 if is_of_part else 8, Conversion(How.DURATION))
        elif field == EPOCH_TIME and not line.evaluates:
            line.add(EPOCH_TIME, token, 8, Conversion(How.DURATION))
        elif field == STEP_TIME:
            self._sums_up = self._sums_up or token.text[:1] != "0"
            if not line.evaluates and words == ["time"]:
                line.add(EPOCH_TIME, token, 3, Conversion(How.DURATION), weak=True)

    def _number(self, token: Token, place: int) -> None:
        line = self._line
        line.after_epoch = False
        if token.name.lower() in {"rank", "global rank", "global_rank"} and token.text.isdigit():
            line.add(RANK, token, 5, WHOLE)
            return
        if self._name_to_come and (not token.name or token.name in _COUNTED):
            token = token._replace(name=self._name_to_come, bare=False)
        self._name_to_come = ""
        if token.name == "value" and line.has(STEP, EPOCH):
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
            self._named_number(token, line.following(place))

    def _named_number(self, token: Token, following: Token | None) -> None:
        """A number with a name. `following`: the value after it."""
        line = self._line
        words = words_of(token.name)
        is_set = bool(words) and (TRAIN_WORDS | EVAL_WORDS).issuperset(words)
        if is_set and (
            (not token.unit and _LOSS_BEHIND.match(line.text, token.stop))
            or _LOSS_OF_SETS.search(token.before, 0, token.before.rfind(token.name))
        ):
            token, words = token._replace(name=f"{token.name} loss"), [*words, "loss"]
        if _is_epoch_of_timm(token, words, following):
            line.add(EPOCH, token, 5, WHOLE)
            line.after_epoch = True
            return
        is_counted = following is not None and _counts(following)
        if is_counted and token.bare and (at := _AT_COUNTER.match(token.name)):
            self._name_to_come, token = at["name"], token._replace(name=at["counter"])
            words = words_of(token.name)
        found = _meaning_of(token, words)
        if found.field is None or (found.field in {LOSS, VAL_LOSS, ""} and _is_in_list(line.text, token)):
            return
        if token.bare and following is not None and is_counted and self._counts_loss(token, found, following):
            return
        # "loss 0.06 | … | batch 16": the number of samples
        is_batch_size = token.bare and words == ["batch"] and line.has(LOSS)
        is_no_step = found.field == STEP and token.bare and not token.text.isdigit()
        if not is_batch_size and not is_no_step:
            line.add_named(token, found, words)
            line.after_epoch = found.field == EPOCH

    def _counts_loss(self, token: Token, found: Meaning, following: Token) -> bool:
        """Whether a number is between a loss's name and the loss. A counter with its own name contributes only that name."""
        if found.field in {LOSS, VAL_LOSS} and token.text.isdigit():
            # "Train loss 120 0.7123", "Validation loss 1000: 0.51": the step, then the loss.
            if not following.name:  # "train loss of epoch 20: 0.12"
                is_epoch = words_of(token.name)[-1] in EPOCH_NAMES
                self._line.add(EPOCH if is_epoch else STEP, token, 4, WHOLE)
            self._name_to_come = token.name
            return True
        if found.field in {STEP, EPOCH} and (before := _LOSS_BEFORE.search(token.before)) is not None:
            self._name_to_come = before[1]  # "Training loss (for one batch) at step 200: 1.1109"
        return False


def _evaluates(line: LineValues, token: Token, place: int) -> bool:
    """Whether a value is from held-out data, by the words before it: `Test:`, `[valid]`, `"event": "eval"`."""
    before = token.before
    own = before.rfind(token.name) if token.name else len(before)
    ahead = before[:own] if own >= 0 else before
    words = set(words_of(token.name))
    if (
        token.tail.lower() in EVAL_WORDS
        or (words and words <= EVAL_WORDS and (token.bare or before.lstrip(" \x01")[:1] == "["))
        or (words & EVAL_WORDS and (token.kind == "frac" or words & _COUNTERS))
        # TensorFlow's estimators: the result of an evaluation
        or "aving dict" in ahead
        or "aving dict" in token.name
    ):
        return True
    is_led = place == 0 and not EVAL_WORDS.isdisjoint(token.name.lower().split()[:-1])
    if is_led and not TRAINS.search(line.text):
        return True  # "Val acc: 0.81 loss: 0.43"
    if held_out := EVALUATES.search(ahead) or TAG.search(ahead):
        return not TRAINS.search(ahead) or ahead.lower().rfind("train") < held_out.start()
    return line.evaluates and not TRAINS.search(ahead)


def _meaning_of(token: Token, words: list[str]) -> Meaning:
    """The meaning of a value's name, limited by what a whole number or a decimal can be."""
    found = meaning(token.name.replace("'s ", " "))
    if found.field is None and "." in token.text and "_".join(words) in _TIMES:
        return Meaning(STEP_TIME, 5)  # Composer's time/batch counts batches, as a whole number
    if found.field is not None and words == ["batch"] and token.bare and "." in token.text and not token.unit:
        return Meaning(STEP_TIME, 5)
    return found


def _is_in_list(text: str, token: Token) -> bool:
    """Whether more numbers follow in the same brackets, so that it is unknown which is the loss."""
    return token.before.rstrip()[-1:] in {"[", "("} and _MORE_OF_LIST.match(text, token.stop) is not None


def _is_epoch_of_timm(token: Token, words: list[str], following: Token | None) -> bool:
    """Whether a number is the epoch that timm prints after "Train:", with the step in brackets."""
    return (
        set(words) <= TRAIN_WORDS
        and token.text.isdigit()
        and following is not None
        and following.kind == "frac"
        and is_adjacent(following.before)
    )


def _is_setting(token: Token) -> bool:
    """Whether a value belongs to an option, to a settings object, or to a setting's name."""
    if _OPTION.search(token.before):
        return True
    if " " not in token.name and "." in token.name and token.name.partition(".")[0] in SETTING_OF:
        return True
    joined = "_".join(words_of(token.name))
    is_setting = joined in SETTINGS or token.name.lower() in SETTINGS
    return is_setting and joined not in {"total_steps", "max_steps"}


def _counts(following: Token) -> bool:
    """Whether an unnamed decimal follows at once."""
    between = following.before.strip()
    return (
        following.kind == "num"
        and "." in following.text
        and (between in {"", ":", "="} or between.rstrip(":= ") in _COUNTED)
    )
