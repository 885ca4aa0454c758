"""Readers for the outside world: logs, metrics, processes, GPUs and the host. They know nothing about runs."""

from __future__ import annotations

from typing import Final

INNER_LINKS: Final = ("docker", "br-", "veth", "virbr", "cni", "flannel", "lxc", "podman")
"""Name prefixes of interfaces that never lead to another machine, such as bridges and container endpoints."""
