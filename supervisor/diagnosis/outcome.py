"""A root made into a verdict: other evidence weighed in, consequences apart, words and advice put to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from supervisor.diagnosis.advice import action_for, advice_for
from supervisor.diagnosis.candidates import Candidate
from supervisor.diagnosis.classes import class_texts
from supervisor.diagnosis.evidence import JobEvidence
from supervisor.diagnosis.fingerprint import fingerprint
from supervisor.diagnosis.judgement import JudgedCause, JudgedConsequence, Judgement
from supervisor.diagnosis.scan import SourceScan
from supervisor.run.failures import FailureClass

if TYPE_CHECKING:
    from supervisor.diagnosis.root import Root

MOST_CONSEQUENCES = 24


def compose(
    job: JobEvidence, scans: Sequence[SourceScan], candidates: Sequence[Candidate], root: Root
) -> Judgement:
    """Put the verdict together."""
    text = class_texts()[root.failure]
    title = text.title
    if root.rank is not None:
        title += f" on rank {root.rank}"
    elif len(root.ranks) > 1:
        title += f" on ranks {', '.join(map(str, root.ranks[:8]))}" + (" …" if len(root.ranks) > 8 else "")
    cause = JudgedCause(root.path, root.line, root.text.strip()[:600]) if root.line > 0 or root.text else None
    return Judgement(
        failure=root.failure,
        reason=root.reason,
        confidence=round(root.confidence, 2),
        rank=root.rank,
        ranks=root.ranks,
        node=root.node,
        title=title,
        cause=cause,
        consequences=_consequences(scans, candidates, root),
        advice=advice_for(root.failure, root.reason, root.text, job),
        action=action_for(root.failure, root.reason, root.text, job),
        fingerprint=""
        if root.failure is FailureClass.HEALTHY
        else fingerprint(root.failure, root.reason, root.text),
    )


def _consequences(
    scans: Sequence[SourceScan], candidates: Sequence[Candidate], root: Root
) -> tuple[JudgedConsequence, ...]:
    if root.failure in (FailureClass.HEALTHY, FailureClass.UNKNOWN):
        return ()
    seen: set[tuple[FailureClass, int | None]] = {(root.failure, root.rank)}
    found: list[JudgedConsequence] = []
    for item in candidates:
        key = (item.failure, item.hit.origin.rank)
        path = scans[item.hit.source].path
        if key in seen or (path, item.line) == (root.path, root.line) or len(found) >= MOST_CONSEQUENCES:
            continue
        seen.add(key)
        found.append(
            JudgedConsequence(item.failure, item.hit.origin.rank, path, item.line, item.text.strip()[:200])
        )
    return tuple(found)
