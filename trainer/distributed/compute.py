"""Number types and compilers as torch wants them, and what this rank sees of its machine. `machine.decide` chooses."""

from __future__ import annotations

import os
import platform
import shutil
import sysconfig
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch

from trainer.config import Config
from trainer.distributed.machine import Gpu, Report, Tools
from trainer.distributed.place import Place
from trainer.model.language_model import LanguageModel

TYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def look(config: Config, place: Place) -> Report:
    """What this rank sees. It opens no GPU: memory of a GPU that another rank uses stays free."""
    count = torch.cuda.device_count() if config.device != "cpu" else 0
    host = platform.node()
    return Report(host, place.told_local_rank, tuple(_gpu(index, host) for index in range(count)))


def _gpu(index: int, host: str) -> Gpu:
    properties: Any = torch.cuda.get_device_properties(index)
    chip = f"{getattr(properties, 'uuid', '')}"
    if " MIG " in properties.name or not chip:
        # Parts of one chip have names of their own and one address on the bus; NCCL tells GPUs apart by that.
        # Hosts with several PCI domains use a bus number more than once.
        address = [getattr(properties, name, None) for name in ("pci_domain_id", "pci_bus_id")]
        chip = f"{host}/{':'.join(str(part) for part in address if part is not None) or properties.name}"
    return Gpu(properties.name, (properties.major, properties.minor), chip)


def tools(env: Mapping[str, str]) -> Tools:
    """What the compiler finds on this host."""
    # Where Triton looks (triton/runtime/build.py): not in the scheme of Debian's own for what pip installs.
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    return Tools(
        c_compiler=any(shutil.which(name) for name in (env.get("CC", "cc"), "gcc", "clang")),
        python_header=os.path.isfile(os.path.join(sysconfig.get_path("include", scheme), "Python.h")),
    )


def autocast(where: torch.device, compute: torch.dtype) -> AbstractContextManager[None]:
    """Weights stay float32; products are computed in `compute`."""
    return nullcontext() if compute is torch.float32 else torch.autocast(where.type, compute)


def allow_tf32(config: Config, where: torch.device) -> None:
    """Switches TensorFloat-32 on or off for float32 products on CUDA."""
    if where.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = config.tf32
        torch.backends.cudnn.allow_tf32 = config.tf32


def compile_blocks(config: Config, model: LanguageModel) -> None:
    """Compiles each block in its place; with ``--compile auto`` what cannot be compiled runs as it is, and torch says so.

    Block by block, and not the whole: DDP sends a bucket of gradients once they are there, and of one graph they all come at its end
    (torch docs, "DDP notes", TorchDynamo). Equal blocks share what was compiled, and evaluation runs the same ones.
    """
    if config.compile == "auto":
        from torch._dynamo import (
            config as dynamo,  # a second's import, which a run that is not compiled is spared
        )

        dynamo.suppress_errors = True
    for block in model.blocks:
        # Its forward alone: what FSDP2 does around it (gather, free) stays outside of the graph.
        block.forward = torch.compile(block.forward)
