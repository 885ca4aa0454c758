"""NCCL's RAS service: which ranks launched fewer collectives, asked of the job itself.

NCCL 2.24 and later answers on a TCP port (NCCL_RAS_ADDR, localhost:28028 unless set) with plain text: the words
``verbose status`` and a newline bring the report, then it closes
(docs.nvidia.com/deeplearning/nccl, Troubleshooting, RAS). One service a job; a job on gloo has none.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping

DEFAULT_ADDRESS = ("localhost", 28028)
_CAP_BYTES = 1 << 20


def ras_address(env: Mapping[str, str]) -> tuple[str, int] | None:
    """Where the service of a job with this environment answers; None where it was turned off."""
    if env.get("NCCL_RAS_ENABLE", "1").strip() == "0":
        return None
    host, colon, port = env.get("NCCL_RAS_ADDR", "").strip().rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        return DEFAULT_ADDRESS
    return host.strip("[]") or "localhost", int(port)


def query_ras(address: tuple[str, int], *, timeout_s: float = 3.0) -> str | None:
    """The report; None where nothing answers or what answers is not NCCL."""
    deadline = time.monotonic() + timeout_s
    parts: list[bytes] = []
    try:
        with socket.create_connection(address, timeout=min(1.0, timeout_s)) as link:
            link.sendall(b"verbose status\n")
            size = 0
            while size < _CAP_BYTES:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                link.settimeout(left)
                part = link.recv(1 << 16)
                if not part:
                    break
                parts.append(part)
                size += len(part)
    except OSError:
        if not parts:
            return None
    text = b"".join(parts).decode("utf-8", "replace")
    return text if "NCCL" in text[:4096] else None
