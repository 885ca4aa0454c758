"""The logs a view is reading: open files, a query filter, and line counts. Not thread-safe."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from supervisor.run.arrivals import ArrivalReader
from supervisor.run.paths import NodePaths
from supervisor.run.state import AttemptState, RunState
from supervisor.views.logs.file import Change, LogFile
from supervisor.views.logs.merge import Place
from supervisor.views.logs.query import Query
from supervisor.views.logs.reading import Tally
from supervisor.views.logs.sources import AGENT, LogRef, NodeLogs, logs_of
from supervisor.views.logs.stream import Stream

# Open at most this many files: RLIMIT_NOFILE is often 1024. If the nodes have more logs, read as many
# nodes as fit: first the nodes of a filter, then the others in order.
MOST_LOGS = 256
# Count logs up to this size without a request, just for the line count. 64 ranks may have written gigabytes.
COUNT_UNASKED_BYTES = 64 << 20


class NothingThereError(LookupError):
    """What the user asked for does not exist. The message is a single line."""


class OpenLogs:
    """The logs of an attempt. `finders` are the same logs, restricted to lines that match the search.

    Args:
        node: the node's directory, which lists the run's logs.
        check: called periodically during long operations; raises an exception to abort.
    """

    def __init__(self, node: NodePaths, check: Callable[[], None]) -> None:
        self.state = RunState()
        self.streams: list[Stream] = []
        self.finders: list[Stream] = []
        self.query, self.searched = Query(), Query()
        self.nodes_read: tuple[int, ...] = ()
        self._node = node
        self._check = check
        self._attempt: int | None = None  # None: the newest attempt
        self._recorded_t: float | None = None
        self._files: dict[str, LogFile] = {}
        self._indexes: dict[tuple[int | None, int], ArrivalReader] = {}  # by node and attempt
        self._nodes: tuple[NodeLogs, ...] = ()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        for index in self._indexes.values():
            index.close()

    # -- the choice of logs ----------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """The number of the attempt being shown."""
        if self._attempt is not None:
            return self._attempt
        return self.state.attempts[-1].number if self.state.attempts else 0

    @property
    def grows(self) -> bool:
        """Whether more lines may arrive, i.e. the shown attempt is the latest one, still alive, and not quiet."""
        attempt = self.state.attempt
        if attempt is None or self.state.is_over:
            return not self.state.is_over
        return attempt.number == self.number and attempt.ended_t is None and attempt.quiet_since is None

    @property
    def node_count(self) -> int:
        """The number of nodes in a multi-node run, else 0."""
        return len(self._nodes)

    def update(
        self,
        state: RunState,
        recorded_t: float | None,
        place: Place,
        nodes: tuple[NodeLogs, ...] = (),
        *,
        keep: bool,
    ) -> Place:
        """Switch to the current logs and return the matching position. If `keep` is true, stay in the shown attempt."""
        if keep and self.number:
            self._attempt = self.number
        self.state, self._recorded_t, self._nodes = state, recorded_t, nodes
        return self._choose(place)

    def other_attempt(self, way: int) -> None:
        """Switch to the previous (-1) or next (1) attempt.

        Raises:
            NothingThereError: there is no attempt in that direction.
        """
        numbers = [attempt.number for attempt in self.state.attempts]
        if not numbers:
            return
        now = numbers.index(self.number) if self.number in numbers else len(numbers) - 1
        if not 0 <= now + way < len(numbers):
            raise NothingThereError(f"attempt {numbers[now]} is the {'last' if way > 0 else 'first'}")
        self.choose_attempt(numbers[now + way])

    def choose_attempt(self, number: int | None) -> None:
        """Switch to an attempt. With None or the latest number, keep following the latest attempt as new ones start."""
        is_newest = bool(self.state.attempts) and number == self.state.attempts[-1].number
        self._attempt = None if is_newest else number
        self._choose(())

    def _choose(self, place: Place) -> Place:
        """Open the logs of the chosen attempt. Logs that are already open keep their position."""
        attempts = [attempt for attempt in self.state.attempts if attempt.number == self.number]
        refs = list(self._refs(attempts))
        if [stream.ref for stream in self.streams] != refs:
            known = {stream.ref: stream for stream in self.streams}
            before = {s.ref: at for s, at in zip(self.streams, place, strict=False)}
            start_t = {each.number: each.started_t or each.planned_t for each in attempts}
            self.streams = [known.get(ref) or self._open(ref, start_t[ref.attempt]) for ref in refs]
            place = tuple(before.get(stream.ref, 0) for stream in self.streams)
            self._find_anew()
        ended_t = {each.number: each.ended_t for each in attempts}
        for stream in self.streams:
            stream.ended_t = ended_t[stream.ref.attempt]
        self._learn_sizes()
        return place

    def _learn_sizes(self) -> None:
        """Set every log's `most_bytes` to the size of the largest rank log, to detect untimed logs that were written all at once."""
        sizes = (stream.file.full_size for stream in self.streams if stream.ref.who != AGENT)
        most_bytes = max(sizes, default=0)
        for stream in self.streams:
            stream.most_bytes = most_bytes

    def _open(self, ref: LogRef, start_t: float) -> Stream:
        path = str(ref.path)
        file = self._files.setdefault(path, LogFile(path))
        stream = Stream(ref, file, self._check, start_t, self._index_of(ref).logs)
        stream.filter_by(self.query)
        file.refresh()
        if self._recorded_t is not None:
            self._limit(stream, self._recorded_t)
            file.refresh()
        return stream

    def _index_of(self, ref: LogRef) -> ArrivalReader:
        key = ref.node, ref.attempt
        if key not in self._indexes:
            paths = next((each.paths for each in self._nodes if each.number == ref.node), self._node)
            index = self._indexes[key] = ArrivalReader(paths.attempt(ref.attempt))
            index.refresh()
        return self._indexes[key]

    def _limit(self, stream: Stream, recorded_t: float) -> None:
        """Limit a log to what existed at the current time in a replay."""
        stream.file.limit(stream.offset_at(recorded_t))

    def _refs(self, attempts: Sequence[AttemptState]) -> Iterator[LogRef]:
        """Yield the logs of these attempts from all nodes, up to the open-file limit."""
        if not self._nodes:
            yield from logs_of(self.state, self._node, attempts)
            return
        wanted = self.query.nodes
        found: dict[int, list[LogRef]] = {}
        for node in sorted(self._nodes, key=lambda n: (bool(wanted) and n.number not in wanted, n.number)):
            theirs = [attempt for attempt in node.state.attempts if attempt.number == self.number]
            refs = list(logs_of(node.state, node.paths, theirs, node.number))
            if found and len(refs) + sum(map(len, found.values())) > MOST_LOGS:
                break
            found[node.number] = refs
        self.nodes_read = tuple(sorted(found))
        for number in self.nodes_read:
            yield from found[number]

    @property
    def included(self) -> list[Stream]:
        """The logs that the query does not rule out."""
        return [stream for stream in self.streams if not stream.is_excluded]

    @property
    def ends(self) -> Place:
        """The position at the end of every log."""
        return tuple(stream.file.size for stream in self.streams)

    def index_of(self, path: str) -> int | None:
        """Return the index of the log that has this name or whose path ends in it, or None if there is none."""
        logs = [(i, stream.ref.path) for i, stream in enumerate(self.streams)]
        tail = os.sep + path.lstrip("./")
        exact = (i for i, log in logs if str(log) == path or log.name == path)
        ends = (i for i, log in logs if str(log).endswith(tail))
        return next(itertools.chain(exact, ends), None)

    def ranks(self) -> tuple[str, ...]:
        """Return the ranks that write to these logs, judging by lines or file names. If the query names nodes, only those count."""
        nodes = self.query.nodes
        found = {who for s in self.streams if not nodes or s.ref.node in nodes for who in s.writers()}
        return tuple(sorted(filter(str.isdigit, found), key=int))

    # -- query and search --------------------------------------------------------------------------------

    def filter_by(self, query: Query, place: Place) -> Place:
        """Show only lines that match `query`. Return the new position, since the query may switch to other nodes."""
        chosen, same, self.query = self.query.nodes, query == self.query, query
        if same:
            return place  # keep the counts
        for stream in self.streams:
            stream.filter_by(query)
        if query.nodes != chosen and len(self.nodes_read) < len(self._nodes):
            place = self._choose(place)
        self._find_anew()
        return place

    def search(self, query: Query) -> None:
        """Search the visible lines."""
        self.searched = query
        self._find_anew()

    def _find_anew(self) -> None:
        """Search the visible lines of each log, reusing any log already searched with the same query."""
        both = replace(self.query, include=self.query.include + self.searched.include)
        known = {finder.ref: finder for finder in self.finders if finder.query == both}
        self.finders = []
        for stream in self.streams:
            finder = known.get(stream.ref)
            if finder is None:
                finder = Stream(stream.ref, stream.file, self._check)
                finder.filter_by(both)
            self.finders.append(finder)

    # -- changes -----------------------------------------------------------------------------------------

    def refresh(self, place: Place) -> tuple[bool, list[str], Place]:
        """Check every log for changes. Return whether anything changed, any messages for the user, and the new position."""
        read = [index.refresh() for index in self._indexes.values()]
        changed, notes = any(read), []
        at = list(place)
        for i, stream in enumerate(self.streams):
            if self._recorded_t is not None:
                self._limit(stream, self._recorded_t)
            change = stream.file.refresh()
            changed |= change is not Change.SAME
            if change in {Change.REWOUND, Change.ANEW}:
                stream.reset()
                self.finders[i].reset()
                at[i] = min(at[i], stream.file.size) if change is Change.REWOUND else 0
                if change is Change.ANEW:
                    notes.append(f"{name_of(stream)} was cut or replaced; it is read again")
        if changed:
            self._learn_sizes()
        return changed, notes, tuple(at)

    # -- counts ------------------------------------------------------------------------------------------

    def count(self, *, is_moved: bool) -> bool:
        """Count lines in the most urgent log's next chunk. Return False when done. If `is_moved`, line numbers are needed."""
        included = self.included
        if self.searched and any(finder.count() for finder in self.finders):
            return True
        if any(stream.count() for stream in included if not stream.is_whole):
            return True
        is_wanted = is_moved or sum(s.file.size for s in included) <= COUNT_UNASKED_BYTES
        return is_wanted and any(stream.file.count() for stream in included)

    @property
    def line_count(self) -> int | None:
        """The number of lines in the included logs, or None if they have not all been counted."""
        return _sum_of([stream.file.line_count for stream in self.included])

    def shown(self) -> Tally | None:
        """The number of lines that match the query, or None if the query matches every line."""
        included = self.included
        if all(stream.is_whole for stream in included):
            return None
        return Tally(sum(stream.total for stream in included), _done(included))

    def found(self, place: Place | None) -> Tally:
        """Return the number of search matches. If `place` is given, include the ordinal of the match that starts there."""
        before = _before(self.finders, place) if place is not None else None
        total = sum(finder.total for finder in self.finders)
        ordinal = before + 1 if before is not None else None
        return Tally(total, _done(self.finders), ordinal, at_match=place is not None)

    def below(self, place: Place) -> int | None:
        """Return how many matching lines start at or after `place`, or None if they have not all been counted."""
        before = _before(self.streams, place)
        if before is None or _done(self.streams) < 1:
            return None
        return sum(stream.total for stream in self.streams) - before


def name_of(stream: Stream) -> str:
    """Return the last two components of a log's path."""
    return "/".join(stream.ref.path.parts[-2:])


def _sum_of(counts: Sequence[int | None]) -> int | None:
    return sum(n for n in counts if n is not None) if None not in counts else None


def _done(streams: Sequence[Stream]) -> float:
    included = [stream for stream in streams if not stream.is_excluded]
    size = sum(stream.file.size for stream in included)
    return sum(stream.counted_bytes for stream in included) / size if size else 1.0


def _before(streams: Sequence[Stream], place: Place) -> int | None:
    """Return how many matching lines start before `place`, or None if they have not been counted yet."""
    return _sum_of([stream.before(at) for stream, at in zip(streams, place, strict=True)])
