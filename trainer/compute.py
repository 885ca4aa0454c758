"""How to compute: number type, compiler, and what the device could do at best."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch

from trainer.config import Config
from trainer.dist import Device

# Dense tensor-core FLOP/s in bfloat16 (float16 where there is none), from NVIDIA's data sheets, without sparsity.
PEAK_BFLOAT16: Final = (
    ("H200 NVL", 835e12),
    ("H200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("GH200", 989e12),
    ("B200", 2250e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("A30", 165e12),
    ("L40S", 362e12),
    ("L40", 181e12),
    ("L4", 121e12),
    ("A10", 125e12),
    ("RTX 4090", 165e12),
    ("RTX 3090", 71e12),
    ("V100", 125e12),
    ("T4", 65e12),
)
TYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def compute_type(config: Config, where: torch.device) -> torch.dtype:
    """The type of matrix products: as named, or with mixed_precision the best half type that is there."""
    named = TYPES[config.dtype]
    if not config.mixed_precision or named is not torch.float32:
        return named
    has_bfloat16 = where.type != "cuda" or torch.cuda.is_bf16_supported()
    return torch.bfloat16 if has_bfloat16 else torch.float16


def autocast(where: torch.device, compute: torch.dtype) -> AbstractContextManager[None]:
    """Weights stay float32; products are computed in `compute`."""
    return nullcontext() if compute is torch.float32 else torch.autocast(where.type, compute)


def allow_tf32(config: Config, where: torch.device) -> None:
    """Switches TensorFloat-32 on or off for float32 products on CUDA."""
    if where.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = config.tf32
        torch.backends.cudnn.allow_tf32 = config.tf32


def wants_compile(config: Config, device: Device, env: Mapping[str, str]) -> tuple[bool, str]:
    """Whether to compile, and why."""
    if env.get("TORCH_COMPILE") == "0":
        return False, "TORCH_COMPILE=0"
    if config.compile != "auto":
        return config.compile == "on", f"--compile {config.compile}"
    if device.torch_device.type != "cuda":
        return False, "no gain on a CPU at this size"
    if device.shared:
        return False, device.reason
    if not any(shutil.which(name) for name in (env.get("CC", "cc"), "gcc", "clang")):
        return False, "no C compiler is on PATH"
    return True, "CUDA and a C compiler are there"


def peak_flops_of(device: torch.device, world_size: int, compute: torch.dtype) -> float | None:
    """FLOP/s of all ranks' devices together in half precision; None where that is not known."""
    if device.type != "cuda" or compute is torch.float32:
        return None
    peak = peak_of(torch.cuda.get_device_name(device))
    return peak * world_size if peak else None


def peak_of(device_name: str) -> float | None:
    """Dense FLOP/s in half precision of a GPU by its name; None where that is not known."""
    if "Laptop" in device_name:  # the same words, another chip
        return None
    # Whole words: an RTX A1000 is no A100.
    return next((peak for words, peak in PEAK_BFLOAT16 if re.search(rf"\b{words}\b", device_name)), None)
