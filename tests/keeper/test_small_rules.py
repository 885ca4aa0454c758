"""Work beside the keeper's loop, and what its sensors sample."""

from __future__ import annotations

import json
import os
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replace_fields

from supervisor import __version__
from supervisor.job.spec import EntryKind
from supervisor.keeper.base.background import Background, within
from supervisor.keeper.base.ledger import Ledger, RunContext, opening, world_size_of
from supervisor.keeper.monitoring import collector
from supervisor.keeper.monitoring.collector import Sensors, gpu_values, machine_values, own_values
from supervisor.keeper.monitoring.observations import (
    Observation,
    Reported,
    Sampled,
    StepSeen,
    advice,
    from_telemetry,
    is_telemetry,
)
from supervisor.run import events as ev
from supervisor.run.events import Phase
from supervisor.run.paths import RunPaths
from supervisor.run.records import Finding, FindingLevel
from supervisor.sources.gpu import GpuDevice, GpuNote, GpuNoteCode, GpuProcess, GpuSample
from supervisor.sources.kernel_memory import CgroupMemory
from supervisor.sources.machine import DiskFill, HostSample, LinkRate, ProcessSample
from supervisor.sources.processes import ProcessId, boot_id
from tests.keeper.fakes import BATCH, FakeClock, job_of


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
    doing.start(lambda: 9)
    assert doing.poll(10.0) == 9


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
    assert told[0].event.text == "something"


GPU = GpuDevice(3, "GPU-a", "H100", 80 << 30)
GPU_READING = GpuSample(
    t=1.0, device=GPU, util_ratio=0.5, memory_util_ratio=0.25, memory_used_bytes=1 << 30, memory_total_bytes=80 << 30,
    temperature_celsius=61.0, power_watts=300.0, power_limit_watts=700.0, sm_clock_hz=1.98e9, throttle=(), ecc_uncorrected=2,
)  # fmt: skip
GPU_VALUES: dict[str, float | None] = {
    "util_ratio": 0.5, "memory_util_ratio": 0.25, "memory_used_bytes": 1 << 30, "memory_total_bytes": 80 << 30,
    "temperature_c": 61.0, "power_w": 300.0, "power_limit_w": 700.0, "sm_clock_mhz": 1980.0, "throttle": 0,
    "ecc_uncorrected": 2, "lost": 0.0,
}  # fmt: skip


def test_a_gpu_is_named_once_and_who_shares_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "pids_are_the_drivers", lambda: True)
    told: list[Any] = []
    made, t = sensors(told), FakeClock().wall()
    made._on_gpus([replace(GPU_READING, t=t)])
    named = ev.GpuFound(t=t, index=3, uuid="GPU-a", name="H100", memory_total_bytes=80 << 30)
    sampled = Sampled(t, "gpu", "3", GPU_VALUES)
    assert told == [Reported(named), sampled]
    made.watch("0", ProcessId(4_000_001, 0.0))
    told.clear()
    users = (GpuProcess(4_000_001, 1 << 30), GpuProcess(4_000_002, 256 << 20), GpuProcess(4_000_003, 1 << 20))
    made._on_gpus([replace(GPU_READING, t=t, processes=users)])
    use = {"own_memory_bytes": 1 << 30, "others_memory_bytes": 257 << 20, "others_pid": 4_000_002.0}
    text = "GPU 3 is shared: process 4000002 holds 0.2 GiB of its memory; 1 more"
    assert told == [Sampled(t, "gpu", "3", {**GPU_VALUES, **use}), advice(t, "gpu_shared_3", text)]
    told.clear()
    made._on_gpus([replace(GPU_READING, t=t, processes=(users[0], GpuProcess(4_000_002, (256 << 20) - 1)))])
    assert [type(one) for one in told] == [Sampled]
    lost = gpu_values(GpuSample(t=1.0, device=GPU, lost=True))
    assert lost == dict.fromkeys(GPU_VALUES) | {"lost": 1.0}


def test_the_machine_is_sampled_with_its_disk_its_shared_memory_and_its_limits() -> None:
    names = ("cpu_ratio", "memory_used_bytes", "memory_total_bytes", "load1", "shm_used_ratio", "disk_used_ratio",
             "disk_free_bytes", "cgroup_used_bytes", "cgroup_limit_bytes", "cgroup_oom_kills")  # fmt: skip
    assert machine_values(HostSample(t=1.0)) == dict.fromkeys(names)
    full = HostSample(
        t=1.0, cpu_ratio=0.5, load_1m=3.0, memory_used_bytes=4, memory_total_bytes=8, links=(LinkRate("eth0", 7.0, 9.0),),
        cgroup=CgroupMemory(2, used_bytes=1, limit_bytes=2, oom_kills=3), disks=(DiskFill("/dev/shm", 10, 9), DiskFill("/runs", 10, 5)),
    )  # fmt: skip
    values = dict(zip(names, (0.5, 4, 8, 3.0, 1 - 9 / 10, 0.5, 5, 1, 2, 3), strict=True))
    assert machine_values(full) == {**values, "net_rx_bytes_per_s.eth0": 7.0, "net_tx_bytes_per_s.eth0": 9.0}


T = FakeClock().wall() - 1.0
STEPPING, EVALUATING = (
    ev.PhaseChanged(t=T, attempt=0, phase=each) for each in (Phase.STEPPING, Phase.EVALUATING)
)
READY = ev.TrainerReady(t=T, attempt=0, memory_base_bytes=64)
SAVED = ev.CheckpointCommitted(t=T, attempt=0, step=4, path="/c/4", final=True)
WIRE: list[tuple[dict[str, object], list[Observation]]] = [
    ({"kind": "step", "step": 7, "loss": 1.5, "memory_cap_bytes": 9, "memory_limit_bytes": 9},
     [StepSeen(T, 2, {"loss": 1.5, "step": 7.0}, from_telemetry=True)]),
    ({"kind": "step", "loss": 1.5}, [StepSeen(T, 2, {"loss": 1.5}, from_telemetry=True)]),
    ({"kind": "phase", "phase": "evaluating", "step": 4}, [Reported(replace_fields(EVALUATING, step=4), 2)]),
    ({"kind": "phase", "phase": "stepping", "memory_base_bytes": 64, "resumed_step": 12},
     [Reported(STEPPING, 2), Reported(replace_fields(READY, resumed_step=12), 2)]),
    ({"kind": "phase", "phase": "stepping", "memory_base_bytes": 64}, [Reported(STEPPING, 2), Reported(READY, 2)]),
    ({"kind": "phase", "phase": "dreaming"}, []),
    ({"kind": "checkpoint_committed", "step": 4, "path": "/c/4", "final": True}, [Reported(SAVED, 2)]),
    ({"kind": "checkpoint_committed", "step": 4}, []),
    ({"kind": "checkpoint_committed", "path": "/c/4"}, []),
    ({"kind": "warning", "code": "slow", "text": "it is slow"}, [advice(T, "slow", "it is slow", 2)]),
    ({"kind": "warning", "text": 50 * "x"}, [advice(T, 40 * "x", 50 * "x", 2)]),
    ({"kind": "warning", "code": "memory_cap", "text": "capped"}, []),
    ({"kind": "warning", "code": "slow"}, []),
    ({"kind": "exit", "step": 9, "reason": "done"}, []),
]  # fmt: skip


@pytest.mark.parametrize(("record", "seen"), WIRE)
def test_a_line_of_telemetry_is_what_it_tells(record: dict[str, object], seen: list[Observation]) -> None:
    line = json.dumps({"v": 1, "t_wall": T, "t_mono": FakeClock().mono() - 1.0, "rank": 2, **record})
    assert list(from_telemetry(line.encode(), rank=2, clock=FakeClock())) == seen


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


def test_what_shows_that_a_trainer_sends_telemetry() -> None:
    """Such a trainer is asked to stop through its file first."""
    step = StepSeen(T, 2, {"step": 1.0}, from_telemetry=True)
    others: list[Observation] = [
        replace(step, from_telemetry=False),
        advice(T, "slow", "it is slow"),
        Sampled(T, "gpu", "0", {}),
    ]
    shown = map(is_telemetry, [step, Reported(STEPPING, 2), Reported(SAVED, 2), *others])
    assert list(shown) == [True] * 3 + [False] * 3


@pytest.mark.parametrize(
    ("changes", "ranks"),
    [
        ({"batch": BATCH, "nproc_per_node": 8}, 2),
        ({"batch": replace(BATCH, ranks_known=False), "world_size": 6}, 6),
        ({"nproc_per_node": 8, "nnodes": "2"}, 16),
        ({"nproc_per_node": 8, "nnodes": "2:4"}, 8),
        ({"entry_kind": EntryKind.COMMAND, "entry": "bash"}, None),
        ({"entry_kind": EntryKind.COMMAND, "entry": "python3"}, 1),
    ],
)
def test_how_many_ranks_a_job_has(tmp_path: Path, changes: dict[str, Any], ranks: int | None) -> None:
    assert world_size_of(job_of(tmp_path, **{"entry_kind": EntryKind.SCRIPT, **changes}).job) == ranks


def test_a_keepers_first_events_say_who_runs_what(tmp_path: Path) -> None:
    record, run = (
        job_of(tmp_path, interactive=True, total_steps=9, world_size=6),
        RunPaths(tmp_path / "run-1"),
    )
    me, finding = ProcessId(7, 1.5), Finding(FindingLevel.WARNING, "gpu", "hot", "cool it")
    env = {"SLURM_JOB_ID": "77"}

    def told(*findings: Finding, by: str = "") -> list[ev.Event]:
        ledger = Ledger(run.node())
        try:
            context = RunContext(run, run.node(), record, env, FakeClock(), ledger)
            facts = list(opening(context, me, findings, continued_by=by))
            for fact in facts:
                ledger.emit(fact)
            return facts
        finally:
            ledger.close()

    run.node().root.mkdir(parents=True)
    t = FakeClock().wall()
    began = ev.RunStarted(
        t=t, run_id="run-1", name="job", mode="launched", host="box", total_steps=9, world_size=6
    )
    keeper = ev.KeeperStarted(
        t=t, pid=7, start_time=1.5, boot_id=boot_id(), slurm_job="77", version=__version__, interactive=True
    )
    assert told(finding) == [began, keeper, ev.PreflightFound(t=t, finding=finding)]
    adopted = replace_fields(keeper, adopted=True, host=socket.gethostname(), continued_by="kim")
    assert told(by="kim") == [adopted]
