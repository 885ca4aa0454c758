"""Ports: a free one outside the ephemeral range, and who holds a taken one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.job.errors import JobError
from supervisor.preflight import network


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        yield server.getsockname()[1]


def test_a_port_that_somebody_listens_on_is_not_free(taken: int) -> None:
    assert not network.is_free(taken)
    holder = network.port_holder(taken)
    assert holder is not None
    assert holder.endswith(f"(pid {os.getpid()})")


def test_a_free_port_lies_outside_the_ephemeral_range() -> None:
    low, high = network._range_outside_ephemeral()
    port = network.free_port()
    assert low <= port <= high
    assert network.is_free(port)


@pytest.mark.parametrize(
    ("text", "range_"),
    [
        ("32768 60999", (20_000, 32_000)),
        ("30000 60999", (20_000, 29_999)),
        ("21001 60999", (20_000, 21_000)),
        ("21000 60999", (13_000, 20_999)),
        ("9023 60999", (1024, 9022)),
        ("2049 60999", (1024, 2048)),
        ("2048 60999", (20_000, 32_000)),
        ("", (20_000, 32_000)),
        ("many", (20_000, 32_000)),
    ],
)
def test_the_candidates_lie_below_the_kernels_own_range(
    monkeypatch: pytest.MonkeyPatch, text: str, range_: tuple[int, int]
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_args, **_more: text)
    assert network._range_outside_ephemeral() == range_


def test_where_no_port_is_free_it_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr(network, "is_free", tried.append)
    with pytest.raises(JobError, match=r"no free port among 3 of .*--master-port") as refused:
        network.free_port(tries=3)
    assert len(set(tried)) == 3
    assert refused.value.exit_code == 3
