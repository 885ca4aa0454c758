"""Data shown alongside the journal: the lines around each cause, and the latest stack dump.

The reader thread reads it once per verdict and once per new artifact. The result is frozen.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from supervisor.run.paths import RunPaths
from supervisor.run.records import Cause
from supervisor.run.regular import open_regular
from supervisor.run.state import RunState
from supervisor.text.decode import clean, plain_chunks
from supervisor.text.lines import lines_from
from supervisor.text.redact import redact_lines, redact_text
from supervisor.text.tracebacks import LOOKED_AT, CodeLine, own_line
from supervisor.views.model.step_times import StepTimes, StepTimesReader

BEFORE_LINES = 14
AFTER_LINES = 8
CHUNK_BYTES = 1 << 20
# Do not search for a line beyond this many bytes of its log. Counting newlines takes about 0.3 s per GiB.
READ_LIMIT_BYTES = 4 << 30
SHOWN_BYTES = 4000
STACKS_LIMIT_BYTES = 1 << 18
# If a run failed a hundred times, only the newest causes matter.
CAUSES = 20


class Context(msgspec.Struct, frozen=True):
    """The lines around a cause. `lines[0]` is line `first` of `path`, counted from 1.

    `trouble` says why there are no lines. `own` is the user's own line in the traceback behind the cause, if any.
    """

    path: str
    line: int
    first: int = 1
    lines: tuple[str, ...] = ()
    trouble: str = ""
    own: CodeLine | None = None


class StackDump(msgspec.Struct, frozen=True):
    """The latest stack dump. `taken_t` is a wall time."""

    name: str
    taken_t: float
    lines: tuple[str, ...]


class Nearby(msgspec.Struct, frozen=True):
    """Data shown alongside the journal. `contexts` is keyed by attempt; `stacks` is None until a dump is taken."""

    contexts: dict[int, Context]
    stacks: StackDump | None = None
    times: StepTimes = StepTimes()


class NearbyReader:
    """Reads the files referenced by a journal's verdicts and artifacts. Not thread-safe."""

    def __init__(self, run: RunPaths) -> None:
        self._run = run
        self._contexts: dict[int, Context] = {}
        self._stacks: StackDump | None = None
        self._artifacts_mtime: int | None = None
        self._times = StepTimesReader(run)
        self._last = Nearby({})

    def refresh(self, state: RunState) -> Nearby:
        """Return the current data. The same object is returned as long as nothing changes."""
        changed = False
        for attempt in state.attempts[-CAUSES:]:
            cause = attempt.verdict.cause if attempt.verdict is not None else None
            if cause is None or cause.line is None:
                continue
            known = self._contexts.get(attempt.number)
            if known is None or (known.path, known.line) != (cause.path, cause.line):
                self._contexts[attempt.number] = read_context(self._run, attempt.number, cause)
                changed = True
        changed |= self._look_for_stacks()
        times = self._times.refresh(state)
        if changed or times is not self._last.times:
            self._last = Nearby(dict(self._contexts), self._stacks, times)
        return self._last

    def _look_for_stacks(self) -> bool:
        try:
            mtime = self._run.artifacts.stat().st_mtime_ns
            if mtime == self._artifacts_mtime:
                return False
            found = [entry for entry in os.scandir(self._run.artifacts) if "stacks" in entry.name]
            newest = max(found, key=lambda entry: entry.stat().st_mtime_ns, default=None)
        except OSError:
            return False
        self._artifacts_mtime = mtime
        if newest is None or not newest.is_file() or newest.name.endswith((".part", ".json")):
            return False
        try:
            with open_regular(newest.path) as file:
                lines = [clean(raw, SHOWN_BYTES) for raw in file.read(STACKS_LIMIT_BYTES).splitlines()]
        except OSError:
            return False
        before, self._stacks = self._stacks, StackDump(newest.name, newest.stat().st_mtime, tuple(lines))
        return before != self._stacks


def read_context(run: RunPaths, attempt: int, cause: Cause) -> Context:
    """Return the lines around an attempt's cause. For a copied run directory, they come from the copied files."""
    if cause.line is None:
        return Context(cause.path, 0, trouble="no line to point at")
    path = where_it_lies(run, attempt, cause.path)
    first, last = max(1, cause.line - LOOKED_AT), cause.line + AFTER_LINES
    lines: list[str] = []
    try:
        with open_regular(path) as file:
            for line in lines_from(plain_chunks(_chunks(file.fileno())), first):
                if line.number > last:
                    break
                lines.append(clean(line.raw, SHOWN_BYTES))
    except OSError as error:
        return Context(cause.path, cause.line, trouble=f"{error.strerror}: {path}")
    at = cause.line - first
    own = own_line(lines, at) if at < len(lines) else None
    own = own._replace(text=redact_text(own.text)) if own is not None else None
    above = max(0, at - BEFORE_LINES)
    shown = redact_lines(lines[above:])
    if not shown:
        return Context(cause.path, cause.line, trouble=f"there is no line {cause.line} any more: {path}")
    return Context(cause.path, cause.line, first + above, shown, own=own)


def where_it_lies(run: RunPaths, attempt: int, path: str) -> Path:
    """Locate the file named in a verdict. The path is relative to the attempt's directory, or absolute for a watched log."""
    if not os.path.isabs(path):
        return run.node().attempt(attempt).root / path
    _, slash, below = path.partition("/nodes/")
    moved = run.root / "nodes" / below
    return moved if slash and not os.path.exists(path) else Path(path)


def _chunks(fd: int) -> Iterator[bytes]:
    left = READ_LIMIT_BYTES
    while left > 0 and (chunk := os.read(fd, CHUNK_BYTES)):
        left -= len(chunk)
        yield chunk
