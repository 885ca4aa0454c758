"""The log as it is shown: lines of all ranks in one list, equal ones folded, filtered and searched (pure)."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from supervisor.views.format import ranges
from supervisor.views.logs.blocks import MARK, block_at, rest_at, summary
from supervisor.views.logs.newest import LogLine, Tone

# Some minutes of a busy run; about 20 MB at the longest lines that ranks print in practice.
MAX_ENTRIES = 20_000
# How far back an equal line of another rank is looked for. Ranks print one step within a refresh of each other.
FOLD_LINES = 160
# The same of whole tracebacks: ranks fail one after the other, each with what its peers' end did to it.
FOLD_BLOCK_LINES = 2000
FOLD_BLOCKS = 32

_RANKS = re.compile(r"(?:^|\s)r(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*|agent)(?=\s|$)")


class Entry(msgspec.Struct, gc=False):
    """One shown line; `who` grows when another rank says the same. No part of a cycle: 20,000 are kept, and not walked."""

    attempt: int
    who: tuple[str, ...]
    text: str
    tone: Tone
    path: str
    offset: int
    stream: str
    inner: tuple[Entry, ...] = ()  # the lines of torchrun's own traceback, which this one sums up

    @property
    def is_rule(self) -> bool:
        """Whether it is no line, but the rule above an attempt."""
        return self.offset < 0


class LogFilter(msgspec.Struct, frozen=True):
    """Which lines are shown: those that contain `text` (any case), of the ranks in `who` (empty: of all)."""

    text: str = ""
    who: frozenset[str] = frozenset()

    @property
    def typed(self) -> str:
        """What `parse` would read as this filter."""
        ranks = sorted(int(name) for name in self.who if name.isdigit())
        parts = [f"r{ranges(tuple(ranks))}"] if ranks else []
        parts += ["ragent"] if "agent" in self.who else []
        return " ".join([*parts, *([self.text] if self.text else [])])

    @classmethod
    def parse(cls, said: str) -> LogFilter:
        """Read what a person typed: words, and ``r0``, ``r0-3,7`` or ``ragent`` for ranks."""
        who: set[str] = set()
        for match in _RANKS.finditer(said):
            for part in match.group(1).split(","):
                first, _, last = part.partition("-")
                if first.isdigit():
                    # A typed range names at most some thousand ranks: more than any log here has.
                    who.update(
                        str(n) for n in range(int(first), min(int(last or first), int(first) + 4096) + 1)
                    )
                else:
                    who.add(first)
        return cls(" ".join(_RANKS.sub(" ", said).split()).lower(), frozenset(who))

    def __bool__(self) -> bool:
        return bool(self.text or self.who)

    def accepts(self, entry: Entry) -> bool:
        """Whether a line is shown. stoker's own remarks always are."""
        if entry.tone is Tone.NOTE:
            return True
        if self.who and self.who.isdisjoint(entry.who):
            return False
        return not self.text or self.text in entry.text.lower()

    def __str__(self) -> str:
        ranks = [n for n in self.who if n.isdigit()]
        parts = [f"rank {ranges(tuple(int(n) for n in ranks))}"] if ranks else []
        parts += ["agent"] if "agent" in self.who else []
        return " · ".join([*parts, *([f"“{self.text}”"] if self.text else [])])


@dataclass
class LogBuffer:
    """All lines read so far (the newest `MAX_ENTRIES`), and those that the filter lets through."""

    filter: LogFilter = field(default_factory=LogFilter)
    total: int = 0
    dropped: int = 0
    reports: int = 0  # torchrun's own tracebacks among the lines
    _all: deque[Entry] = field(default_factory=deque)
    opened: bool = False  # torchrun's own tracebacks are shown line by line
    _recent: dict[tuple[int, str], Entry] = field(default_factory=dict)
    _blocks: dict[tuple[str, ...], tuple[int, list[Entry]]] = field(default_factory=dict)
    _torn: set[str] = field(default_factory=set)  # files whose newest traceback goes on with the next lines
    _visible: list[Entry] = field(default_factory=list)
    _attempt: int = 0

    @property
    def visible(self) -> list[Entry]:
        """What is shown, oldest first."""
        return self._visible

    def add(self, lines: Sequence[LogLine]) -> int:
        """Take lines in; returns how many entries fell off the front of `visible`."""
        at = 0
        torn, count = self._torn, len(lines)
        self.total += count
        while at < count:
            line = lines[at]
            if line.attempt != self._attempt:
                if self._attempt:
                    rule = f"attempt {line.attempt}"
                    self._append(Entry(line.attempt, (), rule, Tone.NOTE, line.path, -1, ""))
                self._attempt = line.attempt
                self._recent.clear()
                self._blocks.clear()
                self._torn.clear()
            if MARK in line.text or (torn and line.path in torn):
                at += self._add_block(lines, at)
            else:
                self._add(line)
                at += 1
        return self._trim()

    def _add_block(self, lines: Sequence[LogLine], at: int) -> int:
        """A traceback, whole or its rest; how many lines it has."""
        first = lines[at]
        is_rest = first.path in self._torn and MARK not in first.text

        def said(n: int) -> str | None:
            line = lines[at + n] if at + n < len(lines) else None
            is_same = line is not None and line.path == first.path and line.who == first.who
            return line.text if line is not None and is_same else None

        block = rest_at(said) if is_rest else block_at(said)
        if block is None:
            self._torn.discard(first.path)
            self._add(first)
            return 1
        mine = lines[at : at + block.lines]
        (self._torn.discard if block.ended else self._torn.add)(first.path)
        entries = [_entry(line) for line in mine]
        if block.is_report and not is_rest:
            whole = replace(entries[0], text=summary([line.text for line in mine], block), tone=Tone.FOLDED)
            whole.inner = tuple(entries)
            self._append(whole)
        elif is_rest or not block.ended or not self._folds_block(entries):
            for entry in entries:
                self._append(entry)
        return block.lines

    def _folds_block(self, entries: list[Entry]) -> bool:
        """Whether another rank said the same just now, line by line: then it is said once, of both."""
        key = tuple(entry.text for entry in entries)
        who = entries[0].who
        since, known = self._blocks.get(key, (0, []))
        if not known or who[0] in known[0].who or self.total - since > FOLD_BLOCK_LINES:
            self._blocks.pop(key, None)
            self._blocks[key] = (self.total, entries)
            if len(self._blocks) > FOLD_BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            return False
        for entry in known:
            self._also(entry, who)
        return True

    def put_before(self, lines: Sequence[LogLine]) -> None:
        """Take in lines that stand before those that are here, each before those of its own attempt."""
        folded = LogBuffer()
        folded.add(lines)
        older: dict[int, list[Entry]] = {}
        for entry in folded._all:
            if not entry.is_rule:
                older.setdefault(entry.attempt, []).append(entry)
                self.reports += bool(entry.inner)
        here, self._all = self._all, deque()
        for entry in here:
            if not entry.is_rule:
                self._all.extend(older.pop(entry.attempt, ()))
            self._all.append(entry)
        self.total += folded.total
        self.set_filter(self.filter)
        self._trim()

    def set_filter(self, wanted: LogFilter) -> None:
        """Show other lines."""
        self.filter = wanted
        self._visible = [shown for entry in self._all for shown in self._shown_of(entry)]

    def open_reports(self, on: bool) -> None:
        """Show torchrun's own tracebacks line by line, or each as one line."""
        self.opened = on
        self.set_filter(self.filter)

    def find(self, text: str, start: int, way: int) -> int | None:
        """Index within `visible` of the next line that contains `text` (any case), from `start`, wrapping.

        What an entry sums up is searched too.
        """
        needle = text.lower()
        count = len(self._visible)
        for distance in range(count):
            index = (start + way * distance) % count
            entry = self._visible[index]
            if any(needle in line.text.lower() for line in entry.inner or (entry,)):
                return index
        return None

    def _add(self, line: LogLine) -> None:
        key = (line.attempt, line.text)
        known = self._recent.get(key)
        if known is not None and line.who not in known.who and line.text.strip():
            self._also(known, (line.who,))
            return
        entry = _entry(line)
        self._recent.pop(key, None)
        self._recent[key] = entry
        if len(self._recent) > FOLD_LINES:
            del self._recent[next(iter(self._recent))]
        self._append(entry)

    def _also(self, known: Entry, who: tuple[str, ...]) -> None:
        was_shown = self.filter.accepts(known)
        known.who += who
        if not was_shown and self.filter.accepts(known):
            self._visible.append(known)

    def _append(self, entry: Entry) -> None:
        self._all.append(entry)
        if entry.inner:
            self.reports += 1
            self._visible += self._shown_of(entry)
        elif self.filter.accepts(entry):
            self._visible.append(entry)

    def _shown_of(self, entry: Entry) -> list[Entry]:
        """The entry, or what it sums up, as far as the filter lets it through."""
        if entry.inner and (self.opened or self.filter.text):
            return [line for line in entry.inner if self.filter.accepts(line)]
        return [entry] if self.filter.accepts(entry) else []

    def _trim(self) -> int:
        excess = len(self._all) - MAX_ENTRIES
        if excess <= 0:
            return 0
        gone = 0
        for _ in range(excess):
            entry = self._all.popleft()
            if gone < len(self._visible) and self._visible[gone] is entry:
                gone += 1
            self.reports -= bool(entry.inner)
            for line in entry.inner:
                if gone < len(self._visible) and self._visible[gone] is line:
                    gone += 1
        del self._visible[:gone]
        self.dropped += excess
        return gone


def _entry(line: LogLine) -> Entry:
    return Entry(line.attempt, (line.who,), line.text, line.tone, line.path, line.offset, line.stream)
