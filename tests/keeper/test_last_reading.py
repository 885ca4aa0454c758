"""How long the logs of processes that are gone are read on: while somebody still writes them, within bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from supervisor.keeper.monitoring import log_monitor as last_reading
from supervisor.keeper.monitoring.log_monitor import QUIET_S, WRITTEN_S, LastReading
from tests.conftest import wait_until
from tests.keeper.fakes import FakeClock


@dataclass
class Logs:
    """Logs of which a test says how large they are."""

    size_bytes: int = 100
    finished: bool = False
    paths: tuple[str, ...] = ("a.log",)

    def backlog(self) -> SimpleNamespace:
        return SimpleNamespace(size_bytes=self.size_bytes)

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What each look for writers finds: the last again and again. An item is taken off with each look before."""
    answers = [True]

    def is_written(paths: tuple[str, ...]) -> bool:
        assert paths == ("a.log",)
        return answers.pop(0) if len(answers) > 1 else answers[0]

    monkeypatch.setattr(last_reading, "any_is_written", is_written)
    return answers


def reading(logs: Logs, clock: FakeClock) -> LastReading:
    return LastReading(cast("Any", logs), clock)


def searched(of: LastReading) -> Callable[[], bool]:
    """Look until the search for writers that was begun is over and read."""

    def done() -> bool:
        of.look()
        return of._is_open is not None and of._search.is_idle()

    return done


@pytest.mark.fault(
    "logs and load",
    "a process outlives the job and continues writing",
    "its output is read until it is quiet",
)
def test_a_writer_is_waited_for_until_it_falls_quiet(looks: list[bool]) -> None:
    logs, clock = Logs(), FakeClock()
    last = reading(logs, clock)
    assert wait_until(searched(last), 5)
    clock.now += QUIET_S - 0.1
    assert not last.look()
    logs.size_bytes += 1
    assert not last.look()
    clock.now += QUIET_S - 0.1
    assert not last.look(), "it wrote again"
    clock.now += 0.2
    assert wait_until(last.look, 5)


def test_a_writer_that_goes_on_and_on_is_waited_for_a_minute(looks: list[bool]) -> None:
    logs, clock = Logs(), FakeClock()
    last = reading(logs, clock)
    assert wait_until(searched(last), 5)
    while last.took_s + 1.0 < WRITTEN_S:
        clock.now += 1.0
        logs.size_bytes += 1
        assert not last.look()
    clock.now += 1.0
    logs.size_bytes += 1
    assert last.look()
