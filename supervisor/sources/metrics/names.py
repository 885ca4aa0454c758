"""The meanings of names in training logs: a table of words, not of frameworks.

A name is split into words (`train_loss`, `Loss/train/total`, `TrainLoss` alike). Words that only tell a
number's origin (train, mean, global) are set aside; the rest decides. So `reduced_train_loss` is a loss
because nothing but "loss" is left, and `packet loss` is none because "packet" is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from supervisor.sources.metrics.words import (
    AHEAD_OF_COUNTER,
    COUNTED,
    DEVICE_WORDS,
    EPOCH_NAMES,
    EPOCH_TIME_NAMES,
    ETA_CORE,
    ETA_NAMES,
    ETA_WITH,
    EVAL_WORDS,
    FOREIGN,
    GRAD_WORDS,
    HELD_OUT_SETS,
    HIDING_WORDS,
    IGNORED_TIMES,
    LOSS_KINDS,
    LOSS_OF_POLICY,
    LOSS_WORDS,
    MEMORY_WORDS,
    NO_READING_BEHIND,
    NORM_WORDS,
    NOT_MEASURED,
    NUMBER_WORDS,
    OPTIMIZER_WORDS,
    OTHER_MEMORY,
    SAMPLE_WORDS,
    SCORES,
    SECOND_WORDS,
    SETTINGS,
    SOURCE_WORDS,
    STEP_NAMES,
    STEP_TIME_NAMES,
    TOKEN_NAMES,
    TOKEN_WORDS,
    TRAIN_WORDS,
)

STEP, TOTAL_STEPS, EPOCH, TOTAL_EPOCHS = "step", "total_steps", "epoch", "total_epochs"
LOSS, VAL_LOSS, LR, GRAD_NORM = "loss", "val_loss", "lr", "grad_norm"
TOKENS, SAMPLES, STEP_TIME, MFU = "tokens_per_sec", "samples_per_sec", "step_time_s", "mfu"
MEMORY, ETA, EPOCH_TIME = "memory_used_bytes", "eta_s", "epoch_time_s"
CANONICAL = (
    STEP, TOTAL_STEPS, EPOCH, TOTAL_EPOCHS, LOSS, LR, GRAD_NORM, TOKENS, SAMPLES, STEP_TIME, MFU, MEMORY, VAL_LOSS,
    ETA, EPOCH_TIME,
)  # fmt: skip


def is_score(name: str) -> bool:
    """Whether a name is a quality measure that only training or evaluation reports."""
    lower = name.lower()
    return not SCORES.isdisjoint(words_of(name)) or lower.startswith("map") or lower in SCORES


# The rank of a loss that is the whole only where no other is named, and of one that is it only beside a counter, in a log
# that names no other at all.
PART_RANK = 2
SOLE_RANK = 1
# "focal_loss", "MAE Loss"; the loss behind a letter ("t_loss", "G_loss") is unknown.
_KIND_OF_LOSS = re.compile(r"[^\W\d]\w+[ _-]loss$|loss (?!func|varia|devia)[a-z]+[ts]ion$", re.IGNORECASE)
# Printed once by Transformers at the end, beside the mean loss of the whole run.
RUN_TIME = "train_runtime"


class Meaning(NamedTuple):
    """The meaning of a name. `field` is canonical, "" for the log's own name, None for nothing to chart.

    Of several readings with one field the highest `rank` wins. `is_eval`: the name itself says held-out data.
    `weak`: counts only on a line with other signs of training.
    """

    field: str | None
    rank: int = 5
    is_eval: bool = False
    weak: bool = False


_NOTHING = Meaning(None)
_WEAK = Meaning("", weak=True)
_GRAD_NORMS = frozenset({"gnorm", "grdn", "gradnorm"})
_STEP_WORDS = frozenset({"step", "iter", "iteration", "batch", "it"})

_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SPLIT = re.compile(r"[\s_/.\-|:()\[\]'\"]+")
_FOREIGN = re.compile("|".join(sorted(map(re.escape, FOREIGN), key=len, reverse=True)))


@lru_cache(maxsize=64)  # a line's grammar needs it three times for each name
def words_of(name: str) -> list[str]:
    """The words of a name, in lower case and in English. The list is shared, so do not modify it."""
    if not (name.isupper() or name.islower()):
        name = _CAMEL.sub("_", name)
    name = name.lower()
    if not name.isascii():
        name = _FOREIGN.sub(lambda found: f" {FOREIGN[found[0]]} ", name)
    name = re.sub(r"held[- _]out", "heldout", name) if "held" in name else name
    return [word for word in _SPLIT.split(name.rstrip("#") or name) if word]


class _Name:
    """A name, split up in the ways that the rules need.

    Attributes:
        words: its words; `have` is their set.
        joined: the words with underscores between.
        rest: the words that decide: all except those about the number's origin.
        is_held_out: a word names a held-out set.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lower = name.lower()
        self.words = words_of(name)
        self.have = frozenset(self.words)
        self.joined = "_".join(self.words)
        self.is_held_out = not EVAL_WORDS.isdisjoint(self.words)
        self.rest = [
            word
            for word in self.words
            if word not in SOURCE_WORDS and word not in EVAL_WORDS and not word.isdigit()
        ]
        # "lm loss value", but not "loss/value".
        if self.rest[-1:] == ["value"] and "/value" not in self.lower:
            self.rest.pop()

    def has(self, *words: str) -> bool:
        """Whether it has any of these words."""
        return not self.have.isdisjoint(words)

    def hides(self) -> bool:
        """Whether a word marks it as a best, a limit or an earlier value."""
        return not self.have.isdisjoint(HIDING_WORDS)


class _Rule(NamedTuple):
    """One row of a table of names: the first rule whose `when` holds applies. `then` returns None if the table does not know the name."""

    why: str
    when: Callable[[_Name], bool]
    then: Callable[[_Name], Meaning | None]


def _by(rules: Sequence[_Rule], name: _Name) -> Meaning | None:
    return next((rule.then(name) for rule in rules if rule.when(name)), None)


def _own(name: _Name) -> Meaning:
    """A weak value under the log's own name."""
    return Meaning("", is_eval=name.is_held_out, weak=True)


def meaning(name: str) -> Meaning:
    """The meaning of a number's name."""
    one = _Name(name)
    if not one.words:
        return _NOTHING
    if one.joined in {"total_steps", "max_steps", "total_iters", "max_iters", "total_iterations"}:
        return Meaning(TOTAL_STEPS, 1, weak=True)
    if one.joined in SETTINGS:
        return _NOTHING
    found = _counter(one)
    if found is None and (
        one.words[-1] in NOT_MEASURED or ("time/" in one.lower and one.words[-1] in COUNTED)
    ):
        return _NOTHING
    for table in (_LOSSES, _LEARNING_RATES, _NORMS, _THROUGHPUTS, _MEMORIES, _TIMES, _OTHERS):
        found = found or _by(table, one)
    assert found is not None, "the last table knows all names"
    return found._replace(is_eval=True) if one.is_held_out and found.field is not None else found


def _counter(name: _Name) -> Meaning | None:
    """A step's or an epoch's name: rank 0 in its table means a setting or an announcement."""
    if not (HIDING_WORDS - {"end", "start", "initial"}).isdisjoint(name.have):
        return None
    for table, field in ((STEP_NAMES, STEP), (EPOCH_NAMES, EPOCH)):
        rank = _rank_of_counter(table, name)
        if rank is not None:
            return Meaning(field, rank) if rank else _NOTHING
    return None


def _rank_of_counter(table: Mapping[str, int], name: _Name) -> int | None:
    words = name.words
    if name.joined in table or len(words) < 2:
        return table.get(name.joined)
    if words[0] in EVAL_WORDS | TRAIN_WORDS and (rank := table.get("_".join(words[1:]))) is not None:
        return rank
    if len(words) == 2 and words[1] in NUMBER_WORDS and len(words[0]) > 2 and table.get(words[0]):
        return table[words[0]]  # "batch_idx", "batch count"
    if words[-1] in {"step", "epoch", "iteration", "it", "iter", "update", "round"}:
        # A verb or noun before it: "completed step", "after step", "Global step".
        ahead = set(words[:-1])
        if "_" in name.name and words[0] in {"start", "starting", "begin"}:
            return None  # "start_epoch": a setting
        is_placed = "loss" not in ahead or not ahead.isdisjoint({"at", "after", "for", "in"})
        return table.get(words[-1]) if is_placed and ahead <= AHEAD_OF_COUNTER else None
    return None


def _is_no_loss(name: _Name) -> bool:
    core = [word for word in name.rest if word in LOSS_WORDS]
    if core != ["cost"]:
        return not core
    # "cost_class" is a weight for matching boxes or masks.
    is_weight = name.rest[0] == "cost" and not LOSS_KINDS.isdisjoint(name.rest[1:])
    return is_weight or name.has("batch", "reader", "time", "data", "training")


def _beside_loss(name: _Name) -> list[str]:
    """The words beside "loss", which tell the kind of loss."""
    return [
        word
        for word in name.rest
        if word not in LOSS_WORDS and not (name.is_held_out and word in HELD_OUT_SETS)
    ]


def _kinds_of_loss(name: _Name) -> set[str]:
    more = set(_beside_loss(name))
    return more - {"model"} if "language" in more else more


def _is_part_of_loss(name: _Name) -> bool:
    return "loss/" in name.lower and name.words[-1] != "total"


def _whole_loss(name: _Name) -> Meaning:
    """A loss of the whole objective: the plain one before a total, that before a mean over steps; of held-out data the mean before all."""
    rank = 10 if len(name.words) == 1 else 9
    if (name.has("total") and len(name.words) > 2) or name.has("tot"):
        rank = 8
    is_mean = name.has("avg", "avr", "average", "mean")
    is_smoothed = is_mean or name.has("smooth", "smoothed", "running", "ema")
    is_of_batch = name.has("batch") and next(word for word in name.rest if word in LOSS_WORDS) == "loss"
    if is_smoothed or is_of_batch:
        rank = 6
    return _a_loss(rank)(name)


def _a_loss(rank: int) -> Callable[[_Name], Meaning]:
    return lambda name: Meaning(VAL_LOSS if name.is_held_out else LOSS, rank, name.is_held_out)


def _sole_loss(name: _Name) -> Meaning:
    return _a_loss(SOLE_RANK)(name)._replace(weak=True)


_LOSSES = (
    _Rule("no word for a loss", _is_no_loss, lambda _: None),
    _Rule("a setting of a loss", lambda n: n.words[-1] in NO_READING_BEHIND, lambda _: _NOTHING),
    _Rule("a loss's scale", lambda n: n.has("scale"), lambda n: _own(n)._replace(is_eval=False)),
    _Rule("a best or earlier loss", lambda n: n.hides() or n.has("scaler", "scaling"), lambda _: Meaning(None, weak=True)),
    _Rule(
        "that of one optimizer among several",
        lambda n: not _beside_loss(n) and len(n.words) > 1 and n.words[-1].isdigit(),
        _own,
    ),
    _Rule("the whole", lambda n: not _beside_loss(n), _whole_loss),
    _Rule("PPYoloELoss/loss", lambda n: _is_part_of_loss(n) and n.words[-2:] == ["loss", "loss"], _a_loss(7)),
    _Rule("a part", lambda n: _is_part_of_loss(n) and not _kinds_of_loss(n) <= LOSS_OF_POLICY, _own),
    _Rule("a policy's", lambda n: _kinds_of_loss(n) <= LOSS_OF_POLICY, _a_loss(3)),
    _Rule(
        "a kind of the one objective",
        lambda n: _kinds_of_loss(n) <= LOSS_KINDS and _kinds_of_loss(n) != {"entropy"},
        _a_loss(2),
    ),
    _Rule("another kind of loss", lambda n: _KIND_OF_LOSS.match(n.name) is not None, _sole_loss),
    _Rule("another loss", lambda _: True, _own),
)  # fmt: skip


def _bare(words: Iterable[str]) -> list[str]:
    """Words without trailing numbers: `lr0`, `group1`."""
    return [bare for word in words if (bare := re.sub(r"\d+$", "", word))]


def _is_learning_rate(name: _Name) -> bool:
    plain = set(_bare(name.rest))
    return (
        "lr" in plain
        or name.joined in {"lrate", "l_r"}
        or ("rate" in plain and not plain.isdisjoint({"learning", "learn"}))
    )


def _is_of_something_else(name: _Name) -> bool:
    plain = set(_bare(name.rest))
    return bool(plain - OPTIMIZER_WORDS) and not (name.has("lr") and "group" in plain)


def _number_behind(name: _Name) -> int | None:
    found = re.search(r"(\d+)$", name.joined)
    return int(found[1]) if found is not None else None


_LEARNING_RATES = (
    _Rule("no learning rate", lambda n: not _is_learning_rate(n), lambda _: None),
    _Rule(
        "a setting of it",
        lambda n: n.hides() or n.has("mult", "multiplier", "scheduler", "decay", "factor", "scale"),
        lambda _: _WEAK,
    ),
    _Rule("that of something else", _is_of_something_else, lambda _: _WEAK),
    _Rule("that of a later group", lambda n: bool(_number_behind(n)), lambda _: _WEAK),
    _Rule("the learning rate", lambda _: True, lambda n: Meaning(LR, 9 if _number_behind(n) is None else 8)),
)
_NORMS = (
    _Rule("a bare norm", lambda n: n.words in (["norm"], ["total", "norm"], ["grad"]), lambda _: Meaning(GRAD_NORM, 4, weak=True)),
    _Rule("a norm in one word, of others", lambda n: n.words[-1] in _GRAD_NORMS and n.has("loss", "param"), lambda _: None),
    _Rule("a norm in one word", lambda n: n.words[-1] in _GRAD_NORMS, lambda _: Meaning(GRAD_NORM, 8)),
    _Rule("g_norm", lambda n: n.words[-2:] == ["g", "norm"] or n.words == ["g", "n"], lambda _: Meaning(GRAD_NORM, 7)),
    _Rule("no norm", lambda n: not n.has(*GRAD_WORDS) or not n.has("norm"), lambda _: None),
    _Rule("that of a part", lambda n: bool(set(n.rest) - GRAD_WORDS - NORM_WORDS) or n.hides(), lambda _: _WEAK),
    _Rule("the gradients' norm", lambda _: True, lambda n: Meaning(GRAD_NORM, 6 if n.has("clip", "clipped") else 9)),
)  # fmt: skip


def _is_rate(name: _Name) -> bool:
    if name.words[0] in SECOND_WORDS and name.words[1:2] == ["per"]:
        return False  # "sec_per_example"
    return name.has(*SECOND_WORDS) and name.has(*TOKEN_WORDS, *SAMPLE_WORDS) and len(name.have) <= 8


def _rate(name: _Name) -> Meaning:
    """Tokens or samples per second; a total wins over a rate per device."""
    is_part = name.has(*DEVICE_WORDS)
    if name.has(*TOKEN_WORDS):
        return Meaning(TOKENS, 5 if is_part else 8)
    return Meaning("", 5, weak=True) if is_part else Meaning(SAMPLES, 8)


_THROUGHPUTS = (
    _Rule("an inference's", lambda n: n.has("predict", "prediction", "prompt", "generation", "decode", "prefill", "inference"), lambda _: _NOTHING),
    _Rule("no rate of an evaluation", lambda n: n.is_held_out, lambda _: None),
    _Rule(
        "tokens",
        lambda n: n.joined in TOKEN_NAMES or n.joined.endswith("_tps") or n.joined in {"kt_s", "ktps", "kwps"},
        lambda _: Meaning(TOKENS, 8),
    ),
    _Rule(
        "images",
        lambda n: n.joined in {"ips", "imps", "img_s", "samplespersec", "samples_s", "train_ips"},
        lambda _: Meaning(SAMPLES, 6),
    ),
    _Rule(
        "SamplesPerSec",
        lambda n: "samplespersec" in n.joined.replace("_", "") and not n.has(*DEVICE_WORDS),
        lambda n: Meaning(SAMPLES, 4 if n.has("running", "avg") else 8),
    ),
    _Rule("a rate", _is_rate, _rate),
    _Rule(
        "throughput",
        lambda n: n.words[-1] == "throughput" and not n.has("tflop", "tflops", "flops", "flop", "mfu", "batches"),
        lambda _: Meaning(TOKENS, 3),
    ),
)  # fmt: skip


def _is_memory(name: _Name) -> bool:
    return (
        name.has(*MEMORY_WORDS)
        or (
            name.has("gb", "gib", "mb")
            and name.has("gpu", "cuda", "peak", "max")
            and name.has("allocated", "alloc", "used")
        )
        or name.joined == "gpu_ram"
        or name.joined.startswith(("gpu_mem", "max_mem", "memory"))
    )


def _is_other_memory(name: _Name) -> bool:
    """Whether it is the host's memory, reserved, free, or the total."""
    others = OTHER_MEMORY - {"total"} - ({"ram"} if name.has("gpu", "cuda") else set())
    return name.has(*others) or (name.has("total") and not name.has("peak", "max"))


def _is_peak(name: _Name) -> bool:
    return name.has("peak", "max", "maximum", "maxmemallocated", "maxmem") or name.joined.startswith("max")


def _is_allocated(name: _Name) -> bool:
    return name.has("alloc", "allocated", "maxmemallocated", "memallocated")


def _is_of_gpu(name: _Name) -> bool:
    return name.has("cuda", "vram", "device", "hbm") or any(word.startswith("gpu") for word in name.words)


def _memory(name: _Name) -> Meaning:
    """The memory in use: the peak allocation is preferred, and memory named as the GPU's."""
    is_peak, is_allocated, is_of_gpu = _is_peak(name), _is_allocated(name), _is_of_gpu(name)
    if name.has("active"):
        rank = 4
    elif is_allocated:
        rank = 9 + is_of_gpu if is_peak else 5
    else:
        rank = 4 + is_of_gpu
    is_plain = (is_peak and is_allocated) or (
        is_of_gpu and (is_allocated or name.has("usage", "mem", "gpumem"))
    )
    return Meaning(MEMORY, rank, weak=not is_plain)


_MEMORIES = (
    _Rule("the tool's column", lambda n: n.joined == "nvidia_smi", lambda _: Meaning(MEMORY, 5)),
    _Rule("no memory", lambda n: not _is_memory(n), lambda _: None),
    _Rule("other memory", _is_other_memory, lambda _: _NOTHING),
    _Rule("a share", lambda n: n.has("bandwidth", "util", "percent", "pct"), lambda _: _WEAK),
    _Rule("what is in use now, beside the peak", lambda n: n.has("current"), lambda _: _NOTHING),
    _Rule("in no known unit", lambda n: n.joined in {"mem_allocated", "memallocated"}, lambda _: _WEAK),
    _Rule("memory in use", lambda _: True, _memory),
)

# The number of steps in a time: "avg step time", "total step time".
_SPANNED = frozenset({"avg", "average", "mean", "total", "last", "train", "training", "current", "cur"})


def _rank_of_step_time(name: _Name) -> int | None:
    rank = STEP_TIME_NAMES.get(name.joined)
    if rank is None and len(name.words) > 1 and name.has(*_SPANNED) and name.has(*_STEP_WORDS):
        rank = STEP_TIME_NAMES.get("_".join(word for word in name.words if word not in _SPANNED))
    return rank


def _is_eta(name: _Name) -> bool:
    return (
        name.joined in ETA_NAMES
        or (name.has(*ETA_CORE) and name.have <= ETA_CORE | ETA_WITH)
        or (name.has("eta") and len(name.words) <= 3)
    )


def _is_elapsed(name: _Name) -> bool:
    return name.joined in IGNORED_TIMES or name.has("elapsed", "wall", "walltime", "wallclock")


_TIMES = (
    _Rule("the time that is left", _is_eta, lambda _: Meaning(ETA, 8)),
    _Rule("something else that remains", lambda n: n.has("remaining"), lambda _: _NOTHING),
    _Rule(
        "the time of a step",
        lambda n: _rank_of_step_time(n) is not None,
        lambda n: Meaning(STEP_TIME, _rank_of_step_time(n) or 0, weak=n.joined in {"time", "timer", "seconds", "time_ms"}),
    ),
    _Rule("the time of an epoch", lambda n: n.joined in EPOCH_TIME_NAMES, lambda _: Meaning(EPOCH_TIME, 8)),
    _Rule("how long it took", lambda n: n.joined in {"took", "time_taken", "training_time"}, lambda _: Meaning(EPOCH_TIME, 3, weak=True)),
    _Rule("the time of the whole run", lambda n: n.joined == RUN_TIME, lambda _: _WEAK),
    _Rule(
        "elapsed time per step",
        lambda n: _is_elapsed(n) and n.has("per") and n.has(*_STEP_WORDS),
        lambda _: Meaning(STEP_TIME, 8),
    ),
    _Rule("the time since the start", _is_elapsed, lambda _: _NOTHING),
    _Rule("no time", lambda n: not n.has("time", "ms", "sec", "seconds", "duration", "latency"), lambda _: None),
    _Rule("another time", lambda _: True, lambda _: _WEAK),
)  # fmt: skip


_OTHERS = (
    _Rule("MFU", lambda n: n.has("mfu", "bf16mfu"), lambda n: Meaning(MFU, 9 if n.words[-1] == "mfu" else 5)),
    _Rule("a value of the log's own", lambda _: True, lambda n: Meaning("", weak=not is_score(n.name))),
)
