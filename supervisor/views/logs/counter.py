"""Counts in the logs of a view: newlines for line numbers, matches for searches and filters, chunk by chunk.

The reading thread counts while it has no other request. The counts also help to find lines: a chunk without a
match is not read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from supervisor.views.logs.merge import Place
from supervisor.views.logs.query import Query
from supervisor.views.logs.reading import Tally
from supervisor.views.logs.stream import Stream

# Logs up to this size are counted unasked, just for the number of lines: 64 ranks may have written gigabytes.
COUNT_UNASKED_BYTES = 64 << 20


class LineCounter:
    """Counts for one view. `finders`: the logs, thinned to the shown lines that match the search.

    Args:
        check: see `Stream`.
        counts_unasked: count the lines of logs of any size.
    """

    def __init__(self, check: Callable[[], None], *, counts_unasked: bool) -> None:
        self.finders: list[Stream] = []
        self._check = check
        self._counts_unasked = counts_unasked
        self._streams: Sequence[Stream] = ()
        self._searched = Query()

    def plan(self, streams: Sequence[Stream], query: Query, searched: Query) -> None:
        """Set what to count for these logs and queries; an unchanged search continues where it was left."""
        both = query & searched
        known = {finder.ref: finder for finder in self.finders if finder.query == both}
        self._streams, self._searched, self.finders = streams, searched, []
        for stream in streams:
            finder = known.get(stream.ref)
            if finder is None or finder.file is not stream.file:
                finder = Stream(stream.ref, stream.file, self._check)
                finder.filter_by(both)
            self.finders.append(finder)

    def step(self, *, is_asked: bool) -> bool:
        """Count one chunk of the most wanted log; False: nothing is left. `is_asked`: the page's position matters."""
        included = self._included
        if self._searched and any(finder.count() for finder in self.finders):
            return True
        if any(stream.count() for stream in included if not stream.is_whole):
            return True
        size = sum(stream.file.size for stream in included)
        wanted = is_asked or self._counts_unasked or size <= COUNT_UNASKED_BYTES
        return wanted and any(stream.file.count() for stream in included)

    def reset(self, index: int) -> None:
        """The content of a log changed."""
        self.finders[index].reset()

    # -- results ---------------------------------------------------------------------------------------

    @property
    def _included(self) -> list[Stream]:
        return [stream for stream in self._streams if not stream.is_excluded]

    @property
    def counted_ratio(self) -> float:
        """The counted share of the lines."""
        files = [stream.file for stream in self._included]
        size = sum(file.size for file in files)
        return sum(file.counted_bytes for file in files) / size if size else 1.0

    @property
    def line_count(self) -> int | None:
        """All lines of the included logs; None: not counted."""
        return _sum_of([stream.file.line_count for stream in self._included])

    def shown(self) -> Tally | None:
        """How many lines the query lets through; None: the query excludes none."""
        included = self._included
        if all(stream.is_whole for stream in included):
            return None
        return Tally(sum(stream.total for stream in included), _done(included))

    def found(self, place: Place | None) -> Tally:
        """The number of matches of the search; with a place, also which of them begins there."""
        before = _before(self.finders, place) if place is not None else None
        ordinal = before + 1 if before is not None else None
        total = sum(finder.total for finder in self.finders)
        return Tally(total, _done(self.finders), ordinal, at_match=place is not None)

    def below(self, place: Place) -> int | None:
        """How many lines that pass the query begin at or after a place; None: not counted."""
        before = _before(self._streams, place)
        if before is None or _done(self._included) < 1:
            return None
        return sum(stream.total for stream in self._streams) - before


def _sum_of(counts: Sequence[int | None]) -> int | None:
    return sum(n for n in counts if n is not None) if None not in counts else None


def _done(streams: Sequence[Stream]) -> float:
    included = [stream for stream in streams if not stream.is_excluded]
    size = sum(stream.file.size for stream in included)
    return sum(stream.counted_bytes for stream in included) / size if size else 1.0


def _before(streams: Sequence[Stream], place: Place) -> int | None:
    """How many matching lines begin before a place; None: not counted yet."""
    return _sum_of([stream.before(at) for stream, at in zip(streams, place, strict=True)])
