"""What the names in training logs mean: a table of words, not of frameworks.

A name is split into words (`train_loss`, `Loss/train/total`, `TrainLoss` alike). Words that only say where a
number comes from (train, mean, global) are set aside; what is left decides. So `reduced_train_loss` is a loss
because nothing but "loss" is left, and `packet loss` is none because "packet" is.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from supervisor.sources.metrics.words import (
    AHEAD_OF_COUNTER,
    COUNTED,
    DEVICE_WORDS,
    EPOCH_NAMES,
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
    UNCALLED_LOSSES,
)

STEP, TOTAL_STEPS, EPOCH, TOTAL_EPOCHS = "step", "total_steps", "epoch", "total_epochs"
LOSS, VAL_LOSS, LR, GRAD_NORM = "loss", "val_loss", "lr", "grad_norm"
TOKENS, SAMPLES, STEP_TIME, MFU = "tokens_per_sec", "samples_per_sec", "step_time_s", "mfu"
MEMORY, ETA = "memory_used_bytes", "eta_s"
CANONICAL = (
    STEP, TOTAL_STEPS, EPOCH, TOTAL_EPOCHS, LOSS, LR, GRAD_NORM, TOKENS, SAMPLES, STEP_TIME, MFU, MEMORY, VAL_LOSS,
    ETA,
)  # fmt: skip


def is_score(name: str) -> bool:
    """Whether a name is one of a quality that only training or evaluation reports."""
    lower = name.lower()
    return not SCORES.isdisjoint(words_of(name)) or lower.startswith("map") or lower in SCORES


# What Transformers prints once, when all is over, beside the mean loss of the whole run.
RUN_TIME = "train_runtime"


class Meaning(NamedTuple):
    """What a name stands for. `field` is canonical, "" for a name of its own, None for nothing to chart.

    Of several readings with one field the highest `rank` wins. `is_eval`: the name itself says held-out.
    `weak`: only believed on a line that shows other signs of training.
    """

    field: str | None
    rank: int = 5
    is_eval: bool = False
    weak: bool = False


_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SPLIT = re.compile(r"[\s_/.\-|:()\[\]'\"]+")
_FOREIGN = re.compile("|".join(sorted(map(re.escape, FOREIGN), key=len, reverse=True)))
# "valloss", "trloss", "vloss": two words in one.
_GLUED = re.compile(
    r"(?P<set>train|training|trn|tr|t|val|valid|validation|test|eval|dev|avg|mean|total|tot)(?P<core>loss|lr|acc)$"
)
_ALONE = {"t": "train"}


@lru_cache(maxsize=64)  # a line's grammar asks three times for each of its names
def words_of(name: str) -> list[str]:
    """The words of a name, in lower case and in English. The list is shared: it is not to be changed."""
    if not (name.isupper() or name.islower()):
        name = _CAMEL.sub("_", name)
    name = name.lower()
    if not name.isascii():
        name = _FOREIGN.sub(lambda found: f" {FOREIGN[found[0]]} ", name)
    if "held" in name:
        name = re.sub(r"held[- _]out", "heldout", name)
    words = [word for word in _SPLIT.split(name.rstrip("#") or name) if word]
    if any(word.endswith(("loss", "lr", "acc")) and len(word) > 4 for word in words):
        return [part for word in words for part in _parts(word)]
    return words


def _parts(word: str) -> tuple[str, ...]:
    found = _GLUED.match(word)
    return (_ALONE.get(found["set"], found["set"]), found["core"]) if found is not None else (word,)


def meaning(name: str) -> Meaning:
    """What a name of a number stands for."""
    words = words_of(name)
    if not words:
        return Meaning(None)
    joined = "_".join(words)
    held_out = not EVAL_WORDS.isdisjoint(words)
    if joined in {"total_steps", "max_steps", "total_iters", "max_iters", "total_iterations"}:
        return Meaning(TOTAL_STEPS, 1, weak=True)
    if joined in SETTINGS:
        return Meaning(None)
    lower = name.lower()
    counter = _counter(joined, words)
    if counter is not None:
        return counter._replace(is_eval=True) if held_out and counter.field is not None else counter
    if words[-1] in NOT_MEASURED or ("time/" in lower and words[-1] in COUNTED):
        return Meaning(None)
    rest = [
        word for word in words if word not in SOURCE_WORDS and word not in EVAL_WORDS and not word.isdigit()
    ]
    if rest[-1:] == ["value"] and "/value" not in lower:  # "lm loss value", but not "loss/value"
        rest.pop()
    found = (
        _loss(words, rest, held_out, is_part="loss/" in lower and words[-1] != "total")
        or _rate_of_learning(joined, words, rest)
        or _norm(words, rest)
        or _throughput(joined, words)
        or _memory(joined, words)
        or _time(joined, words)
    )
    if found is not None:
        if held_out and found.field is not None and not found.is_eval:
            return found._replace(is_eval=True)
        return found
    if "mfu" in words or "bf16mfu" in words:
        return Meaning(MFU, 9 if words[-1] == "mfu" else 5)
    return Meaning("", is_eval=held_out, weak=not is_score(name))


def _counter(joined: str, words: list[str]) -> Meaning | None:
    if not (HIDING_WORDS - {"end", "start", "initial"}).isdisjoint(words):
        return None
    for table, field in ((STEP_NAMES, STEP), (EPOCH_NAMES, EPOCH)):
        rank = table.get(joined)
        if rank is None and len(words) > 1 and words[0] in EVAL_WORDS | TRAIN_WORDS:
            rank = table.get("_".join(words[1:]))
        if rank is None and len(words) == 2 and words[1] in NUMBER_WORDS:
            rank = table.get(words[0]) or None  # "batch_idx", "batch count"
        if (
            rank is None
            and len(words) > 1
            and words[-1] in {"step", "epoch", "iteration", "it", "iter", "update"}
        ):
            # A verb or noun before it: "completed step", "after step", "Global step".
            ahead = set(words[:-1])
            placed = not ahead & {"loss"} or ahead & {"at", "after", "for", "in"}
            rank = table.get(words[-1]) if placed and ahead <= AHEAD_OF_COUNTER else None
        if rank is not None:
            return Meaning(field, rank, is_eval=False) if rank else Meaning(None)
    return None


def _loss(words: list[str], rest: list[str], held_out: bool, *, is_part: bool) -> Meaning | None:
    if words == ["tel"]:
        return Meaning(VAL_LOSS, 5, is_eval=True)  # llm.c's "test loss"; "trl" is its training loss
    if held_out and "_".join(rest) in UNCALLED_LOSSES:
        return Meaning(VAL_LOSS, 2, held_out)
    core = [word for word in rest if word in LOSS_WORDS]
    if not core or (core == ["cost"] and {"batch", "reader", "time", "data", "training"} & set(words)):
        return None
    if words[-1] in NO_READING_BEHIND:
        return Meaning(None)
    if not HIDING_WORDS.isdisjoint(words) or "scale" in words or "scaler" in words or "scaling" in words:
        return Meaning("" if "scale" in words else None, weak=True)
    field = VAL_LOSS if held_out else LOSS
    more = [word for word in rest if word not in LOSS_WORDS and not (held_out and word in HELD_OUT_SETS)]
    if not more and len(words) > 1 and words[-1].isdigit():
        return Meaning("", is_eval=held_out, weak=True)  # of one optimizer among several
    if not more:
        smoothed = not {"avg", "avr", "average", "mean", "smooth", "smoothed", "running", "ema"}.isdisjoint(
            words
        )
        part = bool({"batch"} & set(words)) and core[0] == "loss"
        rank = 10 if len(words) == 1 else 9
        rank = 8 if ({"total"} & set(words) and len(words) > 2) or "tot" in words else rank
        return Meaning(field, 6 if smoothed or part else rank, held_out)
    kinds = set(more) - ({"model"} if "language" in more else set())
    if is_part and len(words) > 1 and words[-2:] == ["loss", "loss"]:
        return Meaning(field, 7, held_out)  # "PPYoloELoss/loss"
    if is_part and not kinds <= LOSS_OF_POLICY:
        return Meaning("", is_eval=held_out, weak=True)
    if kinds <= LOSS_OF_POLICY:
        return Meaning(field, 3, held_out)
    if kinds <= LOSS_KINDS and kinds != {"entropy"}:
        return Meaning(field, 2, held_out)
    return Meaning("", is_eval=held_out, weak=True)


def _rate_of_learning(joined: str, words: list[str], rest: list[str]) -> Meaning | None:
    plain = [bare for word in rest if (bare := re.sub(r"\d+$", "", word))]
    if not (
        "lr" in plain
        or joined in {"lrate", "l_r"}
        or ({"learning", "learn"} & set(plain) and "rate" in plain)
    ):
        return None
    if not HIDING_WORDS.isdisjoint(words) or {
        "mult",
        "multiplier",
        "scheduler",
        "decay",
        "factor",
        "scale",
    } & set(words):
        return Meaning("", weak=True)
    ahead = set(plain) - OPTIMIZER_WORDS
    if ahead and not ("lr" in words and "group" in plain):
        return Meaning("", weak=True)
    # Of several groups the first: a trailing number other than 0 is another group.
    number = re.search(r"(\d+)$", joined)
    return (
        Meaning(LR, 8 if number else 9) if number is None or int(number[1]) == 0 else Meaning("", weak=True)
    )


def _norm(words: list[str], rest: list[str]) -> Meaning | None:
    if words in (["norm"], ["total", "norm"]):
        return Meaning(GRAD_NORM, 4, weak=True)
    if words[-1] in {"gnorm", "grdn", "gradnorm"}:
        return Meaning(GRAD_NORM, 8) if not {"loss", "param"} & set(words) else None
    if words[-2:] == ["g", "norm"] or words == ["g", "n"]:
        return Meaning(GRAD_NORM, 7)
    named = not GRAD_WORDS.isdisjoint(words)
    if not named or "norm" not in words:
        return None
    extra = set(rest) - GRAD_WORDS - NORM_WORDS
    if extra or not HIDING_WORDS.isdisjoint(words):
        return Meaning("", weak=True)
    return Meaning(GRAD_NORM, 6 if "clip" in words or "clipped" in words else 9)


def _throughput(joined: str, words: list[str]) -> Meaning | None:
    have = set(words)
    if have & {"prompt", "generation", "decode", "prefill", "inference"}:
        return Meaning(None)
    if have & EVAL_WORDS:
        timed = have & SECOND_WORDS and "per" in have
        return (
            Meaning("" if timed or joined.endswith(("wps", "tps")) else None, weak=True)
            if timed or joined.endswith(("wps", "tps"))
            else None
        )
    if joined in TOKEN_NAMES or joined.endswith("_tps") or joined in {"kt_s", "ktps", "kwps"}:
        return Meaning(TOKENS, 8)
    if joined in {"ips", "imps", "img_s", "samplespersec", "samples_s", "train_ips"}:
        return Meaning(SAMPLES, 6)
    if "samplespersec" in joined.replace("_", "") and not have & DEVICE_WORDS:
        return Meaning(SAMPLES, 4 if "running" in words or "avg" in words else 8)
    per_device = 3 if have & DEVICE_WORDS else 0
    if have & SECOND_WORDS and (have & TOKEN_WORDS or have & SAMPLE_WORDS) and len(have) <= 8:
        field = TOKENS if have & TOKEN_WORDS else SAMPLES
        if {"source", "target"} <= have:
            return Meaning("", weak=True)
        # Per device beside a total of all: the total.
        return Meaning(
            field if not (field is SAMPLES and per_device) else "",
            8 - per_device,
            weak=field is SAMPLES and bool(per_device),
        )
    if words[-1] == "throughput" and not {"tflop", "tflops", "flops", "flop", "mfu", "batches"} & have:
        return Meaning(TOKENS, 3)
    return None


def _memory(joined: str, words: list[str]) -> Meaning | None:
    have = set(words)
    if joined == "nvidia_smi":
        return Meaning(MEMORY, 5)
    in_gigabytes = (
        have & {"gb", "gib", "mb"}
        and have & {"gpu", "cuda", "peak", "max"}
        and have & {"allocated", "alloc", "used"}
    )
    if not (
        have & MEMORY_WORDS
        or in_gigabytes
        or joined == "gpu_ram"
        or joined.startswith(("gpu_mem", "max_mem", "memory"))
    ):
        return None
    if have & (OTHER_MEMORY - ({"total", "ram"} if have & {"gpu", "cuda"} else {"total"})) or (
        "total" in have and "peak" not in have and "max" not in have
    ):
        return Meaning(None)
    if {"bandwidth", "util", "percent", "pct"} & have:
        return Meaning("", weak=True)
    if "current" in have:
        return Meaning(None)
    peak = have & {"peak", "max", "maximum", "maxmemallocated", "maxmem"} or joined.startswith("max")
    allocated = have & {"alloc", "allocated", "maxmemallocated", "memallocated"}
    gpu = have & {"gpu", "cuda", "gpumem", "vram", "device", "hbm"} or any(w.startswith("gpu") for w in words)
    rank = 4 + (3 if allocated else 0) + (2 if peak and allocated else 0) + (1 if gpu else 0)
    if allocated and not peak:
        rank = 5
    if "active" in have:
        rank = 4
    if allocated and not peak and len(words) <= 2 and not gpu and joined in {"mem_allocated", "memallocated"}:
        return Meaning("", weak=True)
    plain = (gpu and (allocated or have & {"usage", "mem", "gpumem"})) or (peak and allocated)
    return Meaning(MEMORY, rank, weak=not plain)


# Of how many steps a time is: "avg step time", "total step time".
_SPANNED = frozenset({"avg", "average", "mean", "total", "last", "train", "training", "current", "cur"})


def _time(joined: str, words: list[str]) -> Meaning | None:
    have = set(words)
    if (
        joined in ETA_NAMES
        or (have & ETA_CORE and have <= ETA_CORE | ETA_WITH)
        or ("eta" in have and len(words) <= 3)
    ):
        return Meaning(ETA, 8)
    if "remaining" in have:
        return Meaning(ETA, 6) if {"time", "estimated"} & have and "estimate" not in have else Meaning(None)
    rank = STEP_TIME_NAMES.get(joined)
    if rank is None and len(words) > 1 and not have.isdisjoint(_SPANNED):
        rank = STEP_TIME_NAMES.get("_".join(word for word in words if word not in _SPANNED))
        rank = rank if have & {"step", "iter", "iteration", "it", "batch"} else None
    if rank is not None:
        return Meaning(STEP_TIME, rank, weak=joined in {"time", "timer", "seconds", "time_ms"})
    if joined == RUN_TIME:
        return Meaning("", weak=True)
    if joined in IGNORED_TIMES or {"elapsed", "wall", "walltime", "wallclock"} & have:
        per_step = "per" in have and {"iteration", "step", "iter", "batch", "it"} & have
        return Meaning(STEP_TIME, 8) if per_step else Meaning(None)
    if {"time", "ms", "sec", "seconds", "duration", "latency"} & have:
        per_step = {"step", "iter", "iteration", "batch", "it"} & have
        per = have & {"per", "each", "every"} or words[:1] in (["ms"], ["s"], ["sec"])
        if per_step and per and not {"data", "load", "forward", "backward"} & have:
            return Meaning(STEP_TIME, 7, weak=True)
        return Meaning("", weak=True)
    return None
