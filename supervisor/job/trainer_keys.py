"""Settings of the bundled trainer, as a table: names, types and what a batch needs to know of them.

The supervisor may not import the trainer. A contract test compares this table with the trainer's own.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from supervisor.job.spec import Knobs, KnobScope


class KeyType(StrEnum):
    """What a setting holds."""

    INT = "whole number"
    FLOAT = "number"
    TEXT = "text"
    SWITCH = "true or false"


_I, _F, _T, _S = KeyType.INT, KeyType.FLOAT, KeyType.TEXT, KeyType.SWITCH

TRAINER_KEYS: Final[dict[str, KeyType]] = {
    "depth": _I,
    "device_batch_size": _I,
    "total_batch_size": _I,
    "max_seq_len": _I,
    "num_iterations": _I,
    "eval_every": _I,
    "resume_from": _T,
}

# What the trainer uses where nothing is said; only what a batch and progress need.
TRAINER_DEFAULTS: Final[dict[str, int]] = {}

# Names that a job file may use for a trainer key: the cluster seed's YAML and the older scripts' flags.
ALIASES: Final[dict[str, str]] = {}

TRAINER_KNOBS: Final = Knobs(
    batch="--device_batch_size",
    batch_scope=KnobScope.PER_RANK,
    global_batch="--total_batch_size",
    resume="--resume_from",
    resume_value="auto",
    declared=True,
)
