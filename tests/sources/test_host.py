"""The machine and its processes as numbers, from the real /proc and from made-up ones."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from supervisor.keeper.monitoring.collector import machine_values
from supervisor.sources.kernel_memory import CgroupMemory, memory_kills, read_cgroup_memory
from supervisor.sources.machine import (
    DiskFill,
    HostReader,
    HostSample,
    HostSampler,
    LinkRate,
    LinkReader,
    ProcessReader,
    ProcessSample,
)
from supervisor.sources.processes import identify, read_proc, send_signal
from supervisor.sources.stacks.python_stacks import Stack, StackSource, collect_stacks
from tests.conftest import not_none, wait_until

T = TypeVar("T")
BURN = "import threading; b = bytearray(64 << 20); threading.Event().wait(60) if 0 else [None for _ in iter(int, 1)]"
WAIT = "import threading; open('/proc/self/comm', 'w').write('a (b) c'); print('up', flush=True); threading.Event().wait(60)"


@pytest.fixture
def waiter() -> object:
    child = subprocess.Popen([sys.executable, "-S", "-c", WAIT], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    assert wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_SLEEPING, 5)
    yield child
    child.kill()
    child.wait(5)
    child.stdout.close()


def taken(samples: list[T], read: Callable[[], T]) -> T:
    samples.append(read())
    return samples[-1]


def write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return str(root)


@pytest.mark.serial
def test_a_busy_process_and_its_end() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", BURN])
    try:
        known = not_none(identify(child.pid))
        reader = ProcessReader("0", known)
        assert reader.read().cpu_ratio is None
        samples: list[ProcessSample] = []
        process, last_s, reported_s = psutil.Process(child.pid), time.monotonic(), 0.0
        before_s = sum(process.cpu_times()[:2])

        def half_a_second_was_told() -> bool:
            # On a loaded machine it gets a small share of a core: the share must be right, not large.
            nonlocal last_s, reported_s
            ratio, now_s = taken(samples, reader.read).cpu_ratio or 0.0, time.monotonic()
            reported_s, last_s = reported_s + ratio * (now_s - last_s), now_s
            return reported_s > 0.5

        assert wait_until(half_a_second_was_told, 60, 0.2)
        assert reported_s == pytest.approx(sum(process.cpu_times()[:2]) - before_s, rel=0.3, abs=0.2)
        assert samples[-1].rss_bytes is not None
        assert wait_until(lambda: (reader.read().rss_bytes or 0) > 60 << 20, 10)
        assert samples[-1].threads == 1
        assert samples[-1].values()["cpu_ratio"] == samples[-1].cpu_ratio
        child.kill()
        assert wait_until(lambda: not reader.read().alive, 5)
        gone = reader.read()
        assert (gone.cpu_ratio, gone.rss_bytes) == (None, None)
    finally:
        child.kill()
        child.wait(5)


def test_cgroup_v2_takes_the_tightest_limit_on_the_way_up(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../job/step\n",
            "sys/fs/cgroup/job/memory.current": "900\n",
            "sys/fs/cgroup/job/memory.max": "1000\n",
            "sys/fs/cgroup/job/step/memory.current": "700\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
            "sys/fs/cgroup/job/step/memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 0\n",
        },
    )
    found = not_none(read_cgroup_memory(root=root))
    assert (found.version, found.used_bytes, found.limit_bytes, found.oom_kills) == (2, 900, 1000, 2), (
        "what is used of the limit is used in the group that has it"
    )


@pytest.mark.parametrize(
    ("files", "used", "limit"),
    [
        # Pages of files that the kernel gives up first are not held; there are never less than none.
        ({"job/step/memory.stat": "anon 1\ninactive_file 300\nactive_file 9\n"}, 400, None),
        ({"job/step/memory.stat": "inactive_file 800\n"}, 0, None),
        # Of equal limits the nearest counts, else the lowest.
        ({"job/step/memory.max": "1000\n", "job/memory.max": "1000\n"}, 700, 1000),
        ({"job/step/memory.max": "1001\n", "job/memory.max": "1000\n"}, 900, 1000),
        ({"job/step/memory.max": "999\n", "job/memory.max": "1000\n"}, 700, 999),
        ({}, 700, None),
    ],
)
def test_what_is_used_of_a_groups_memory(
    tmp_path: Path, files: dict[str, str], used: int, limit: int | None
) -> None:
    folders = {"job/memory.current": "900\n", "job/step/memory.current": "700\n", **files}
    held = {f"sys/fs/cgroup/{name}": text for name, text in folders.items()}
    found = not_none(read_cgroup_memory(root=write(tmp_path, {"proc/self/cgroup": "0::/job/step\n", **held})))
    assert (found.used_bytes, found.limit_bytes, found.oom_kills) == (used, limit, None)


V1 = {
    "memory.usage_in_bytes": "500\n",
    "memory.limit_in_bytes": "9223372036854771712\n",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
}


@pytest.mark.parametrize(
    ("listing", "files", "read"),
    [
        ("4:memory:/docker/abc\n0::/\n", {f"memory/{name}": text for name, text in V1.items()}, CgroupMemory(1, 500, None, 1)),
        (
            "5:cpu,cpuacct:/x\n4:hugetlb,memory:/job\n",
            {**{f"memory/job/{name}": text for name, text in V1.items()}, "memory/job/memory.limit_in_bytes": "900\n", "memory/job/memory.stat": "inactive_file 9\ntotal_inactive_file 100\n"},
            CgroupMemory(1, 400, 900, 1),
        ),
        # Hybrid: version 1 counts no memory.
        ("4:memory:/job\n0::/job\n", {"job/memory.current": "7\n"}, CgroupMemory(2, 7, None, None)),
        ("4:memory:/job\n", {"job/memory.current": "7\n"}, None),
        ("3:cpu:/job\n", {"memory/job/memory.usage_in_bytes": "7\n"}, None),
        ("0::/job\n", {}, None),
    ],
)  # fmt: skip
def test_cgroups_of_version_1_and_of_both(
    tmp_path: Path, listing: str, files: dict[str, str], read: CgroupMemory | None
) -> None:
    held = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    root = write(tmp_path, {"proc/77/cgroup": listing, **held})
    assert read_cgroup_memory(77, root=root) == read


def test_our_own_group_is_read_by_default() -> None:
    ours = read_cgroup_memory(os.getpid(), "/")
    assert memory_kills() == (None if ours is None else ours.oom_kills)
    assert (read_cgroup_memory() is None) == (ours is None)


def test_a_process_is_read_while_it_lives(
    waiter: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    known, real = not_none(identify(waiter.pid)), psutil.Process(waiter.pid)
    clock, used = iter([100.0, 104.0, 106.0]), iter([(1.0, 0.5), (6.0, 1.5), (6.0, 1.5)])
    monkeypatch.setattr("supervisor.sources.machine.time.monotonic", lambda: next(clock))
    times = namedtuple("times", ("user", "system"))  # noqa: PYI024 - stands in for psutil's own

    def cpu_times(_: psutil.Process) -> object:
        return times(*next(used))

    vars(cpu_times).update(cache_activate=lambda _: None, cache_deactivate=lambda _: None)
    monkeypatch.setattr(psutil.Process, "cpu_times", cpu_times)
    reader = ProcessReader("3", known)
    first, second, third = reader.read(), reader.read(), reader.read()
    assert [each.cpu_ratio for each in (first, second, third)] == [None, 1.5, 0.0]
    assert first.t == pytest.approx(time.time(), abs=60)
    counters = real.io_counters()
    assert first == ProcessSample(
        t=first.t,
        key="3",
        process=known,
        alive=True,
        rss_bytes=real.memory_info().rss,
        threads=1,
        read_bytes=counters.read_bytes,
        write_bytes=counters.write_bytes,
    )
    assert second.values() == {
        "cpu_ratio": 1.5,
        "rss_bytes": first.rss_bytes,
        "threads": 1,
        "read_bytes": first.read_bytes,
        "write_bytes": first.write_bytes,
    }
    monkeypatch.undo()
    waiter.kill()
    assert wait_until(lambda: not reader.read().alive, 5)
    gone = reader.read()
    assert gone == ProcessSample(t=gone.t, key="3", process=known, alive=False)


@pytest.mark.parametrize(
    ("later", "ratio"),
    [
        ({"user": 40.0, "idle": 130.0, "iowait": 30.0, "guest": 90.0}, 0.3),
        ({"user": 20.0, "idle": 80.0, "iowait": 9.0}, 1.0),  # the kernel's iowait may fall
        ({"user": 9.0, "idle": 100.0}, 0.0),
        ({}, None),
    ],
)
def test_the_machine_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: dict[str, float], ratio: float | None
) -> None:
    first = {"user": 10.0, "idle": 80.0, "iowait": 10.0, "guest": 5.0}
    times = namedtuple("times", tuple(first))  # type: ignore[misc]  # noqa: PYI024
    reader = HostReader(disks=(str(tmp_path), str(tmp_path / "none")))
    monkeypatch.setattr(psutil, "cpu_times", lambda: times(**first))
    assert reader.read().cpu_ratio is None
    monkeypatch.setattr(psutil, "cpu_times", lambda: times(**first | later))
    sample, memory = reader.read(), psutil.virtual_memory()
    assert sample.cpu_ratio == (None if ratio is None else pytest.approx(ratio))
    assert sample.t == pytest.approx(time.time(), abs=60)
    assert sample.load_1m == pytest.approx(os.getloadavg()[0], abs=5)
    assert sample.memory_total_bytes == memory.total
    assert sample.memory_used_bytes == pytest.approx(memory.total - memory.available, rel=0.3)
    (disk,) = sample.disks
    assert (disk.path, disk.total_bytes) == (str(tmp_path), psutil.disk_usage(str(tmp_path)).total)
    assert DiskFill("/x", 200, 50).used_ratio == 0.75
    assert DiskFill("/x", 0, 0).used_ratio == 0.0


def test_ranks_are_sampled_for_as_long_as_they_are_the_same_processes(
    waiter: subprocess.Popen[bytes],
) -> None:
    ours, child = not_none(identify(os.getpid())), not_none(identify(waiter.pid))
    rounds = iter([{"0": ours, "1": child}, {"1": ours, "0": ours}, {}])
    told: list[tuple[HostSample, list[ProcessSample]]] = []
    sampler = HostSampler(
        threading.Event(), lambda: next(rounds), lambda *got: told.append(got), disks=(), interval_s=1.5
    )
    assert [sampler.sample() for _ in range(3)] == [1.5, 1.5, 1.5]
    ranks = [[(each.key, each.process, each.cpu_ratio is None) for each in samples] for _, samples in told]
    assert ranks == [[("0", ours, True), ("1", child, True)], [("1", ours, True), ("0", ours, False)], []]
    assert [host.disks for host, _ in told] == [(), (), ()]


def test_stacks_by_py_spy_and_its_refusals(waiter: subprocess.Popen[bytes], tmp_path: Path) -> None:
    known = not_none(identify(waiter.pid))
    fake = tmp_path / "py-spy"

    def says(script: str) -> str:
        fake.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        fake.chmod(0o755)
        return str(fake)

    (stack,) = collect_stacks(
        [known],
        py_spy=says(r"for last; do :; done; printf 'Process %s\n  \033[31mstep\033[0m (t.py:3)\n' $last"),
    )
    # Not every kernel shows it.
    call = (read_proc(f"/proc/{waiter.pid}/syscall", 64) or b"").partition(b" ")[0].decode().strip() or None
    lines = (f"Process {waiter.pid}", "  step (t.py:3)")
    assert stack == Stack(known, StackSource.PY_SPY, lines, main_call=call, for_ever=stack.for_ever)
    (stack,) = collect_stacks([known], py_spy=says("echo 'Permission Denied: no ptrace' >&2; exit 1"))
    assert stack.source is StackSource.PROC
    assert stack.note == "py-spy: Permission Denied: no ptrace"
    (line,) = stack.lines
    told = rf"thread {waiter.pid} 'a \(b\) c': state S, waits in (-|[a-z]\w+), system call {call or '-'}"
    assert re.fullmatch(told, line)
    (stack,) = collect_stacks([known], py_spy=says("exit 3"))
    assert stack.note == "py-spy ended with 3"
    (stack,) = collect_stacks([known], py_spy=says("exit 0"))
    assert stack.note == "py-spy ended with 0"
    (stack,) = collect_stacks([known], py_spy=says("exec sleep 60"), timeout_s=0.2)
    assert (stack.source, stack.note) == (StackSource.PROC, "py-spy did not answer in time")
    (stack,) = collect_stacks([known], py_spy=str(tmp_path / "none"))
    assert (stack.source, stack.note) == (StackSource.PROC, "py-spy could not be started")
    assert send_signal(known, signal.SIGKILL)
    assert wait_until(lambda: identify(known.pid) is None, 5)
    (stack,) = collect_stacks([known])
    assert stack == Stack(known, StackSource.NONE, (), "the process is gone")


def test_links_are_told_by_what_the_kernel_and_an_rdma_port_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters, other, unreadable = (
        tmp_path / device / "ports" / port / "counters"
        for device, port in (("mlx5_0", "1"), ("mlx5_1", "2"), ("mlx5_2", "1"))
    )
    for folder, text in ((counters, "0\n"), (other, "3\n"), (unreadable, "N/A\n")):
        folder.mkdir(parents=True)
        (folder / "port_rcv_data").write_text(text)
        (folder / "port_xmit_data").write_text(text)
    nic = namedtuple("nic", ("bytes_recv", "bytes_sent"))  # noqa: PYI024 - stands in for psutil's own
    now = 100.0

    def at(moment: float, rdma_words: int, **links: tuple[int, int]) -> tuple[LinkRate, ...]:
        nonlocal now
        now = moment
        (counters / "port_rcv_data").write_text(f"{rdma_words}\n")
        monkeypatch.setattr(
            psutil, "net_io_counters", lambda pernic: {n: nic(*c) for n, c in links.items() if pernic}
        )
        return reader.read()

    monkeypatch.setattr("supervisor.sources.machine.time.monotonic", lambda: now)
    reader = LinkReader(tmp_path)
    assert at(100.0, 1000, eth0=(1000, 10), lo=(5, 5), idle=(0, 0), veth12=(9, 9)) == ()
    assert at(102.0, 5000, eth0=(3000, 30), lo=(5, 5), veth12=(99, 99)) == (
        LinkRate("mlx5_0", 8000.0, 0.0),
        LinkRate("eth0", 1000.0, 10.0),
        LinkRate("mlx5_1/2", 0.0, 0.0),
        LinkRate("lo", 0.0, 0.0),
    )
    # A driver that was loaded again counts from 0: no rate, rather than a wrong one.
    rdma = (LinkRate("mlx5_0", 0.0, 0.0), LinkRate("mlx5_1/2", 0.0, 0.0))
    assert at(103.0, 5000, eth0=(10, 0)) == rdma
    assert at(104.0, 5000, eth0=(20, 40)) == (rdma[0], LinkRate("eth0", 10.0, 40.0), rdma[1])
    assert at(105.0, 5000, eth0=(30, 0)) == rdma
    many = {f"eth{n}": (1000 + n, 0) for n in range(12)}
    at(106.0, 5000, **many)
    assert [rate.name for rate in at(107.0, 5000, **many)] == [
        "mlx5_0",
        *(f"eth{n}" for n in range(11, 4, -1)),
    ]
    sample = HostSample(t=1.0, links=(LinkRate("eth0.7", 1000.0, 10.0),))
    assert machine_values(sample).items() >= {
        ("net_rx_bytes_per_s.eth0.7", 1000.0),
        ("net_tx_bytes_per_s.eth0.7", 10.0),
    }
