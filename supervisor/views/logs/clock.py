"""When each line of a log was written, as far as that can be known: from its time stamps, the file's growth, and what must come first.

Three things are known. A line may carry a clock. A file has a size now and had others when it was looked at; between two
such points its lines are taken to be evenly spread. And torchrun reports that a rank has failed after that rank's last
line, and ends with its own traceback after all of them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence

from supervisor.run.growth import GrowthClock
from supervisor.text.stamps import anchor_of, is_rising, local_shift, shift_of, stamp_of
from supervisor.views.logs.file import LogFile, TextLine, segment_of
from supervisor.views.logs.sources import AGENT, LogRef, split_rank
from supervisor.views.logs.tracebacks import MARK, block_at, is_head, texts_from, trace_around, trace_from

KEPT_SEGMENTS = 512
SNIFF_LINES = 40
# So many lines without a stamp, as of a config that is printed, may stand between two that have one.
STAMP_LINES = 2000
# torchrun's report alone has some hundred lines where many ranks fail.
SNIFF_AGENT_LINES = 1200
# Lines without a stamp take the one before; so far back is it looked for.
CARRY_SEGMENTS = 32
# torchrun writes little; where a program is supervised without it, its own output stands here, as long as it gets.
LAUNCHER_BYTES = 1 << 20
# Stamps are those of an attempt if they lie within it, give or take clocks that differ.
WITHIN_S = 2.0
# A file's time of change is that of the kernel's last tick before it: 4 ms, at most 10.
TICK_S = 0.01
# A stamp of whole seconds may be of any moment within that second.
WHOLE_SECOND_S = 0.999
# Beyond what floats tell apart at today's wall time, below any clock of a log.
AFTER_S = 1e-4
REACTION = re.compile(r"closing signal|death signal|failed \(exitcode")
FAILED = re.compile(r"failed \(exitcode: -?\d+\) local_rank: (\d+)")


class LogClock:
    """The clock of one log.

    Args:
        ref: whose log it is.
        file: where it is read.
        start_t: when its attempt began, wall seconds; 0: unknown.
    """

    def __init__(self, ref: LogRef, file: LogFile, start_t: float) -> None:
        self.busiest_bytes_per_s = 0.0
        self.peers: Sequence[LogClock] = ()
        self._ref = ref
        self._file = file
        self._start_t = start_t
        self._end_t: float | None = None
        self._recorded: tuple[Sequence[int], Sequence[float]] | None = None
        self._keys: OrderedDict[int, tuple[int, int, dict[int, float]]] = OrderedDict()
        self._clock: GrowthClock | None = None
        self._growth: dict[str, GrowthClock] = {}
        self._shift_s: float | None = None
        self._anchor_shift_s: float | None = None

    def reset(self) -> None:
        """The file holds something else now, or more is known of when it was written."""
        self._forget()

    def _forget(self) -> None:
        self._keys.clear()
        if self._clock is not None and self._growth.get(self._file.path) is self._clock:
            del self._growth[self._file.path]
        self._clock = self._shift_s = self._anchor_shift_s = None

    def share(self, growth: dict[str, GrowthClock]) -> None:
        """Go by what other views saw of the file's growth, and let them go by what this one sees; by path."""
        self._growth = growth

    def use_recorded(self, offsets: Sequence[int], times: Sequence[float]) -> None:
        """How many bytes existed at those times, as a replay knows: the file's growth adds nothing."""
        self._recorded = (offsets, times)

    def ended(self, t: float | None) -> None:
        """Its attempt was over at `t`: nothing was written later, whatever a copied file's times say. None: it is not."""
        if t != self._end_t:
            self._end_t = t
            self._keys.clear()
            if t is not None and self._file.written_t > t:
                self._forget()

    @property
    def written_t(self) -> float:
        """When the log was last written."""
        t = self._file.written_t
        return t if self._end_t is None else min(t, max(self._end_t, self._start_t))

    @property
    def is_launcher(self) -> bool:
        """Whether torchrun itself writes it."""
        return self._ref.who == AGENT

    @property
    def is_copy(self) -> bool:
        """Whether the file was modified after its attempt ended: then the time is that of copying it."""
        return self._end_t is not None and self._file.written_t > self._end_t

    @property
    def reaction_t(self) -> float:
        """When torchrun first reported that ranks end; infinite where it did not."""
        if self._file.size > LAUNCHER_BYTES:
            return math.inf
        line = next((line for line in self._file.forward(0) if REACTION.search(line.text)), None)
        stamp = self._stamp(line.text) if line is not None and self._known_clock() else None
        return stamp if stamp is not None else math.inf

    @property
    def bytes_per_s(self) -> float:
        """How fast it was written, from its attempt's start to its last change."""
        return self._file.size / max(self.written_t - self._start_t, 1.0) if self._start_t else 0.0

    @property
    def is_stamped(self) -> bool:
        """Whether its lines carry the time at which they were written."""
        return self._known_clock() is not None and self._shift_s is not None

    @property
    def estimated_bytes(self) -> int:
        """How much of it no view saw arrive, nor has times of its own."""
        if self.is_launcher or self.is_stamped:
            return 0
        return self._known_clock().estimated_bytes

    @property
    def watched_t(self) -> float:
        """From when on a view saw its lines arrive."""
        return self._known_clock().watched_t

    @property
    def newest_t(self) -> float:
        """When its last line was written; 0 where there is none."""
        line = next(self._file.backward(self._file.size), None)
        return self.key(line) if line is not None else 0.0

    @property
    def oldest_t(self) -> float:
        """The first time that its lines carry; 0 where its beginning has none."""
        if not self.is_stamped:
            return 0.0
        stamps = (self._stamp(line.text) for line in itertools.islice(self._file.forward(0), SNIFF_LINES))
        return next((t for t in stamps if t is not None), 0.0)

    def grew(self, before_t: float, t: float, *, was_empty: bool = False) -> None:
        """It has its size since `t`, and had not at `before_t`, when it may have been empty."""
        is_first = self._clock is None and was_empty
        clock = self._known_clock()
        if is_first:
            clock.estimated_bytes, clock.watched_t = 0, min(before_t, clock.watched_t)
        if self._recorded is None:
            # Several logs that grew between two looks: what they were written last tells which line came first.
            written_t = self._file.written_t
            clock.grew(self._file.size, before_t, written_t if before_t < written_t < t else t)

    def order(self, line: TextLine) -> float:
        """By what a line is put among those of other logs: its own stamp, or when its file changed, which may be a tick early."""
        is_exact = self.is_stamped and not self.is_launcher
        return self.key(line) + (0.0 if is_exact else TICK_S)

    def key(self, line: TextLine) -> float:
        """When a line was written, as far as that can be known; for one that is still being redrawn, its newest state."""
        if line.is_open:
            return self._known_clock().time_of(self._file.size)
        number = segment_of(line.offset)
        kept = self._keys.get(number)
        file = self._file
        if kept is None or kept[0] != file.generation or kept[1] not in {-1, file.size}:
            lines = self._file.segment(number)
            done = bool(lines) and segment_of(self._file.size) > number
            kept = (self._file.generation, -1 if done else self._file.size, self._keys_of(number, lines))
            self._keys[number] = kept
            if len(self._keys) > KEPT_SEGMENTS:
                self._keys.popitem(last=False)
        else:
            self._keys.move_to_end(number)
        found = kept[2].get(line.offset)
        return found if found is not None else self._known_clock().time_of(line.end)

    def offset_at(self, t: float) -> int:
        """Where the first line begins that was written at `t` or later."""
        file = self._file
        if not self.is_stamped:
            if self._ref.who == AGENT and file.size <= LAUNCHER_BYTES:
                return next((line.offset for line in file.forward(0) if self.key(line) >= t), file.size)
            return file.line_start(self._known_clock().offset_of(t))
        low, high = 0, file.size
        while low < high:
            middle = file.line_start((low + high) // 2)
            found = None
            for line in itertools.islice(file.forward(middle), STAMP_LINES):
                if line.offset >= high:
                    break
                if (stamp := self._stamp(line.text)) is not None:
                    found = (line, stamp)
                    break
            if found is None or found[1] >= t:
                high = middle
            else:
                low = max(found[0].end, low + 1)
        # Lines of the second before may follow, with stamps or without; the first one that is late enough is meant.
        for n, line in enumerate(file.forward(low)):
            if self.key(line) >= t:
                return line.offset
            if n == STAMP_LINES:
                return low
        return file.size

    # -- the lines of a segment --------------------------------------------------------------------------

    def _keys_of(self, number: int, lines: Sequence[TextLine]) -> dict[int, float]:
        clock = self._known_clock()
        texts = [split_rank(line.text, self._ref.who)[1] for line in lines]
        if self.is_launcher:
            times = [clock.time_of(line.end) for line in lines]
            times = at_start(texts, times, 0.0 if number else self._start_t)
            times = self._carried_on(lines, times, self._carried(number))
            times = after_ranks(texts, times, self.written_t, self._rank_t)
        elif self._shift_s is not None:
            times = [clock.time_of(line.end) for line in lines]
            times = self._carried_on(lines, times, self._carried(number))
            if lines and lines[-1].end >= self._file.size:
                self._put_last(lines, times)
        else:
            # A traceback stays whole: an indented line and the one before it go with the line that they lead to.
            times = [clock.time_of(line.end) for line in lines]
            for n in range(len(lines) - 2, -1, -1):
                if texts[n][:1].isspace() or texts[n + 1][:1].isspace():
                    times[n] = times[n + 1]
            if self._anchor_shift_s is not None:
                self._keep_to_anchors(lines, times)
        keys = dict(zip((line.offset for line in lines), times, strict=True))
        self._keep_whole(lines, texts, keys)
        return keys

    def _keep_whole(self, lines: Sequence[TextLine], texts: Sequence[str], keys: dict[int, float]) -> None:
        """All lines of a traceback have the time of its last, wherever segments end."""
        who = self._ref.who
        n = 0
        trace = trace_around(self._file, who, lines[0].offset) if lines else None
        while n < len(lines):
            if trace is None and is_head(texts[n]):
                trace = trace_from(self._file, who, lines[n].offset)
            if trace is not None:
                last = trace.last
                t = keys[last.offset] if last.offset in keys else self.key(last)
                while n < len(lines) and lines[n].offset <= last.offset:
                    keys[lines[n].offset] = t
                    n += 1
                trace = None
            else:
                n += 1

    def _carried_on(self, lines: Sequence[TextLine], times: Sequence[float], t: float | None) -> list[float]:
        """Each line's stamp, else the one before, within that second if it is a whole one; else what else is known."""
        carried: list[float] = []
        for line, known in zip(lines, times, strict=True):
            stamp = self._stamp(line.text)
            t = stamp if stamp is not None else t
            within = known if t is None else min(max(known, t), t + WHOLE_SECOND_S * t.is_integer())
            carried.append(within)
        return carried

    def _put_last(self, lines: Sequence[TextLine], times: list[float]) -> None:
        """The traceback that a log ends with was written when the log was, not at the last stamp before it."""
        after = len(lines)
        while after and self._stamp(lines[after - 1].text) is None:
            after -= 1
        first = next(
            (n for n in range(after, len(lines)) if is_head(split_rank(lines[n].text, self._ref.who)[1])),
            len(lines),
        )
        for n in range(first, len(lines)):
            times[n] = max(times[n], self.written_t)

    def _rank_t(self, local_rank: str | None) -> float:
        theirs = (peer.newest_t for peer in self.peers if local_rank in {None, peer.local_rank})
        return max(theirs, default=0.0) + AFTER_S

    def _keep_to_anchors(self, lines: Sequence[TextLine], times: list[float]) -> None:
        """Between two stamped lines no line is earlier than the first or later than the second."""
        anchors = [self._anchor(line.text) for line in lines]
        low, high = 0.0, math.inf
        for n, anchor in enumerate(anchors):
            low = max(low, anchor or 0.0)
            times[n] = max(times[n], low)
        for n in range(len(lines) - 1, -1, -1):
            anchor = anchors[n]
            if anchor is not None:
                high = min(high, anchor + WHOLE_SECOND_S * anchor.is_integer())
            times[n] = min(times[n], high)

    @property
    def local_rank(self) -> str:
        """The folder that torchrun writes a rank's logs into."""
        return self._ref.path.parent.name

    def _carried(self, number: int) -> float | None:
        if self._shift_s is None and self._anchor_shift_s is None:
            return None
        for before in range(number - 1, max(number - 1 - CARRY_SEGMENTS, -1), -1):
            for line in reversed(self._file.segment(before)):
                if (t := self._stamp(line.text)) is not None:
                    return t
        return None

    def _stamp(self, text: str) -> float | None:
        if self._shift_s is None:
            return self._anchor(text) if self._anchor_shift_s is not None else None
        t = stamp_of(text, self.written_t)
        return t + self._shift_s if t is not None else None

    def _anchor(self, text: str) -> float | None:
        t = anchor_of(split_rank(text, self._ref.who)[1], self.written_t)
        return t + (self._anchor_shift_s or 0.0) if t is not None else None

    def _known_clock(self) -> GrowthClock:
        if self._clock is None:
            file, written_t = self._file, self.written_t
            start_t = self._start_t or written_t
            if self.busiest_bytes_per_s:
                # A traceback alone in its file was written at once, not all along: no log is slower than the busiest.
                start_t = max(start_t, written_t - file.size / self.busiest_bytes_per_s)
            seen = self._growth.get(file.path) if self._recorded is None else None
            self._clock = seen or GrowthClock(start_t, file.size, written_t)
            if self._recorded is not None:
                self._clock.use_recorded(*self._recorded)
                return self._clock
            self._clock.grew(file.size, 0.0, written_t)
            self._growth[file.path] = self._clock
            most = SNIFF_AGENT_LINES if self._ref.who == AGENT else SNIFF_LINES
            newest = [line.text for line in itertools.islice(file.backward(file.size), most)][::-1]
            self._learn_shift(newest, written_t)
        return self._clock

    def _learn_shift(self, newest: Sequence[str], written_t: float) -> None:
        texts = newest[-SNIFF_LINES:]
        stamps = [t for text in texts if (t := stamp_of(text, written_t)) is not None]
        if len(stamps) * 3 >= len(texts) and len(stamps) > 1 and is_rising(stamps):
            self._shift_s = shift_of(stamps[-1], written_t)
            return
        unprefixed = (split_rank(text, self._ref.who)[1] for text in newest)
        anchors = [t for text in unprefixed if (t := anchor_of(text, written_t)) is not None]
        self._anchor_shift_s = anchor_shift(anchors, self._start_t, written_t)


def link_clocks(clocks: Sequence[LogClock], ended_t: float | None) -> None:
    """Let the clocks of one attempt's logs know each other, and when the attempt was over (None: it is not)."""
    for clock in clocks:
        clock.ended(ended_t)
    if ended_t is not None and any(clock.is_copy for clock in clocks):
        # What is known of a copy's times: ranks end before torchrun reports it.
        reported_t = min((clock.reaction_t for clock in clocks if clock.is_launcher), default=ended_t)
        for clock in clocks:
            if clock.is_copy and not clock.is_launcher:
                clock.ended(min(ended_t, reported_t - AFTER_S))
    busiest = max((clock.bytes_per_s for clock in clocks), default=0.0)
    for clock in clocks:
        clock.busiest_bytes_per_s = busiest
        clock.peers = [other for other in clocks if other is not clock]


def anchor_shift(anchors: Sequence[float], start_t: float, written_t: float) -> float | None:
    """What makes a log's few stamps wall time; None: there are none, or none that lie within its attempt.

    Args:
        anchors: what `anchor_of` gave, in the order of the lines.
        start_t: when the attempt began, wall seconds; 0: unknown.
        written_t: when the log was last written.
    """
    if not anchors or (len(anchors) > 1 and not is_rising(anchors)):
        return None
    for shift in (local_shift(written_t), shift_of(anchors[-1], written_t)):
        if start_t - WITHIN_S <= anchors[0] + shift and anchors[-1] + shift <= written_t + WITHIN_S:
            return shift
    return None


def at_start(texts: Sequence[str], times: Sequence[float], start_t: float) -> list[float]:
    """What the launcher writes before its ranks end it writes as it starts them, where its lines carry no time.

    Args:
        texts: its lines.
        times: when they were written, as far as anything but their stamps tells.
        start_t: when the attempt began, wall seconds; 0: unknown.
    """
    ends = (n for n, text in enumerate(texts) if REACTION.search(text) or (MARK in text and is_head(text)))
    first = next(ends, 0) if start_t else 0
    return [*(min(start_t, t) for t in times[:first]), *times[first:]]


def after_ranks(
    texts: Sequence[str],
    times: Sequence[float],
    written_t: float,
    rank_t: Callable[[str | None], float],
) -> list[float]:
    """The launcher's lines no earlier than what they report.

    Args:
        texts: its lines.
        times: when they were written, as far as they tell.
        written_t: when its log was last written.
        rank_t: when a local rank (None: any) wrote its last line.
    """
    after = list(times)
    newest = 0.0
    n = 0
    while n < len(texts):
        count = 1
        block = block_at(texts_from(texts, n)) if MARK in texts[n] else None
        if block is not None and (block.is_report or not block.ended):
            count = block.lines
            newest = max(newest, written_t, rank_t(None))
        elif (failed := FAILED.search(texts[n])) is not None:
            newest = max(newest, after[n], rank_t(failed[1]))
        for i in range(n, min(n + count, len(texts))):
            after[i] = newest = max(after[i], newest)
        n += count
    return after
