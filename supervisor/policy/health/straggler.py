"""Who holds the others up, though all ranks look equally slow.

With DDP every rank's steps take as long as the slowest one's: the others wait for it in the gradient exchange. So the
culprit is the rank that waits least: the one that spends the most time before it comes, in fetching data or outside of
the step. What its device or machine says is the reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from supervisor.policy.health.advice import Advice

WINDOW = 30
SHARE = 0.2
"""A rank is slow if it alone costs this share of every step."""
SLOW_CLOCK = 0.9


@dataclass(slots=True)
class _Rank:
    """The last steps of one rank: gap to the step before, time within, data wait, seconds."""

    last_t: float | None = None
    last_step: float | None = None
    rows: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))


@dataclass(frozen=True, slots=True)
class _Own:
    """Medians of one rank's window: seconds that it spends before it comes to the others."""

    gap_s: float
    outside_s: float
    data_s: float

    @property
    def total_s(self) -> float:
        return self.outside_s + self.data_s


class Stragglers:
    """Per-rank step times of one attempt."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._gpus: dict[str, Mapping[str, float | None]] = {}
        self._machine: Mapping[str, float | None] = {}

    def step(self, rank: int, t: float, values: Mapping[str, float]) -> None:
        """One step of one rank; `t` wall seconds of its end."""
        number, took = values.get("step"), values.get("step_time_s")
        known = self._ranks.setdefault(rank, _Rank())
        follows = number is not None and known.last_step is not None and number == known.last_step + 1
        if follows and took is not None and known.last_t is not None and t > known.last_t:
            known.rows.append((t - known.last_t, took, values.get("data_wait_s") or 0.0))
        known.last_t, known.last_step = t, number

    def pause(self) -> None:
        """Something else came between two steps (an evaluation, a checkpoint): the next gap says nothing."""
        for known in self._ranks.values():
            known.last_step = None

    def gpu(self, index: str, values: Mapping[str, float | None]) -> None:
        """The newest reading of a GPU."""
        self._gpus[index] = values

    def machine(self, values: Mapping[str, float | None]) -> None:
        """The newest reading of the machine."""
        self._machine = values

    def find(self) -> Advice | None:
        """The one rank that the others wait for, with the likely reason; None while there is none."""
        full = {rank: known for rank, known in self._ranks.items() if len(known.rows) == WINDOW}
        if len(full) < 2 or len(full) < len(self._ranks):
            return None
        own = {rank: _own(known) for rank, known in full.items()}
        slow = max(own, key=lambda rank: own[rank].total_s)
        usual = median(item.total_s for rank, item in own.items() if rank != slow)
        gap_s = median(item.gap_s for item in own.values())
        lost_s = own[slow].total_s - usual
        if gap_s <= 0 or lost_s < SHARE * gap_s:
            return self._by_device(sorted(full))
        mine = own[slow]
        where = "fetching data" if mine.data_s >= mine.outside_s else "outside of the step"
        reason = "; ".join([*self._reasons(slow), *self._host_reasons()])
        text = f"rank {slow} holds the others up by {lost_s:.2g} s in every step of {gap_s:.2g} s: it spends them {where}"
        return Advice("straggler", f"{text}{f' ({reason})' if reason else ''}", slow)

    def _by_device(self, ranks: list[int]) -> Advice | None:
        """Ranks that come alike late, but one of them on a device that says it is slowed down."""
        reported = {rank: reasons for rank in ranks if (reasons := self._reasons(rank))}
        if len(reported) != 1:
            return None
        rank, reasons = next(iter(reported.items()))
        return Advice("straggler", f"rank {rank} is likely to hold the others up: {'; '.join(reasons)}", rank)

    def _reasons(self, rank: int) -> list[str]:
        # One rank a GPU, in order: what torchrun's local ranks are by convention.
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

    def _host_reasons(self) -> list[str]:
        cpu = self._machine.get("cpu_ratio")
        return ["the machine's cores are all busy"] if cpu is not None and cpu > 0.95 else []


def _own(known: _Rank) -> _Own:
    return _Own(
        gap_s=median(gap for gap, _, _ in known.rows),
        outside_s=median(max(0.0, gap - took) for gap, took, _ in known.rows),
        data_s=median(wait for _, _, wait in known.rows),
    )
