"""When Python looks for cyclic garbage: never while somebody waits.

A full collection walks every object that Textual and we have loaded (100 ms on a busy machine), and with logs pouring in one
came every second: most of a key's worst way to the screen. Nothing that was there at the start is ever garbage.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Young objects between two looks at them; Python's own 700 are reached by one repaint.
YOUNG = 2000
MIDDLE = 10
NEVER = 1 << 30


@contextmanager
def held_back() -> Iterator[None]:
    """No collection at all, until `settle`; on leaving all is as it was."""
    before = gc.get_threshold()
    gc.disable()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
        gc.enable()


def settle() -> None:
    """What is there now stays and is walked no more; from here on only young objects are looked at by themselves."""
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, NEVER)
    gc.enable()


def sweep() -> None:
    """Look at all that came since `settle`: some milliseconds, for a moment when nobody types."""
    gc.collect()
