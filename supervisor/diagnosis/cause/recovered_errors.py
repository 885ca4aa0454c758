"""Errors that a job recovered from, and notices that it only logged: neither is what it failed of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

from supervisor.diagnosis.cause.candidates import INFORMS
from supervisor.diagnosis.scan.hit import Candidate, Hit, SourceScan
from supervisor.diagnosis.scan.log_timeline import bar_states, bar_went_on, went_on, when
from supervisor.diagnosis.scan.signature_tables import Strength, Trait
from supervisor.diagnosis.scan.tracebacks import Frames, end_of_chain, frames_above, in_helper
from supervisor.run.failures import FailureClass
from supervisor.text.patterns import Lazy
from supervisor.text.prefixes import Origin, split_prefix

# Training's own lines after an error that show that the job recovered from it: fewer, the surer they belong to it.
STEPS_AFTER_NOTICE = 1  # after a line that is no exception and raises no alarm
STEPS_AFTER_CAUGHT = 2  # after a traceback that a logger printed
STEPS_AFTER_UNKNOWN = 2  # after a traceback of an exception that only its layout shows
STEPS_AFTER_LINE = 3  # after a warning, a line without a traceback, or a traceback of a thread
STEPS_AFTER_TRACEBACK = 6
# Ordinary lines between a report and the traceback of another exception: below a cause stand a few words at most.
LINES_OF_ONE_THAT_WENT_ON = 4
INFORMED_AFTER_NOTICE = 2  # lines of level INFO
INFORMED_AFTER_CAUGHT = 12  # the same below a traceback that a logger printed; a clean-up informs of less
LINES_AFTER_CAUGHT = 2  # of the process that logged it, whatever they say
BAR_STATES = 12  # states of one bar, which are drawn into one line; after a line without a traceback
STEPS_ELSEWHERE = 12  # of other ranks, which step together; and after what the kernel reports of any process
STEPS_AFTER_STOP = 25  # after a stop, which a long save may follow
# A traceback in a job that failed: logs put together file by file show a rank's earlier steps after it.
STEPS_AFTER_TRACEBACK_OF_FAILED = 60
STEPS_BETWEEN_CAUSES = 6
_MOSTLY_RAISED = frozenset(
    (FailureClass.CUDA_OOM, FailureClass.FD_LIMIT, FailureClass.COMPILE_ERROR, FailureClass.PORT_IN_USE)
)
_RAISED_AS_EXCEPTION = frozenset(
    (
        FailureClass.AUTH_OR_HUB, FailureClass.IMPORT_ERROR, FailureClass.CUDA_UNAVAILABLE, FailureClass.CODE_ERROR,
        FailureClass.MISSING_FILE, FailureClass.PERMISSION_DENIED, FailureClass.CHECKPOINT_LOAD,
    )
)  # fmt: skip
_OF_TRAINING = frozenset((FailureClass.CUDA_OOM, FailureClass.HOST_OOM))
_REPORTED_OR_RAISED = _RAISED_AS_EXCEPTION | _MOSTLY_RAISED | {FailureClass.DISK_FULL}
_ALARM = Lazy(r"\b(?:ERROR|CRITICAL|FATAL|Traceback|[Ee]rror:|NCCL WARN|[Uu]nhandled exception)")
_EXCEPTION = Lazy(
    r"^(?:\S{0,40} )?(?:(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure|NotFound|Iteration)\b|(?:[a-z_]\w*\.){2,}[A-Z]\w+: )"
)
# What `warnings.warn` prints: the program continued below it, whatever it says (Python: warnings.formatwarning).
_PYTHON_WARNING = Lazy(r"\.py:\d+: (?:[A-Za-z_]\w*\.)*\w*Warning: ")
_INSTEAD = Lazy(r"\b(?:going to|using) \S.{0,40} instead\W*$")
_OF_RAY_TASK = Lazy(r"RayTaskError|ray\.exceptions\.")
_GLOG_INFORMS = Lazy(r"^I\d{4} \d\d:|: I (?:tensorflow|external|xla|tsl)/")
_DYING_WORDS = (
    "failed (exitcode:",
    "ChildFailedError",
    "Sending process",
    "Killing subprocess",
    "exits with return code",
    "Exited with exit code",
)
_LAUNCHERS_LOG = Lazy(r"(?:console|agent|launch\w*|torchrun|nohup|slurm)[^/\\]*$|\.out$")


def without_recovered(
    found: list[Candidate], scans: Sequence[SourceScan], *, died: bool, stepped: bool
) -> list[Candidate]:
    """The candidates that a job may have failed of.

    Args:
        found: all candidates, log by log.
        scans: what was read of the logs that they point into.
        died: some process is known to have ended badly.
        stepped: training's own lines were seen.
    """
    if not died:
        found = _without_survived(found, scans)
    found = [item for item in found if not _only_warns(item) and not _only_tried(item, found)]
    found = [item for item in found if not _went_on_to_raise(item, found)]
    left = _without_logged_notices(_not_recovered(found, scans, died))
    left = _without_plain_repeats(_without_passing(left))
    raised = any(_is_exception(item) and not item.soft for item in left)
    if died or raised or _trouble(scans):
        return left
    return [item for item in left if not (is_notice(item) and (stepped or item.soft or _informed_on(item)))]


def _without_survived(found: list[Candidate], scans: Sequence[SourceScan]) -> list[Candidate]:
    """The candidates but for those that were caught, or after which another log goes on, where no process is known to have died."""
    found = _without_caught(found, scans)
    if not _launcher_reports_nothing(scans):
        return found
    return [item for item in found if not _went_on_elsewhere(item, scans)]


def _only_warns(item: Candidate) -> bool:
    """Whether a line is a Python warning, or says what was used in place of what was not there: the program continued."""
    if _PYTHON_WARNING.search(item.text):
        # Lightning warns that it was interrupted, and ends.
        return item.failure is not FailureClass.TERMINATED
    return _INSTEAD.search(item.text[-80:]) is not None and not _is_exception(item)


def _not_recovered(found: list[Candidate], scans: Sequence[SourceScan], died: bool) -> list[Candidate]:
    """The candidates after which training did not continue."""
    steps = [scan.tail_steps() for scan in scans]
    return [
        item
        for item in found
        if not _recovered(item, scans[item.source], steps[item.source], died)
        and not _went_on_to_next(item, found, steps[item.source])
    ]


# -- notices ---------------------------------------------------------------------------------------


def is_notice(item: Candidate) -> bool:
    """A line about a class that shows itself as an exception, which is none and raises no alarm."""
    if item.has(Trait.OWN):
        return False  # its user says that it is a failure
    return (item.failure in _RAISED_AS_EXCEPTION or item.failure in _MOSTLY_RAISED) and not _raises_or_alarms(
        item
    )


def _raises_or_alarms(item: Candidate) -> bool:
    return _is_exception(item) or _ALARM.search(item.text) is not None


def _informed_on(item: Candidate, need: int = INFORMED_AFTER_NOTICE) -> bool:
    """Whether the program continued to inform of other things: a start that has not come to its first step yet, or a server."""
    informing = (
        1 for line in item.hit.lines_after() if INFORMS.search(line[:200]) or _GLOG_INFORMS.search(line[:60])
    )
    return sum(informing) >= need


def _without_logged_notices(found: list[Candidate]) -> list[Candidate]:
    return [item for item in found if not (item.is_cause and is_notice(item) and _logged_on(item, found))]


def _logged_on(notice: Candidate, found: Sequence[Candidate]) -> bool:
    """Whether the program logged other things between a notice and the exception that it failed of."""
    raised = [item.line for item in _later_causes(notice, found) if not is_notice(item)]
    if not raised:
        return False
    dated = (
        1
        for line in notice.lines_until(raised[0])
        if not _ALARM.search(line) and when(split_prefix(line)[1]) is not None
    )
    return sum(dated) >= 2


def _went_on_to_raise(report: Candidate, found: Sequence[Candidate]) -> bool:
    """Whether a program that only reported a trouble of a kind that is raised continued, and then raised another exception."""
    if not report.is_cause or report.failure not in _REPORTED_OR_RAISED:
        return False
    if _raised(report) or frames_above(report.hit).found or report.hit.has(Trait.OWN):
        return False
    raised = [other.line for other in _later_causes(report, found) if _raised(other) and not other.soft]
    if not raised:
        return False
    above = takewhile(lambda line: "Traceback" not in line, report.lines_until(raised[0]))
    return sum(1 for line in above if line.strip() and not _ALARM.search(line)) >= LINES_OF_ONE_THAT_WENT_ON


def _only_tried(item: Candidate, found: Sequence[Candidate]) -> bool:
    """Whether an import failed that the program can do without: it came to use memory up, which no such failure leads to.

    The two may stand in the two streams of one rank, which show no order.
    """
    return item.failure is FailureClass.IMPORT_ERROR and any(
        other.failure in _OF_TRAINING
        and _raised(other)
        and not other.soft
        and (item.rank is None or other.rank in {None, item.rank})
        and (other.source != item.source or other.line > item.line)
        for other in found
    )


def _later_causes(item: Candidate, found: Sequence[Candidate]) -> Iterator[Candidate]:
    """Causes below it in the same log."""
    for other in found:
        if other.is_cause and other.source == item.source and other.line > item.line:
            yield other


def _without_plain_repeats(found: list[Candidate]) -> list[Candidate]:
    """Of one class, an exception comes before a logged line or a warning about the same trouble."""
    raised = {item.failure for item in found if item.is_cause and _is_exception(item)}
    return [item for item in found if not (item.failure in raised and _repeats_plainly(item))]


def _repeats_plainly(item: Candidate) -> bool:
    """Whether a line may be a plain repeat of an exception: not raised itself, not part of a message, not exact."""
    return (
        item.is_cause
        and item.failure in _RAISED_AS_EXCEPTION
        and not _is_exception(item)
        and not item.hit.text.startswith(("\t", "  "))
        and item.strength < Strength.EXACT
    )


def _without_passing(found: list[Candidate]) -> list[Candidate]:
    """Without tracebacks that were logged as notices, or that a helper's thread left, where another one was raised."""
    passing = {id(item) for item in found if _in_passing(item)}
    ends = any(
        item.is_cause
        and id(item) not in passing
        and not item.soft
        and (_is_exception(item) or item.failure is FailureClass.TERMINATED)
        for item in found
    )
    return [item for item in found if id(item) not in passing] if passing and ends else found


def _in_passing(item: Candidate) -> bool:
    """Whether an exception was logged as a notice, or ended a helper's thread alone."""
    if not item.is_cause or not _is_exception(item):
        return False
    return frames_above(item.hit).logged or (item.soft and in_helper(item.hit))


def _without_caught(found: list[Candidate], scans: Sequence[SourceScan]) -> list[Candidate]:
    """Without exceptions that a process outlived: logged twice, or in a warning, or a Ray worker continued to print."""
    logged = [item for item in found if _raised(item) and frames_above(item.hit).caught]
    times = Counter(_by_whom(item) for item in logged)
    caught = {id(item) for item in logged if times[_by_whom(item)] > 1}
    caught |= {id(item) for item in found if item.has(Trait.ENDS_TRACEBACK) and item.soft}
    if not any(_OF_RAY_TASK.search(hit.text) for scan in scans for hit in scan.hits):
        caught |= {id(item) for item in found if _raised(item) and _worker_prints_on(item)}
    return [item for item in found if id(item) not in caught]


def _raised(item: Candidate) -> bool:
    return item.is_cause and _is_exception(item)


def _is_exception(item: Candidate) -> bool:
    """Whether a line is a traceback's last, by its layout or by the name of the exception."""
    return item.has(Trait.ENDS_TRACEBACK) or _EXCEPTION.match(item.text) is not None


def without_swallowed(found: list[Candidate], raised: Mapping[int, str]) -> list[Candidate]:
    """Without exceptions that a script survived: its process measured that one of another class ended it, which its log shows, too.

    What led to that one stays: a full disk breaks the file that is being closed.

    Args:
        found: all candidates.
        raised: see `JobEvidence`.
    """
    only = next(iter(raised)) if len(raised) == 1 else -1
    of_rank = {id(item): only if item.rank is None else item.rank for item in found if _raised(item)}
    ends = [item for item in found if raised.get(of_rank.get(id(item), -1)) == _class_name(item)]
    ranks = {of_rank[id(item)] for item in ends}
    lines = {(item.source, item.hit.line) for item in ends}
    return [
        item
        for item in found
        if of_rank.get(id(item), -1) not in ranks
        or not lines.isdisjoint((item.source, line) for line in (item.hit.line, end_of_chain(item.hit)))
    ]


def _class_name(item: Candidate) -> str:
    return item.hit.text.split(":", 1)[0].strip().rpartition(".")[2]


def _by_whom(item: Candidate) -> tuple[int, Origin, str]:
    """Who raised what: the log, its rank and process, the exception's type."""
    return item.source, item.hit.origin, item.text.split(":", 1)[0]


def _worker_prints_on(item: Candidate) -> bool:
    """Whether the Ray worker that raised it continued to print, among others. Where a task fails, the driver raises `RayTaskError`."""
    pid = item.hit.origin.pid
    if pid is None:
        return False
    hit = item.hit
    below = [split_prefix(line, hit.hosts) for line in hit.lines_after()]
    own = sum(1 for origin, text in below if origin.pid == pid and text.strip())
    around = (split_prefix(line, hit.hosts)[0].pid for line in (*hit.lines_before(), *hit.lines_after()))
    return own >= LINES_AFTER_CAUGHT and any(other not in {None, pid} for other in around)


def _trouble(scans: Sequence[SourceScan]) -> bool:
    """Whether any log shows a traceback or a process that ended."""
    return _any_hit(scans, Trait.TRACEBACK, Trait.LAUNCHER_REPORT, Trait.CRASH_REPORT, Trait.TASK_EXIT)


def _any_hit(scans: Sequence[SourceScan], *traits: Trait) -> bool:
    """Whether a line has any of these traits."""
    wanted = frozenset(traits)
    return any(not wanted.isdisjoint(hit.signature.traits) for scan in scans for hit in scan.hits)


# -- training that continued -------------------------------------------------------------------------


def _recovered(item: Candidate, scan: SourceScan, steps: list[tuple[int, str]], died: bool) -> bool:
    """Whether training continued after it, or the run came to a good end."""
    if item.failure is FailureClass.HANG and not item.has(Trait.MAY_RECOVER):
        return False
    if not died and _outlived(item):
        return True
    if ends_well(scan, item.line, steps):
        return True
    after = _after(item, scan, steps)
    own = [line for line in after if _same_process(line, item)]
    need, may_be_dying = _steps_needed(item, died)
    if not may_be_dying:
        return went_on(own, need=need)
    if not died and len(own) < len(after) and went_on(after, need=STEPS_ELSEWHERE):
        # Ranks step together: where the others continued for long, this one did too.
        return True
    return went_on(own, need=need) and not _dies_soon(item.hit)


def _outlived(item: Candidate) -> bool:
    """Whether the program's bars or its own words show that it continued."""
    if _bars_went_on(item) or (item.has(Trait.ENDS_TRACEBACK) and _informed_on(item)):
        return True
    return _raised(item) and frames_above(item.hit).caught and _informed_on(item, INFORMED_AFTER_CAUGHT)


def _bars_went_on(item: Candidate) -> bool:
    """Whether a bar shows that the program continued: the one that was drawn above, or any below a line that is no traceback's."""
    if _raised(item) and item.rank is None and bar_went_on(item.hit.before, item.hit.after):
        return True
    return not frames_above(item.hit).found and bar_states(item.hit.after) >= BAR_STATES


def _steps_needed(item: Candidate, died: bool) -> tuple[int, bool]:
    """How many of training's own lines after it show that the job recovered, and whether it may be dying all the same."""
    if item.has(Trait.MACHINE_WIDE) or item.failure is FailureClass.GPU_FAULT:
        return STEPS_ELSEWHERE, False
    if item.failure is FailureClass.TERMINATED:
        if "SIGUSR" in item.text:
            return STEPS_AFTER_LINE, False
        # The exception ends a program at once, or a notebook's cell; other words announce an end that may take long.
        raised = not died and item.rank is None and item.text.startswith("KeyboardInterrupt")
        return (STEPS_AFTER_TRACEBACK if raised else STEPS_AFTER_STOP), False
    if not died and item.failure in _RAISED_AS_EXCEPTION and not _raises_or_alarms(item):
        return STEPS_AFTER_NOTICE, False
    if not died and item.has(Trait.ENDS_TRACEBACK):
        return STEPS_AFTER_UNKNOWN, True
    frames = frames_above(item.hit)
    if not died and frames.caught:
        return STEPS_AFTER_CAUGHT, True
    if item.soft or not frames.found or (not died and _is_of_thread(frames)):
        return STEPS_AFTER_LINE, True
    return (STEPS_AFTER_TRACEBACK_OF_FAILED if died else STEPS_AFTER_TRACEBACK), True


def _is_of_thread(frames: Frames) -> bool:
    """Whether a thread raised it: that ended the thread alone."""
    return any(name == "_bootstrap_inner" for _, name in frames.frames[:1])


def _launcher_reports_nothing(scans: Sequence[SourceScan]) -> bool:
    """Whether logs of ranks stand beside a launcher's own, and that reports no process that ended."""
    ranked = [scan.origin.rank is not None or scan.origin.local_rank is not None for scan in scans]
    launchers = [
        scan
        for scan, is_ranks in zip(scans, ranked, strict=True)
        if not is_ranks and _LAUNCHERS_LOG.search(scan.path)
    ]
    reported = _any_hit(scans, Trait.LAUNCHER_REPORT, Trait.CRASH_REPORT, Trait.STOP_SIGNAL)
    return any(ranked) and bool(launchers) and not reported


def _went_on_elsewhere(item: Candidate, scans: Sequence[SourceScan]) -> bool:
    """Whether training continued in another stream of the ranks, under a launcher that has no complaint.

    A launcher reports each process that fails, and ranks step together; separate files show no order.
    """
    return any(
        went_on(scan.tail, need=STEPS_AFTER_LINE)
        for source, scan in enumerate(scans)
        if source != item.source and (scan.origin.rank is not None or scan.origin.local_rank is not None)
    )


def _went_on_to_next(item: Candidate, found: Sequence[Candidate], steps: list[tuple[int, str]]) -> bool:
    """Whether training continued between it and a later cause of the same rank: then that one is what it failed of."""
    if not item.is_cause or item.failure is FailureClass.TERMINATED or item.strength >= Strength.FATAL:
        return False
    later = [
        other.line
        for other in _later_causes(item, found)
        if (item.rank is None or other.rank in {None, item.rank})
        and other.failure is not FailureClass.TERMINATED
    ]
    last = max(later, default=0)
    between = {
        line[:200] for number, line in steps if item.line < number < last and _same_process(line, item)
    }
    return len(between) >= STEPS_BETWEEN_CAUSES


def _after(item: Candidate, scan: SourceScan, steps: list[tuple[int, str]]) -> list[str]:
    """Lines after it that may be training's own: those close by, and the tail's."""
    if item.line >= scan.tail_line:
        return [line for number, line in steps if number > item.line]
    return [*item.hit.lines_after(150)[item.line - item.hit.line :], *(line for _, line in steps)]


def _same_process(line: str, item: Candidate) -> bool:
    """Whether a later line could come from the process that failed: where ranks have prefixes, only its own count."""
    if item.rank is None or not line.startswith("[rank"):
        return True
    return line.startswith(f"[rank{item.rank}]")


def _dies_soon(hit: Hit) -> bool:
    return any(word in line for line in hit.lines_after(40) for word in _DYING_WORDS)


def ends_well(scan: SourceScan, after_line: int, steps: Sequence[tuple[int, str]] | None = None) -> bool:
    """Whether the log shows a good end after a line, and no bad end after that.

    A line that scripts print at their end ("All done") shows one only where training had gone on after that line: `set -e` is
    rare, and a batch script's last `echo` comes after every failure.

    Args:
        scan: the log.
        after_line: where to look from.
        steps: training's own lines in the tail, where they are known already.
    """
    ends = [hit for hit in scan.hits if hit.has(Trait.GOOD_END) and hit.line > after_line]
    if not ends:
        return False
    trained = _trained_by(scan.tail_steps() if steps is None else steps, after_line)
    good = [hit for hit in ends if not hit.has(Trait.CLOSING_LINE) or trained < hit.line]
    if not good:
        return False
    bad = [hit.line for hit in scan.hits if hit.has(Trait.BAD_END) and hit.line > after_line]
    return not bad or max(bad) < min(hit.line for hit in good)


def _trained_by(steps: Sequence[tuple[int, str]], after_line: int) -> float:
    """The line by which training had gone on after another; infinite where it did not. A bar is drawn once more as an exception closes it."""
    seen: set[str] = set()
    for number, line in steps:
        if number > after_line:
            seen.add(line[:400])
            if len(seen) >= STEPS_AFTER_LINE:
                return number
    return math.inf
