"""For a multi-node job, check whether this node can reach the ranks' rendezvous.

Inside a job, every connection failure looks the same: minutes of silence. Here, each kind gets its own message.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from supervisor.job.launch.plan import MASTER_PORT, endpoint_of
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.preflight.context import CheckContext, note, ok, warn
from supervisor.preflight.network import RESOLVE_S, is_own_host, resolved
from supervisor.run.records import Finding

LISTEN_S: Final = 0.5
"""Long enough for a server that speaks first (ssh, mail, a database). PyTorch's store never does."""
CONNECT_S: Final = 4.0
"""Longer than the 3 s Linux takes to report that no machine on the network has an address (arp(7): 3 tries, 1 s apart)."""
_UNREACHABLE: Final = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN})


class Way(StrEnum):
    """Ways a connection can fail."""

    UNKNOWN_NAME = "unknown_name"
    REFUSED = "refused"
    DROPPED = "dropped"
    UNREACHABLE = "unreachable"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Failed:
    """A failed connection. `what` describes the problem in one line; `fix` says what to check."""

    way: Way
    what: str
    fix: str = ""


def connect(host: str, port: int, address: str | None = None) -> socket.socket | Failed:
    """Connect and return a socket for the caller to close, or the failure. `address` is the host's address, if known."""
    found = resolved(host) if address is None else [address]
    if not found:
        what = f"no machine is known by the name {host}"
        if found is None:
            what = f"{host} was not resolved within {RESOLVE_S:.0f} s"
        return Failed(Way.UNKNOWN_NAME, what, "look for a typo, or name its address")
    where = f"{host}:{port}" if found[0] == host else f"{host}:{port} ({found[0]})"
    try:
        return socket.create_connection((found[0], port), CONNECT_S)
    except TimeoutError:
        what = f"no answer from {where} within {CONNECT_S:.0f} s: what is sent there is dropped"
        fix = f"open the port in the firewall of {host}, or name the address that it has on the nodes' own network"
        return Failed(Way.DROPPED, what, fix)
    except OSError as error:
        if error.errno == errno.ECONNREFUSED:
            what = f"{host} is there and refuses {where}: nothing listens there yet"
            fix = "start node 0 first to see more; if it runs, its port is another one, or a firewall rejects this"
            return Failed(Way.REFUSED, what, fix)
        what, fix = f"{where}: {error.strerror or error}", "see the address, and this machine's network"
        if error.errno not in _UNREACHABLE:
            return Failed(Way.OTHER, what, fix)
        fix = "look for a typo in the address, and whether this machine is on the same network"
        return Failed(Way.UNREACHABLE, f"{where} cannot be reached: {error.strerror}", fix)


def why_not(host: str, port: int) -> Failed | None:
    """Return why connecting fails, or None if it works. Nothing is sent before closing, which PyTorch's store tolerates."""
    found = connect(host, port)
    if isinstance(found, Failed):
        return found
    found.close()
    return None


def meeting_point(spec: JobSpec) -> tuple[str, int | None]:
    """Return the host ("" if none is named) and port (None if not a number) of the rendezvous."""
    host, port = endpoint_of(spec)
    return (host, port) if host else (spec.master_addr or "", spec.master_port or MASTER_PORT)


def check_meeting(context: CheckContext) -> Iterator[Finding]:
    """Check whether the rendezvous accepts connections, refuses or drops them, is unreachable, or is some other service."""
    spec = context.spec
    if not spec.several_nodes or spec.entry_kind is EntryKind.COMMAND:
        return
    host, port = meeting_point(spec)
    if not host or port is None or (is_own_host(host) and not endpoint_of(spec)[0]):
        return  # this node itself will listen
    found = resolved(host)
    if not found:
        return  # the check of the name reports this
    where = f"{host}:{port}" if found[0] == host else f"{host}:{port} ({found[0]})"
    began = time.monotonic()
    connection = connect(host, port, found[0])
    if isinstance(connection, Failed):
        level = note if connection.way is Way.REFUSED else warn
        yield level("meeting", connection.what, connection.fix)
        return
    took_ms = (time.monotonic() - began) * 1000
    words = ""
    with closing(connection), suppress(OSError):
        connection.settimeout(LISTEN_S)
        words = connection.recv(64).decode("ascii", "replace").strip()
    if words:
        what = f"{where} answers, and is no store of PyTorch: it says {words!r}"
        yield warn("meeting", what, "name another port: ranks would wait there in silence")
    elif is_own_host(host):
        what = f"something listens at {where} already"
        yield warn("meeting", what, "unless that is this very job on another node, name another port")
    else:
        yield ok("meeting", f"{where} answers within {took_ms:.0f} ms")
