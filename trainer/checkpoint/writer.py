"""Writes a checkpoint beside the training: a copy of the state in host memory, and the thread that writes it.

The step waits for the copy alone. On a CPU, and from pinned memory on CUDA, that is one pass over the bytes;
the write is several (serialise, checksum, page cache, fsync). Same idea, in two parts, as
`torch.distributed.checkpoint.async_save` with its stager; docs/DECISIONS.md says why it is not used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint.storage import CheckpointError
from trainer.model.optim import whole


class Staging:
    """Host memory for one copy of the state, kept from save to save.

    Kept, because touching fresh pages costs 10 to 40 times the copy (360 MB: 0.2–0.7 s for the first save, then
    0.02 s), and because page-locked memory is slow to get. It is as large as the checkpoint: for AdamW in fp32 12 bytes a
    parameter, 16 with an EMA; on rank 0 only.
    """

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}
        self._twins: dict[tuple[object, ...], Tensor] = {}

    def take(self, name: str, tensor: Tensor, *, lasting: bool) -> Tensor:
        """Copies a tensor; from a GPU the copy is complete after `finish` only.

        Args:
            name: the same in each save.
            tensor: what to copy.
            lasting: it lives until `finish`, so that its address tells whether it was copied already: a tied
                head is the embedding once more, and is written once.
        """
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if lasting and tensor.numel() and place in self._twins:
            return self._twins[place]
        kept = self._held.get(name)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._held[name] = kept
        kept.copy_(tensor.detach(), non_blocking=True)
        if lasting:
            self._twins[place] = kept
        return kept

    def finish(self) -> None:
        """Waits for the copies from a GPU."""
        self._twins.clear()
        if any(kept.is_pinned() for kept in self._held.values()):
            torch.cuda.current_stream().synchronize()


def collect(held: Any, staging: Staging | None, *, keep: bool, name: str = "") -> Any:
    """`held` with every tensor put together; a collective where tensors are split over ranks.

    Tensor by tensor, each to host memory at once: no device holds more than one whole tensor besides its share.

    Args:
        held: tensors and plain values in dictionaries, in the same order on all ranks.
        staging: where copies go; without it, a tensor that was not split is returned itself, uncopied.
        keep: False on ranks that only help to put together: they get no tensors.
        name: where `held` stands, for `staging`.
    """
    if isinstance(held, Mapping):
        return {key: collect(inner, staging, keep=keep, name=f"{name}/{key}") for key, inner in held.items()}
    if not isinstance(held, Tensor):
        return held
    together = whole(held)
    if not keep:
        return None
    if staging is not None:
        return staging.take(name, together, lasting=together is held)
    return together.detach() if together is held else together.detach().cpu()


@dataclass(frozen=True, slots=True)
class Written:
    """How a write ended: what went wrong (nothing: it is committed), and how long it took."""

    problem: str
    seconds: float


class Writer:
    """One thread, named checkpoint_0, that writes one checkpoint at a time. It issues no collective."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._write: Future[Written] | None = None
        self._chore: Future[list[str]] | None = None

    @property
    def busy(self) -> bool:
        """Whether a write is under way: what it reads must not change."""
        return self._write is not None and not self._write.done()

    @property
    def ended(self) -> bool:
        """Whether a write has ended and nobody took its result yet."""
        return self._write is not None and self._write.done()

    def start(self, write: Callable[[], object]) -> None:
        """Begins a write; the caller has waited for the one before."""
        assert not self.busy
        self._write = self._pool.submit(_timed, write)

    def take(self, timeout_s: float) -> Written | None:
        """The result of the write, None if there is none within `timeout_s`. It is handed out once."""
        if self._write is None or not wait([self._write], timeout_s).done:
            return None
        written = self._write.result()
        self._write = None
        return written

    def afterwards(self, chore: Callable[[], list[str]]) -> None:
        """Run `chore` in the same thread, after the write; `complaints` returns its result."""
        self._chore = self._pool.submit(chore)

    def complaints(self) -> list[str]:
        """What the last chore complained of, once."""
        if self._chore is None or not self._chore.done():
            return []
        done, self._chore = self._chore, None
        return [str(done.exception())] if done.exception() else done.result()

    def close(self, timeout_s: float) -> bool:
        """Ends the thread; False if it still writes after `timeout_s`: it then dies with the process."""
        under_way: list[Future[Any]] = [work for work in (self._write, self._chore) if work is not None]
        ended = not wait(under_way, timeout_s).not_done
        self._pool.shutdown(wait=ended, cancel_futures=True)
        return ended


def _timed(write: Callable[[], object]) -> Written:
    started = time.perf_counter()
    problem = ""
    try:
        write()
    except CheckpointError as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 - a thread has nobody above it: all ranks hear of it at the next step
        problem = f"the checkpoint could not be written: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return Written(problem, time.perf_counter() - started)
