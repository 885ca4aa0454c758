"""The choice of the root: the earliest cause on the rank that fell first.

Peers' complaints, the launcher's own signals and aborts are consequences
unless nothing else is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.diagnosis.attribution.exits import Exit
from supervisor.diagnosis.attribution.log_attempts import ended_anew, last_attempt, later_runs
from supervisor.diagnosis.attribution.log_timeline import went_on
from supervisor.diagnosis.attribution.recovered_errors import ends_well
from supervisor.diagnosis.attribution.waiting import hang_place, lagging_rank
from supervisor.diagnosis.cause.candidates import Candidate
from supervisor.diagnosis.cause.confidence import (
    any_progress,
    far_below,
    from_candidate,
    from_effect,
    from_exit,
    from_odd_exit,
    lost_loss,
    quiet_end,
    silent_hang,
    weak_exit,
)
from supervisor.diagnosis.cause.consequences import is_our_signal
from supervisor.diagnosis.cause.root import Case, Root
from supervisor.diagnosis.scan.hit import GENERIC
from supervisor.run.failures import FailureClass, Reason
from supervisor.text.patterns import Lazy

_PYTHON_WARNING = Lazy(r"\wWarning: ")
_REPLACED_BY = Lazy(
    r"\b[Uu]sing (?:a |an |the )?(?:latest )?(?:random|default|previous|next|another|replacement|dummy|empty|local|cached)\b|[Ff]alling back"
)
# So many steps below the last word of a process that ended are another run's in the same file.
STEPS_OF_ANOTHER = 25
_FATAL_SIGNALS = frozenset((-4, -7, -8, -9, -11))


def choose(case: Case) -> Root:
    """Find the root of a failure, or say that there is none, or that it cannot be told."""
    root = _choose(case)
    for run in later_runs(case, root):
        if (anew := _choose(run)).failure is not FailureClass.UNKNOWN:
            return anew
    later = last_attempt(case)
    if later is not None and ended_anew(root, last := _choose(later), later):
        return last
    return root


def _choose(case: Case) -> Root:
    job = case.job
    told = [item for item in case.candidates if not is_our_signal(item, job)]
    causes = [item for item in told if item.is_cause and item.failure is not FailureClass.TERMINATED]
    stops = [item for item in told if item.is_cause and item.failure is FailureClass.TERMINATED]
    effects = [item for item in told if not item.is_cause and item.strength >= 20]
    died = _died(case)
    causes = _without_symptoms(causes, case, died)
    signals = [item for item in _signal_exits(case) if not _swept_up(item, stops)]
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
        return from_candidate(root, causes, case)
    if hard_stop is not None:
        return from_candidate(hard_stop, stops, case)
    if signals and not _only_effects_of_stop(signals, strong_stop):
        return from_exit(signals[0], case)
    first_effect = _first_effect(effects)
    if (odd := _left_without_a_word(case, effects)) is not None and not (
        strong_stop is not None and strong_stop.line < odd.hit.line
    ):
        return from_odd_exit(odd, case)
    # Pipes of a loader's own processes break as the other end is stopped, often before that is told.
    complaint = _first_effect(
        [item for item in effects if item.failure is not FailureClass.DATALOADER_WORKER]
    )
    if first_stop is not None and (complaint is None or not _before(complaint, first_stop, case)):
        if first_stop.reason in (Reason.TIME_LIMIT, Reason.USER, Reason.OUTSIDE) and (
            quiet := silent_hang(case)
        ):
            return quiet
        best = _pick_stop(stops)
        return from_candidate(best, stops, case)
    if first_effect is not None and (died or not first_effect.soft or not any_progress(case)):
        return lost_loss(case) or from_effect(first_effect, effects, case)
    if (abort := weak_exit(case)) is not None:
        return abort
    return quiet_end(case, died, job)


def _without_symptoms(causes: list[Candidate], case: Case, died: bool) -> list[Candidate]:
    kept = []
    timed_out = _timed_out(case)
    for item in causes:
        if item.line > timed_out.get((item.hit.source, item.hit.origin.rank), item.line):
            continue
        if item.soft and not died and any_progress(case):
            continue
        if item.signature == "host-oom-killed-line" and _killed_by_launcher(item, case):
            continue
        if (item.signature == "crash-terminate" or _is_abort(item)) and any(
            other is not item and (item.line <= other.line <= item.line + 3 or _tells_before(other, item))
            for other in case.candidates
        ):
            continue
        kept.append(item)
    hardware = any(item.failure is FailureClass.GPU_FAULT for item in kept)
    if hardware:
        kept = [item for item in kept if item.failure is not FailureClass.CUDA_ERROR]
    return kept


def _killed_by_launcher(item: Candidate, case: Case) -> bool:
    """Whether a shell's "Killed" follows a launcher's word that it kills what is left (Lightning kills itself too)."""
    return any(
        hit.signature.id == "crash-lightning-child" and hit.line < item.line
        for hit in case.scans[item.hit.source].hits
    )


def _is_abort(item: Candidate) -> bool:
    """Whether a shell or Python tells of SIGABRT: a process sends that to itself, after saying why."""
    return item.signature in {"crash-shell", "crash-faulthandler"} and "Aborted" in item.text


def _timed_out(case: Case) -> dict[tuple[int, int | None], int]:
    """Where a rank first told that its own collective timed out: what it raises later comes of that."""
    found: dict[tuple[int, int | None], int] = {}
    for item in case.candidates:
        rank = item.hit.origin.rank
        if (
            rank is not None
            and not item.is_cause
            and item.strength >= 74
            and not item.soft
            and item.failure is FailureClass.NCCL_TIMEOUT
        ):
            found.setdefault((item.hit.source, rank), item.line)
    return found


def _tells_before(other: Candidate, abort: Candidate) -> bool:
    """Whether a line tells of trouble before an abort: threads left behind by an exception end so too."""
    return (
        other.hit.source == abort.hit.source
        and other.line < abort.line
        and not other.soft
        and other.strength >= 45
        and other.failure is not FailureClass.TERMINATED
    )


def _pick(causes: Sequence[Candidate]) -> Candidate | None:
    """The earliest among those that are not much weaker than the strongest."""
    if not causes:
        return None
    top = max(item.strength for item in causes)
    first = next(item for item in causes if item.strength >= top - 30)
    if _PYTHON_WARNING.search(first.text) or (first.soft and _REPLACED_BY.search(first.text)):
        # What Python warns of did not end the program, nor what something else was used for: an exception did.
        first = next((item for item in causes if item.strength >= top - 30 and not item.soft), first)
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
                if item.signature == first.signature
                and "killed by signal" in item.text
                and far_below(first, item)
            ),
            first,
        )
    return first


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
    if len(case.scans) != 1:
        return True
    scan = case.scans[0]
    return not (
        ends_well(scan, last)
        or went_on(scan.tail[max(last + 1 - scan.tail_line, 0) :], need=STEPS_OF_ANOTHER)
    )


def _signal_exits(case: Case) -> list[Exit]:
    """Deaths by a signal that nobody here sent: not the launcher's own TERM and KILL of survivors."""
    launch = case.launch
    found = [
        item for item in launch.exits
        if item.code in _FATAL_SIGNALS and not (item.pid in launch.sigtermed and item.code == -9)
    ]  # fmt: skip
    found.sort(key=lambda item: (item.summary, item.hit.source, item.hit.line))
    return found


def _swept_up(item: Exit, stops: Sequence[Candidate]) -> bool:
    """Whether srun tells of a task's signal after the step was cancelled: the task was killed with the step."""
    return item.hit.signature.id == "launch-srun-exit" and any(
        stop.hit.source == item.hit.source and stop.line <= item.hit.line for stop in stops
    )


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
    by_itself = any(item.code > 0 for item in case.launch.exits)
    for item in case.launch.exits:
        rank = (
            item.rank
            if item.rank is not None
            else case.ranks.from_local(item.local_rank, item.node)
            if item.local_rank is not None
            else None
        )
        if (
            item.code in {0, 1}
            or (item.code == -6 and None in complaining)
            or (item.code in {-15, -2, -1} and by_itself)
            or rank is None
            or rank in complaining
            or item.pid in case.launch.sigtermed
        ):
            continue
        return item
    return None


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
