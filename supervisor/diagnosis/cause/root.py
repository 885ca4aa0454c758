"""What the choice of a root works on, and what it gives."""

from __future__ import annotations

from typing import NamedTuple

from supervisor.diagnosis.attribution.exits import Launch
from supervisor.diagnosis.attribution.ranks import Ranks
from supervisor.diagnosis.cause.candidates import Candidate
from supervisor.diagnosis.evidence import JobEvidence
from supervisor.diagnosis.scan.scanner import SourceScan
from supervisor.run.failures import FailureClass, Reason


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
