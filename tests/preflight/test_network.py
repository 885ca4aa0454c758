"""Where the ranks would meet, on machines made of tables; real ones are those of test_real_faults."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from supervisor.job.spec import EntryKind, JobSpec
from supervisor.preflight import network
from supervisor.preflight.context import Check, CheckContext, ok, refuse, warn
from supervisor.run.records import Finding, FindingLevel

OK, WARNING = FindingLevel.OK, FindingLevel.WARNING
Machine = Callable[..., None]
LO = {"lo": ["127.0.0.1", "::1"]}


def found(
    check: Check, *, kind: EntryKind = EntryKind.SCRIPT, env: Mapping[str, str] | None = None, **spec: object
) -> list[Finding]:
    job = JobSpec("t", kind, "train.py", **{"nproc_per_node": 2, **spec})  # type: ignore[arg-type]
    return list(check(CheckContext(job, Path("runs"), env or {})))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Makes a machine of its interfaces (in the kernel's order) and of the names that are known."""

    def make(interfaces: Mapping[str, list[str]], names: Mapping[str, list[str]] | None = None) -> None:
        def known(host: str, *_args: object, **_named: object) -> list[tuple[object, ...]]:
            if host not in (names or {}):
                raise socket.gaierror("Name or service not known")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in (names or {})[host]]

        addresses = {
            name: [SimpleNamespace(address=each) for each in own] for name, own in interfaces.items()
        }
        monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
        monkeypatch.setattr(socket, "gethostname", lambda: "node7")
        monkeypatch.setattr(socket, "getaddrinfo", known)

    return make


FIXES = {
    "take for themselves": "name the address that the other machines know it by; /etc/hosts often has 127.0.1.1 for a machine's own name",
    "speaks none": "name its IPv4 address",
    "known by the name": "look for a typo, or name its address",
}


@pytest.mark.parametrize(
    ("addresses", "nodes", "level", "what"),
    [
        (["10.0.0.1", "10.0.0.2"], "2", OK, "the ranks meet at head (10.0.0.1)"),
        (["127.0.1.1"], "1", OK, "the ranks meet at head (127.0.1.1)"),
        (["127.0.1.1"], "2", WARNING, "head is 127.0.1.1, which other machines take for themselves"),
        (["127.0.1.1", "10.0.0.1"], "2", OK, "the ranks meet at head (127.0.1.1)"),
        (["fd00::1"], "2", WARNING, "head has IPv6 addresses alone (fd00::1), and this machine speaks none"),
        (["fd00::1", "10.0.0.1"], "2", OK, "the ranks meet at head (fd00::1)"),
        ([], "1", WARNING, "no machine is known by the name head"),
    ],
)
def test_where_the_ranks_meet(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    addresses: list[str],
    nodes: str,
    level: FindingLevel,
    what: str,
) -> None:
    machine(LO, names={"head": addresses} if addresses else {})
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    fix = next((fix for words, fix in FIXES.items() if words in what), "")
    for told in (
        {"master_addr": "head"},
        {"torchrun_flags": ("--standalone", "--rdzv-endpoint= head:29400 ")},
    ):
        (finding,) = found(network.check_master, nnodes=nodes, **told)
        assert finding == Finding(level, "rendezvous", what, fix)
    assert not found(network.check_master, kind=EntryKind.COMMAND, master_addr="head"), (
        "a plain command meets nobody"
    )
    assert not found(network.check_master, nnodes=nodes), "one machine, or no host was named"
    if any(ip_address(each).version == 6 for each in addresses):
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: True)
        (finding,) = found(network.check_master, master_addr="head", nnodes=nodes)
        assert finding.level is OK


@pytest.mark.parametrize(
    ("endpoint", "taken", "told"),
    [
        ("localhost:4000", 4000, "port 4000 of the rendezvous endpoint is taken by python"),
        ("node7:4000", 4000, "port 4000 of the rendezvous endpoint is taken by python"),
        ("10.0.0.7", 29400, "port 29400 of the rendezvous endpoint is taken by python"),
        ("[::1]:4000", 4000, "port 4000 of the rendezvous endpoint is taken by python"),
        ("[::1]", 29400, "port 29400 of the rendezvous endpoint is taken by python"),
        ("other:4000", 4000, None),
        ("localhost:4000", 4001, None),
        ("", 29400, None),
        ("localhost:65535", 65535, "port 65535 of the rendezvous endpoint is taken by python"),
    ],
)
def test_the_port_of_an_endpoint_here_is_looked_at(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, endpoint: str, taken: int, told: str | None
) -> None:
    machine({**LO, "eth0": ["10.0.0.7"]})
    monkeypatch.setattr(network, "is_free", lambda port: port != taken)
    monkeypatch.setattr(network, "port_holder", lambda _port: "python")
    flags = (f"--rdzv-endpoint={endpoint}",)
    findings = found(network.check_port, torchrun_flags=flags)
    fix = "unless that is this very job on another node: name another port"
    assert findings == ([warn("port", told, fix)] if told else [])
    assert not found(network.check_port, kind=EntryKind.COMMAND, torchrun_flags=flags)


def test_the_port_that_is_named_for_this_node_is_looked_at(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine({**LO, "eth0": ["fe80::7%eth0"]})
    monkeypatch.setattr(network, "is_free", lambda port: port != 4000)
    monkeypatch.setattr(network, "port_holder", lambda _port: None)
    assert found(network.check_port, master_port=4001) == [ok("port", "port 4001 is free")]
    fix = "name another with --master-port, or leave it out: stoker finds one"
    assert found(network.check_port, master_port=4000) == [refuse("port", "port 4000 is taken", fix)]
    assert not found(network.check_port, master_port=4000, nnodes="2", node_rank=1), "node 0 listens there"
    assert not found(network.check_port, master_port=4000, kind=EntryKind.COMMAND)
    (finding,) = found(network.check_port, torchrun_flags=("--rdzv-endpoint=[fe80::7]:4000",))
    assert finding.what == "port 4000 of the rendezvous endpoint is taken"


def test_an_address_without_its_brackets_is_shown_with_them(machine: Machine) -> None:
    machine(LO)
    (finding,) = found(network.check_master, master_addr="::1:4000")
    fix = "an IPv6 address stands in brackets: [::1]:29400"
    assert finding == warn("rendezvous", "no machine is known by the name ::1:4000", fix)


@pytest.mark.parametrize("endpoint", ["here:", "here:65536", "here:x", "[::1]:x"])
def test_what_is_no_port(endpoint: str) -> None:
    (finding,) = found(network.check_port, torchrun_flags=(f"--rdzv-endpoint={endpoint}",))
    what = f"--rdzv-endpoint={endpoint}: a port is a whole number below 65536"
    assert finding == refuse("port", what, "HOST:PORT, and an IPv6 address in brackets: [::1]:29400")
