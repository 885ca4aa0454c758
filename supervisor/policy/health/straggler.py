"""Finds the rank that slows the others down, although all ranks look equally slow.

With DDP every rank's step takes as long as the slowest one's, because the others wait for it in the gradient exchange. The step time
that a script prints does not tell them apart: if it includes that wait, the waiting ranks print the longer time, and if it leaves out
the slow part, so does the slow rank. What counts is the time that a rank spends before the exchange: its wait for data, the time
between its steps according to telemetry, and how much later than the others it reports the same step. Its device may show the
reason. Ranks without GPUs do not compute while they wait, so the only one that keeps a core busy is the slow one. If none of this
decides, stacks do: the slow rank is the one that was found elsewhere while all others waited, at different moments of different steps.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from statistics import median

from supervisor.policy.health.early_signs import Advice

WINDOW = 30
SHARE = 0.2
"""A rank is slow if it alone costs this share of every step."""
LATE_LEAST_S = 0.05
"""A smaller delay may only mean that the rank's file was read later."""
SLOW_CLOCK = 0.9
CPU_READINGS = 10
"""A comparison needs this many readings of each rank's processor time, one a second."""
WAITING_CORES = 0.5
BUSY_CORES = 0.3
BUSY_FACTOR = 2.0
"""A rank that waits uses fewer cores than this; the busy one uses this many more, and this multiple."""
GLANCES = 10
"""Looks at the ranks' stacks in one comparison."""
FOUND_GLANCES = 5
"""A rank is slow if the others waited for it in at least this many of them,"""
STRAY_GLANCES = 1
"""and for any other rank in at most this many."""
PENDING = 64
"""The most steps to remember that some ranks have reported and others have not."""


@dataclass(slots=True)
class _Rank:
    """The last steps of one rank: seconds per step, time within it (None: not printed), data wait, and how late it reported each."""

    last_t: float | None = None
    last_step: float | None = None
    rows: deque[tuple[float, float | None, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    late: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    has_telemetry: bool = False


@dataclass(frozen=True, slots=True)
class _Own:
    """Medians of one rank's window: seconds that it spends before it reaches the others."""

    gap_s: float
    outside_s: float
    data_s: float
    late_s: float

    @property
    def apart_s(self) -> float:
        return self.outside_s + self.data_s


@dataclass(frozen=True, slots=True)
class SlowRank:
    """The rank that the others wait for: by `lost_s` of every step of `gap_s`."""

    rank: int
    lost_s: float
    gap_s: float
    advice: Advice


class Stragglers:
    """Per-rank step times of one attempt."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._reported: dict[float, dict[int, float]] = {}
        self._named: int | None = None
        self._gpus: dict[str, Mapping[str, float | None]] = {}
        self._cores: dict[int, deque[float]] = {}
        self._glances: deque[tuple[int | None, str]] = deque(maxlen=GLANCES)

    def step(self, rank: int, t: float, values: Mapping[str, float], *, from_telemetry: bool) -> None:
        """Add a step that a rank reported at `t` (wall seconds). A log may name only every tenth step."""
        number, took = values.get("step"), values.get("step_time_s")
        known = self._ranks.setdefault(rank, _Rank())
        known.has_telemetry = from_telemetry
        steps = number - known.last_step if number is not None and known.last_step is not None else 0
        follows = steps == 1 if from_telemetry else steps >= 1
        if follows and known.last_t is not None and t > known.last_t:
            known.rows.append(((t - known.last_t) / steps, took, values.get("data_wait_s") or 0.0))
        known.last_t, known.last_step = t, number
        if number is not None:
            self._report(rank, number, t)

    def _report(self, rank: int, number: float, t: float) -> None:
        reported = self._reported.setdefault(number, {})
        if rank in reported:
            reported.clear()  # counted again, as in each epoch
        reported[rank] = t
        if len(reported) == len(self._ranks):
            first = min(reported.values())
            for each, at in self._reported.pop(number).items():
                self._ranks[each].late.append(at - first)
        elif len(self._reported) > PENDING:
            del self._reported[next(iter(self._reported))]

    def pause(self) -> None:
        """Ignore the next gap, because something else came between two steps (an evaluation, a checkpoint)."""
        for known in self._ranks.values():
            known.last_step = None
        self._reported.clear()

    def gpu(self, index: str, values: Mapping[str, float | None]) -> None:
        """The newest reading of a GPU."""
        self._gpus[index] = values

    def processor(self, rank: int, cores: float) -> None:
        """Add how many cores a rank kept busy since its previous reading."""
        self._cores.setdefault(rank, deque(maxlen=CPU_READINGS)).append(cores)

    def looked(self, rank: int | None, where: str) -> None:
        """Add a look at the stacks that found all ranks but this one waiting; None: no single one."""
        self._glances.append((rank, where))

    @property
    def looked_enough(self) -> bool:
        """Whether there were enough looks for a comparison."""
        return len(self._glances) == GLANCES

    def find(self) -> SlowRank | None:
        """The one rank that the others wait for, with the likely reason; None if there is none."""
        full = {rank: known for rank, known in self._ranks.items() if len(known.rows) == WINDOW}
        if not full or len(full) < len(self._ranks):
            return None
        own = {rank: _own(known) for rank, known in full.items()}
        gap_s = median(item.gap_s for item in own.values())
        if gap_s <= 0:
            return None
        if len(full) < 2:  # one rank reports for all
            return self._by_stacks(gap_s)
        apart = self._worst(own, lambda item: item.apart_s, SHARE * gap_s)
        late = self._worst(own, lambda item: item.late_s, max(SHARE * gap_s, LATE_LEAST_S))
        found = max(filter(None, (apart, late)), key=lambda each: each[1], default=None)
        if found is None:
            slow = self._by_processor(full, gap_s) or self._by_stacks(gap_s)
        elif apart is not None and late is not None and apart[0] != late[0]:
            slow = None  # two measures that contradict each other
        else:
            slow = self._named_by(own, found[0], found[1], gap_s, is_late=found is late)
        self._named = slow.rank if slow is not None else None
        return slow

    def _worst(
        self, own: Mapping[int, _Own], spent: Callable[[_Own], float], least_s: float
    ) -> tuple[int, float] | None:
        """The rank that spends most, and how much more than the others; None if that is too little to name it."""
        slow = max(own, key=lambda rank: spent(own[rank]))
        lost_s = spent(own[slow]) - median(spent(item) for rank, item in own.items() if rank != slow)
        # A rank that was named stays named a little below the bound, so that it does not come and go.
        return (slow, lost_s) if lost_s >= (0.75 * least_s if slow == self._named else least_s) else None

    def _named_by(
        self, own: Mapping[int, _Own], slow: int, lost_s: float, gap_s: float, *, is_late: bool
    ) -> SlowRank:
        mine = own[slow]
        where = "fetching data" if mine.data_s >= mine.outside_s else "outside of the step"
        if is_late:
            where = "before it reports the step"
        reason = "; ".join(self._reasons(slow))
        text = f"rank {slow} holds the others up by {lost_s:.2g} s in every step of {gap_s:.2g} s: it spends them {where}"
        advice = Advice("straggler", f"{text}{f' ({reason})' if reason else ''}", slow)
        return SlowRank(slow, lost_s, gap_s, advice)

    def _by_processor(self, ranks: Collection[int], gap_s: float) -> SlowRank | None:
        """The rank that computes while the others wait. With GPUs this does not show: a rank that waits in NCCL keeps a core busy."""
        used = {
            rank: median(cores) for rank in ranks if len(cores := self._cores.get(rank, ())) == CPU_READINGS
        }
        if self._gpus or len(used) < len(ranks):
            return None
        slow = max(used, key=lambda rank: used[rank])
        others = max(cores for rank, cores in used.items() if rank != slow)
        if others > WAITING_CORES or used[slow] < max(BUSY_FACTOR * others, others + BUSY_CORES):
            return None
        lost_s = gap_s * (used[slow] - others) / max(used[slow], 1.0)
        text = (
            f"rank {slow} holds the others up by {lost_s:.2g} s in every step of {gap_s:.2g} s: "
            f"it spends them computing while the others wait (CPU {used[slow]:.0%}, the others at most {others:.0%})"
        )
        return SlowRank(slow, lost_s, gap_s, Advice("straggler", text, slow))

    def _by_stacks(self, gap_s: float) -> SlowRank | None:
        """The rank that was elsewhere while the others waited, by looks at the stacks."""
        if not self.looked_enough:
            return None
        times = Counter(rank for rank, _ in self._glances if rank is not None)
        (slow, count), *others = [*times.most_common(2), (None, 0)]
        if slow is None or count < FOUND_GLANCES or others[0][1] > STRAY_GLANCES:
            return None
        where, _ = Counter(where for rank, where in self._glances if rank == slow).most_common(1)[0]
        text = f"rank {slow} holds the others up: in {count} of {GLANCES} looks at the stacks they waited, and it was at {where}"
        return SlowRank(slow, gap_s * count / GLANCES, gap_s, Advice("straggler", text, slow))

    def _reasons(self, rank: int) -> list[str]:
        # One GPU per rank, in order: the convention for torchrun's local ranks.
        mine = self._gpus.get(str(rank))
        if mine is None:
            return []
        found = []
        if mine.get("throttle"):
            found.append(f"GPU {rank} is throttled")
        clock = mine.get("sm_clock_mhz")
        others = [c for k, v in self._gpus.items() if k != str(rank) and (c := v.get("sm_clock_mhz"))]
        if clock and others and clock < SLOW_CLOCK * median(others):
            found.append(f"GPU {rank} runs at {clock:.0f} MHz, the others at {median(others):.0f}")
        if mine.get("ecc_uncorrected"):
            found.append(f"GPU {rank} has uncorrected memory errors")
        return found


def _own(known: _Rank) -> _Own:
    outside = [max(0.0, gap - took) for gap, took, _ in known.rows if took is not None]
    return _Own(
        gap_s=median(gap for gap, _, _ in known.rows),
        # Telemetry's step time includes the waits. What a log prints may be any part of the step.
        outside_s=median(outside) if outside and known.has_telemetry else 0.0,
        data_s=median(wait for _, _, wait in known.rows),
        late_s=median(known.late) if len(known.late) == WINDOW else 0.0,
    )
