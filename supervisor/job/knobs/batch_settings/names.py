"""What the name of a setting means: a micro-batch, a batch of unknown scope, a total, an accumulation, or none of these."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from supervisor.job.knobs.places import bare
from supervisor.job.spec import KnobScope

# A batch that is not the one of training: it may be as large as it likes without changing the training.
_OTHER_BATCH: Final = frozenset(
    {
        "eval", "evaluation", "val", "valid", "validation", "test", "testing", "predict", "prediction", "infer", "inference", "max", "min",
        "sample", "sampling", "sampler", "gen", "generate", "generation", "rollout", "prior", "ref", "reference", "logprob", "log", "reward",
        "critic", "decode", "decoding", "encode", "encoding", "preprocessing", "preprocess", "tokenize", "map", "writer", "cache", "vae",
        "calib", "calibration", "quant", "auto", "find", "drop", "num", "rampup", "start", "warmup", "increment", "multiplier", "api", "vllm",
        "teacher", "profile", "benchmark", "score", "search", "forward", "experience", "buffer", "replay", "class", "visual", "dev", "demo",
        "no", "use", "schedule", "limit", "norm", "bn", "shuffle", "stats", "fid", "metric", "metrics", "prompt", "precompute", "mc",
    }
)  # fmt: skip
_MICRO: Final = frozenset({"device", "gpu", "micro", "microbatch", "rank", "local", "worker", "replica"})
_NODE: Final = frozenset({"node"})
_TOTAL: Final = frozenset({"global", "total", "effective"})
_SHORT: Final = frozenset({"-b", "-bs", "--bs", "-batch"})
_SIZES: Final = frozenset(
    {
        "size",
        "batch",
        "gpu",
        "device",
        "rank",
        "node",
        "replica",
        "batchsize",
        "microbatch",
        "minibatch",
        "bs",
        "bsz",
    }
)
_WHOLE: Final = {"ims_per_batch": KnobScope.GLOBAL, "samples_per_gpu": KnobScope.PER_RANK, "imgs_per_gpu": KnobScope.PER_RANK, "images_per_gpu": KnobScope.PER_RANK}  # fmt: skip
_ACCUMULATION: Final = frozenset(
    {"accumulation", "accumulate", "accum", "accumulative", "acc", "accumulations", "gas"}
)
_COUNTED: Final = frozenset(
    {"step", "steps", "grad", "grads", "gradient", "gradients", "batches", "iter", "iters", "counts", "count", "freq", "factor", "num", "batch", "n", "accumulation", "every"}
)  # fmt: skip
_NOT_ACCUMULATION: Final = frozenset(
    {
        "eval", "val", "valid", "test", "fusion", "no", "dtype", "fp32", "bf16", "fp16", "type", "allreduce", "reduce", "kl", "loss", "metric",
        "use", "disable", "enable", "async", "offload", "plugin", "kwargs", "in", "main", "cpu", "buffer", "precision", "checkpoint", "sync",
        "warmup", "log", "accuracy", "top1", "threshold", "scheduler",
    }
)  # fmt: skip
_ACCUMULATION_NAMES: Final = frozenset({"update_freq", "update_frequency", "accum_iter", "iter_size", "accum_grad", "gradient_accumulation", "grad_accum", "grad_accumulation", "gas", "accumulate", "batch_multiplier"})  # fmt: skip


_MAY_ACCUMULATE: Final = frozenset(
    {"ga", "grad", "grads", "gradient", "backward", "update", "updates", "every", "micro", "virtual", "split", "splits", "chunk", "chunks", "substeps"}
)  # fmt: skip


class Role(StrEnum):
    """What a setting holds, as far as its name alone says."""

    MICRO = "micro"  # a rank's batch of one forward pass
    NODE = "node"  # a node's
    BATCH = "batch"  # a batch, and not said of what
    TOTAL = "total"  # what one optimizer step sees
    ACCUMULATION = "accumulation"


def words_of(name: str) -> list[str]:
    """``--per-device-train-batch-size`` and ``perDeviceBatchSize`` as words; of ``train.batch_size`` the last key."""
    name = bare(name)
    last = name.rpartition(".")[2] if not name.startswith("-") or "." in name else name
    return _split(last)


def _split(text: str) -> list[str]:
    return [
        w for w in re.split(r"[-_./]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text.lstrip("+@")).lower()) if w
    ]


def path_words(name: str) -> set[str]:
    """Every word of a name with the keys above it: ``val.loader.batch_size`` says ``val``."""
    return set(_split(bare(name)))


def role_of(name: str) -> Role | None:
    """The role that a name gives a setting; None where it is none of them, or another batch than training's."""
    if is_accumulation(name):
        return Role.ACCUMULATION
    match scope_by_name(name):
        case KnobScope.PER_RANK:
            return Role.MICRO
        case KnobScope.PER_NODE:
            return Role.NODE
        case KnobScope.GLOBAL:
            return Role.TOTAL
        case KnobScope.UNKNOWN:
            return Role.BATCH if is_batch(name) else None


def is_other_batch(name: str) -> bool:
    """Whether a name speaks of something else than training: ``val_size``, ``eval_bs``."""
    return bool(_OTHER_BATCH & path_words(name))


def is_batch(name: str) -> bool:
    """Whether a name is that of a training batch's size."""
    if name in _SHORT:
        return True
    words = words_of(name)
    if "_".join(words) in _WHOLE:
        return True
    if is_accumulation(name) or is_other_batch(name):
        return False
    if "batchsize" in words or {"microbatch", "minibatch"} & set(words) or words[-1:] in (["bs"], ["bsz"]):
        return True
    return "batch" in words and (
        words[-1] in _SIZES or (words[-1] in {"train", "training"} and "size" in words)
    )


def is_accumulation(name: str) -> bool:
    """Whether a name is that of the number of gradient accumulation steps."""
    words = words_of(name)
    if _NOT_ACCUMULATION & set(words) or {"eval", "val", "test", "ema", "target"} & path_words(name):
        return False
    if "_".join(words) in _ACCUMULATION_NAMES:
        return True
    return (
        bool(_ACCUMULATION & set(words))
        and bool(_COUNTED & set(words) or len(words) == 1)
        and "".join(words) != "acc"
    )


def is_size_of_training(name: str) -> bool:
    """Whether a name may be that of a batch size of the training, whatever else it says: ``max_train_batch_size``."""
    sized = {"batch", "size"} <= set(words_of(name)) or is_batch(name)
    return sized and not (_OTHER_BATCH - {"max", "forward"}) & path_words(name)


def may_cut(name: str) -> bool:
    """Whether a name says that something is cut into so many pieces: ``batch_split``, ``subdivisions``."""
    return bool({"split", "splits", "chunk", "chunks", "pieces", "subdivisions"} & set(words_of(name)))


def may_accumulate(name: str) -> bool:
    """Whether a name that does not say so may be an accumulation's, where the source uses it as one: ``update_every``, ``batch_split``."""
    words = set(words_of(name))
    return bool(words & _MAY_ACCUMULATE) and not words & (_NOT_ACCUMULATION | _OTHER_BATCH)


def scope_by_name(name: str) -> KnobScope:
    """What a batch counts, where its name says so."""
    if not is_batch(name):
        return KnobScope.UNKNOWN
    words = set(words_of(name))
    whole = _WHOLE.get("_".join(words_of(name)))
    if whole is not None:
        return whole
    if words & _TOTAL:
        return KnobScope.GLOBAL
    if words & _NODE:
        return KnobScope.PER_NODE
    if words & _MICRO:
        return KnobScope.PER_RANK
    return KnobScope.UNKNOWN
