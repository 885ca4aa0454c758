"""The verdict: which failure ended an attempt, on which rank, by which line.

The earliest cause on the rank that fell first; peers' complaints, the
launcher's own signals and aborts are consequences unless nothing else is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.diagnosis import timeline
from supervisor.diagnosis.candidates import GENERIC, Candidate, ends_well, gather
from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.exits import Exit, read_launch, with_known_exits
from supervisor.diagnosis.fingerprint import plain_form
from supervisor.diagnosis.machine import weigh
from supervisor.diagnosis.matcher import Matcher
from supervisor.diagnosis.outcome import compose
from supervisor.diagnosis.ranks import Ranks
from supervisor.diagnosis.root import Case, Root
from supervisor.diagnosis.scan import scan_source
from supervisor.diagnosis.tables import Signatures
from supervisor.diagnosis.tracebacks import frames_above
from supervisor.diagnosis.waiting import different_rendezvous, hang_place, lagging_rank
from supervisor.run.records import FailureClass, Reason, Verdict

_FATAL_SIGNALS = frozenset((-4, -7, -8, -9, -11))


def diagnose(job: JobEvidence, signatures: Signatures, matcher: Matcher) -> Verdict:
    """Judge one attempt. Reads each of the job's logs once; memory does not grow with their size."""
    case = read_case(job, signatures, matcher)
    return compose(case.job, case.scans, case.candidates, weigh(case, choose(case), signatures))


def read_case(job: JobEvidence, signatures: Signatures, matcher: Matcher) -> Case:
    """Scan all logs of a job and gather what they say."""
    logs = job.logs
    if job.machine.kernel_log:
        logs = (*logs, LogSource("kernel log", (job.machine.kernel_log.encode("utf-8", "replace"),)))
    scans = tuple(
        scan_source(source.path, source.origin, source.chunks, signatures, matcher, index)
        for index, source in enumerate(logs)
    )
    launch = with_known_exits(
        read_launch(scans, job.world_size, job.ranks_per_node), job.exit_codes, job.first_dead_rank
    )
    return Case(job, scans, launch, Ranks(scans, launch), tuple(gather(scans, launch)))


def choose(case: Case) -> Root:
    """Find the root of a failure, or say that there is none, or that it cannot be told."""
    job = case.job
    causes = [
        item for item in case.candidates if item.is_cause and item.failure is not FailureClass.TERMINATED
    ]
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
        rank = (
            hang.rank
            if hang.rank is not None
            else (lagging_rank(case.candidates, case.launch, case.ranks) if effects else None)
        )
        return Root(
            FailureClass.HANG, None, rank, (), None, case.scans[hang.source].path, hang.line, hang.text, 0.86
        )
    if root is not None and not (
        strong_stop is not None and _before(strong_stop, root, case) and _stop_explains(root)
    ):
        return _from_candidate(root, causes, case)
    if hard_stop is not None:
        return _from_candidate(hard_stop, stops, case)
    if signals and not _only_effects_of_stop(signals, strong_stop):
        return _from_exit(signals[0], case)
    first_effect = _first_effect(effects)
    if (odd := _left_without_a_word(case, effects)) is not None and not (
        strong_stop is not None and strong_stop.line < odd.hit.line
    ):
        return _from_odd_exit(odd, case)
    if first_stop is not None and (first_effect is None or not _before(first_effect, first_stop, case)):
        if first_stop.reason in (Reason.TIME_LIMIT, Reason.USER, Reason.OUTSIDE) and (
            quiet := _silent_hang(case)
        ):
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
            other.line >= item.line and other.line <= item.line + 3 and other is not item
            for other in case.candidates
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
    first = next(item for item in causes if item.strength >= top - 30)
    if first.signature in GENERIC:
        # In one process a plain exception well below the strongest is only how that one came to light.
        rank = first.hit.origin.rank
        for item in causes:
            if (
                item.strength >= first.strength + 18
                and item.hit.source == first.hit.source
                and (rank is None or item.hit.origin.rank == rank)
            ):
                return item
    if first.signature == "dl-worker-signal" and "encountered in worker" in first.text:
        # The line that names the worker's pid says more than the worker's own last words.
        return next(
            (
                item
                for item in causes
                if item.signature == first.signature and "killed by signal" in item.text and _far(first, item)
            ),
            first,
        )
    return first


def _far(one: Candidate, other: Candidate) -> bool:
    return other.hit.source != one.hit.source or other.line - one.line > 15


def _pick_stop(stops: Sequence[Candidate]) -> Candidate:
    top = max(item.strength for item in stops)
    return next(item for item in stops if item.strength >= top - 10)


def _before(one: Candidate, other: Candidate, case: Case) -> bool:
    if one.hit.source != other.hit.source and not (one.order == one.order and other.order == other.order):
        return False
    order = {id(item): place for place, item in enumerate(case.candidates)}
    return order[id(one)] < order[id(other)]


def _stop_explains(root: Candidate) -> bool:
    """Whether a failure after a stop is only its echo: workers torn down raise anything, but not all classes."""
    return (
        root.failure
        not in (FailureClass.CUDA_OOM, FailureClass.HOST_OOM, FailureClass.GPU_FAULT, FailureClass.NAN_LOSS)
        or root.strength < 80
    )


def _explains(root: Candidate, signal: Exit) -> bool:
    return root.signature not in GENERIC or root.hit.line < signal.hit.line


def _died(case: Case) -> bool:
    """Whether anything says that a process ended badly."""
    job = case.job
    if any(code != 0 for code in job.exit_codes.values()) or (job.launcher_exit or 0) != 0:
        return True
    ids = {"launch-srun-exit", "launch-shell-exit", "launch-summary", "silent-death"}
    last = max(
        [item.hit.line for item in case.launch.exits if item.code != 0]
        + [hit.line for scan in case.scans for hit in scan.hits if hit.signature.id in ids],
        default=0,
    )
    if last == 0:
        return False
    return not (len(case.scans) == 1 and ends_well(case.scans[0], last))


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


def _left_without_a_word(case: Case, effects: Sequence[Candidate]) -> Exit | None:
    """A process that left by an unusual code while its peers only complain of a lost connection."""
    if any(
        item.failure in (FailureClass.NCCL_TIMEOUT, FailureClass.HANG, FailureClass.RENDEZVOUS)
        and not item.soft
        for item in effects
    ):
        return None
    complaining = {item.hit.origin.rank for item in effects if not item.soft}
    for item in case.launch.exits:
        rank = (
            item.rank
            if item.rank is not None
            else case.ranks.from_local(item.local_rank, item.node)
            if item.local_rank is not None
            else None
        )
        if (
            item.code in {0, 1, -6}
            or rank is None
            or rank in complaining
            or item.pid in case.launch.sigtermed
        ):
            continue
        return item
    return None


def _from_odd_exit(item: Exit, case: Case) -> Root:
    root = _from_exit(item, case)
    if item.code in {-15, -2, -1}:
        return root._replace(failure=FailureClass.TERMINATED, reason=Reason.OUTSIDE, confidence=0.8)
    return root._replace(reason=Reason.EXIT_CODE if item.code > 0 else root.reason, confidence=0.8)


def _first_effect(effects: Sequence[Candidate]) -> Candidate | None:
    timeouts = [
        item
        for item in effects
        if item.strength >= 74 and item.failure is FailureClass.NCCL_TIMEOUT and not item.soft
    ]
    if timeouts:
        # Peers' "connection closed" follows from a rank that timed out, unless it was said well before.
        early = [
            item for item in effects
            if 45 <= item.strength < 74 and not item.soft and item.failure is FailureClass.NCCL_ERROR and timeouts[0].order - item.order > 30
        ]  # fmt: skip
        return early[0] if early else timeouts[0]
    for floor in (45, 30, 20):
        strong = [item for item in effects if item.strength >= floor and not item.soft]
        if strong:
            return strong[0]
    return max(effects, key=lambda item: item.strength) if effects else None


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


def _from_candidate(item: Candidate, peers: Sequence[Candidate], case: Case) -> Root:
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
    blamed = case.ranks.blamed()
    if blamed is not None:
        return blamed
    if case.launch.distributed and (silent := case.ranks.only_silent()) is not None:
        return silent
    if item.failure is FailureClass.PORT_IN_USE or not case.launch.distributed:
        return 0
    return None


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
        case.scans[item.hit.source].path if item.hit.source >= 0 else "", item.hit.line, item.hit.text, confidence,
    )  # fmt: skip


def _from_effect(item: Candidate, effects: Sequence[Candidate], case: Case) -> Root:
    rank = None
    item = _own_line(item, effects)
    if item.failure is FailureClass.RENDEZVOUS and "Error" not in item.text:
        item = next(
            (
                other
                for other in effects
                if other.signature == item.signature and "Error: " in other.text and _far(item, other)
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


def _weak_exit(case: Case) -> Root | None:
    """Aborts, terminations and plain exit codes, where nothing says more."""
    own = [
        item for item in case.launch.exits if item.code != 0 and item.hit.signature.id != "launch-shell-exit"
    ]
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
    first = next((item for item in case.launch.exits if item.code != 0), None)
    if died:
        blamed = case.ranks.blamed() if first is not None else None
        ranks = (blamed,) if blamed is not None else ()
        return Root(FailureClass.UNKNOWN, None, blamed, ranks, None, "", 0, "", 0.5)
    good = any(hit.signature.id == "end-success" for scan in case.scans for hit in scan.hits)
    if good or _any_progress(case) or job.launcher_exit == 0:
        return Root(FailureClass.HEALTHY, None, None, (), None, "", 0, "", 0.95 if good else 0.85)
    return Root(FailureClass.UNKNOWN, None, None, (), None, "", 0, "", 0.4)
