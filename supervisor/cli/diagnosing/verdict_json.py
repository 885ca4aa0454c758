"""A verdict on the wire: the schema of ``stoker diagnose --json``, version 1, and what ``--explain`` adds to it."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.diagnosis.case import Case
from supervisor.diagnosis.cause.confidence import ended_by
from supervisor.diagnosis.scan.hit import Candidate
from supervisor.diagnosis.scan.signature_tables import strength_word
from supervisor.diagnosis.verdict import EarlierJob, Examination
from supervisor.run.records import Verdict
from supervisor.text.redact import redact_text

WIRE_SCHEMA = 1


def to_wire(path: str, attempt: int | None, verdict: Verdict) -> dict[str, object]:
    """The JSON object of one job. Keys are never removed within a schema version."""
    cause = verdict.cause
    return {
        "schema": WIRE_SCHEMA,
        "path": path,
        "attempt": attempt,
        "failure": verdict.failure.value,
        "reason": verdict.reason.value if verdict.reason is not None else None,
        "confidence": verdict.confidence,
        "rank": verdict.rank,
        "ranks": list(verdict.ranks),
        "node": verdict.node,
        "local_rank": verdict.local_rank,
        "title": verdict.title,
        "cause": None if cause is None else {"path": cause.path, "line": cause.line, "text": cause.text},
        "consequences": [
            {"failure": item.failure.value, "rank": item.rank, "path": item.path, "line": item.line}
            for item in verdict.consequences
        ],
        "advice": list(verdict.advice),
        "action": verdict.action.value,
        "fingerprint": verdict.fingerprint,
    }


def earlier_jobs_to_wire(jobs: Sequence[EarlierJob]) -> list[dict[str, object]]:
    """The jobs that stand in the same file before the one that was judged: the value of the key `jobs`."""
    return [
        {
            "first_line": job.first_line,
            "last_line": job.last_line,
            "failure": job.verdict.failure.value,
            "reason": job.verdict.reason.value if job.verdict.reason is not None else None,
            "confidence": job.verdict.confidence,
            "rank": job.verdict.rank,
            "title": job.verdict.title,
            "line": job.verdict.cause.line if job.verdict.cause is not None else None,
        }
        for job in jobs
    ]


def explanation_to_wire(found: Examination) -> dict[str, object]:
    """How a verdict was reached: the value of the key `explanation`, which is there with ``--explain`` alone."""
    case, choice = found.case, found.choice
    return {
        "candidates": [_candidate(item, case) for item in case.candidates],
        "rule": {"name": choice.rule.name, "why": choice.rule.why},
        "yielded": [{"name": rule.name, "why": rule.why} for rule in choice.also_matched()],
        "corrections": [{"name": item.name, "why": item.why} for item in found.corrections],
        "ended": ended_by(case).value,
        "limits": [{"name": item.name, "at_most": item.at_most, "why": item.why} for item in choice.limits()],
    }


def _candidate(item: Candidate, case: Case) -> dict[str, object]:
    return {
        "path": case.scans[item.source].path,
        "line": item.line,
        "rank": item.rank,
        "text": redact_text(item.text.strip())[:600],
        "signature": item.signature.id,
        "failure": item.failure.value,
        "role": item.signature.role.value,
        "strength": strength_word(item.strength),
        "warning": item.soft,
    }
