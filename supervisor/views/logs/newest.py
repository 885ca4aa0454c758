"""The newest lines of all logs of a run, read from the files that the ranks write, by offset.

Lines are data: what comes out of here holds no escape code and no control character (`text.decode.clean`).
Only the tail of each file is read; the files themselves remain the record.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import msgspec

from supervisor.run.paths import NodePaths
from supervisor.run.state import AttemptView, RankView, RunState
from supervisor.text.decode import LINE_CAP_BYTES, clean
from supervisor.text.lines import LineSplitter
from supervisor.text.prefixes import split_prefix
from supervisor.views.logs.blocks import MARK, block_at, may_be_inside, texts_from
from supervisor.views.logs.order import Part, interleave

# What is read of all files together when a run is opened: some screenfuls, there with the first frame (12,000 lines take
# half a second beside a screen that is being made, and 5 MiB).
OPEN_BYTES = 256 << 10
OPEN_MIN_BYTES = 8 << 10
OPEN_MAX_BYTES = 64 << 10
# What is read of what stands before that, once a person looks back.
BACK_BYTES = 4 << 20
BACK_MAX_BYTES = 2 << 20
# One file's share of one refresh; a backlog beyond four of these is skipped, and the skip is said.
READ_BYTES = 1 << 20
# Lines of one refresh, all files together: the screen takes in so many within some 0.1 s.
READ_LINES = 12_000
READ_MIN_LINES = 100
# So long a traceback is waited for until it is whole.
HELD_LINES = 200
AGENT = "agent"


class Tone(Enum):
    """How a line is shown; a guess from its words, never a verdict."""

    PLAIN = "plain"
    WARN = "warn"
    BAD = "bad"
    NOTE = "note"  # stoker's own remark within the log
    FOLDED = "folded"  # torchrun's own traceback as one line


_BAD = re.compile(
    r"Traceback \(most|\bFATAL\b|\bCRITICAL\b|\b\w*(?:Error|Exception)\b(?::|$)|out of memory|\[ERROR\]|\bERROR\b"
)
_WARN = re.compile(r"\bWARN(?:ING)?\b|\w*Warning\b:|\bwarning:")
# What every such line holds. Nearly all lines hold none of it, and this finds that out 15 to 25 times as fast.
_NOTABLE = re.compile(r"rror|RROR|xception|arning|WARN|Traceback|FATAL|CRITICAL|out of memory")


class LogRef(NamedTuple):
    """One log of a run: whose it is and where it lies. `who` is empty where one file holds every rank."""

    attempt: int
    who: str
    stream: str
    path: Path

    @property
    def is_mixed(self) -> bool:
        """Whether its lines may be of several ranks, which their own prefixes tell."""
        return self.who in {AGENT, ""}


class LogLine(msgspec.Struct, frozen=True, gc=False):
    """One line. `who`: the rank as text, or "agent" for torchrun itself. `offset` is its place in `path`."""

    attempt: int
    who: str
    stream: str
    text: str
    tone: Tone
    path: str
    offset: int


class LogNews(msgspec.Struct, frozen=True):
    """What a refresh found. `open_lines`: lines not ended yet (progress bars), one a file at most.

    `earlier`: lines that stand before those given first, each before those of its own attempt.
    """

    lines: tuple[LogLine, ...] = ()
    earlier: tuple[LogLine, ...] = ()
    open_lines: tuple[LogLine, ...] = ()
    open_changed: bool = False
    sources: tuple[str, ...] = ()
    sources_changed: bool = False


@dataclass(slots=True)
class _Source:
    """One file, followed. `begin`: what stands before it was not read when it was opened, with `opened` lines, at `opened_t`.

    `held`: the begin of a traceback that is still being written: it is given as a whole, or when nothing follows.
    """

    path: Path
    attempt: int
    who: str
    stream: str
    splitter: LineSplitter = field(default_factory=LineSplitter)
    offset: int = 0
    inode: int = 0
    open_raw: bytes = b""
    final: bool = False
    skip_first: bool = False
    written_t: float = 0.0
    begin: int = 0
    opened: int = 0
    opened_t: float = 0.0
    held: list[LogLine] = field(default_factory=list)

    def size_bytes(self) -> int:
        """The file's size; 0 where there is none."""
        try:
            return os.stat(self.path).st_size
        except OSError:
            return 0

    def read(self, budget_bytes: int, most_lines: int) -> list[LogLine]:
        """Lines added since the last call, the newest `most_lines` of them."""
        held, self.held = self.held, []
        try:
            info = os.stat(self.path)
        except OSError:
            return held
        if info.st_ino == self.inode and info.st_size == self.offset:
            return held
        opening, self.written_t = self.offset == 0, info.st_mtime
        try:
            with self.path.open("rb") as file:
                lines = held + self._read_open(file.fileno(), info, budget_bytes, most_lines)
        except OSError:
            return held
        return lines if opening or len(lines) == len(held) else self._hold_back(lines)

    def _hold_back(self, lines: list[LogLine]) -> list[LogLine]:
        """Without the begin of a traceback that is still being written."""
        last = len(lines) - 1
        if not (MARK in lines[last].text or may_be_inside(lines[last].text, "")):
            return lines
        first = next((n for n in range(last, max(last - HELD_LINES, -1), -1) if MARK in lines[n].text), None)
        block = block_at(texts_from([line.text for line in lines[first:]], 0)) if first is not None else None
        if first is None or block is None or block.ended:
            return lines
        self.held = lines[first:]
        return lines[:first]

    def part(self, lines: list[LogLine], ended_t: float | None) -> Part:
        """The lines with what is known of their time. `ended_t`: when the attempt was over."""
        last_t = self.written_t if ended_t is None else min(self.written_t, ended_t)
        return Part(lines, last_t, self.stream == AGENT, self.path.parent.name, last_t < self.written_t)

    def _read_open(self, fd: int, info: os.stat_result, budget_bytes: int, most_lines: int) -> list[LogLine]:
        notes: list[LogLine] = []
        opening = self.offset == 0
        if info.st_ino != self.inode or info.st_size < self.offset:
            first_time = self.inode == 0
            self.inode, self.offset, self.open_raw = info.st_ino, 0, b""
            self.splitter.reset()
            self.skip_first = False
            self.begin = 0
            if not first_time:
                notes.append(self._note("… the file was replaced or cut: read anew"))
            if info.st_size > budget_bytes:
                self._jump(info.st_size - budget_bytes)
        elif info.st_size - self.offset > 4 * READ_BYTES:
            skipped = info.st_size - READ_BYTES - self.offset
            self._jump(info.st_size - READ_BYTES)
            notes.append(self._note(f"… {skipped / 2**20:.1f} MiB skipped to keep up"))
        data = os.pread(fd, max(READ_BYTES, budget_bytes) if opening else READ_BYTES, self.offset)
        self.offset += len(data)
        lines = self.splitter.feed(data)
        if self.skip_first and lines:
            # The rest of the line that the jump fell into; alone it is a giant's end, better than nothing.
            lines = lines[1:] or lines
            self.skip_first = False
        self._keep_open(data)
        if len(lines) > most_lines:
            if not opening:
                notes.append(self._note(f"… {len(lines) - most_lines} lines skipped to keep up"))
            lines = lines[-most_lines:]
        if opening and self.offset > len(data):
            self.begin = lines[0].offset if lines else self.offset - len(data)
            self.opened, self.opened_t = len(lines), info.st_mtime
        return notes + [self._line(clean(line.raw), line.offset) for line in lines]

    def earlier(self, budget_bytes: int, most_lines: int) -> list[LogLine]:
        """Lines that stand before those read first, the newest `most_lines` of them; given once."""
        begin, self.begin = self.begin, 0
        start = max(begin - budget_bytes, 0)
        if not begin:
            return []
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_ino != self.inode:
                    return []
                data = os.pread(file.fileno(), begin - start, start)
        except OSError:
            return []
        lines = LineSplitter(offset=start).feed(data)[1 if start else 0 :]
        return [self._line(clean(line.raw), line.offset) for line in lines[-most_lines:]]

    def _jump(self, offset: int) -> None:
        self.offset = offset
        self.splitter = LineSplitter(offset=offset)
        self.skip_first = True
        self.open_raw = b""

    def _keep_open(self, data: bytes) -> None:
        """The line that is not ended: of a progress bar only its last states are kept."""
        end = data.rfind(b"\n") + 1
        self.open_raw = data[end:] if end else self.open_raw + data
        if len(self.open_raw) > LINE_CAP_BYTES:
            states = self.open_raw.rfind(b"\r", 0, len(self.open_raw) - 1)
            self.open_raw = self.open_raw[states:] if states > 0 else self.open_raw[:LINE_CAP_BYTES]

    def open_line(self) -> LogLine | None:
        """The line that is not ended yet, if it says anything."""
        if not self.open_raw or self.skip_first:
            return None
        text = clean(self.open_raw)
        return self._line(text, self.offset - len(self.open_raw)) if text.strip() else None

    def _line(self, text: str, offset: int) -> LogLine:
        who, text = speaker_of(text, self.who)
        return LogLine(self.attempt, who, self.stream, text, tone_of(text), str(self.path), offset)

    def _note(self, text: str) -> LogLine:
        return LogLine(self.attempt, self.who, self.stream, text, Tone.NOTE, str(self.path), self.offset)


class LogReader:
    """Follows the logs of a node's two newest attempts. One thread reads."""

    def __init__(self, node: NodePaths) -> None:
        self._node = node
        self._sources: dict[tuple[int, str, str], _Source] = {}
        self._open_lines: tuple[LogLine, ...] = ()
        self._looks_back = False

    def look_back(self) -> None:
        """A person looks back: the next refresh gives what the opening left unread, once."""
        self._looks_back = True

    def folders(self) -> set[str]:
        """Where the logs lie."""
        return {str(source.path.parent) for source in self._sources.values() if not source.final}

    def refresh(self, state: RunState) -> LogNews:
        """Lines added since the last call, in the order of attempts; ranks interleaved."""
        added = self._discover(state)
        attempts = sorted({s.attempt for s in self._sources.values()})
        fresh = [size for s in self._sources.values() if not s.inode and (size := s.size_bytes())]
        budget = min(max(fair_share(fresh, OPEN_BYTES), OPEN_MIN_BYTES), OPEN_MAX_BYTES)
        most_lines = max(READ_LINES // max(len(self._sources), 1), READ_MIN_LINES)
        lines: list[LogLine] = []
        for attempt in attempts:
            mine = [s for s in self._sources.values() if s.attempt == attempt and not s.final]
            ended_t = _ended_t(state, attempt)
            found = [s.part(read, ended_t) for s in mine if (read := s.read(budget, most_lines))]
            lines += found[0].lines if len(found) == 1 else interleave(found, _start_t(state, attempt))
        self._retire(state)
        candidates = (s.open_line() for s in self._sources.values())
        open_lines = tuple(line for line in candidates if line is not None)
        changed = open_lines != self._open_lines
        self._open_lines = open_lines
        return LogNews(
            lines=tuple(lines),
            earlier=tuple(self._earlier(state, most_lines)) if self._looks_back else (),
            open_lines=open_lines,
            open_changed=changed,
            sources=tuple(str(s.path) for s in self._sources.values()),
            sources_changed=added,
        )

    def _earlier(self, state: RunState, most_lines: int) -> Iterator[LogLine]:
        """What stands before the lines of the opening, attempt by attempt."""
        self._looks_back = False
        unread = [source for source in self._sources.values() if source.begin]
        budget = min(fair_share([source.begin for source in unread], BACK_BYTES), BACK_MAX_BYTES)
        for attempt in sorted({source.attempt for source in unread}):
            start_t = _start_t(state, attempt)
            parts = []
            for source in unread:
                if source.attempt == attempt and (lines := source.earlier(budget, most_lines)):
                    # Lines are taken to be evenly apart (see `interleave`): these end where the others begin.
                    share = source.opened / (source.opened + len(lines))
                    part = source.part(lines, None)
                    parts.append(part._replace(last_t=source.opened_t - (source.opened_t - start_t) * share))
            yield from parts[0].lines if len(parts) == 1 else interleave(parts, start_t)

    def _discover(self, state: RunState) -> bool:
        before = len(self._sources)
        for ref in logs_of(state, self._node, state.attempts[-2:]):
            self._add(*ref)
        return len(self._sources) != before

    def _add(self, attempt: int, who: str, stream: str, path: Path) -> None:
        key = (attempt, str(path), stream)
        if key not in self._sources and all(s.path != path for s in self._sources.values()):
            self._sources[key] = _Source(path=path, attempt=attempt, who=who, stream=stream)
        elif key in self._sources:
            self._sources[key].who = who  # the global rank is a fact learnt later

    def _retire(self, state: RunState) -> None:
        """Files of attempts before the newest are complete once read to their end."""
        newest = state.attempts[-1].number if state.attempts else 0
        for source in self._sources.values():
            if source.attempt < newest - 1:
                source.final = True
                source.open_raw = b""


def logs_of(state: RunState, node: NodePaths, attempts: Sequence[AttemptView]) -> Iterator[LogRef]:
    """The logs of some attempts, launcher first, each file once an attempt."""
    for attempt in attempts:
        paths = node.attempt(attempt.number)
        yield LogRef(attempt.number, AGENT, AGENT, paths.agent_log)
        seen: set[str] = set()
        for rank in attempt.ranks.values():
            for stream, name in (("stdout", rank.stdout), ("stderr", rank.stderr)):
                if name and name not in seen:
                    seen.add(name)
                    yield LogRef(attempt.number, _label(rank, state), stream, paths.root / name)


def speaker_of(text: str, who: str) -> tuple[str, str]:
    """Who said a line and what was said, without the prefix that tells; `who` writes the file."""
    if text[:1] not in {"[", "("} and who not in {AGENT, ""}:
        return who, text
    origin, rest = split_prefix(text)
    said = origin.rank if origin.rank is not None else origin.local_rank
    return (str(said), rest) if said is not None else (who, text)


def _label(rank: RankView, state: RunState) -> str:
    """Who writes a file. An observed log may hold every rank: its own prefixes tell."""
    return "" if state.mode == "observed" and rank.rank is None else rank_label(rank)


def _start_t(state: RunState, number: int) -> float:
    attempt = next((a for a in state.attempts if a.number == number), None)
    return (attempt.started_t or attempt.planned_t) if attempt is not None else 0.0


def _ended_t(state: RunState, number: int) -> float | None:
    return next((a.ended_t for a in state.attempts if a.number == number), None)


def rank_label(rank: RankView) -> str:
    """The global rank where it is known, else the local one."""
    return str(rank.rank if rank.rank is not None else rank.local_rank)


def fair_share(sizes: Sequence[int], total: int) -> int:
    """The greatest cap with which the sizes, each cut to it, are at most `total` together."""
    left = total
    for index, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - index)
        if size > share:
            return share
        left -= size
    return total


def tone_of(text: str) -> Tone:
    """How a line is shown, from the words of its first 400 characters."""
    head = text[:400]
    if _NOTABLE.search(head) is None:
        return Tone.PLAIN
    if _BAD.search(head):
        return Tone.BAD
    return Tone.WARN if _WARN.search(head) else Tone.PLAIN
