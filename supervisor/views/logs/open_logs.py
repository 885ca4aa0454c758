"""The logs that a view reads: which files, thinned by which query, what has to be counted of them. One thread uses it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence

from supervisor.run.growth import GrowthClock, read_growth
from supervisor.run.nodes import LEADER
from supervisor.run.paths import NodePaths
from supervisor.run.state import AttemptState, RunState
from supervisor.views.logs.clock import LogClock, link_clocks
from supervisor.views.logs.commands import RecordedLogs, Tally
from supervisor.views.logs.counter import Task
from supervisor.views.logs.file import CHUNK_BYTES, Change, Counts, LogFile, MemoryLog
from supervisor.views.logs.merge import Place
from supervisor.views.logs.query import Query
from supervisor.views.logs.sources import LogRef, NodeLogs, logs_of
from supervisor.views.logs.stream import Stream

# Scrolling back opens the attempt before as long as no more files than this are open: RLIMIT_NOFILE is often 1024. Of
# nodes that have more together as many are read as fit: those of a filter, node 0, the one that failed, then in order.
MOST_LOGS = 256
# Logs up to this size are counted unasked, for the number of lines alone: 64 ranks may have written gigabytes.
COUNT_UNASKED_BYTES = 64 << 20
MANY_LOGS, QUIET_S, QUIET_LOOK_S = 64, 10.0, 1.0
"""Of more logs, those that were not written to for so long are looked at so often: each look at a file is two calls of the system."""
# What was counted of so many queries is kept: words that are typed are often taken back.
KEPT_QUERIES = 16


class NothingThereError(LookupError):
    """What was asked for does not exist; the message is one line."""


class OpenLogs:
    """The logs of one attempt, or of the newest ones.

    Args:
        node: where the run's logs are listed.
        check: called now and then while something takes long; raises to give it up.
        newest: so many of the newest attempts are read together; 0: one attempt, which a person chooses.
        growth: how the files grew, by path, as far as a view of this process saw it.
    """

    def __init__(
        self,
        node: NodePaths,
        check: Callable[[], None],
        newest: int = 0,
        growth: dict[str, GrowthClock] | None = None,
    ) -> None:
        self._growth = {} if growth is None else growth
        self.state = RunState()
        self.streams: list[Stream] = []
        self.finders: list[Stream] = []  # the same logs, thinned to what is searched
        self.query, self.searched = Query(), Query()
        self.counts_unasked = newest == 0
        self._node = node
        self._check = check
        self._newest = newest
        self._first: int | None = None  # of several attempts; None: as `newest` says
        self._attempt: int | None = None  # of one; None: the newest
        self._recorded: RecordedLogs | None = None
        self._files: dict[str, LogFile] = {}
        self._lines: dict[str, Task] = {}
        self._shown: list[Task] = []
        self._of_ranks: dict[str, Task] = {}
        self._found: list[Task] = []
        self._counted: dict[tuple[str, Query], Task] = {}  # the newest last
        self._folders: set[str] = set()
        self._learned: set[int] = set()
        self._looked_t = 0.0
        self._nodes: tuple[NodeLogs, ...] = ()
        self.nodes_read: tuple[int, ...] = ()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    # -- which logs ------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """The attempt that is shown: of several the newest."""
        if self._attempt is not None:
            return self._attempt
        return self.state.attempts[-1].number if self.state.attempts else 0

    @property
    def grows(self) -> bool:
        """Whether lines may still come: the attempt that is shown is the newest, it has not ended, and its log is not quiet."""
        attempt = self.state.attempt
        if attempt is None or self.state.is_over:
            return not self.state.is_over
        return attempt.number == self.number and attempt.ended_t is None and attempt.quiet_since is None

    @property
    def node_count(self) -> int:
        """How many nodes the run has, where it has several."""
        return len(self._nodes)

    def update(
        self,
        state: RunState,
        recorded: RecordedLogs | None,
        place: Place,
        nodes: tuple[NodeLogs, ...] = (),
        *,
        keep: bool,
    ) -> Place:
        """Read what there is now; where the place is then. `keep`: no attempt that is read is left out."""
        if self._newest and keep and self._first is None:
            self._first = next(iter(sorted(s.ref.attempt for s in self.streams)), None)
        elif not keep:
            self._first = None
        self.state, self._recorded, self._nodes = state, recorded, nodes
        return self._choose(place)

    def other_attempt(self, way: int) -> None:
        """Read the attempt before or after.

        Raises:
            NothingThereError: there is none.
        """
        numbers = [attempt.number for attempt in self.state.attempts]
        if not numbers:
            return
        now = numbers.index(self.number) if self.number in numbers else len(numbers) - 1
        if not 0 <= now + way < len(numbers):
            raise NothingThereError(f"attempt {numbers[now]} is the {'last' if way > 0 else 'first'}")
        self.choose_attempt(numbers[now + way])

    def choose_attempt(self, number: int) -> None:
        """Read this attempt."""
        newest = self.state.attempts[-1].number if self.state.attempts else None
        self._attempt = None if number == newest else number
        self._choose(())

    def reach_back(self, place: Place) -> Place | None:
        """Where several attempts are read, read the one before them too; None: there is none, or too much is open."""
        first = min((s.ref.attempt for s in self.streams), default=0)
        before = [a.number for a in self.state.attempts if a.number < first]
        if not self._newest or not before or len(self.streams) > MOST_LOGS:
            return None
        self._first = before[-1]
        return self._choose(place)

    def _views(self) -> list[AttemptState]:
        attempts = self.state.attempts
        if not self._newest:
            return [attempt for attempt in attempts if attempt.number == self.number]
        usual = [attempt.number for attempt in attempts[-self._newest :]]
        first = min([*usual[:1], *([self._first] if self._first is not None else [])], default=0)
        return [attempt for attempt in attempts if attempt.number >= first]

    def _choose(self, place: Place) -> Place:
        """Open the logs of the attempts; those that are read already keep their place."""
        views = self._views()
        start_t = {view.number: view.started_t or view.planned_t for view in views}
        refs = list(self._refs(views))
        if self._recorded is None:
            self._learn([view.number for view in views if view.ended_t is not None])
        else:
            refs += [ref for ref, _, _ in self._recorded.notes if ref.attempt in start_t]
            refs.sort(key=lambda ref: ref.attempt)
        known = {stream.ref.path: stream for stream in self.streams}
        if [stream.ref for stream in self.streams] != refs:
            before = {s.ref.path: at for s, at in zip(self.streams, place, strict=False)}
            streams = []
            for ref in refs:
                stream = known.get(ref.path)
                if stream is None or stream.ref != ref:
                    stream = Stream(ref, self._file(ref), start_t[ref.attempt], self._check)
                    stream.filter_by(self.query)
                    times = self._recorded.clocks.get(str(ref.path)) if self._recorded is not None else None
                    if times is not None:
                        stream.clock.use_recorded(*times)
                    elif self._recorded is None:
                        stream.clock.share(self._growth)
                streams.append(stream)
            self.streams = streams
            # An attempt before those that were read stands above the place as a whole.
            first = min((stream.ref.attempt for stream in known.values()), default=0)
            place = tuple(
                before.get(s.ref.path, s.file.size if s.ref.attempt < first else 0) for s in streams
            )
            self.plan()
        for view in views:
            of_nodes: dict[int | None, list[LogClock]] = {}
            for stream in self.streams:
                if stream.ref.attempt == view.number:
                    of_nodes.setdefault(stream.ref.node, []).append(stream.clock)
            for clocks in of_nodes.values():  # a launcher's times follow from those of its own ranks
                link_clocks(clocks, view.ended_t)
        return place

    def _learn(self, ended: Sequence[int]) -> None:
        """Take what the keeper saw of the logs of attempts that are over, in place of what this view saw of them."""
        for number in set(ended) - self._learned:
            self._learned.add(number)
            for node in [node.paths for node in self._nodes] or [self._node]:
                known = read_growth(node.attempt(number))
                for stream in self.streams:
                    if str(stream.ref.path) in known:
                        stream.clock.reset()
                self._growth.update(known)

    def _refs(self, views: Sequence[AttemptState]) -> Iterator[LogRef]:
        """The logs of these attempts: of all nodes, as far as they fit."""
        if not self._nodes:
            yield from logs_of(self.state, self._node, views)
            return
        nodes = self._fitting_nodes(views)
        self.nodes_read = tuple(node.number for node, _ in nodes)
        for view in views:
            for _, refs in nodes:
                yield from (ref for ref in refs if ref.attempt == view.number)

    def _fitting_nodes(self, views: Sequence[AttemptState]) -> list[tuple[NodeLogs, list[LogRef]]]:
        """The nodes whose logs are read, in order, each with its logs."""
        numbers = {view.number for view in views}
        failed = next((_node_of(view) for view in reversed(views) if view.verdict is not None), None)
        wanted = self.query.nodes

        def urgency(node: NodeLogs) -> tuple[bool, bool, bool, int]:
            number = node.number
            return bool(wanted) and number not in wanted, number != LEADER, number != failed, number

        found: list[tuple[NodeLogs, list[LogRef]]] = []
        room = MOST_LOGS
        for node in sorted(self._nodes, key=urgency):
            attempts = [view for view in node.state.attempts if view.number in numbers]
            refs = list(logs_of(node.state, node.paths, attempts, node.number))
            room -= len(refs)
            if found and room < 0:
                break
            found.append((node, refs))
        return sorted(found, key=lambda each: each[0].number)

    def _file(self, ref: LogRef) -> LogFile:
        path = str(ref.path)
        file = self._files.get(path)
        if file is None:
            notes = self._recorded.notes if self._recorded is not None else ()
            note = next(((data, t) for note, data, t in notes if note == ref), None)
            file = self._files[path] = LogFile(path) if note is None else MemoryLog(path, *note)
            self._limit(file)
            file.refresh()
            if note is None:
                # What is written through a link is reported where the file lies.
                self._folders |= {os.path.dirname(path), os.path.dirname(os.path.realpath(path))}
        return file

    def _limit(self, file: LogFile) -> None:
        if self._recorded is not None:
            file.limit(self._recorded.ends.get(file.path, 0), self._recorded.t)

    def new_folders(self) -> set[str]:
        """Folders to be watched from now on."""
        folders, self._folders = self._folders, set()
        return folders

    @property
    def included(self) -> list[Stream]:
        """The logs that hold something and that the query does not leave out."""
        return [stream for stream in self.streams if not stream.is_excluded and stream.file.size]

    @property
    def ends(self) -> Place:
        """Where the logs end."""
        return tuple(stream.file.size for stream in self.streams)

    def index_of(self, path: str, attempt: int | None = None) -> int | None:
        """The log that is named so, or whose path ends so; of an attempt, where that is known."""
        logs = [(i, s.ref.path) for i, s in enumerate(self.streams) if attempt in {None, s.ref.attempt}]
        tail = os.sep + path.lstrip("./")
        exact = (i for i, log in logs if str(log) == path or log.name == path)
        ends = (i for i, log in logs if str(log).endswith(tail))
        return next(itertools.chain(exact, ends), None)

    # -- what is meant -----------------------------------------------------------------------------------

    def filter_by(self, query: Query, place: Place) -> Place:
        """Let only these lines through; where the place is then: other nodes may be read."""
        chosen, same, self.query = self.query.nodes, query == self.query, query
        if same:
            return place  # what is counted stays
        for stream in self.streams:
            stream.filter_by(query)
        if query.nodes != chosen and len(self.nodes_read) < len(self._nodes):
            place = self._choose(place)
        self.plan()
        return place

    def search(self, query: Query) -> None:
        """Search for this among them."""
        self.searched = query
        self.plan()

    def plan(self) -> None:
        """Say what has to be counted for these logs and queries."""
        included = [stream for stream in self.streams if not stream.is_excluded]
        for stream in included:
            path = str(stream.ref.path)
            if path not in self._lines:
                self._lines[path] = Task(stream.ref, stream.file, counts=stream.file.newlines)
        thinned = any(not stream.is_whole for stream in included)
        self._shown = [self._task(s, self.query) for s in included] if thinned else []
        # Of a log of several ranks, what those that are meant wrote: the launcher's lines are not theirs.
        ranks = Query(who=self.query.who)
        mixed = [s for s in included if s.ref.is_mixed] if ranks else []
        self._of_ranks = {str(s.ref.path): self._task(s, ranks) for s in mixed}
        both = self.query & self.searched
        self._found = [self._task(s, both) for s in included] if self.searched else []
        self.finders = []
        for stream in self.streams:
            finder = Stream(stream.ref, stream.file, 0.0, self._check)
            finder.filter_by(both)
            self.finders.append(finder)
        self.use_counts()

    def _task(self, stream: Stream, query: Query) -> Task:
        """The count of a query's lines in a log: it continues where it was left."""
        key = str(stream.ref.path), query
        known = self._counted.pop(key, None)
        task = (
            known if known is not None and known.file is stream.file else Task(stream.ref, stream.file, query)
        )
        self._counted[key] = task
        while len(self._counted) > KEPT_QUERIES * len(self.streams):
            del self._counted[next(iter(self._counted))]
        return task

    def tasks(self, *, is_asked: bool) -> tuple[Task, ...]:
        """What the counting thread should do, the most wanted first. `is_asked`: where the page stands matters."""
        wanted = is_asked or self.counts_unasked or sum(self.ends) <= COUNT_UNASKED_BYTES
        lines = (*self._line_tasks(self.streams), *self._of_ranks.values()) if wanted else ()
        return (*self._found, *self._shown, *lines)

    def _line_tasks(self, streams: Sequence[Stream]) -> list[Task]:
        return [self._lines[str(s.ref.path)] for s in streams if str(s.ref.path) in self._lines]

    def use_counts(self) -> None:
        """Counts have grown: find lines by them."""
        for stream in self.streams:
            stream.counts = _counts_for(self._shown, stream)
        for finder in self.finders:
            finder.counts = _counts_for(self._found, finder)

    @property
    def counted_ratio(self) -> float:
        """How far the lines are counted."""
        return _done(self._line_tasks(self.included))

    @property
    def line_count(self) -> int | None:
        """All lines of the logs that are included; None: not counted."""
        return _sum_of([stream.file.line_count for stream in self.included])

    @property
    def meant_count(self) -> int | None:
        """The same of the ranks that the query names alone; without any, of all."""
        tasks = [self._of_ranks.get(str(stream.ref.path)) for stream in self.included]
        return _sum_of(
            [
                stream.file.line_count if task is None else task.total if task.is_done else None
                for stream, task in zip(self.included, tasks, strict=True)
            ]
        )

    def shown(self) -> Tally | None:
        """How many lines the query lets through; None: it leaves no line out."""
        if all(stream.is_whole for stream in self.included):
            return None
        return Tally(sum(task.total for task in self._shown), _done(self._shown))

    def found(self, place: Place | None) -> Tally:
        """How often what is searched was found; with a place, which of them begins there."""
        total = sum(task.total for task in self._found)
        before = _before(self.finders, place) if place is not None else None
        ordinal = before + 1 if before is not None else None
        return Tally(total, _done(self._found), ordinal, at_match=place is not None)

    def progress(self) -> Tally | None:
        """How far the search, else the filter, is done; None: there is neither."""
        return self.found(None) if self.searched else self.shown()

    def ranks(self) -> tuple[str, ...]:
        """The ranks that write these logs, as far as their lines or their names say so; of a query's nodes alone."""
        nodes = self.query.nodes
        found = {who for s in self.streams if not nodes or s.ref.node in nodes for who in s.writers()}
        return tuple(sorted(filter(str.isdigit, found), key=int))

    def below(self, place: Place) -> int | None:
        """How many lines that the query lets through begin at a place or after it; None: not counted."""
        if self.shown() is None:
            numbers = [
                s.file.lines_from(at)
                for s, at in zip(self.streams, place, strict=True)
                if not s.is_excluded and at < s.file.size
            ]
            return sum(n for n in numbers if n is not None) if None not in numbers else None
        before = _before(self.streams, place) if _done(self._shown) >= 1 else None
        return sum(task.total for task in self._shown) - before if before is not None else None

    # -- what became of them -----------------------------------------------------------------------------

    def refresh(self, now: float, place: Place) -> tuple[bool, list[str], Place]:
        """Look at every log; whether something changed, what a person should know of it, where the place is then."""
        changed, notes = False, []
        at = list(place)
        now = self._recorded.t if self._recorded is not None else now
        is_many = len(self.streams) > MANY_LOGS and self._recorded is None
        for i, stream in enumerate(self.streams):
            file = stream.file
            if is_many and now - file.written_t > QUIET_S and 0 <= now - file.looked_t < QUIET_LOOK_S:
                continue
            before_t, file.looked_t = file.looked_t or self._looked_t, now
            self._limit(file)
            was_empty = not file.size
            match file.refresh():
                case Change.SAME:
                    continue
                case Change.GROWN:
                    stream.clock.grew(before_t, now, was_empty=was_empty)
                case Change.GONE:
                    notes.append(f"{name_of(stream)} was removed; what was open is still shown")
                case Change.REWOUND:
                    self._reset(i)
                    at[i] = min(at[i], file.size)
                case Change.ANEW:
                    self._reset(i)
                    at[i] = 0
                    notes.append(f"{name_of(stream)} was cut or replaced; it is read again")
            changed = True
        self._looked_t = now
        return changed, notes, tuple(at)

    def _reset(self, index: int) -> None:
        stream = self.streams[index]
        for one in (stream, self.finders[index]):
            one.reset()
        if (task := self._lines.get(str(stream.ref.path))) is not None:
            task.counts = stream.file.newlines


def _node_of(view: AttemptState) -> int | None:
    """The node that a verdict names, as in ``3 (gpu07)``."""
    number = (view.verdict.node or "").partition(" ")[0] if view.verdict is not None else ""
    return int(number) if number.isdecimal() else None


def name_of(stream: Stream) -> str:
    """A log in two parts of its path."""
    return "/".join(stream.ref.path.parts[-2:])


def _sum_of(counts: Sequence[int | None]) -> int | None:
    return sum(n for n in counts if n is not None) if None not in counts else None


def _done(tasks: Sequence[Task]) -> float:
    size = sum(task.file.size for task in tasks)
    return sum(task.done_bytes for task in tasks) / size if size else 1.0


def _counts_for(tasks: Sequence[Task], stream: Stream) -> Counts | None:
    task = next((t for t in tasks if t.file is stream.file), None)
    return task.counts if task is not None and task.generation == stream.file.generation else None


def _before(streams: Sequence[Stream], place: Place) -> int | None:
    """How many lines that are meant begin before a place; None: not counted yet."""
    total = 0
    for stream, offset in zip(streams, place, strict=True):
        found = 0 if stream.is_excluded else _hits_before(stream, offset)
        if found is None:
            return None
        total += found
    return total


def _hits_before(stream: Stream, offset: int) -> int | None:
    chunk = offset // CHUNK_BYTES
    counts = stream.counts
    if counts is None or chunk > counts.chunks:
        return 0 if not offset else None
    return counts.before(chunk) + sum(hit < offset for hit in stream.hits(chunk))
