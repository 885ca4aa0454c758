"""A root made into a verdict: other evidence weighed in, consequences apart, words and advice put to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from supervisor.diagnosis.cause.candidates import Candidate
from supervisor.diagnosis.cause.consequences import what_followed
from supervisor.diagnosis.cause.fingerprint import fingerprint
from supervisor.diagnosis.evidence import JobEvidence
from supervisor.diagnosis.hang.hang_verdict import advice_by_stacks, title_by_stacks, told_by_stacks, waited
from supervisor.diagnosis.judgement import JudgedCause, JudgedConsequence, Judgement
from supervisor.diagnosis.scan.scanner import SourceScan
from supervisor.diagnosis.wording.advice import action_for, advice_for
from supervisor.diagnosis.wording.titles import is_bare_kill, is_sent_kill, nothing_said, title_of
from supervisor.run.failures import FailureClass, Reason
from supervisor.text.decode import strip_escapes

if TYPE_CHECKING:
    from supervisor.diagnosis.cause.root import Root

MOST_CONSEQUENCES = 24
# DDP's message names its parameters some 800 bytes below its first line.
BELOW_BYTES = 3000


def compose(
    job: JobEvidence, scans: Sequence[SourceScan], candidates: Sequence[Candidate], root: Root
) -> Judgement:
    """Put the verdict together."""
    cause = JudgedCause(root.path, root.line, root.text.strip()[:600]) if root.line > 0 or root.text else None
    killed = is_bare_kill(root) or is_sent_kill(root, job)
    seen = told_by_stacks(job, root)
    advice = advice_for(root.failure, root.reason, _words(root), job, bare_kill=killed)
    followed = _consequences(job, scans, candidates, root)
    title = nothing_said(scans) if root.failure is FailureClass.UNKNOWN else None
    if seen is not None:
        advice, followed = advice_by_stacks(seen, advice), (*waited(seen), *followed)
        title = title_by_stacks(seen, root.failure)
    return Judgement(
        failure=root.failure,
        reason=root.reason,
        confidence=round(root.confidence, 2),
        rank=root.rank,
        ranks=root.ranks,
        node=root.node,
        title=title or title_of(root),
        cause=cause,
        consequences=followed,
        advice=advice,
        action=action_for(root.failure, root.reason, root.text, job),
        fingerprint=fingerprint(root.failure, root.reason, root.text) if _has_failed(root) else "",
    )


def _has_failed(root: Root) -> bool:
    """Whether there is a failure that could come again; what a person stopped has none."""
    stopped = root.failure is FailureClass.TERMINATED and root.reason is Reason.USER
    return root.failure is not FailureClass.HEALTHY and not stopped


def _words(root: Root) -> str:
    """The root's line and, where it opens a message of several lines, what stands below it."""
    if root.chosen is None:
        return root.text
    below = root.chosen.hit.after[:BELOW_BYTES].decode("utf-8", "replace")
    return f"{root.text}\n{strip_escapes(below)}"


def _consequences(
    job: JobEvidence, scans: Sequence[SourceScan], candidates: Sequence[Candidate], root: Root
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
            JudgedConsequence(
                item.failure,
                item.hit.origin.rank,
                path,
                item.line,
                item.text.strip()[:200],
                what_followed(item, job),
            )
        )
    return tuple(found)
