"""Extra checks of ``--debug``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn


class UnusedParameterError(RuntimeError):
    """Parameters took no part in the loss, named."""


def without_gradient(
    model: nn.Module, batch: tuple[Tensor, Tensor], autocast: Callable[[], AbstractContextManager[None]]
) -> list[str]:
    """Names of parameters that get no gradient from one micro-batch; leaves no gradient behind.

    The model is the bare one, so that no rank waits for another: DDP itself would stop in the next step with
    indices in place of names.
    """
    with autocast():
        loss = model(*batch)
    torch.autograd.backward(loss)
    names = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    model.zero_grad(set_to_none=True)
    return names
