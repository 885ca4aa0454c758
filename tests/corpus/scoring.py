"""Scores verdicts against the labelled corpus: classes, root ranks, causing lines, false alarms, abstentions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.verdict import Examination, examine
from supervisor.run.records import Verdict
from supervisor.sources.signature_files import Engine

DATA = Path(__file__).parent / "data"
NOT_FAILURES = ("healthy", "unknown")
SURE = 0.9


def records(path: Path = DATA / "failures.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def examined(text: str, engine: Engine) -> Examination:
    job = JobEvidence(logs=(LogSource("log", (text.encode("utf-8", "surrogateescape"),)),))
    return examine(job, engine.signatures, engine.matcher)


def verdict_on(text: str, engine: Engine) -> Verdict:
    return examined(text, engine).verdict


@dataclass
class Score:
    """Counts over one corpus; `wrong` names what went wrong, for people."""

    right: int = 0
    total: int = 0
    rank_right: int = 0
    rank_known: int = 0
    line_right: int = 0
    line_known: int = 0
    alarms: int = 0
    healthy: int = 0
    abstained: int = 0
    sure: int = 0
    sure_wrong: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, record: dict[str, Any], verdict: Verdict) -> None:
        truth, guess = record["cls"], verdict.failure.value
        good = guess == truth or guess in record.get("accept", [])
        self.total += 1
        self.right += good
        if verdict.confidence >= SURE:
            self.sure += 1
            self.sure_wrong += not good
        if not good:
            self.wrong.append(f"{record['id']}: {truth} -> {guess} ({verdict.confidence})")
        if truth == "healthy":
            self.healthy += 1
            self.alarms += guess not in NOT_FAILURES
        if truth in NOT_FAILURES:
            return
        self.abstained += guess == "unknown"
        if record.get("first_bad_rank") is not None:
            self.rank_known += 1
            self.rank_right += verdict.rank == record["first_bad_rank"]
        if record.get("cause_line"):
            self.line_known += 1
            line = verdict.cause.line if verdict.cause is not None else None
            near = line is not None and abs(line - record["cause_line"]) <= 2
            self.line_right += near
            if not near:
                self.wrong.append(f"{record['id']}: line {record['cause_line']} -> {line}")

    def lines(self) -> Iterator[str]:
        yield from self.wrong
        yield f"root cause {share(self.right, self.total)} · root rank {share(self.rank_right, self.rank_known)} · cause line ±2 {share(self.line_right, self.line_known)}"
        yield f"alarms on healthy {share(self.alarms, self.healthy)} · abstained {self.abstained} · wrong among confidence ≥ {SURE} {share(self.sure_wrong, self.sure)}"


def share(part: int, whole: int) -> str:
    return f"{part}/{whole} ({part / whole:.1%})" if whole else "0/0"


def score(engine: Engine, path: Path = DATA / "failures.jsonl") -> Score:
    total = Score()
    for record in records(path):
        total.add(record, verdict_on(record["text"], engine))
    return total
