"""Labelled logs with what is known beside them: data/verdicts.jsonl, a row each.

`id` says what the row shows. `logs`: text, and path and origin where a verdict depends on them. `known`: fields of `JobEvidence`.
`expect`: the class, and, where the log shows them, the reason, the rank, and the line of the cause.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from supervisor.diagnosis.evidence import JobEvidence, LogSource, MachineRecords
from supervisor.diagnosis.verdict import diagnose
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
    found = diagnose(evidence(row), engine.signatures, engine.matcher)
    shown = {
        "failure": found.failure.value,
        "reason": found.reason.value if found.reason is not None else None,
        "rank": found.rank,
        "line": found.cause.line if found.cause is not None else None,
    }
    assert {name: value for name, value in shown.items() if value is not None} == row["expect"]
