"""The keeper's small rules, each at its bounds: set clocks, counters of epochs, who shares a GPU."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.job.batch import BatchSpec
from supervisor.job.spec import EntryKind
from supervisor.keeper.base.background import Background, BackgroundTask, within
from supervisor.keeper.base.keeper_clock import of_others
from supervisor.keeper.monitoring.collector import (
    Sensors,
    Use,
    gpu_values,
    own_values,
)
from supervisor.keeper.recording.start_events import world_size_of
from supervisor.sources.gpu import GpuDevice, GpuNote, GpuNoteCode, GpuProcess, GpuSample
from supervisor.sources.machine import HostSample, ProcessSample
from supervisor.sources.processes import ProcessId
from tests.keeper.fakes import FakeClock, job_of

# -- clocks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ahead_s", "t", "t_mono", "by_s"),
    [
        (0.0, -3.0, None, -3.0),
        (10.0, 7.0, None, -3.0),
        (0.0, -3.0, -3.5, -3.5),
        (0.0, -3.0, -7.9, -7.9),
        (0.0, -3.0, -8.0, -3.0),
        (1.0, -3.0, -50.0, -50.0),
        (0.9, -3.0, -50.0, -3.9),
        (0.0, 0.5, 1.0, 1.0),
        (0.0, 0.5, 1.1, 0.5),
    ],
)
def test_a_time_that_another_process_wrote(
    ahead_s: float, t: float, t_mono: float | None, by_s: float
) -> None:
    clock = FakeClock()
    clock.ahead = ahead_s
    wall, mono = clock.wall(), clock.mono()
    found = of_others(wall + t, clock, None if t_mono is None else mono + t_mono)
    assert found == pytest.approx(wall + by_s)


# -- who shares a GPU, and how many ranks there are -------------------------------------------------------------


def use(*held: int | None, own: int = 1) -> Use:
    mine = tuple(GpuProcess(100 + at, 1 << 30) for at in range(own))
    return Use(3, mine, tuple(GpuProcess(4_194_305 + at, size) for at, size in enumerate(held)))


def test_the_ranks_of_the_whole_job(tmp_path: Path) -> None:
    job = job_of(tmp_path).job
    assert world_size_of(replace(job, batch=BatchSpec(1, 1, 8), world_size=4, nproc_per_node=2)) == 8
    assert world_size_of(replace(job, batch=None, world_size=4, nproc_per_node=2)) == 4
    unknown = replace(job, batch=None, world_size=None, nproc_per_node=2)
    assert world_size_of(unknown) is None, "a command may start any number of its own"
    assert world_size_of(replace(unknown, entry_kind=EntryKind.SCRIPT)) == 2


# -- work beside the loop ---------------------------------------------------------------------------------------


def test_work_in_the_background_is_fetched_once() -> None:
    doing: Background[int] = Background("test")
    assert (doing.busy, doing.working, doing.is_idle(), doing.poll()) == (False, False, True, None)
    go = threading.Event()
    doing.start(lambda: 7 if go.wait(10.0) else 0)
    doing.start(lambda: 8)
    assert (doing.busy, doing.working, doing.is_idle()) == (True, True, False)
    assert doing.poll() is None
    go.set()
    assert doing.poll(10.0) == 7
    assert (doing.busy, doing.poll()) == (False, None)


def test_work_that_fails_or_hangs_gives_nothing() -> None:
    failing: Background[int] = Background("test")
    failing.start(lambda: 1 // 0)
    assert failing.poll(10.0) is None
    assert failing.is_idle()
    assert within(10.0, lambda: 5, "test") == 5
    go = threading.Event()
    assert within(0.01, lambda: go.wait(10.0), "test") is None
    go.set()


def test_a_task_answers_in_the_thread_that_asks_and_raises_what_it_met() -> None:
    here = threading.current_thread()
    where: list[threading.Thread] = []

    def finish(found: int) -> int:
        where.append(threading.current_thread())
        return found + 1

    task = BackgroundTask("test", lambda: 1, finish)
    task.close(10.0)
    assert (task.poll(), task.poll(), where) == (2, 2, [here])

    def refuse() -> int:
        raise OSError("no")

    refused = BackgroundTask("test", refuse, finish)
    refused.close(10.0)
    for _ in range(2):
        with pytest.raises(OSError, match="no"):
            refused.poll()
    failed = BackgroundTask("test", lambda: 1 // 0, finish)
    failed.close(10.0)
    with pytest.raises(OSError, match=r"see keeper\.log"):
        failed.poll()


# -- what is sampled, by the names of the series ------------------------------------------------------------------


def gpu_sample(**values: Any) -> GpuSample:
    return GpuSample(t=1.0, device=GpuDevice(2, "GPU-2", "Fake", 80 << 30), **values)


def test_a_gpus_numbers_by_the_names_of_the_series() -> None:
    found = gpu_values(gpu_sample(util_ratio=0.5, sm_clock_hz=1.98e9, temperature_celsius=70.0, lost=True))
    assert found["sm_clock_mhz"] == 1980.0
    assert (found["util_ratio"], found["temperature_c"], found["lost"]) == (0.5, 70.0, 1.0)
    assert "own_memory_bytes" not in found
    assert gpu_values(gpu_sample())["sm_clock_mhz"] is None
    assert gpu_values(gpu_sample(), use(1 << 30))["others_memory_bytes"] == 1 << 30


def sensors(told: list[Any]) -> Sensors:
    return Sensors(threading.Event(), told.append, FakeClock(), interval_s=60.0, disk="/")


def test_a_machine_without_gpus_is_no_news() -> None:
    told: list[Any] = []
    made = sensors(told)
    made._on_gpu_note(GpuNote(1.0, GpuNoteCode.ABSENT, "no driver"))
    assert told == []
    other = next(code for code in GpuNoteCode if code is not GpuNoteCode.ABSENT)
    made._on_gpu_note(GpuNote(1.0, other, "something", index=0, xid=79))
    made._on_gpu_note(GpuNote(1.0, other, "something"))
    assert [fact.code for fact in told] == [f"{other}_0_79", f"{other}__"]


def test_what_the_keeper_takes_stands_with_the_machine_and_is_no_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []
    made = sensors(told)
    assert made._watched() == {}
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    own = ProcessSample(2.0, "stoker", ProcessId(1, 0.0), alive=True, cpu_ratio=0.1, rss_bytes=48 << 20)
    rank = replace(own, key="0", rss_bytes=1 << 30)
    made._on_host(HostSample(t=2.0, cpu_ratio=0.5), [rank, own])
    assert [one.key for one in told] == ["machine", "0"]
    assert told[0].values["stoker_cpu_ratio"] == 0.025, "a share of all cores, as the machine's own"
    assert told[0].values["stoker_rss_bytes"] == 48 << 20
    assert own_values(None) == own_values(replace(own, alive=False)) == {}
    assert own_values(replace(own, cpu_ratio=None))["stoker_cpu_ratio"] is None
