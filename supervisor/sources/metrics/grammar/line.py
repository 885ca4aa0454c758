"""One log line to its readings, by grammar. Slow and careful; `metrics` remembers what it learns a shape at a time."""

from __future__ import annotations

import re

from supervisor.sources.metrics.grammar.bars import find_bar
from supervisor.sources.metrics.grammar.judge import judge, says_nothing
from supervisor.sources.metrics.grammar.nameless import (
    alone,
    field_of_rate,
    nameless,
    placed,
    without_ordinal,
)
from supervisor.sources.metrics.grammar.pairs import PairValues
from supervisor.sources.metrics.grammar.tokens import Token, is_adjacent, mask, name_of
from supervisor.sources.metrics.grammar.values import (
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
from supervisor.sources.metrics.names import (
    EPOCH,
    ETA,
    GRAD_NORM,
    LOSS,
    LR,
    STEP,
    STEP_TIME,
    VAL_LOSS,
    Meaning,
    meaning,
    words_of,
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

_AT_COUNTER = re.compile(
    r"(?P<name>\S.*?) (?:at|after|in|for) (?P<counter>(?:global |train(?:ing)? )?(?:step|iteration|iter|epoch|batch|update))$",
    re.IGNORECASE,
)
_LOSS_BEFORE = re.compile(
    r"\b((?:(?:train(?:ing)?|val(?:idation)?|test|eval(?:uation)?) )?loss)\b[^:=\d]*$", re.IGNORECASE
)
# A value of an option: "--loss 0.1".
_OPTION = re.compile(r"(?:^|[\s\[('\"=,])--[A-Za-z][\w.-]*['\"]?[,=\s]*['\"]?$")
# What of a counter before it a name may begin with: "Epoch38 Train Loss", "steps training loss".
_LED = re.compile(
    r"(?:(?:epoch|ep|e|step|iter|it|iteration|batch|[SBI])\d+\s+|(?:steps|epochs|iters|iterations|batches)\s+(?!per\b|/))+(?=[^\W\d])",
    re.IGNORECASE,
)
_MORE_OF_LIST = re.compile(r",\s*['\"]?[-+]?\d")
_LOSS_OF_SETS = re.compile(r"\bloss\s*[-:=(|]+\s*$", re.IGNORECASE)
_LOSS_BEHIND = re.compile(r"\s+loss\b(?!\s*[:=(\d])", re.IGNORECASE)
_SETS = TRAIN_WORDS | EVAL_WORDS
_INDEX = re.compile(r"\]\s*:")
# A message that was printed while a bar stood on the line: it begins where the bar ends.
_GLUED = re.compile(r"\[\d[\d:]*<[^\]]*\](?=[^\s\]|,)])")
_TIMES = frozenset({"time_batch", "time_step", "time_iter", "time_iteration"})
_COUNTED = frozenset({"batches", "samples", "examples", "iterations", "steps"})


def parse_line(text: str, *, in_record: bool = False, evaluates: bool = False) -> Parsed:
    """Read one clean line whose launcher's prefix is off.

    Args:
        text: the line.
        in_record: lines of this kind belong to a heading above, so that one name a line is enough.
        evaluates: a heading above says that this is about held-out data.
    """
    masked = mask(text)
    if says_nothing(masked):
        return NOTHING
    bar = find_bar(masked)
    bar_readings: tuple[Reading, ...] = ()
    if bar is not None:
        if bar.works_on_other:
            return NOTHING._replace(once=bar.is_new)
        bar_readings = tuple(
            Reading(b.field, "", BAR_RANK, b.start, b.end, b.conversion) for b in bar.readings
        )
        masked = bar.rest
    found = _Line(masked, bar_readings, evaluates=evaluates or (bar is not None and bar.evaluates)).read()
    if glued := _GLUED.search(text):
        found = _as_of_message(found, glued.end())
    parsed = judge(found, masked, has_bar=bool(bar_readings), in_record=in_record)
    return parsed._replace(once=True) if bar is not None and bar.is_new else parsed


def _as_of_message(found: Found, begin: int) -> Found:
    """Of what both say, the message's: the bar behind it shows a mean, or the step before."""
    said = {reading.field for reading in found.readings if reading.start >= begin} - {""}
    return found._replace(
        readings=[r for r in found.readings if r.start >= begin or r.field not in said or r.rank == BAR_RANK]
    )


class _Line(PairValues):
    """The values of one line, read from left to right with what the words between them say."""

    def __init__(self, masked: str, bar: tuple[Reading, ...], *, evaluates: bool) -> None:
        super().__init__(masked, evaluates=evaluates)
        self._out += bar
        self._owed = ""  # a name whose value comes after a counter
        self._summary = False  # "time=45 minutes …": the line sums up an epoch

    def read(self) -> Found:
        """All readings, in order, before any choice between them."""
        if whole := alone(self._text):
            return Found([*self._out, *whole], 0)
        self._out += placed(self._text)
        for place, token in enumerate(self._tokens):
            if (led := _LED.match(token.name)) and (led[0][-2:-1].isdigit() or self._follows_pair(place)):
                token = token._replace(name=token.name[led.end() :])  # noqa: PLW2901 - the same value, better named
            if (bare := without_ordinal(token.name)) != token.name and bare:
                token = token._replace(name=bare)  # noqa: PLW2901 - as above
            self._section(token, place)
            if token.kind == "frac":
                self._fraction(token, place)
            elif token.kind == "dur":
                self._duration(token)
            elif token.kind == "num":
                self._number(token, place)
            else:
                self._ratio(token)
        if self._step_of_evaluation and not any(
            r.field in {LOSS, VAL_LOSS, ""} for r in self._out
        ):  # "Test Step=0 Time=07:31": the evaluation's own
            self._out = [reading for reading in self._out if reading.field != STEP]
        if self._summary:
            self._out = [reading for reading in self._out if reading.field != STEP_TIME]
        return Found(self._out, self._settings)

    def _section(self, token: Token, place: int) -> None:
        """Words before a value that say which set it is from: `Test:`, `[valid]`, `"event": "eval"`."""
        before = token.before
        own = before.rfind(token.name) if token.name else len(before)
        ahead = before[:own] if own >= 0 else before
        if held_out := EVALUATES.search(ahead) or TAG.search(ahead):
            self._evaluates = not TRAINS.search(ahead) or ahead.lower().rfind("train") < held_out.start()
        elif TRAINS.search(ahead):
            self._evaluates = False
        words = set(words_of(token.name))
        if (
            token.tail.lower() in EVAL_WORDS
            or (words and words <= EVAL_WORDS and (token.bare or before.lstrip(" \x01")[:1] == "["))
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
        elif (
            place == 0
            and not EVAL_WORDS.isdisjoint(token.name.lower().split()[:-1])
            and not TRAINS.search(self._text)
        ):
            self._evaluates = True  # as in "Val acc: 0.81 loss: 0.43"

    def _is_last_cell(self, token: Token) -> bool:
        """Whether the line is a name, one pipe and one value."""
        return self._text.count("|") == 1 and not self._text[token.stop :].strip()

    def _is_list(self, token: Token) -> bool:
        """Whether more numbers follow in the same brackets: which of them is the loss, it does not say."""
        return (
            token.before.rstrip()[-1:] in {"[", "("}
            and _MORE_OF_LIST.match(self._text, token.stop) is not None
        )

    def _duration(self, token: Token) -> None:
        self._after_epoch = False
        field = meaning(token.name).field
        if field == ETA and not self._evaluates:
            of_part = not {"loop", "epoch"}.isdisjoint(words_of(token.name))
            self._add(ETA, token, 7 if of_part else 8, Conversion(How.DURATION))
        elif field == STEP_TIME and "per" in words_of(token.name) and not self._evaluates:
            self._add(STEP_TIME, token, 7, Conversion(How.DURATION))
        elif field == STEP_TIME and token.text[:1] != "0":
            self._summary = True

    def _number(self, token: Token, place: int) -> None:
        self._after_epoch = False
        if token.name.lower() in {"rank", "global rank", "global_rank"} and token.text.isdigit():
            self._add(RANK, token, 5, WHOLE)
            return
        token = self._named_elsewhere(token)
        if not token.name or _is_letter(token, place):
            reading = nameless(self._text, token, place, alone=not self._out, evaluates=self._evaluates)
            if reading is not None:
                self._out.append(reading)
            return
        if token.before[-1:] == "/" and token.before[-2:-1].isalpha():
            return  # "Loss.Step/8": part of a name
        words = words_of(token.name)
        if words == ["value"] and (named := self._name_beside()):
            token, words = token._replace(name=named), words_of(named)
        if _is_setting(token, words):
            self._settings += 1
            return
        if words and _SETS.issuperset(words) and self._is_loss_of_set(token):
            token, words = token._replace(name=f"{token.name} loss"), [*words, "loss"]
        following = self._tokens[place + 1] if place + 1 < len(self._tokens) else None
        if (
            set(words) <= TRAIN_WORDS
            and token.text.isdigit()
            and following is not None
            and following.kind == "frac"
            and is_adjacent(following.before)
        ):
            # timm prints the epoch behind "Train:" and the step in brackets.
            self._add(EPOCH, token, 5, WHOLE)
            self._after_epoch = True
            return
        is_counted = following is not None and _counts(following)
        if is_counted and token.bare and (at := _AT_COUNTER.match(token.name)):
            # "average positive_loss at step 200: 1.1": the name belongs to the value behind the counter.
            self._owed, token, words = at["name"], token._replace(name=at["counter"]), words_of(at["counter"])
        self._by_meaning(token, words, following if is_counted else None)

    def _named_elsewhere(self, token: Token) -> Token:
        """The value with the name that an earlier value of the line, its own unit or the only other cell holds."""
        if self._owed and (not token.name or token.name in _COUNTED):
            token = token._replace(name=self._owed, bare=False)
        self._owed = ""
        if (
            token.bare
            and field_of_rate(token.unit) is not None
            and meaning(token.name).field in {LR, LOSS, GRAD_NORM, STEP}
        ):
            self._owed, token = token.unit, token._replace(unit="")  # "lr 0.0003 toks/s 12012"
        if not token.name and token.before.rstrip()[-1:] == "|" and self._is_last_cell(token):
            name, tail, _ = name_of(token.before.rstrip()[:-1])  # "train CrossEntropyLoss |  8.12"
            token = token._replace(name=name, tail=tail, bare=False)
        return token

    def _is_loss_of_set(self, token: Token) -> bool:
        """Whether a value named by its set is a loss, as the word behind it or before all sets says."""
        if not token.unit and _LOSS_BEHIND.match(self._text, token.stop):
            return True  # "Train: 0.31 loss"
        # "loss --- train: 2.31 val: 2.42": the first word is for both.
        return _LOSS_OF_SETS.search(token.before, 0, token.before.rfind(token.name)) is not None

    def _by_meaning(self, token: Token, words: list[str], following: Token | None) -> None:
        """A value by its name's meaning. `following`: a decimal without a name that stands behind it, and may be what is counted."""
        found = meaning(token.name.replace("'s ", " "))
        if found.field is None and "." in token.text and "_".join(words) in _TIMES:
            found = Meaning(STEP_TIME, 5)  # Composer's time/batch counts batches, as a whole number
        if found.field is None or (found.field in {LOSS, VAL_LOSS, ""} and self._is_list(token)):
            return
        if token.bare and following is not None:
            if found.field in {LOSS, VAL_LOSS} and token.text.isdigit():
                # "Train loss 120 0.7123", "Validation loss 1000: 0.51": the step, then the loss.
                if not following.name:  # "train loss of epoch 20: 0.12"
                    self._add(EPOCH if words[-1] in EPOCH_NAMES else STEP, token, 4, WHOLE)
                self._owed = token.name
                return
            if found.field in {STEP, EPOCH} and (owed := _LOSS_BEFORE.search(token.before)) is not None:
                self._owed = owed[1]  # "Training loss (for one batch) at step 200: 1.1109"
        if words == ["batch"] and token.bare and "." in token.text and not token.unit:
            found = Meaning(STEP_TIME, 5)
        if token.bare and found.field == STEP and not token.text.isdigit():
            return
        if words == ["batch"] and token.bare and any(reading.field == LOSS for reading in self._out):
            return  # "loss 0.06 | … | batch 16": how many samples
        self._named(token, found, words)
        self._after_epoch = found.field == EPOCH


def _is_letter(token: Token, place: int) -> bool:
    """Whether a value's name is one letter without ":" or "=", and not the E of an epoch at the line's beginning."""
    return (
        token.bare
        and len(token.name) == 1
        and token.name != "#"
        and not (
            place == 0
            and token.name == "E"
            and token.before.strip(" \x01[(-|>") == "E"
            and token.text.isdigit()
        )
    )


def _is_setting(token: Token, words: list[str]) -> bool:
    """Whether a value is an option's, one of a settings' object, or has a setting's name."""
    if _OPTION.search(token.before) or (
        " " not in token.name and token.name.partition(".")[0] in SETTING_OF and "." in token.name
    ):
        return True
    joined = "_".join(words)
    return joined not in {"total_steps", "max_steps"} and (
        joined in SETTINGS or token.name.lower() in SETTINGS
    )


def _counts(following: Token) -> bool:
    """Whether a decimal without a name of its own follows at once."""
    between = following.before.strip()
    return (
        following.kind == "num"
        and "." in following.text
        and (between in {"", ":", "="} or between.rstrip(":= ") in _COUNTED)
    )
