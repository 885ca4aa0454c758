#!/usr/bin/env python3
"""Run a CUDA-only training script on the CPU, unchanged: torchrun --nproc-per-node 2 run_on_cpu.py SCRIPT [ARGS].

Moves to `cuda` become moves to the CPU, NCCL becomes gloo, DDP's device_ids go. Parser, DataLoader and loop are the script's own. Compilation, CUDA graphs, AMP's
scaling and memory figures are not what they would be on a card.
"""

import os
import runpy
import sys

import torch
import torch.distributed as dist

CPU = torch.device("cpu")


def on_cpu(value):
    """`value`, or the CPU where it names a CUDA device (a bare index, too)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return CPU
    return CPU if isinstance(value, (str, torch.device)) and "cuda" in str(value) else value


def moved(old):
    def to(self, *args, **kwargs):
        return old(
            self,
            *[on_cpu(a) for a in args],
            **{k: on_cpu(v) if k == "device" else v for k, v in kwargs.items()},
        )

    return to


def made(old):
    def make(*args, **kwargs):
        return old(*args, **{k: on_cpu(v) if k == "device" else v for k, v in kwargs.items()})

    return make


for owner in (torch.Tensor, torch.nn.Module):
    owner.to = moved(owner.to)
    owner.cuda = lambda self, *args, **kwargs: self
torch.Tensor.pin_memory = lambda self, *args, **kwargs: self
for name in ("tensor", "zeros", "ones", "empty", "randn", "rand", "arange", "full", "randint"):
    setattr(torch, name, made(getattr(torch, name)))
for name in ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"):
    setattr(torch.cuda, name, lambda *args, **kwargs: None)
torch.cuda.max_memory_allocated = lambda *args, **kwargs: 0

init, wrap = dist.init_process_group, torch.nn.parallel.DistributedDataParallel.__init__


def init_process_group(*args, **kwargs):
    kwargs.pop("device_id", None)
    kwargs["backend"] = "gloo"
    return init(**kwargs)


def ddp(self, module, *args, **kwargs):
    wrap(self, module, **{k: v for k, v in kwargs.items() if k not in ("device_ids", "output_device")})


dist.init_process_group = init_process_group
torch.nn.parallel.DistributedDataParallel.__init__ = ddp

sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
