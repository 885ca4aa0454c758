"""One connection to where the ranks meet, and in words what stands in its way: each way to fail has a line of its own."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from supervisor.preflight.network import RESOLVE_S, resolved

CONNECT_S: Final = 4.0
"""More than the 3 s after which Linux reports that nobody on this network has an address (arp(7): three tries, one a second)."""
_UNREACHABLE: Final = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN})


class Way(StrEnum):
    """How a connection fails."""

    UNKNOWN_NAME = "unknown_name"
    REFUSED = "refused"
    DROPPED = "dropped"
    UNREACHABLE = "unreachable"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Failed:
    """What stands in the way: `what` is one line, `fix` what to look at."""

    way: Way
    what: str
    fix: str = ""


def connect(host: str, port: int, address: str | None = None) -> socket.socket | Failed:
    """A connection, for the caller to close; or why there is none. `address`: the host's, where it is known."""
    if address is None:
        found = resolved(host)
        if not found:
            none = f"no machine is known by the name {host}"
            late = f"{host} was not resolved within {RESOLVE_S:.0f} s"
            return Failed(
                Way.UNKNOWN_NAME, late if found is None else none, "look for a typo, or name its address"
            )
        address = found[0]
    where = f"{host}:{port}" if address == host else f"{host}:{port} ({address})"
    try:
        return socket.create_connection((address, port), CONNECT_S)
    except TimeoutError:
        what = f"no answer from {where} within {CONNECT_S:.0f} s: what is sent there is dropped"
        fix = f"open the port in the firewall of {host}, or name the address that it has on the nodes' own network"
        return Failed(Way.DROPPED, what, fix)
    except OSError as error:
        if error.errno == errno.ECONNREFUSED:
            what = f"{host} is there and refuses {where}: nothing listens there yet"
            fix = "start node 0 first to see more; if it runs, its port is another one, or a firewall rejects this"
            return Failed(Way.REFUSED, what, fix)
        if error.errno in _UNREACHABLE:
            fix = "look for a typo in the address, and whether this machine is on the same network"
            return Failed(Way.UNREACHABLE, f"{where} cannot be reached: {error.strerror}", fix)
        return Failed(
            Way.OTHER, f"{where}: {error.strerror or error}", "see the address, and this machine's network"
        )


def why_not(host: str, port: int) -> Failed | None:
    """Why no connection can be made; None: one can. It is closed again without a word, which a store of PyTorch does not mind."""
    found = connect(host, port)
    if isinstance(found, Failed):
        return found
    found.close()
    return None
