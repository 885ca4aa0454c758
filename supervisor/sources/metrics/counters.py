"""Interprets values that no name identifies: pairs such as `a/b`, and unlabeled numbers."""

from __future__ import annotations

import re

from supervisor.sources.metrics import lexicon
from supervisor.sources.metrics.names import (
    Field,
    Meaning,
    field_of_rate,
    is_step_of,
    is_step_rate,
    meaning,
    words_of,
)
from supervisor.sources.metrics.tokens import (
    BAR_RANK,
    MASKED,
    PLAIN,
    WHOLE,
    Conversion,
    How,
    LineValues,
    Reading,
    Token,
    is_adjacent,
    magnitude,
    memory_conversion,
    time_scale,
)

# The word after a pair tells what it counts: "3/100 epochs", "5/10 steps".
_COUNTED_IN = re.compile(
    r"[\s*]*(?:\(\d+%\)\s*)?(?:(epochs?)|(steps?|iters?|iterations?|updates?|batches))\b(?!\s?[:=#]?\s?\d)",
    re.IGNORECASE,
)
# Rank and world size, followed by named counters: "(0/4) Epoch 1, …".
_RANK_OF = re.compile(r"\(\d+/\d+\) (?=.*\b(?:epoch|step|iter(?:ation)?|memory|batch)\b)", re.IGNORECASE)
_MEMORY_PAIR = re.compile(
    r"(?P<used>\d+(?:\.\d+)?)\s?(?P<u>[KMGT]i?B?)?\s?/\s?\d+(?:\.\d+)?\s?(?P<v>[KMGT]i?B?)?"
)
# What may precede a pair that counts steps: marks, and words in brackets.
_NOTHING_AHEAD = re.compile(
    r"(?:.*\x01)?(?:\s*[Tt]rain(?:ing)?\s*[|:])?(?:\s*[:|-]\s*[\w.]+\s*[|-])?(?:\s*\[[A-Za-z][\w ]{0,15}\])*[\s\[\](#=>*|•·:-]*$"
)
_DEEPSPEED = re.compile(r"(?P<e>\d+)/(?P<s>\d+), (?:RunningAvg)?SamplesPerSec=")


def read_pair(line: LineValues, token: Token, place: int) -> None:
    """Add the readings for a pair of whole numbers. `place` is its index among the values on the line."""
    assert token.total is not None
    epoch_before, line.after_epoch = line.after_epoch, False
    if "%" in token.unit or any(token.start == reading.start for reading in line.readings):
        return
    first, _, second = token.name.partition("/")
    if {meaning(first).field, meaning(second).field} == {Field.EPOCH, Field.STEP}:  # "epoch/iter: 20/5399"
        line.readings.append(Reading(meaning(first).field or "", "", 6, token.start, token.end, WHOLE))
        line.readings.append(Reading(meaning(second).field or "", "", 6, *token.total, WHOLE))
        return
    found = _meaning_of_pair(token.name)
    unit = _COUNTED_IN.match(line.text, token.stop) if found.field not in {Field.STEP, Field.EPOCH} else None
    if unit is not None and unit[1]:
        _add_epochs(line, token, 5)
    elif unit is not None or found.field == Field.STEP:
        if not line.evaluates:
            _add_steps(line, token, found.rank if unit is None else 5)
    elif found.field == Field.EPOCH and (
        not token.bare or found.rank >= 4 or place == 0 or token.before.strip()[-1:] in "[("
    ):
        _add_epochs(line, token, found.rank)
    elif place == 0 and not token.name and _RANK_OF.match(line.text, max(0, token.start - 1)):
        line.add(Field.RANK, token, 5, WHOLE)
    elif (
        place == 0
        and not token.name
        and any(r.field == Field.STEP and r.rank == BAR_RANK and r.start > token.start for r in line.readings)
    ):
        _add_epochs(line, token, 3)  # "[3/100]:  50%|█████     | 176/352 …": the bar counts the steps
    elif not line.evaluates:
        _read_nameless_pair(line, token, place, epoch_before=epoch_before)


def _read_nameless_pair(line: LineValues, token: Token, place: int, *, epoch_before: bool) -> None:
    """Interpret a pair without a recognized name from the surrounding text."""
    assert token.total is not None
    words, before = words_of(token.name), token.before.strip()
    is_short = epoch_before and {"b", "i", "s"}.issuperset(words)  # "[E 3/100] [B 120/600]"
    if token.name and not is_short and not (lexicon.TRAIN_WORDS | {"progress"}).issuperset(words):
        return
    following = next(iter(line.tokens[place + 1 : place + 2]), None)
    is_in_brackets = token.share and line.text[token.start : token.stop].rstrip()[-1:] == ")"
    if epoch_before and (is_adjacent(token.before) or is_short):
        # Directly after an epoch: either the step within it, or the epoch again with its total.
        if line.text[token.stop :].strip() in {"):", ")"} and before == "(":
            line.readings.append(
                Reading(Field.TOTAL_EPOCHS, "", 5, *token.total, WHOLE)
            )  # "Epoch 12 (12/200):"
        elif not (is_in_brackets and "epoch" in line.tokens[place - 1].name.lower()):
            _add_steps(line, token, 5)  # but "[1280/60000 (2%)]" counts samples
    elif not epoch_before and before == "(" and place > 0 and line.text[token.start - 2] != "]":
        pass  # "Acc 45.2 (452/1000)"
    elif following is not None and following.kind == "frac" and is_adjacent(following.before):
        _add_epochs(line, token, 5)
    elif line.has(Field.LOSS, Field.VAL_LOSS) and not words:
        pass  # "loss: 2.3  [  640/60000]": samples, not steps
    elif (deepspeed := _DEEPSPEED.match(line.text, token.start)) is not None:
        # DeepSpeed's timer prints epoch_count/local_step here, not step/total.
        line.readings.append(Reading(Field.STEP, "", 5, *deepspeed.span("s"), WHOLE))
    elif words or (place <= 1 and not token.share and _NOTHING_AHEAD.match(token.before)):
        _add_steps(line, token, 3, weak=not words)


def _add_epochs(line: LineValues, token: Token, rank: int) -> None:
    assert token.total is not None
    line.add(Field.EPOCH, token, rank, WHOLE)
    line.readings.append(Reading(Field.TOTAL_EPOCHS, "", rank, *token.total, WHOLE))
    line.after_epoch = True


def _add_steps(line: LineValues, token: Token, rank: int, *, weak: bool = False) -> None:
    assert token.total is not None
    line.add(Field.STEP, token, rank, Conversion(How.WHOLE, magnitude(token.unit)), weak=weak)
    total = Conversion(How.WHOLE, magnitude(token.scale_end))
    line.readings.append(Reading(Field.TOTAL_STEPS, "", rank, *token.total, total))


def read_ratio(line: LineValues, token: Token) -> None:
    """Add the reading for a pair of decimals (used and total memory). Only the first number counts."""
    found = meaning(token.name) if token.name else Meaning(None)
    match = _MEMORY_PAIR.match(line.text, token.start)
    if match is None:
        return
    if token.name.lower() in {"", "used"} and line.readings and (match["v"] or "").upper() in {"GB", "GIB"}:
        found = Meaning(Field.MEMORY, 4, weak=True)  # "62.3/80 GiB"
    how = memory_conversion(match["u"] or match["v"] or token.tail) if found.field == Field.MEMORY else None
    if how is not None:
        used = match.span("used")
        line.readings.append(Reading(Field.MEMORY, token.name, found.rank, *used, how, found.weak))


def _meaning_of_pair(name: str) -> Meaning:
    if name.lower() == "epochs":
        return meaning("epoch")  # "Epochs 1/3" counts; "epochs: 3" is a setting
    found = meaning(name) if name else Meaning("")
    if found.field != Field.STEP and "/" in name and meaning(name.partition("/")[0]).field == Field.STEP:
        return meaning(name.partition("/")[0])  # 'global_step/max_steps': '78/176'
    return found


_AFTER = re.compile(
    r"\s*(?:\(?(?:bf16|fp16|fp32|fp8|tf32|model|est\.?)\)?\s+)?(mfu|rate|lr|loss|grad norm|epochs?|steps?|avg|left|remaining)\b",
    re.IGNORECASE,
)
# Names that follow their values throughout the line.
_LOSS_AND_RATE = re.compile(r"\d loss\b.*\d (?:LR|lr|rate)\b")
# "1000: 2.1", "100 | loss …", "70<tab>images/sec: 152.2".
_BEHIND_COUNTER = re.compile(r"\s*(?::|\| )|\t[^\W\d]")
# The step and the time since the start: "[120 | 312.41] loss=2.31".
_TIMED = re.compile(r"\|\s*[\d.:]+\s*\]")
# A number with more digits at the start of a line is a time in some unit.
_MOST_DIGITS = 9


def nameless(text: str, token: Token, place: int, *, alone: bool, evaluates: bool) -> Reading | None:
    """Interpret an unnamed value from its unit, the next word or its position. Return None if that fails.

    Args:
        text: the masked line.
        token: the value.
        place: the value's index on the line, from 0.
        alone: whether no earlier value on the line was read.
        evaluates: whether this part of the line is about an evaluation.
    """
    after = _AFTER.match(text, token.stop)
    word = after[1].lower() if after is not None else ""
    unit = token.unit.lower().replace("_per_", "/").replace(" per ", "/")
    rate, scale = field_of_rate(unit), time_scale(unit)

    def found(field: str, rank: int, conversion: Conversion = PLAIN, *, weak: bool = False) -> Reading:
        return Reading(field, "", rank, token.start, token.end, conversion, weak)

    if evaluates and (rate is not None or not word):
        return None
    if rate is not None:
        return found(rate, 6, Conversion(How.NUMBER, magnitude(token.scale_end)))
    if is_step_rate(unit):
        return found(Field.STEP_TIME, 4, Conversion(How.INVERSE))
    if scale is not None and is_step_of(unit):
        return found(Field.STEP_TIME, 6, Conversion(How.NUMBER, scale))
    if scale is not None and word in {"left", "remaining"} and "/" not in unit:
        return found(Field.ETA, 7, Conversion(How.NUMBER, scale))
    if unit == "/s":
        return found(Field.SAMPLES, 4) if not alone else None  # a number of items per second
    if word == "mfu":
        return found(Field.MFU, 8, Conversion(How.NUMBER, 0.01) if unit == "%" else Conversion(How.SHARE))
    if unit:
        if unit in {"ms", "msec"} and place > 0 and token.before[-2:].strip() in {"|", "("}:
            return found(Field.STEP_TIME, 3, Conversion(How.NUMBER, 1e-3), weak=True)  # "| 312 ms", "(312 ms"
        is_listed = unit == "seconds" and place > 1 and "," in token.before  # ", 0.3 seconds"
        return found(Field.STEP_TIME, 3, weak=True) if is_listed else None
    if word == "loss" and _LOSS_AND_RATE.search(text):
        return found(Field.LOSS, 4)  # "11.87 loss, 1e-12 LR"
    if word in {"rate", "lr"}:
        return found(Field.LR, 4)
    if place == 0 and token.text.isdigit() and len(token.text) <= _MOST_DIGITS and _leads(text, token):
        return found(Field.STEP, 3, WHOLE, weak=True)
    # darknet's loss has no name. It follows a nameless step and precedes its own named mean.
    is_behind_step = place == 1 and text[: token.start].strip().rstrip(":").isdigit()
    is_loss = is_behind_step and "." in token.text and "avg" in text[token.end : token.end + 24]
    return found(Field.LOSS, 4) if is_loss else None


def _leads(text: str, token: Token) -> bool:
    """Check whether a number starts the line as a counter: `[100] train_loss=…`, `1000: 2.1`, `100 | loss`."""
    head = text[: token.start].strip(MASKED + " \t")
    tail = text[token.stop :].lstrip()
    bracketed = head[-1:] == "[" and not head.strip("[] ") and tail.startswith("]")
    timed = head == "[" and _TIMED.match(tail) is not None
    return bracketed or timed or (not head and _BEHIND_COUNTER.match(text, token.stop) is not None)
