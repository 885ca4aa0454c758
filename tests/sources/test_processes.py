"""Processes are known by pid and start time, and nothing else is ever signalled."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from supervisor.sources.processes import (
    ProcessId,
    descendants,
    identify,
    is_alive,
    read_environ,
    send_signal,
)
from tests.conftest import not_none, wait_until


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "60"], env={**os.environ, "RANK": "3", "EMPTY": ""})
    yield child
    child.kill()
    child.wait(5)


def test_a_process_is_identified_until_it_ends(sleeper: subprocess.Popen[bytes]) -> None:
    known = not_none(identify(sleeper.pid))
    assert known.pid == sleeper.pid
    assert known == identify(sleeper.pid)
    assert is_alive(known)
    sleeper.kill()
    # Not waited for: it is a zombie, which counts as dead.
    assert wait_until(lambda: not is_alive(known), 5)
    assert identify(sleeper.pid) is None
    sleeper.wait(5)
    assert identify(sleeper.pid) is None


@pytest.mark.fault("processes", "a pid is reused", "it counts as another process")
def test_a_recycled_pid_is_not_the_process(sleeper: subprocess.Popen[bytes]) -> None:
    known = not_none(identify(sleeper.pid))
    other = ProcessId(known.pid, known.start_time - 1.0)
    assert not is_alive(other)
    assert not send_signal(other, signal.SIGKILL)
    assert descendants(other) == []
    assert read_environ(other) == {}
    assert sleeper.poll() is None


def test_signals_reach_the_living_only(sleeper: subprocess.Popen[bytes]) -> None:
    known = not_none(identify(sleeper.pid))
    assert send_signal(known, signal.SIGTERM)
    assert sleeper.wait(5) == -signal.SIGTERM
    assert not send_signal(known, signal.SIGTERM)
    assert not send_signal(ProcessId(2**22 + 1, 1.0), signal.SIGTERM)


@pytest.mark.fault("processes", "a kernel without pidfd", "the identity is checked before each signal")
def test_without_pidfd_the_identity_is_still_checked(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_pid: int) -> int:
        raise OSError(38, "Function not implemented")

    known = not_none(identify(sleeper.pid))
    monkeypatch.setattr(os, "pidfd_open", refused)
    assert not send_signal(ProcessId(known.pid, known.start_time + 5), signal.SIGKILL)
    assert send_signal(known, signal.SIGKILL)
    assert sleeper.wait(5) == -signal.SIGKILL
