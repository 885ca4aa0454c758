"""Fixtures of several unit tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from supervisor.sources.tail.tailer import Tailer
from tests.sources.tailing import Received


@pytest.fixture
def received() -> Received:
    """What `make_tailer`'s tailers hand over."""
    return Received()


@pytest.fixture
def make_tailer(received: Received) -> Iterator[Callable[..., Tailer]]:
    """Makes tailers with the given settings, and ends them."""
    stop = threading.Event()
    made: list[Tailer] = []

    def make(**settings: object) -> Tailer:
        tailer = Tailer(stop, received.batches.append, on_note=received.notes.append, **settings)  # type: ignore[arg-type]
        made.append(tailer)
        return tailer

    yield make
    stop.set()
    for tailer in made:
        assert tailer.close()
