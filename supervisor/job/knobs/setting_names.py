"""Interprets the name of a setting: where it is set and what it means.

The name says where the setting is: ``--batch_size`` or ``train.batch_size`` on the command line,
``env:BATCH_SIZE`` in the environment, ``conf/train.yaml#train.batch_size`` in a file given on the command
line, and ``--config=conf/train.yaml#train.batch_size`` in a file that a flag selects by default.
"""

from __future__ import annotations

import re
from enum import IntEnum, StrEnum
from itertools import pairwise
from typing import Final, TypeAlias

ENV: Final = "env:"
SUFFIXES: Final = (".yaml", ".yml", ".toml", ".json")
"""Suffixes of a script's own config file."""
Scalar: TypeAlias = str | int | float | bool | None
"""A value in a config file."""


class Place(StrEnum):
    """Where a setting is set."""

    ARGUMENT = "argument"
    ENVIRONMENT = "environment"
    FILE = "file"


def place_of(name: str) -> Place:
    """Return where a setting with this name is set."""
    if name.startswith(ENV):
        return Place.ENVIRONMENT
    file, hash_, _ = name.partition("#")
    return Place.FILE if hash_ and file.lower().endswith(SUFFIXES) else Place.ARGUMENT


def bare(name: str) -> str:
    """Return the setting's own name, without ``env:`` or the file."""
    name = name.removeprefix(ENV)
    return name.partition("#")[2] if place_of(name) is Place.FILE else name


def is_argument(name: str) -> bool:
    """Check whether the setting is on the command line."""
    return place_of(name) is Place.ARGUMENT


def config_file(name: str) -> str:
    """Return the path of a config file, without the flag that selects it by default."""
    return name.partition("=")[2] if name.startswith("-") else name


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_BATCH: Final = _set("batch batchsize bs bsz micro mb mbs mbsz gbs nbs tbs minibatch microbatch")
_EVALUATION: Final = _set(
    "eval evaluation evaluate val valid validation test testing dev infer inference pred predict prediction vbs ebs"
)
_NO_SIZE: Final = _set(
    "step steps epoch epochs every freq frequency interval worker workers warmup iter iters idx index id seed dim heads"
    " layers hidden width vocab seq length lr model embed embd classes channels depth"
)
_ONE_RANK: Final = _set("micro microbatch mbs mbsz device gpu local rank core process")
_SIZE: Final = _set("size sz value n num train training per") | _ONE_RANK
_PLAIN: Final = (
    _BATCH | _SIZE | _set("mini global total effective samples data loader dataloader b world of the")
)
_TOTAL: Final = _set("global total effective gbs nbs tbs nominal")
_ACCUMULATION: Final = _set("ga gas gacc subdivision subdivisions")  # darknet: mini-batches per batch
# If several settings take a checkpoint, the one with the clearest word comes first.
_RESUME: Final = ("resume", "restore", "restart", "init_from", "ckpt", "checkpoint", "load")
_NO_RESUME: Final = _set(
    "save every interval freq steps step dir folder output best bit keep limit strict total gradient activation data"
    " dataset only enable checkpointing"
)


class BatchName(IntEnum):
    """How well a name fits a micro-batch setting. Higher is better."""

    NONE = 0
    ODD = 1
    """The name combines a batch word with the script's own words (`norm_batch`, `replay_batch_size`)."""
    BARE = 2
    TRAIN = 3
    ONE_RANK = 4
    """The name mentions one rank (`micro_batch_size`, `per_device_train_batch_size`)."""


def words_in(name: str) -> tuple[str, ...]:
    """Split a name into words, such as train, batch, size for ``--trainBatchSize``."""
    return tuple(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name))


def words_of(name: str) -> tuple[str, ...]:
    """Return the words in a setting's last key, as in ``env:BATCH_SIZE`` or ``conf.yaml#train.batch_size``."""
    return words_in(bare(name).rpartition(".")[2])


def plain(name: str) -> str:
    """Normalize a name's spelling across parsers, so that ``--batch-size`` and ``batch_size`` compare equal."""
    return name.lstrip("-+").replace("-", "_").lower()


def last_part(name: str) -> str:
    """Return the last key of a dotted name, such as batch_size in ``trainer.batch_size``."""
    return plain(name).rpartition(".")[2]


def batch_name(name: str) -> BatchName:
    """Return how well `name` fits the training batch. In ``batch.size``, the first part counts too."""
    *sections, last = (set(words_in(part)) for part in name.split("."))
    above = set().union(*sections)
    if _EVALUATION & (above | last) or is_accumulation(name):
        return BatchName.NONE
    words = last | sections[-1] if sections and last <= _SIZE and sections[-1] & _BATCH else last
    if not words & _BATCH or words & _NO_SIZE:
        return BatchName.NONE
    if not words <= _PLAIN:
        return BatchName.ODD
    if words & _ONE_RANK:
        return BatchName.ONE_RANK
    return BatchName.TRAIN if (words | above) & {"train", "training"} else BatchName.BARE


def is_total(name: str) -> bool:
    """Check whether a batch setting's name suggests that it counts a whole optimizer step."""
    return not _TOTAL.isdisjoint(words_in(name))


def is_accumulation(name: str) -> bool:
    """Check whether `name` refers to the number of passes in one optimizer step."""
    words = words_in(name)
    if _EVALUATION.intersection(words):
        return False
    last = words_in(name.rpartition(".")[2])
    pairs = set(pairwise(last))
    return (
        any("accum" in word for word in last)
        or not _ACCUMULATION.isdisjoint(last)
        or bool(pairs & {("update", "freq"), ("iter", "size")})
    )


def is_tokens(name: str) -> bool:
    """Check whether `name` refers to a token budget for a batch."""
    words = set(words_in(name))
    return bool(words & {"token", "tokens"}) and not words & (
        _EVALUATION | {"new", "vocab", "id", "special", "num"}
    )


def is_other(name: str) -> bool:
    """Check whether `name` clearly means something else, such as steps, heads, workers or an evaluation setting."""
    other = not _NO_SIZE.isdisjoint(words_in(last_part(name))) or plain(name).endswith("workers")
    return other or not _EVALUATION.isdisjoint(words_in(name))


def is_resume(name: str) -> int:
    """Return how well `name` fits a checkpoint option. Higher is better, and 0 means it does not fit."""
    words = words_in(name)
    if _NO_RESUME.intersection(words):
        return 0
    text = "_".join(words)
    ranks = (
        len(_RESUME) - at
        for at, word in enumerate(_RESUME)
        if word in words or ("_" in word and word in text)
    )
    return max(ranks, default=0)


def says_resume(name: str) -> bool:
    """Check whether a switch with this name turns on resuming, rather than merely concerning checkpoints."""
    return not {"resume", "restore", "restart"}.isdisjoint(words_in(name))


def attributes_in(expression: str) -> frozenset[str]:
    """Return the attribute names in an expression, such as batch_size in ``args.batch_size // world``.

    Skips bare names, which are local to the loader's helper, and attributes of `self`, which may come from anywhere.
    """
    found = re.findall(r"\b([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)", expression)
    return frozenset(
        name.rpartition(".")[2].lower()
        for name in found
        if name.partition(".")[0] not in {"self", "cls"} or name.count(".") > 1
    )


def is_path_in(name: str, expression: str) -> bool:
    """Check whether `expression` contains `name` as a complete path, e.g. ``TRAIN.BATCH`` in ``cfg.TRAIN.BATCH // world``."""
    return re.search(rf"\.{re.escape(plain(name))}\b", plain(expression)) is not None


def is_one_name(expression: str) -> bool:
    """Check whether `expression` is a single name without arithmetic, such as ``args.zeta``."""
    return re.fullmatch(r"(int\()?[A-Za-z_][\w.]*\)?", expression) is not None
