"""A chosen line, exit or silence made into a root: whose it is, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.diagnosis.attribution import log_timeline as timeline
from supervisor.diagnosis.attribution.exits import Exit
from supervisor.diagnosis.attribution.recovered_errors import is_talk
from supervisor.diagnosis.attribution.waiting import different_rendezvous, lagging_rank
from supervisor.diagnosis.cause.candidates import Candidate
from supervisor.diagnosis.cause.fingerprint import plain_form
from supervisor.diagnosis.cause.root import Case, Root
from supervisor.diagnosis.evidence import JobEvidence
from supervisor.diagnosis.scan.hit import GENERIC
from supervisor.diagnosis.scan.tracebacks import frames_above
from supervisor.run.failures import FailureClass, Reason
from supervisor.text.patterns import Lazy

# What argparse, getopt and most programs end with when they were called wrongly (Python: argparse.ArgumentParser.error).
USAGE_EXIT = 2


def _own_line(item: Candidate, peers: Sequence[Candidate]) -> Candidate:
    """The same words in the rank's own log, where the chosen ones stand in a launcher's summary or come a moment later."""
    origin = item.hit.origin
    for other in peers:
        theirs = other.hit.origin
        if other.hit.source == item.hit.source or other.failure is not item.failure:
            continue
        if (
            origin.local_rank is None
            and origin.rank is None
            and theirs.local_rank is not None
            and _same_words(other, item)
        ):
            return other
    if origin.local_rank is not None:
        for other in peers:
            near = abs(other.order - item.order) <= 2
            if (
                near
                and other.signature == item.signature
                and other.hit.source < item.hit.source
                and other.hit.origin.local_rank is not None
            ):
                return other
    return item


def _same_words(one: Candidate, other: Candidate) -> bool:
    return (
        plain_form(one.text) == plain_form(other.text)
        or one.text.strip() in other.text
        or other.text.strip() in one.text
    )


def from_candidate(item: Candidate, peers: Sequence[Candidate], case: Case) -> Root:
    """A root from a chosen line: its rank, or the ranks that fail alike."""
    item = _own_line(item, peers)
    alike_all = [other for other in peers if other.failure is item.failure]
    rank = case.ranks.of(item.hit, item.failure)
    if item.failure is FailureClass.HANG:
        rank = lagging_rank(case.candidates, case.launch, case.ranks)
    named = {found for other in alike_all if (found := other.hit.origin.rank) is not None}
    ranks: tuple[int, ...] = ()
    world = case.job.world_size or case.launch.world_size or (max(case.ranks.seen, default=-1) + 1 or None)
    failed = set(case.launch.failed_ranks)
    if len(named) >= 2 and (named >= failed if failed else True) and (world is None or len(named) >= world):
        ranks = tuple(sorted(named))
        rank = None
    elif rank is None and item.failure is not FailureClass.TERMINATED:
        rank = _rank_otherwise(item, alike_all, case)
    confidence = _confidence(item, peers)
    return Root(
        item.failure, item.reason, rank, ranks or ((rank,) if rank is not None else ()), item.hit.origin.node,
        case.scans[item.hit.source].path, item.line, item.text, confidence, item,
    )  # fmt: skip


def _rank_otherwise(item: Candidate, alike: Sequence[Candidate], case: Case) -> int | None:
    if item.failure in (FailureClass.RENDEZVOUS, FailureClass.LIBUV):
        return case.ranks.blamed()
    for other in alike:
        found = case.ranks.of(other.hit, other.failure)
        if found is not None:
            return found
    if item.failure is FailureClass.GPU_FAULT:
        # The driver names a bus address; the process that felt it names its rank.
        for other in case.candidates:
            if other.failure is FailureClass.CUDA_ERROR and other.hit.origin.rank is not None:
                return other.hit.origin.rank
    blamed = case.ranks.blamed()
    if blamed is not None and (late := _late_instead_of(blamed, case)) is not None:
        return late
    if blamed is not None:
        return blamed
    if case.launch.distributed and (silent := case.ranks.only_silent()) is not None:
        return silent
    if item.failure is FailureClass.PORT_IN_USE or not case.launch.distributed:
        return 0
    return None


def _late_instead_of(blamed: int, case: Case) -> int | None:
    """The rank that did not come, where the one that the launcher saw fall first only waited and timed out."""
    waited = {
        item.hit.origin.rank
        for item in case.candidates
        if not item.is_cause and not item.soft and item.failure is FailureClass.NCCL_TIMEOUT
    }
    if blamed not in waited:
        return None
    late = lagging_rank(case.candidates, case.launch, case.ranks)
    return late if late not in waited else None


# The most that is said where a line's words lead to another class.
NEAR_SURE = 0.86
# Classes without words of their own: silences, and whatever the program raises.
_WITHOUT_WORDS = frozenset((FailureClass.HANG, FailureClass.CODE_ERROR))
_VAGUE = Lazy(
    r"\b(?:ValueError|AssertionError|RuntimeError|OSError|Exception|NotImplementedError|MisconfigurationException|ZeroDivisionError)\b|'NoneType' object"
)


def _confidence(item: Candidate, peers: Sequence[Candidate]) -> float:
    strength = item.strength
    value = (
        0.97
        if strength >= 88
        else 0.94
        if strength >= 76
        else 0.91
        if strength >= 60
        else 0.82
        if strength >= 48
        else 0.6
    )
    rivals = {
        other.failure for other in peers if other.failure is not item.failure and other.strength >= strength
    }
    if rivals:
        value -= 0.08
    if item.soft and not any(not other.soft and other.failure is item.failure for other in peers):
        value -= 0.15
    if is_talk(item):
        value = min(value, 0.88)
    if item.signature in GENERIC and _VAGUE.search(item.text):
        # These are raised for anything: arguments, files, versions, what was not there. The message did not say more.
        value = min(value, 0.86)
    if item.signature == "code-exception" and item.failure is FailureClass.CODE_ERROR:
        # A type that libraries raise for their own troubles, in words nobody told: 8 of 17 such were right unseen.
        value = min(value, 0.66)
    if value > NEAR_SURE and item.failure not in _WITHOUT_WORDS:
        from supervisor.diagnosis.cause.vocabulary import (
            class_by_words,  # 2 ms that a plain KeyError need not pay
        )

        leader = class_by_words(item.text)
        if leader is not None and leader[0] is not item.failure:
            # With the very signature of a line held out, most of what was wrong and sure of itself was of this kind:
            # an uncorrectable ECC error is a "CUDA error" too, a full /dev/shm also says "No space left on device".
            value = NEAR_SURE
    return max(value, 0.3)


def from_exit(item: Exit, case: Case) -> Root:
    """A root from how a process ended."""
    rank = item.rank
    if rank is None and item.local_rank is not None:
        rank = case.ranks.from_local(item.local_rank, item.node)
    if rank is None and item.task is not None:
        rank = case.ranks.from_task(item.task)
    failure, reason, confidence = FailureClass.WORKER_CRASH, Reason.SIGNAL, 0.9
    if item.code == -9:
        failure, reason, confidence = FailureClass.HOST_OOM, Reason.KERNEL_KILL, 0.7
    return Root(
        failure, reason, rank, (rank,) if rank is not None else (), item.node,
        case.scans[item.hit.source].path if item.hit.source >= 0 else "", item.hit.line, item.hit.text, confidence,
    )  # fmt: skip


def from_odd_exit(item: Exit, case: Case) -> Root:
    """A root from a process that left by an unusual code without a word."""
    root = from_exit(item, case)
    if item.code in {-15, -2, -1}:
        return root._replace(failure=FailureClass.TERMINATED, reason=Reason.OUTSIDE, confidence=0.8)
    if item.code == USAGE_EXIT and (spoken := _last_words(item, case)) is not None:
        path, line, text = spoken
        return root._replace(
            failure=FailureClass.USAGE_ERROR, reason=None, path=path, line=line, text=text, confidence=0.8
        )
    return root._replace(reason=Reason.EXIT_CODE if item.code > 0 else root.reason, confidence=0.8)


def _last_words(item: Exit, case: Case) -> tuple[str, int, str] | None:
    """The one last line that a rank wrote to its own stderr, if no traceback stands above it: ``prog: what is wrong``."""
    for scan in case.scans:
        origin = scan.origin
        theirs = origin.rank == item.rank if origin.rank is not None else origin.local_rank == item.local_rank
        if origin.stream != "stderr" or not theirs or (origin.rank is None and origin.local_rank is None):
            continue
        if any(line.startswith("Traceback (most recent call last)") for line in scan.tail):
            return None
        for back, line in enumerate(reversed(scan.tail)):
            if line.strip():
                return (scan.path, scan.tail_line + len(scan.tail) - 1 - back, line) if ": " in line else None
    return None


def from_effect(item: Candidate, effects: Sequence[Candidate], case: Case) -> Root:
    """A root where only peers' complaints are known."""
    rank = None
    item = _own_line(item, effects)
    if item.failure is FailureClass.RENDEZVOUS and "Error" not in item.text:
        item = next(
            (
                other
                for other in effects
                if other.signature == item.signature and "Error: " in other.text and far_below(item, other)
            ),
            item,
        )
    if item.failure in (FailureClass.NCCL_TIMEOUT, FailureClass.HANG):
        rank = lagging_rank(case.candidates, case.launch, case.ranks)
        rank = rank if rank is not None else frames_above(item.hit).spawn_rank
    elif item.failure is FailureClass.NCCL_ERROR:
        if item.signature in {
            "nccl-remote",
            "gloo-peer-closed",
            "store-lost",
            "nccl-net-peer-gone",
            "peer-generic",
        }:
            rank = lagging_rank(case.candidates, case.launch, case.ranks)
        rank = rank if rank is not None else case.ranks.of(item.hit, item.failure)
    if item.failure is FailureClass.RENDEZVOUS and (odd := different_rendezvous(case.scans)) is not None:
        source, line, text = odd
        return Root(item.failure, None, None, (), None, case.scans[source].path, line, text, 0.93, item)
    confidence = 0.9 if item.strength >= 70 else 0.8 if item.strength >= 45 else 0.65
    return Root(
        item.failure, item.reason, rank, (rank,) if rank is not None else (), item.hit.origin.node,
        case.scans[item.hit.source].path, item.line, item.text, confidence - (0.15 if item.soft else 0), item,
    )  # fmt: skip


_LAUNCHERS = (
    "srun: ",
    "slurmstepd: ",
    "sbatch: ",
    "salloc: ",
    "make: ",
    "mpirun",
    "prterun",
    "docker: ",
    "kubectl",
    "pdsh",
)
_COMPLAINT = Lazy(r"^(?:[\w./-]{1,60}: )?(?:error|Error|ERROR|fatal|usage): \S")


def weak_exit(case: Case) -> Root | None:
    """Aborts, terminations and plain exit codes, where nothing says more."""
    own = [
        item for item in case.launch.exits if item.code != 0 and item.hit.signature.id != "launch-shell-exit"
    ]
    own.sort(key=lambda item: (item.summary, item.hit.source, item.hit.line))
    abort = next((item for item in own if item.code == -6), None)
    if abort is not None:
        return from_exit(abort, case)._replace(confidence=0.8)
    term = next((item for item in own if item.code in {-15, -2, -1}), None)
    if term is not None and all(item.code < 0 for item in own):
        # Where another ended by itself, the launcher sent the signal.
        root = from_exit(term, case)
        return root._replace(failure=FailureClass.TERMINATED, reason=Reason.OUTSIDE, confidence=0.75)
    if own and own[0].code == 1 and (said := _said_at_exit(case)) is not None:
        path, line, text = said
        root = from_exit(own[0], case)
        return root._replace(
            failure=FailureClass.USAGE_ERROR, reason=None, path=path, line=line, text=text, confidence=0.7
        )
    other = next((item for item in own if item.code not in {0, 1} and item.code < 128), None)
    if other is not None:
        return from_exit(other, case)._replace(reason=Reason.EXIT_CODE, confidence=0.75)
    return None


def _said_at_exit(case: Case) -> tuple[str, int, str] | None:
    """What a program said as it ended of its own will, ``error: …``, in a job without tracebacks and steps."""
    if any_progress(case) or any(
        hit.signature.id == "traceback-head" and hit.origin.rank is not None
        for scan in case.scans
        for hit in scan.hits
    ):
        return None
    for scan in case.scans:
        for row, line in enumerate(scan.tail):
            if _COMPLAINT.match(line) and not line.startswith(_LAUNCHERS):
                return scan.path, scan.tail_line + row, line
    return None


def silent_hang(case: Case) -> Root | None:
    """A silence of many steps before the end that somebody or a time limit put to it."""
    for scan in case.scans:
        found = timeline.silence_s(scan.tail)
        if found is not None and found[0] >= max(900.0, 25 * found[1]):
            return Root(FailureClass.HANG, None, None, (), None, scan.path, 0, "", 0.78)
    return None


def lost_loss(case: Case) -> Root | None:
    """A loss that was nan to the last line that told one."""
    for scan in case.scans:
        row = timeline.ends_in_nan(scan.tail)
        if row is not None:
            rank = scan.origin.rank if scan.origin.rank is not None else scan.origin.local_rank or 0
            return Root(
                FailureClass.NAN_LOSS,
                None,
                rank,
                (rank,),
                None,
                scan.path,
                scan.tail_line + row,
                scan.tail[row],
                0.88,
            )
    return None


def _breaks_off(tail: Sequence[str]) -> bool:
    """Whether a log ends within a traceback: it was cut before the line that says what was raised."""
    for back, line in enumerate(reversed(tail[-60:])):
        if "Traceback (most recent call last)" in line:
            return back > 0
        if line.strip() and not line.startswith((" ", "\t", "│", "|")):
            return False
    return False


def quiet_end(case: Case, died: bool, job: JobEvidence) -> Root:
    """No line to point at: a loss that stayed nan, a good end, or nothing known."""
    if (lost := lost_loss(case)) is not None:
        return lost
    first = next((item for item in case.launch.exits if item.code != 0), None)
    if died:
        blamed = case.ranks.blamed() if first is not None else None
        ranks = (blamed,) if blamed is not None else ()
        return Root(FailureClass.UNKNOWN, None, blamed, ranks, None, "", 0, "", 0.5)
    if any(_breaks_off(scan.tail) for scan in case.scans):
        return Root(FailureClass.UNKNOWN, None, None, (), None, "", 0, "", 0.5)
    good = any(hit.signature.id == "end-success" for scan in case.scans for hit in scan.hits)
    if good or any_progress(case) or job.launcher_exit == 0:
        return Root(FailureClass.HEALTHY, None, None, (), None, "", 0, "", 0.95 if good else 0.85)
    return Root(FailureClass.UNKNOWN, None, None, (), None, "", 0, "", 0.4)


def far_below(one: Candidate, other: Candidate) -> bool:
    """Whether one line stands well below another, or in another log."""
    return other.hit.source != one.hit.source or other.line - one.line > 15


def any_progress(case: Case) -> bool:
    """Whether training said anything in the parts of the logs that are kept."""
    return any(timeline.is_progress(line) for scan in case.scans for line in scan.edges())
