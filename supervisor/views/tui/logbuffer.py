"""The log as it is shown: lines of all ranks in one list, equal ones folded, filtered and searched (pure)."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from supervisor.views.format import ranges
from supervisor.views.logs import LogLine, Tone

# Some minutes of a busy run; about 20 MB at the longest lines that ranks print in practice.
MAX_ENTRIES = 20_000
# How far back an equal line of another rank is looked for. Ranks print one step within a refresh of each other.
FOLD_LINES = 160

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
    _all: deque[Entry] = field(default_factory=deque)
    _recent: dict[tuple[int, str], Entry] = field(default_factory=dict)
    _visible: list[Entry] = field(default_factory=list)
    _attempt: int = 0

    @property
    def visible(self) -> list[Entry]:
        """What is shown, oldest first."""
        return self._visible

    def add(self, lines: Iterable[LogLine]) -> int:
        """Take lines in; returns how many entries fell off the front of `visible`."""
        for line in lines:
            self.total += 1
            if line.attempt != self._attempt:
                if self._attempt:
                    rule = f"attempt {line.attempt}"
                    self._append(Entry(line.attempt, (), rule, Tone.NOTE, line.path, -1, ""))
                self._attempt = line.attempt
                self._recent.clear()
            self._add(line)
        return self._trim()

    def put_before(self, lines: Iterable[LogLine]) -> None:
        """Take in lines that stand before those that are here, each before those of its own attempt."""
        folded = LogBuffer()
        folded.add(lines)
        older: dict[int, list[Entry]] = {}
        for entry in folded._all:
            if not entry.is_rule:
                older.setdefault(entry.attempt, []).append(entry)
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
        self._visible = [entry for entry in self._all if wanted.accepts(entry)]

    def find(self, text: str, start: int, way: int) -> int | None:
        """Index within `visible` of the next line that contains `text` (any case), from `start`, wrapping."""
        needle = text.lower()
        count = len(self._visible)
        for distance in range(count):
            index = (start + way * distance) % count
            if needle in self._visible[index].text.lower():
                return index
        return None

    def _add(self, line: LogLine) -> None:
        key = (line.attempt, line.text)
        known = self._recent.get(key)
        if known is not None and line.who not in known.who and line.text.strip():
            was_shown = self.filter.accepts(known)
            known.who += (line.who,)
            if not was_shown and self.filter.accepts(known):
                self._visible.append(known)
            return
        entry = Entry(line.attempt, (line.who,), line.text, line.tone, line.path, line.offset, line.stream)
        self._recent.pop(key, None)
        self._recent[key] = entry
        if len(self._recent) > FOLD_LINES:
            del self._recent[next(iter(self._recent))]
        self._append(entry)

    def _append(self, entry: Entry) -> None:
        self._all.append(entry)
        if self.filter.accepts(entry):
            self._visible.append(entry)

    def _trim(self) -> int:
        excess = len(self._all) - MAX_ENTRIES
        if excess <= 0:
            return 0
        gone = 0
        for _ in range(excess):
            entry = self._all.popleft()
            if gone < len(self._visible) and self._visible[gone] is entry:
                gone += 1
        del self._visible[:gone]
        self.dropped += excess
        return gone
