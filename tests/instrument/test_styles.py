"""Two scripts run on two ranks with the instrumentation, as it is and unchanged: their facts give their batch and its settings."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

import supervisor
from supervisor.job.knobs.measured import measured_batch
from supervisor.job.knobs.written_facts import Facts
from tests.instrument.child import PYTHON, finished
from tests.instrument.truths import QUESTIONS, STYLES, Truth, answers, right, truths

ON_PATH = Path(supervisor.__file__).parent / "instrument" / "on_path"
# A scaler that skips a step, a loop that cuts its batches.
LIVE = ("s31_yolo", "h01_cut")
TRUTHS = [
    truth for name in LIVE for truth in truths("truth.jsonl") + truths("hard.jsonl") if truth["name"] == name
]


@pytest.mark.e2e
@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth["name"])
def test_a_live_run_gives_its_batch_and_its_settings(truth: Truth, tmp_path: Path) -> None:
    telemetry = tmp_path / "telemetry"
    ours = {"STOKER_TELEMETRY_DIR": str(telemetry), "PYTHONPATH": str(ON_PATH), "OUTD": str(tmp_path / "out")}
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, str(STYLES / f"{truth['name']}.py"), *shlex.split(truth["args"])]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **ours}
    run = finished(command, telemetry, cwd=STYLES, env=env, timeout_s=240)
    assert run.returncode == 0, run.stderr
    facts = Facts()
    for rank in range(2):
        for line in (telemetry / f"measured{rank}.jsonl").read_text().splitlines():
            record = json.loads(line)
            assert record["kind"] != "note", record
            facts.add(record)
    found = {question: answer for question, (answer, _) in answers(measured_batch(facts)).items()}
    assert found == {question: right(truth, question) for question in QUESTIONS}
