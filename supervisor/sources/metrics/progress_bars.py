"""Finds progress bars (tqdm, rich, Keras, fastprogress and others) and masks them so the rest reads as text."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from supervisor.sources.metrics.names import Field
from supervisor.sources.metrics.tokens import (
    BAR_RANK,
    MASKED,
    PLAIN,
    WHOLE,
    Conversion,
    How,
    Reading,
    magnitude,
)

# In steps per second.
FASTEST = 10_000
# "1/1 [======] - 1s 1s/step", "1/1 ━━━━ 0s 33ms/step", with nothing after the bar.
_KERAS_ENDS = re.compile(r"\s*(?:-\s*\S+s\s+)?\S+s/(?:step|epoch|sample)\s*$")
# tqdm's ``[00:00<?, ?it/s]`` has neither remaining time nor rate, because nothing was counted yet.
NOTHING_COUNTED = "<?, ?"

_BARS = (
    # tqdm: 12%|█▎  | 25/1617 [00:51<54:07,  2.04s/it, loss=1.42]
    re.compile(
        r"(?P<pct>\d{1,3})%(?:\|[^|]*\||(?=\s))\s*(?P<n>\d[\d.,]*[kKMGT]?)/(?P<N>\d[\d.,]*[kKMGT]?|\?)\s*\[(?P<el>[\d:]+)<(?P<rem>[^,\]]*)"
        r"(?:,\s*(?P<rate>[\d.]+|\?)\s?(?P<unit>[A-Za-z]*/[A-Za-z]+))?(?P<close>\])?"
    ),
    # tqdm without percentage and drawing: 41/100 [00:03<00:05, 6.30it/s, loss=0.3]
    re.compile(
        r"(?<![\w./])(?P<n>\d+)/(?P<N>\d+) \[(?P<el>[\d:]+)<(?P<rem>[\d:]+|\?)"
        r"(?:,\s*(?P<rate>[\d.]+|\?)\s?(?P<unit>[A-Za-z]*/[A-Za-z]+))?(?P<close>\])?"
    ),
    # tqdm without a total: 20it [00:03,  6.30it/s]
    re.compile(r"(?<![\w.])(?P<n>\d+)\s?(?P<what>[A-Za-z]+) \[(?P<el>[\d:]+),\s*(?P<rate>[\d.]+|\?)\s?(?P<unit>[A-Za-z]*/[A-Za-z]+)(?P<close>\])?"),
    # levanter: 1.21kit/50.0kit rate:1.2it/s remaining:11:12 elapsed:16:41
    re.compile(r"(?<![\w.])(?P<n>[\d.]+[kM]?)it/(?P<N>[\d.]+[kM]?)it rate:(?P<rate>[\d.]+)(?P<unit>it/s|s/it) remaining:(?P<rem>[\d:]+) elapsed:[\d:]+(?: postfix:)?"),
    # rich: ━━━╺━━ 736/1875 0:00:12 • 0:00:19 60.02it/s
    re.compile(
        r"(?<![━╸╺─█░▒▓])[━╸╺─█░▒▓][━╸╺─█░▒▓ ]{2,}+(?P<n>\d+)\s?/\s?(?P<N>\d+)\s+(?P<el>\d+:\d\d(?::\d\d)?)\s+[•·]\s+(?P<rem>[\d:]+|-:--:--)\s+(?P<rate>[\d.]+)\s?(?P<unit>it/s|s/it)"
    ),
    # 100% ━━━━━━ 157/157 5.1it/s 31.0s
    re.compile(
        r"(?P<pct>\d{1,3})%\s+[━╸╺─█░▒▓][━╸╺─█░▒▓ ]{2,}+(?P<n>\d+)/(?P<N>\d+)\s+(?:(?P<rate>[\d.]+)\s?(?P<unit>it/s|s/it)\s+)?(?P<el>[\d.:]+)s?(?:<(?P<rem>[\d.:]+)s?)?"
    ),
    # fastprogress: 34.78% [32/92 00:04<00:08 0.0812]
    re.compile(r"(?<![\d.])[\d.]++% \[(?P<n>\d+)/(?P<N>\d+) (?P<el>[\d:]+)<(?P<rem>[\d:]+)(?: (?P<loss>[\d.]+|nan|inf))?\]"),
    # mmcv, for an evaluation: [>>>>  ] 12/68, 3.1 task/s, elapsed: 4s, ETA: 18s
    re.compile(
        r"\[[> ]*\]\s*(?P<n>\d+)/(?P<N>\d+),\s*(?P<rate>[\d.]+)\s(?P<unit>task/s),\s*elapsed:\s*(?P<el>\d+)s(?:,\s*ETA:\s*(?P<rem>\d+)s)?"
    ),
    # Keras with an unknown length: 109/Unknown - 12s 11ms/step
    re.compile(r"^\s*(?P<n>\d+)/Unknown\s+-?\s*(?P<el>\d+m?s)\b"),
    # Keras: 938/1875 [=====>......] - ETA: 3s    and    938/1875 ━━━━━━━━━ 3s 2ms/step
    re.compile(r"^\s*(?P<n>\d+)/(?P<N>\d+)\s+(?:\[[=>.\s]*\]|[━─]{3,}[━─ ]*(?P<el>\S+s))"),
)  # fmt: skip
_UNITS_OF_TRAINING = frozenset(
    {"it", "step", "steps", "batch", "batches", "iter", "iters", "iteration", "iterations", "update", "updates", "opt", "epoch", "epochs", "ep"}
)  # fmt: skip
_SAMPLES = frozenset({"img", "imgs", "image", "images", "sample", "samples", "ex", "example", "examples"})
_OTHER_WORK = re.compile(
    r"\b(?:val(?:id(?:at\w+)?)?|eval\w*|test(?:ing)?|sanity|load\w*|download\w*|upload\w*|fetch\w*|map|filter\w*|tokeniz\w*|predict\w*|generat\w*|infer\w*|sampl\w*|"
    r"extract\w*|process\w*|preprocess\w*|pre-processing|prepar\w*|comput\w*|calculat\w*|measur\w*|scan\w*|cach\w*|collect\w*|shards?|checkpoints?|files?|index\w*|saving|writ\w*|merg\w*|cast\w*|flatten\w*|"
    r"group\w*|pack\w*|read\w*|receiv\w*|resolv\w*|count\w*|encod\w*|decod\w*|convert\w*|materializ\w*|captur\w*|calibrat\w*|quantiz\w*|compil\w*|warm\w*|build\w*|creat\w*|"
    r"concat\w*|format\w*|truncat\w*|apply\w*|add\w*|split|examples|dataset|datasets|tokens|rollout\w*|scor\w*|search\w*|decoding|bleu|wer|unpack\w*|install\w*|copy\w*|export\w*|"
    r"pulling|push\w*|run(?:ning)? (?:eval|test)\w*|parquet|arrow|images?|videos?|weights|parameters|clean\w*|render\w*|mel\w*|feature\w*|vae|latents?|embedding\w*|captions?)\b|\.(?:json|bin|safetensors|pt|zip|tar|gz|txt|parquet|jsonl)\b",
    re.IGNORECASE,
)  # fmt: skip
# "Encoding 17562 texts", "encode all the data: 75722": an action and a number of items. Not "Loaded 60000 images", which is already
# done, as "Load val: 9508 samples" usually is.
_BEGUN = re.compile(
    r"\W*(?P<work>(?:pre-?)?(?!load)(?:\w+ing|(?:en|de)code|tokeni[sz]e|download|fetch|extract|compute|generate|convert))(?=\s)"
    r"(?=.*(?<![\w.=/-])\d[\d,]*\d(?![\w.=/]))",
    re.IGNORECASE,
)
_OF_STEPS = re.compile(r"\b(?:train\w*|epochs?|steps?|iter\w*)\b", re.IGNORECASE)
_EVALUATION = re.compile(
    r"\b(?:val(?:id(?:at\w+)?)?|eval\w*|test(?:ing)?|dev|infer\w*|sanity|predict\w*)\b", re.IGNORECASE
)
# "Test Iter:   24/ 157 …": the first word tells what the bar belongs to, whatever follows.
_EVALUATION_LED = re.compile(
    r"\W*(?:val(?:id(?:at\w+)?)?|eval\w*|test(?:ing)?|dev)\s+(?:iter\w*|steps?|batch\w*|epochs?|it)\b",
    re.IGNORECASE,
)
_TRAINING = re.compile(
    r"\b(?:train\w*|epochs?|ep|steps?|iter\w*|it|global|progress|round|episodes?|optimiz\w*|finetun\w*|pretrain\w*|batch\w*|update\w*|sft|dpo|grpo|ppo|loss|lr|fit\w*)\b|^\s*$",
    re.IGNORECASE,
)
_EPOCHS = re.compile(r"(?:^|[\s:|\]])(?:epochs?|training epochs?|ep)(?: progress)?\s*:?\s*$", re.IGNORECASE)
# A metric and its value. "Computing mean PPL" has a metric without a value.
_METRIC_HINT = re.compile(
    r"(?:loss|\blr\b|learning|acc|ppl|grad|reward|kl\b|损失)[^\d,;|]{0,24}(?:\d|nan)", re.IGNORECASE
)


_LOSSES = re.compile(r"(?:[A-Za-z]{2,} )?[\w/.-]*loss\b", re.IGNORECASE)
_HELD_OUT = re.compile(r"val|eval|test|dev", re.IGNORECASE)


# Values before the bar: "d: 0.43; g: 2.13", "d:0.43;g:2.13".
_PAIRS = re.compile(r"\w\s*[:=]\s*[-\d.]+(?:[^\s,;|]*[,;|]\s*|\S*\s+)\w[\w ]*[:=]\s*[-\d.]+")


def begins_other_work(text: str) -> bool:
    """Check whether a line announces non-training work on a number of items."""
    begun = _BEGUN.match(text)
    return begun is not None and is_other_work(begun["work"]) and _OF_STEPS.search(text) is None


def is_other_work(text: str) -> bool:
    """Check whether a text describes work other than training."""
    return _OTHER_WORK.search(text) is not None


def is_beside_training(name: str) -> bool:
    """Check whether a name describes work alongside training, such as loading, preparing or evaluating."""
    return is_other_work(name) and _TRAINING.search(name) is None


class Bar(NamedTuple):
    """A bar found in a line. `rest` is the line with the bar masked. `readings` is empty if the bar tracks other work.

    `is_new` marks a bare bar in its first second, which only its digits can identify as training. `end` is where it ends.
    """

    rest: str
    readings: tuple[Reading, ...]
    evaluates: bool
    works_on_other: bool
    is_new: bool = False
    end: int = 0


@lru_cache(maxsize=4)
def find_bar(text: str, *, in_row: bool = False) -> Bar | None:
    """Return the first bar in a masked line. If `in_row`, the bar comes last in a training table's row and needs no words."""
    for pattern in _BARS:
        match = pattern.search(text)
        if match is not None:
            return _bar(text, match, in_row=in_row)
    return None


class _Drawn:
    """A bar matched by a pattern, and the text around it.

    Attributes:
        described: the text before the bar, after any mask.
        after: the text after the bar.
        top: the numerator of the bar's rate, such as "it". `bottom` is the denominator, such as "s".
        is_new: whether the bar is bare and in its first second.
        counts_epochs: whether each step of the bar is an epoch.
        counts_samples: whether the bar counts the samples in an epoch, next to a loss.
    """

    def __init__(self, text: str, match: re.Match[str]) -> None:
        self.match = match
        self.groups = match.groupdict()
        self.described = text[: match.start()].rsplit(MASKED, 1)[-1]
        self.after = text[match.end() :]
        self.unit = (self.groups.get("unit") or "").lower()
        top, _, bottom = self.unit.partition("/")
        self.top: str = top
        self.bottom: str = bottom
        self.is_new = not self.described.strip() and self.groups.get("el") == "00:00"
        self.is_hinted = _METRIC_HINT.search(self.described + self.after) is not None
        named = _EPOCHS.search(self.described) is not None
        self.counts_epochs = named or "epoch" in {self.top, self.bottom}
        is_of_epoch = self.unit.endswith("/s") and self.top in _SAMPLES and "epoch" in self.described.lower()
        self.counts_samples = is_of_epoch and self.is_hinted

    def evaluates(self) -> bool:
        """Check whether this is an evaluation bar, judging by the words before it or by losses that are all on held-out data."""
        if _EVALUATION_LED.match(self.described):
            return True
        if _EVALUATION.search(self.described) and not _METRIC_HINT.search(self.described):
            return True
        is_lightning = "v_num" in self.after  # Lightning shows the last validation loss too
        losses = [] if is_lightning else _LOSSES.findall(self.described + self.after)
        return bool(losses) and all(_HELD_OUT.search(name) for name in losses)

    def is_of_training(self, *, in_row: bool) -> bool:
        """Check whether the bar counts training steps, epochs or samples."""
        groups, described = self.groups, self.described
        counts_steps = not self.unit or not _UNITS_OF_TRAINING.isdisjoint({self.top, self.bottom})
        if not counts_steps and not self.counts_samples:
            return False
        if not in_row and not self.is_hinted and _OTHER_WORK.search(described):
            return False
        if not (in_row or self.is_hinted or _TRAINING.search(described) or _PAIRS.search(described)):
            return False
        if "N" not in groups and not described.strip() and not _METRIC_HINT.search(self.after):
            return False  # a file being read, as in 180000it [00:08, 22208.38it/s]
        if self.match.re is _BARS[-1] and _KERAS_ENDS.match(self.after):
            return False  # a Keras prediction, which shows no loss
        rate = groups.get("rate") or "?"
        is_too_fast = self.bottom == "s" and rate != "?" and float(rate) > FASTEST
        # A file or a list that is read within a second.
        return not self.is_new or not (is_too_fast or groups.get("n") == groups.get("N"))

    def readings(self) -> tuple[Reading, ...]:
        """Return the values shown by a training bar."""
        if self.counts_samples:
            return (Reading(Field.SAMPLES, "", BAR_RANK, *self.match.span("rate"), PLAIN),)
        rate = {"s": PLAIN, "sec": PLAIN, "ks": Conversion(How.NUMBER, 1e3)}
        fields = (
            ("n", Field.EPOCH if self.counts_epochs else Field.STEP, WHOLE),
            ("N", Field.TOTAL_EPOCHS if self.counts_epochs else Field.TOTAL_STEPS, WHOLE),
            ("rem", Field.ETA, Conversion(How.DURATION)),
            (
                "rate",
                "" if self.counts_epochs else Field.STEP_TIME,
                rate.get(self.top, Conversion(How.INVERSE)),
            ),
            ("loss", Field.LOSS, PLAIN),
        )
        found = []
        for group, field, conversion in fields:
            value = self.groups.get(group)
            if not field or not value or "?" in value or "-" in value:
                continue
            begin, end = self.match.span(group)
            is_scaled = value[-1] in "kM" and conversion is WHOLE
            how = Conversion(How.WHOLE, magnitude(value[-1])) if is_scaled else conversion
            found.append(Reading(field, "", BAR_RANK, begin, end - is_scaled, how))
        return tuple(found)


def _bar(text: str, match: re.Match[str], *, in_row: bool) -> Bar:
    # A second bar is the remainder of an earlier drawing on the line.
    behind = _BARS[1].sub(lambda found: MASKED * len(found[0]), text[match.end() :])
    rest = text[: match.start()] + MASKED * (match.end() - match.start()) + behind
    drawn = _Drawn(text, match)
    evaluates = drawn.evaluates()
    if evaluates or not drawn.is_of_training(in_row=in_row):
        return Bar(rest, (), evaluates, not evaluates, drawn.is_new, match.end())
    return Bar(rest, drawn.readings(), False, False, drawn.is_new, match.end())
