"""How the keepers of a multi-node run communicate: through files in the run directory, each with one writer.

Node 0 leads. It writes *orders*, numbered from 1: start an attempt, stop it, end the run. Every other node writes a *report*
on its latest attempt, and every keeper has a *heartbeat*. docs/nodes.md explains why there cannot be two leaders, or
two attempts at once.

This relies on the following properties of NFS:

- link(2) to an existing name fails on every client, so only one leader can claim an order's number.
- rename(2) replaces a file atomically: a reader that opens the name gets either the old file or the new one. A stale cached
  file is detected at open(2) (close-to-open consistency).
- A file that is written in place is refreshed at open(2) without rereading the directory. Heartbeats rely on this.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from supervisor.job.batch import BatchSpec
from supervisor.run.events import Outcome, StopWhy
from supervisor.run.jsonl import decoded_file
from supervisor.run.paths import NodePaths, make_private, private, replace_file, write_whole
from supervisor.run.records import Decision, Verdict

LEADER: Final = 0
CONTINUED_WITHIN_S: Final = 30.0
"""How long a node joining a finished run waits for node 0 to continue it (at most `node_timeout_s`). Both may be starting up."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
_MOST_BYTES: Final = 1 << 22


class Want(StrEnum):
    """What the leader orders all nodes to do."""

    RUN = "run"  # start this attempt
    END = "end"  # end this attempt if it still runs, and wait
    OVER = "over"  # the run has ended


class Launch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all nodes share in one attempt. Each node applies it to its own job.

    `nodes` are the participating nodes, in rank order. `args` are the script's arguments, if the user edited them.
    """

    nodes: tuple[int, ...]
    reason: str = ""
    args: tuple[str, ...] | None = None
    batch: BatchSpec | None = None
    env: tuple[tuple[str, str], ...] = ()
    set_args: tuple[tuple[str, str], ...] = ()
    resume: bool | None = None
    resume_at: int | None = None
    raise_open_files: bool = False
    master_port: int | None = None
    rdzv_id: str | None = None


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An order. `leader` is the keeper that gave it; see `new_session`. `launch` is set only for `Want.RUN`.

    `why` and `by` describe a requested stop. `verdict` and `decision` are those for this attempt, once known.
    """

    seq: int
    leader: str
    want: Want
    attempt: int = 0
    launch: Launch | None = None
    why: StopWhy | None = None
    by: str = ""
    verdict: Verdict | None = None
    decision: Decision | None = None
    outcome: Outcome | None = None
    exit_code: int | None = None
    reason: str = ""


class NodePhase(StrEnum):
    """A node's phase, as the node itself reports it."""

    READY = "ready"  # no process of the run is alive there
    RUNNING = "running"
    ENDED = "ended"  # like READY, with the end of the newest attempt in the report
    LEFT = "left"  # the node's keeper left on purpose


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node's report. `session` is its keeper; see `new_session`. `seq` is the latest order that it has read.

    `exit_code` is for its launcher in `attempt`. `stop` says why a signal stopped the launcher, and `by` who sent it.
    """

    node: int
    session: str
    host: str
    nnodes: int
    phase: NodePhase
    seq: int = 0
    attempt: int = 0
    exit_code: int | None = None
    stop: StopWhy | None = None
    by: str = ""


class Superseded(Exception):  # noqa: N818 - a state of affairs, not an error
    """Another keeper gave the order with this number, so that keeper now leads."""


def new_session() -> str:
    """Return a unique name for one keeper process."""
    return os.urandom(6).hex()


# -- orders ------------------------------------------------------------------------------------------


class Orders:
    """The leader's side: gives orders with unique numbers.

    Attributes:
        newest: the latest order, from any keeper.
        newest_run: the latest order that starts an attempt.
    """

    def __init__(self, node: NodePaths, session: str) -> None:
        """`node` is node 0's folder.

        Raises:
            OSError: the folder cannot be written or read.
        """
        make_private(node.orders)
        self._node, self._session = node, session
        self.newest = read_order(node)
        numbers = sorted(int(path.stem) for path in node.orders.glob("*.json") if path.stem.isdecimal())
        self._seq = numbers[-1] if numbers else 0
        self.newest_run = self._newest_run(numbers)

    def give(self, order: Order) -> Order:
        """Publish an order under the next number, and return it with that number.

        Raises:
            Superseded: another keeper took the number, so that keeper leads.
            OSError: the folder cannot be written.
        """
        numbered = msgspec.structs.replace(order, seq=self._seq + 1, leader=self._session)
        data = msgspec.json.encode(numbered) + b"\n"
        if not create(self._node.orders / f"{numbered.seq}.json", data):
            raise Superseded(f"another keeper gave order {numbered.seq}: this one leads no more")
        self._seq, self.newest = numbered.seq, numbered
        if numbered.want is Want.RUN:
            self.newest_run = numbered
        replace_file(self._node.order, data)
        return numbered

    def take_part(self, number: int) -> tuple[int, ...] | None:
        """Return the nodes that attempt `number` was ordered for, or None if it has not been ordered yet."""
        order = self.newest_run
        return order.launch.nodes if order is not None and order.launch and order.attempt == number else None

    def _newest_run(self, numbers: Sequence[int]) -> Order | None:
        for number in reversed(numbers):
            order = decoded_file(self._node.orders / f"{number}.json", Order, _MOST_BYTES)
            if order is not None and order.want is Want.RUN:
                return order
        return None

    def check(self) -> None:
        """Check that no other keeper leads.

        Raises:
            Superseded: another keeper leads.
        """
        with contextlib.suppress(OSError):
            if (self._node.orders / f"{self._seq + 1}.json").exists():
                raise Superseded(f"another keeper gave order {self._seq + 1}: this one leads no more")


def read_order(node: NodePaths) -> Order | None:
    """Return the latest order in node 0's folder, or None if there is none or it cannot be read right now."""
    return decoded_file(node.order, Order, _MOST_BYTES)


# -- reports -----------------------------------------------------------------------------------------


def write_report(node: NodePaths, report: Report) -> None:
    """Replace a node's report.

    Raises:
        OSError: the report cannot be written.
    """
    replace_file(node.report, msgspec.json.encode(report) + b"\n")


def read_report(node: NodePaths) -> Report | None:
    """Return a node's report, or None if there is none or it cannot be read right now."""
    return decoded_file(node.report, Report, _MOST_BYTES)


# -- files -------------------------------------------------------------------------------------------


def create(path: Path, data: bytes) -> bool:
    """Create a file with this content atomically. Return False if the name is already taken.

    Raises:
        OSError: the file cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        write_whole(part, data)
        os.link(part, path)
    except FileExistsError:
        # If the server's answer was lost, the call was repeated, and the name is this process's own.
        return os.stat(part).st_nlink > 1
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _create_without_link(path, data)
    finally:
        part.unlink(missing_ok=True)
    return True


def _create_without_link(path: Path, data: bytes) -> bool:
    """Create a file without using hard links. The name can be taken only once, but a reader may briefly see half a file."""
    try:
        with open(path, "xb", opener=private) as file:
            file.write(data)
    except FileExistsError:
        return False
    return True
