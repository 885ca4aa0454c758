"""What is true of the scripts in ``styles``, and how an answer is compared with it.

A truth is one line of ``truth.jsonl`` (32 styles of public projects) or ``hard.jsonl`` (eight made to mislead): how the script is
launched, its micro-batch and accumulation, which settings make them, and how it resumes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from supervisor.job.knobs.measured import Certainty, MeasuredBatch
from supervisor.job.knobs.setting_names import plain

STYLES = Path(__file__).parent / "styles"
QUESTIONS = ("micro", "accumulation", "setting", "scope", "accumulation_setting")
Truth = dict[str, Any]


def truths(file: str) -> list[Truth]:
    return [json.loads(line) for line in (STYLES / file).read_text().splitlines()]


def answers(batch: MeasuredBatch) -> dict[str, tuple[object, Certainty]]:
    """Each question's answer as the truths spell it, and its verdict."""
    by, scope = batch.set_by.setting, batch.set_by.scope
    accumulates = plain(batch.accumulation_setting) if batch.accumulation_setting is not None else None
    setting = plain(by.name) if by is not None else None
    found = (batch.micro.number, batch.accumulated.number, setting, scope and scope.value, accumulates)
    findings = (batch.micro, batch.accumulated, batch.set_by, batch.set_by, batch.accumulated_by)
    return {
        question: (answer, finding.certainty)
        for question, answer, finding in zip(QUESTIONS, found, findings, strict=True)
    }


def right(truth: Truth, question: str) -> object:
    value = truth[question]
    return plain(value) if isinstance(value, str) else value


def wrong(truth: Truth, batch: MeasuredBatch) -> list[tuple[str, object]]:
    return [
        (question, answer)
        for question, (answer, verdict) in answers(batch).items()
        if verdict is Certainty.MEASURED and answer != right(truth, question)
    ]
