"""Reads the name of a setting: its place and its meaning.

The name gives the place: ``--batch_size`` or ``train.batch_size`` on the command line, ``env:BATCH_SIZE``
in the environment, ``conf/train.yaml#train.batch_size`` in a file given on the command line, and
``--config=conf/train.yaml#train.batch_size`` in a file that a flag selects by default.
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
    """Return the place of a setting with this name."""
    if name.startswith(ENV):
        return Place.ENVIRONMENT
    file, hash_, _ = name.partition("#")
    return Place.FILE if hash_ and file.lower().endswith(SUFFIXES) else Place.ARGUMENT


def bare(name: str) -> str:
    """Return the setting's own name, excluding ``env:`` and the file."""
    name = name.removeprefix(ENV)
    return name.partition("#")[2] if place_of(name) is Place.FILE else name


def is_argument(name: str) -> bool:
    """Check whether the setting is on the command line."""
    return place_of(name) is Place.ARGUMENT


def config_file(name: str) -> str:
    """Return a config's file, excluding the flag that selects it by default."""
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
    """How well a name fits a micro-batch. Higher is better."""

    NONE = 0
    ODD = 1
    """A batch word among the script's own words (`norm_batch`, `replay_batch_size`)."""
    BARE = 2
    TRAIN = 3
    ONE_RANK = 4
    """The name mentions one rank (`micro_batch_size`, `per_device_train_batch_size`)."""


def words_in(name: str) -> tuple[str, ...]:
    """Split a name into words: ``--trainBatchSize`` → train, batch, size."""
    return tuple(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name))


def words_of(name: str) -> tuple[str, ...]:
    """Return the words of a setting's last key: ``env:BATCH_SIZE``, ``conf.yaml#train.batch_size``."""
    return words_in(bare(name).rpartition(".")[2])


def plain(name: str) -> str:
    """Normalize a name's spelling across parsers: ``--batch-size`` and ``batch_size`` become the same."""
    return name.lstrip("-+").replace("-", "_").lower()


def last_part(name: str) -> str:
    """Return the last key of a dotted name: ``trainer.batch_size`` → batch_size."""
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
    """Check whether a batch setting's name suggests that it counts a whole step."""
    return not _TOTAL.isdisjoint(words_in(name))


def is_accumulation(name: str) -> bool:
    """Check whether `name` is for the number of passes in one optimizer step."""
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
    """Check whether `name` is a token budget for a batch."""
    words = set(words_in(name))
    return bool(words & {"token", "tokens"}) and not words & (
        _EVALUATION | {"new", "vocab", "id", "special", "num"}
    )


def is_other(name: str) -> bool:
    """Check whether `name` is clearly something else: steps, heads, workers, anything about evaluation."""
    other = not _NO_SIZE.isdisjoint(words_in(last_part(name))) or plain(name).endswith("workers")
    return other or not _EVALUATION.isdisjoint(words_in(name))


def is_resume(name: str) -> int:
    """Return how well `name` fits an option for a checkpoint. 0 means no fit. Higher is better."""
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
    """Check whether a switch with this name resumes, and does not only concern checkpoints."""
    return not {"resume", "restore", "restart"}.isdisjoint(words_in(name))


def attributes_in(expression: str) -> frozenset[str]:
    """Return the attribute names in an expression: batch_size in ``args.batch_size // world``.

    Bare names are left out as variables of the loader's helper. Attributes of `self` may come from anywhere.
    """
    found = re.findall(r"\b([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)", expression)
    return frozenset(
        name.rpartition(".")[2].lower()
        for name in found
        if name.partition(".")[0] not in {"self", "cls"} or name.count(".") > 1
    )


def is_path_in(name: str, expression: str) -> bool:
    """Check whether `expression` has the whole path, as ``TRAIN.BATCH`` in ``cfg.TRAIN.BATCH // world``."""
    return re.search(rf"\.{re.escape(plain(name))}\b", plain(expression)) is not None


def is_one_name(expression: str) -> bool:
    """Check whether `expression` is a single name without arithmetic, such as ``args.zeta``."""
    return re.fullmatch(r"(int\()?[A-Za-z_][\w.]*\)?", expression) is not None
