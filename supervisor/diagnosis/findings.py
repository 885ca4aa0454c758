"""What a verdict is decided on, and the root that the decision gives."""

from __future__ import annotations

from typing import NamedTuple

from supervisor.diagnosis.attribution.process_exits import Launch
from supervisor.diagnosis.attribution.rank_of_lines import Ranks
from supervisor.diagnosis.evidence import JobEvidence
from supervisor.diagnosis.scan.matched_lines import Candidate, SourceScan
from supervisor.diagnosis.scan.signature_tables import Signatures
from supervisor.run.failures import FailureClass, Reason


class Root(NamedTuple):
    """What was chosen: class, place and certainty. `line` 0: no line shows it; `local_rank`: on its node, where `rank` is not known."""

    failure: FailureClass
    reason: Reason | None = None
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    node: str | None = None
    path: str = ""
    line: int = 0
    text: str = ""
    confidence: float = 0.0
    chosen: Candidate | None = None
    local_rank: int | None = None


class Case(NamedTuple):
    """All that is known of one attempt, read once."""

    job: JobEvidence
    scans: tuple[SourceScan, ...]
    launch: Launch
    ranks: Ranks
    candidates: tuple[Candidate, ...]
    signatures: Signatures
