"""Progress bars: tqdm, rich, Keras, fastprogress and their kin. A bar is cut out, so that the rest can be read as text."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from supervisor.sources.metrics.grammar.tokens import MASKED
from supervisor.sources.metrics.grammar.values import WHOLE, Conversion, How, magnitude
from supervisor.sources.metrics.names import (
    EPOCH,
    ETA,
    LOSS,
    SAMPLES,
    STEP,
    STEP_TIME,
    TOTAL_EPOCHS,
    TOTAL_STEPS,
)

_BARS = (
    # tqdm: 12%|█▎  | 25/1617 [00:51<54:07,  2.04s/it, loss=1.42]
    re.compile(
        r"(?P<pct>\d{1,3})%(?:\|[^|]*\||(?=\s))\s*(?P<n>\d[\d.,]*[kKMGT]?)/(?P<N>\d[\d.,]*[kKMGT]?|\?)\s*\[(?P<el>[\d:]+)<(?P<rem>[^,\]]*)"
        r"(?:,\s*(?P<rate>[\d.]+|\?)\s?(?P<unit>[A-Za-z]*/[A-Za-z]+))?(?P<close>\])?"
    ),
    # tqdm's, without a share and a drawing: 41/100 [00:03<00:05, 6.30it/s, loss=0.3]
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
    # mmcv's, of an evaluation: [>>>>  ] 12/68, 3.1 task/s, elapsed: 4s, ETA: 18s
    re.compile(
        r"\[[> ]*\]\s*(?P<n>\d+)/(?P<N>\d+),\s*(?P<rate>[\d.]+)\s(?P<unit>task/s),\s*elapsed:\s*(?P<el>\d+)s(?:,\s*ETA:\s*(?P<rem>\d+)s)?"
    ),
    # Keras, of a length that it does not know: 109/Unknown - 12s 11ms/step
    re.compile(r"^\s*(?P<n>\d+)/Unknown\s+-?\s*(?P<el>\d+m?s)\b"),
    # Keras: 938/1875 [=====>......] - ETA: 3s    and    938/1875 ━━━━━━━━━ 3s 2ms/step
    re.compile(r"^\s*(?P<n>\d+)/(?P<N>\d+)\s+(?:\[[=>.\s]*\]|[━─]{3,}[━─ ]*(?P<el>\S+s))"),
)  # fmt: skip
_STEP_UNITS = frozenset(
    {
        "it",
        "step",
        "steps",
        "batch",
        "batches",
        "iter",
        "iters",
        "iteration",
        "iterations",
        "update",
        "updates",
        "opt",
    }
)
_OTHER_WORK = re.compile(
    r"\b(?:val(?:id(?:at\w+)?)?|eval\w*|test(?:ing)?|sanity|load\w*|download\w*|upload\w*|fetch\w*|map|filter\w*|tokeniz\w*|predict\w*|generat\w*|infer\w*|sampl\w*|"
    r"extract\w*|process\w*|preprocess\w*|pre-processing|prepar\w*|comput\w*|scan\w*|cach\w*|collect\w*|shards?|checkpoints?|files?|index\w*|saving|writ\w*|merg\w*|cast\w*|flatten\w*|"
    r"group\w*|pack\w*|read\w*|receiv\w*|resolv\w*|count\w*|encod\w*|decod\w*|convert\w*|materializ\w*|captur\w*|calibrat\w*|quantiz\w*|compil\w*|warm\w*|build\w*|creat\w*|"
    r"concat\w*|format\w*|truncat\w*|apply\w*|add\w*|split|examples|dataset|datasets|tokens|rollout\w*|scor\w*|search\w*|decoding|bleu|wer|unpack\w*|install\w*|copy\w*|export\w*|"
    r"pulling|push\w*|run(?:ning)? (?:eval|test)\w*|parquet|arrow|images?|videos?|weights|parameters|clean\w*|render\w*|mel\w*|feature\w*|vae|latents?|embedding\w*|captions?)\b|\.(?:json|bin|safetensors|pt|zip|tar|gz|txt|parquet|jsonl)\b",
    re.IGNORECASE,
)  # fmt: skip
_EVALUATION = re.compile(
    r"\b(?:val(?:id(?:at\w+)?)?|eval\w*|test(?:ing)?|dev|infer\w*|sanity|predict\w*)\b", re.IGNORECASE
)
# "Test Iter:   24/ 157 …": whose bar it is stands first, whatever follows.
_EVALUATION_LED = re.compile(
    r"\W*(?:val(?:id(?:at\w+)?)?|eval\w*|test(?:ing)?|dev)\s+(?:iter\w*|steps?|batch\w*|epochs?|it)\b",
    re.IGNORECASE,
)
_TRAINING = re.compile(
    r"\b(?:train\w*|epochs?|ep|steps?|iter\w*|it|global|progress|round|episodes?|optimiz\w*|finetun\w*|pretrain\w*|batch\w*|update\w*|sft|dpo|grpo|ppo|loss|lr|fit\w*)\b|^\s*$",
    re.IGNORECASE,
)
_EPOCHS = re.compile(r"(?:^|[\s:|\]])(?:epochs?|training epochs?|ep)(?: progress)?\s*:?\s*$", re.IGNORECASE)
_METRIC_HINT = re.compile(r"loss|\blr\b|learning|acc|ppl|grad|reward|kl\b|损失", re.IGNORECASE)


_LOSSES = re.compile(r"[\w/.-]*loss\b", re.IGNORECASE)
_HELD_OUT = re.compile(r"val|eval|test|dev", re.IGNORECASE)
# "d: 0.43; g: 2.13": values before the bar.
_PAIRS = re.compile(r"\w\s*[:=]\s*[-\d.]+\S*[,;|]?\s+\w[\w ]*[:=]\s*[-\d.]+")


def of_samples(unit: str) -> bool:
    """Whether a bar's unit is one of samples."""
    return unit in {"img", "imgs", "image", "images", "sample", "samples", "ex", "example", "examples"}


class BarReading(NamedTuple):
    """One value of a bar: canonical field, where it stands, how to convert it."""

    field: str
    start: int
    end: int
    conversion: Conversion


class Bar(NamedTuple):
    """A bar found in a line. `rest` is the line with the bar masked; `readings` is empty where it is not training's.

    `is_new`: it is a bare one in its first second, whose digits alone tell whether it is training's.
    """

    rest: str
    readings: tuple[BarReading, ...]
    evaluates: bool
    works_on_other: bool
    is_new: bool = False


@lru_cache(maxsize=4)
def find_bar(text: str, *, in_row: bool = False) -> Bar | None:
    """The first bar of a (masked) line. `in_row`: it ends a row of a table of training, so it needs no words."""
    for pattern in _BARS:
        match = pattern.search(text)
        if match is not None:
            return _bar(text, match, in_row=in_row)
    return None


def _bar(text: str, match: re.Match[str], *, in_row: bool) -> Bar:
    head = text[: match.start()]
    described = head.rsplit(MASKED, 1)[-1]
    after = text[match.end() :]
    rest = head + MASKED * (match.end() - match.start()) + after
    groups = match.groupdict()
    unit = groups.get("unit") or ""
    top, _, bottom = unit.lower().partition("/")
    in_bytes = (
        "rate:" not in match.group()
        and any((groups.get(name) or "")[-1:] in "kKMGT" and groups.get(name) for name in ("n", "N"))
    ) or top in {"b", "kb", "mb", "gb", "kib", "mib"}
    of_epochs = bool(_EPOCHS.search(described)) or "epoch" in {top, bottom}
    evaluates = _EVALUATION_LED.match(described) is not None or (
        _EVALUATION.search(described) is not None and _METRIC_HINT.search(described) is None
    )
    trains = not in_bytes and not evaluates
    if trains and (lost := _LOSSES.findall(described + after)) and "v_num" not in after:
        evaluates = all(_HELD_OUT.search(name) for name in lost)
        trains = not evaluates
    if trains and unit and not {top, bottom} & (_STEP_UNITS | {"epoch", "epochs", "ep"}):
        if (
            of_samples(top)
            and bottom == "s"
            and "epoch" in described.lower()
            and _LOSSES.search(described + after)
        ):
            # A bar that counts samples: its rate is all that it says, the text around it says more.
            return Bar(
                rest, (BarReading(SAMPLES, *match.span("rate"), Conversion(How.NUMBER)),), False, False
            )
        trains = False
    named = (
        _TRAINING.search(described) is not None
        or _PAIRS.search(described) is not None
        or _METRIC_HINT.search(described + after) is not None
    )
    other = _OTHER_WORK.search(described) is not None and _METRIC_HINT.search(described + after) is None
    if (other or not named) and not in_row:
        trains = False
    if "N" not in groups and not described.strip() and _METRIC_HINT.search(after) is None:
        trains = False  # "180000it [00:08, 22208.38it/s]": a file is read
    is_new = not described.strip() and groups.get("el") == "00:00"
    if is_new and groups.get("n") == groups.get("N"):
        trains = False  # all done within a second: a list was read
    if not trains:
        return Bar(rest, (), evaluates, not evaluates, is_new)
    readings: list[BarReading] = []

    def add(name: str, field: str, conversion: Conversion) -> None:
        value = groups.get(name)
        if value and "?" not in value and "-" not in value:
            begin, end = match.span(name)
            if value[-1] in "kM" and conversion is WHOLE:
                end, conversion = end - 1, Conversion(How.WHOLE, magnitude(value[-1]))
            readings.append(BarReading(field, begin, end, conversion))

    add("n", EPOCH if of_epochs else STEP, WHOLE)
    add("N", TOTAL_EPOCHS if of_epochs else TOTAL_STEPS, WHOLE)
    add("rem", ETA, Conversion(How.DURATION))
    if not of_epochs:
        add("rate", STEP_TIME, Conversion(How.NUMBER if top in {"s", "sec"} else How.INVERSE))
    if "loss" in groups:
        add("loss", LOSS, Conversion(How.NUMBER))
    return Bar(rest, tuple(readings), evaluates=False, works_on_other=False, is_new=is_new)
