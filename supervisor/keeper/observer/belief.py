"""Whether what is watched counts as over, and why: one state, changed by what is read and judged (pure)."""

from __future__ import annotations

from enum import Enum, auto
from typing import assert_never


class Belief(Enum):
    """What is held of a watched log's end. A pipe's and a process's end is seen, so they stay `HELD`."""

    HELD = auto()
    """A process of this machine writes it: it is over when that has ended."""
    ASSUMED_OVER = auto()
    """Nobody is seen to write it (as over NFS, from a container): it is read to its end, and what it says decides."""
    OPEN = auto()
    """It was read and judged, and says no end."""
    SAYS_END = auto()
    """It said no end at first; judged in a later pause it does."""
    REOPENED = auto()
    """It said an end and continued: the next one must last, else each line below what looks like a failure would end and revive it."""
    SAYS_END_AGAIN = auto()
    """It continued after an end, and now says another one."""

    def is_over(self, *, lately_written: bool) -> bool:
        """Whether a last reading may begin."""
        match self:
            case Belief.ASSUMED_OVER | Belief.SAYS_END:
                return True
            case Belief.SAYS_END_AGAIN:
                return not lately_written
            case Belief.HELD | Belief.OPEN | Belief.REOPENED:
                return False
            case _ as unreachable:
                assert_never(unreachable)

    @property
    def is_decided_by_words(self) -> bool:
        """Whether nothing but its own words, or a long silence, will end it."""
        return self not in {Belief.HELD, Belief.ASSUMED_OVER}

    def after_lines(self) -> Belief:
        """New lines: an end that was said is one no more."""
        return {Belief.SAYS_END: Belief.OPEN, Belief.SAYS_END_AGAIN: Belief.REOPENED}.get(self, self)

    def after_pause(self, *, shows_end: bool) -> Belief:
        """It was judged in a pause."""
        if not shows_end:
            return self.after_lines()
        return {Belief.OPEN: Belief.SAYS_END, Belief.REOPENED: Belief.SAYS_END_AGAIN}.get(self, self)

    def after_no_end(self) -> Belief:
        """It was read to its end, judged, and shows none."""
        return Belief.REOPENED if self in {Belief.REOPENED, Belief.SAYS_END_AGAIN} else Belief.OPEN
