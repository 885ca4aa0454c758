"""Brings micro-batches to the device, and measures how long the step waited for them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from trainer.config import Batch, LengthSchedule
from trainer.data.samples import Samples

# (first global sample number, samples, tokens of a sample)
Request: TypeAlias = tuple[int, int, int]
MicroBatch: TypeAlias = tuple[Tensor, Tensor]
# Micro-batches that each worker keeps ready.
PREFETCH = 4


@dataclass(frozen=True, slots=True)
class Workers:
    """Processes that read ahead."""

    count: int
    timeout_s: float
    persistent: bool


class Plan(Sampler[Request]):
    """Every request of one rank from a position to the end of the training, in order."""

    def __init__(
        self, steps: range, samples_seen: int, batch: Batch, lengths: LengthSchedule, rank: int
    ) -> None:
        self._steps = steps
        self._seen = samples_seen
        self._batch = batch
        self._lengths = lengths
        self._rank = rank

    def __iter__(self) -> Iterator[Request]:
        for done, step in enumerate(self._steps):
            yield from of_step(
                self._batch, self._seen + done * self._batch.samples, self._lengths.at(step), self._rank
            )


def of_step(batch: Batch, samples_seen: int, length: int, rank: int) -> list[Request]:
    """The requests of one rank in one step: its share of the next `batch.samples` samples."""
    return [
        (samples_seen + (turn * batch.world_size + rank) * batch.micro, batch.micro, length)
        for turn in range(batch.accumulation)
    ]


class Feed:
    """Hands a rank its micro-batches, read here or by workers ahead of time."""

    def __init__(
        self,
        samples: Samples,
        device: torch.device,
        *,
        pin: bool,
        workers: Workers | None = None,
        plan: Plan | None = None,
    ) -> None:
        self._samples = samples
        self._device = device
        self._pin = pin and device.type == "cuda"
        self._ahead: Iterator[Tensor] | None = None
        if workers is not None and plan is not None and workers.count > 0:
            loader: DataLoader[Any] = DataLoader(
                _Blocks(samples),
                sampler=plan,
                batch_size=None,
                num_workers=workers.count,
                multiprocessing_context="spawn",  # a fork of a process with threads may hang
                timeout=workers.timeout_s,
                persistent_workers=workers.persistent,
                prefetch_factor=PREFETCH,
                pin_memory=self._pin,
            )
            self._ahead = iter(loader)
        self._waited_s = 0.0

    def bring(self, requests: Iterable[Request]) -> Iterator[MicroBatch]:
        """Inputs and targets of each request, int64 [samples, tokens], on the device.

        Raises:
            DataError: a token lies outside the vocabulary.
        """
        for first, count, length in requests:
            started = time.perf_counter()
            if self._ahead is not None:
                block = next(self._ahead)
            else:
                block = self._samples.batch(range(first, first + count), length)
                block = block.pin_memory() if self._pin else block
            block = block.to(self._device, non_blocking=True)
            self._waited_s += time.perf_counter() - started
            yield block[:, :-1], block[:, 1:]

    def take_wait(self) -> float:
        """Seconds that `bring` has kept its caller waiting since this was asked last."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s

    def close(self) -> None:
        """Ends the workers."""
        self._ahead = None


class _Blocks(Dataset[Tensor]):
    """Samples by request, for a worker process."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __getitem__(self, request: Request) -> Tensor:
        first, count, length = request
        return self._samples.batch(range(first, first + count), length)


def worker_count(wanted: int, cores: int, local_world_size: int) -> int:
    """Loading processes of a rank: as asked, or for -1 a core each beyond the rank's own, at most 4."""
    if wanted >= 0:
        return wanted
    return min(max(cores // local_world_size - 1, 0), 4)
