"""Labelled logs with what is known beside them: data/verdicts.jsonl, a row each.

`id` says what the row shows. `logs`: text, and path and origin where a verdict depends on them. `known`: fields of `JobEvidence`.
`expect`: the class, and, where the log shows them, the reason, the rank, and the line of the cause. `fired`: the rules that give it, in
order. `limits`: what holds its confidence down. `title`, `cause`, `advice`: parts of them; `not_advised`: what would mislead.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from supervisor.diagnosis.evidence import JobEvidence, LogSource, MachineRecords, RunValues
from supervisor.diagnosis.root_cause import LIMITS
from supervisor.diagnosis.root_rules import RULES
from supervisor.diagnosis.verdict import examine
from supervisor.job.batch import BatchSpec
from supervisor.sources.signature_files import Engine
from supervisor.text.prefixes import Origin

PATH = Path(__file__).parent / "data" / "verdicts.jsonl"
ROWS = [json.loads(line) for line in PATH.read_text(encoding="utf-8").splitlines()]


def evidence(row: dict[str, Any]) -> JobEvidence:
    known = dict(row.get("known", {}))
    for name in ("exit_codes", "raised"):
        if name in known:
            known[name] = {int(rank): value for rank, value in known[name].items()}
    if "machine" in known:
        machine = known["machine"]
        if "gpu_xids" in machine:
            machine = {**machine, "gpu_xids": tuple(map(tuple, machine["gpu_xids"]))}
        known["machine"] = MachineRecords(**machine)
    if values := known.get("run_values"):
        known["run_values"] = RunValues(**{**values, "batch": BatchSpec(*values["batch"])})
    for name in ("epochs", "earlier_step"):
        if name in known:
            known[name] = tuple(known[name])
    logs = (
        LogSource(
            log.get("path", "log"),
            (log["text"].encode("utf-8", "surrogateescape"),),
            Origin(**log.get("origin", {})),
        )
        for log in row["logs"]
    )
    return JobEvidence(logs=tuple(logs), **known)


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_a_labelled_log_has_its_verdict(row: dict[str, Any], engine: Engine) -> None:
    examined = examine(evidence(row), engine.signatures, engine.matcher)
    found, decision = examined.verdict, examined.decision
    shown = {
        "failure": found.failure.value,
        "reason": found.reason.value if found.reason is not None else None,
        "rank": found.rank,
        "line": found.cause.line if found.cause is not None else None,
    }
    assert {name: value for name, value in shown.items() if value is not None} == row["expect"]
    assert row.get("title", "") in found.title
    assert row.get("cause", "") in (found.cause.text if found.cause is not None else "")
    for words in row.get("advice", ()):
        assert [line for line in found.advice if words in line], found.advice
    for words in row.get("not_advised", ()):
        assert not [line for line in found.advice if words in line], found.advice
    if "fired" in row:
        assert [decision.rule.name, *(rule.name for rule in decision.corrections)] == row["fired"]
    if "limits" in row:
        assert [limit.name for limit in decision.limits()] == row["limits"]
        assert found.confidence <= min(limit.at_most for limit in decision.limits()) < 0.9


def test_each_rule_and_each_limit_has_a_row() -> None:
    """Of stacks and dumps: test_verdict.py."""
    elsewhere = {"stacks_of_hang", "stacks_of_timeout", "flight_recorder"}
    fired = {name for row in ROWS for name in row.get("fired", ())}
    assert fired == {rule.name for rule in RULES} - elsewhere
    assert {name for row in ROWS for name in row.get("limits", ())} == {limit.name for limit in LIMITS}
