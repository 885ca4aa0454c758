"""What a job survived, and what was only noticed: neither is what it died of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from supervisor.diagnosis.attribution.log_timeline import is_progress, went_on, when
from supervisor.diagnosis.cause.candidates import INFORMS, Candidate
from supervisor.diagnosis.scan.scanner import Hit, SourceScan
from supervisor.diagnosis.scan.tracebacks import frames_above, in_helper
from supervisor.run.failures import FailureClass
from supervisor.text.patterns import Lazy
from supervisor.text.prefixes import split_prefix

# Ranks that are torn down with their job print tracebacks; a program that goes on prints this much else.
NEXT_JOB_LINES = 100
_RAISED_TOO = frozenset(
    (FailureClass.CUDA_OOM, FailureClass.FD_LIMIT, FailureClass.COMPILE_ERROR, FailureClass.PORT_IN_USE)
)
_TOLD_BY_EXCEPTION = frozenset(
    (
        FailureClass.AUTH_OR_HUB, FailureClass.IMPORT_ERROR, FailureClass.CUDA_UNAVAILABLE, FailureClass.CODE_ERROR,
        FailureClass.MISSING_FILE, FailureClass.PERMISSION_DENIED, FailureClass.CHECKPOINT_LOAD,
    )
)  # fmt: skip
_ALARM = Lazy(r"\b(?:ERROR|CRITICAL|FATAL|Traceback|[Ee]rror:|NCCL WARN|[Uu]nhandled exception)")
_EXCEPTION = Lazy(
    r"^(?:\S{0,40} )?(?:(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure|NotFound)\b|(?:[a-z_]\w*\.){2,}[A-Z]\w+: )"
)
_GLOG_INFORMS = Lazy(r"^I\d{4} \d\d:|: I (?:tensorflow|external|xla|tsl)/")
_LAUNCHERS_LOG = Lazy(r"(?:console|agent|launch\w*|torchrun|nohup|slurm)[^/\\]*$|\.out$")


def without_survived(
    found: list[Candidate], scans: Sequence[SourceScan], *, died: bool, stepped: bool
) -> list[Candidate]:
    """The candidates that a job may have died of.

    Args:
        found: all candidates, log by log.
        scans: what was read of the logs that they point into.
        died: some process is known to have ended badly.
        stepped: training's own lines were seen.
    """
    if not died and _launcher_is_content(scans):
        found = [item for item in found if not _outlived_elsewhere(item, scans)]
    steps = [_tail_steps(scan) for scan in scans]
    open_ = [
        item
        for item in found
        if not _recovered(item, scans, steps[item.hit.source], died)
        and not _outlived(item, found, steps[item.hit.source])
    ]
    told = [item for item in open_ if not (item.is_cause and is_talk(item) and _passed_by(item, open_))]
    left = _plain_lines_after_exceptions(_not_in_passing(told))
    raised = any(_EXCEPTION.match(item.text) and not item.soft for item in left)
    if died or raised or _trouble(scans):
        return left
    return [item for item in left if not (is_talk(item) and (stepped or _talked_on(item)))]


# -- notices ---------------------------------------------------------------------------------------


def is_talk(item: Candidate) -> bool:
    """A line about a class that shows itself as an exception, which is none and raises no alarm: a notice."""
    return (
        (item.failure in _TOLD_BY_EXCEPTION or item.failure in _RAISED_TOO)
        and not _EXCEPTION.match(item.text)
        and not _ALARM.search(item.text)
    )


def _talked_on(item: Candidate) -> bool:
    """Whether the program went on to inform of other things: a start that has not come to its first step yet."""
    return (
        sum(
            1
            for line in item.hit.lines_after()
            if INFORMS.search(line[:200]) or _GLOG_INFORMS.search(line[:60])
        )
        >= 2
    )


def _passed_by(notice: Candidate, found: Sequence[Candidate]) -> bool:
    """Whether the program logged other things between a notice and the exception that it died of."""
    raised = [item.line for item in _later_causes(notice, found) if not is_talk(item)]
    if not raised:
        return False
    between = notice.hit.lines_after()[: max(raised[0] - notice.line - 1, 0)]
    return (
        sum(1 for line in between if not _ALARM.search(line) and when(split_prefix(line)[1]) is not None) >= 2
    )


def _later_causes(item: Candidate, found: Sequence[Candidate]) -> Iterator[Candidate]:
    """Causes below it in the same log."""
    for other in found:
        if other.is_cause and other.hit.source == item.hit.source and other.line > item.line:
            yield other


def _plain_lines_after_exceptions(found: list[Candidate]) -> list[Candidate]:
    """Of one class, an exception speaks before a logged line or a warning about the same trouble."""
    raised = {item.failure for item in found if item.is_cause and _EXCEPTION.match(item.text)}
    return [
        item for item in found
        if item.failure not in _TOLD_BY_EXCEPTION or item.failure not in raised or _EXCEPTION.match(item.text) or not item.is_cause
        or item.hit.text.startswith(("\t", "  ")) or item.strength >= 90
    ]  # fmt: skip


def _not_in_passing(found: list[Candidate]) -> list[Candidate]:
    """Without tracebacks that were logged as notices, or that a helper's thread left, where another one was raised."""
    passing = {
        id(item)
        for item in found
        if item.is_cause and _EXCEPTION.match(item.text) and (item.soft or frames_above(item.hit).logged)
        and (frames_above(item.hit).logged or in_helper(item.hit))
    }  # fmt: skip
    if not passing or not any(
        item.is_cause
        and id(item) not in passing
        and not item.soft
        and (_EXCEPTION.match(item.text) or item.failure is FailureClass.TERMINATED)
        for item in found
    ):
        return found
    return [item for item in found if id(item) not in passing]


def _trouble(scans: Sequence[SourceScan]) -> bool:
    """Whether any log tells of a traceback or of a process that ended."""
    ids = ("traceback-head", "launch-", "crash-", "silent-death")
    return any(hit.signature.id.startswith(ids) for scan in scans for hit in scan.hits)


# -- training that went on -------------------------------------------------------------------------


def _tail_steps(scan: SourceScan) -> list[tuple[int, str]]:
    """Training's own lines in the tail, with their numbers: looked for once, asked often."""
    return [(scan.tail_line + row, line) for row, line in enumerate(scan.tail) if is_progress(line)]


def _recovered(
    item: Candidate, scans: Sequence[SourceScan], steps: list[tuple[int, str]], died: bool
) -> bool:
    """Whether training went on after it, or the run came to a good end."""
    hit = item.hit
    scan = scans[hit.source]
    if item.failure is FailureClass.HANG and item.signature != "hang-horovod-stall":
        return False
    if ends_well(scan, item.line):
        return True
    after = _after(item, scan, steps)
    mine = [line for line in after if _speaks_with(line, item)]
    if item.signature.startswith("host-oom-k") or item.failure is FailureClass.GPU_FAULT:
        return went_on(mine, need=12)
    if item.failure is FailureClass.TERMINATED:
        if "*** JOB " in item.text and _other_job_after(item, scan):
            return True
        return went_on(mine, need=3 if "SIGUSR" in item.text else 25)
    if (
        not died
        and item.failure in _TOLD_BY_EXCEPTION
        and not _EXCEPTION.match(item.text)
        and not _ALARM.search(item.text)
    ):
        return went_on(mine, need=1)
    if not died and len(mine) < len(after) and went_on(after, need=12):
        # Ranks step together: where the others went on for long, this one did too.
        return True
    if item.soft or not frames_above(hit).found:
        return went_on(mine, need=3) and not _dies_soon(hit)
    # A traceback in a job that died: logs put together file by file show a rank's earlier steps after it.
    return went_on(mine, need=60 if died else 6) and not _dies_soon(hit)


def _other_job_after(item: Candidate, scan: SourceScan) -> bool:
    """Whether a long quiet part follows the word that a batch job was cancelled: the next job writes to the same file."""
    if scan.lines - item.line < NEXT_JOB_LINES:
        return False
    return not any(
        hit.line > item.line and hit.signature.id.startswith(("traceback-", "launch-", "slurm-", "crash-"))
        for hit in scan.hits
    )


def _launcher_is_content(scans: Sequence[SourceScan]) -> bool:
    """Whether logs of ranks stand beside a launcher's own, and that tells of no process that ended."""
    ranked = [scan.origin.rank is not None or scan.origin.local_rank is not None for scan in scans]
    launchers = [
        scan
        for scan, is_ranks in zip(scans, ranked, strict=True)
        if not is_ranks and _LAUNCHERS_LOG.search(scan.path)
    ]
    return (
        any(ranked)
        and bool(launchers)
        and not any(
            hit.signature.id.startswith(("launch-", "crash-", "agent-death", "signal-exception"))
            for scan in scans
            for hit in scan.hits
        )
    )


def _outlived_elsewhere(item: Candidate, scans: Sequence[SourceScan]) -> bool:
    """Whether training went on in another stream of the ranks, under a launcher that has no complaint.

    A launcher reports each process that fails, and ranks step together; files of their own tell no order.
    """
    return any(
        went_on(scan.tail, need=3)
        for source, scan in enumerate(scans)
        if source != item.hit.source and (scan.origin.rank is not None or scan.origin.local_rank is not None)
    )


def _outlived(item: Candidate, found: Sequence[Candidate], steps: list[tuple[int, str]]) -> bool:
    """Whether training went on between it and a later cause of the same voice: then that one is what it died of."""
    if not item.is_cause or item.failure is FailureClass.TERMINATED or item.strength >= 95:
        return False
    rank = item.hit.origin.rank
    later = [
        other.line
        for other in _later_causes(item, found)
        if (rank is None or other.hit.origin.rank in {None, rank})
        and other.failure is not FailureClass.TERMINATED
    ]
    last = max(later, default=0)
    between = {line[:200] for number, line in steps if item.line < number < last and _speaks_with(line, item)}
    return len(between) >= 6


def _after(item: Candidate, scan: SourceScan, steps: list[tuple[int, str]]) -> list[str]:
    """Lines after it that may be training's own: those close by, and the tail's."""
    if item.line >= scan.tail_line:
        return [line for number, line in steps if number > item.line]
    return [*item.hit.lines_after(150)[item.line - item.hit.line :], *(line for _, line in steps)]


def _speaks_with(line: str, item: Candidate) -> bool:
    """Whether a later line could come from the process that failed: with ranks told apart, only its own count."""
    rank = item.hit.origin.rank
    if rank is None or not line.startswith("[rank"):
        return True
    return line.startswith(f"[rank{rank}]")


def _dies_soon(hit: Hit) -> bool:
    words = (
        "failed (exitcode:",
        "ChildFailedError",
        "Sending process",
        "Killing subprocess",
        "exits with return code",
        "Exited with exit code",
    )
    return any(word in line for line in hit.lines_after(40) for word in words)


def ends_well(scan: SourceScan, after_line: int) -> bool:
    """Whether the log tells of a good end after a line, and of no death after that."""
    good = [hit.line for hit in scan.hits if hit.signature.id == "end-success" and hit.line > after_line]
    if not good:
        return False
    bad = [
        hit.line for hit in scan.hits
        if hit.line > after_line
        and hit.signature.id in {"launch-exit", "launch-summary", "launch-deepspeed", "launch-srun-exit", "launch-shell-exit", "crash-lightning-child"}
    ]  # fmt: skip
    closing = [hit for hit in scan.hits if hit.line in set(good)]
    if all("Total training time" in hit.text or "Process group destroyed" in hit.text for hit in closing):
        return False
    return not bad or max(bad) < min(good)
