"""What /proc says of files, helpers and processes: of this very process and of real children."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.sources import processes
from supervisor.sources.processes import ProcessId
from tests.conftest import not_none, wait_until


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
