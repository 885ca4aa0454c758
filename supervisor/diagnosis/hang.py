"""A hang that the keeper saw and ended: what the stacks said outweighs what the ending left in the logs."""

from __future__ import annotations

from supervisor.diagnosis.root import Case, Root
from supervisor.run.failures import FailureClass

# What the end of a hang looks like by itself: our own signals, peers that lost a connection, silence.
_ENDINGS = frozenset(
    (
        FailureClass.TERMINATED,
        FailureClass.UNKNOWN,
        FailureClass.HEALTHY,
        FailureClass.HANG,
        FailureClass.WORKER_CRASH,
        FailureClass.NCCL_TIMEOUT,
        FailureClass.NCCL_ERROR,
        FailureClass.RENDEZVOUS,
    )
)


def with_hang(case: Case, root: Root) -> Root:
    """The root, or the hang in its place.

    A cause that a rank wrote itself (an exception before it stopped answering) still wins: the hang is then how it
    showed.
    """
    seen = case.job.hang
    if seen is None:
        return root
    told = root.chosen is not None and root.chosen.is_cause and not root.chosen.soft
    if told and root.failure not in _ENDINGS:
        return root
    rank = seen.ranks[0] if len(seen.ranks) == 1 else None
    text = f"{seen.text}; {seen.collective}" if seen.collective else seen.text
    return Root(
        FailureClass.HANG,
        None,
        rank,
        seen.ranks,
        None,
        seen.path,
        seen.line,
        text,
        0.92 if seen.ranks else 0.8,
    )
