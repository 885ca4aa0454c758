"""Processes by pid and start time: identity, signals, ends, files, helpers, what they wait for."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.sources import processes
from supervisor.sources.processes import (
    ExitWatch,
    ProcessId,
    descendants,
    exit_code_of,
    identify,
    is_alive,
    read_environ,
    send_signal,
)
from supervisor.sources.stacks import python_stacks as module
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


def test_what_the_kernel_tells_of_a_process(sleeper: subprocess.Popen[bytes]) -> None:
    pid, known, ours = sleeper.pid, not_none(identify(sleeper.pid)), not_none(identify(os.getpid()))
    assert wait_until(lambda: processes.command_of(pid) == "sleep", 5)
    assert (processes.owner_of(pid), processes.parent_of(pid)) == (os.getuid(), os.getpid())
    assert processes.read_cmdline(known) == ["sleep", "60"]
    assert processes.process_table()[pid].parent == os.getpid()
    assert known in descendants(ours)
    assert processes.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    environ = read_environ(known)
    assert (environ["RANK"], environ["EMPTY"], environ == {**os.environ, **environ}) == ("3", "", True)
    values = [processes.environment_value(pid, name) for name in ("RANK", "EMPTY", "RAN")]
    assert values == ["3", "", ""]
    assert processes.catches(os.getpid(), signal.SIGINT) is True, "as every Python"
    assert processes.catches(pid, signal.SIGINT) is False
    assert not processes.is_stopped(pid)
    assert not processes.is_uninterruptible(known)
    assert send_signal(known, signal.SIGSTOP)
    assert wait_until(lambda: processes.is_stopped(pid), 5)
    assert processes.reap_child(known) is None, "it lives"
    sleeper.kill()
    assert wait_until(lambda: not is_alive(known), 5)
    assert processes.reap_child(ProcessId(pid, known.start_time - 1.0)) is None
    assert processes.reap_child(known) == -signal.SIGKILL
    assert processes.reap_child(known) is None
    assert [processes.command_of(pid), processes.owner_of(pid), processes.parent_of(pid)] == [None] * 3
    assert (processes.read_cmdline(known), processes.environment_value(pid, "RANK")) == ([], None)
    assert processes.catches(pid, signal.SIGINT) is None
    assert list(processes.open_files(pid)) == []


def test_orphans_of_a_subreaper_come_to_it() -> None:
    code = (
        "import os, subprocess; from supervisor.sources.processes import become_subreaper, parent_of\n"
        "print(become_subreaper())\n"
        "pid = int(subprocess.check_output(['sh', '-c', 'sleep 60 > /dev/null & echo $!']))\n"
        "print(parent_of(pid) == os.getpid()); os.kill(pid, 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_ports_that_a_process_listens_on(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as server:
        try:
            server.bind((address, 0))
        except OSError:
            pytest.skip(f"this machine has no {address}")
        port, name = server.getsockname()[1], os.readlink(f"/proc/self/fd/{server.fileno()}")
        assert not [found for found in processes.listening_sockets(os.getpid()) if found[1] == port]
        server.listen()
        (found,) = [found for found in processes.listening_sockets(os.getpid()) if found[1] == port]
    hex_address = "0100007F" if family == socket.AF_INET else "00000000000000000000000001000000"
    assert found == (hex_address, port, name)


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


WAITS = "import sys; sys.stdin.read(); "


@contextmanager
def child(code: str) -> Iterator[tuple[subprocess.Popen[bytes], ProcessId]]:
    """A process that waits for its input's end; nobody looks how it ended while the block runs."""
    process = subprocess.Popen([sys.executable, "-c", WAITS + code], stdin=subprocess.PIPE)
    try:
        known = not_none(identify(process.pid))
        yield process, known
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("code", "expected"),
    [("", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)],
)
def test_an_end_comes_with_its_code(code: str, expected: int) -> None:
    seen: queue.SimpleQueue[tuple[int, int | None]] = queue.SimpleQueue()
    watch = ExitWatch(lambda name, exit_code: seen.put((name, exit_code)))
    try:
        with child(code) as (process, known):
            watch.watch(7, known)
            watch.watch(7, known)  # once is enough
            assert exit_code_of(known) is None, "it lives"
            assert process.stdin is not None
            process.stdin.close()
            assert seen.get(timeout=20) == (7, expected)
            assert exit_code_of(known) == expected, "a zombie keeps it"
        assert exit_code_of(known) is None, "its parent has it now"
        assert seen.empty()
    finally:
        watch.close()


def me() -> ProcessId:
    return not_none(processes.identify(os.getpid()))


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


# -- helpers of ranks -----------------------------------------------------------------------------------------


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
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


def test_what_ranks_and_their_children_read_and_wrote(
    worker: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    rank, helper = me(), processes.identify(worker.pid)
    assert helper is not None
    assert processes.io_bytes([helper]) >= 3_000_000
    assert processes.io_bytes([rank]) >= processes.io_bytes([helper])
    before = processes.io_bytes([rank])
    (tmp_path / "out").write_bytes(b"x" * 1_000_000)
    assert processes.io_bytes([rank]) - before >= 1_000_000
    assert processes.io_bytes([ProcessId(worker.pid, helper.start_time + 1)]) == 0
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


# -- processes ------------------------------------------------------------------------------------------------


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


FUTEX = module._FUTEX.get(os.uname().machine, "202")


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        (f"{FUTEX} 0x7f 0x189 0x0 0x0 0x0 0xff 0x7f 0x7f", True),
        (f"{FUTEX} 0x7f 0x189 0x0 0x7ffe 0x0 0xff 0x7f 0x7f", False),
        (f"{FUTEX} 0x7f 0x189 0x0 0x0", True),
        (f"{FUTEX} 0x7f 0x189 0x0", None),
        ("1 0x7f 0x189 0x0 0x0 0x0", None),
        ("running", None),
        ("", None),
    ],
)
def test_a_lock_without_a_limit(monkeypatch: pytest.MonkeyPatch, call: str, waits: bool | None) -> None:
    monkeypatch.setitem(module._FUTEX, os.uname().machine, FUTEX)
    monkeypatch.setattr(module, "_read", lambda _path: call)
    assert module._waits_for_ever(1) is waits
    assert module._main_call(1) == (call.split(" ")[0] or None)
