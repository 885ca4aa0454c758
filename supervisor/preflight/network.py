"""Ports, addresses and interfaces over which the ranks will meet."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.job.spec import EntryKind
from supervisor.preflight.context import CheckContext, ok, refuse
from supervisor.preflight.ports import is_free, port_holder
from supervisor.run.records import Finding


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
