"""Maps names in training logs to their meanings. The tables list words, not frameworks.

A name is split into words (`train_loss`, `Loss/train/total` and `TrainLoss` alike). Words that only say
where a number comes from (train, mean, global) are ignored, and the rest decide. `reduced_train_loss` is a
loss because only "loss" is left. `packet loss` is not, because "packet" is left too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from supervisor.sources.metrics import lexicon


class Field:
    """Canonical field names, used as keys for values in base units."""

    STEP, TOTAL_STEPS, EPOCH, TOTAL_EPOCHS = "step", "total_steps", "epoch", "total_epochs"
    LOSS, VAL_LOSS, LR, GRAD_NORM = "loss", "val_loss", "lr", "grad_norm"
    TOKENS, SAMPLES, STEP_TIME, MFU = "tokens_per_sec", "samples_per_sec", "step_time_s", "mfu"
    MEMORY, ETA, EPOCH_TIME = "memory_used_bytes", "eta_s", "epoch_time_s"
    RANK = "rank"  # belongs to the line and is not a value


CANONICAL = (
    Field.STEP, Field.TOTAL_STEPS, Field.EPOCH, Field.TOTAL_EPOCHS, Field.LOSS, Field.LR, Field.GRAD_NORM, Field.TOKENS,
    Field.SAMPLES, Field.STEP_TIME, Field.MFU, Field.MEMORY, Field.VAL_LOSS, Field.ETA, Field.EPOCH_TIME,
)  # fmt: skip


def is_score(name: str) -> bool:
    """Check whether a name is a quality metric that only training or evaluation reports."""
    return not lexicon.SCORES.isdisjoint(words_of(name)) or name.lower().startswith("map")


# A loss with PART_RANK is the total only if no other is named. A loss with SOLE_RANK also needs a counter beside the loss
# and a log without any other loss.
PART_RANK = 2
SOLE_RANK = 1
# "focal_loss", "MAE Loss". The meaning of a loss after a single letter ("t_loss", "G_loss") is unknown.
_KIND_OF_LOSS = re.compile(r"[^\W\d]\w+[ _-]loss$|loss (?!func|varia|devia)[a-z]+[ts]ion$", re.IGNORECASE)
# Transformers prints this once at the end, beside the mean loss of the whole run.
RUN_TIME = "train_runtime"


class Meaning(NamedTuple):
    """The meaning of a name. `field` is canonical, "" for a name specific to the log, or None if there is nothing to plot.

    Among readings of the same field, the highest `rank` wins. If `is_eval` is true, the name itself refers to
    held-out data. If `weak` is true, the reading counts only on a line with other signs of training.
    """

    field: str | None
    rank: int = 5
    is_eval: bool = False
    weak: bool = False


_NOTHING = Meaning(None)
_WEAK = Meaning("", weak=True)
_STEP_WORDS = frozenset({"step", "iter", "iteration", "batch", "it"})
# Words about which steps a time covers: "avg step time", "total step time".
_SPANNED = frozenset({"avg", "average", "mean", "total", "last", "train", "training", "current", "cur"})

_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SPLIT = re.compile(r"[\s_/.\-|:()\[\]'\"]+")
_FOREIGN = re.compile("|".join(sorted(map(re.escape, lexicon.FOREIGN), key=len, reverse=True)))
_DIGITS_BEHIND = re.compile(r"\d+$")
_PER = re.compile(r"[_ ]per[_ ]")


@lru_cache(maxsize=64)  # the grammar asks three times for each name of a line
def words_of(name: str) -> list[str]:
    """Split a name into lowercase English words. The returned list is shared, so do not modify it."""
    if not (name.isupper() or name.islower()):
        name = _CAMEL.sub("_", name)
    name = name.lower()
    if not name.isascii():
        name = _FOREIGN.sub(lambda found: f" {lexicon.FOREIGN[found[0]]} ", name)
    name = re.sub(r"held[- _]out", "heldout", name)
    return [word for word in _SPLIT.split(name.rstrip("#") or name) if word]


class _Name:
    """A name, broken down in the ways the rules need.

    Attributes:
        words: the words in the name; `have` holds them as a set.
        joined: the words joined with underscores.
        rest: the words that decide the meaning, without those that only say where the number comes from.
        is_held_out: whether a word refers to a held-out set.
        hides: whether a word marks the value as a best, a limit or an earlier value.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lower = name.lower()
        self.words = words_of(name)
        self.have = frozenset(self.words)
        self.joined = "_".join(self.words)
        self.is_held_out = not lexicon.EVAL_WORDS.isdisjoint(self.words)
        self.hides = not lexicon.HIDING_WORDS.isdisjoint(self.words)
        known = lexicon.SOURCE_WORDS | lexicon.EVAL_WORDS
        self.rest = [word for word in self.words if word not in known and not word.isdigit()]
        # "lm loss value", but not "loss/value".
        if self.rest[-1:] == ["value"] and "/value" not in self.lower:
            self.rest.pop()

    def has(self, *words: str) -> bool:
        """Check whether the name has any of these words."""
        return not self.have.isdisjoint(words)


def meaning(name: str) -> Meaning:
    """Return what a number's name means."""
    one = _Name(name)
    if not one.words:
        return _NOTHING
    if one.joined in {"total_steps", "max_steps", "total_iters", "max_iters", "total_iterations"}:
        return Meaning(Field.TOTAL_STEPS, 1, weak=True)
    if one.joined in lexicon.SETTINGS:
        return _NOTHING
    found = _counter(one)
    if found is None:
        if one.words[-1] in lexicon.NOT_MEASURED or (
            "time/" in one.lower and one.words[-1] in lexicon.COUNTED
        ):
            return _NOTHING
        kinds = (_loss, _learning_rate, _norm, _throughput, _memory, _time)
        found = next((known for kind in kinds if (known := kind(one)) is not None), None)
    if found is None and one.has("mfu", "bf16mfu"):
        found = Meaning(Field.MFU, 9 if one.words[-1] == "mfu" else 5)
    if found is None:
        found = Meaning("", weak=not is_score(name))
    return found._replace(is_eval=True) if one.is_held_out and found.field is not None else found


def _counter(name: _Name) -> Meaning | None:
    """Match the name of a step or epoch counter. Rank 0 in the table marks a setting or an announcement, not a counter."""
    if not (lexicon.HIDING_WORDS - {"end", "start", "initial"}).isdisjoint(name.have):
        return None
    for table, field in ((lexicon.STEP_NAMES, Field.STEP), (lexicon.EPOCH_NAMES, Field.EPOCH)):
        rank = _rank_of_counter(table, name)
        if rank is not None:
            return Meaning(field, rank) if rank else _NOTHING
    return None


def _rank_of_counter(table: Mapping[str, int], name: _Name) -> int | None:
    words = name.words
    if name.joined in table or len(words) < 2:
        return table.get(name.joined)
    if (
        words[0] in lexicon.EVAL_WORDS | lexicon.TRAIN_WORDS
        and (rank := table.get("_".join(words[1:]))) is not None
    ):
        return rank
    if len(words) == 2 and words[1] in lexicon.NUMBER_WORDS and len(words[0]) > 2 and table.get(words[0]):
        return table[words[0]]  # "batch_idx", "batch count"
    if words[-1] in {"step", "epoch", "iteration", "it", "iter", "update", "round"}:
        # Preceded by a verb or an adjective: "completed step", "after step", "Global step".
        ahead = set(words[:-1])
        if "_" in name.name and words[0] in {"start", "starting", "begin"}:
            return None  # "start_epoch": a setting
        is_placed = "loss" not in ahead or not ahead.isdisjoint({"at", "after", "for", "in"})
        return table.get(words[-1]) if is_placed and ahead <= lexicon.AHEAD_OF_COUNTER else None
    return None


def _loss(name: _Name) -> Meaning | None:
    """Match a loss. The words next to "loss" distinguish a total from a part. A plain loss outranks a mean over steps."""
    core = [word for word in name.rest if word in lexicon.LOSS_WORDS]
    # "cost_class" is a weight for matching boxes or masks.
    is_weight = name.rest[:1] == ["cost"] and not lexicon.LOSS_KINDS.isdisjoint(name.rest[1:])
    is_time = name.has("batch", "reader", "time", "data", "training")
    if not core or (core == ["cost"] and (is_weight or is_time)):
        return None
    words = name.words
    if words[-1] in lexicon.NO_READING_BEHIND or name.hides:
        return _NOTHING
    beside = [
        w
        for w in name.rest
        if w not in lexicon.LOSS_WORDS and not (name.is_held_out and w in lexicon.HELD_OUT_SETS)
    ]
    field = Field.VAL_LOSS if name.is_held_out else Field.LOSS
    is_scale = name.has("scale", "scaler", "scaling")
    if is_scale or (not beside and len(words) > 1 and words[-1].isdigit()):
        return _WEAK  # a loss scale, or the loss of one of several optimizers
    if not beside:
        is_mean = name.has("avg", "avr", "average", "mean", "smooth", "smoothed", "running", "ema")
        return Meaning(field, 6 if is_mean else 10 if len(words) == 1 else 9)
    kinds = set(beside) - ({"model"} if "language" in beside else set())
    if "loss/" in name.lower:
        if words[-2:] == ["loss", "loss"]:
            return Meaning(field, 7)  # "PPYoloELoss/loss"
        if not kinds <= lexicon.LOSS_OF_POLICY:
            return _WEAK
    if kinds <= lexicon.LOSS_OF_POLICY:
        return Meaning(field, 3)
    if kinds <= lexicon.LOSS_KINDS and kinds != {"entropy"}:
        return Meaning(field, PART_RANK)
    return Meaning(field, SOLE_RANK, weak=True) if _KIND_OF_LOSS.match(name.name) else _WEAK


def _learning_rate(name: _Name) -> Meaning | None:
    plain = {_DIGITS_BEHIND.sub("", word) for word in name.rest} - {""}
    is_spelt_out = "rate" in plain and not plain.isdisjoint({"learning", "learn"})
    if "lr" not in plain and not is_spelt_out and name.joined not in {"lrate", "l_r"}:
        return None
    number = _DIGITS_BEHIND.search(name.joined)
    is_setting = name.hides or name.has("mult", "multiplier", "scheduler", "decay", "factor", "scale")
    is_of_other = bool(plain - lexicon.OPTIMIZER_WORDS) and not (name.has("lr") and "group" in plain)
    if is_setting or is_of_other or (number is not None and int(number[0])):
        return _WEAK  # including the rate of a later group
    return Meaning(Field.LR, 9 if number is None else 8)


def _norm(name: _Name) -> Meaning | None:
    if name.words in (["norm"], ["total", "norm"], ["grad"]):
        return Meaning(Field.GRAD_NORM, 4, weak=True)
    if name.words[-1] in {"gnorm", "grdn", "gradnorm"}:
        return None if name.has("param") else Meaning(Field.GRAD_NORM, 8)
    if name.words[-2:] == ["g", "norm"] or name.words == ["g", "n"]:
        return Meaning(Field.GRAD_NORM, 7)
    if not name.has(*lexicon.GRAD_WORDS) or not name.has("norm"):
        return None
    is_of_part = bool(set(name.rest) - lexicon.GRAD_WORDS - lexicon.NORM_WORDS)
    return _WEAK if is_of_part or name.hides else Meaning(Field.GRAD_NORM, 9)


def _throughput(name: _Name) -> Meaning | None:
    """Match tokens or samples per second. A total outranks a per-device rate."""
    if name.has("predict", "prediction", "prompt", "generation", "decode", "prefill", "inference"):
        return _NOTHING
    if name.is_held_out:
        return None
    joined, is_part = name.joined, name.has(*lexicon.DEVICE_WORDS)
    if joined in lexicon.TOKEN_NAMES or joined.endswith("_tps") or joined in {"kt_s", "ktps", "kwps"}:
        return Meaning(Field.TOKENS, 8)
    if joined in {"ips", "imps", "img_s", "samplespersec", "samples_s", "train_ips"}:
        return Meaning(Field.SAMPLES, 6)
    if "samplespersec" in joined.replace("_", "") and not is_part:
        return Meaning(Field.SAMPLES, 4 if name.has("running", "avg") else 8)
    is_inverse = name.words[0] in lexicon.SECOND_WORDS and name.words[1:2] == ["per"]  # "sec_per_example"
    if (
        name.has(*lexicon.SECOND_WORDS)
        and name.has(*lexicon.TOKEN_WORDS, *lexicon.SAMPLE_WORDS)
        and not is_inverse
    ):
        if name.has(*lexicon.TOKEN_WORDS):
            return Meaning(Field.TOKENS, 5 if is_part else 8)
        return _WEAK if is_part else Meaning(Field.SAMPLES, 8)
    is_of_work = name.has("tflop", "tflops", "flops", "flop", "mfu", "batches")
    return Meaning(Field.TOKENS, 3) if name.words[-1] == "throughput" and not is_of_work else None


def _memory(name: _Name) -> Meaning | None:
    """Match memory in use. Peak allocation ranks first, then memory whose name mentions the GPU."""
    if name.joined == "nvidia_smi":
        return Meaning(Field.MEMORY, 5)  # a column of nvidia-smi
    in_units = name.has("gb", "gib", "mb") and name.has("allocated", "alloc", "used")
    is_named = name.joined == "gpu_ram" or name.joined.startswith(("gpu_mem", "max_mem", "memory"))
    if not name.has(*lexicon.MEMORY_WORDS) and not in_units and not is_named:
        return None
    is_peak = name.has("peak", "max", "maximum", "maxmemallocated", "maxmem")
    others = lexicon.OTHER_MEMORY - {"total"} - ({"ram"} if name.has("gpu", "cuda") else set())
    if name.has(*others, "current") or (name.has("total") and not is_peak):
        return _NOTHING  # host, reserved, free or total memory, or the current use beside the peak
    if name.has("bandwidth", "util", "percent", "pct") or name.joined in {"mem_allocated", "memallocated"}:
        return _WEAK  # a share, or in an unknown unit
    is_allocated = name.has("alloc", "allocated", "maxmemallocated")
    is_of_gpu = name.has("cuda", "vram", "device", "hbm") or any(w.startswith("gpu") for w in name.words)
    rank = 9 + is_of_gpu if is_peak and is_allocated else 5 if is_allocated else 4 + is_of_gpu
    is_plain_gpu = is_of_gpu and (is_allocated or name.has("usage", "mem", "gpumem"))
    return Meaning(Field.MEMORY, rank, weak=not is_plain_gpu and not (is_peak and is_allocated))


def _time(name: _Name) -> Meaning | None:
    joined = name.joined
    is_eta = name.has("eta") or (
        name.has(*lexicon.ETA_CORE) and name.have <= lexicon.ETA_CORE | lexicon.ETA_WITH
    )
    if is_eta or joined in lexicon.ETA_NAMES:
        return Meaning(Field.ETA, 8)
    if name.has("remaining"):
        return _NOTHING
    rank = lexicon.STEP_TIME_NAMES.get(joined)
    if rank is None and name.has(*_STEP_WORDS):
        rank = lexicon.STEP_TIME_NAMES.get("_".join(word for word in name.words if word not in _SPANNED))
    if rank is not None:
        return Meaning(Field.STEP_TIME, rank, weak=joined in {"time", "timer", "seconds", "time_ms"})
    if joined in lexicon.EPOCH_TIME_NAMES:
        return Meaning(Field.EPOCH_TIME, 8)
    if joined in {"took", "time_taken", "training_time"}:
        return Meaning(Field.EPOCH_TIME, 3, weak=True)
    if joined == RUN_TIME:
        return _WEAK
    if joined in lexicon.IGNORED_TIMES or name.has("elapsed", "wall", "walltime", "wallclock"):
        # The time since the start, except for "elapsed time per step".
        return Meaning(Field.STEP_TIME, 8) if name.has("per") and name.has(*_STEP_WORDS) else _NOTHING
    return _WEAK if name.has("time", "ms", "sec", "seconds", "duration", "latency") else None


def field_of_rate(unit: str) -> str | None:
    """Return the field for a rate such as `tok/s` or `img/sec`, or None if it is not a training throughput."""
    unit = _PER.sub("/", unit.lower()).replace(" ", "")
    top, slash, _ = unit.partition("/")
    if not slash or not unit.endswith(("/s", "/sec", "/second", "gpu", "device", "chip", "rank")):
        return None
    if top.startswith(("tok", "word")):
        return Field.TOKENS
    if top.startswith(("sample", "im", "example", "seq", "sent", "ex", "utt", "clip", "item", "record")):
        return Field.SAMPLES
    return None


def is_step_of(unit: str) -> bool:
    """Check whether a unit is per step, such as `s/iter`."""
    return unit.partition("/")[2].strip() in {"it", "iter", "itr", "iteration", "step", "batch", "update"}


def is_step_rate(unit: str) -> bool:
    """Check whether a unit is steps per second."""
    top, slash, bottom = _PER.sub("/", unit.lower()).replace(" ", "").partition("/")
    return (
        bool(slash)
        and top in {"it", "its", "iter", "iters", "step", "steps", "batch", "batches"}
        and bottom in {"s", "sec", "second"}
    )
