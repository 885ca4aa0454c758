"""Ports: a free one outside the ephemeral range, and who holds a taken one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from supervisor.job.errors import JobError
from supervisor.preflight import network
from tests.preflight.test_real_faults import ROOT, in_namespace


def test_a_free_port_lies_outside_the_ephemeral_range() -> None:
    low, high = network._range_outside_ephemeral()
    port = network.free_port()
    assert low <= port <= high
    assert network.is_free(port)
    assert network.port_holder(port) is None


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, ""), (socket.AF_INET6, "::1")]
)
def test_a_port_where_anything_listens_is_not_free(family: socket.AddressFamily, address: str) -> None:
    try:
        server = socket.create_server((address, 0), family=family)
    except OSError as error:
        pytest.skip(f"no address of this kind here: {error}")
    with server:
        port = server.getsockname()[1]
        assert not network.is_free(port)
        with socket.create_connection(server.getsockname()[:2]) as client:
            server.accept()[0].close()
            assert client.recv(1) == b""
    assert network.is_free(port), "the connection that was closed here first still lingers"


@pytest.mark.parametrize(
    ("given", "tried"),
    [("32768 60999", "20768-32767"), ("10000 60999", "1024-9999"), ("2048 60999", "20768-32767")],
)
def test_ports_are_tried_below_those_of_clients(given: str, tried: str) -> None:
    script = f"echo {given} > /proc/sys/net/ipv4/ip_local_port_range"
    code = "from supervisor.preflight import network; network.is_free = lambda _: False; network.free_port()"
    done = subprocess.run(
        [*in_namespace(script), sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "unshare:" in done.stderr or "ip_local_port_range" in done.stderr:
        pytest.skip(f"no namespace of our own here: {done.stderr.strip()}")
    message = f"no free port among 10 of {tried}: name one with --master-port"
    assert done.stderr.splitlines()[-1].endswith(message)


def test_where_no_port_is_free_it_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr(network, "is_free", tried.append)
    with pytest.raises(JobError, match=r"no free port among 3 of .*--master-port") as refused:
        network.free_port(tries=3)
    assert len(set(tried)) == 3
    assert refused.value.exit_code == 3
