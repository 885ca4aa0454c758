"""What a device could do at best."""

from __future__ import annotations

from typing import Final

import torch

# Dense bfloat16 tensor-core FLOP/s, from NVIDIA's data sheets (the figures without sparsity).
PEAK_BFLOAT16: Final = (
    ("H200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100", 989e12),
    ("GH200", 989e12),
    ("B200", 2250e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("L40S", 362e12),
    ("A10", 125e12),
    ("RTX 4090", 165e12),
    ("RTX 3090", 71e12),
    ("V100", 125e12),
    ("T4", 65e12),
)


def peak_flops_of(device: torch.device, world_size: int, compute: torch.dtype) -> float | None:
    """FLOP/s of all ranks' devices together in half precision; None where that is not known."""
    if device.type != "cuda" or compute is torch.float32:
        return None
    name = torch.cuda.get_device_name(device)
    found = next((peak for word, peak in PEAK_BFLOAT16 if word in name), None)
    return found * world_size if found else None
