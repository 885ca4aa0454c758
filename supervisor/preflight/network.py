"""Ports, addresses and interfaces over which the ranks will meet."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final

from supervisor.job.spec import EntryKind
from supervisor.preflight.context import CheckContext, ok, refuse, warn
from supervisor.preflight.ports import is_free, port_holder
from supervisor.run.records import Finding

RESOLVE_S: Final = 3.0
# Bridges and the ends of containers' cables: what begins so leads to no other machine.
INNER: Final = ("docker", "br-", "veth", "virbr", "cni", "flannel", "lxc", "podman")


def check_port(context: CheckContext) -> Iterator[Finding]:
    """Whether a named port is free on the machine that will listen on it."""
    spec = context.spec
    if spec.master_port is None or spec.entry_kind is EntryKind.COMMAND or spec.node_rank != 0:
        return
    if is_free(spec.master_port):
        yield ok("port", f"port {spec.master_port} is free")
        return
    holder = port_holder(spec.master_port)
    what = f"port {spec.master_port} is taken" + (f" by {holder}" if holder else "")
    yield refuse(
        "port",
        what,
        "name another with --master-port, or leave it out: stoker finds one",
    )


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
        yield warn(
            "rendezvous", f"no machine is known by the name {host}", "look for a typo, or name its address"
        )
    elif _several_nodes(context) and all(ip_address(address).is_loopback for address in found):
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
    """The interfaces that gloo and NCCL are told to use, and without a word the one that they would find."""
    import psutil

    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    there = set(psutil.net_if_addrs())
    env = {**context.env, **dict(context.spec.env)}
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        named = env.get(variable)
        if not named:
            continue
        chosen = (
            _chosen(named, there)
            if variable.startswith("NCCL")
            else [name for name in named.split(",") if name in there]
        )
        if not chosen:
            what = f"{variable}={named}: no interface of this machine is meant by it ({', '.join(sorted(there))})"
            yield warn("interface", what, "name one that `ip -br link` lists")
        elif not set(chosen) & up:
            yield warn(
                "interface",
                f"{variable}={named}: {', '.join(chosen)}: down",
                "name one that is up, or bring it up",
            )
        else:
            yield ok("interface", f"{variable}={named} means {', '.join(sorted(set(chosen) & up))}")
    outward = sorted(name for name in up if name != "lo")
    inner = [name for name in outward if name.startswith(INNER)]
    if _several_nodes(context) and inner and not env.get("NCCL_SOCKET_IFNAME"):
        others = [name for name in outward if name not in inner]
        what = f"{', '.join(inner)} is up: NCCL and gloo may choose a bridge that other machines cannot reach"
        yield warn(
            "interface",
            what,
            f"NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME: {others[0] if others else 'the one that leads to the others'}",
        )


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
    endpoint = next(
        (flag.partition("=")[2] for flag in spec.torchrun_flags if flag.startswith("--rdzv-endpoint=")), ""
    )
    host = endpoint.rpartition(":")[0] if ":" in endpoint else endpoint
    return spec.master_addr or host.strip("[]") or None


def _several_nodes(context: CheckContext) -> bool:
    return context.spec.nnodes not in {"1", "1:1"}


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
