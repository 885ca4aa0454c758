"""The verdict: which failure ended an attempt, on which rank, by which line.

The earliest cause on the rank that fell first; peers' complaints, the
launcher's own signals and aborts are consequences unless nothing else is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from supervisor.diagnosis.candidates import GENERIC, Candidate, gather
from supervisor.diagnosis.evidence import JobEvidence
from supervisor.diagnosis.exits import Exit, Launch, read_launch
from supervisor.diagnosis.matcher import Matcher
from supervisor.diagnosis.outcome import compose
from supervisor.diagnosis.ranks import Ranks
from supervisor.diagnosis.scan import SourceScan, scan_source
from supervisor.diagnosis.tables import Signatures
from supervisor.diagnosis.waiting import hang_place, lagging_rank
from supervisor.diagnosis import timeline
from supervisor.run.records import FailureClass, Reason, Verdict

_FATAL_SIGNALS = frozenset((-4, -7, -8, -9, -11))


class Root(NamedTuple):
    """What was chosen: class, place and certainty; `line` 0 means that no line can be pointed at."""

    failure: FailureClass
    reason: Reason | None
    rank: int | None
    ranks: tuple[int, ...]
    node: str | None
    path: str
    line: int
    text: str
    confidence: float
    chosen: Candidate | None = None


class Case(NamedTuple):
    """All that is known, read once."""

    job: JobEvidence
    scans: tuple[SourceScan, ...]
    launch: Launch
    ranks: Ranks
    candidates: tuple[Candidate, ...]


def diagnose(job: JobEvidence, signatures: Signatures, matcher: Matcher) -> Verdict:
    """Judge one attempt. Reads each of the job's logs once; memory does not grow with their size."""
    case = read_case(job, signatures, matcher)
    return compose(case.job, case.scans, case.candidates, choose(case))


def read_case(job: JobEvidence, signatures: Signatures, matcher: Matcher) -> Case:
    """Scan all logs of a job and gather what they say."""
    scans = tuple(
        scan_source(source.path, source.origin, source.chunks, signatures, matcher, index)
        for index, source in enumerate(job.logs)
    )
    launch = read_launch(scans)
    return Case(job, scans, launch, Ranks(scans, launch), tuple(gather(scans, launch)))


def choose(case: Case) -> Root:
    """Find the root of a failure, or say that there is none, or that it cannot be told."""
    job = case.job
    causes = [item for item in case.candidates if item.is_cause and item.failure is not FailureClass.TERMINATED]
    stops = [item for item in case.candidates if item.is_cause and item.failure is FailureClass.TERMINATED]
    effects = [item for item in case.candidates if not item.is_cause and item.strength >= 20]
    died = _died(case)
    causes = _without_symptoms(causes, case, died)
    signals = _signal_exits(case)
    root = _pick(causes)
    if root is not None and root.strength < 62 and signals and not _explains(root, signals[0]):
        root = None if root.strength < 50 else root
    hard_stop = next((item for item in stops if item.reason in (Reason.NODE_FAIL, Reason.PREEMPTED)), None)
    first_stop = stops[0] if stops else None
    strong_stop = next((item for item in stops if item.strength >= 66), None)
    hang = hang_place(case.scans)
    if hang is not None and (root is None or root.strength < 70):
        rank = hang.rank if hang.rank is not None else (lagging_rank(case.candidates, case.launch, case.ranks) if effects else None)
        return Root(FailureClass.HANG, None, rank, (), None, case.scans[hang.source].path, hang.line, hang.text, 0.86)
    if root is not None and not (strong_stop is not None and _before(strong_stop, root, case) and _stop_explains(strong_stop, root)):
        return _from_candidate(root, causes, case)
    if hard_stop is not None:
        return _from_candidate(hard_stop, stops, case)
    if signals and not _only_effects_of_stop(signals, strong_stop):
        return _from_exit(signals[0], case)
    first_effect = _first_effect(effects)
    if first_stop is not None and (first_effect is None or not _before(first_effect, first_stop, case)):
        if first_stop.reason in (Reason.TIME_LIMIT, Reason.USER, Reason.OUTSIDE) and (quiet := _silent_hang(case)):
            return quiet
        best = _pick_stop(stops)
        return _from_candidate(best, stops, case)
    if first_effect is not None and (died or not first_effect.soft or not _any_progress(case)):
        return _from_effect(first_effect, effects, case)
    if (abort := _weak_exit(case)) is not None:
        return abort
    return _quiet_end(case, died, job)


def _without_symptoms(causes: list[Candidate], case: Case, died: bool) -> list[Candidate]:
    kept = []
    for item in causes:
        if item.soft and not died and _any_progress(case):
            continue
        if item.signature == "crash-terminate" and any(
            other.line >= item.line and other.line <= item.line + 3 and other is not item for other in case.candidates
        ):
            continue
        kept.append(item)
    hardware = any(item.failure is FailureClass.GPU_FAULT for item in kept)
    if hardware:
        kept = [item for item in kept if item.failure is not FailureClass.CUDA_ERROR]
    return kept


def _pick(causes: Sequence[Candidate]) -> Candidate | None:
    """The earliest among those that are not much weaker than the strongest."""
    if not causes:
        return None
    top = max(item.strength for item in causes)
    floor = top - 30
    return next(item for item in causes if item.strength >= floor)


def _pick_stop(stops: Sequence[Candidate]) -> Candidate:
    top = max(item.strength for item in stops)
    return next(item for item in stops if item.strength >= top - 24)


def _before(one: Candidate, other: Candidate, case: Case) -> bool:
    order = {id(item): place for place, item in enumerate(case.candidates)}
    return order[id(one)] < order[id(other)]


def _stop_explains(stop: Candidate, root: Candidate) -> bool:
    """Whether a failure after a stop is only its echo: workers torn down raise anything, but not all classes."""
    return root.failure not in (FailureClass.CUDA_OOM, FailureClass.HOST_OOM, FailureClass.GPU_FAULT, FailureClass.NAN_LOSS) or root.strength < 80


def _explains(root: Candidate, signal: Exit) -> bool:
    return root.signature not in GENERIC or root.hit.line < signal.hit.line


def _died(case: Case) -> bool:
    """Whether anything says that a process ended badly."""
    job = case.job
    if any(code != 0 for code in job.exit_codes.values()) or (job.launcher_exit or 0) != 0:
        return True
    if any(item.code != 0 for item in case.launch.exits):
        return True
    return any(hit.signature.id in {"launch-srun-exit", "launch-shell-exit", "launch-summary", "silent-death"} for scan in case.scans for hit in scan.hits)


def _any_progress(case: Case) -> bool:
    return any(timeline.is_progress(line) for scan in case.scans for line in (*scan.head, *scan.tail))


def _signal_exits(case: Case) -> list[Exit]:
    """Deaths by a signal that nobody here sent: not the launcher's own TERM and KILL of survivors."""
    launch = case.launch
    found = [
        item for item in launch.exits
        if item.code in _FATAL_SIGNALS and not (item.pid in launch.sigtermed and item.code == -9)
    ]  # fmt: skip
    found.sort(key=lambda item: (item.summary, item.hit.source, item.hit.line))
    return found


def _only_effects_of_stop(signals: Sequence[Exit], stop: Candidate | None) -> bool:
    return stop is not None and all(item.hit.line > stop.line for item in signals)


def _first_effect(effects: Sequence[Candidate]) -> Candidate | None:
    for floor in (45, 30, 20):
        strong = [item for item in effects if item.strength >= floor and not item.soft]
        if strong:
            return strong[0]
    return effects[0] if effects else None


def _from_candidate(item: Candidate, peers: Sequence[Candidate], case: Case) -> Root:
    alike_all = [other for other in peers if other.failure is item.failure]
    rank = case.ranks.of(item.hit, item.failure)
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
    blamed = case.ranks.blamed()
    if blamed is not None:
        return blamed
    if item.failure is FailureClass.PORT_IN_USE or not case.launch.distributed:
        return 0
    return None


def _confidence(item: Candidate, peers: Sequence[Candidate]) -> float:
    strength = item.strength
    value = 0.97 if strength >= 88 else 0.94 if strength >= 76 else 0.91 if strength >= 60 else 0.82 if strength >= 48 else 0.6
    rivals = {other.failure for other in peers if other.failure is not item.failure and other.strength >= strength}
    if rivals:
        value -= 0.08
    if item.soft:
        value -= 0.15
    return max(value, 0.3)


def _from_exit(item: Exit, case: Case) -> Root:
    rank = item.rank
    if rank is None and item.local_rank is not None:
        rank = case.ranks.from_local(item.local_rank, item.node)
    failure, reason, confidence = FailureClass.WORKER_CRASH, Reason.SIGNAL, 0.9
    if item.code == -9:
        failure, reason, confidence = FailureClass.HOST_OOM, Reason.KERNEL_KILL, 0.7
    return Root(
        failure, reason, rank, (rank,) if rank is not None else (), item.node,
        case.scans[item.hit.source].path, item.hit.line, item.hit.text, confidence,
    )  # fmt: skip


def _from_effect(item: Candidate, effects: Sequence[Candidate], case: Case) -> Root:
    rank = None
    if item.failure in (FailureClass.NCCL_TIMEOUT, FailureClass.HANG):
        rank = lagging_rank(case.candidates, case.launch, case.ranks)
    elif item.failure is FailureClass.NCCL_ERROR:
        rank = case.ranks.of(item.hit, item.failure)
    confidence = 0.9 if item.strength >= 70 else 0.8 if item.strength >= 45 else 0.65
    return Root(
        item.failure, item.reason, rank, (rank,) if rank is not None else (), item.hit.origin.node,
        case.scans[item.hit.source].path, item.line, item.text, confidence - (0.15 if item.soft else 0), item,
    )  # fmt: skip


def _weak_exit(case: Case) -> Root | None:
    """Aborts, terminations and plain exit codes, where nothing says more."""
    own = [item for item in case.launch.exits if item.code != 0 and item.hit.signature.id != "launch-shell-exit"]
    own.sort(key=lambda item: (item.summary, item.hit.source, item.hit.line))
    abort = next((item for item in own if item.code == -6), None)
    if abort is not None:
        return _from_exit(abort, case)._replace(confidence=0.8)
    term = next((item for item in own if item.code in {-15, -2, -1}), None)
    if term is not None:
        root = _from_exit(term, case)
        return root._replace(failure=FailureClass.TERMINATED, reason=Reason.OUTSIDE, confidence=0.75)
    other = next((item for item in own if item.code not in {0, 1} and item.code < 128), None)
    if other is not None:
        return _from_exit(other, case)._replace(reason=Reason.EXIT_CODE, confidence=0.75)
    return None


def _silent_hang(case: Case) -> Root | None:
    """A silence of many steps before the end that somebody or a time limit put to it."""
    for scan in case.scans:
        found = timeline.silence_s(scan.tail)
        if found is not None and found[0] >= max(900.0, 25 * found[1]):
            return Root(FailureClass.HANG, None, None, (), None, scan.path, 0, "", 0.78)
    return None


def _quiet_end(case: Case, died: bool, job: JobEvidence) -> Root:
    """No line to point at: a loss that stayed nan, a good end, or nothing known."""
    for scan in case.scans:
        row = timeline.ends_in_nan(scan.tail)
        if row is not None:
            return Root(FailureClass.NAN_LOSS, None, scan.origin.rank, (), None, scan.path, scan.tail_line + row, scan.tail[row], 0.88)
    first = next((item for item in case.launch.exits if item.code != 0), None)
    if died:
        rank = case.ranks.blamed() if first is not None else None
        ranks = (rank,) if rank is not None else ()
        return Root(FailureClass.UNKNOWN, None, rank, ranks, None, "", 0, "", 0.5)
    good = any(hit.signature.id == "end-success" for scan in case.scans for hit in scan.hits)
    if good or _any_progress(case) or job.launcher_exit == 0:
        return Root(FailureClass.HEALTHY, None, None, (), None, "", 0, "", 0.95 if good else 0.85)
    return Root(FailureClass.UNKNOWN, None, None, (), None, "", 0, "", 0.4)
