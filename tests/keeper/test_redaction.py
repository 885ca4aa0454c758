"""What a keeper journals and counts holds no secret, and a replay gives the state that it had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.keeper.base.ledger import Ledger
from supervisor.keeper.recording.recorder import Recorder
from supervisor.run import events as ev
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.records import Cause, Consequence, FailureClass
from supervisor.text.redact import HIDDEN, Redactor
from tests.conftest import not_none
from tests.keeper.fakes import FakeClock, evidence, verdict_of
from tests.keeper.runs import INTENDED, RUNS, STARTED
from tests.text.secrets import IN_TEXT, Planted

KNOWN = "hunter2-of-the-job"


@pytest.mark.parametrize("planted", IN_TEXT[::6], ids=lambda planted: planted.of)
@pytest.mark.fault(
    "secrets and access", "a log line with a secret becomes evidence", "journal and verdict have it redacted"
)
def test_evidence_and_verdicts_are_journalled_without_secrets(tmp_path: Path, planted: Planted) -> None:
    node = RunPaths(tmp_path).node()
    node.root.mkdir(parents=True)
    ledger = Ledger(node, Redactor.of([("JOB_PASSWORD", KNOWN)]))
    text = f"RuntimeError: {planted.text}"
    path = "torchrun/token=a/0/stderr.log"
    verdict = replace(
        verdict_of(),
        title=f"it broke: {KNOWN}",
        cause=Cause(path, 7, text),
        consequences=(Consequence(FailureClass.CODE_ERROR, 1, path, 9, text, KNOWN),),
        advice=(f"look at {text}",),
    )
    for event in (
        STARTED,
        INTENDED,
        RUNS,
        ev.EvidenceSeen(
            t=1.0, attempt=1, failure=FailureClass.NAN_LOSS, role="cause", text=text, path=path, line=3
        ),
        ev.AttemptEnded(t=2.0, attempt=1, exit_code=1, rank_exit_codes={0: 1, 1: -9}),
        ev.Diagnosed(t=3.0, attempt=1, verdict=verdict),
        ev.NoteAdded(t=4.0, text=text, by="kim"),
    ):
        ledger.emit(event)
    ledger.close()
    written = node.journal.read_text(encoding="utf-8")
    for secret in (KNOWN, *planted.secret.splitlines()):
        assert secret not in written
    state = read_state(node.journal)
    assert state == ledger.state, "a replay gives what the keeper acted on"
    kept = not_none(state.attempts[-1].verdict)
    assert kept.cause is not None
    assert (kept.cause.path, kept.cause.line) == (path, 7), "the place is where the line stands"
    assert HIDDEN in kept.cause.text


def test_an_adopting_keeper_knows_evidence_that_was_redacted(tmp_path: Path) -> None:
    """It reads the logs again from their start, where the secret stands."""
    node = RunPaths(tmp_path).node()
    node.root.mkdir(parents=True)
    redactor = Redactor.of([("JOB_PASSWORD", KNOWN)])
    hit = evidence(f"loss is nan for {KNOWN}", None)
    ledger = Ledger(node, redactor)
    for event in (STARTED, INTENDED, RUNS):
        ledger.emit(event)
    for adopted in (None, "again"):
        recorder = Recorder(node.series, ledger.emit, FakeClock(), redact=redactor.text)
        recorder.begin(1, adopted=ledger.state if adopted else None)
        recorder.record(hit)
        recorder.close()
    ledger.close()
    assert node.journal.read_text(encoding="utf-8").count('"evidence_seen"') == 1
