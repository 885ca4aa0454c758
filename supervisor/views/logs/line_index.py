"""A sparse index of a log: how many of something lie before each chunk of the file (pure).

A file is cut into chunks of a fixed size and one running total is kept for each: 8 bytes for 256 KiB, 32 KiB
for 1 GiB. A line's number and a match's ordinal both follow from the total before a chunk and a look into
that chunk alone, so that neither the lines nor their places are ever held.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

# Counting or searching a chunk takes well under a millisecond, so a key press never waits for more than that.
CHUNK_BYTES = 1 << 18


class Counts:
    """Running totals over the chunks of a file, in order. One thread appends, any may read."""

    def __init__(self) -> None:
        self._ends = array("Q")

    @property
    def chunks(self) -> int:
        """Chunks counted so far."""
        return len(self._ends)

    @property
    def total(self) -> int:
        """What they hold together."""
        return self._ends[-1] if self._ends else 0

    def append(self, count: int) -> None:
        """The next chunk holds `count`."""
        self._ends.append(self.total + count)

    def before(self, chunk: int) -> int:
        """The total before `chunk`, which is at most `chunks`."""
        return self._ends[chunk - 1] if chunk else 0

    def inside(self, chunk: int) -> int | None:
        """What `chunk` holds; None: not counted yet."""
        return self._ends[chunk] - self.before(chunk) if chunk < self.chunks else None

    def chunk_of(self, ordinal: int) -> int | None:
        """The chunk that holds number `ordinal`, counted from 0; None: beyond what is counted."""
        return bisect_right(self._ends, ordinal) if ordinal < self.total else None

    def next_full(self, chunk: int) -> int:
        """The first chunk from `chunk` on that holds something or is not counted yet."""
        if chunk >= self.chunks:
            return chunk
        return bisect_right(self._ends, self.before(chunk))

    def previous_full(self, chunk: int) -> int:
        """The last chunk up to `chunk` that holds something or is not counted yet; -1: none does."""
        if chunk >= self.chunks:
            return chunk
        total = self._ends[chunk]
        if not total:
            return -1
        # The chunk that holds the last of the `total` counted up to here.
        return min(bisect_right(self._ends, total - 1), chunk)
