"""A chosen line, exit or silence made into a root: whose it is, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.diagnosis.attribution.exits import Exit
from supervisor.diagnosis.attribution.ranks import device_of
from supervisor.diagnosis.attribution.waiting import lagging_rank
from supervisor.diagnosis.case import Case, Root
from supervisor.diagnosis.cause.confidence import Chosen, confidence_of, far_below, level
from supervisor.diagnosis.cause.fingerprint import plain_form
from supervisor.diagnosis.scan.hit import Candidate
from supervisor.diagnosis.scan.signature_tables import Strength, Trait
from supervisor.diagnosis.scan.tracebacks import frames_above
from supervisor.run.failures import FailureClass, Reason

# Peers' complaints alone.
_COMPLAINT_BY_STRENGTH = ((Strength.DECISIVE, 0.9), (Strength.COMPLAINT, 0.8))
WEAK_COMPLAINT_CONFIDENCE = 0.65
# What the whole job came to, or nobody's line tells.
_OF_NO_RANK = frozenset(
    (FailureClass.HEALTHY, FailureClass.UNKNOWN, FailureClass.TERMINATED, FailureClass.RENDEZVOUS)
)
WARNING_COSTS = 0.15  # the complaint is only a warning

# -- roots from lines ------------------------------------------------------------------------------


def from_candidate(item: Candidate, peers: Sequence[Candidate], case: Case) -> Root:
    """A root from a chosen line: its rank, or the ranks that fail alike."""
    item = _own_line(item, peers)
    alike = [other for other in peers if other.failure is item.failure]
    ranks = _ranks_alike(alike, case)
    rank: int | None = None
    if not ranks:
        rank = _rank_of(item, alike, case)
        ranks = (rank,) if rank is not None else ()
    return Root(
        item.failure, item.reason, rank, ranks, case.ranks.node_of(item.hit.origin),
        case.scans[item.source].path, item.line, item.text, confidence_of(Chosen(item, peers, case)), item,
    )  # fmt: skip


def _ranks_alike(alike: Sequence[Candidate], case: Case) -> tuple[int, ...]:
    """All ranks, where all of them failed in the same way; empty where some did not, or only one is named."""
    named = {rank for other in alike if (rank := other.rank) is not None}
    world = case.job.world_size or case.launch.world_size or (max(case.ranks.seen, default=-1) + 1 or None)
    all_failed = named >= set(case.launch.failed_ranks) and (world is None or len(named) >= world)
    return tuple(sorted(named)) if len(named) >= 2 and all_failed else ()


def _rank_of(item: Candidate, alike: Sequence[Candidate], case: Case) -> int | None:
    if item.failure is FailureClass.HANG:
        rank = lagging_rank(case.candidates, case.launch, case.ranks)
    else:
        rank = case.ranks.of(item.hit, item.failure)
    if rank is not None or item.hit.origin.local_rank is not None:
        return rank
    if item.failure is not FailureClass.TERMINATED or _is_one_process(case):
        return _rank_otherwise(item, alike, case)
    return None


def _is_one_process(case: Case) -> bool:
    """Whether nothing in the logs names another process: no launcher, and no rank where the world is not known to be one."""
    return not case.launch.distributed and (not case.ranks.seen or case.launch.world_size == 1)


def _own_line(item: Candidate, peers: Sequence[Candidate]) -> Candidate:
    """The same words in the rank's own log, where the chosen ones stand in a launcher's summary."""
    origin = item.hit.origin
    if origin.local_rank is not None or origin.rank is not None:
        return item
    own = (
        other
        for other in peers
        if other.source != item.source
        and other.failure is item.failure
        and other.hit.origin.local_rank is not None
        and _same_words(other, item)
    )
    return next(own, item)


def _same_words(one: Candidate, other: Candidate) -> bool:
    return (
        plain_form(one.text) == plain_form(other.text)
        or one.text.strip() in other.text
        or other.text.strip() in one.text
    )


def _rank_otherwise(item: Candidate, alike: Sequence[Candidate], case: Case) -> int | None:
    """The rank of a line that names none: of its peers, by the launcher, or the only one that is silent."""
    if item.failure in (FailureClass.RENDEZVOUS, FailureClass.LIBUV):
        return case.ranks.blamed()
    for other in alike:
        found = case.ranks.of(other.hit, other.failure)
        if found is not None:
            return found
    if item.failure is FailureClass.GPU_FAULT:
        # The driver names a bus address; the process that felt it names its rank.
        felt = (other for other in case.candidates if other.failure is FailureClass.CUDA_ERROR)
        named = (rank for other in felt if (rank := case.ranks.of(other.hit, other.failure)) is not None)
        if (rank := next(named, None)) is not None:
            return rank
    if (blamed := case.ranks.blamed()) is not None:
        return blamed
    if case.launch.distributed and (silent := case.ranks.only_silent()) is not None:
        return silent
    if item.failure is FailureClass.PORT_IN_USE or not case.launch.distributed:
        return 0
    return None


def own_complaint(item: Candidate, consequences: Sequence[Candidate]) -> Candidate:
    """The line that a complaint is shown by: the rank's own, and of a rendezvous the exception below its notices."""
    item = _own_line(item, consequences)
    if item.failure is not FailureClass.RENDEZVOUS or "Error" in item.text:
        return item
    raised = (
        other
        for other in consequences
        if other.signature.id == item.signature.id and "Error: " in other.text and far_below(item, other)
    )
    return next(raised, item)


def from_complaint(item: Candidate, case: Case) -> Root:
    """A root where only peers' complaints are known."""
    rank = None
    if item.failure in (FailureClass.NCCL_TIMEOUT, FailureClass.HANG):
        rank = lagging_rank(case.candidates, case.launch, case.ranks)
        rank = rank if rank is not None else frames_above(item.hit).spawn_rank
    elif item.failure is FailureClass.NCCL_ERROR:
        if item.has(Trait.LOST_CONNECTION):
            rank = lagging_rank(case.candidates, case.launch, case.ranks)
        rank = rank if rank is not None else case.ranks.of(item.hit, item.failure)
        rank = rank if rank is not None else case.ranks.blamed()
    rank = rank if rank is not None else case.ranks.only_speaker()
    confidence = level(item.strength, _COMPLAINT_BY_STRENGTH, WEAK_COMPLAINT_CONFIDENCE)
    return Root(
        item.failure, item.reason, rank, (rank,) if rank is not None else (), case.ranks.node_of(item.hit.origin),
        case.scans[item.source].path, item.line, item.text, confidence - (WARNING_COSTS if item.soft else 0), item,
    )  # fmt: skip


def with_local_rank(root: Root, case: Case) -> Root:
    """The root with its node and local rank, where it is one process's and the global rank is not known."""
    if root.ranks or root.local_rank is not None or root.chosen is None or root.failure in _OF_NO_RANK:
        return root
    origin, blamed = root.chosen.hit.origin, case.ranks.blamed_exit()
    local = origin.local_rank if origin.local_rank is not None else device_of(root.text)
    if local is not None:
        return root._replace(local_rank=local)
    node = case.ranks.node_of(blamed.hit.origin) if blamed is not None else None
    if blamed is not None and root.node in {None, node}:
        return root._replace(local_rank=blamed.local_rank, node=node)
    return root


# -- roots from exits ------------------------------------------------------------------------------


def from_exit(
    item: Exit, case: Case, failure: FailureClass = FailureClass.WORKER_CRASH, reason: Reason | None = None
) -> Root:
    """A root from how a process ended. Without a reason, by its exit code: a SIGKILL, another signal."""
    rank = case.ranks.of_exit(item)
    if reason is None and failure is FailureClass.WORKER_CRASH:
        reason = Reason.SIGNAL
        if item.code == -9:
            failure, reason = FailureClass.HOST_OOM, Reason.KERNEL_KILL
    return Root(
        failure, reason, rank, (rank,) if rank is not None else (), item.node or case.ranks.node_of(item.hit.origin),
        case.scans[item.hit.source].path if item.hit.source >= 0 else "", item.hit.line, item.hit.text,
        local_rank=item.local_rank,
    )  # fmt: skip
