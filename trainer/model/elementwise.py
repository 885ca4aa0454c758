"""Three element-wise parts with their gradients written out, for float32 on a CPU.

Composed of torch's own operations each of them makes several temporaries of the size of its input, and at these sizes
a CPU waits for memory, not for arithmetic: two of them together 7 % of a step. On CUDA the compiler fuses
them, so there they stay what torch offers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows
from torch import Tensor
from torch.autograd.function import once_differentiable


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)² (Primer, So et al. 2021). [...] -> the same."""
    if not _plain(x):
        return F.relu(x).square()
    output: Tensor = _SquaredReLU.apply(x)  # type: ignore[no-untyped-call]
    return output


def rms_norm(x: Tensor) -> Tensor:
    """The last dimension divided by its root mean square (Zhang and Sennrich, 2019), without a weight."""
    if not _plain(x):
        return F.rms_norm(x, x.shape[-1:])
    output: Tensor = _RMSNorm.apply(x)  # type: ignore[no-untyped-call]
    return output


def gelu(x: Tensor) -> Tensor:
    """GELU in its tanh form (Hendrycks and Gimpel, 2016), as OpenAI's GPT-2 has it. [...] -> the same."""
    if not _plain(x):
        return F.gelu(x, approximate="tanh")
    output: Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
    return output


def _plain(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in {torch.float32, torch.float64}


class _SquaredReLU(torch.autograd.Function):
    """Gradient: 2 max(x, 0) g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        positive = x.relu()
        return positive.mul_(positive)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return x.relu().mul_(gradient).mul_(2)


class _Gelu(torch.autograd.Function):
    """x σ(u) with u = 2 √(2/π) (x + 0.044715 x³), for 1 + tanh(a) = 2 σ(2a). Only its slope is kept.

    torch's own takes the tanh of the C library on a CPU: 1.1 ms of a block's 14, forward and backward; this takes 0.6.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        rate = 2 * (2 / math.pi) ** 0.5
        squares = x * x
        gate = (squares * (0.044715 * rate)).add_(rate).mul_(x).sigmoid_()
        y: Tensor = x * gate
        # σ + x σ (1 - σ) u', in place of the squares
        slope = squares.mul_(3 * 0.044715 * rate).add_(rate).mul_(y)
        ctx.save_for_backward(slope.addcmul_(slope, gate, value=-1).add_(gate))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        product: Tensor = slope * gradient
        return product


class _RMSNorm(torch.autograd.Function):
    """With y = x / rms: gradient (g - y mean(g y)) / rms. Only y is kept, which the next product keeps too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        # eps as in F.rms_norm: the type's own.
        scale = length.square_().div_(x.shape[-1]).add_(torch.finfo(x.dtype).eps).rsqrt_()
        y: Tensor = x * scale
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        y, scale = ctx.saved_tensors
        shared = torch.linalg.vecdot(gradient, y).unsqueeze(-1).div_(-y.shape[-1])
        return torch.addcmul(gradient, y, shared).mul_(scale)
