"""A sampler's thread: rounds until it is told to stop or has nothing more, and what was opened is closed."""

from __future__ import annotations

import threading

from supervisor.sources.periodic import PeriodicSampler

JOIN_S = 30.0


class Counting(PeriodicSampler):
    """Samples `rounds` times, or fails in the last round; counts what was closed."""

    def __init__(self, stop: threading.Event, rounds: int, *, fails: bool = False) -> None:
        super().__init__("counting", stop)
        self.rounds, self.fails = rounds, fails
        self.sampled = self.closed = 0

    def sample(self) -> float | None:
        self.sampled += 1
        if self.sampled < self.rounds:
            return 0.0
        if self.fails:
            raise RuntimeError("a driver that is gone")
        return None

    def close(self) -> None:
        self.closed += 1


def test_it_ends_by_itself_and_closes_what_was_opened() -> None:
    sampler = Counting(threading.Event(), 3)
    sampler.start()
    assert sampler.join(JOIN_S)
    assert (sampler.sampled, sampler.closed) == (3, 1)
