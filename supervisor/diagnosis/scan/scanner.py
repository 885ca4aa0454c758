"""Scan a log's bytes once for lines that match a signature, recording their positions and surroundings.

Memory use is constant: a window of about 256 KiB, the head and tail of the log, and a bounded number of hits,
each with a few kilobytes of context.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from supervisor.diagnosis.scan.matched_lines import (
    SHOWN_BYTES,
    UNCAUGHT,
    Hit,
    SourceScan,
    below_its_frame,
    best_match,
    is_echo,
    is_progress,
    is_quoted_code,
    was_handled,
)
from supervisor.diagnosis.scan.signature_tables import Role, Signatures, Trait
from supervisor.diagnosis.scan.windows import (
    Cutter,
    Matched,
    Matcher,
    Window,
    cut_windows,
    match_window,
    match_windows,
    unwrapped_records,
)
from supervisor.text.decode import clean, plain_chunks
from supervisor.text.prefixes import NOWHERE, Origin, learn_hosts, split_prefix
from supervisor.text.tracebacks import NO_END, end_below, end_without_head

BEFORE_BYTES = 8192
AFTER_BYTES = 12288
# A traceback through compilers and launchers has some 150 frames.
TRACEBACK_BYTES = 49152
HEAD_BYTES = 65536
TAIL_BYTES = 196608
FIRST_HITS = 48
LAST_HITS = 12
MOST_WAITING = 400
# tqdm's count and elapsed time, with at least one step done.
_BAR = re.compile(rb"\b[1-9]\d*/\d+ \[\d\d:\d\d")


class _OpenTraceback(NamedTuple):
    """An incomplete traceback: its header, that line's bytes and the bytes below it. If `in_line`, all are in one record."""

    head: Hit
    line: bytes
    below: bytes
    in_line: bool = False


class SourceScanner:
    """Scans a log as its bytes arrive. The bytes must already be plain text (see `text.decode.plain_chunks`)."""

    def __init__(
        self,
        path: str,
        origin: Origin,
        signatures: Signatures,
        matcher: Matcher,
        index: int = 0,
        first_line: int = 1,
    ) -> None:
        self.path = path
        self.origin = origin
        self._entries = signatures.entries
        self._matcher = matcher
        self._index = index
        self._cutter = Cutter()
        self._first_line = self._line = first_line
        self._bytes = 0
        self._past = b""
        self._head = b""
        self._tail = b""
        # For each signature, the first and the last few hits.
        self._kept: dict[int, tuple[list[Hit], deque[Hit]]] = {}
        self._waiting: list[Hit] = []
        self._open: list[_OpenTraceback] = []
        self._hosts: frozenset[str] | None = None

    def feed(self, data: bytes) -> list[Hit]:
        """Process the next bytes and return hits for the lines they complete."""
        return self._scan(self._cutter.feed(data))

    def finish(self) -> list[Hit]:
        """Close the log and scan its incomplete last line."""
        return self._scan(self._cutter.finish())

    def result(self) -> SourceScan:
        """Return the complete results. Call this after `finish`."""
        for hit in self._waiting:
            self._keep(hit)
        hits = [hit for first, last in self._kept.values() for hit in (*first, *last)]
        head = [clean(raw, SHOWN_BYTES) for raw in unwrapped_records(self._head).split(b"\n")[:400]]
        raw_tail = unwrapped_records(self._tail).split(b"\n")
        if raw_tail and not raw_tail[-1]:
            raw_tail.pop()
        last_line = self._line - 1 if not self._tail or self._tail.endswith(b"\n") else self._line
        raw_tail = raw_tail[-1500:]
        tail = [clean(raw, SHOWN_BYTES) for raw in raw_tail]
        tail_line = last_line - len(tail) + 1
        end = end_without_head(tail, self._hosts or ())
        if end is not None and all(hit.line != tail_line + end[0] for hit in hits):
            row, text, origin = end
            before, after = (b"\n".join(lines) for lines in (raw_tail[:row], raw_tail[row + 1 :]))
            found = Hit(UNCAUGHT, self._index, tail_line + row, text, origin.over(self.origin))
            hits.append(found._replace(before=before[-BEFORE_BYTES:] + b"\n", after=after[:AFTER_BYTES]))
        hits.sort(key=lambda hit: (hit.line, -hit.signature.strength))
        above = enumerate(head[: max(tail_line - self._first_line, 0)], start=self._first_line)
        steps = [number for number, line in (*above, *enumerate(tail, start=tail_line)) if is_progress(line)]
        return SourceScan(
            self.path,
            self.origin,
            tuple(hits),
            last_line,
            self._bytes,
            tuple(head),
            tuple(tail),
            tail_line,
            self._hosts or frozenset(),
            self._first_line,
            any(_BAR.search(edge) for edge in (self._head, self._tail)),
            tuple(steps),
        )

    def _scan(self, window: Window | None) -> list[Hit]:
        return [] if window is None else self.digest(match_window(self._matcher.scan, window))

    def digest(self, matched: Matched) -> list[Hit]:
        """Process the next matched window and return its hits. Do not mix with `feed`."""
        window, text = matched.window.data, matched.text
        if len(self._head) < HEAD_BYTES:
            self._head += text[: HEAD_BYTES - len(self._head)]
        if self._hosts is None:
            self._hosts = learn_hosts(clean(raw, 300) for raw in text[:HEAD_BYTES].split(b"\n")[:240])
        waiting, self._waiting = self._waiting, []
        self._keep_or_wait(
            hit._replace(after=hit.after + text[: AFTER_BYTES - len(hit.after)]) for hit in waiting
        )
        self._open = [
            one._replace(below=one.below + text[: TRACEBACK_BYTES - len(one.below)]) for one in self._open
        ]
        hits = self._hits(text, matched.matches) if matched.matches else []
        hits += self._raised(hits)
        self._keep_or_wait(hits)
        self._line += window.count(b"\n")
        self._bytes += len(window) - matched.window.again
        self._past = (self._past + text[-BEFORE_BYTES:])[-BEFORE_BYTES:]
        self._tail = (self._tail + text[-TAIL_BYTES:])[-TAIL_BYTES:]
        return hits

    def _hits(self, text: bytes, matches: list[tuple[int, int]]) -> list[Hit]:
        """Return each signature's first hits and, if there are too many to keep, the window's last few. This bounds memory use."""
        hits: list[Hit] = []
        seen: set[tuple[int, int]] = set()
        left: dict[int, int] = {}
        later: dict[int, deque[tuple[int, int, int]]] = {}
        for end, index in matches:
            start = text.rfind(b"\n", 0, max(end - 1, 0)) + 1
            part = start
            if b"\r" in text[start:end] and b"Traceback (most" in text[start : start + 160]:
                # a record's own lines, some of which only quote code
                part = text.rfind(b"\r", start, end - 1)
            if (part, index) in seen:
                continue
            seen.add((part, index))
            if index not in left:
                left[index] = FIRST_HITS - (len(self._kept[index][0]) if index in self._kept else 0)
            if left[index] <= 0:
                later.setdefault(index, deque(maxlen=LAST_HITS)).append((end, index, start))
            elif (hit := self._hit(text, end, index, text.count(b"\n", 0, start), start)) is not None:
                left[index] -= 1
                hits.append(hit)
        for end, index, start in sorted(place for places in later.values() for place in places):
            if (hit := self._hit(text, end, index, text.count(b"\n", 0, start), start)) is not None:
                hits.append(hit)
        return hits

    def _keep_or_wait(self, hits: Iterable[Hit]) -> None:
        """Keep hits. A hit that does not yet have all its following lines is held until they arrive."""
        for hit in hits:
            if len(hit.after) >= AFTER_BYTES or len(self._waiting) >= MOST_WAITING:
                self._keep(hit)
            else:
                self._waiting.append(hit)

    def _raised(self, hits: list[Hit]) -> list[Hit]:
        """Return exceptions that end tracebacks but match no signature. Tracebacks still open are checked again later."""
        known = {hit.line for hit in hits if hit.signature.role is not Role.CONFIRMATION}
        found: list[Hit] = []
        still: list[_OpenTraceback] = []
        for one in self._open:
            head = one.head
            end = end_below(clean(one.line, SHOWN_BYTES), one.below, head.hosts)
            number = head.line + (end.below if end is not None and not one.in_line else 0)
            if end is None:
                if len(one.below) < TRACEBACK_BYTES and len(still) < MOST_WAITING and not one.in_line:
                    still.append(one)
            elif end is not NO_END and number not in known:
                above = b"".join((head.before, one.line, b"\n", one.below[: end.start]))
                found.append(
                    head._replace(
                        signature=UNCAUGHT,
                        line=number,
                        text=end.text,
                        origin=end.origin.over(head.origin),
                        before=above[-BEFORE_BYTES:],
                        after=head.after if one.in_line else one.below[end.stop + 1 :][:AFTER_BYTES],
                    )
                )
        self._open = still
        return found

    def _hit(self, text: bytes, end: int, index: int, rows: int, start: int) -> Hit | None:
        stop = text.find(b"\n", end - 1)
        stop = len(text) if stop < 0 else stop
        shown = self._confirmed(index, text[start:stop], end - start)
        if shown is None:
            return None
        origin, message = split_prefix(shown, self._hosts or frozenset())
        hit = Hit(
            self._entries[index],
            self._index,
            self._line + rows,
            message,
            origin.over(self.origin),
            (self._past + text[max(0, start - BEFORE_BYTES) : start])[-BEFORE_BYTES:]
            if start < BEFORE_BYTES
            else text[start - BEFORE_BYTES : start],
            text[stop + 1 : stop + 1 + AFTER_BYTES],
            self._hosts or frozenset(),
        )
        if hit.has(Trait.TRACEBACK):
            line = text[start:stop].rstrip(b"\r")
            at = line.find(b"\r", line.find(b"Traceback (most"))
            below = text[stop + 1 : stop + 1 + TRACEBACK_BYTES]
            if at >= 0:  # the lines of a collector's record
                line, below = line[:at], line[at + 1 :].replace(b"\r", b"\n")
            self._open.append(_OpenTraceback(hit, line, below, in_line=at >= 0))
        return hit

    def _confirmed(self, index: int, raw: bytes, end: int) -> str | None:
        """Return the cleaned line, or None if not confirmed. If it has carriage returns, return just the segment with the match."""
        if b"\r" in raw:
            left = raw.rfind(b"\r", 0, max(end - 1, 0)) + 1
            right = raw.find(b"\r", end)
            raw = raw[left : right if right >= 0 else len(raw)]
        elif len(raw) > 16384:
            raw = raw[max(0, end - 4096) : end + 4096]
        shown = clean(raw)
        if not self._entries[index].confirm:
            return shown
        regex = self._entries[index].regex
        bare = split_prefix(shown, self._hosts or ())[1]
        return shown if re.search(regex, shown) or re.search(regex, bare) else None

    def _keep(self, hit: Hit) -> None:
        first, last = self._kept.setdefault(hit.signature.place, ([], deque(maxlen=LAST_HITS)))
        if len(first) < FIRST_HITS:
            first.append(hit)
        else:
            last.append(hit)


def scan_source(
    path: str,
    origin: Origin,
    chunks: Iterable[bytes],
    signatures: Signatures,
    matcher: Matcher,
    index: int = 0,
    first_line: int = 1,
) -> SourceScan:
    """Scan an entire log, whatever its encoding or compression."""
    scanner = SourceScanner(path, origin, signatures, matcher, index, first_line)
    results = match_windows(matcher, cut_windows(plain_chunks(chunks)))
    try:
        for matched in results:
            scanner.digest(matched)
    finally:
        results.close()  # an error's traceback would keep it, and its thread, alive
    return scanner.result()


class LiveScanner:
    """Scans many growing logs at once and reports causes as they appear.

    Feed it a tailer's output. State per source is bounded. `feed` returns only hits that may be a cause or an
    outcome (roles cause and consequence), never advice lines.
    """

    def __init__(self, signatures: Signatures, matcher: Matcher) -> None:
        self._signatures = signatures
        self._matcher = matcher
        self._sources: dict[str, SourceScanner] = {}

    def feed(self, source: str, data: bytes, origin: Origin = NOWHERE) -> list[Hit]:
        """Process the next bytes from a source (its path). `origin` provides its rank; it is used only on the first call."""
        scanner = self._sources.get(source)
        if scanner is None:
            scanner = SourceScanner(source, origin, self._signatures, self._matcher, len(self._sources))
            self._sources[source] = scanner
        return reportable(scanner.feed(data))

    def forget(self, source: str) -> None:
        """Drop a source because its file was truncated or its attempt is over."""
        self._sources.pop(source, None)


def reportable(hits: Iterable[Hit]) -> list[Hit]:
    """Return the hits worth reporting right away: the best one per line, as in the verdict."""
    by_line: dict[tuple[int, int], list[Hit]] = {}
    for hit in hits:
        by_line.setdefault((hit.source, hit.line), []).append(hit)
    best = (best_match(matches) for matches in by_line.values())
    return [
        hit
        for hit in best
        if hit is not None
        and not (is_echo(hit) or is_quoted_code(hit.text) or below_its_frame(hit))
        and not (hit.has(Trait.ENDS_TRACEBACK) and was_handled(hit))
    ]
