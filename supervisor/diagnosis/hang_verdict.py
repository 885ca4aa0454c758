"""The verdict on a hang from stacks and flight-recorder dumps, which outweigh the log lines from its end.

The rank that is elsewhere is the culprit; the ranks that wait for it in a collective are consequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from supervisor.diagnosis.attempt_facts import Facts, Root
from supervisor.diagnosis.evidence import JobEvidence, SeenHang, SeenRecorder
from supervisor.run.failures import FailureClass
from supervisor.run.records import SURELY_OVER, Consequence

if TYPE_CHECKING:
    from supervisor.run.events import RanksAt

# Signs of the end of a hang: our own signals, peers with a lost connection, silence.
_ENDINGS = frozenset(
    (
        FailureClass.TERMINATED, FailureClass.UNKNOWN, FailureClass.HEALTHY, FailureClass.HANG,
        FailureClass.WORKER_CRASH, FailureClass.NCCL_TIMEOUT, FailureClass.NCCL_ERROR, FailureClass.RENDEZVOUS,
    )
)  # fmt: skip
# Signs that the waiting ranks gave up on their own, before stoker would have ended them.
_GIVEN_UP = frozenset((FailureClass.NCCL_TIMEOUT, FailureClass.HANG))
# If more ranks than this wait at the same place, only their number is given.
MOST_NAMED = 16
# No launcher and no exit code confirms the dumps.
BY_RECORDER = 0.85
ALL_IN_THE_FIRST = (
    "All ranks came to their first collective, and it does not end: GPUs cannot reach each other directly (PCIe ACS, an IOMMU "
    "or a virtual machine). Try NCCL_P2P_DISABLE=1, then NCCL_DEBUG=INFO and NCCL_SOCKET_IFNAME."
)
ALL_IN_ONE = "No rank is missing: look at the network and the links between the GPUs, with NCCL_DEBUG=INFO, and for Xid errors in `dmesg`."
MOST_GROUPS = 8
# Values of `stack_groups.Doing`.
_MEETINGS = frozenset(("collective", "backward"))
_WAITS = _MEETINGS | {"kernel"}


def hang_by_stacks(facts: Facts, root: Root) -> Root | None:
    """The root from the stacks, if the attempt was ended as a hang.

    A cause logged by a rank itself (an exception before it stopped responding) still wins: the hang is then
    its symptom.
    """
    seen = facts.job.hang
    if seen is None or not seen.ended_for_it:
        return None
    raised = root.chosen is not None and root.chosen.is_cause and not root.chosen.soft
    if raised and root.failure not in _ENDINGS:
        return None
    confidence = 0.92 if seen.ranks else 0.8
    return _from_stacks(seen, root._replace(failure=FailureClass.HANG, confidence=confidence))


def timeout_by_stacks(facts: Facts, root: Root) -> Root | None:
    """If waiting ranks timed out, the stacks show which ranks they waited for; the logs only suggest it.

    With gloo there is no NCCL, so the stacks give the class.
    """
    seen = facts.job.hang
    if seen is None or seen.ended_for_it or not seen.path or root.failure not in _GIVEN_UP:
        return None
    own = root.chosen.rank if root.chosen is not None else None  # the complaining rank was waiting
    if root.rank not in {None, own, *seen.ranks}:
        return None
    if root.chosen is not None and "gloo" in root.chosen.text.lower():
        root = root._replace(failure=FailureClass.HANG)
    return _from_stacks(seen, root)


def _from_stacks(seen: SeenHang, root: Root) -> Root:
    rank = seen.ranks[0] if len(seen.ranks) == 1 else None
    at_fault = [group for group in seen.groups if seen.ranks and set(group.ranks) <= set(seen.ranks)]
    named = [f"{_whose(group.ranks)} {_where(group)}" for group in at_fault[:MOST_GROUPS]]
    text = ", ".join(named) + (", …" if len(at_fault) > MOST_GROUPS else "")
    text = text or seen.text
    if seen.collective:
        text = f"{text}; {seen.collective}"
    return Root(root.failure, None, rank, seen.ranks, None, seen.path, seen.line, text, root.confidence)


def stacks_behind(job: JobEvidence, root: Root) -> SeenHang | None:
    """The stacks behind a root; None if it rests on something else."""
    seen = job.hang
    if seen is None or root.failure not in _GIVEN_UP or root.chosen is not None:
        return None
    return seen if (root.path, root.line, root.ranks) == (seen.path, seen.line, seen.ranks) else None


def title_of_absent(ranks: Sequence[int], failure: FailureClass) -> str | None:
    """The headline of a timeout whose absent ranks are known; None for any other root."""
    if failure is not FailureClass.NCCL_TIMEOUT or not ranks:
        return None
    return f"A collective timed out: {_who(ranks)} never joined it"


def hang_by_recorder(facts: Facts, root: Root) -> Root | None:
    """The missing ranks according to the dumps; the class and the line of a timeout stay.

    They say more than silence, a bare crash, a stop, or a wait. If the log itself reports its end, the dumps are from another time.
    """
    seen = facts.job.recorder
    if seen is None:
        return None
    rank = seen.ranks[0] if len(seen.ranks) == 1 else None
    if root.failure in _GIVEN_UP:
        return root._replace(rank=rank, ranks=seen.ranks) if seen.ranks else None
    applies = (
        root.failure in (FailureClass.UNKNOWN, FailureClass.TERMINATED)
        or (root.failure is FailureClass.HEALTHY and root.confidence < SURELY_OVER)
        or (root.failure is FailureClass.WORKER_CRASH and root.chosen is None)
    )
    if not applies:
        return None
    return Root(FailureClass.HANG, None, rank, seen.ranks, None, seen.path, 0, seen.text, BY_RECORDER)


def recorder_behind(job: JobEvidence, root: Root) -> SeenRecorder | None:
    """The dumps behind a root; None if it rests on something else."""
    seen = job.recorder
    if seen is None or root.failure not in _GIVEN_UP:
        return None
    return seen if root.ranks == seen.ranks or root.path == seen.path else None


def advice_by_recorder(seen: SeenRecorder, general: Sequence[str]) -> tuple[str, ...]:
    """What the dumps show, and what to check next, before the class's own advice."""
    if not seen.ranks:
        return (ALL_IN_THE_FIRST if seen.at_start else ALL_IN_ONE, *general[1:])
    return (f"The flight recorder shows: {seen.text}.", *general)


def waited(seen: SeenHang) -> tuple[Consequence, ...]:
    """The waiting ranks, one each: their wait is a consequence of where the others were."""
    if not seen.ranks or not seen.path:
        return ()
    found: list[Consequence] = []
    for group in seen.groups:
        if set(group.ranks) <= set(seen.ranks):
            continue
        waits = group.doing in _WAITS and group.what.startswith("in ")
        words = f"waited for {_who(seen.ranks)} {_where(group)}" if waits else f"was {_where(group)}"
        named: Sequence[int | None] = group.ranks
        if len(group.ranks) > MOST_NAMED:
            named = (None,)
            words = f"{len(group.ranks)} ranks: {words}"
        for at, rank in enumerate(named):
            line = group.lines[at] if at < len(group.lines) else None
            found.append(Consequence(FailureClass.HANG, rank, seen.path, line, "", words))
    return tuple(found)


def advice_by_stacks(seen: SeenHang, general: Sequence[str]) -> tuple[str, ...]:
    """What the stacks show and what to check next, replacing the class's first sentence, which asks for stacks."""
    if not seen.groups:
        return tuple(general)
    first = next((group for group in seen.groups if set(group.ranks) <= set(seen.ranks)), None)
    return (_all_alike(seen) if first is None else _next_look(first), *general[1:])


def _next_look(first: RanksAt) -> str:
    where = f"{_whose(first.ranks)} {_where(first)}"
    match first.doing:
        case "own":
            return (
                f"Look why {first.line_at or 'it'} does not end (a loop without a bound, a lock, a file or a server that "
                f"does not answer): the stacks show {_whose(first.ranks)} {first.what}, outside the collective."
            )
        case "collective" | "backward":
            return (
                f"The stacks show {where} and the others elsewhere: the ranks took different branches. Look for a "
                "collective under `if rank == …`, and for batches that differ in number."
            )
        case "data":
            return f"The stacks show {where}: look at what its data workers read, and give the DataLoader a timeout=."
        case "gpu":
            return f"The stacks show {where}: look for a kernel that does not end, and for Xid errors in `dmesg`."
        case "stopped":
            return f"The stacks show {where}: find out who suspended it; `kill -CONT` lets it continue."
        case _:
            return (
                f"Only the kernel's side was seen, {where}: with py-spy, or `[hang] faulthandler = true`, its line is told "
                "too."
            )


def _all_alike(seen: SeenHang) -> str:
    if any(group.doing not in _MEETINGS for group in seen.groups):
        return "The stacks show no rank apart from the others: look at the line that all of them stand at."
    if len({(group.what, group.line_at) for group in seen.groups}) > 1:
        return (
            "Look for the branch that parts the ranks (a collective under `if rank == …`, batches that differ in number): "
            "the stacks show each waiting at another line for the others."
        )
    return (
        "Look at the network and at the ranks of other nodes: the stacks show all ranks here in the same collective, and "
        "none is missing."
    )


def _where(group: RanksAt) -> str:
    """``in all_reduce at train.py:50``."""
    return group.what if group.line_at is None else f"{group.what} at {group.line_at}"


def _whose(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"


def _who(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:8]))}" + (" …" if len(ranks) > 8 else "")
