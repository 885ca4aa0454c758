"""One moment is delivered at a time; requests are done by the thread that reads."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from supervisor.views.tui.shell.feeder import Feeder
from tests.conftest import wait_until


@dataclass(frozen=True)
class Moment:
    revision: int


@dataclass
class Story:
    """Gives a moment after the other."""

    told: int = 0

    def refresh(self) -> Moment:
        self.told += 1
        return Moment(self.told)


def test_the_next_moment_is_read_once_the_last_is_taken() -> None:
    story, delivered = Story(), list[Moment]()
    feeder = Feeder(story.refresh, delivered.append, trouble=lambda _text: None)
    feeder.start()
    assert wait_until(lambda: delivered, 20)
    assert story.told == 1
    feeder.taken()
    assert wait_until(lambda: len(delivered) == 2, 20)
    feeder.stop()
    assert delivered == [Moment(1), Moment(2)]


def test_jobs_are_done_by_the_reader_and_their_failure_is_said() -> None:
    done: list[str] = []
    said: list[str] = []

    def broken() -> None:
        raise OSError(28, "no space left on device")

    feeder = Feeder(Story().refresh, deliver=lambda _moment: None, trouble=said.append)
    feeder.submit(broken)
    feeder.submit(lambda: done.append(threading.current_thread().name))
    feeder.ask_to_stop()
    feeder.start()
    assert wait_until(lambda: done, 20)
    feeder.stop()
    assert done == ["stoker-view-reader"], "also what was asked right before the end"
    assert "no space left on device" in said[0]
