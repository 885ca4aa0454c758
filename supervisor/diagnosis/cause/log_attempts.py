"""Logs that hold more than one attempt, or more than one run: what the last one ended in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from supervisor.diagnosis.case import Case, Root
from supervisor.diagnosis.cause.fingerprint import plain_form
from supervisor.diagnosis.scan.log_timeline import is_progress
from supervisor.diagnosis.scan.signature_tables import Trait
from supervisor.run.failures import FailureClass
from supervisor.text.patterns import Lazy

# One step may be printed before a rank reads what another did.
STEPS_AGAIN = 2
# A repeat of at least this many consecutive lines from the top of a log is taken for a restart of the program.
OPENING_LINES = 2
OPENING_WITHIN = 20
MOST_RUNS = 8
_NO_OPENING = Lazy(r"^\s|^\[rank\d|Traceback|[Ww]arn|WARN|Error|^\W*$|^(?:\S+\s*){1,2}$")
_WORD = Lazy(r"[A-Za-z_]{6,}")


def last_attempt(case: Case) -> Case | None:
    """The case as of the last restart that the log reports; None where it reports none, or nothing came after."""
    if len(case.scans) != 1:
        return None
    scan = case.scans[0]
    start = max((hit.line for hit in scan.hits if hit.has(Trait.ATTEMPT_RESTART)), default=0)
    candidates = tuple(item for item in case.candidates if item.line > start)
    if start == 0 or not candidates:
        return None
    exits = tuple(item for item in case.launch.exits if item.hit.line > start)
    return case._replace(
        scans=(scan._replace(hits=tuple(hit for hit in scan.hits if hit.line > start)),),
        launch=case.launch._replace(exits=exits),
        candidates=candidates,
    )


def last_attempt_failed_differently(first: Root, last: Root, case: Case) -> bool:
    """Whether the last attempt came to steps again, and then failed of something else than the ones before."""
    if last.failure in (first.failure, FailureClass.HEALTHY, FailureClass.UNKNOWN, FailureClass.TERMINATED):
        return False
    if last.chosen is None or not last.chosen.is_cause or last.line <= first.line:
        return False
    scan = case.scans[0]
    between = range(max(first.line, scan.tail_line), last.line)
    steps = {line for row in between if is_progress(line := scan.tail[row - scan.tail_line])}
    return len(steps) >= STEPS_AGAIN


def later_runs(case: Case, root: Root) -> Iterator[Case]:
    """The case as of each run that begins below the root, in a log that several were appended to, the last one first.

    A run begins where the lines that open the log come again. Of a job of several ranks nothing is taken away:
    each of them opens its output alike.
    """
    if len(case.scans) != 1 or _in_step(case, root) or len(case.ranks.seen) > 1 or root.line <= 0:
        return
    scan = case.scans[0]
    for row in _opened_again(scan.head[: min(OPENING_WITHIN, root.line - 1)], scan.tail):
        start = scan.tail_line + row
        if start <= root.line:
            return
        exits = tuple(item for item in case.launch.exits if item.hit.line >= start)
        hits = tuple(hit for hit in scan.hits if hit.line >= start)
        yield case._replace(
            scans=(scan._replace(hits=hits, head=(), tail=scan.tail[row:], tail_line=start),),
            launch=case.launch._replace(exits=exits),
            candidates=tuple(item for item in case.candidates if item.line >= start),
        )


def _in_step(case: Case, root: Root) -> bool:
    """Whether several processes may write at the root. A launcher that had ended above it was an earlier run's."""
    exits = case.launch.exits
    return case.launch.distributed and (not exits or any(item.hit.line >= root.line for item in exits))


def _opened_again(head: Sequence[str], tail: Sequence[str]) -> list[int]:
    """The last rows of the tail where the opening's lines stand one below the other again, from its end upwards."""
    opening: list[str] = []
    for line in head:
        if _NO_OPENING.search(line) or is_progress(line):
            opening.clear()
            continue
        opening.append(line)
        if len(opening) == OPENING_LINES:
            break
    words = [_WORD.search(line) for line in opening]
    if len(opening) < OPENING_LINES or not all(words):
        return []
    forms = [plain_form(line) for line in opening]
    first = words[0].group() if words[0] is not None else ""
    rows: list[int] = []
    for row in range(len(tail) - OPENING_LINES, -1, -1):
        if first in tail[row] and [plain_form(line) for line in tail[row : row + OPENING_LINES]] == forms:
            rows.append(row)
            if len(rows) == MOST_RUNS:
                break
    return rows
