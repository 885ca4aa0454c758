"""Drops errors that a job recovered from, and notices that it only logged: neither caused the failure.

Three questions, in order. Does the line itself say that the program continued (a Python warning, "using … instead")? Did
training's own lines follow it, or a good end? Is it only a mention of a failure that is raised elsewhere?
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile

from supervisor.diagnosis.candidates import INFORMS
from supervisor.diagnosis.scan.frames import end_of_chain, frames_above
from supervisor.diagnosis.scan.log_timeline import bar_states, bar_went_on, went_on
from supervisor.diagnosis.scan.matched_lines import Candidate, SourceScan
from supervisor.diagnosis.scan.signature_tables import Strength, Trait
from supervisor.run.failures import FailureClass
from supervisor.text.patterns import Lazy
from supervisor.text.prefixes import Origin

# Training lines after an error that prove recovery: fewer if they more certainly belong to the job.
STEPS_AFTER_NOTICE = 1  # after a line that is neither an exception nor an alarm
STEPS_AFTER_CAUGHT = 2  # after a traceback printed by a logger, or an exception known only by its layout
STEPS_AFTER_LINE = 3  # after a warning, a line without a traceback, or a traceback of a thread
STEPS_AFTER_TRACEBACK = 6
STEPS_BETWEEN_CAUSES = 6
STEPS_ELSEWHERE = 12  # of other ranks, which step in sync; and after a kernel report about any process
STEPS_AFTER_STOP = 25  # after a stop, which a long save may follow
# A traceback in a job that failed: logs put together file by file show a rank's earlier steps after it.
STEPS_AFTER_TRACEBACK_OF_FAILED = 60
LINES_OF_ONE_MESSAGE = 4
BAR_STATES = 12  # states of one bar, drawn in one line; after a line without a traceback
INFORMED_AFTER_CAUGHT = 12  # below a logger's traceback; cleanup prints fewer
INFORMED_AFTER_NOTICE = 2  # lines of level INFO
_RAISED_AS_EXCEPTION = frozenset(
    (
        FailureClass.AUTH_OR_HUB, FailureClass.IMPORT_ERROR, FailureClass.CUDA_UNAVAILABLE, FailureClass.CODE_ERROR,
        FailureClass.MISSING_FILE, FailureClass.PERMISSION_DENIED, FailureClass.CHECKPOINT_LOAD,
    )
)  # fmt: skip
_MOSTLY_RAISED = frozenset(
    (FailureClass.CUDA_OOM, FailureClass.FD_LIMIT, FailureClass.COMPILE_ERROR, FailureClass.PORT_IN_USE)
)
_ALARM = Lazy(r"\b(?:ERROR|CRITICAL|FATAL|Traceback|[Ee]rror:|NCCL WARN|[Uu]nhandled exception)")
_EXCEPTION = Lazy(
    r"^(?:\S{0,40} )?(?:(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure|NotFound|Iteration)\b|(?:[a-z_]\w*\.){2,}[A-Z]\w+: )"
)
# The output of `warnings.warn`: the program continued, whatever it says (Python: warnings.formatwarning).
_PYTHON_WARNING = Lazy(r"\.py:\d+: (?:[A-Za-z_]\w*\.)*\w*Warning: ")
_INSTEAD = Lazy(r"\b(?:going to|using) \S.{0,40} instead\W*$")
_DYING_WORDS = (
    "failed (exitcode:",
    "ChildFailedError",
    "Sending process",
    "Killing subprocess",
    "exits with return code",
    "Exited with exit code",
)
_TROUBLE = frozenset((Trait.TRACEBACK, Trait.LAUNCHER_REPORT, Trait.CRASH_REPORT, Trait.TASK_EXIT))


def without_recovered(
    found: list[Candidate], scans: Sequence[SourceScan], *, died: bool, stepped: bool
) -> list[Candidate]:
    """The candidates that may have caused the failure.

    Args:
        found: all candidates, log by log.
        scans: the scans of their logs.
        died: some process is known to have failed.
        stepped: lines of training itself were seen.
    """
    steps = [scan.tail_steps() for scan in scans]
    # A process ends only once, so it catches any exception type that it logged more than once.
    times = Counter(_by_whom(item) for item in found if _is_exception(item) and frames_above(item.hit).caught)
    left = [
        item
        for item in found
        if (died or times[_by_whom(item)] < 2)
        and not _went_on_to_next(item, found, steps[item.source])
        and not _survived(item, scans[item.source], steps[item.source], died)
    ]
    left = [item for item in left if not _gave_way(item, left)]
    if died or _shows_trouble(left, scans):
        return left
    return [item for item in left if not (is_notice(item) and (stepped or item.soft or _informed_on(item)))]


def _shows_trouble(found: Sequence[Candidate], scans: Sequence[SourceScan]) -> bool:
    """Whether an exception was raised, or any log shows a traceback or an ended process."""
    traits = {trait for scan in scans for hit in scan.hits for trait in hit.signature.traits}
    return not _TROUBLE.isdisjoint(traits) or any(_is_exception(item) and not item.soft for item in found)


def _survived(item: Candidate, scan: SourceScan, steps: list[tuple[int, str]], died: bool) -> bool:
    """Whether the line or the following lines say that the program continued."""
    if _only_warns(item) or _recovered(item, scan, steps, died):
        return True
    return not died and item.soft and item.has(Trait.ENDS_TRACEBACK)


def _only_warns(item: Candidate) -> bool:
    """Whether a line is a Python warning, or names the replacement for something missing: the program continued."""
    if _PYTHON_WARNING.search(item.text):
        # Lightning warns that it was interrupted, and ends.
        return item.failure is not FailureClass.TERMINATED
    return _INSTEAD.search(item.text[-80:]) is not None and not _is_exception(item)


def _gave_way(item: Candidate, found: Sequence[Candidate]) -> bool:
    """Whether a line only mentions or logs a failure that is raised elsewhere, and another exception was raised.

    A program that later used up memory can do without a failed import.
    """
    if not item.is_cause:
        return False
    raised = [other for other in found if other.is_cause and not other.soft and _is_exception(other)]
    below = [other for other in raised if other.source == item.source and other.line > item.line]
    if item.failure is FailureClass.IMPORT_ERROR:
        return any(other.failure is FailureClass.CUDA_OOM for other in below)
    if _is_exception(item):
        return frames_above(item.hit).logged and _ended_otherwise(raised, found)
    return _is_mention(item) and any(_is_another(item, other) for other in below)


def _ended_otherwise(raised: Sequence[Candidate], found: Sequence[Candidate]) -> bool:
    """Whether an exception was raised without a logger, or another line reports the end."""
    return any(not frames_above(other.hit).logged for other in raised) or any(
        other.is_cause and other.failure is FailureClass.TERMINATED for other in found
    )


def _is_another(mention: Candidate, raised: Candidate) -> bool:
    """Whether an exception below a mention differs from it, or says the same more exactly. Consequences are right below."""
    if mention.failure is FailureClass.COMPILE_ERROR:
        return False  # compilers print, and their callers raise
    if raised.failure is mention.failure:
        is_part = mention.hit.text.startswith(("\t", "  "))  # of a message of several lines
        return mention.strength < Strength.EXACT and not is_part
    above = takewhile(lambda line: "Traceback" not in line, mention.lines_until(raised.line))
    return sum(1 for line in above if line.strip() and not _ALARM.search(line)) >= LINES_OF_ONE_MESSAGE


# -- notices ---------------------------------------------------------------------------------------


def is_notice(item: Candidate) -> bool:
    """A line of a class that shows up as exceptions, which is neither an exception nor an alarm."""
    return _is_mention(item) and _ALARM.search(item.text) is None


def _is_mention(item: Candidate) -> bool:
    if item.has(Trait.OWN):
        return False  # the user declared it a failure
    return item.failure in _RAISED_AS_EXCEPTION | _MOSTLY_RAISED and not _is_exception(item)


def _informed_on(item: Candidate, need: int = INFORMED_AFTER_NOTICE) -> bool:
    """Whether the program then logged other things: a start before its first step, or a server."""
    return sum(INFORMS.search(line[:200]) is not None for line in item.hit.lines_after()) >= need


def _by_whom(item: Candidate) -> tuple[int, Origin, str]:
    """The source of an exception: the log, its rank and process, the exception's type."""
    return item.source, item.hit.origin, item.text.split(":", 1)[0]


def _is_exception(item: Candidate) -> bool:
    """Whether a line ends a traceback, by its layout or an exception's name."""
    return item.has(Trait.ENDS_TRACEBACK) or _EXCEPTION.match(item.text) is not None


# -- exceptions that a process measured ------------------------------------------------------------


def without_swallowed(found: list[Candidate], raised: Mapping[int, str]) -> list[Candidate]:
    """Drop exceptions that a script survived: its process measured that another class ended it, which its log also shows.

    Causes of that one stay: a full disk breaks the file being closed.

    Args:
        found: all candidates.
        raised: see `JobEvidence`.
    """
    only = next(iter(raised)) if len(raised) == 1 else -1
    of_rank = {
        id(item): only if item.rank is None else item.rank
        for item in found
        if item.is_cause and _is_exception(item)
    }
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


# -- training that continued -------------------------------------------------------------------------


def _recovered(item: Candidate, scan: SourceScan, steps: list[tuple[int, str]], died: bool) -> bool:
    """Whether training continued after it, or the run ended well."""
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
        # Ranks step in sync: if the others continued for long, so did this one.
        return True
    dies_soon = any(word in line for line in item.hit.lines_after(40) for word in _DYING_WORDS)
    return went_on(own, need=need) and not dies_soon


def _outlived(item: Candidate) -> bool:
    """Whether the program's bar or own words show that it continued."""
    if not _is_exception(item):
        return not frames_above(item.hit).found and bar_states(item.hit.after) >= BAR_STATES
    if item.has(Trait.ENDS_TRACEBACK) and _informed_on(item):
        return True
    if frames_above(item.hit).caught and _informed_on(item, INFORMED_AFTER_CAUGHT):
        return True
    return item.rank is None and bar_went_on(item.hit.before, item.hit.after)


def _steps_needed(item: Candidate, died: bool) -> tuple[int, bool]:
    """How many training lines after it prove recovery, and whether the process may still be dying."""
    if item.has(Trait.MACHINE_WIDE) or item.failure is FailureClass.GPU_FAULT:
        return STEPS_ELSEWHERE, False
    if item.failure is FailureClass.TERMINATED:
        if "SIGUSR" in item.text:
            return STEPS_AFTER_LINE, False
        # The exception ends a program at once, or a notebook's cell; other words announce an end that may take long.
        raised = not died and item.rank is None and item.text.startswith("KeyboardInterrupt")
        return (STEPS_AFTER_TRACEBACK if raised else STEPS_AFTER_STOP), False
    if not died and item.failure in _RAISED_AS_EXCEPTION and is_notice(item):
        return STEPS_AFTER_NOTICE, False
    frames = frames_above(item.hit)
    if not died and (item.has(Trait.ENDS_TRACEBACK) or frames.caught):
        return STEPS_AFTER_CAUGHT, True
    of_thread = any(frame.function == "_bootstrap_inner" for frame in frames.frames[:1])  # it ended alone
    if item.soft or not frames.found or (not died and of_thread):
        return STEPS_AFTER_LINE, True
    return (STEPS_AFTER_TRACEBACK_OF_FAILED if died else STEPS_AFTER_TRACEBACK), True


def _went_on_to_next(item: Candidate, found: Sequence[Candidate], steps: list[tuple[int, str]]) -> bool:
    """Whether training continued until a later cause on the same rank, which is then the cause of the failure."""
    if not item.is_cause or item.failure is FailureClass.TERMINATED or item.strength >= Strength.FATAL:
        return False
    later = [
        other.line
        for other in found
        if other.is_cause
        and other.source == item.source
        and (item.rank is None or other.rank in {None, item.rank})
        and other.failure is not FailureClass.TERMINATED
    ]
    between = {line[:200] for number, line in steps if item.line < number < max(later)}
    return len(between) >= STEPS_BETWEEN_CAUSES


def _after(item: Candidate, scan: SourceScan, steps: list[tuple[int, str]]) -> list[str]:
    """Later lines that may be training's own: nearby ones, and the tail's."""
    if item.line >= scan.tail_line:
        return [line for number, line in steps if number > item.line]
    return [*item.hit.lines_after(150)[item.line - item.hit.line :], *(line for _, line in steps)]


def _same_process(line: str, item: Candidate) -> bool:
    """Whether a later line may be from the failed process: if ranks have prefixes, only its own lines count."""
    if item.rank is None or not line.startswith("[rank"):
        return True
    return line.startswith(f"[rank{item.rank}]")


def ends_well(scan: SourceScan, after_line: int, steps: Sequence[tuple[int, str]] | None = None) -> bool:
    """Whether the log shows a good end after a line, and no bad end after that.

    A script's closing line ("All done") counts only if training had continued after that line: `set -e` is
    rare, and a batch script's last `echo` comes after every failure.

    Args:
        scan: the log.
        after_line: the start of the search.
        steps: training's own lines in the tail, if already known.
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
    """The line that shows training continuing after another; infinite if none. A bar is drawn once more as an exception closes it."""
    seen: set[str] = set()
    for number, line in steps:
        if number > after_line:
            seen.add(line[:400])
            if len(seen) >= STEPS_AFTER_LINE:
                return number
    return math.inf
