"""Hosts as people write them, and what is said where they differ."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from supervisor.cluster.ssh.connection import Connections
from supervisor.cluster.ssh.hosts import (
    BadHosts,
    Host,
    hosts_in,
    hosts_of_file,
    place_of,
    processes_of,
    variables_in,
)
from supervisor.cluster.ssh.messages import Do, Facts, Request, differences


def test_hosts_of_a_line_and_of_a_file() -> None:
    assert hosts_in("a:4,me@b.lan:4") == (Host("a", 4), Host("me@b.lan", 4))
    assert hosts_in("a,[fe80::1]") == (Host("a"), Host("[fe80::1]"))
    text = "# ours\na:2 NCCL_SOCKET_IFNAME=eth0 X=a=b\n\nb slots=2  # as Open MPI and DeepSpeed have it\n"
    first, second = hosts_of_file("hosts", text)
    assert (first.processes, first.env) == (2, (("NCCL_SOCKET_IFNAME", "eth0"), ("X", "a=b")))
    assert second == Host("b", 2)
    assert "eth0" not in repr(first)  # a variable may be a secret


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "1 hosts, 2 to 64 are meant: on one machine it is `stoker run`"),
        ("a,,b", "'' is no host"),
        ("-oProxyCommand=x,b", "is no host"),
        ("a;reboot,b", "'a;reboot' is no host"),
        ("a:0,b", "at least one process"),
        ("a:1,a:1", "a stands there twice"),
        (",".join(f"n{number}" for number in range(65)), "use a scheduler"),
    ],
)
def test_what_are_no_hosts(text: str, said: str) -> None:
    with pytest.raises(BadHosts) as error:
        hosts_in(text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:1\nb gpus\n", "hosts:2: 'gpus': slots=N or KEY=VALUE"),
        ("a\nb slots=x\n", "hosts:2: 'b:x' is no host"),
        ("", "hosts: 0 hosts"),
    ],
)
def test_a_bad_file_is_told_with_its_line(text: str, said: str) -> None:
    with pytest.raises(BadHosts) as error:
        hosts_of_file("hosts", text)
    assert said in str(error.value)


def test_all_hosts_have_as_many_processes() -> None:
    assert processes_of(hosts_in("a:2,b:2")) == 2
    assert processes_of(hosts_in("a,b")) is None
    with pytest.raises(BadHosts, match="a 2, b says none"):
        processes_of(hosts_in("a:2,b"))
    assert variables_in(["A=b=c", "D="]) == (("A", "b=c"), ("D", ""))
    with pytest.raises(BadHosts) as error:
        variables_in(["1A=hunter2"])
    assert "hunter2" not in str(error.value)


def test_a_host_has_its_place_as_a_scheduler_would_tell_it() -> None:
    place = place_of(hosts_in("me@a:2,b:2"), 1, "10.0.0.1")
    assert (place.node_rank, place.nodes, place.master, place.name) == (1, 2, "10.0.0.1", "b")


def test_differences_name_what_and_where() -> None:
    first = Facts(stoker="1", python="3.11.7", torch="2.8.0", code={"a.py": "1", "b.toml": "2"})
    other = Facts(stoker="1", python="3.11.7", torch="2.7.1", code={"a.py": "9", "c.py": "2"})
    assert differences([("a", first), ("b", first)]) == []
    assert differences([("a", first), ("b", other)]) == [
        "torch: a 2.8.0, b 2.7.1",
        "code: a.py is another on b than on a",
        "code: b.toml is missing on b",
        "code: c.py is missing on a",
    ]


def test_connections_end_when_nobody_reads_what_they_bring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\ntouch {tmp_path}/began-$$\nexec sleep 30\n", encoding="utf-8")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def check() -> None:
        if len(list(tmp_path.glob("began-*"))) == 2:
            raise BrokenPipeError

    ways = Connections(hosts_in("a,b"), ["stoker"])

    def follow(node: int, _: Host) -> None:
        ways.lines(node, Request(do=Do.LOGS, folder="/", run_dir="/", node=node), lambda _: None)

    begun = time.monotonic()
    with pytest.raises(BrokenPipeError):
        ways.each(follow, check=check)
    assert time.monotonic() - begun < 25, "the connections are not waited for"
