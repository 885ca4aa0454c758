"""Says where the time of a step goes, from what the ranks measured (docs/telemetry.md): one finding for each cause that costs enough.

A step lasts from the end of the optimizer step before it to its own end, so evaluations and saves are part of the step after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import Final

LEAST_SHARE: Final = 0.05
"""A cause that costs less than this share of the wall time is not reported."""
LEAST_STEPS: Final = 20
FIRST_STEPS: Final = 10
"""Steps in which compilation, caches and the allocator warm up."""
LEAST_READINGS: Final = 5
"""A rank's computing time is compared from this many readings on, which come once a second."""
LEAST_GROWING: Final = 9
LONGER: Final = 1.5
"""Ratio of the last steps to the first from which they get longer. Other work on the machine alone makes 1.3."""
SLOW: Final = 2.5
"""A step is slow if it takes this many times the median."""
APART: Final = 1.25
"""Ratio of computing times, or of later to earlier steps, from which two of them differ."""
OF_ALL: Final = 0.5
"""A wait concerns all ranks if the rank that waits least waits at least this share of what the one that waits most does."""


class SpentOn(StrEnum):
    """What the time is spent on. `rank` in a finding says whose it is, None for all ranks alike."""

    DATA = "data"
    COMPUTE = "compute"
    SAVES = "saves"
    EVALUATION = "evaluation"
    FIRST_STEPS = "first_steps"
    SLOW_STEPS = "slow_steps"
    GROWING = "growing"


@dataclass(frozen=True, slots=True)
class LostTime:
    """One cause of lost time.

    Attributes:
        cause: what the time is spent on.
        share: its share of the wall time, in [0, 1].
        text: the measurement, in a sentence.
        rank: the rank that it concerns, or None for all.
        setting: the setting that would change it, with its value if known, or "".
    """

    cause: SpentOn
    share: float
    text: str
    rank: int | None = None
    setting: str = ""


@dataclass(slots=True)
class RankTimes:
    """One rank's `step` records, oldest first, and what its `timing` records say. Times are in seconds."""

    rows: list[Mapping[str, float]] = field(default_factory=list)
    computed: list[tuple[int, float]] = field(default_factory=list)
    workers: int | None = None

    def add(self, record: Mapping[str, object]) -> None:
        """Add a record of the instrumentation. Other kinds than `step`, `timing` and `loader` are ignored."""
        numbers = {
            name: float(value)
            for name, value in record.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        match record.get("kind"):
            case "step" if numbers.get("step_time_s"):
                self.rows.append(numbers)
            case "timing" if "compute_s" in numbers and self.rows:
                # It is the host's time, of which the wait for data is part.
                own_s = numbers["compute_s"] - _apart_s(self.rows[-1]) / self.rows[-1].get("steps", 1.0)
                self.computed.append((int(numbers.get("step", 0)), max(own_s, 0.0)))
            case "loader" if self.workers is None and "workers" in numbers:
                self.workers = int(numbers["workers"])
            case _:
                pass

    def after(self, step: int) -> RankTimes:
        """Return the records of steps after `step` alone."""
        return RankTimes([row for row in self.rows if row["step"] > step])

    def forget(self, most: int) -> None:
        """Keep only the newest `most` records of each kind."""
        for held in (self.rows, self.computed):
            del held[:-most]

    def total(self, name: str) -> float:
        """Return the sum of a value over all records."""
        return sum(row.get(name, 0.0) for row in self.rows)

    @property
    def steps(self) -> int:
        """Return how many steps the records cover."""
        return int(self.total("steps"))


def why_slow(ranks: Mapping[int, RankTimes], workers_setting: str = "") -> list[LostTime]:
    """Return the causes that cost at least `LEAST_SHARE` of the wall time, the most expensive first.

    Args:
        ranks: the records of each rank. Ranks with fewer than `LEAST_STEPS` steps are left out.
        workers_setting: the name of the setting for the number of data workers, or "" if unknown.
    """
    known = {rank: times for rank, times in sorted(ranks.items()) if times.steps >= LEAST_STEPS}
    if not known:
        return []
    first = next(iter(known.values()))
    found = [
        *_data(known, workers_setting),
        *_slow_rank(known),
        *_spent(first, "save_s", SpentOn.SAVES, "saving checkpoints"),
        *_spent(first, "evaluation_s", SpentOn.EVALUATION, "evaluation"),
        *_first_steps(first),
        *_slow_steps(first),
        *_growing(first),
    ]
    return sorted((one for one in found if one.share >= LEAST_SHARE), key=lambda one: -one.share)


def _data(ranks: Mapping[int, RankTimes], setting: str) -> Iterator[LostTime]:
    """Find the wait for data, of all ranks or of the one that makes the others wait."""
    # The first batch waits for the workers to start.
    lasting = {rank: times.after(FIRST_STEPS) for rank, times in ranks.items()}
    shares = {
        rank: times.total("data_wait_s") / times.total("step_time_s")
        for rank, times in lasting.items()
        if times.rows
    }
    if not shares:
        return
    most = max(shares, key=shares.__getitem__)
    workers = ranks[most].workers
    known = f"{setting or 'num_workers'} is {workers}" if workers is not None else setting
    is_all = min(shares.values()) >= OF_ALL * shares[most]
    who = ("all ranks" if len(shares) > 1 else "the process") if is_all else f"rank {most}"
    share = median(shares.values()) if is_all else shares[most]
    text = f"waiting for data on {who}"
    yield LostTime(SpentOn.DATA, share, text, None if is_all else most, known)


def _slow_rank(ranks: Mapping[int, RankTimes]) -> Iterator[LostTime]:
    """Find the rank that computes longer than the others, since when it does, and what it costs them."""
    middles = {
        rank: median(seconds for _, seconds in times.computed)
        for rank, times in ranks.items()
        if len(times.computed) >= LEAST_READINGS
    }
    if len(middles) < 2:
        return
    slow = max(middles, key=middles.__getitem__)
    usual = median(seconds for rank, seconds in middles.items() if rank != slow)
    late = [step for step, seconds in ranks[slow].computed if seconds > APART * usual]
    if not late or usual <= 0:
        return
    lasting = [seconds for step, seconds in ranks[slow].computed if step >= late[0]]
    now, times = median(lasting), ranks[slow]
    each = times.total("step_time_s") / times.steps
    if now < APART * usual or len(late) < len(lasting) / 2 or len(lasting) < LEAST_READINGS:
        return
    since = f" since step {late[0]:,}" if late[0] > FIRST_STEPS + times.computed[0][0] else ""
    share = min((now - usual) / each, 1.0) * len(lasting) / len(times.computed)
    yield LostTime(
        SpentOn.COMPUTE,
        share,
        f"rank {slow} computes {now / usual:.1f} × the median of the others{since}",
        slow,
    )


def _spent(times: RankTimes, name: str, cause: SpentOn, what: str) -> Iterator[LostTime]:
    """Find time spent between two steps, and how often."""
    spent = [row for row in times.rows if row.get(name, 0.0) > 0]
    if not spent:
        return
    share = times.total(name) / times.total("step_time_s")
    each = times.total(name) / len(spent)
    often = f"about every {round(times.steps / len(spent)):,} steps" if len(spent) > 1 else "once"
    yield LostTime(cause, share, f"{what} takes {each:.2g} s {often}")


def _first_steps(times: RankTimes) -> Iterator[LostTime]:
    """Find the extra time of the first steps of a process, in which code is compiled and caches are filled."""
    early = [row for row in times.rows if row["step"] <= FIRST_STEPS and row.get("steps") == 1]
    usual = _usual_s(times)
    slow = [row for row in early if _own_s(row) > SLOW * usual]
    lost_s = sum(_own_s(row) - usual for row in slow)
    if slow:
        count = int(slow[-1]["step"])
        first = "the first step" if count == 1 else f"the first {count} steps"
        took_s = sum(map(_own_s, slow))
        text = f"{first} took {took_s:.2g} s, later ones {usual:.2g} s each: they compile or warm up"
        yield LostTime(SpentOn.FIRST_STEPS, lost_s / times.total("step_time_s"), text)


def _slow_steps(times: RankTimes) -> Iterator[LostTime]:
    """Find single slow steps that neither a save nor an evaluation nor a wait for data explains."""
    usual = _usual_s(times)
    slow = []
    for row in times.rows:
        whole_s = row.get("slowest_s", 0.0)
        own_s = whole_s - _apart_s(row)
        if row["step"] > FIRST_STEPS and own_s > max(SLOW * usual, whole_s / 2):
            slow.append((row.get("slowest_step", row["step"]), own_s))
    if len(slow) < 2 or usual <= 0:
        return
    lost_s = sum(seconds - usual for _, seconds in slow)
    apart = median(later - earlier for (earlier, _), (later, _) in pairwise(slow))
    factor = median(seconds for _, seconds in slow) / usual
    text = f"about every {round(apart):,} steps one takes {factor:.1f} × as long, without a save, an evaluation or a wait for data"
    yield LostTime(SpentOn.SLOW_STEPS, lost_s / times.total("step_time_s"), text)


def _growing(times: RankTimes) -> Iterator[LostTime]:
    """Find steps that get longer and longer, as with a list that is searched and never emptied."""
    rows = [row for row in times.rows if row["step"] > FIRST_STEPS]
    seconds = [_own_s(row) for row in rows]
    if not _grows(seconds):
        return
    third = len(rows) // 3
    before, after = median(seconds[:third]), median(seconds[-third:])
    if before <= 0 or after < LONGER * before:
        return
    lost_s = sum((each - before) * row["steps"] for each, row in zip(seconds, rows, strict=True))
    memory = [row["memory_now_bytes"] for row in rows if "memory_now_bytes" in row]
    grows = ", and the process's memory grows with them" if _grows(memory) else ""
    text = f"steps get longer: {before:.2g} s at step {int(rows[0]['step']):,}, {after:.2g} s at step {int(rows[-1]['step']):,}{grows}"
    yield LostTime(SpentOn.GROWING, max(lost_s, 0.0) / times.total("step_time_s"), text)


def _grows(values: Sequence[float]) -> bool:
    """Check whether the last third of at least `LEAST_GROWING` values lies above the first, and the middle third between them."""
    if len(values) < LEAST_GROWING:
        return False
    third = len(values) // 3
    first, middle, last = values[:third], values[third:-third], values[-third:]
    return max(first) < min(last) and median(first) < median(middle) < median(last)


def _own_s(row: Mapping[str, float]) -> float:
    """Return the mean length of a record's steps without saves, evaluations and waits for data."""
    return (row["step_time_s"] - _apart_s(row)) / max(row.get("steps", 1.0), 1.0)


def _apart_s(row: Mapping[str, float]) -> float:
    """Return the time of a record's steps that other findings explain."""
    return sum(row.get(name, 0.0) for name in ("save_s", "evaluation_s", "data_wait_s"))


def _usual_s(times: RankTimes) -> float:
    """Return the median length of a step, over records after the first steps where there are any."""
    rows: Sequence[Mapping[str, float]] = [r for r in times.rows if r["step"] > FIRST_STEPS] or times.rows
    return median(_own_s(row) for row in rows)
