"""Ports, addresses and interfaces over which the ranks will meet."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Final

from supervisor.job.launch.plan import endpoint_named, endpoint_of
from supervisor.job.spec import EntryKind
from supervisor.preflight.context import CheckContext, ok, refuse, warn
from supervisor.preflight.ports import is_free, port_holder
from supervisor.run.records import Finding
from supervisor.sources import INNER_LINKS

RESOLVE_S: Final = 3.0
FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)


def check_port(context: CheckContext) -> Iterator[Finding]:
    """Whether a named port is free on the machine that will listen on it, and the rendezvous endpoint's where that is this one."""
    spec = context.spec
    if spec.entry_kind is EntryKind.COMMAND:
        return
    if spec.master_port is not None and spec.node_rank == 0:
        if is_free(spec.master_port):
            yield ok("port", f"port {spec.master_port} is free")
        else:
            holder = port_holder(spec.master_port)
            what = f"port {spec.master_port} is taken" + (f" by {holder}" if holder else "")
            yield refuse("port", what, "name another with --master-port, or leave it out: stoker finds one")
    host, port = endpoint_of(context.spec)
    if port is None:
        what = f"--rdzv-endpoint={endpoint_named(context.spec)}: a port is a whole number below 65536"
        yield refuse("port", what, "HOST:PORT, and an IPv6 address in brackets: [::1]:29400")
    elif host and is_own_host(host) and not is_free(port):
        # Not refused: a second agent of the same job joins the store that the first one holds.
        holder = port_holder(port)
        what = f"port {port} of the rendezvous endpoint is taken" + (f" by {holder}" if holder else "")
        yield warn("port", what, "unless that is this very job on another node: name another port")


def check_master(context: CheckContext) -> Iterator[Finding]:
    """The machine at which the ranks meet: whether its name is known, and leads where other machines can come."""
    host = _master(context)
    if host is None:
        return
    found = resolved(host)
    if found is None:
        yield warn(
            "rendezvous",
            f"{host} was not resolved within {RESOLVE_S:.0f} s",
            "name an address instead; a name server does not answer",
        )
    elif not found:
        fix = "look for a typo, or name its address"
        if ":" in host:
            fix = "an IPv6 address stands in brackets: [::1]:29400"
        yield warn("rendezvous", f"no machine is known by the name {host}", fix)
    elif context.spec.several_nodes and all(ip_address(address).is_loopback for address in found):
        fix = "name the address that the other machines know it by; /etc/hosts often has 127.0.1.1 for a machine's own name"
        yield warn("rendezvous", f"{host} is {found[0]}, which other machines take for themselves", fix)
    elif all(ip_address(address).version == 6 for address in found) and not socket.has_dualstack_ipv6():
        yield warn(
            "rendezvous",
            f"{host} has IPv6 addresses alone ({found[0]}), and this machine speaks none",
            "name its IPv4 address",
        )
    else:
        yield ok("rendezvous", f"the ranks meet at {host} ({found[0]})")


def check_interfaces(context: CheckContext) -> Iterator[Finding]:
    """The interfaces that gloo and NCCL are told to use; of several machines, without a word, those that they would choose."""
    import psutil

    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    addresses = {
        name: [each.address.partition("%")[0] for each in each_of if each.family in FAMILIES]
        for name, each_of in psutil.net_if_addrs().items()
    }
    env = context.job_env
    for variable, choose in (("GLOO_SOCKET_IFNAME", _gloo_choice), ("NCCL_SOCKET_IFNAME", _nccl_choice)):
        named = env.get(variable)
        if named:
            yield _told(variable, named, set(addresses), up)
        elif context.spec.several_nodes:
            yield choose({name: addresses[name] for name in addresses if name in up and addresses[name]})


def _told(variable: str, named: str, there: set[str], up: set[str]) -> Finding:
    """What a variable names: gloo wants each whole name (it makes a device of each), NCCL what its pattern matches."""
    words = [word for word in named.split(",") if word]
    chosen = (
        _chosen(named, there) if variable.startswith("NCCL") else [name for name in words if name in there]
    )
    unknown = [] if variable.startswith("NCCL") else [name for name in words if name not in there]
    if unknown or not chosen:
        meant = ", ".join(unknown) or named
        what = f"{variable}={named}: no interface of this machine is meant by {meant} ({', '.join(sorted(there))})"
        return warn("interface", what, "name one that `ip -br link` lists")
    down = [name for name in chosen if name not in up]
    if down and (len(down) == len(chosen) or not variable.startswith("NCCL")):
        what = f"{variable}={named}: {', '.join(down)}: down"
        return warn("interface", what, "name one that is up, or bring it up")
    return ok("interface", f"{variable}={named} means {', '.join(sorted(set(chosen) & up))}")


def _nccl_choice(addresses: Mapping[str, list[str]]) -> Finding:
    """NCCL's own choice among interfaces that are up and have an address, in the kernel's order.

    "ib…" first, then all but docker's and the loopback, then docker's, then the loopback: NCCL's src/misc/socket.cc.
    """
    names = [name for _, name in socket.if_nameindex() if name in addresses]
    groups = (
        [name for name in names if name.startswith("ib")],
        [name for name in names if not name.startswith(("docker", "lo"))],
        [name for name in names if name.startswith("docker")],
    )
    chosen = next((group[0] for group in groups if group), "lo")
    if chosen == "lo" or chosen.startswith(INNER_LINKS):
        what = f"NCCL would choose {chosen}, which leads to no other machine"
        return warn("interface", what, f"NCCL_SOCKET_IFNAME={_outer(addresses)}")
    return ok("interface", f"NCCL will choose {chosen}")


def _gloo_choice(addresses: Mapping[str, list[str]]) -> Finding:
    """Gloo's own choice: the address of this machine's name where that is its own, else the loopback.

    torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, createDefaultDevice.
    """
    host = socket.gethostname()
    found = resolved(host) or []
    for name, own in addresses.items():
        address = next((each for each in found if each in own), "")
        if address and name != "lo" and not name.startswith(INNER_LINKS):
            return ok("interface", f"gloo will choose {name} ({host} is {address})")
    # 127.0.1.1 stands on no interface and can be bound all the same, as all of 127.0.0.0/8.
    told = found[0] if found else "unknown"
    what = f"gloo would choose the address of this machine's name, and {host} is {told}: other machines cannot reach it"
    return warn("interface", what, f"GLOO_SOCKET_IFNAME={_outer(addresses)}")


def _outer(addresses: Mapping[str, list[str]]) -> str:
    """An interface that may lead to other machines, or words for it."""
    outer = [name for name in sorted(addresses) if name != "lo" and not name.startswith(INNER_LINKS)]
    return outer[0] if outer else "the one that leads to the others"


def resolved(host: str, timeout_s: float | None = None) -> list[str] | None:
    """The addresses of a name; [] for one that nobody knows, None where no answer came in time.

    The resolver has no limit of its own that a program could set: it is asked in a thread that may be left behind.
    """
    answers: list[list[str]] = []

    def ask() -> None:
        try:
            infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            answers.append([])
            return
        answers.append(list(dict.fromkeys(str(info[4][0]).partition("%")[0] for info in infos)))

    asking = threading.Thread(target=ask, name="stoker-resolver", daemon=True)
    asking.start()
    asking.join(RESOLVE_S if timeout_s is None else timeout_s)
    return answers[0] if answers else None


def _master(context: CheckContext) -> str | None:
    """The host that the ranks are told to meet at; None where there is one machine and nobody named it."""
    spec = context.spec
    if spec.entry_kind is EntryKind.COMMAND:
        return None
    return spec.master_addr or endpoint_of(context.spec)[0] or None


def is_own_host(host: str) -> bool:
    """Whether a name or address is this machine's, as far as it knows without asking a name server."""
    return host in _own_names()


def _own_names() -> set[str]:
    """What this machine is called without asking a name server."""
    import psutil

    each_of = psutil.net_if_addrs().values()
    own = {address.address.partition("%")[0] for group in each_of for address in group}
    return {"localhost", socket.gethostname(), *own}


def _chosen(named: str, there: set[str]) -> list[str]:
    """What NCCL_SOCKET_IFNAME means: prefixes, exact names after "=", all others after "^".

    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    excluded, rest = named.startswith("^"), named.removeprefix("^")
    exact, rest = rest.startswith("="), rest.removeprefix("=")
    words = [word for word in rest.split(",") if word]
    meant = [
        name
        for name in sorted(there)
        if any(name == word if exact else name.startswith(word) for word in words)
    ]
    return [name for name in sorted(there) if name not in meant] if excluded else meant
