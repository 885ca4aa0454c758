"""What a batch and a restart need to know of the bundled trainer's settings."""

from __future__ import annotations

from typing import Any, Final

from supervisor.job.config.trainer_table import TRAINER_KEYS
from supervisor.job.spec import Knobs, KnobScope

TRAINER_DEFAULTS: Final[dict[str, Any]] = {key: setting.default for key, setting in TRAINER_KEYS.items()}
"""What the trainer uses where nothing is said."""

TRAINER_KNOBS: Final = Knobs(
    batch="--device_batch_size",
    batch_scope=KnobScope.PER_RANK,
    global_batch="--total_batch_size",
    resume="--resume_from",
    resume_value="auto",
    declared=True,
)
