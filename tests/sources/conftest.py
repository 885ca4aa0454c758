"""Fixtures of several unit tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from supervisor.sources.tail.tailer import Tailer
from tests.sources.tailing import Heard


@pytest.fixture
def heard() -> Heard:
    """What `make_tailer`'s tailers hand over."""
    return Heard()


@pytest.fixture
def make_tailer(heard: Heard) -> Iterator[Callable[..., Tailer]]:
    """Makes tailers with the given settings, and ends them."""
    stop = threading.Event()
    made: list[Tailer] = []

    def make(**settings: object) -> Tailer:
        tailer = Tailer(stop, heard.batches.append, on_note=heard.notes.append, **settings)  # type: ignore[arg-type]
        made.append(tailer)
        return tailer

    yield make
    stop.set()
    for tailer in made:
        assert tailer.close()
