"""A slow average of the weights, which often does better than the last of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from trainer.model.optim import cut_like


class Ema:
    """average ← decay × average + (1 - decay) × weights, after each step.

    In the first steps the decay is (1 + step) / (10 + step), so that the random start is soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model = model
        self._decay = decay
        self._average = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Takes in the weights after `step` steps."""
        keep = min(self._decay, (1 + step) / (10 + step))
        for name, parameter in self._model.named_parameters():
            self._average[name].lerp_(parameter, 1 - keep)

    def state_dict(self) -> dict[str, Tensor]:
        """The averages by parameter name, split as the parameters are."""
        return dict(self._average)

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Puts averages back.

        Raises:
            KeyError: one is missing.
        """
        for name, parameter in self._model.named_parameters():
            self._average[name] = cut_like(saved[name], parameter)
