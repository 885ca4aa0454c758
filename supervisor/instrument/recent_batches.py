"""Keep this rank's latest batches in ``batches<rank>.jsonl``, so that the one that failed is known even after a SIGKILL.

The file is a ring of `SLOTS` lines of `SLOT_BYTES` each, padded with spaces. A line is written in place before the batch is used,
in one write. Only shapes, element types and the sampler's indices are recorded, never the contents of a sample.
"""

from __future__ import annotations

import collections
import operator
import os
import time
import weakref
from typing import Any

from .wire import Look, place, wire

SLOTS = 128
SLOT_BYTES = 4096
MAX_INDICES = 400
"""Indices recorded of one batch. `size` says how many it has."""
MAX_EARLY = 8
"""Batches kept in memory until training is detected, as with an evaluation before the first step."""


class RecentBatches:
    """The batches that the training thread drew from its DataLoaders."""

    def __init__(self) -> None:
        self.drawn = 0
        self.early: collections.deque[Any] = collections.deque(maxlen=MAX_EARLY)
        self.file: Any = None
        self.identity: Any = None
        self.indices: Any = weakref.WeakKeyDictionary()
        """Maps each iterator to the indices of the batches that it has asked for and not yet returned."""
        wire.at_start.append(self.begin)

    def began(self, args: Any, _kwargs: Any) -> None:
        """Observe `_BaseDataLoaderIter._reset`, with which a reused iterator begins an epoch."""
        self.indices.pop(args[0], None)

    def asked(self, args: Any, _kwargs: Any) -> Look:
        """Observe `_BaseDataLoaderIter._next_index`. Workers are asked for a batch long before it is returned."""
        result = yield
        self.indices.setdefault(args[0], collections.deque()).append(whole_numbers(result))

    def add(self, iterator: Any, loader: Any, shapes: dict[str, Any]) -> None:
        """Record that `iterator` has just returned a batch of the numbered `loader`."""
        waiting = self.indices.get(iterator)
        size, indices = waiting.popleft() if waiting else (None, None)
        if not getattr(iterator, "_in_order", True):
            indices = None  # workers return batches in any order
        index = iterator._num_yielded - 1
        if not index:
            loader.epoch += 1
            loader.begun = wire.passes
        keys = {
            "loader": loader.number,
            "epoch": loader.epoch,
            "index": index,
            "size": size,
            "indices": indices,
        }
        entry = {"v": 1, "t_wall": time.time(), "kind": "batch", "n": self.drawn, "passes": wire.passes}
        entry.update(shapes, step=wire.step, begun=loader.begun)
        entry.update((name, value) for name, value in keys.items() if value is not None)
        self.drawn += 1
        if wire.reporting:
            self.write(entry)
        else:
            self.early.append(entry)

    def begin(self) -> None:
        """Create the file and write what was drawn before training was detected."""
        os.makedirs(wire.folder, mode=0o700, exist_ok=True)
        path = os.path.join(wire.folder, "batches%d.jsonl" % place()["rank"])
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self.identity = identity_of(self.file)
        for entry in self.early:
            self.write(entry)
        self.early.clear()

    def write(self, entry: Any) -> None:
        """Write an entry in its slot. Stop for good if the script has closed our file, because its number may now be another's."""
        import json

        if self.file is None or os.getpid() != wire.pid:
            return
        text = json.dumps(entry, separators=(",", ":"))
        if len(text) >= SLOT_BYTES:
            entry.pop("indices", None)
            text = json.dumps(entry, separators=(",", ":"))
        try:
            if identity_of(self.file) != self.identity:
                self.file = None
            elif len(text) < SLOT_BYTES:
                line = text.ljust(SLOT_BYTES - 1) + "\n"
                os.pwrite(self.file, line.encode("ascii"), entry["n"] % SLOTS * SLOT_BYTES)
        except OSError:
            self.file = None  # no space: the batches are not recorded, and training continues


def identity_of(file: int) -> Any:
    """Return the device and inode of an open file, which tell it from another file with the same number."""
    found = os.fstat(file)
    return found.st_dev, found.st_ino


def whole_numbers(indices: Any) -> Any:
    """Return the number of `indices` and the first `MAX_INDICES` of them, or None for these if one is no whole number."""
    if not isinstance(indices, (list, tuple)):
        indices = [indices]
    try:
        return len(indices), [operator.index(one) for one in indices[:MAX_INDICES]]
    except TypeError:  # an IterableDataset has no indices
        return len(indices), None
