"""One tiny training for four styles of printing: a linear model, two gloo ranks, numbers written beside.

A style subclasses nothing of a framework: it prints what the framework prints, byte for byte in form, to the stream
that the framework prints it to. What was computed goes to `tell`, one JSON object a step, for a test to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import IO

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Step:
    """What one optimizer step came to, on rank 0."""

    def __init__(self, number: int, loss: float, lr: float, grad_norm: float) -> None:
        self.number = number
        self.loss = loss
        self.lr = lr
        self.grad_norm = grad_norm


class Training:
    """Steps of SGD on a fixed problem, with warm-up and decay of the learning rate."""

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--steps", type=int, default=40)
        parser.add_argument("--step-time", type=float, default=0.02)
        parser.add_argument("--tell", default="")
        args = parser.parse_args()
        self.steps: int = args.steps
        self.step_time: float = args.step_time
        self.tell: str = args.tell
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()

    def run(self) -> Iterator[Step]:
        """Train; one `Step` at a time."""
        torch.manual_seed(7 + self.rank)
        inputs, wanted = torch.randn(64, 8), torch.randn(64, 1)
        torch.manual_seed(7)
        model = DistributedDataParallel(torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for number in range(1, self.steps + 1):
            lr = 5e-2 * min(1.0, number / 10) * (1 - (number - 1) / self.steps)
            for group in optimizer.param_groups:
                group["lr"] = lr
            loss = torch.nn.functional.mse_loss(model(inputs), wanted)
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            time.sleep(self.step_time)
            step = Step(number, loss.item(), lr, norm.item())
            self._tell(step)
            yield step
        dist.barrier()
        dist.destroy_process_group()

    def _tell(self, step: Step) -> None:
        if self.tell and self.rank == 0:
            with open(self.tell, "a", encoding="utf-8") as file:
                said = {"step": step.number, "loss": step.loss, "lr": step.lr, "grad_norm": step.grad_norm}
                file.write(json.dumps(said) + "\n")


class Bar:
    """A progress bar as tqdm draws it on what is no terminal: a carriage return before each state."""

    WIDTH = 10

    def __init__(self, total: int, *, prefix: str = "", postfix: str = "", nested: bool = False) -> None:
        self.total = total
        self._before, self._after = ("\n", "\x1b[A") if nested else ("", "")
        self.n = 0
        self._prefix = f"{prefix}: " if prefix else ""
        self._stream: IO[str] = sys.stderr
        self._begin = time.monotonic()
        self._drawn = float("-inf")
        self._length = 0
        self.draw(postfix)

    def update(self, postfix: str = "", *, interval_s: float = 0.1) -> None:
        """One step more; drawn at most every `interval_s`, as tqdm's mininterval has it."""
        self.n += 1
        if time.monotonic() - self._drawn >= interval_s or self.n == self.total:
            self.draw(postfix)

    def draw(self, postfix: str = "") -> None:
        """Draw the state now."""
        self._drawn = time.monotonic()
        spent = self._drawn - self._begin
        share = self.n / self.total
        full = int(share * self.WIDTH)
        half = "▏▎▍▌▋▊▉"[int((share * self.WIDTH - full) * 7)] if full < self.WIDTH else ""
        bar = ("█" * full + half).ljust(self.WIDTH)
        rate = self.n / spent if spent and self.n else 0.0
        left = _clock((self.total - self.n) / rate) if rate else "?"
        pace = "?it/s" if not rate else f"{rate:5.2f}it/s" if rate >= 1 else f"{1 / rate:5.2f}s/it"
        tail = f", {postfix}" if postfix else ""
        text = (
            f"{self._prefix}{share:4.0%}|{bar}| {self.n}/{self.total} [{_clock(spent)}<{left}, {pace}{tail}]"
        )
        self._stream.write(self._before + "\r" + text.ljust(self._length) + self._after)
        self._stream.flush()
        self._length = len(text)

    def write(self, text: str, *, below: Bar | None = None) -> None:
        """A line above the bar, on stdout: the bar is wiped, and the bar `below` it, and drawn again.

        Blanks, return and cursor are writes of their own, as in tqdm's `clear`.
        """
        self._clear()
        if below is not None:
            self._put("\n")
            below._clear()
            self._put("\x1b[A")
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
        self.draw()
        if below is not None:
            below.draw()

    def _clear(self) -> None:
        self._put("\r" + " " * self._length)
        self._put("\r")

    def _put(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def wipe(self) -> None:
        """Close without a trace, as with leave=False: below another bar no return follows the blanks (tqdm's `close`)."""
        self._put(self._before + "\r" + " " * self._length + (self._after or "\r"))

    def close(self) -> None:
        """The last state stands."""
        self._stream.write("\n")
        self._stream.flush()


def _clock(seconds: float) -> str:
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60:02d}:{rest % 60:02d}"


def main_rank() -> bool:
    """Whether this process prints for all."""
    return os.environ.get("RANK", "0") == "0"
