"""Summarize what all ranks are doing in one line: "7 ranks in all_reduce, rank 3 in read() at data.py:41".

Ranks that are waiting for others are all in a collective, or in the backward pass at DDP's reducer. The missing
rank is somewhere else. If only /proc is readable, ranks are distinguished by the main thread's system call and
kernel function, without a source line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from supervisor.diagnosis.hang.stacks import (
    CALL_NAMES,
    NAMELESS,
    Frame,
    Kind,
    ThreadStack,
    hook_thread,
    kind_of_wait,
    main_thread,
    parse_stack,
    where,
    whose,
)
from supervisor.run.events import RanksAt

# Public names in torch/distributed/distributed_c10d.py (2.13) that wait for other ranks. Functions with the
# same names in sharded checkpoints (torch/distributed/checkpoint/utils.py) also include a rank's own writes.
_COLLECTIVES = frozenset(
    (
        "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_gather_coalesced",
        "barrier", "monitored_barrier", "broadcast", "broadcast_object_list", "reduce", "reduce_scatter",
        "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "gather", "gather_object", "scatter",
        "scatter_object_list", "send", "recv", "isend", "irecv", "batch_isend_irecv", "new_group", "init_process_group",
        "destroy_process_group",
    )
)  # fmt: skip
_CHECKPOINT = "torch/distributed/checkpoint/"
# Where DistributedDataParallel meets its peers without a public name: comparing parameters, broadcasting
# buffers, agreeing on buckets (torch/nn/parallel/distributed.py and torch/distributed/utils.py, 2.13).
_MEETS = {
    "_verify_param_shape_across_processes": "in DDP's set-up",
    "_sync_module_states": "in DDP's set-up",
    "_sync_buffers": "in DDP's forward",
}
_MEETS_ITSELF = {"_pre_forward": "in DDP's forward"}  # only as the innermost frame: it also moves inputs
_GPU_WAITS = frozenset(("synchronize", "wait_stream", "item", "cpu", "tolist"))
_DATA = re.compile(r"torch/utils/data/(?:dataloader|_utils/)|multiprocessing/(?:queues|connection)\.py")
_KERNEL = re.compile(r"thread (\d+) .*: state (\S+), waits in (\S+), system call (\S+)")
# Where a thread waits for another rank (a condition variable, a socket), as opposed to a disk or a timer.
_WAITING_CALLS = frozenset(
    ("futex", "poll", "select", "epoll_wait", "epoll_pwait", "ppoll", "pselect6", "recvfrom")
)


class Doing(StrEnum):
    """What a rank's main thread is doing. The value is stored in the journal."""

    COLLECTIVE = "collective"
    BACKWARD = "backward"  # where ranks meet for DDP's gradients
    GPU = "gpu"  # waits for the device, which may itself wait for other ranks
    DATA = "data"  # waits for a data worker
    OWN = "own"  # its own code, a system call, a sleep
    STOPPED = "stopped"  # by SIGSTOP or a debugger
    KERNEL = "kernel"  # only the kernel's view is known
    UNKNOWN = "unknown"


WAITS_FOR_PEERS = frozenset((Doing.COLLECTIVE, Doing.BACKWARD))
_WITHOUT_PYTHON = frozenset((Doing.STOPPED, Doing.KERNEL, Doing.UNKNOWN))
_KINDS = {
    Doing.COLLECTIVE: Kind.PEERS,
    Doing.BACKWARD: Kind.PEERS,
    Doing.GPU: Kind.DEVICE,
    Doing.DATA: Kind.PROCESS,
}


@dataclass(frozen=True, slots=True)
class RankStack:
    """A rank's stack trace, split into lines. `source` is "py-spy", "faulthandler", "proc" or "none".

    `main_call` is the number of the main thread's system call, from /proc. `for_ever` is true if that call is waiting
    for a lock with no time limit, and None if that is unknown or there is no lock.
    """

    rank: int
    source: str
    lines: tuple[str, ...]
    main_tid: int | None = None
    main_call: str | None = None
    for_ever: bool | None = None


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank is. `line_at` is the user's own line. `mark` is the same for identical stacks.

    `kind` is what the rank is waiting for, or UNKNOWN without a Python stack.
    """

    rank: int
    doing: Doing
    what: str
    line_at: str | None
    mark: str
    idle: bool | None = None
    kind: Kind = Kind.UNKNOWN

    @property
    def is_python(self) -> bool:
        """Whether the stack contains Python frames."""
        return self.doing not in _WITHOUT_PYTHON

    @property
    def where(self) -> str:
        """The location in words, such as ``in read() at data.py:41``."""
        return where(self.what, self.line_at)


@dataclass(frozen=True, slots=True)
class StackRound:
    """All ranks at a single moment. `odd` lists the ranks that, according to the stacks, keep the others waiting.

    `proves_hang` means that the stacks alone look like a deadlock: some ranks await peers that never arrive, or
    all are waiting for each other. A single rank waiting for a device or for data does not prove a hang.
    """

    places: tuple[RankPlace, ...]
    groups: tuple[RanksAt, ...]
    odd: tuple[int, ...]
    proves_hang: bool

    @property
    def text(self) -> str:
        """The groups on one line: those that keep the others waiting come first, then the rest from largest to smallest."""
        odd = set(self.odd)
        ordered = sorted(self.groups, key=lambda group: not odd.issuperset(group.ranks))
        return ", ".join(f"{whose(group.ranks)} {where(group.what, group.line_at)}" for group in ordered)

    def place_of(self, rank: int) -> RankPlace | None:
        """Return where `rank` is."""
        return next((place for place in self.places if place.rank == rank), None)


def stack_round(stacks: Sequence[RankStack]) -> StackRound:
    """Group the ranks by activity and mark the odd ones out."""
    places = tuple(sorted((_place(stack) for stack in stacks), key=lambda place: place.rank))
    by_kind: dict[tuple[Doing, str, str | None], list[int]] = {}
    for place in places:
        by_kind.setdefault((place.doing, place.what, place.line_at), []).append(place.rank)
    groups = [
        RanksAt(ranks=tuple(ranks), doing=doing.value, what=what, line_at=line_at)
        for (doing, what, line_at), ranks in by_kind.items()
    ]
    groups.sort(key=lambda group: (-len(group.ranks), group.ranks))
    odd = _odd(groups, len(places))
    return StackRound(places, tuple(groups), odd, _proves(places, odd))


def alike(one: StackRound, other: StackRound) -> bool:
    """Check whether every rank is at exactly the same known location in both rounds."""
    if [place.rank for place in one.places] != [place.rank for place in other.places]:
        return False
    pairs = zip(one.places, other.places, strict=True)
    return bool(one.places) and all(a.mark == b.mark and a.doing is not Doing.UNKNOWN for a, b in pairs)


def _odd(groups: Sequence[RanksAt], count: int) -> tuple[int, ...]:
    if len(groups) < 2:
        return ()
    waiting = {rank for group in groups if _waits(group) for rank in group.ranks}
    absent = tuple(sorted(rank for group in groups for rank in group.ranks if rank not in waiting))
    if waiting and absent:
        # A rank that waits for its own device may be waiting for a collective there. It is odd only if no other rank is.
        firm = tuple(r for g in groups if not _waits(g) and g.doing != Doing.GPU for r in g.ranks)
        return tuple(sorted(firm)) if firm else absent
    # All wait in different collectives, or none waits. The smallest group is odd, if clearly smaller.
    smallest = groups[-1]
    return smallest.ranks if len(smallest.ranks) * 2 < count else ()


def _waits(group: RanksAt) -> bool:
    if group.doing == Doing.KERNEL:
        return group.what.partition("(")[0].removeprefix("in ").strip() in _WAITING_CALLS
    return group.doing in WAITS_FOR_PEERS


def _proves(places: Sequence[RankPlace], odd: Sequence[int]) -> bool:
    doings = {place.rank: place.doing for place in places}
    if not doings or Doing.UNKNOWN in doings.values():
        return False
    if all(doing is Doing.STOPPED for doing in doings.values()):
        return False  # the job was suspended, and should be continued, not restarted
    if odd:
        # If the odd rank only waits for its device, it may be computing for all (an evaluation on one rank).
        return any(doings[rank] is not Doing.GPU for rank in odd)
    if all(doing in WAITS_FOR_PEERS for doing in doings.values()):
        return True
    if any(place.doing is Doing.GPU for place in places):
        return False
    # All are at the same place in their own code. They are stuck only if none of them runs.
    return all(place.idle is not False for place in places)


def _place(stack: RankStack) -> RankPlace:
    if stack.source == "proc":
        return _kernel_place(stack)
    threads = parse_stack(stack.lines)
    thread = main_thread(threads)
    if thread is None or not thread.frames:
        return RankPlace(stack.rank, Doing.UNKNOWN, "somewhere", None, "")
    doing, what = _doing(thread.frames)
    own = next((frame for frame in thread.frames if not frame.is_library), None)
    line_at = own.place if own is not None else None
    if doing is Doing.OWN and own is not None:
        what = f"in {_called(thread.frames, own, stack.main_call)}"
    kind, mark = _KINDS.get(doing), _mark(thread)
    others = [other for other in threads if other is not thread]
    if kind is None:
        kind = kind_of_wait(thread, others, stack.main_call, for_ever=stack.for_ever)
    elif doing is Doing.BACKWARD and (hook := hook_thread(others)) is not None:
        # The rank waits for the work of a hook: a disk read, recomputed activations, a collective.
        mark += f"||{_mark(hook)}"
        doing_there, _ = _doing(hook.frames)
        kind = _KINDS.get(doing_there) or kind_of_wait(hook, (), None, for_ever=None)
    return RankPlace(stack.rank, doing, what, line_at, mark, thread.idle, kind)


def _called(frames: Sequence[Frame], own: Frame, call: str | None) -> str:
    """Name what the user's line called: a library function, a built-in's system call, or else the user's own function."""
    at = frames.index(own)
    if at > 0:
        return f"{frames[at - 1].function}()"
    name = CALL_NAMES.get(call or "")
    return f"{own.function}()" if name is None or call in NAMELESS else f"{name}()"


def _doing(frames: Sequence[Frame]) -> tuple[Doing, str]:
    for frame in frames:
        if not frame.is_library:
            break
        if (met := _meeting(frame, innermost=frame is frames[0])) is not None:
            return Doing.COLLECTIVE, met
    for frame in frames:
        if not frame.is_library:
            break
        if frame.name == "_engine_run_backward" or "torch/autograd/" in frame.file:
            return Doing.BACKWARD, "in backward"
        if _DATA.search(frame.file):
            return Doing.DATA, "waiting for data"
        if "torch/cuda/" in frame.file and frame.name in _GPU_WAITS:
            return Doing.GPU, "waiting for the GPU"
    return Doing.OWN, "in its own code"


def _meeting(frame: Frame, *, innermost: bool) -> str | None:
    """Return the synchronization point that a call belongs to, or None if it belongs to none."""
    distributed = "torch/distributed/" in frame.file
    if frame.name in _COLLECTIVES and distributed and _CHECKPOINT not in frame.file:
        return f"in {frame.name}"
    if not distributed and "torch/nn/parallel/" not in frame.file:
        return None
    return _MEETS.get(frame.name) or (_MEETS_ITSELF.get(frame.name) if innermost else None)


def _mark(thread: ThreadStack) -> str:
    return "|".join(f"{frame.function}@{frame.file}:{frame.line}" for frame in thread.frames)


def _kernel_place(stack: RankStack) -> RankPlace:
    rows = [found for line in stack.lines if (found := _KERNEL.match(line)) is not None]
    if not rows:
        return RankPlace(stack.rank, Doing.UNKNOWN, "somewhere", None, "")
    main = next((row for row in rows if int(row[1]) == stack.main_tid), rows[0])
    state, waits, number = main[2], main[3], main[4]
    if state in {"T", "t"}:
        return RankPlace(
            stack.rank,
            Doing.STOPPED,
            "stopped by a signal (SIGSTOP)",
            None,
            f"{state}",
            idle=True,
            kind=Kind.STOPPED,
        )
    call = CALL_NAMES.get(number, f"system call {number}")
    kernel = f" ({waits})" if waits != "-" else ""
    mark = f"{state}/{waits}/{number}"
    return RankPlace(stack.rank, Doing.KERNEL, f"in {call}{kernel}", None, mark, idle=state != "R")
