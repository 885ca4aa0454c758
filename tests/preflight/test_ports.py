"""Ports: a free one outside the ephemeral range, and who holds a taken one."""

from __future__ import annotations

import pytest

from supervisor.job.errors import JobError
from supervisor.preflight import network


def test_a_free_port_lies_outside_the_ephemeral_range() -> None:
    low, high = network._range_outside_ephemeral()
    port = network.free_port()
    assert low <= port <= high
    assert network.is_free(port)


def test_where_no_port_is_free_it_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr(network, "is_free", tried.append)
    with pytest.raises(JobError, match=r"no free port among 3 of .*--master-port") as refused:
        network.free_port(tries=3)
    assert len(set(tried)) == 3
    assert refused.value.exit_code == 3
