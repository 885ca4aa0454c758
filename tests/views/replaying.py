"""What the tests of replays share."""

from __future__ import annotations


class Ticks:
    """Our own clock, moved by hand."""

    def __init__(self) -> None:
        self.t = 0.0

    def __call__(self) -> float:
        return self.t
