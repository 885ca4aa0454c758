"""A task answers once it is done, whatever was found, and tells the same to everybody who asks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from supervisor.keeper.base.background import BackgroundTask
from tests.conftest import wait_until


def done(work: Callable[[], object], answers: list[object]) -> BackgroundTask[object, str]:
    def finish(found: object) -> str:
        answers.append(found)
        return f"found {found}"

    task = BackgroundTask("stoker-test", work, finish)
    assert wait_until(lambda: not task.working, 10)
    return task


@pytest.mark.parametrize("found", [None, 0, "stacks"])
def test_the_answer_is_made_once_for_all_who_ask(found: object) -> None:
    answers: list[object] = []
    task = done(lambda: found, answers)
    assert [task.poll(), task.poll()] == [f"found {found}"] * 2
    assert answers == [found]


def test_what_could_not_be_done_is_told_at_every_call() -> None:
    def work() -> object:
        raise PermissionError("not yours")

    task = done(work, [])
    for _ in range(2):
        with pytest.raises(PermissionError, match="not yours"):
            task.poll()


def test_a_fault_of_ours_is_an_answer_too(caplog: pytest.LogCaptureFixture) -> None:
    def work() -> object:
        raise ValueError("a bug")

    task = done(work, [])
    with pytest.raises(OSError, match=r"see keeper\.log"):
        task.poll()
    assert "a bug" in caplog.text
