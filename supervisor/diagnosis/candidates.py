"""Turn hits into root-cause candidates and drop errors that the job recovered from.

Every hit becomes a candidate unless it is quoted code or an echo. Stack frames and wording determine its class.
Three checks follow, in order. Does the line itself say that the program continued (a Python warning, "using …
instead")? Is it followed by training output or a clean finish? Does it only mention a failure raised elsewhere?
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from supervisor.diagnosis.class_words import class_by_words
from supervisor.diagnosis.scan.log_timeline import bar_states, bar_went_on, day_of, when
from supervisor.diagnosis.scan.matched_lines import (
    Candidate,
    Hit,
    SourceScan,
    below_its_frame,
    best_match,
    class_by_frames,
    end_of_chain,
    frames_above,
    in_helper,
    is_echo,
    is_logged_as_warning,
    is_quoted_code,
    last_exception_after,
    raised_by_instrument,
    was_handled,
    went_on,
)
from supervisor.diagnosis.scan.signature_tables import WARNING_COSTS, Role, Strength, Trait
from supervisor.run.records import FailureClass, Reason
from supervisor.text.patterns import Lazy
from supervisor.text.prefixes import Origin

_WARNING_LEVEL = Lazy(r"(?:^|[\s\[|:])W\d{3,4} \d\d:\d\d:\d\d\.\d+ \d+ (?!torch/distributed/elastic)")
# A line with this ending states what the program did instead, at any log level.
REPLACED = Lazy(
    r"(?:going to|using) \S.{0,40} instead\W*$|(?:^|[^t] )(?:skipp(?:ing|ed)|ignor(?:ing|ed)|using (?:the )?defaults?|fall(?:ing|s) back|fallback|retrying|will retry|continuing)\b.{0,24}$"
)
# wandb uploads in its own process and logs the server's refusals. A refusal that ends the program is raised (`CommError`).
_OF_UPLOADER = Lazy(r"^wandb: ERROR (?:Error while calling W&B API|.{0,40}\(<Response \[\d+\]>\))")
_OWN_NAME = Lazy(r"\w+(?=: |:?$)")
# Whatever the function does, its source code is wrong.
_OF_SOURCE = Lazy(r"\b(?:Name|UnboundLocal)Error\b|got an unexpected keyword argument")
_OWN_TYPE = Lazy(r"\b(?:Key|Type|Attribute|Index|Name|UnboundLocal)Error\b")
# nbclient, nbconvert and papermill raise these with the cell's own traceback as the message.
_OF_CELL = Lazy(r"\b(?:CellExecution|PapermillExecution)Error\b")
_INFORMS = Lazy(r"(?:^|[\s\[(|:-])INFO(?:$|[\s\])|:-])")

# Types that are raised for anything. Other types (KeyError, TypeError …) are the program's own.
_ANY_TYPE = Lazy(
    r"\b(?:ValueError|AssertionError|NotImplementedError|FloatingPointError|MisconfigurationException)\b"
)

# The strength of a plain exception whose class comes from frames, from words, or from neither.
FRAMES_STRENGTH = Strength.DECISIVE
WORDS_STRENGTH = 55
UNREAD_STRENGTH = 50
_READS_FRAMES = frozenset((Trait.GENERIC, Trait.FRAMES_REQUIRED, Trait.COMPILER_FRAMES))
# A process ended from outside raises no exception.
_NOT_RAISED = frozenset((FailureClass.WORKER_CRASH, FailureClass.TERMINATED))
# Failures that keep their own class in a data worker, because the remedy is not in the data.
_KEPT_IN_WORKER = frozenset(
    (
        FailureClass.FD_LIMIT, FailureClass.SHM_EXHAUSTED, FailureClass.HOST_OOM, FailureClass.DISK_FULL,
        FailureClass.CUDA_OOM, FailureClass.CUDA_ERROR, FailureClass.GPU_FAULT, FailureClass.IMPORT_ERROR,
        FailureClass.PERMISSION_DENIED, FailureClass.AUTH_OR_HUB,
    )
)  # fmt: skip


class _Settled(NamedTuple):
    """A hit's class, reason, strength and evidence line. If `in_helper`, it came from a thread that died alone."""

    failure: FailureClass
    reason: Reason | None
    strength: int
    line: int
    text: str
    in_helper: bool = False


def steps_seen(scans: Sequence[SourceScan]) -> bool:
    """Check whether any log contains output from the training loop itself."""
    return any(scan.drew_bars or scan.steps for scan in scans)


def candidates_of(scans: Sequence[SourceScan]) -> list[Candidate]:
    """Return all of a job's candidates, one log after another."""
    made = []
    for scan in scans:
        # If a log collector labels every line INFO, the label does not describe the line.
        edges = [line for line in (*scan.head[:40], *scan.tail[-40:]) if line.strip()]
        informs = bool(edges) and all(_INFORMS.search(line[:120]) for line in edges)
        # A collector's record of a whole traceback is one line with many texts.
        by_text: dict[tuple[int, str], list[Hit]] = {}
        for hit in scan.hits:
            by_text.setdefault((hit.line, hit.text), []).append(hit)
        best = (best_match(by_text[place]) for place in sorted(by_text, key=lambda place: place[0]))
        made += [_candidate(hit, scans, informs=informs) for hit in best if hit is not None]
    return _without_context([item for item in made if item is not None])


def _without_context(found: list[Candidate]) -> list[Candidate]:
    """Drop exceptions that merely led to a later exception in the same chain, which ended the process.

    Keep them if that last exception is a plain one, since it explains less, as when a full disk makes closing a file
    fail. Even then, drop a failed import that was handled, since the program can do without it.
    """
    raised = {(item.source, item.hit.line): item for item in found if item.is_cause and not item.soft}
    chained = ((item, raised.get((item.source, end_of_chain(item.hit) or 0))) for item in found)
    return [
        item
        for item, last in chained
        if last is None
        or last.failure is item.failure
        or (
            last.failure is FailureClass.CODE_ERROR
            and not (
                item.failure is FailureClass.IMPORT_ERROR
                and not any("direct cause" in line for line in item.lines_until(last.line))
            )
        )
    ]


def _is_no_report(hit: Hit, scans: Sequence[SourceScan]) -> bool:
    """Check whether a line only quotes code, echoes or wraps another line, or reports a handled exception."""
    if is_quoted_code(hit.text) or below_its_frame(hit) or is_echo(hit):
        return True
    wraps = hit.text.endswith(": Traceback (most recent call last):") or _OF_CELL.search(hit.text) is not None
    if wraps or (" in replica " in hit.text and "Caught " in hit.text):
        # The exception is below, unless the log was cut off above it.
        below = (other for other in scans[hit.source].hits if hit.line < other.line)
        if any(other.signature.role is Role.CAUSE for other in below):
            return True
    if hit.has(Trait.NOT_BELOW_SPAWN) and "multiprocessing/spawn.py" in "\n".join(hit.lines_before(12)):
        return True  # the parent was gone while its child was starting
    if hit.has(Trait.ENDS_TRACEBACK) and (was_handled(hit) or frames_above(hit).ignored):
        return True
    # A message that could not be formatted ended nothing. If it could not be written, a full disk shows up itself.
    may_pass = hit.signature.failure is FailureClass.CODE_ERROR or hit.has(Trait.LOST_CONNECTION)
    return may_pass and frames_above(hit).in_passing


def _candidate(hit: Hit, scans: Sequence[SourceScan], *, informs: bool) -> Candidate | None:
    if _is_no_report(hit, scans):
        return None
    settled = _settled(hit, scans)
    soft = _is_soft(hit, settled, informs=informs)
    is_cause = hit.signature.role is Role.CAUSE
    if settled.failure is FailureClass.CODE_ERROR and raised_by_instrument(frames_above(hit), hit.text):
        settled = settled._replace(reason=Reason.INSTRUMENT)
    # Within one log the order of lines is enough, except between a peer's complaint and a timeout.
    stamp = _stamp(hit, scans) if len(scans) > 1 or not is_cause else None
    return Candidate(
        settled.failure,
        settled.reason,
        settled.strength - (WARNING_COSTS if soft else 0),
        is_cause,
        hit,
        settled.line,
        settled.text,
        stamp if stamp is not None else float("nan"),
        soft,
    )


def _settled(hit: Hit, scans: Sequence[SourceScan]) -> _Settled:
    """Return a hit's class: its signature's, unless a wrapped exception, the frames or the wording indicate another."""
    signature = hit.signature
    plain = _Settled(signature.failure, signature.reason, signature.strength, hit.line, hit.text)
    if hit.has(Trait.WRAPS_INNER):
        inner = last_exception_after(hit)
        return plain if inner is None else _in_worker(hit.line + inner[0], inner[1], hit, scans)
    if signature.traits & _READS_FRAMES:
        return _by_frames_or_words(hit, plain)._replace(in_helper=in_helper(hit))
    if hit.has(Trait.PIPE_OWNER):
        owner = _pipe_owner(hit)
        return plain._replace(failure=owner or plain.failure, in_helper=owner is None and in_helper(hit))
    if plain.failure is FailureClass.DISK_FULL:
        # Locks and arenas of multiprocessing are in /dev/shm (`man sem_overview`).
        frames = frames_above(hit).frames
        if frames and "/multiprocessing/" in frames[-1].path:
            return plain._replace(failure=FailureClass.SHM_EXHAUSTED, reason=None)
    return plain


def _by_frames_or_words(hit: Hit, plain: _Settled) -> _Settled:
    """Return the class of a plain exception, judging by its wording or, failing that, its frames."""
    by_frames = None if _OF_SOURCE.search(hit.text) else class_by_frames(frames_above(hit))
    by_words = _class_of_words(hit)
    if by_words is not None:
        return plain._replace(failure=by_words[0], strength=max(plain.strength, WORDS_STRENGTH))
    if by_frames is not None and not (
        hit.has(Trait.COMPILER_FRAMES) and by_frames is not FailureClass.COMPILE_ERROR
    ):
        return plain._replace(failure=by_frames, strength=max(plain.strength, FRAMES_STRENGTH))
    if hit.has(Trait.FRAMES_REQUIRED):
        return plain._replace(failure=FailureClass.CODE_ERROR, strength=UNREAD_STRENGTH)
    return plain


def _class_of_words(hit: Hit) -> tuple[FailureClass, int] | None:
    """Return a class and score from a plain exception's wording, or None for the program's own exception types."""
    if not hit.has(Trait.GENERIC) or _OWN_TYPE.search(hit.text):
        return None
    if not hit.has(Trait.OPEN_TYPE) and not _ANY_TYPE.search(hit.text):
        return None
    if not hit.has(Trait.ENDS_TRACEBACK):
        return class_by_words(hit.text)
    found = class_by_words(_OWN_NAME.sub("", hit.text))  # a program may choose any name for its own classes
    return None if found is not None and found[0] in _NOT_RAISED else found


def _in_worker(line: int, text: str, hit: Hit, scans: Sequence[SourceScan]) -> _Settled:
    """Classify a data worker's exception, judging by the given line. Some exceptions keep their own class."""
    inner = best_match(other for other in scans[hit.source].hits if other.line == line)
    if inner is not None and inner.signature.failure in _KEPT_IN_WORKER:
        found = inner.signature
        return _Settled(found.failure, found.reason, max(found.strength, Strength.FULL), line, text)
    return _Settled(FailureClass.DATALOADER_WORKER, Reason.RAISED, hit.signature.strength, line, text)


def _is_soft(hit: Hit, settled: _Settled, *, informs: bool) -> bool:
    """Check whether the line is a warning or notice. If `informs`, a collector put INFO before every line."""
    if hit.has(Trait.FIRM):
        return False
    text = _INFORMS.sub(" ", hit.text) if informs else hit.text
    return (
        settled.in_helper
        or (hit.has(Trait.ENDS_TRACEBACK) and frames_above(hit).logged)
        or _WARNING_LEVEL.search(text) is not None
        or _OF_UPLOADER.match(text) is not None
        or is_logged_as_warning(text)
        or REPLACED.search(text[-80:]) is not None
    )


def _pipe_owner(hit: Hit) -> FailureClass | None:
    """Return which side owned a broken pipe between Python's own processes: a data worker or the program."""
    paths = [frame.path for frame in frames_above(hit).frames]
    if not any("/multiprocessing/" in path for path in paths):
        return None
    if any("torch/utils/data/" in path for path in paths):
        return FailureClass.DATALOADER_WORKER
    return FailureClass.CODE_ERROR


def _stamp(hit: Hit, scans: Sequence[SourceScan]) -> float | None:
    """Return a line's timestamp, or that of a nearby line if it has none."""
    day_t = day_of(line for scan in scans for line in (*scan.head[:100], *scan.tail[-50:]))
    near = (hit.text, *reversed(hit.lines_before(40)), *hit.lines_after(12))
    return next((stamp for line in near if (stamp := when(line, day_t)) is not None), None)


def in_order(found: list[Candidate]) -> list[Candidate]:
    """Sort candidates chronologically: by line within a log, and by timestamp across logs if every candidate has one."""
    sources = {item.hit.source for item in found}
    stamped = [item for item in found if item.order == item.order]
    if len(sources) > 1 and len(stamped) == len(found):
        return sorted(found, key=lambda item: (item.order, item.hit.source, item.line))
    return sorted(found, key=lambda item: (item.hit.source, item.line))


# -- errors that the job recovered from -------------------------------------------------------------

# Number of training lines after an error that prove recovery, lower if they more certainly belong to the job.
STEPS_AFTER_NOTICE = 1  # after a line that is neither an exception nor an alarm
STEPS_AFTER_CAUGHT = 2  # after a traceback printed by a logger, or an exception known only by its layout
STEPS_AFTER_LINE = 3  # after a warning, a line without a traceback, or a traceback of a thread
STEPS_AFTER_TRACEBACK = 6
STEPS_BETWEEN_CAUSES = 6
STEPS_ELSEWHERE = 12  # of other ranks, which step in sync; and after a kernel report about any process
STEPS_AFTER_STOP = 25  # after a stop, which a long save may follow
# After a traceback in a job that failed. Logs joined file by file show a rank's earlier steps after it.
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
# The output of `warnings.warn`. The program continued, whatever it says (Python: warnings.formatwarning). Lightning warns that it was
# interrupted, and ends.
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
    """Return the candidates that may have caused the failure.

    Args:
        found: all candidates, one log after another.
        scans: the scans of their logs.
        died: whether a process is known to have failed.
        stepped: whether any training output was found.
    """
    steps = [scan.tail_steps() for scan in scans]
    # A process ends only once, so it must have caught any exception type that it logged more than once.
    times = Counter(_by_whom(item) for item in found if _is_exception(item) and frames_above(item.hit).caught)
    left = [
        item
        for item in found
        if (died or times[_by_whom(item)] < 2)
        and not _went_on_to_next(item, found, steps[item.source])
        and not _recovered(item, scans[item.source], steps[item.source], died)
    ]
    left = [item for item in left if not _gave_way(item, left)]
    if died or _shows_trouble(left, scans):
        return left
    return [item for item in left if not (is_notice(item) and (stepped or item.soft or _informed_on(item)))]


def _shows_trouble(found: Sequence[Candidate], scans: Sequence[SourceScan]) -> bool:
    """Check whether an exception was raised or any log shows a traceback or a dead process."""
    traits = {trait for scan in scans for hit in scan.hits for trait in hit.signature.traits}
    return not _TROUBLE.isdisjoint(traits) or any(_is_exception(item) and not item.soft for item in found)


def _says_so(item: Candidate, died: bool) -> bool:
    """Check whether the line itself says that the program continued."""
    if item.failure is not FailureClass.TERMINATED and _PYTHON_WARNING.search(item.text):
        return True
    if _INSTEAD.search(item.text[-80:]) and not _is_exception(item):
        return True
    return not died and item.soft and item.has(Trait.ENDS_TRACEBACK)


def _gave_way(item: Candidate, found: Sequence[Candidate]) -> bool:
    """Check whether a line merely mentions or logs a failure, while a different exception was actually raised.

    A failed import also counts if the program later ran out of memory, since it evidently did not need the import.
    """
    if not item.is_cause:
        return False
    raised = [other for other in found if other.is_cause and not other.soft and _is_exception(other)]
    below = [other for other in raised if other.source == item.source and other.line > item.line]
    if item.failure is FailureClass.IMPORT_ERROR:
        return any(other.failure is FailureClass.CUDA_OOM for other in below)
    if _is_exception(item):
        # An exception was raised without a logger, or another line reports the end.
        ended = any(not frames_above(other.hit).logged for other in raised) or any(
            other.is_cause and other.failure is FailureClass.TERMINATED for other in found
        )
        return ended and frames_above(item.hit).logged
    return _is_mention(item) and any(_is_another(item, other) for other in below)


def _is_another(mention: Candidate, raised: Candidate) -> bool:
    """Check whether a later exception differs from a mention or describes it better. Consequences come right below a mention."""
    if mention.failure is FailureClass.COMPILE_ERROR:
        return False  # compilers print, and their callers raise
    if raised.failure is mention.failure:
        return mention.strength < Strength.EXACT
    above = takewhile(lambda line: "Traceback" not in line, mention.lines_until(raised.line))
    return sum(1 for line in above if line.strip() and not _ALARM.search(line)) >= LINES_OF_ONE_MESSAGE


# -- notices ---------------------------------------------------------------------------------------


def is_notice(item: Candidate) -> bool:
    """Check whether a line is neither an exception nor an alarm, although failures of its class normally are exceptions."""
    return _is_mention(item) and _ALARM.search(item.text) is None


def _is_mention(item: Candidate) -> bool:
    if item.has(Trait.OWN):
        return False  # the user declared it a failure
    return item.failure in _RAISED_AS_EXCEPTION | _MOSTLY_RAISED and not _is_exception(item)


def _informed_on(item: Candidate, need: int = INFORMED_AFTER_NOTICE) -> bool:
    """Check whether informational messages follow, as they would from a server or a run that is still starting up."""
    return sum(_INFORMS.search(line[:200]) is not None for line in item.hit.lines_after()) >= need


def _by_whom(item: Candidate) -> tuple[int, Origin, str]:
    """Identify the source of an exception: its log, its rank and process, and the exception type."""
    return item.source, item.hit.origin, item.text.split(":", 1)[0]


def _is_exception(item: Candidate) -> bool:
    """Check whether a line ends a traceback, judging by its layout or an exception name."""
    return item.has(Trait.ENDS_TRACEBACK) or _EXCEPTION.match(item.text) is not None


# -- exceptions that a process measured ------------------------------------------------------------


def without_swallowed(found: list[Candidate], raised: Mapping[int, str]) -> list[Candidate]:
    """Drop exceptions that a script survived, when measurements and the log agree that another class of failure ended it.

    Keep the causes of that final exception, such as a full disk that makes closing a file fail.

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
    names = {id(item): item.hit.text.split(":", 1)[0].strip().rpartition(".")[2] for item in found}
    ends = [item for item in found if raised.get(of_rank.get(id(item), -1)) == names[id(item)]]
    ranks = {of_rank[id(item)] for item in ends}
    lines = {(item.source, item.hit.line) for item in ends}
    return [
        item
        for item in found
        if of_rank.get(id(item), -1) not in ranks
        or not lines.isdisjoint((item.source, line) for line in (item.hit.line, end_of_chain(item.hit)))
    ]


# -- training that continued -------------------------------------------------------------------------


def _recovered(item: Candidate, scan: SourceScan, steps: list[tuple[int, str]], died: bool) -> bool:
    """Check whether this line or later ones show that the program continued or the run finished cleanly."""
    if _says_so(item, died) or (not died and _outlived(item)):
        return True
    if ends_well(scan, item.line):
        return True
    after = [line for number, line in steps if number > item.line]
    if item.line < scan.tail_line:
        after = [*item.hit.lines_after(150)[item.line - item.hit.line :], *after]
    # If ranks have prefixes, only the failed process's own lines count.
    is_other = item.rank is not None
    own = [
        line
        for line in after
        if not (is_other and line.startswith("[rank") and not line.startswith(f"[rank{item.rank}]"))
    ]
    need, may_be_dying = _steps_needed(item, died)
    if may_be_dying and not died and len(own) < len(after) and went_on(after, need=STEPS_ELSEWHERE):
        return True  # ranks step in sync: if the others continued for long, this one did too
    dies_soon = may_be_dying and any(
        word in line for line in item.hit.lines_after(40) for word in _DYING_WORDS
    )
    return went_on(own, need=need) and not dies_soon


def _outlived(item: Candidate) -> bool:
    """Check whether the program's progress bar or its own messages show that it continued."""
    if not _is_exception(item):
        return not frames_above(item.hit).found and bar_states(item.hit.after) >= BAR_STATES
    if item.has(Trait.ENDS_TRACEBACK) and _informed_on(item):
        return True
    if frames_above(item.hit).caught and _informed_on(item, INFORMED_AFTER_CAUGHT):
        return True
    return item.rank is None and bar_went_on(item.hit.before, item.hit.after)


def _steps_needed(item: Candidate, died: bool) -> tuple[int, bool]:
    """Return how many later training lines prove recovery and whether the process may still be dying."""
    if item.has(Trait.MACHINE_WIDE) or item.failure is FailureClass.GPU_FAULT:
        return STEPS_ELSEWHERE, False
    if item.failure is FailureClass.TERMINATED:
        if (
            "SIGUSR" in item.text
        ):  # SLURM sends this before the time limit, and the job's own handler decides what follows
            return STEPS_AFTER_LINE, False
        # The exception ends a program or a notebook's cell at once. Other words announce an end that may take long.
        raised = not died and item.rank is None and item.text.startswith("KeyboardInterrupt")
        return (STEPS_AFTER_TRACEBACK if raised else STEPS_AFTER_STOP), False
    if not died and item.failure in _RAISED_AS_EXCEPTION and is_notice(item):
        return STEPS_AFTER_NOTICE, False
    frames = frames_above(item.hit)
    if not died and (item.has(Trait.ENDS_TRACEBACK) or frames.caught):
        return STEPS_AFTER_CAUGHT, True
    of_thread = any(frame.function == "_bootstrap_inner" for frame in frames.frames[:1])  # ended alone
    if item.soft or not frames.found or (not died and of_thread):
        return STEPS_AFTER_LINE, True
    return (STEPS_AFTER_TRACEBACK_OF_FAILED if died else STEPS_AFTER_TRACEBACK), True


def _went_on_to_next(item: Candidate, found: Sequence[Candidate], steps: list[tuple[int, str]]) -> bool:
    """Check whether training continued until a later cause on the same rank, which is then to blame instead."""
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


def ends_well(scan: SourceScan, after_line: int) -> bool:
    """Check whether a clean finish follows a line, with no failed exit after that.

    A script's closing line ("All done") counts only after some steps, because a batch script's last `echo` runs after any
    failure. When an exception closes the progress bars, each rank redraws its bar once; that is not a new step.
    """
    ends = [hit for hit in scan.hits if hit.line > after_line]
    if not any(hit.has(Trait.GOOD_END) for hit in ends):
        return False
    firsts = {line[:400]: number for number, line in reversed(scan.tail_steps()) if number > after_line}
    steps = sorted(firsts.values())
    trained = steps[STEPS_AFTER_LINE - 1] if len(steps) >= STEPS_AFTER_LINE else math.inf
    good = [
        hit.line
        for hit in ends
        if hit.has(Trait.GOOD_END) and (trained < hit.line or not hit.has(Trait.CLOSING_LINE))
    ]
    return bool(good) and max((hit.line for hit in ends if hit.has(Trait.BAD_END)), default=0) < min(good)
