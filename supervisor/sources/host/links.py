"""What each network interface carries: bytes a second, by the kernel's counters; RDMA ports by their own, which those leave out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Bridges and the ends of containers' cables: what begins so leads to no other machine.
INNER: Final = ("docker", "br-", "veth", "virbr", "cni", "flannel", "lxc", "podman")
INFINIBAND: Final = Path("/sys/class/infiniband")
# docs.kernel.org/admin-guide/abi-stable.html: port_rcv_data and port_xmit_data count octets divided by 4.
WORD_BYTES: Final = 4
# The busiest since boot: a machine with containers has hundreds.
MOST_LINKS: Final = 8


@dataclass(frozen=True, slots=True)
class LinkRate:
    """One interface or RDMA port: bytes a second since the reading before."""

    name: str
    received_bytes_per_s: float
    sent_bytes_per_s: float


class LinkReader:
    """Reads the counters again and again. Not thread-safe.

    Args:
        infiniband: where the kernel lists RDMA devices.
    """

    def __init__(self, infiniband: Path = INFINIBAND) -> None:
        self._infiniband = infiniband
        self._before: tuple[float, dict[str, tuple[int, int]]] | None = None

    def read(self) -> tuple[LinkRate, ...]:
        """The busiest links since boot, the busiest first; none at the first reading."""
        now, counts = time.monotonic(), dict(self._counts())
        before, self._before = self._before, (now, counts)
        if before is None or now <= before[0]:
            return ()
        took_s = now - before[0]
        busiest = sorted(counts, key=lambda name: -sum(counts[name]))[:MOST_LINKS]
        rates = []
        for name in busiest:
            received, sent = counts[name]
            was = before[1].get(name)
            if was is not None and received >= was[0] and sent >= was[1]:  # else it was reset
                rates.append(LinkRate(name, (received - was[0]) / took_s, (sent - was[1]) / took_s))
        return tuple(rates)

    def _counts(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Bytes received and sent since boot, of all that have carried any."""
        import psutil

        for name, each in psutil.net_io_counters(pernic=True).items():
            if each.bytes_recv + each.bytes_sent and not name.startswith(INNER):
                yield name, (each.bytes_recv, each.bytes_sent)
        for counters in sorted(self._infiniband.glob("*/ports/*/counters")):
            try:
                received, sent = (
                    int((counters / name).read_text()) for name in ("port_rcv_data", "port_xmit_data")
                )
            except (OSError, ValueError):
                continue
            port, device = counters.parent.name, counters.parents[2].name
            if received + sent:
                yield (
                    device if port == "1" else f"{device}/{port}",
                    (received * WORD_BYTES, sent * WORD_BYTES),
                )
