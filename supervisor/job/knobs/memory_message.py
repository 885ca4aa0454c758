"""Numbers in PyTorch's own memory messages: what was tried, held and allowed."""

from __future__ import annotations

import re
from typing import Final

from supervisor.job.batch import MemoryPoint

_UNITS: Final = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE: Final = r"(\d{1,7}(?:\.\d{1,4})?) ?(bytes|B|KiB|MiB|GiB|TiB)"
_TRIED: Final = re.compile(rf"[Tt]ried to allocate {_SIZE}")
_TOTAL: Final = re.compile(rf"total capacity of {_SIZE}")
_FREE: Final = re.compile(rf"of which {_SIZE} is free")
_IN_USE: Final = re.compile(rf"this process has {_SIZE} memory in use")
_ALLOWED: Final = re.compile(rf"{_SIZE} allowed")
_ALLOCATED: Final = re.compile(rf"{_SIZE} is allocated by PyTorch")


def memory_point(text: str, micro_batch: int, *, base_bytes: int = 0) -> MemoryPoint | None:
    """The point that a CUDA out-of-memory message adds; None where it does not say enough.

    The capacity is what this process could have had: what it holds plus what is free (others may sit on
    the device), or its allowed fraction where one is set. The message's format is that of torch 2.1 to 2.13.
    """
    tried, allocated, total = (_bytes(p, text) for p in (_TRIED, _ALLOCATED, _TOTAL))
    if tried is None or allocated is None or total is None or micro_batch < 1:
        return None
    free, in_use, allowed = (_bytes(p, text) for p in (_FREE, _IN_USE, _ALLOWED))
    capacity = total if free is None or in_use is None else min(total, free + in_use)
    if allowed is not None:
        capacity = min(capacity, allowed)
    return MemoryPoint(micro_batch, allocated, tried, capacity, base_bytes)


def _bytes(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(float(found[1]) * _UNITS[found[2]]) if found else None
