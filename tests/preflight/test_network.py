"""Which interfaces the ranks would talk over, and where they would meet, on machines made of tables.

Real interfaces, and name servers that do not answer, are those of test_real_faults.
"""

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
from supervisor.preflight.context import Check, CheckContext
from supervisor.run.records import Finding, FindingLevel

OK, WARNING, REFUSE = FindingLevel.OK, FindingLevel.WARNING, FindingLevel.REFUSE
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

    def make(
        interfaces: Mapping[str, list[str]],
        *,
        down: tuple[str, ...] = (),
        names: Mapping[str, list[str]] | None = None,
    ) -> None:
        def family(address: str) -> socket.AddressFamily:
            if len(address) == 17:
                return socket.AF_PACKET
            return socket.AF_INET6 if ":" in address else socket.AF_INET

        def known(host: str, *_args: object, **_named: object) -> list[tuple[object, ...]]:
            if host not in (names or {}):
                raise socket.gaierror("Name or service not known")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in (names or {})[host]]

        monkeypatch.setattr(
            psutil,
            "net_if_addrs",
            lambda: {
                name: [SimpleNamespace(family=family(each), address=each) for each in own]
                for name, own in interfaces.items()
            },
        )
        monkeypatch.setattr(
            psutil,
            "net_if_stats",
            lambda: {name: SimpleNamespace(isup=name not in down) for name in interfaces},
        )
        monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(interfaces, start=1)))
        monkeypatch.setattr(socket, "gethostname", lambda: "node7")
        monkeypatch.setattr(socket, "getaddrinfo", known)

    return make  # fmt: skip


@pytest.mark.parametrize(
    ("interfaces", "down", "what"),
    [
        ({**LO, "eth0": ["10.0.0.7"], "ib0": ["10.1.0.7"]}, (), "NCCL will choose ib0"),
        ({**LO, "eth1": ["10.0.0.8"], "eth0": ["10.0.0.7"]}, (), "NCCL will choose eth1"),
        ({**LO, "eth0": ["10.0.0.7"], "ib0": ["10.1.0.7"]}, ("ib0",), "NCCL will choose eth0"),
        ({**LO, "eth0": ["02:42:ac:11:00:02"], "eth1": ["fe80::7%eth1"]}, (), "NCCL will choose eth1"),
        ({**LO, "docker0": ["172.17.0.1"], "eth0": ["10.0.0.7"]}, (), "NCCL will choose eth0"),
        ({**LO, "docker0": ["172.17.0.1"]}, (), "NCCL would choose docker0, which leads to no other machine"),
        ({**LO, "virbr0": ["192.168.122.1"], "eth0": ["10.0.0.7"]}, (), "NCCL would choose virbr0, which leads to no other machine"),
        (LO, (), "NCCL would choose lo, which leads to no other machine"),
        ({**LO, "eth0": ["10.0.0.7"]}, ("lo", "eth0"), "NCCL would choose lo, which leads to no other machine"),
    ],
)  # fmt: skip
def test_what_nccl_chooses_by_itself(
    machine: Machine, interfaces: dict[str, list[str]], down: tuple[str, ...], what: str
) -> None:
    machine(interfaces, down=down)
    _, finding = found(network.check_interfaces, nnodes="2")
    assert (finding.check, finding.what) == ("interface", what)
    assert (finding.level is OK) == ("will choose" in what)


@pytest.mark.parametrize("inner", ["br-1f", "veth9", "cni0", "flannel.1", "lxcbr0", "podman1"])
def test_what_leads_to_no_other_machine_is_not_proposed(machine: Machine, inner: str) -> None:
    machine(
        {**LO, inner: ["172.18.0.1"], "eth1": ["10.0.0.8"], "eth0": ["10.0.0.7"]},
        names={"node7": ["172.18.0.1"]},
    )
    gloo, nccl = found(network.check_interfaces, nnodes="2")
    assert (gloo.level, gloo.fix) == (WARNING, "GLOO_SOCKET_IFNAME=eth0")
    assert (
        gloo.what
        == "gloo would choose the address of this machine's name, and node7 is 172.18.0.1: other machines cannot reach it"
    )
    assert (nccl.level, nccl.fix) == (WARNING, "NCCL_SOCKET_IFNAME=eth0")


@pytest.mark.parametrize(
    ("known", "level", "what"),
    [
        ({"node7": ["127.0.1.1", "10.0.0.7"]}, OK, "gloo will choose eth0 (node7 is 10.0.0.7)"),
        ({"node7": ["127.0.0.1"]}, WARNING, "node7 is 127.0.0.1: other machines cannot reach it"),
        ({"node7": ["10.9.9.9"]}, WARNING, "node7 is 10.9.9.9: other machines cannot reach it"),
        ({}, WARNING, "node7 is unknown: other machines cannot reach it"),
    ],
)
def test_gloo_takes_the_address_of_the_machine_s_name(
    machine: Machine, known: dict[str, list[str]], level: FindingLevel, what: str
) -> None:
    machine({**LO, "eth0": ["10.0.0.7"]}, names=known)
    finding, _ = found(network.check_interfaces, nnodes="2")
    assert finding.level is level
    assert finding.what.endswith(what)


def test_one_machine_needs_no_interface_and_what_is_told_is_looked_at_all_the_same(machine: Machine) -> None:
    machine({**LO, "eth0": ["10.0.0.7"]})
    assert not found(network.check_interfaces)
    (finding,) = found(network.check_interfaces, env={"NCCL_SOCKET_IFNAME": "eth"})
    assert (finding.level, finding.what) == (OK, "NCCL_SOCKET_IFNAME=eth means eth0")
    machine(LO)
    _, nccl = found(network.check_interfaces, nnodes="2")
    assert nccl.fix == "NCCL_SOCKET_IFNAME=the one that leads to the others"


@pytest.mark.parametrize(
    ("variable", "named", "level", "what"),
    [
        ("NCCL_SOCKET_IFNAME", "e", OK, "means eth0"),
        ("NCCL_SOCKET_IFNAME", "=eth0,ib1", OK, "means eth0"),
        (
            "NCCL_SOCKET_IFNAME",
            "=eth",
            WARNING,
            "no interface of this machine is meant by =eth (eth0, eth1, ib0, lo)",
        ),
        ("NCCL_SOCKET_IFNAME", "^lo,ib", OK, "means eth0"),
        ("NCCL_SOCKET_IFNAME", "^=eth,eth0,lo,ib0", WARNING, "eth1: down"),
        ("NCCL_SOCKET_IFNAME", "eth1", WARNING, "eth1: down"),
        ("GLOO_SOCKET_IFNAME", "ib0,eth0", OK, "means eth0, ib0"),
        (
            "GLOO_SOCKET_IFNAME",
            "eth0,ib9,x",
            WARNING,
            "no interface of this machine is meant by ib9, x (eth0, eth1, ib0, lo)",
        ),
        ("GLOO_SOCKET_IFNAME", "eth0,eth1", WARNING, "eth1: down"),
    ],
)
def test_what_the_variables_name(
    machine: Machine, variable: str, named: str, level: FindingLevel, what: str
) -> None:
    """NCCL takes beginnings, "=" for whole names, "^" for all others; gloo whole names, and needs each."""
    machine({**LO, "eth1": ["10.0.0.8"], "eth0": ["10.0.0.7"], "ib0": ["10.1.0.7"]}, down=("eth1",))
    (finding,) = found(network.check_interfaces, env={variable: named})
    assert finding.level is level
    assert finding.what.startswith(f"{variable}={named}")
    assert finding.what.endswith(what)
    assert ("up" in finding.fix or "ip -br link" in finding.fix) == (level is WARNING)


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
    for told in (
        {"master_addr": "head"},
        {"torchrun_flags": ("--standalone", "--rdzv-endpoint= head:29400 ")},
    ):
        (finding,) = found(network.check_master, nnodes=nodes, **told)
        assert (finding.check, finding.level, finding.what) == ("rendezvous", level, what)
        assert bool(finding.fix) == (level is WARNING)
    assert not found(network.check_master, kind=EntryKind.COMMAND, master_addr="head"), (
        "a plain command meets nobody"
    )
    if any(ip_address(each).version == 6 for each in addresses):
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: True)
        (finding,) = found(network.check_master, master_addr="head", nnodes=nodes)
        assert finding.level is OK


def test_an_ipv6_address_without_brackets_is_told_where_they_stand(machine: Machine) -> None:
    machine(LO)
    (finding,) = found(network.check_master, torchrun_flags=("--rdzv-endpoint=fe80::x:29400",))
    assert finding.fix == "an IPv6 address stands in brackets: [::1]:29400"
    (finding,) = found(network.check_master, master_addr="haed")
    assert finding.fix == "look for a typo, or name its address"


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
    assert [(each.check, each.level, each.what) for each in findings] == (
        [("port", WARNING, told)] if told else []
    )
    assert not found(network.check_port, kind=EntryKind.COMMAND, torchrun_flags=flags)


def test_a_named_port_that_is_taken_refuses_also_where_nobody_knows_by_whom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network, "is_free", lambda port: port != 4000)
    monkeypatch.setattr(network, "port_holder", lambda _port: None)
    (finding,) = found(network.check_port, master_port=4000)
    assert (finding.level, finding.what) == (REFUSE, "port 4000 is taken")
    (finding,) = found(network.check_port, master_port=4001)
    assert (finding.level, finding.what) == (OK, "port 4001 is free")
    assert not found(network.check_port, master_port=4000, node_rank=1, nnodes="2"), (
        "another machine listens on it"
    )


@pytest.mark.parametrize("endpoint", ["here:", "here:65536", "here:x", "[::1]:x"])
def test_what_is_no_port(endpoint: str) -> None:
    (finding,) = found(network.check_port, torchrun_flags=(f"--rdzv-endpoint={endpoint}",))
    assert (finding.level, finding.what) == (
        REFUSE,
        f"--rdzv-endpoint={endpoint}: a port is a whole number below 65536",
    )
    assert "brackets" in finding.fix
