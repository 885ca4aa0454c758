"""The injected out-of-memory error: on rank 1, with more than LIMIT samples at once, from the step FROM on.

It depends on nothing but what is really trained with: neither on how often the job was started nor on its command line.
"""

from __future__ import annotations

import os

import torch
from told import tell

LIMIT, FROM = int(os.environ.get("LIMIT", "4")), int(os.environ.get("FROM", "12"))


def train_on(step: int, samples: int) -> None:
    """Before the forward pass of one micro-batch. `step`: optimizer steps that were made; told for the test to count."""
    rank = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))
    tell(step, rank=rank, samples=samples)
    if rank == 1 and samples > LIMIT and step >= FROM:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 15.00 GiB of which 1.00 GiB is free."
        )
