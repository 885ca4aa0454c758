"""Keep this rank's latest batches in ``batches<rank>.jsonl``, so that the one that failed is known even after a SIGKILL.

The file is a ring of `SLOTS` lines of `SLOT_BYTES` each, padded with spaces. A line is written in place before the batch is used,
in one write. Only shapes, element types and the sampler's indices are recorded, never the contents of a sample.
"""

from __future__ import annotations

import collections
import json
import operator
import os
import stat
import time
import weakref
from typing import Any

from .wire import FLAGS, Look, place, wire

SLOTS = 128
SLOT_BYTES = 4096
MAX_INDICES = 400
"""Indices recorded of one batch. `size` says how many it has."""
MAX_WAITING = 4096
MAX_EARLY = 8
"""Batches kept in memory until training is detected, as with an evaluation before the first step."""


class RecentBatches:
    """The batches that the training thread drew from its DataLoaders."""

    def __init__(self) -> None:
        self.drawn = 0
        self.early: collections.deque[Any] = collections.deque(maxlen=MAX_EARLY)
        self.file: Any = None
        self.mark = 0
        """Where the descriptor's own position was put. Nothing moves it as long as the descriptor is ours."""
        self.indices: Any = weakref.WeakKeyDictionary()
        """Maps each iterator to the indices of the batches that it has asked for and not yet returned."""
        wire.at_start.append(self.begin)

    def began(self, args: Any, _kwargs: Any) -> None:
        """Observe `_BaseDataLoaderIter._reset`, with which a reused iterator begins an epoch."""
        self.indices.pop(args[0], None)

    def asked(self, args: Any, _kwargs: Any) -> Look:
        """Observe `_BaseDataLoaderIter._next_index`. Workers are asked for a batch long before it is returned."""
        result = yield
        waiting = self.indices.setdefault(args[0], collections.deque(maxlen=MAX_WAITING))
        waiting.append(whole_numbers(result))

    def taken(self, iterator: Any) -> Any:
        """Return the number of indices of the batch that `iterator` has returned or failed to make, and the first of them."""
        waiting = self.indices.get(iterator)
        size, indices = waiting.popleft() if waiting else (None, None)
        in_order = getattr(iterator, "_in_order", True)  # else workers return batches in any order
        return size, indices if in_order else None

    def add(
        self, iterator: Any, loader: Any, taken: Any, shapes: dict[str, Any], *, failed: bool = False
    ) -> None:
        """Record a batch of the numbered `loader` that `iterator` has just returned, or has `failed` to make."""
        index = getattr(iterator, "_num_yielded", 0) - (not failed)
        if index <= 0:
            loader.epoch += 1
            loader.begun = wire.passes
        entry = {"v": 1, "t_wall": time.time(), "kind": "batch", "n": self.drawn, "passes": wire.passes}
        entry.update(shapes, step=wire.step, begun=loader.begun, loader=loader.number, epoch=loader.epoch)
        more = {"index": index, "size": taken[0], "indices": taken[1], "failed": failed or None}
        entry.update((name, value) for name, value in more.items() if value is not None)
        self.drawn += 1
        if wire.reporting:
            self.write(entry)
        else:
            self.early.append(entry)

    def begin(self) -> None:
        """Create the file and write what was drawn before training was detected. A link or pipe in its place is left alone."""
        os.makedirs(wire.folder, mode=0o700, exist_ok=True)
        path = os.path.join(wire.folder, "batches%d.jsonl" % place()["rank"])
        file = os.open(path, os.O_WRONLY | os.O_CREAT | FLAGS, 0o600)
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            os.close(file)
            return
        os.ftruncate(file, 0)
        self.mark = int.from_bytes(os.urandom(5), "big") + 1
        os.lseek(file, self.mark, os.SEEK_SET)
        self.file = file
        for entry in self.early:
            self.write(entry)
        self.early.clear()

    def write(self, entry: Any) -> None:
        """Write an entry in its slot. Stop for good if the script has closed our file, because its number may now be another's."""
        if self.file is None or os.getpid() != wire.pid:
            return
        text = json.dumps(entry, separators=(",", ":"))
        if len(text) >= SLOT_BYTES:
            entry.pop("indices", None)
            text = json.dumps(entry, separators=(",", ":"))
        try:
            if os.lseek(self.file, 0, os.SEEK_CUR) != self.mark:
                self.file = None
            elif len(text) < SLOT_BYTES:
                line = text.ljust(SLOT_BYTES - 1) + "\n"
                os.pwrite(self.file, line.encode("ascii"), entry["n"] % SLOTS * SLOT_BYTES)
        except OSError:
            self.file = None  # no space, or closed: the batches are not recorded, and training continues


def whole_numbers(indices: Any) -> Any:
    """Return the number of `indices` and the first `MAX_INDICES` of them, or None for these if one is no whole number.

    A tensor on a device is not read, because that would wait for the device.
    """
    if type(indices) is int:
        indices = [indices]
    elif hasattr(indices, "tolist") and getattr(getattr(indices, "device", None), "type", "cpu") == "cpu":
        indices = indices.tolist()
    if not isinstance(indices, (list, tuple, range)):
        return None, None
    first = indices[:MAX_INDICES]
    if not all(type(one) is int for one in first):
        try:
            first = [operator.index(one) for one in first if not hasattr(one, "device")]
        except TypeError:  # an IterableDataset has no indices
            first = []
        if len(first) < len(indices[:MAX_INDICES]):
            return len(indices), None
    return len(indices), list(first)
