"""A rank that fails is told as soon as its process shows it; an error that was printed alone tells nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.keeper.monitoring.observations import EvidenceLine, StepSeen
from supervisor.keeper.monitoring.rank_failures import FRESH_S, RankFailures
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.records import FailureClass
from supervisor.sources.processes import ProcessId, catches, identify
from tests.conftest import wait_until
from tests.keeper.fakes import FakeClock

# Its interpreter takes its time to shut down, as torch's does.
RANK = """
import sys, time
class Last:
    def __del__(self, sleep=time.sleep): sleep(60)
last = Last()
sys.stdin.read()
"""


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", RANK], stdin=subprocess.PIPE)
    assert wait_until(lambda: catches(process.pid, signal.SIGINT), 20), "it is up"
    yield process
    process.kill()
    process.communicate()


def process_of(rank: subprocess.Popen[bytes]) -> ProcessId:
    found = identify(rank.pid)
    assert found is not None
    return found


def hit(t: float, rank: int | None = 1, text: str = "ValueError: bad") -> EvidenceLine:
    return EvidenceLine(t, FailureClass.CODE_ERROR, "cause", rank, "t/1/stderr.log", 4, text)


def step(t: float, rank: int | None = None) -> StepSeen:
    return StepSeen(t=t, rank=rank, values={"step": 1.0}, from_telemetry=False)


def view_of(**exits: int | None) -> st.AttemptState:
    ranks = {1: st.RankState(local_rank=1, rank=1)}
    for name, code in exits.items():
        local = int(name.removeprefix("r"))
        ranks[local] = st.RankState(local_rank=local, rank=local, exited=True, exit_code=code)
    return st.AttemptState(number=1, planned_t=0.0, ranks=ranks)


def ticking(clock: FakeClock, look: Callable[[], ev.RankFailing | None]) -> ev.RankFailing | None:
    found: list[ev.RankFailing] = []

    def tick() -> bool:
        clock.now += 0.01
        told = look()
        found.extend([told] if told is not None else [])
        return told is not None

    assert wait_until(tick, 20)
    return found[0]


def test_an_error_and_then_the_shutdown_of_its_interpreter(rank: subprocess.Popen[bytes]) -> None:
    clock = FakeClock()
    failures = RankFailures(clock)
    ranks = {1: process_of(rank)}
    assert failures.look(view_of(), ranks) is None
    failures.observe(hit(clock.wall()))
    assert failures.is_urgent
    clock.now += 1.0
    assert failures.look(view_of(), ranks) is None, "it printed an error, and lives"
    failures.observe(hit(clock.wall()))
    assert rank.stdin is not None
    rank.stdin.close()
    told = ticking(clock, lambda: failures.look(view_of(), ranks))
    assert told is not None
    assert (told.local_rank, told.rank, told.sign) == (1, 1, ev.FailureSign.EXITING)
    assert (told.text, told.path, told.line) == ("ValueError: bad", "t/1/stderr.log", 4)
    assert rank.poll() is None, "told before its process was gone"


def test_a_shutdown_without_an_error_of_late_is_an_end_like_any_other(rank: subprocess.Popen[bytes]) -> None:
    clock = FakeClock()
    failures = RankFailures(clock)
    ranks = {1: process_of(rank)}
    assert failures.look(view_of(), ranks) is None
    failures.observe(hit(clock.wall()))
    clock.now += FRESH_S + 1
    failures.observe(hit(clock.wall(), rank=0))  # another rank's
    failures.observe(step(clock.wall() + 1, rank=0))  # and that was dealt with
    assert rank.stdin is not None
    rank.stdin.close()
    for _ in range(30):
        clock.now += 0.1
        assert failures.look(view_of(), ranks) is None


@pytest.mark.parametrize(
    ("code", "wrote", "fails"),
    [(1, False, True), (-9, False, True), (0, True, False), (None, False, False), (None, True, True)],
)
def test_the_end_of_a_process_by_its_code_or_by_what_it_wrote(
    code: int | None, wrote: bool, fails: bool
) -> None:
    clock = FakeClock()
    failures = RankFailures(clock)
    if wrote:
        failures.observe(hit(clock.wall()))
    told = failures.look(view_of(r1=code), {1: ProcessId(2**22 + 1, 0.0)})
    assert (told is not None) is fails
    if told is not None:
        assert (told.sign, told.exit_code, bool(told.text)) == (ev.FailureSign.GONE, code, wrote)


def test_of_several_the_one_whose_error_came_first_and_only_once() -> None:
    clock = FakeClock()
    failures = RankFailures(clock)
    failures.observe(hit(clock.wall(), rank=1, text="the cause"))
    failures.observe(hit(clock.wall() + 0.1, rank=0, text="Connection closed by peer"))
    view, ranks = view_of(r0=1, r1=1), {n: ProcessId(2**22 + 1 + n, 0.0) for n in (0, 1)}
    told = failures.look(view, ranks)
    assert told is not None
    assert (told.local_rank, told.text) == (1, "the cause")
    assert (
        failures.look(st.AttemptState(number=1, planned_t=0.0, ranks=view.ranks, failing=told), ranks) is None
    )


@pytest.mark.parametrize(
    ("above", "tells"),
    [
        ("", True),
        ("step 3 loss: 1.5\n", True),
        ("Exception ignored in: <function Loader.__del__ at 0x7f>\n", False),
        ("--- Logging error ---\n", False),
        ("[rank1]: Exception in thread Thread-3 (upload):\n", False),
    ],
)
def test_an_error_that_python_itself_ignores_explains_no_end(
    rank: subprocess.Popen[bytes], tmp_path: Path, above: str, tells: bool
) -> None:
    log = tmp_path / "stderr.log"
    log.write_text(f'{above}Traceback (most recent call last):\n  File "a.py", line 3\nValueError: bad\n')
    clock = FakeClock()
    failures = RankFailures(clock, lambda _name: log)
    ranks = {1: process_of(rank)}
    assert failures.look(view_of(), ranks) is None
    failures.observe(hit(clock.wall()))
    assert rank.stdin is not None
    rank.stdin.close()
    assert wait_until(lambda: catches(rank.pid, signal.SIGINT) is False, 20)
    assert failures.look(view_of(), ranks, done=True) is None, (
        "after the last step every interpreter shuts down"
    )
    assert (failures.look(view_of(), ranks) is not None) is tells
