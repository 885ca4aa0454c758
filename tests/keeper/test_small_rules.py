"""Work beside the keeper's loop, and what its sensors sample."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import Any

import pytest

from supervisor.keeper.base.background import Background, within
from supervisor.keeper.monitoring.collector import (
    Sensors,
    own_values,
)
from supervisor.sources.gpu import GpuNote, GpuNoteCode
from supervisor.sources.machine import HostSample, ProcessSample
from supervisor.sources.processes import ProcessId
from tests.keeper.fakes import FakeClock


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


# -- what is sampled, by the names of the series ------------------------------------------------------------------


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
    assert [fact.event.code for fact in told] == [f"{other}_0_79", f"{other}__"]


def test_what_the_keeper_takes_stands_with_the_machine_and_is_no_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []
    made = sensors(told)
    assert made._processes == {}
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    own = ProcessSample(2.0, "stoker", ProcessId(1, 0.0), alive=True, cpu_ratio=0.1, rss_bytes=48 << 20)
    rank = replace(own, key="0", rss_bytes=1 << 30)
    made._on_host(HostSample(t=2.0, cpu_ratio=0.5), [rank, own])
    assert [one.key for one in told] == ["machine", "0"]
    assert told[0].values["stoker_cpu_ratio"] == 0.025, "a share of all cores, as the machine's own"
    assert told[0].values["stoker_rss_bytes"] == 48 << 20
    assert own_values(None) == own_values(replace(own, alive=False)) == {}
    assert own_values(replace(own, cpu_ratio=None))["stoker_cpu_ratio"] is None
