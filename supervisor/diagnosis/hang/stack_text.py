"""Stacks of a Python process as frames, from what py-spy and Python's faulthandler print.

py-spy dump: ``Thread 12 (idle): "MainThread"`` and below it ``    main (/job/train.py:19)``, innermost first.
faulthandler: ``Current thread 0x… (most recent call first):`` and ``  File "/job/train.py", line 19 in main``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from supervisor.text.numbers import whole

_SPY_THREAD = re.compile(r'Thread (0x[0-9A-Fa-f]+|\d+)(?: \(([^)]*)\))?(?:: "(.*)")?')
_SPY_FRAME = re.compile(r"\s+(\S.*?) \((.*?)(?::(\d+))?\)\s*$")
_FAULT_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")
_FAULT_FRAME = re.compile(r'\s+File "(.*)", line (\d+|\?\?\?) in (.*)$')
_INSTALLED = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages)/|/python\d[.\d]*t?/|^<frozen|^<string>|\.so(?:\.|$)"
)
_LIBRARIES = frozenset(
    ("torch", "numpy", "accelerate", "deepspeed", "lightning", "transformers", "multiprocessing")
)
_MAX_FRAMES = 128


@dataclass(frozen=True, slots=True)
class Frame:
    """One call: `file` as the tool printed it, `line` 1-based, None for a frame of native code."""

    function: str
    file: str
    line: int | None

    @property
    def name(self) -> str:
        """The function's own name: newer py-spy puts that of its class before it."""
        return self.function.rpartition(".")[2]

    @property
    def is_library(self) -> bool:
        """Whether it is code that was installed, not the user's own."""
        if _INSTALLED.search(self.file) is not None:
            return True
        first, _, rest = self.file.partition("/")
        module = first.removesuffix(".py")
        # py-spy shortens paths: ``torch/_tensor.py``, ``threading.py``.
        return first in _LIBRARIES if rest else module in sys.stdlib_module_names and first.endswith(".py")

    @property
    def place(self) -> str:
        """The last parts of the path, and the line: ``data/loader.py:41``."""
        short = "/".join(self.file.rsplit("/", 2)[-2:]) if self.is_library else self.file.rsplit("/", 1)[-1]
        return short if self.line is None else f"{short}:{self.line}"


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread, innermost frame first. `idle`: it waits in the kernel; None where the tool does not say.

    `at`: which of the lines that were parsed each frame is, from 0.
    """

    frames: tuple[Frame, ...]
    idle: bool | None = None
    is_main: bool = False
    at: tuple[int, ...] = ()


def parse_stack(lines: Sequence[str]) -> tuple[ThreadStack, ...]:
    """The threads in the output of py-spy or of faulthandler; empty when it is neither."""
    if any(_FAULT_THREAD.match(line) for line in lines):
        return _from_faulthandler(lines)
    return _from_py_spy(lines)


def main_thread(threads: Sequence[ThreadStack]) -> ThreadStack | None:
    """The thread that runs the script."""
    return next((thread for thread in threads if thread.is_main), threads[0] if len(threads) == 1 else None)


def _from_py_spy(lines: Sequence[str]) -> tuple[ThreadStack, ...]:
    found: list[ThreadStack] = []
    name, idle, frames, at = "", None, list[Frame](), list[int]()

    def close() -> None:
        if frames:
            found.append(ThreadStack(tuple(frames), idle, is_main=name == "MainThread", at=tuple(at)))

    for index, line in enumerate(lines):
        if (head := _SPY_THREAD.match(line)) is not None:
            close()
            name, frames, at = head[3] or head[1], [], []
            idle = None if head[2] is None else head[2].startswith("idle")
        elif (seen := _SPY_FRAME.match(line)) is not None and len(frames) < _MAX_FRAMES:
            frames.append(Frame(seen[1], seen[2], whole(seen[3]) if seen[3] else None))
            at.append(index)
    close()
    if found and not any(thread.is_main for thread in found):
        # A thread without a name (no threading module) is the only one, or the last listed.
        last = found.pop()
        found.append(replace(last, is_main=True))
    return tuple(found)


def _from_faulthandler(lines: Sequence[str]) -> tuple[ThreadStack, ...]:
    found: list[ThreadStack] = []
    is_main, frames, at = False, list[Frame](), list[int]()

    def close() -> None:
        if frames:
            found.append(ThreadStack(tuple(frames), is_main=is_main, at=tuple(at)))

    for index, line in enumerate(lines):
        if (head := _FAULT_THREAD.match(line)) is not None:
            close()
            # A signal's handler runs in the main thread (signal(7) lets any take it; CPython's main one does).
            is_main, frames, at = head[1] == "Current thread", [], []
        elif (seen := _FAULT_FRAME.match(line)) is not None and len(frames) < _MAX_FRAMES:
            number = whole(seen[2]) if seen[2].isdecimal() else None
            frames.append(Frame(seen[3], seen[1], number))
            at.append(index)
    close()
    return tuple(found)
