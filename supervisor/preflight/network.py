"""Checks the rendezvous ports and addresses."""

from __future__ import annotations

import errno
import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from supervisor.job.errors import JobError
from supervisor.job.launch.plan import endpoint_named, endpoint_of
from supervisor.job.spec import EntryKind
from supervisor.preflight.context import CheckContext, ok, refuse, warn
from supervisor.run.records import Finding
from supervisor.sources.processes import listening_sockets, open_files

RESOLVE_S: Final = 3.0


def check_port(context: CheckContext) -> Iterator[Finding]:
    """Check whether the specified master port (on node 0) and the port of a rendezvous endpoint on this machine are free."""
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
    host, port = endpoint_of(spec)
    if port is None:
        what = f"--rdzv-endpoint={endpoint_named(spec)}: a port is a whole number below 65536"
        yield refuse("port", what, "HOST:PORT, and an IPv6 address in brackets: [::1]:29400")
    elif host and is_own_host(host) and not is_free(port):
        # Do not refuse, because a second agent of the same job joins the first agent's store.
        holder = port_holder(port)
        what = f"port {port} of the rendezvous endpoint is taken" + (f" by {holder}" if holder else "")
        yield warn("port", what, "unless that is this very job on another node: name another port")


def check_master(context: CheckContext) -> Iterator[Finding]:
    """Check whether the rendezvous host resolves to an address that other machines can reach."""
    spec = context.spec
    host = spec.master_addr or endpoint_of(spec)[0]
    if spec.entry_kind is EntryKind.COMMAND or not host:
        return  # one machine, and no host was named
    found = resolved(host)
    if found is None:
        what = f"{host} was not resolved within {RESOLVE_S:.0f} s"
        yield warn("rendezvous", what, "name an address instead; a name server does not answer")
        return
    if not found:
        fix = (
            "an IPv6 address stands in brackets: [::1]:29400"
            if ":" in host
            else "look for a typo, or name its address"
        )
        yield warn("rendezvous", f"no machine is known by the name {host}", fix)
        return
    addresses = [ip_address(address) for address in found]
    if spec.several_nodes and all(address.is_loopback for address in addresses):
        fix = "name the address that the other machines know it by; /etc/hosts often has 127.0.1.1 for a machine's own name"
        yield warn("rendezvous", f"{host} is {found[0]}, which other machines take for themselves", fix)
    elif all(address.version == 6 for address in addresses) and not socket.has_dualstack_ipv6():
        what = f"{host} has IPv6 addresses alone ({found[0]}), and this machine speaks none"
        yield warn("rendezvous", what, "name its IPv4 address")
    else:
        yield ok("rendezvous", f"the ranks meet at {host} ({found[0]})")


def resolved(host: str) -> list[str] | None:
    """Return the addresses for a name, [] if the name is unknown, or None if no answer came in time.

    The resolver has no configurable timeout, so it runs in a thread that can be abandoned.
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
    asking.join(RESOLVE_S)
    return answers[0] if answers else None


def is_own_host(host: str) -> bool:
    """Check whether a name or address belongs to this machine, without querying a name server."""
    import psutil

    each_of = psutil.net_if_addrs().values()
    own = {address.address.partition("%")[0] for group in each_of for address in group}
    return host in {"localhost", socket.gethostname(), *own}


# -- ports ---------------------------------------------------------------------------------------------

TRIES: Final = 10
# Linux's default ephemeral range begins at 32768. The kernel hands out ports in this range to any client at any
# moment, so a port found free there may be taken at launch.
EPHEMERAL: Final = 32_768
BELOW: Final = 12_000
"""Number of candidate ports below the ephemeral range. None of them belongs to a well-known service."""


def free_port(*, tries: int = TRIES) -> int:
    """Return a port outside the ephemeral range that nothing listens on. It is not reserved.

    Raises:
        JobError: none of `tries` candidates was free (exit code 3).
    """
    low, high = _range_outside_ephemeral()
    for candidate in random.sample(range(low, high + 1), k=min(tries, high - low + 1)):
        if is_free(candidate):
            return candidate
    raise JobError(f"no free port among {tries} of {low}-{high}: name one with --master-port", exit_code=3)


def is_free(port: int) -> bool:
    """Check whether a server could listen on `port` on all local addresses, as torchrun's store would."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104 - closed at once
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # a machine without IPv6
        with closing(probe):
            # As the store does, treat a port in TIME_WAIT as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as error:
                if family == socket.AF_INET6 and error.errno not in {errno.EADDRINUSE, errno.EACCES}:
                    continue  # IPv6 is compiled in but switched off
                return False
    return True


def port_holder(port: int) -> str | None:
    """Return the process listening on `port`, such as ``python (pid 4711)``, or None if /proc does not show one."""
    wanted = {name for _, of, name in listening_sockets(os.getpid()) if of == port}
    if not wanted:
        return None
    import psutil

    for process in psutil.process_iter():
        if any(name in wanted for _, name in open_files(process.pid)):
            try:
                return f"{process.name()} (pid {process.pid})"
            except psutil.Error:
                return f"pid {process.pid}"
    return "a process of another user"


def _range_outside_ephemeral() -> tuple[int, int]:
    """Return the range of candidate ports, which shifts down if the machine's ephemeral range starts lower."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first = EPHEMERAL
    first = first if first > 2048 else EPHEMERAL
    return max(1024, first - BELOW), first - 1
