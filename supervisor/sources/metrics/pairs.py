"""Pairs `a/b` in a line: a counter and its total, an epoch and a step, used memory and all of it, or none of these."""

from __future__ import annotations

import re
from itertools import pairwise

from supervisor.sources.metrics.named import LineValues
from supervisor.sources.metrics.names import (
    EPOCH,
    LOSS,
    LR,
    MEMORY,
    STEP,
    TOTAL_EPOCHS,
    TOTAL_STEPS,
    VAL_LOSS,
    Meaning,
    meaning,
    words_of,
)
from supervisor.sources.metrics.tokens import Token, is_adjacent
from supervisor.sources.metrics.values import (
    BAR_RANK,
    PLAIN,
    RANK,
    WHOLE,
    Conversion,
    How,
    Reading,
    magnitude,
    memory_conversion,
)
from supervisor.sources.metrics.words import TRAIN_WORDS

# "3/100 epochs", "5/10 steps": the word behind the pair is what it counts.
_COUNTED_IN = re.compile(
    r"[\s*]*(?:\(\d+%\)\s*)?(?:(epochs?)|(steps?|iters?|iterations?|updates?|batches))\b(?!\s?[:=#]?\s?\d)",
    re.IGNORECASE,
)
# "(0/4) Epoch 1, …": the rank of the world, where counters with names follow.
_RANK_OF = re.compile(r"\(\d+/\d+\) (?=.*\b(?:epoch|step|iter(?:ation)?|memory|batch)\b)", re.IGNORECASE)
_MEMORY_PAIR = re.compile(
    r"(?P<used>\d+(?:\.\d+)?)\s?(?P<u>[KMGT]i?B?)?\s?/\s?\d+(?:\.\d+)?\s?(?P<v>[KMGT]i?B?)?"
)
_TWO_DECIMALS = re.compile(r"([-+]?\d+\.\d+)\s?/\s?(\d+\.\d+)\s*")
# The names of two sets before the losses of both: "train_loss/val_loss 0.81/0.83".
_OF_BOTH_SETS = re.compile(r"\btrain\w*\s?/\s?(?:val|test|dev|eval)", re.IGNORECASE)
# What may stand before a pair that counts steps: marks, and words in brackets.
_NOTHING_AHEAD = re.compile(
    r"(?:.*\x01)?(?:\s*[Tt]rain(?:ing)?\s*[|:])?(?:\s*[:|-]\s*[\w.]+\s*[|-])?(?:\s*\[[A-Za-z][\w ]{0,15}\])*[\s\[\](#=>*|•·:-]*$"
)
_DEEPSPEED = re.compile(r"(?P<e>\d+)/(?P<s>\d+), (?:RunningAvg)?SamplesPerSec=")


def read_pair(line: LineValues, token: Token, place: int) -> None:
    """Add what a pair of whole numbers counts; `place` is its number among the line's values."""
    assert token.total is not None
    epoch_before, line.after_epoch = line.after_epoch, False
    if "%" in token.unit or any(token.start == reading.start for reading in line.readings):
        return
    first, slash, second = token.name.partition("/")
    fields = (meaning(first).field, meaning(second).field) if slash else ()
    if fields in {(EPOCH, STEP), (STEP, EPOCH)}:
        line.readings.append(Reading(fields[0] or "", "", 6, token.start, token.end, WHOLE))
        line.readings.append(Reading(fields[1] or "", "", 6, *token.total, WHOLE))
        return
    found = _meaning_of_pair(token.name)
    unit = _COUNTED_IN.match(line.text, token.stop) if found.field not in {STEP, EPOCH} else None
    if unit is not None and unit[1]:
        _add_epochs(line, token, 5)
    elif unit is not None or found.field == STEP:
        if not line.evaluates:
            _add_counter(line, token, found.rank if unit is None else 5)
    elif found.field == EPOCH and (
        not token.bare or found.rank >= 4 or place == 0 or token.before.strip()[-1:] in "[("
    ):
        _add_epochs(line, token, found.rank)
    elif place == 0 and not token.name and _RANK_OF.match(line.text, max(0, token.start - 1)):
        line.add(RANK, token, 5, WHOLE)
    else:
        _read_nameless_pair(line, token, place, epoch_before=epoch_before)


def counted_up(line: LineValues) -> dict[int, bool]:
    """The places of pairs of a line that counts up to one total ("TRAIN 100/900 200/900 300/900"), and of each whether it is the last."""
    places: dict[int, bool] = {}
    for place, (one, two) in enumerate(pairwise(line.tokens), 1):
        if one.total is None or two.total is None or len(two.before) < 2 or two.before.strip(" \t"):
            continue
        first, second = (line.text[slice(*total)] for total in (one.total, two.total))
        if first == second and float(one.text) < float(two.text):
            places |= {place - 1: False, place: True}
    return places


def add_last_of_many(line: LineValues, token: Token) -> None:
    """Add the last of several counters that a line was continued with."""
    if not line.evaluates:
        _add_counter(line, token, 5)


def _read_nameless_pair(line: LineValues, token: Token, place: int, *, epoch_before: bool) -> None:
    """A pair without a known name: what stands before and behind it decides."""
    is_first = place == 0 and not token.name
    if is_first and any(
        r.field == STEP and r.rank == BAR_RANK and r.start > token.start for r in line.readings
    ):
        _add_epochs(line, token, 3)  # "[3/100]:  50%|█████     | 176/352 …": the bar counts the steps
        return
    words = set(words_of(token.name))
    is_short = epoch_before and words <= {"b", "i", "s"}  # "[E 3/100] [B 120/600]"
    if not line.evaluates and (not token.name or is_short or words <= TRAIN_WORDS | {"progress"}):
        _read_counting_pair(line, token, place, epoch_before=epoch_before, is_short=is_short)


def _read_counting_pair(
    line: LineValues, token: Token, place: int, *, epoch_before: bool, is_short: bool
) -> None:
    words = words_of(token.name)
    following = line.following(place)
    if epoch_before and (is_adjacent(token.before) or is_short):
        _read_behind_epoch(line, token, place)
    elif not epoch_before and _is_in_round_brackets(line.text, token, place):
        pass  # "Acc 45.2 (452/1000)"
    elif following is not None and following.kind == "frac" and is_adjacent(following.before):
        _add_epochs(line, token, 5)
    elif (
        place == 0
        and following is not None
        and following.kind == "frac"
        and meaning(following.name).field == STEP
        and token.before.rstrip()[-1:] == "["
    ):
        _add_epochs(line, token, 3)  # "Train: [3/50] Step 100/390"
    elif line.has(LOSS, VAL_LOSS) and not words:
        pass  # "loss: 2.3  [  640/60000]": samples, not steps
    elif (deepspeed := _DEEPSPEED.match(line.text, token.start)) is not None:
        # DeepSpeed's timer prints epoch_count/local_step here, not step/total.
        line.readings.append(Reading(STEP, "", 5, *deepspeed.span("s"), WHOLE))
    elif words or (place <= 1 and not token.share and _NOTHING_AHEAD.match(token.before)):
        _add_counter(line, token, 3, weak=not words)


def _is_in_round_brackets(text: str, token: Token, place: int) -> bool:
    return token.before.strip() == "(" and place > 0 and text[token.start - 2] != "]"


def _read_behind_epoch(line: LineValues, token: Token, place: int) -> None:
    """A pair at once behind an epoch: the step in it, or the epoch again with its total."""
    assert token.total is not None
    if line.text[token.stop :].strip() in {"):", ")"} and token.before.strip() == "(":
        line.readings.append(Reading(TOTAL_EPOCHS, "", 5, *token.total, WHOLE))  # "Epoch 12 (12/200):"
    elif not (_is_share_in_brackets(line.text, token) and "epoch" in line.tokens[place - 1].name.lower()):
        _add_counter(line, token, 5)


def _is_share_in_brackets(text: str, token: Token) -> bool:
    """Whether a pair's share stands in brackets: "[1280/60000 (2%)]" are samples."""
    return token.share and text[token.start : token.stop].rstrip()[-1:] == ")"


def _add_epochs(line: LineValues, token: Token, rank: int) -> None:
    assert token.total is not None
    line.readings.append(Reading(EPOCH, "", rank, token.start, token.end, WHOLE))
    line.readings.append(Reading(TOTAL_EPOCHS, "", rank, *token.total, WHOLE))
    line.after_epoch = True


def _add_counter(line: LineValues, token: Token, rank: int, *, weak: bool = False) -> None:
    assert token.total is not None
    how = Conversion(How.WHOLE, magnitude(token.unit)) if token.unit else WHOLE
    total = Conversion(How.WHOLE, magnitude(token.scale_end)) if token.scale_end else WHOLE
    line.readings.append(Reading(STEP, "", rank, token.start, token.end, how, weak))
    line.readings.append(Reading(TOTAL_STEPS, "", rank, *token.total, total))


def read_ratio(line: LineValues, token: Token) -> None:
    """Add what a pair with decimals is of: used and total memory, rates of two groups, or two losses; the first of both is meant."""
    found = meaning(token.name) if token.name else Meaning(None)
    if found.field == LR and not token.bare:  # "LR: (0.00002/0.001)"
        first = token.text.partition("/")[0].rstrip()
        line.readings.append(
            Reading(LR, token.name, found.rank, token.start, token.start + len(first), PLAIN)
        )
        return
    if found.field in {LOSS, VAL_LOSS} and (both := _TWO_DECIMALS.fullmatch(token.text)) is not None:
        # "loss 0.81/0.83": training's and the held-out set's, or the newest and the mean
        one = token._replace(text=both[1], end=token.start + both.end(1), kind="num")
        if _OF_BOTH_SETS.search(token.before) is not None:
            line.readings.append(Reading(LOSS, token.name, 8, one.start, one.end, PLAIN))
            line.readings.append(
                Reading(
                    VAL_LOSS, token.name, 8, token.start + both.start(2), token.start + both.end(2), PLAIN
                )
            )
            return
        line.add_named(one, found, words_of(token.name))
        return
    match = _MEMORY_PAIR.match(line.text, token.start)
    if match is None:
        return
    if token.name.lower() in {"", "used"} and line.readings and (match["v"] or "").upper() in {"GB", "GIB"}:
        found = Meaning(MEMORY, 4, weak=True)  # "62.3/80 GiB"
    how = memory_conversion(match["u"] or match["v"] or token.tail) if found.field == MEMORY else None
    if how is not None:
        used = match.span("used")
        line.readings.append(Reading(MEMORY, token.name, found.rank, *used, how, found.weak))


def _meaning_of_pair(name: str) -> Meaning:
    if name.lower() == "epochs":
        return meaning("epoch")  # "Epochs 1/3" counts; "epochs: 3" is a setting
    if name.lower().endswith(" timesteps"):
        return Meaning(STEP, 6)  # "total num timesteps 298800/300000"
    found = meaning(name) if name else Meaning("")
    if found.field != STEP and "/" in name and meaning(name.partition("/")[0]).field == STEP:
        return meaning(name.partition("/")[0])  # 'global_step/max_steps': '78/176'
    return found
