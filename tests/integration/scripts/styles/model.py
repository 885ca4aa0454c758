"""Memory and loss of the capped scripts: a base, and so much a sample, under a limit of the address space.

A step's loss is the mean over the global batch of a function of the sample's number, so that every way of
cutting it into micro-batches gives the same loss. `limit`: the largest micro-batch that fits.
"""

from __future__ import annotations

import json
import mmap
import os
import resource

UNIT = 32 << 20


def cap(limit: int) -> None:
    """Lets the process grow by `limit` samples and a half."""
    with open("/proc/self/status", encoding="ascii") as file:
        held = next(int(line.split()[1]) << 10 for line in file if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (held + limit * UNIT + UNIT // 2, resource.RLIM_INFINITY))


def train(micro: int, accumulation: int, *, limit: int, steps: int = 4, tell: str = "") -> None:
    """Trains; with `tell` the numbers that it was given go to that file."""
    cap(limit)
    if tell:
        with open(tell, "a", encoding="utf-8") as file:
            file.write(json.dumps({"micro": micro, "accumulation": accumulation, "pid": os.getpid()}) + "\n")
    samples = micro * accumulation
    for step in range(1, steps + 1):
        loss = 0.0
        for _ in range(accumulation):
            activations = allocate(micro)
            loss += sum((step * samples + i) % 7 for i in range(samples)) / samples / accumulation
            activations.close()
        print(f"step {step}/{steps} loss: {loss / step:.6f}", flush=True)


def allocate(micro: int) -> mmap.mmap:
    """What a forward pass of so many samples holds; fails as PyTorch's allocator for CPUs does."""
    size = micro * UNIT
    try:
        return mmap.mmap(-1, size)
    except OSError:
        raise RuntimeError(
            f"[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: "
            f"you tried to allocate {size} bytes. Error code 12 (Cannot allocate memory)"
        ) from None
