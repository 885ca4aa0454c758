"""Pairs `a/b` in a line: a counter and its total, an epoch and a step, used memory and all of it, or none of these."""

from __future__ import annotations

import re

from supervisor.sources.metrics.grammar.named import NamedValues
from supervisor.sources.metrics.grammar.tokens import Token, is_adjacent, tokens
from supervisor.sources.metrics.grammar.values import (
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
from supervisor.sources.metrics.words import TRAIN_WORDS

# "3/100 epochs", "5/10 steps": the unit says what the pair counts.
_COUNTED_IN = re.compile(
    r"[\s*]*(?:\(\d+%\)\s*)?(?:(epochs?)|(steps?|iters?|iterations?|updates?|batches))\b(?!\s?[:=#]?\s?\d)",
    re.IGNORECASE,
)
# "(0/4) Epoch 1, …": the rank of the world, where counters with names follow.
_RANK_OF = re.compile(r"\(\d+/\d+\) (?=.*\b(?:epoch|step|iter(?:ation)?|memory|batch)\b)", re.IGNORECASE)
_MEMORY_PAIR = re.compile(
    r"(?P<used>\d+(?:\.\d+)?)\s?(?P<u>[KMGT]i?B?)?\s?/\s?\d+(?:\.\d+)?\s?(?P<v>[KMGT]i?B?)?"
)
# What may stand before a pair that counts steps: marks, and words in brackets.
_NOTHING_AHEAD = re.compile(
    r"(?:.*\x01)?(?:\s*[Tt]rain(?:ing)?\s*[|:])?(?:\s*[:|-]\s*[\w.]+\s*[|-])?(?:\s*\[[A-Za-z][\w ]{0,15}\])*[\s\[\](#=>*|•·:-]*$"
)
_DEEPSPEED = re.compile(r"(?P<e>\d+)/(?P<s>\d+), (?:RunningAvg)?SamplesPerSec=")


class PairValues(NamedValues):
    """The pairs among a line's values; the line's walker tells where it is."""

    def __init__(self, masked: str, *, evaluates: bool) -> None:
        super().__init__(masked, evaluates=evaluates)
        self._tokens = tokens(masked)
        self._after_epoch = False

    def _fraction(self, token: Token, place: int) -> None:
        assert token.total is not None
        epoch_before, self._after_epoch = self._after_epoch, False
        if "%" in token.unit or any(token.start == reading.start for reading in self._out):
            return
        first, slash, second = token.name.partition("/")
        if slash and meaning(first).field == EPOCH and meaning(second).field == STEP:
            self._out.append(Reading(EPOCH, "", 6, token.start, token.end, WHOLE))
            self._out.append(Reading(STEP, "", 6, *token.total, WHOLE))
            return
        found = _meaning_of_pair(token.name)
        if (
            found.field not in {STEP, EPOCH}
            and (unit := _COUNTED_IN.match(self._text, token.stop)) is not None
        ):
            if unit[1]:
                self._epochs(token, 5)
            elif not self._evaluates:
                self._counter(token, 5)
        elif found.field == EPOCH and (
            not token.bare or found.rank >= 4 or place == 0 or token.before.strip()[-1:] in "[("
        ):
            self._epochs(token, found.rank)
        elif found.field == STEP:
            if not self._evaluates:
                self._counter(token, found.rank)
        elif place == 0 and not token.name and _RANK_OF.match(self._text, max(0, token.start - 1)):
            self._add(RANK, token, 5, WHOLE)
        else:
            self._nameless_pair(token, place, epoch_before=epoch_before)

    def _nameless_pair(self, token: Token, place: int, *, epoch_before: bool) -> None:
        """A pair whose name says nothing: what stands before and behind it may."""
        if not token.name and place == 0 and any(r.field == STEP and r.rank == BAR_RANK for r in self._out):
            self._epochs(token, 3)  # "[3/100]:  50%|█████     | 176/352 …": the bar counts the steps
            return
        words = set(words_of(token.name))
        short = epoch_before and words <= {"b", "i", "s"}  # "[E 3/100] [B 120/600]"
        if self._evaluates or (token.name and not short and not words <= (TRAIN_WORDS | {"progress"})):
            return
        if not epoch_before and token.before.strip() == "(" and place and self._text[token.start - 2] != "]":
            return  # "Acc 45.2 (452/1000)"
        if epoch_before and (is_adjacent(token.before) or short):
            if self._text[token.stop :].strip() in {"):", ")"} and token.before.strip() == "(":
                assert token.total is not None
                self._out.append(Reading(TOTAL_EPOCHS, "", 5, *token.total, WHOLE))  # "Epoch 12 (12/200):"
            elif not (token.share and "epoch" in self._tokens[place - 1].name.lower()):
                self._counter(token, 5)
            return
        following = self._tokens[place + 1] if place + 1 < len(self._tokens) else None
        if following is not None and following.kind == "frac" and is_adjacent(following.before):
            self._epochs(token, 5)
            return
        if any(reading.field in {LOSS, VAL_LOSS} for reading in self._out) and not words:
            return  # "loss: 2.3  [  640/60000]": samples, not steps
        deepspeed = _DEEPSPEED.match(self._text, token.start)
        if deepspeed is not None:
            # DeepSpeed's timer prints epoch_count/local_step here, not step/total.
            self._out.append(Reading(STEP, "", 5, *deepspeed.span("s"), WHOLE))
        elif (
            (place <= 1 and not token.share and _NOTHING_AHEAD.match(token.before))
            or words & TRAIN_WORDS
            or words == {"progress"}
        ):
            self._counter(token, 3, weak=not words)

    def _epochs(self, token: Token, rank: int) -> None:
        assert token.total is not None
        self._out.append(Reading(EPOCH, "", rank, token.start, token.end, WHOLE))
        self._out.append(Reading(TOTAL_EPOCHS, "", rank, *token.total, WHOLE))
        self._after_epoch = True

    def _counter(self, token: Token, rank: int, *, weak: bool = False) -> None:
        assert token.total is not None
        how = Conversion(How.WHOLE, magnitude(token.unit)) if token.unit else WHOLE
        total = Conversion(How.WHOLE, magnitude(token.scale_end)) if token.scale_end else WHOLE
        self._out.append(Reading(STEP, "", rank, token.start, token.end, how, weak))
        self._out.append(Reading(TOTAL_STEPS, "", rank, *token.total, total))

    def _follows_pair(self, place: int) -> bool:
        return place > 0 and self._tokens[place - 1].kind == "frac"

    def _ratio(self, token: Token) -> None:
        """A pair with decimals: of these only used and total memory are wanted, and rates of two groups; the first of both."""
        found = meaning(token.name) if token.name else Meaning(None)
        if found.field == LR and not token.bare:  # "LR: (0.00002/0.001)"
            first = token.text.partition("/")[0].rstrip()
            self._out.append(
                Reading(LR, token.name, found.rank, token.start, token.start + len(first), PLAIN)
            )
            return
        match = _MEMORY_PAIR.match(self._text, token.start)
        if match is None:
            return
        if token.name.lower() in {"", "used"} and self._out and (match["v"] or "").upper() in {"GB", "GIB"}:
            found = Meaning(MEMORY, 4, weak=True)  # "62.3/80 GiB"
        if found.field != MEMORY:
            return
        how = memory_conversion(match["u"] or match["v"] or token.tail)
        if how is not None:
            self._out.append(Reading(MEMORY, token.name, found.rank, *match.span("used"), how, found.weak))


def _meaning_of_pair(name: str) -> Meaning:
    if name.lower() == "epochs":
        return meaning("epoch")  # "Epochs 1/3" counts; "epochs: 3" is a setting
    found = meaning(name) if name else Meaning("")
    if found.field != STEP and "/" in name and meaning(name.partition("/")[0]).field == STEP:
        return meaning(name.partition("/")[0])  # 'global_step/max_steps': '78/176'
    return found
