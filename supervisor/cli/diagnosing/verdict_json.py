"""A verdict on the wire: the schema of ``stoker diagnose --json``, version 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisor.diagnosis.judgement import Judgement
    from supervisor.run.records import Verdict

WIRE_SCHEMA = 1


def to_wire(path: str, attempt: int | None, verdict: Verdict | Judgement) -> dict[str, object]:
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
