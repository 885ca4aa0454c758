"""Who uses a GPU is told apart by ancestry, and not at all where pids are those of another namespace."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from supervisor.keeper.monitoring import collector
from supervisor.keeper.monitoring.collector import OtherGpuUsers, Use
from supervisor.sources.gpu import GpuDevice, GpuProcess, GpuSample
from tests.conftest import not_none
from tests.fakes.nvml import GIB

INIT = 1  # a process that is nobody's child here


def sample(*processes: GpuProcess, throttle: tuple[str, ...] | None = None) -> GpuSample:
    device = GpuDevice(0, "GPU-0", "Fake", 80 * GIB)
    return GpuSample(t=1.0, device=device, processes=processes, throttle=throttle)


@pytest.fixture(autouse=True)
def _same_pids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "pids_are_the_drivers", lambda: True)


def test_children_of_ours_are_ours_and_others_are_named() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        reading = sample(GpuProcess(child.pid, 40 * GIB), GpuProcess(INIT, 5 * GIB))
        use = not_none(OtherGpuUsers().use(reading, {os.getpid()}))
        child.communicate(b"\n")
    assert [process.pid for process in use.own] == [child.pid]
    assert use.values() == {"own_memory_bytes": 40 * GIB, "others_memory_bytes": 5 * GIB, "others_pid": INIT}
    said = not_none(use.advice())
    assert said.startswith("GPU 0 is shared: process 1 (")
    assert said.endswith("holds 5.0 GiB of its memory")


def test_a_rank_that_was_orphaned_stays_ours() -> None:
    told = OtherGpuUsers()
    reading = sample(GpuProcess(INIT, GIB))
    assert not_none(told.use(reading, {INIT})).own == reading.processes
    assert not_none(told.use(reading, set())).own == reading.processes


def test_nothing_is_said_where_pids_mean_nothing_or_nobody_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Use(0, (GpuProcess(7, GIB),), (GpuProcess(8, 1 << 20),))
    assert small.advice() is None
    assert Use(0, (), (GpuProcess(8, 9 * GIB),)).advice() is None, "a GPU that the run does not use"
    unknown = Use(0, (GpuProcess(7, None),), (GpuProcess(8, GIB),))
    assert unknown.values()["own_memory_bytes"] is None
    monkeypatch.setattr(collector, "pids_are_the_drivers", lambda: False)
    assert OtherGpuUsers().use(sample(GpuProcess(INIT, GIB)), set()) is None
