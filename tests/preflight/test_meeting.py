"""Where ranks of several nodes meet: each way in which that fails has a line of its own."""

from __future__ import annotations

import errno
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.job.spec import EntryKind, JobSpec
from supervisor.preflight import network
from supervisor.preflight.context import CheckContext, note, warn
from supervisor.preflight.meeting import Failed, Way, check_meeting, why_not
from supervisor.preflight.network import check_master, free_port
from supervisor.run.records import Finding, FindingLevel

OTHER = "127.0.0.9"  # answers here, and is no address that this machine says it has
NO_NAME = "x" * 64  # too long for a name of the Internet: no server is asked
JOB = JobSpec("job", EntryKind.SCRIPT, "train.py", nnodes="2", node_rank=1, master_addr=OTHER)


def meet(job: JobSpec) -> list[Finding]:
    return list(check_meeting(CheckContext(job, Path("/tmp"), {})))


@contextmanager
def server(says: bytes, address: str = OTHER) -> Iterator[int]:
    """Something that listens, and speaks first if it has something to say."""
    with socket.create_server((address, 0)) as listening:
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
        [found] = meet(replace(JOB, master_port=port))
    assert (found.check, found.level) == ("meeting", FindingLevel.OK)
    assert re.fullmatch(rf"{OTHER}:{port} answers within \d{{1,4}} ms", found.what)
    with server(b"") as port:
        assert why_not(OTHER, port) is None


@pytest.mark.fault(
    "nodes",
    "another service holds the port where ranks meet",
    "`check --deep` shows what answers there, instead of minutes of silence",
)
def test_a_service_that_is_no_store_is_named() -> None:
    with server(b"SSH-2.0-OpenSSH_9.2\r\n") as port:
        [found] = meet(replace(JOB, master_port=port))
    what = f"{OTHER}:{port} answers, and is no store of PyTorch: it says 'SSH-2.0-OpenSSH_9.2'"
    assert found == warn("meeting", what, "name another port: ranks would wait there in silence")


def test_a_node_is_asked_only_for_what_another_machine_serves() -> None:
    with server(b"", "127.0.0.1") as port:
        endpoint = replace(JOB, master_addr=None, torchrun_flags=(f"--rdzv-endpoint=127.0.0.1:{port}",))
        [found] = meet(endpoint)
        assert meet(replace(JOB, master_addr="127.0.0.1", master_port=port)) == [], "it serves this itself"
        for none in (
            replace(endpoint, nnodes="1"),
            replace(endpoint, entry_kind=EntryKind.COMMAND),
            replace(JOB, master_addr=None),
            replace(endpoint, torchrun_flags=("--rdzv-endpoint=localhost:x",)),
            replace(JOB, master_addr=NO_NAME),
        ):
            assert meet(none) == []
    fix = "unless that is this very job on another node, name another port"
    assert found == warn("meeting", f"something listens at 127.0.0.1:{port} already", fix)


FIREWALL = (
    f"open the port in the firewall of {OTHER}, or name the address that it has on the nodes' own network"
)
LATER = "start node 0 first to see more; if it runs, its port is another one, or a firewall rejects this"
TYPO = "look for a typo in the address, and whether this machine is on the same network"
PLACE = f"{OTHER}:29500"


@pytest.mark.parametrize(
    ("error", "way", "what", "fix"),
    [
        (TimeoutError(), Way.DROPPED, f"no answer from {PLACE} within 4 s: what is sent there is dropped", FIREWALL),
        (OSError(errno.EHOSTUNREACH, "No route to host"), Way.UNREACHABLE, f"{PLACE} cannot be reached: No route to host", TYPO),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), Way.UNREACHABLE, f"{PLACE} cannot be reached: Network is unreachable", TYPO),
        (OSError(errno.EPERM, "Operation not permitted"), Way.OTHER, f"{PLACE}: Operation not permitted", "see the address, and this machine's network"),
        (OSError("odd"), Way.OTHER, f"{PLACE}: odd", "see the address, and this machine's network"),
    ],
)  # fmt: skip
def test_each_way_in_which_a_connection_fails_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, error: OSError, way: Way, what: str, fix: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(socket, "create_connection", fail)
    assert meet(JOB) == [warn("meeting", what, fix)]
    assert why_not(OTHER, 29500) == Failed(way, what, fix)


def test_a_refused_port_is_no_fault_yet_and_an_unknown_name_has_no_address() -> None:
    port = free_port()
    what = f"{OTHER} is there and refuses {OTHER}:{port}: nothing listens there yet"
    assert meet(replace(JOB, master_port=port)) == [note("meeting", what, LATER)]
    assert why_not(OTHER, port) == Failed(Way.REFUSED, what, LATER)
    named = why_not("localhost", port)
    assert named is not None
    assert re.search(rf" refuses localhost:{port} \((127\.0\.0\.1|::1)\): nothing", named.what)
    unknown = f"no machine is known by the name {NO_NAME}"
    assert why_not(NO_NAME, port) == Failed(Way.UNKNOWN_NAME, unknown, "look for a typo, or name its address")


def test_a_name_server_that_does_not_answer_is_waited_for_only_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_a, **_k: over.wait(10) and [])
    monkeypatch.setattr(network, "RESOLVE_S", 0.01)
    asked = CheckContext(replace(JOB, master_addr="far"), Path("/tmp"), {})
    try:
        found, [named], met = why_not("far", 1), check_master(asked), meet(asked.spec)
    finally:
        over.set()
    what = "far was not resolved within"
    assert found == Failed(Way.UNKNOWN_NAME, f"{what} 3 s", "look for a typo, or name its address")
    fix = "name an address instead; a name server does not answer"
    assert named == warn("rendezvous", f"{what} 0 s", fix)
    assert met == [], "the check of the name has said it"
