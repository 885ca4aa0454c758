"""What people read: one tidy line a log interval, from rank 0."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """The numbers of a console line; rates are means since the last line."""

    step: int
    total_steps: int
    loss: float
    rate: float
    grad_norm: float
    tokens_per_sec: float
    step_time_s: float


def step_line(line: Line) -> str:
    """Such as ``step 120/400 | loss 2.3141 | lr 2.9e-04 | grad 0.81 | 27.2k tok/s | 120 ms``."""
    return (
        f"step {line.step}/{line.total_steps} | loss {line.loss:.4f} | lr {line.rate:.1e} | "
        f"grad {line.grad_norm:.2f} | {short(line.tokens_per_sec)} tok/s | {line.step_time_s * 1000:.0f} ms"
    )


def short(number: float) -> str:
    """A number in three or four digits: 950, 27.2k, 1.31M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.{2 if number < 10 * size else 1}f}{letter}"
    return f"{number:.0f}"


class Console:
    """Prints on rank 0 only; warnings come from every rank, on stderr."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def say(self, text: str) -> None:
        """One line from rank 0."""
        if self._rank == 0:
            print(text, flush=True)

    def say_from_any(self, text: str) -> None:
        """One line from whatever rank this is, with its number."""
        print(f"rank {self._rank}: {text}", flush=True)

    def warn(self, text: str) -> None:
        """One warning, with its rank."""
        sys.stderr.write(f"WARNING rank {self._rank}: {text}\n")
        sys.stderr.flush()
