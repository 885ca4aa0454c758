"""What /proc says of files, helpers and processes: of this very process and of real children."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from supervisor.sources import checkpoint_layouts, kernel_memory, processes
from supervisor.sources.processes import ProcessId, ProcessStat, descendants
from tests.conftest import wait_until


def is_gone(pid: int) -> bool:
    return processes.identify(pid) is None


def me() -> ProcessId:
    found = processes.identify(os.getpid())
    assert found is not None
    return found


# -- files ------------------------------------------------------------------------------------------------


def test_a_file_counts_as_written_while_somebody_has_it_open_for_writing(tmp_path: Path) -> None:
    log, link = tmp_path / "log", tmp_path / "link"
    log.write_text("x")
    link.symlink_to(log)
    assert not processes.any_is_written([str(log)])
    with log.open():
        assert not processes.any_is_written([str(log)]), "a reader writes nothing"
    for mode in ("a", "r+"):
        with log.open(mode):
            assert processes.any_is_written([str(tmp_path / "other"), str(link)])
            assert not processes.any_is_written([str(tmp_path / "other")])
    assert not processes.any_is_written([str(log)])


def test_how_large_a_file_or_a_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one").write_bytes(b"x" * 10)
    (tmp_path / "a" / "b" / "two").write_bytes(b"x" * 5)
    assert checkpoint_layouts.tree_bytes(tmp_path / "a" / "one") == 10
    assert checkpoint_layouts.tree_bytes(tmp_path / "a") == 15
    assert checkpoint_layouts.tree_bytes(tmp_path / "gone") is None
    monkeypatch.setattr(checkpoint_layouts, "MAX_COUNTED", 2)
    assert checkpoint_layouts.tree_bytes(tmp_path / "a") == 15
    monkeypatch.setattr(checkpoint_layouts, "MAX_COUNTED", 1)
    assert checkpoint_layouts.tree_bytes(tmp_path / "a") is None


# -- helpers of ranks -----------------------------------------------------------------------------------------


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """Reads 3 MB, uses some processor time, then waits."""
    code = (
        "import time\n"
        "while time.process_time() < 0.2: pass\n"
        "open('/dev/zero', 'rb').read(3_000_000); print('up', flush=True); time.sleep(60)"
    )
    started = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
    assert started.stdout is not None
    assert started.stdout.readline() == b"up\n"
    yield started
    started.kill()
    started.wait(5)
    started.stdout.close()


def test_helpers_are_a_ranks_children_and_not_the_rank(child: subprocess.Popen[bytes]) -> None:
    rank, helper = me(), processes.identify(child.pid)
    assert helper is not None
    waited_s = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    found_s = processes.helper_cpu_s([rank])
    assert waited_s + 0.15 <= found_s <= waited_s + 5
    assert processes.helper_cpu_s([helper]) == 0.0, "its own time is no helper's"
    assert 0.15 <= processes.own_cpu_s(helper) < 5
    assert processes.own_cpu_s(ProcessId(child.pid, helper.start_time + 1)) == 0.0
    assert processes.own_cpu_s(rank) == pytest.approx(time.process_time(), abs=1.0)


def test_what_ranks_and_their_children_read_and_wrote(child: subprocess.Popen[bytes], tmp_path: Path) -> None:
    rank, helper = me(), processes.identify(child.pid)
    assert helper is not None
    assert processes.io_bytes([helper]) >= 3_000_000
    assert processes.io_bytes([rank]) >= processes.io_bytes([helper])
    before = processes.io_bytes([rank])
    (tmp_path / "out").write_bytes(b"x" * 1_000_000)
    assert processes.io_bytes([rank]) - before >= 1_000_000
    assert processes.io_bytes([ProcessId(child.pid, helper.start_time + 1)]) == 0
    assert processes.io_bytes([]) == 0


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_what_a_rank_sent_over_tcp_counts_once_it_was_acknowledged(
    family: socket.AddressFamily, host: str
) -> None:
    with socket.create_server((host, 0), family=family) as server:
        sender = socket.create_connection(server.getsockname()[:2])
        receiver, _ = server.accept()
        with sender, receiver:
            name = f"socket:[{os.fstat(sender.fileno()).st_ino}]"
            assert name in {at for _, at in processes.open_files(os.getpid())}
            sender.sendall(bytes(100_000))
            # The opening of the connection counts as one byte.
            assert wait_until(lambda: processes._sent_bytes().get(name) == 100_001, 10)
            assert processes.io_bytes([me()]) > 100_000


def test_a_process_that_is_gone_did_nothing() -> None:
    assert processes._ticks(4_194_305) == (0, 0)
    assert processes._io(4_194_305) == 0


# -- processes ------------------------------------------------------------------------------------------------


def test_facts_about_this_very_process(child: subprocess.Popen[bytes]) -> None:
    assert processes.parent_of(child.pid) == os.getpid()
    assert processes.owner_of(child.pid) == os.geteuid()
    assert processes.command_of(child.pid)
    assert processes.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    gone = 4_194_305
    assert (processes.parent_of(gone), processes.owner_of(gone), processes.command_of(gone)) == (None,) * 3
    table = processes.process_table()
    assert table[child.pid].parent == os.getpid()
    assert not table[child.pid].is_dead


def test_a_variable_of_a_process_is_its_value_empty_or_not_known() -> None:
    env = {"STOKER_A": "1=2", "PATH": os.environ["PATH"]}
    with subprocess.Popen(["sleep", "60"], env=env) as sleeper:
        try:
            assert wait_until(lambda: processes.environment_value(sleeper.pid, "STOKER_A") == "1=2", 5.0)
            assert processes.environment_value(sleeper.pid, "STOKER") == ""
            assert processes.environment_value(4_194_305, "STOKER_A") is None
        finally:
            sleeper.kill()
    with subprocess.Popen(["sleep", "60"], env={}) as bare:
        try:
            assert wait_until(lambda: processes.command_of(bare.pid) == "sleep", 5.0)
            assert processes.environment_value(bare.pid, "X") is None, "nothing in it: overwritten, perhaps"
        finally:
            bare.kill()


def test_a_dead_child_is_reaped_with_its_code() -> None:
    for code, expected in (("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)):
        started = subprocess.Popen([sys.executable, "-S", "-c", code])
        stat = processes._read_stat(started.pid)  # also of a zombie: nobody waits for it before `reap_child`
        assert stat is not None
        this = ProcessId(started.pid, stat.start_time)
        assert wait_until(partial(is_gone, this.pid), 10.0)
        assert processes.reap_child(ProcessId(this.pid, this.start_time + 1)) is None
        assert processes.reap_child(this) == expected
        assert processes.reap_child(this) is None, "once"
        started.returncode = expected  # so that Popen waits no more
    assert processes.reap_child(me()) is None


def test_children_of_a_zombie_are_walked_to_and_it_is_not_listed() -> None:
    table = {
        1: ProcessStat("S", 0, 100),
        5: ProcessStat("Z", 1, 200),
        7: ProcessStat("S", 5, 300),
        6: ProcessStat("S", 1, 300),
        8: ProcessStat("X", 6, 300),
        9: ProcessStat("S", 4, 300),
    }
    tick = os.sysconf("SC_CLK_TCK")
    assert [found.pid for found in descendants(ProcessId(1, 100 / tick), table)] == [6, 7]
    assert descendants(ProcessId(1, 101 / tick), table) == []
    assert descendants(ProcessId(3, 1.0), table) == []


# -- the control group and the kernel's log --------------------------------------------------------------------


def group(root: Path, files: dict[str, str]) -> kernel_memory.CgroupMemory | None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return kernel_memory.read_cgroup_memory(7, str(root))


def test_a_group_without_a_limit_and_none_at_all(tmp_path: Path) -> None:
    assert group(tmp_path / "none", {}) is None
    assert group(tmp_path / "empty", {"proc/7/cgroup": "0::/job\n"}) is None
    found = group(
        tmp_path / "two",
        {
            "proc/7/cgroup": "3:cpu,cpuacct:/x\n0::/job/../step\n",
            "sys/fs/cgroup/job/step/memory.current": "50\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
            "sys/fs/cgroup/job/step/memory.events": "oom 1\noom_kill 2\n",
        },
    )
    assert found == kernel_memory.CgroupMemory(version=2, used_bytes=50, limit_bytes=None, oom_kills=2)


def test_what_is_used_is_that_of_the_tightest_group_without_cached_files(tmp_path: Path) -> None:
    files = {
        "proc/7/cgroup": "0::/job/step\n",
        "sys/fs/cgroup/job/step/memory.current": "50\n",
        "sys/fs/cgroup/job/step/memory.max": "900\n",
        "sys/fs/cgroup/job/memory.current": "700\n",
        "sys/fs/cgroup/job/memory.max": "800\n",
        "sys/fs/cgroup/job/memory.stat": "anon 100\ninactive_file 600\n",
    }
    assert group(tmp_path / "a", files) == kernel_memory.CgroupMemory(2, 100, 800, None)
    files["sys/fs/cgroup/job/memory.stat"] = "inactive_file 701\n"
    assert group(tmp_path / "b", files) == kernel_memory.CgroupMemory(2, 0, 800, None), "read at two moments"
    old = {
        "proc/7/cgroup": "5:memory:/job\n",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "9\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "10\n",
        "sys/fs/cgroup/memory/job/memory.stat": "inactive_file 1\ntotal_inactive_file 5\n",
    }
    assert group(tmp_path / "c", old) == kernel_memory.CgroupMemory(1, 4, 10, None)


def test_version_one_counts_where_memory_is_its_own(tmp_path: Path) -> None:
    files = {
        "proc/7/cgroup": "5:cpu,memory:/job\n0::/job\n",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "9\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{1 << 60}\n",
        "sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\noom_kill x\n",
        "sys/fs/cgroup/job/memory.current": "1\n",
    }
    assert group(tmp_path / "a", files) == kernel_memory.CgroupMemory(1, 9, None, None)
    files["sys/fs/cgroup/memory/job/memory.limit_in_bytes"] = f"{(1 << 60) - 1}\n"
    assert group(tmp_path / "b", files) == kernel_memory.CgroupMemory(1, 9, (1 << 60) - 1, None)
    only_listed = {"proc/7/cgroup": files["proc/7/cgroup"], "sys/fs/cgroup/job/memory.current": "1\n"}
    assert group(tmp_path / "c", only_listed) == kernel_memory.CgroupMemory(2, 1, None, None)


def test_a_kernel_log_is_read_to_its_end(tmp_path: Path) -> None:
    record = b"3,900,5000000,-;Out of memory: Killed process 4711 (python3)\n"
    (tmp_path / "kmsg").write_bytes(record)
    path = str(tmp_path / "kmsg")
    assert kernel_memory.oom_kills({4711}, since_s=5.0, path=path).startswith(
        "Out of memory: Killed process 4711"
    )
    assert kernel_memory.oom_kills({4711}, since_s=5.001, path=path) == ""
    assert kernel_memory.about(b"3,900,5000000;Killed process 4711", {4711}, 1.0) == "Killed process 4711"
    assert kernel_memory.about(b"3,5000000;Killed process 4711", {4711}, 1.0) is None
