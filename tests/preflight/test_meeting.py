"""Where ranks of several nodes meet: each way in which that fails has a line of its own."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.job.spec import EntryKind, JobSpec
from supervisor.preflight.context import CheckContext
from supervisor.preflight.meeting import check_meeting
from supervisor.preflight.network import free_port
from supervisor.run.records import FindingLevel

OTHER = "127.0.0.9"  # answers here, and is no address that this machine says it has
JOB = JobSpec("job", EntryKind.SCRIPT, "train.py", nnodes="2", node_rank=1, master_addr=OTHER)


def meet(job: JobSpec) -> list[tuple[FindingLevel, str]]:
    context = CheckContext(job, Path("/tmp"), dict(os.environ))
    return [(found.level, found.what) for found in check_meeting(context) if found.check == "meeting"]


@contextmanager
def server(says: bytes) -> Iterator[int]:
    """Something that listens, and speaks first if it has something to say."""
    with socket.create_server((OTHER, 0)) as listening:
        over = threading.Event()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                if says:
                    connection.sendall(says)
                over.wait(10)

        thread = threading.Thread(target=serve, name="server")
        thread.start()
        yield int(listening.getsockname()[1])
        over.set()
        thread.join(10)


def test_a_store_that_answers_is_said() -> None:
    with server(b"") as port:
        [(level, what)] = meet(replace(JOB, master_port=port))
    assert level is FindingLevel.OK
    assert what.startswith(f"{OTHER}:{port} answers within ")


@pytest.mark.fault(
    "nodes",
    "another service holds the port where ranks meet",
    "`check --deep` shows what answers there, instead of minutes of silence",
)
def test_a_service_that_is_no_store_is_named() -> None:
    with server(b"SSH-2.0-OpenSSH_9.2\r\n") as port:
        [(level, what)] = meet(replace(JOB, master_port=port))
    assert level is FindingLevel.WARNING
    assert what == f"{OTHER}:{port} answers, and is no store of PyTorch: it says 'SSH-2.0-OpenSSH_9.2'"


def test_a_refused_port_and_a_dropped_one_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    [(level, what)] = meet(replace(JOB, master_port=port))
    assert (level, what) == (
        FindingLevel.INFO,
        f"{OTHER} is there and refuses {OTHER}:{port}: nothing listens there yet",
    )

    def failing(error: OSError) -> None:
        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(socket, "create_connection", fail)

    failing(TimeoutError())
    [(level, what)] = meet(JOB)
    assert (level, what) == (
        FindingLevel.WARNING,
        f"no answer from {OTHER}:29500 within 4 s: what is sent there is dropped",
    )
    failing(OSError(errno.EHOSTUNREACH, "No route to host"))
    [(level, what)] = meet(JOB)
    assert what == f"{OTHER}:29500 cannot be reached: No route to host"
