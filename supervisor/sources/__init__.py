"""Reads the outside world: logs, metrics, processes, GPUs, the host. Sources are independent of runs."""

from __future__ import annotations

from typing import Final

INNER_LINKS: Final = ("docker", "br-", "veth", "virbr", "cni", "flannel", "lxc", "podman")
"""Name prefixes of bridges and container endpoints, network interfaces that lead to no other machine."""
