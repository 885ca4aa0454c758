"""Failures on request, for demonstrations and for the tests of whoever watches a training.

``--fault kind[:argument]@step[:rank]``, several with commas; without a rank every rank has it. A fault
happens in the first attempt only (STOKER_ATTEMPT unset or 1), so that a restart can succeed; a ``*`` at
the end makes it happen in every attempt.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import assert_never

from trainer.config import UsageError

# Of a checkpoint: all tensors, or rank 0's share of them.
TENSORS = ("state.pt", "share-00000.pt")
FULL_DEVICE = Path("/dev/full")


class FaultKind(StrEnum):
    """What can go wrong on request."""

    OOM = "oom"
    EXCEPTION = "exception"
    EXIT = "exit"
    SIGKILL = "sigkill"
    SIGSEGV = "sigsegv"
    SIGSTOP = "sigstop"
    SIGABRT = "sigabrt"
    HANG = "hang"
    NAN = "nan"
    SLOW = "slow"
    ABORT_AT_EXIT = "abort_at_exit"
    DISK_FULL = "disk_full"
    CORRUPT_CHECKPOINT = "corrupt_checkpoint"
    UNUSED_PARAMETER = "unused_parameter"
    MISMATCH = "mismatch"
    WORKER_KILLED = "worker_killed"


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned failure: at `step` (0-based, before its forward pass) on `rank`, or on all if None."""

    kind: FaultKind
    step: int
    rank: int | None
    argument: str
    always: bool


class InjectedError(RuntimeError):
    """The exception of ``--fault exception``."""


def parse(text: str) -> tuple[Fault, ...]:
    """Reads ``--fault``.

    Raises:
        UsageError: a word that is no fault; the message has the form and the kinds.
    """
    found = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"([a-z_]+)(?::([\w.]+))?@(\d+)(?::(\d+))?(\*?)", word)
        if match is None or match[1] not in set(FaultKind):
            raise UsageError(
                f"--fault wants kind[:argument]@step[:rank] with a kind of {', '.join(FaultKind)}; got {word!r}"
            )
        kind = FaultKind(match[1])
        argument = match[2] or ""
        if kind is FaultKind.EXIT and not argument.isdecimal():
            raise UsageError(f"--fault exit wants a code, such as exit:3@{match[3]}; got {word!r}")
        rank = int(match[4]) if match[4] is not None else None
        found.append(Fault(kind, int(match[3]), rank, argument, bool(match[5])))
    return tuple(found)


class Faults:
    """The faults of this rank in this attempt."""

    def __init__(self, planned: Sequence[Fault], rank: int) -> None:
        first = os.environ.get("STOKER_ATTEMPT", "1") == "1"
        self._rank = rank
        active = [f for f in planned if first or f.always]
        self._mine = [f for f in active if f.rank in {None, rank}]
        # DDP wants the same parameters on all ranks: also on those that do use it.
        self.plants_parameter = any(f.kind is FaultKind.UNUSED_PARAMETER for f in active)

    def before_step(self, step: int) -> None:
        """Fails now, if that is planned for `step`."""
        for fault in self._mine:
            if fault.kind is FaultKind.SLOW and step >= fault.step:
                time.sleep(float(fault.argument or "0.5"))
            elif fault.step == step:
                _happen(fault, self._rank)

    def spoils_loss(self, step: int) -> bool:
        """Whether the loss of `step` is to be NaN on this rank."""
        return any(f.kind is FaultKind.NAN and f.step == step for f in self._mine)

    def before_save(self, step: int) -> Callable[[Path], None] | None:
        """What spoils the folder into which the checkpoint of `step` is about to be written."""
        if any(f.kind is FaultKind.DISK_FULL and f.step <= step for f in self._mine):
            return _fill_disk
        return None

    def after_save(self, step: int, path: Path) -> None:
        """Damages the committed checkpoint of `step`, if that is planned."""
        if any(f.kind is FaultKind.CORRUPT_CHECKPOINT and f.step == step for f in self._mine):
            state = next((path / name for name in TENSORS if (path / name).exists()), path)
            os.truncate(state, state.stat().st_size // 2)

    @property
    def leaves_unused(self) -> bool:
        """Whether the planted parameter takes no part in this rank's loss."""
        return any(f.kind is FaultKind.UNUSED_PARAMETER for f in self._mine)

    def at_exit(self) -> None:
        """Aborts after all work is done, as a bare end of a process group does now and then."""
        if any(f.kind is FaultKind.ABORT_AT_EXIT for f in self._mine):
            sys.stdout.flush()
            sys.stderr.write("terminate called without an active exception\n")
            sys.stderr.flush()
            os.abort()


def _happen(fault: Fault, rank: int) -> None:
    where = f"at step {fault.step} on rank {rank}"
    match fault.kind:
        case FaultKind.OOM:
            _run_out_of_memory()
        case FaultKind.EXCEPTION:
            raise InjectedError(f"fault asked for {where}")
        case FaultKind.EXIT:
            _flush()
            os._exit(int(fault.argument))
        case FaultKind.SIGKILL:
            _signal_self(signal.SIGKILL)
        case FaultKind.SIGSEGV:
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            _signal_self(signal.SIGSEGV)
        case FaultKind.SIGSTOP:
            _signal_self(signal.SIGSTOP)
        case FaultKind.SIGABRT:
            _flush()
            os.abort()
        case FaultKind.HANG:
            _never_return()
        case FaultKind.MISMATCH:
            _ask_for_another_collective()
        case FaultKind.WORKER_KILLED:
            _kill_worker()
        case (
            FaultKind.NAN
            | FaultKind.SLOW
            | FaultKind.ABORT_AT_EXIT
            | FaultKind.DISK_FULL
            | FaultKind.CORRUPT_CHECKPOINT
            | FaultKind.UNUSED_PARAMETER
        ):
            pass  # handled where they apply
        case _:
            assert_never(fault.kind)


def _run_out_of_memory() -> None:
    """Allocates until PyTorch's own allocator fails: under a cap of 256 MiB more on a CPU."""
    import torch

    from trainer.reporting import memory

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    limit = memory.MemoryCap(device)
    limit.set(256)
    held = []
    try:
        while True:
            held.append(torch.zeros(64 * memory.MIB, dtype=torch.uint8, device=device))
    finally:
        limit.lift()


def _fill_disk(folder: Path) -> None:
    """Lets the tensors go to the device that is always full. Where it is a plain file or absent, they would fill /dev instead."""
    if not FULL_DEVICE.is_char_device():
        raise InjectedError(f"disk_full: {FULL_DEVICE} is no device here")
    for name in TENSORS:
        (folder / name).symlink_to(FULL_DEVICE)


def _never_return() -> None:
    """Waits before a collective for a lock that nobody gives back; its name shows in a stack dump."""
    while True:
        threading.Event().wait()


def _ask_for_another_collective() -> None:
    """Sums a vector of a length that no other rank sums now."""
    import torch
    import torch.distributed as td

    if td.is_initialized():
        td.all_reduce(torch.zeros(7))


def _kill_worker() -> None:
    """Kills one of this rank's data loading processes."""
    import multiprocessing

    children = multiprocessing.active_children()
    if not children:
        raise InjectedError("worker_killed: this rank has no data loading process (num_workers)")
    children[0].kill()
    # PyTorch's SIGCHLD handler raises within this sleep; later, the death may show as a broken pipe instead.
    time.sleep(2)


def _signal_self(number: signal.Signals) -> None:
    _flush()
    os.kill(os.getpid(), number)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
