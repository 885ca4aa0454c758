"""Every test runs in a machine of its own and leaves it clean.

The environment is stripped of what the developer's shell holds, state goes to a temporary folder, and a
token in the environment of all child processes finds those that a test left behind: a leaked process or
thread fails the test that leaked it. The token is the test's own, and the temporary folder is the xdist worker's
own (with the cache of compiled signatures in it), so that tests which run at the same time see nothing of each other.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import pynvml
import pytest
from hypothesis import HealthCheck, settings

from supervisor.sources.signature_files import Engine, load_engine
from tests.fakes.nvml import STATE, StandIn, build

T = TypeVar("T")
TOKEN = "STOKER_TEST_TOKEN"
STRIPPED = ("STOKER_", "SLURM_", "PET_", "TORCHELASTIC_", "NCCL_", "WANDB_")
LEAK_DEADLINE_S = 5.0

# Tests wait more than they compute, so two a core; beyond 8 the children that they start are too many for one machine.
WORKERS_PER_CORE, MOST_WORKERS = 2, 8

# torch's threads wait for each other by spinning. Where several tests share two cores, two threads each doubled the
# processor time of a small training (13.4 s against 7.5 s) and made it many times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A machine that is busy for 0.2 s is no counterexample, and draws that take long on it are no fault of the strategy. In CI
# hypothesis takes its own profile, which looks at neither.
settings.register_profile(
    "default", settings.get_profile("default"), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` comes to."""
    return min(WORKERS_PER_CORE * len(os.sched_getaffinity(0)), MOST_WORKERS)


@pytest.fixture(scope="session", autouse=True)
def children_hear_signals() -> None:
    """What a shell's background job (SIGINT) or nohup (SIGHUP) ignores, all that the tests start would ignore too.

    A handler that does nothing ignores it here alone: exec gives children the default.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)


@pytest.fixture(autouse=True)
def clean_machine(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No settings of the developer reach a test, and nothing of a test reaches the developer."""
    for name in list(os.environ):
        if name.startswith(STRIPPED) or name in {
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "MASTER_ADDR",
            "MASTER_PORT",
            # The size of a terminal that is not there: pytest imports readline, which sets both for its children, so
            # for xdist's workers, and an app in a real terminal of 300 columns believed them.
            "COLUMNS",
            "LINES",
        }:
            monkeypatch.delenv(name)
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if os.environ.get(name, "").lower().startswith("zh"):
            monkeypatch.setenv(name, "C.UTF-8")  # what a person reads is compared in English
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for kind in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(home / kind.lower()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv(TOKEN, uuid.uuid4().hex)


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Signatures and matcher, compiled once a worker: that takes two seconds."""
    return load_engine(str(tmp_path_factory.getbasetemp() / "cache" / "stoker"))


@pytest.fixture(scope="session")
def nvml_libraries(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """The stand-in for NVML, compiled once a worker; of an old driver, where asked."""

    @cache
    def built(old_driver: bool) -> Path:
        library = build(tmp_path_factory.mktemp("nvml"), old_driver=old_driver)
        if library is None:
            pytest.skip("no C compiler")
        return library

    return built


@pytest.fixture
def nvml(
    tmp_path: Path,
    nvml_libraries: Callable[[bool], Path],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> StandIn:
    """Cards that a test describes, behind the real pynvml. ``old driver`` as the parameter: one before 535."""
    folder = tmp_path / "nvml"
    folder.mkdir()
    # A copy is another library to the linker: what it remembers is of this test alone.
    library = shutil.copy(nvml_libraries(getattr(request, "param", "") == "old driver"), folder)
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    stand_in = StandIn(folder)
    monkeypatch.setenv(STATE, stand_in.env[STATE])
    return stand_in


@pytest.fixture(autouse=True)
def no_leaks(clean_machine: None) -> Iterator[None]:
    """Fail a test that leaves a process or a thread behind; end what it left."""
    del clean_machine
    token = os.environ[TOKEN]
    threads_before = set(threading.enumerate())
    yield
    leaked_threads = wait_until(lambda: not _new_threads(threads_before), LEAK_DEADLINE_S)
    left = [] if wait_until(lambda: not processes_with(token), LEAK_DEADLINE_S) else processes_with(token)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    assert leaked_threads, f"threads left behind: {_new_threads(threads_before)}"
    assert not left, f"processes left behind: {left}"


def _new_threads(before: set[threading.Thread]) -> list[str]:
    # hypothesis and pytest-timeout keep threads of their own, all of them daemons.
    return [t.name for t in threading.enumerate() if t not in before and t.is_alive() and not t.daemon]


def processes_with(token: str) -> list[int]:
    """Living processes other than this one whose environment holds the token."""
    wanted = f"{TOKEN}={token}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            if wanted in Path(f"/proc/{entry}/environ").read_bytes() and not _is_zombie(entry):
                found.append(int(entry))
        except OSError:
            continue
    return found


def _is_zombie(pid: str) -> bool:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"


def not_none(found: T | None) -> T:
    """What must be there."""
    assert found is not None
    return found


def wait_until(condition: Callable[[], object], deadline_s: float, poll_s: float = 0.02) -> bool:
    """True as soon as `condition` holds, False when it did not within the deadline."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(poll_s)
    return True
