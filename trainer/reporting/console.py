"""What people read: one tidy line a log interval, from rank 0."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from typing import Final, TextIO

PAINT_EVERY_S: Final = 0.1
CLEAR_LINE: Final = "\r\x1b[2K"


@dataclass(frozen=True, slots=True)
class Line:
    """The numbers of a console line; tokens/s and step time are means since the last line."""

    step: int
    total_steps: int
    loss: float
    lr: float
    grad_norm: float
    tokens_per_sec: float
    step_time_s: float


def step_line(line: Line) -> str:
    """Such as ``step 120/400 | loss 2.3141 | lr 2.9e-04 | grad 0.81 | 27.2k tok/s | 120 ms``."""
    return (
        f"step {line.step}/{line.total_steps} | loss {line.loss:.4f} | lr {line.lr:.1e} | "
        f"grad {line.grad_norm:.2f} | {short(line.tokens_per_sec)} tok/s | {line.step_time_s * 1000:.0f} ms"
    )


def short(number: float) -> str:
    """A number in three or four digits: 950, 27.2k, 1.31M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.{2 if number < 10 * size else 1}f}{letter}"
    return f"{number:.0f}"


def bar(step: int, total_steps: int, width: int = 30) -> str:
    """Such as ``[██████░░░░] 120/200``."""
    done = width * step // max(total_steps, 1)
    return f"[{'█' * done}{'░' * (width - done)}] {step}/{total_steps}"


class Console:
    """Prints on rank 0 only; warnings come from every rank, on stderr.

    On a terminal a progress bar stands below the last line; in a file or a pipe there is none.
    """

    def __init__(self, rank: int, stream: TextIO | None = None) -> None:
        self._rank = rank
        self._stream = stream or sys.stdout
        self._is_terminal = rank == 0 and self._stream.isatty()
        self._clear = CLEAR_LINE if self._is_terminal else ""
        self._painted_s = -math.inf

    def say(self, text: str) -> None:
        """One line from rank 0."""
        if self._rank == 0:
            print(self._clear + text, file=self._stream, flush=True)

    def progress(self, step: int, total_steps: int) -> None:
        """Repaints the bar, at most ten times a second."""
        if self._is_terminal and time.monotonic() - self._painted_s >= PAINT_EVERY_S:
            self._painted_s = time.monotonic()
            self._stream.write(CLEAR_LINE + bar(step, total_steps))
            self._stream.flush()

    def say_from_any(self, text: str) -> None:
        """One line from whatever rank this is, with its number."""
        print(f"{self._clear}rank {self._rank}: {text}", file=self._stream, flush=True)

    def warn(self, text: str) -> None:
        """One warning, with its rank."""
        sys.stderr.write(f"WARNING rank {self._rank}: {text}\n")
        sys.stderr.flush()
