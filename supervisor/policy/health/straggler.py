"""Finds the rank that slows the others down, although all ranks look equally slow.

With DDP every rank's step takes as long as the slowest one's, because the others wait for it in the gradient exchange, so printed step
times do not tell them apart. What counts is the time that a rank spends before the exchange: its wait for data, and the time between its
steps according to telemetry. If that decides nothing, stacks do: the slow rank is the one that was found elsewhere while all others
waited, at different moments of different steps.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from supervisor.policy.health.early_signs import Advice

WINDOW = 30
SHARE = 0.2
"""A rank is slow if it alone costs this share of every step."""
NAMED_SHARE = 0.15
"""The share for a rank that is named already, so that it does not come and go."""
GLANCES = 10
"""Looks at the ranks' stacks in one comparison."""
FOUND_GLANCES = 5
"""A rank is slow if the others waited for it in at least this many of them,"""
STRAY_GLANCES = 1
"""and for any other rank in at most this many."""


@dataclass(slots=True)
class _Rank:
    """The last steps of one rank. `rows`: seconds per step, of these outside of the timed step, and waiting for data."""

    last_t: float | None = None
    last_step: float | None = None
    rows: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))


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
        self._named: int | None = None
        self._glances: deque[tuple[int | None, str]] = deque(maxlen=GLANCES)

    def step(self, rank: int, t: float, values: Mapping[str, float], *, from_telemetry: bool) -> None:
        """Add a step that a rank reported at `t` (wall seconds). A log may name only every tenth step."""
        number = values.get("step")
        known = self._ranks.setdefault(rank, _Rank())
        steps = number - known.last_step if number is not None and known.last_step is not None else 0
        follows = steps == 1 if from_telemetry else steps >= 1
        if follows and known.last_t is not None and t > known.last_t:
            gap_s = (t - known.last_t) / steps
            # Telemetry's step time includes the waits. What a log prints may be any part of the step.
            outside_s = gap_s - values.get("step_time_s", gap_s) if from_telemetry else 0.0
            known.rows.append((gap_s, max(outside_s, 0.0), values.get("data_wait_s") or 0.0))
        known.last_t, known.last_step = t, number

    def pause(self) -> None:
        """Ignore the next gap, because something else came between two steps (an evaluation, a checkpoint)."""
        for known in self._ranks.values():
            known.last_step = None

    def looked(self, rank: int | None, where: str) -> None:
        """Add a look at the stacks that found all ranks but this one waiting; None: no single one."""
        self._glances.append((rank, where))

    @property
    def looked_enough(self) -> bool:
        """Whether there were enough looks for a comparison."""
        return len(self._glances) == GLANCES

    def find(self) -> SlowRank | None:
        """The one rank that the others wait for, with the likely reason; None if there is none."""
        if not self._ranks or any(len(known.rows) < WINDOW for known in self._ranks.values()):
            return None
        middles = {
            rank: [median(column) for column in zip(*known.rows, strict=True)]
            for rank, known in self._ranks.items()
        }
        gap_s = median(gap_s for gap_s, _, _ in middles.values())
        slow = max(middles, key=lambda rank: sum(middles[rank][1:]))
        others = [sum(own[1:]) for rank, own in middles.items() if rank != slow]
        _, outside_s, data_s = middles[slow]
        lost_s = outside_s + data_s - median(others) if others else 0.0
        if lost_s > 0 and lost_s >= (NAMED_SHARE if slow == self._named else SHARE) * gap_s:
            where = "fetching data" if data_s >= outside_s else "outside of the step"
            text = f"rank {slow} holds the others up by {lost_s:.2g} s in every step of {gap_s:.2g} s: it spends them {where}"
            found: SlowRank | None = SlowRank(slow, lost_s, gap_s, Advice("straggler", text, slow))
        else:
            found = self._by_stacks(gap_s)
        self._named = found.rank if found is not None else None
        return found

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
