"""Facts about the outside world: logs, metrics, processes, GPUs, the host. Sources know no runs."""

from __future__ import annotations

from typing import Final

INNER_LINKS: Final = ("docker", "br-", "veth", "virbr", "cni", "flannel", "lxc", "podman")
"""Network interfaces that begin so are bridges and the ends of containers' cables: they lead to no other machine."""
