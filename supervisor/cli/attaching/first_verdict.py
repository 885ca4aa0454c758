"""The verdict on a long log's end, before what watches it is loaded: the card is there while the rest is read.

Only a clear failure of a log that nobody writes is told so, as provisional. The observer reads the whole log and either confirms
it or takes it back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.verdict import diagnose
from supervisor.keeper.observer.start_observed import ATTEMPT, ObservedRun, backlog_bytes
from supervisor.keeper.observer.target import ObservedLog, Target
from supervisor.run import events as ev
from supervisor.run.failures import FailureClass
from supervisor.run.records import Verdict
from supervisor.run.regular import open_regular
from supervisor.sources.signature_files import default_cache_dir, load_engine

TAIL_BYTES = 1 << 20
# The signature's own line stands at the end: less sure is only what the whole log may show otherwise.
CLEAR = 0.9
QUIET_S = 60.0
_NO_FAILURE = frozenset((FailureClass.HEALTHY, FailureClass.UNKNOWN, FailureClass.TERMINATED))


def tell_first_verdict(observed: ObservedRun, what: Target, shown: Callable[[Verdict], Verdict]) -> None:
    """Journal the failure that the end of a long log shows, if it does clearly. `shown`: as the observer words it."""
    if not backlog_bytes(what) or not what.ended or any(log.packed for log in what.logs):
        return
    try:
        if time.time() - max(os.stat(log.path).st_mtime for log in what.logs) < QUIET_S:
            return
        engine = load_engine(default_cache_dir())
        evidence = JobEvidence(tuple(LogSource(log.name, _tail(log), log.origin) for log in what.logs))
        verdict = diagnose(evidence, engine.signatures, engine.matcher)
    except OSError:
        return  # the observer says what is wrong with it
    if verdict.failure in _NO_FAILURE or verdict.confidence < CLEAR or verdict.cause is None:
        return
    # How many lines stand above is not counted yet.
    verdict = shown(verdict)
    assert verdict.cause is not None
    verdict = replace(verdict, cause=replace(verdict.cause, line=None), consequences=())
    now = time.time()
    observed.emit(ev.AttemptEnded(t=now, attempt=ATTEMPT, exit_code=None))
    observed.emit(ev.LogsDated(t=now, attempt=ATTEMPT, began_t=None, over=True))
    observed.emit(ev.Diagnosed(t=now, attempt=ATTEMPT, verdict=verdict, provisional=True))


def _tail(log: ObservedLog) -> Iterator[bytes]:
    with open_regular(log.path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - TAIL_BYTES, 0))
        if size > TAIL_BYTES:
            file.readline()  # of it only the end
        yield file.read(TAIL_BYTES)
