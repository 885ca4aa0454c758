"""Counters without a plain name: formats of single programs with a fixed layout, and pairs `a/b`."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple

from supervisor.sources.metrics.names import (
    EPOCH,
    LOSS,
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
from supervisor.sources.metrics.value_meaning import LineValues
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

# The meanings of a pattern's groups; `m` is memory, in the unit of the group `unit`.
_FIELDS: dict[str, tuple[str, Conversion]] = {
    "e": (EPOCH, WHOLE), "E": (TOTAL_EPOCHS, WHOLE), "s": (STEP, WHOLE), "S": (TOTAL_STEPS, WHOLE), "l": (LOSS, PLAIN), "v": (VAL_LOSS, PLAIN),
}  # fmt: skip


class Where(Enum):
    """Where in a line to search for a pattern."""

    EVERYWHERE = auto()
    ONCE = auto()  # its first place
    FIRST = auto()  # the line begins with it
    WHOLE_LINE = auto()  # nothing else is read


class Format(NamedTuple):
    """One format.

    Attributes:
        example: a sample line, used by a test.
        pattern: groups `e` (epoch), `E` (epochs in all), `s` (step), `S`, `l` (loss), `v` (held-out loss), `m` and `unit` (memory).
        rank: the highest of several readings of one field on a line wins; a counter with a plain name has 3 to 10 (see `words`).
    """

    example: str
    where: Where
    rank: int
    pattern: re.Pattern[str]


_ORDINAL = re.compile(
    r"第\s*[\[(（]?\s*(?:(?P<e>\d+)(?:\s*/\s*(?P<E>\d+))?\s*[\])）]?\s*[个個]?\s*(?:轮|輪|epoch|エポック|에폭)|(?P<s>\d+)(?:\s*/\s*(?P<S>\d+))?\s*[\])）]?\s*[个個]?\s*(?:步|次迭代|step|iter|ステップ|스텝))"
)
# The number of digits must not matter, because a line's shape is stored without digits.
FORMATS: tuple[Format, ...] = (
    Format("12 train_loss 2.3412", Where.WHOLE_LINE, 5, re.compile(r"(?P<s>\d+) (?:train(?:_loss)? (?P<l>\d+\.\d+)|(?:val|test)(?:_loss)? (?P<v>\d+\.\d+))\s*$")),
    Format("   100/ 200000: 27.81", Where.WHOLE_LINE, 5, re.compile(r"\s*(?P<s>\d+)/ +(?P<S>\d+): (?P<l>\d+\.\d+)\s*$")),
    Format("100:\t-2.81", Where.WHOLE_LINE, 5, re.compile(r"(?P<s>\d+):\t(?P<l>-?\d+\.\d+)\s*$")),
    # Counters glued to their names: also "Epoch12/100", "Epoch-3 | Batch-120", "E24 S10879".
    Format(
        "ep3 it120 loss 2.31",
        Where.EVERYWHERE,
        5,
        re.compile(
            r"(?<![\w./\\=:-])(?:(?:epoch[-_]?|ep|e(?=\d+(?:/\d+)?[\s,|:\]]*(?:S|B|I|it|step|iter|batch)[\s:]*\d))(?P<e>\d+)(?:/(?P<E>\d+))?"
            r"|(?:(?:step|iter|iteration|batch)[-_]?|it|(?<=\d )[SBI])(?P<s>\d+)(?:/(?P<S>\d+))?)(?![\w./=-]|\.\w)",
            re.IGNORECASE,
        ),
    ),
    # Also "第[3/50]轮", "第100步".
    Format(
        "第3轮 loss: 2.31",
        Where.EVERYWHERE,
        8,
        _ORDINAL,
    ),
    # ESPnet: batches of an epoch, as a range.
    Format(
        "1epoch:train:101-200batch: loss=3.2",
        Where.ONCE,
        5,
        re.compile(r"(?<![\w.])(?P<e>\d+)epoch\b(?::train:\d+-(?P<s>\d+)batch\b)?"),
    ),
    # WeNet prints the epoch and the batch, not a share.
    Format("TRAIN Batch 0/100 loss 12.3", Where.ONCE, 9, re.compile(r"\bTRAIN (?:\|[^|]*\| )?Batch (?P<e>\d+)/(?P<s>\d+)")),
    Format("CV Batch 3/100 loss 12.3", Where.ONCE, 9, re.compile(r"\bCV (?:\| )?Batch (?P<e>\d+)/\d+")),
    # Megatron: the unit is the line's, not the value's.
    Format(
        "memory (MB) | allocated: 1.2 | max allocated: 2048.0",
        Where.ONCE,
        9,
        re.compile(r"memory \((?P<unit>[MG]i?B)\) \|.*\bmax allocated: (?P<m>[\d.]+)"),
    ),
    # MXNet's Speedometer: batches of an epoch, from 0.
    Format("Epoch[3] Batch [0-240] Speed: 25.02 samples/sec", Where.ONCE, 5, re.compile(r"\bBatch \[\d+-(?P<s>\d+)\]\s+Speed:")),
    # DARTS: step, loss, and one score or two; the step of "valid" counts that pass.
    Format(
        "train 350 1.405087e-01 95.019890 99.958282",
        Where.WHOLE_LINE,
        5,
        re.compile(
            r"\W*(?:train (?P<s>\d+) (?P<l>\d+\.\d+e[-+]\d+)|(?:valid|test) \d+ (?P<v>\d+\.\d+e[-+]\d+))(?: \d+\.\d+){1,2}\s*$"
        ),
    ),
    Format(
        "[1,  2000] loss: 2.169",
        Where.FIRST,
        5,
        re.compile(r"\W*\[(?P<e>\d+),\s*(?P<s>\d+)\]\s+(?:train(?:ing)?[ _])?loss\b", re.IGNORECASE),
    ),
    Format("[2][2080/7610], loss=2.45", Where.FIRST, 5, re.compile(r"\W*(?:\[[Tt]rain\]\s?)?\[ *(?P<e>\d+)\]\s?\[ *(?P<s>\d+)/ *(?P<S>\d+)\]")),
    Format("[  3]    1200 || loss: 3.1", Where.FIRST, 5, re.compile(r"\s*\[ *(?P<e>\d+)\] +(?P<s>\d+) \|\| ")),
    Format(
        "333 154 Loss=0.042",
        Where.FIRST,
        5,
        re.compile(r"\s*(?P<e>\d+)(?:\s+|\|)(?P<s>\d+)(?:\s+|\|)(?=loss\s?[=:])", re.IGNORECASE),
    ),
)  # fmt: skip


def read_formats(text: str) -> tuple[list[Reading], bool]:
    """The values of a (masked) line identified by position alone, and whether to stop reading there."""
    out: list[Reading] = []
    for form in FORMATS:
        if form.where is Where.EVERYWHERE:
            for found in form.pattern.finditer(text):
                out += _readings(found, form.rank)
        elif form.where is Where.ONCE:
            if (found_once := form.pattern.search(text)) is not None:
                out += _readings(found_once, form.rank)
        elif (led := form.pattern.match(text)) is not None:
            out += _readings(led, form.rank)
            if form.where is Where.WHOLE_LINE:
                return out, True
    return out, False


def without_ordinal(name: str) -> str:
    """A name without its leading counter: "第3轮 训练损失"."""
    return name if name.isascii() or (found := _ORDINAL.match(name)) is None else name[found.end() :].strip()


def _readings(found: re.Match[str], rank: int) -> list[Reading]:
    groups = found.groupdict()
    out = [
        Reading(field, "", rank, *found.span(group), conversion)
        for group, (field, conversion) in _FIELDS.items()
        if groups.get(group) is not None
    ]
    if "m" in groups and (how := memory_conversion(groups["unit"])) is not None:
        out.append(Reading(MEMORY, "max allocated", rank, *found.span("m"), how))
    return out


# "3/100 epochs", "5/10 steps": the word after the pair says what it counts.
_COUNTED_IN = re.compile(
    r"[\s*]*(?:\(\d+%\)\s*)?(?:(epochs?)|(steps?|iters?|iterations?|updates?|batches))\b(?!\s?[:=#]?\s?\d)",
    re.IGNORECASE,
)
# "(0/4) Epoch 1, …": the rank and world size, followed by named counters.
_RANK_OF = re.compile(r"\(\d+/\d+\) (?=.*\b(?:epoch|step|iter(?:ation)?|memory|batch)\b)", re.IGNORECASE)
_MEMORY_PAIR = re.compile(
    r"(?P<used>\d+(?:\.\d+)?)\s?(?P<u>[KMGT]i?B?)?\s?/\s?\d+(?:\.\d+)?\s?(?P<v>[KMGT]i?B?)?"
)
# Allowed before a pair that counts steps: marks, and words in brackets.
_NOTHING_AHEAD = re.compile(
    r"(?:.*\x01)?(?:\s*[Tt]rain(?:ing)?\s*[|:])?(?:\s*[:|-]\s*[\w.]+\s*[|-])?(?:\s*\[[A-Za-z][\w ]{0,15}\])*[\s\[\](#=>*|•·:-]*$"
)
_DEEPSPEED = re.compile(r"(?P<e>\d+)/(?P<s>\d+), (?:RunningAvg)?SamplesPerSec=")


def read_pair(line: LineValues, token: Token, place: int) -> None:
    """Add the meaning of a pair of whole numbers; `place` is its index among the line's values."""
    assert token.total is not None
    epoch_before, line.after_epoch = line.after_epoch, False
    if "%" in token.unit or any(token.start == reading.start for reading in line.readings):
        return
    first, _, second = token.name.partition("/")
    if {meaning(first).field, meaning(second).field} == {EPOCH, STEP}:  # "epoch/iter: 20/5399"
        line.readings.append(Reading(meaning(first).field or "", "", 6, token.start, token.end, WHOLE))
        line.readings.append(Reading(meaning(second).field or "", "", 6, *token.total, WHOLE))
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


def _read_nameless_pair(line: LineValues, token: Token, place: int, *, epoch_before: bool) -> None:
    """A pair without a known name: the text around it decides."""
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
    """A pair right after an epoch: the step in it, or the epoch again with its total."""
    assert token.total is not None
    if line.text[token.stop :].strip() in {"):", ")"} and token.before.strip() == "(":
        line.readings.append(Reading(TOTAL_EPOCHS, "", 5, *token.total, WHOLE))  # "Epoch 12 (12/200):"
    elif not (_is_share_in_brackets(line.text, token) and "epoch" in line.tokens[place - 1].name.lower()):
        _add_counter(line, token, 5)


def _is_share_in_brackets(text: str, token: Token) -> bool:
    """Whether a pair's share is in brackets: "[1280/60000 (2%)]" counts samples."""
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
    """Add the meaning of a pair with decimals: used and total memory, or rates of two groups; the first number counts."""
    found = meaning(token.name) if token.name else Meaning(None)
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
    found = meaning(name) if name else Meaning("")
    if found.field != STEP and "/" in name and meaning(name.partition("/")[0]).field == STEP:
        return meaning(name.partition("/")[0])  # 'global_step/max_steps': '78/176'
    return found
