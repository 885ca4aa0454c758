"""The first moment is waited for a while, and is nobody's twice; what comes later is delivered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from supervisor.views.tui.shell.feeder import Feeder
from tests.conftest import wait_until


@dataclass(frozen=True)
class Moment:
    revision: int


@dataclass
class Story:
    """Gives a moment after the other, each once it may."""

    may: threading.Event = field(default_factory=threading.Event)
    told: int = 0

    def refresh(self) -> Moment:
        self.may.wait(20)
        self.told += 1
        return Moment(self.told)


@contextmanager
def feeding(story: Story, deliver: Callable[[Moment], object]) -> Iterator[Feeder[Moment]]:
    feeder = Feeder(story, deliver, trouble=lambda _text: None, watch=False)
    try:
        yield feeder
    finally:
        story.may.set()
        feeder.stop()


def test_what_comes_in_time_is_given_and_not_delivered_again() -> None:
    story, delivered = Story(), list[Moment]()
    story.may.set()
    with feeding(story, delivered.append) as feeder:
        assert feeder.start_with_first(20) == Moment(1)
        assert delivered == []
        assert story.told == 1, "the next is read only after the last was taken"
        feeder.taken()
        assert wait_until(lambda: delivered, 20)
        assert delivered[0] == Moment(2)


def test_what_comes_late_is_delivered() -> None:
    story, delivered = Story(), list[Moment]()
    with feeding(story, delivered.append) as feeder:
        assert feeder.start_with_first(0.05) is None
        story.may.set()
        assert wait_until(lambda: delivered, 20)
        assert delivered[0] == Moment(1)


def test_jobs_are_done_by_the_reader_and_their_failure_is_said() -> None:
    done: list[str] = []
    said: list[str] = []

    def broken() -> None:
        raise OSError(28, "no space left on device")

    feeder = Feeder(Story(), deliver=lambda _moment: None, trouble=said.append, watch=False)
    feeder.submit(broken)
    feeder.submit(lambda: done.append(threading.current_thread().name))
    feeder.ask_to_stop()
    feeder.start()
    assert wait_until(lambda: done, 20)
    feeder.stop()
    assert done == ["stoker-view-reader"], "also what was asked right before the end"
    assert "no space left on device" in said[0]
