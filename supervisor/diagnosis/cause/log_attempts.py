"""Logs that hold more than one attempt of a launcher: what the last one ended in."""

from __future__ import annotations

from supervisor.diagnosis.case import Case, Root
from supervisor.diagnosis.scan.log_timeline import is_progress
from supervisor.diagnosis.scan.signature_tables import Trait
from supervisor.run.failures import FailureClass

# One step may be printed before a rank reads what another did.
STEPS_AGAIN = 2


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
