"""Turns growing logs into observations: the scanner yields evidence and the readers yield metrics.

The tail thread does all the parsing and passes on only small objects.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from operator import or_
from typing import TypeAlias, assert_never

from supervisor.diagnosis.scan.matched_lines import is_logged_as_warning
from supervisor.diagnosis.scan.scanner import LiveScanner
from supervisor.diagnosis.scan.signature_tables import Role, Trait
from supervisor.keeper.base.background import Background
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.monitoring.observations import (
    LOSSES,
    FactSeen,
    LinesSeen,
    Observation,
    Reported,
    StepHint,
    StepSeen,
    from_telemetry,
)
from supervisor.policy.health.stall import printed
from supervisor.run.arrivals import ArrivalWriter
from supervisor.run.events import EvidenceSeen
from supervisor.run.records import FailureClass
from supervisor.run.series import LINE_T, READING
from supervisor.sources.metrics import DrawnState, MetricReader, MetricSample, standing_states
from supervisor.sources.metrics.lexicon import EVAL_WORDS
from supervisor.sources.metrics.metric_reader import Columns
from supervisor.sources.metrics.names import words_of
from supervisor.sources.metrics.progress_bars import NOTHING_COUNTED
from supervisor.sources.processes import any_is_written
from supervisor.sources.signature_files import Engine
from supervisor.sources.tail.tailer import (
    POLL_S,
    READ_BYTES,
    Backlog,
    Batch,
    Drain,
    NoteCode,
    Tailer,
    TailNote,
)
from supervisor.sources.telemetry import measured_record
from supervisor.text.decode import clean
from supervisor.text.lines import Line
from supervisor.text.patterns import compile_linear
from supervisor.text.prefixes import Origin
from supervisor.text.stamps import LineClock

# How many lines and bar states of a batch (50 ms of output) are checked for their content, at 10 µs each.
MOST_LINES = 16
MAX_WAITING_BYTES = 16 << 20
# Observations that may wait for the keeper's loop (some 10 MB, half a second of its work). Beyond this number,
# reading waits, too, so that everything counted as read does reach the journal.
MOST_WAITING = 20_000
WAITING_S = 0.01
# All samples of a batch (256 KiB of log) are kept up to this many, ten times what a fast job prints in a second.
BATCH_SAMPLES = 200
# A larger batch is a backlog. About this many of its samples are kept if the log's length is unknown. A chart is a few hundred dots
# wide, and readers of the samples must keep up with some hundred batches a second.
BACKLOG_SAMPLES = 60
# About this many samples of an existing log are kept, whatever its length, but at least `MIN_BATCH_SAMPLES` per batch. Storing a
# sample in the series takes some 60 µs, so 60 samples per batch took a quarter of the time of reading the log.
EXISTING_LOG_SAMPLES = 8000
MIN_BATCH_SAMPLES = 12
# How many rows that begin an epoch or another bar are kept per batch, each with the row before it.
MOST_TURNS = 64
STEP = "step"
TOTAL_STEPS = "total_steps"
EPOCH = "epoch"
# tqdm wipes its bar with blanks, writes the line (to this file or another) and draws the bar again. The blanks, the return after them
# and the new state are separate writes, so a read may hold only one. Of two bars, the lower is wiped last, and the cursor moves up.
BAR = b"%|"
BLANKS = b"\r" + b" " * 8
_WIPED = re.compile(rb"\r {8,512}\r+(?:(?:\x1b\[A)+\r+)?([^\r\n]{1,4096})(?:\n\r+(?! {8})([^\r\n]{1,1024}))?")
WIPED_BYTES = 8192
# The end of a drawn state. A warning printed next is on the same line. A partly read state lacks the bracket.
_STATE = re.compile(rb"[^\r\n]*?\d/\d+ \[\d[^\[\]\r\n]*\]")


class LogKind(Enum):
    """How a log is read."""

    RANK = auto()  # evidence and metrics
    AGENT = auto()  # the launcher's own output: evidence that the ranks' logs did not have before
    TELEMETRY = auto()  # the trainer's JSON lines
    MEASURED = auto()  # the JSON lines of the instrumentation


@dataclass(frozen=True, slots=True)
class LogKey:
    """Identifies a log. Verdicts and evidence refer to it by `name`."""

    name: str
    kind: LogKind
    origin: Origin


class LogWatch:
    """Follows any number of logs in one thread.

    Args:
        put: receives the observations, in the tail thread.
        waiting: returns how many observations are still queued.
        engine: returns the signature engine; called in the tail thread.
        engine_ready: whether the engine is available without delay. Until it is, lines are measured at once but not
            scanned. Compiling the engine takes tens of seconds on a busy machine, and steps must keep their times.
        rank_of: returns the global rank of a log's origin, or None if unknown.
        measure: whether to read metrics from log lines. False for a trainer whose telemetry gives exact values.
        rules: the user's own metrics, as (name, regex).
        late: whether the first read of a log finds old content. Its samples get their lines' timestamps, or a mark if
            a line has no timestamp.
        on_agent: receives the raw bytes of AGENT logs, in the tail thread.
        arrivals: the index of when each log grew, which also shows what an earlier keeper had read, or None.
    """

    def __init__(
        self,
        stop: threading.Event,
        *,
        put: Callable[[Observation], None],
        clock: Clock,
        engine: Callable[[], Engine],
        rank_of: Callable[[Origin], int | None],
        measure: bool = True,
        rules: tuple[tuple[str, str], ...] = (),
        on_agent: Callable[[bytes], None] = lambda _data: None,
        engine_ready: Callable[[], bool] = lambda: True,
        late: bool = False,
        waiting: Callable[[], int] = lambda: 0,
        arrivals: ArrivalWriter | None = None,
    ) -> None:
        self._stop = stop
        self._put = put
        self._waiting = waiting
        self._drain: Drain | None = None
        self._late = late
        self._newest: dict[str, DrawnState] = {}  # what was last read of a log with bars
        self._standing: dict[
            str, tuple[int, float]
        ] = {}  # bytes of a log when it was first followed, its last change
        self._clock = clock
        self._engine = engine
        self._rank_of = rank_of
        self._measures = measure
        self._rules = [(name, compile_linear(regex)) for name, regex in rules]
        self._on_agent = on_agent
        self._engine_ready = engine_ready
        self._unscanned: list[tuple[LogKey, Batch]] = []
        self._unscanned_bytes = 0
        self._tailer = Tailer(stop, self._on_batch, on_note=self._on_note)
        self._scanner: LiveScanner | None = None
        self._arrivals = arrivals
        self._before: dict[str, int] = {}
        self._keys: dict[str, LogKey] = {}
        self._paths: list[str] = []
        self._readers: dict[str, MetricReader] = {}
        self._read_rows: dict[str, int] = {}
        self._line_clocks: dict[str, LineClock] = {}
        self._wiped: dict[str, tuple[tuple[int, int], bytes, set[int] | None]] = {}
        self._rank_reported = False

    def follow(self, key: LogKey, path: str, *, ended: bool = False) -> None:
        """Start following a file, which may not exist yet. Repeated calls do nothing. If `ended`, even text added later is old."""
        if key.name not in self._keys:
            self._keys[key.name] = key
            self._before[key.name] = self._arrivals.end_of(key.name) if self._arrivals is not None else 0
            self._paths.append(path)
            if self._late:
                size, changed_t = 0, 0.0
                with contextlib.suppress(OSError):
                    info = os.stat(path)
                    size, changed_t = info.st_size, info.st_mtime
                self._standing[key.name] = (sys.maxsize if ended else size, changed_t)
            self._tailer.add(path, key.name)

    def start(self) -> None:
        """Start the tail thread."""
        self._tailer.start()

    @property
    def paths(self) -> list[str]:
        """The followed files."""
        return list(self._paths)

    def backlog(self) -> Backlog:
        """Return how much of the logs has been read. Also works after `close`."""
        return self._tailer.backlog()

    def finish(self) -> None:
        """Request that the logs be read up to their current end, and return immediately (see `finished`)."""
        self._drain = self._tailer.ask_drain(self._scan_waiting)

    @property
    def finished(self) -> bool:
        """Whether everything that `finish` asked for has been read."""
        return self._drain is not None and (self._drain.done.is_set() or not self._tailer.alive)

    def close(self) -> None:
        """Stop the thread."""
        self._tailer.close()

    # -- in the tail thread ----------------------------------------------------------------------

    def _on_note(self, note: TailNote) -> None:
        if note.code in {NoteCode.TRUNCATED, NoteCode.ROTATED} and self._scanner is not None:
            self._scanner.forget(note.key)

    def _on_batch(self, batch: Batch) -> None:
        while self._waiting() > MOST_WAITING and not self._stop.wait(WAITING_S):
            continue
        key = self._keys[batch.key]
        match key.kind:
            case LogKind.TELEMETRY:
                for line in batch.lines:
                    for seen in from_telemetry(line.raw, rank=key.origin.rank, clock=self._clock):
                        self._put(seen)
            case LogKind.MEASURED:
                for line in batch.lines:
                    if (record := measured_record(line.raw)) is not None:
                        self._put(FactSeen(self._clock.wall(), key.origin.rank or 0, record))
            case LogKind.AGENT:
                self._note_arrival(key.name, batch)
                self._on_agent(batch.data)
                # torchrun reports about its ranks what their own logs showed before.
                if not self._rank_reported:
                    self._scan(key, batch)
            case LogKind.RANK:
                self._note_arrival(key.name, batch)
                if self._measures:
                    self._measure(key, batch)
                newest = (*batch.drawn[-MOST_LINES:], *batch.lines[-MOST_LINES:])
                lines = tuple(printed(line.raw) for line in newest) or (printed(batch.data),)
                again = batch.offset < self._before[key.name]
                self._put(LinesSeen(self._clock.wall(), key.name, lines, again))
                self._scan(key, batch)  # last, because the first scan may wait seconds for the signatures
            case _ as unreachable:
                assert_never(unreachable)

    def _note_arrival(self, name: str, batch: Batch) -> None:
        if self._arrivals is not None:  # it grew since the last check, which was `POLL_S` ago
            now = self._clock.wall()
            self._arrivals.note(name, batch.offset + len(batch.data), now - POLL_S, now)

    def _scan(self, key: LogKey, batch: Batch) -> None:
        if self._scanner is None and not self._engine_ready() and self._unscanned_bytes < MAX_WAITING_BYTES:
            self._unscanned.append((key, batch))
            self._unscanned_bytes += len(batch.data)
            return
        self._scan_waiting()
        self._scan_now(key, batch)

    def _scan_waiting(self) -> None:
        if self._stop.is_set():  # the results are no longer wanted
            return
        waiting, self._unscanned, self._unscanned_bytes = self._unscanned, [], 0
        for key, batch in waiting:
            self._scan_now(key, batch)

    def _scan_now(self, key: LogKey, batch: Batch) -> None:
        if self._scanner is None:
            engine = self._engine()
            self._scanner = LiveScanner(engine.signatures, engine.matcher)
        for hit in self._scanner.feed(key.name, batch.data, key.origin):
            if hit.signature.role is not Role.CAUSE or (
                hit.signature.failure is FailureClass.MISSING_FILE and is_logged_as_warning(hit.text)
            ):
                continue
            self._rank_reported = self._rank_reported or key.kind is LogKind.RANK
            found = EvidenceSeen(
                t=self._clock.wall(),
                attempt=0,
                failure=hit.signature.failure,
                role=str(hit.signature.role),
                rank=self._rank_of(hit.origin.over(key.origin)),
                path=key.name,
                line=hit.line,
                text=hit.text,
            )
            self._put(Reported(found, found.rank, stop_signal=hit.has(Trait.STOP_SIGNAL)))

    def _measure(self, key: LogKey, batch: Batch) -> None:
        reader = self._readers.setdefault(key.name, MetricReader(rules=self._rules))
        lines = batch.in_order() if batch.drawn else batch.lines
        now = self._clock.wall()
        rows = reader.read_rows([line.raw for line in lines])
        if self._late:
            self._line_clock(key.name, now).enter(batch.data)
        drawn = set(map(id, batch.drawn))  # a line may begin at the same offset as its first state
        if drawn:
            states = [(columns.step(at), loss) for _, columns, at, loss in rows]
            stands = standing_states(states, self._newest.get(key.name))
            stepped = [place for place, (step, _) in enumerate(states) if step is not None]
            if stepped:  # the bar's position, even above a last line without a step
                stands[stepped[-1]] = True
            if states:
                self._newest[key.name] = states[-1]
            turning = turns(rows)
            whole = (id(lines[row]) not in drawn or place in turning for place, (row, *_) in enumerate(rows))
            rows = [row for row, kept in zip(rows, map(or_, stands, whole), strict=True) if kept]
        few = len(rows) <= BATCH_SAMPLES
        wanted = self._samples_wanted(key)
        kept = rows
        if not few:
            places = {*thinned([loss for *_, loss in rows], wanted), *last_of_each(rows), *turns(rows)}
            kept = [rows[place] for place in sorted(places)]
        before = self._read_rows.get(key.name, 0)
        self._read_rows[key.name] = before + len(rows)
        numbers = None if few else {row: before + at for at, (row, *_) in enumerate(rows, 1)}
        both: list[tuple[int, StepSeen | StepHint]] = []
        end = 0  # a long line is truncated, but it ends after the states drawn on it
        for row, columns, at, _ in kept:
            line, sample = lines[row], columns.sample(at)
            end = max(end, line.offset + len(line.raw))
            seen = self._step_seen(key, batch, line, sample, now, drawn)
            if numbers is not None:
                seen.values[READING] = float(numbers[row])
            both.append((end, seen))
        # In a backlog, read only the bars that give a kept line its step.
        ends = _line_ends(batch)
        stepless = (lines[row] for row, columns, *_ in kept if STEP not in columns.values)
        told = None if few else {ends[line.number] for line in stepless if line.number in ends}
        both += self._hints(key, batch, now, told)
        for _, observation in sorted(both, key=lambda one: one[0]):
            self._put(observation)

    def _line_clock(self, name: str, changed_t: float) -> LineClock:
        if name not in self._line_clocks:
            self._line_clocks[name] = LineClock(self._standing.get(name, (0, changed_t))[1] or changed_t)
        return self._line_clocks[name]

    def _samples_wanted(self, key: LogKey) -> int:
        """Return how many samples to keep from each batch of a backlog."""
        size, _ = self._standing.get(key.name, (0, 0.0))
        if not 0 < size < sys.maxsize:
            return BACKLOG_SAMPLES
        return max(MIN_BATCH_SAMPLES, min(BATCH_SAMPLES, EXISTING_LOG_SAMPLES * READ_BYTES // size))

    def _step_seen(
        self, key: LogKey, batch: Batch, line: Line, sample: MetricSample, now: float, states: set[int]
    ) -> StepSeen:
        rank = sample.rank if sample.rank is not None else self._rank_of(key.origin)
        other = sample.other
        if sample.evaluates:
            # Keeps one of several losses on held-out data from being mistaken for the training loss.
            other = {
                name
                if "loss" not in name.lower() or EVAL_WORDS & set(words_of(name))
                else f"val {name}": value
                for name, value in other.items()
            }
        values = {**other, **sample.values}
        if sample.off_curve:
            for name in LOSSES:  # a loss curve must not end with a mean or with the test loss
                values.pop(name, None)
        size, changed_t = self._standing.get(key.name, (0, now))
        # A full read buffer is not fresh output of a running job: it is from a copy, or from a file piped in.
        if line.offset < size or (self._late and len(batch.data) >= READ_BYTES):
            stamp = self._line_clock(key.name, changed_t).read(line.text)
            values[LINE_T] = stamp if stamp is not None else math.nan
        drawn = b"\r" in line.raw or id(line) in states
        begins = drawn and NOTHING_COUNTED in clean(line.raw)
        return StepSeen(
            t=now,
            rank=rank,
            values=values,
            from_telemetry=False,
            drawn=drawn,
            bar=BAR in line.raw,
            begins=begins,
            log=key.name,
            plain_time=sample.plain_time,
            again=line.offset < self._before[key.name],
            evaluates=sample.evaluates,
        )

    def _hints(
        self, key: LogKey, batch: Batch, now: float, told: set[int] | None
    ) -> Iterator[tuple[int, StepHint]]:
        """Yield the state and offset of each bar redrawn after a line. If `told` is set, only lines ending at its offsets count."""
        place, before, told_before = self._wiped.pop(key.name, ((0, 0), b"", None))
        if place != (batch.generation, batch.offset):
            before = b""
        data = before + batch.data
        if BLANKS not in data:
            return
        begin = batch.offset + len(batch.data) - len(data)
        reader = self._readers.setdefault(f"{key.name}\r", MetricReader())
        done = 0
        for match in _WIPED.finditer(data):
            wanted = told_before if match.end(1) < len(before) else told
            if wanted is not None and begin + match.end(1) not in wanted:
                continue
            for group in (1, 2):
                state = match[group] or b""
                whole = None if state.endswith(b"]") else _STATE.match(state)
                drawn = whole[0] if whole is not None else state
                sample = reader.feed(clean(drawn)) if drawn.endswith(b"]") else None
                if sample is not None and STEP in sample.values:
                    done = match.end(group)
                    rank = sample.rank if sample.rank is not None else self._rank_of(key.origin)
                    yield (
                        begin + done,
                        StepHint(now, rank, dict(sample.values), log=key.name, below=group == 2),
                    )
                    break
        # The bar may be drawn again in the next read.
        after = (batch.generation, batch.offset + len(batch.data))
        self._wiped[key.name] = (after, data[done:][-WIPED_BYTES:], told)


def _line_ends(batch: Batch) -> dict[int, int]:
    """Return the newline offset of each line in a batch, keyed by line number."""
    begins = [line.offset for line in batch.lines[1:]]
    last = batch.offset + batch.data.rfind(b"\n")
    return {
        line.number: end for line, end in zip(batch.lines, [*(b - 1 for b in begins), last], strict=False)
    }


Row: TypeAlias = tuple[int, Columns, int, float | None]
"""A line's index, its number columns, its row in those columns, and its loss."""


def turns(rows: Sequence[Row]) -> set[int]:
    """Return the indices of rows without a loss whose epoch or total differs from the previous row's, plus those of the previous rows.

    These rows show which epoch the following rows belong to, and that a bar with a different total is not the training bar.
    """
    found: set[int] = set()
    before: tuple[float | None, ...] | None = None
    last = 0
    for place, (_, columns, at, loss) in enumerate(rows):
        if loss is not None or len(found) >= MOST_TURNS:
            continue
        named = (columns.values.get(EPOCH), columns.values.get(TOTAL_STEPS))
        now = tuple(column[at] if column is not None else None for column in named)
        if now == (None, None):
            continue
        # The first bar of a batch turns nothing.
        if now != before and (before is not None or now[1] is None):
            found |= {last, place}
        before, last = now, place
    return found


def last_of_each(rows: Sequence[Row]) -> set[int]:
    """Return the indices of the rows with the last value of each metric, which charts show as the current one."""
    found: set[int] = set()
    known: set[str] = set()
    lasts = sorted({id(columns): place for place, (_, columns, *_) in enumerate(rows)}.values())
    of_kinds = {(*rows[place][1].values, rows[place][1].off_curve): place for place in lasts}
    for place in sorted(of_kinds.values(), reverse=True):
        _, columns, at, loss = rows[place]
        named = {name for name, column in columns.values.items() if column[at] is not None}
        if columns.off_curve and loss is None:
            named -= LOSSES
        if named - known:
            known |= named
            found.add(place)
    return found


def thinned(losses: Sequence[float | None], wanted: int = BACKLOG_SAMPLES) -> list[int]:
    """Return the indices of about `wanted` backlog samples: each stretch's minimum and maximum loss, first NaN or Inf, and last sample.

    A one-gigabyte log has millions of samples. Storing them all would take more space than the log.
    """
    stretch = 3 * len(losses) // wanted + 1
    kept: list[int] = []
    for start in range(0, len(losses), stretch):
        mine = range(start, min(start + stretch, len(losses)))
        entries = [(loss, place) for place in mine if (loss := losses[place]) is not None]
        odd = [place for loss, place in entries if not math.isfinite(loss)][:1]
        numbers = [entry for entry in entries if math.isfinite(entry[0])]
        ends = [min(numbers)[1], max(numbers)[1]] if numbers else []
        kept += sorted({*ends, *odd, mine[-1]})
    return kept


# -- after the processes have exited ---------------------------------------------------------------

QUIET_S = 2.0
"""A log that a process still has open counts as finished after this many seconds without output."""
WRITTEN_S = 60.0
"""After this many seconds, a log that keeps growing is read only up to its current end."""
LOOK_AGAIN_S = 0.5
"""Seconds between searches for writers. Each walks /proc, which takes 0.1 s on a machine with thousands of processes."""


class LastReading:
    """Reads logs to the end after their processes have exited. A single thread calls `look` until it returns True.

    If a process such as a tracker's uploader outlives the job with a log open, the log is read until it falls silent.
    """

    def __init__(self, logs: LogWatch, clock: Clock) -> None:
        self._logs = logs
        self._clock = clock
        self._began = self._grew = self._next_search = clock.mono()
        self._size_bytes = logs.backlog().size_bytes
        self._waits = True
        self._search: Background[bool] = Background("stoker-writers")
        self._is_open: bool | None = None  # unknown so far
        self._asked = False

    @property
    def took_s(self) -> float:
        """Seconds since reading began."""
        return self._clock.mono() - self._began

    def hurry(self) -> None:
        """Stop waiting for processes that still have a log open."""
        self._waits = False

    def look(self) -> bool:
        """Check whether everything has been read."""
        if not self._asked and not (self._waits and self._may_grow()):
            self._asked = True
            self._logs.finish()
        return self._asked and self._logs.finished

    def _may_grow(self) -> bool:
        """Check whether a process may still be writing."""
        now = self._clock.mono()
        size_bytes = self._logs.backlog().size_bytes
        if size_bytes != self._size_bytes:
            self._size_bytes, self._grew = size_bytes, now
        if now - self._began >= WRITTEN_S:
            return False
        if self._search.busy:
            found = self._search.poll()
            if self._search.is_idle():
                self._is_open, self._next_search = bool(found), now + LOOK_AGAIN_S
        elif now >= self._next_search:
            paths = self._logs.paths
            self._search.start(lambda: any_is_written(paths))
        return self._is_open is None or (self._is_open and now - self._grew < QUIET_S)
