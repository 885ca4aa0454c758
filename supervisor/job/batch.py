"""Batch arithmetic: micro-batch x accumulation x world size = global batch.

The global batch is what one optimizer step sees; it stays constant when the
micro-batch shrinks, because accumulation grows. All arithmetic on batches in
stoker lives in this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BatchUnit(StrEnum):
    """In what the global batch is counted."""

    SAMPLES = "samples"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """A batch that divides: every field is positive and the product is exact.

    `micro_batch_per_rank` is in samples. `global_batch` is in `unit`; with
    ``unit=TOKENS`` a sample counts `tokens_per_sample` tokens.
    """

    micro_batch_per_rank: int
    accumulation_steps: int
    world_size: int
    unit: BatchUnit = BatchUnit.SAMPLES
    tokens_per_sample: int = 1

    @property
    def global_batch(self) -> int:
        """Samples or tokens one optimizer step sees."""
        samples = self.micro_batch_per_rank * self.accumulation_steps * self.world_size
        return samples * (self.tokens_per_sample if self.unit is BatchUnit.TOKENS else 1)


@dataclass(frozen=True, slots=True)
class BatchChange:
    """A planned change; before and after have the same global batch unless a person asked otherwise."""

    before: BatchSpec
    after: BatchSpec
