"""What the policy is told of a run: each value from where it stands, and everything else as it is of a run that nothing is known of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisor.job.batch import MemoryPoint
from supervisor.job.spec import EntryKind, TrialSettings
from supervisor.keeper.planning.decisions import policy_input
from supervisor.policy import PolicyInput
from supervisor.run import events as ev
from supervisor.run.fold import replay
from supervisor.run.records import Cause, FailureClass
from tests.keeper.fakes import BATCH, job_of, verdict_of

BEGUN = ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason="first", batch=BATCH)
ENDED = ev.AttemptEnded(t=3.0, attempt=1, exit_code=1)
SUCCEEDED = msgspec.structs.replace(ENDED, exit_code=0)
TEXT = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which "
    "1.00 GiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
)
OOM = replace(verdict_of(FailureClass.CUDA_OOM), cause=Cause("x.log", 1, TEXT))
GIB = 1 << 30
SAVED = ev.CheckpointCommitted(t=2.5, attempt=1, step=4, path="/c/4")
MISSED = ev.ResumeMissed(t=2.6, attempt=1, step=4, began=0)
KEPT = ev.CheckpointKept(t=2.0, attempt=1, step=4, path="/c/4", copy="/r/copy")
STEPPED = ev.Progress(t=2.0, attempt=1, step=1)
NO_STEP = ev.Progress(t=2.0, attempt=1, total_steps=30)
NOT_RESUMED = "did not resume: began at step 0; checkpoint 4"
COMMAND: dict[str, Any] = {"entry_kind": EntryKind.COMMAND, "entry": "bash", "entry_args": ("run.sh",)}
TOLD: dict[str, tuple[dict[str, Any], list[ev.Event], dict[str, Any]]] = {
    "nothing": ({}, [ENDED], {}),
    "another node": ({"node_rank": 1}, [ENDED], {"leads": False}),
    "a command": (COMMAND, [ENDED], {"leads": False}),
    "a port": ({"master_port": 7}, [ENDED], {"port_named": True}),
    "a trial": ({"trial": TrialSettings()}, [ENDED], {"trial": TrialSettings()}),
    "a step": ({}, [STEPPED, ENDED], {"steps_seen": True}),
    "a bar that has not moved": ({}, [NO_STEP, ENDED], {"steps_seen": True, "total_steps": 30}),
    "a checkpoint": ({}, [SAVED, ENDED], {"newest_checkpoint": "/c/4", "newest_number": 4}),
    "the last one": (
        {},
        [msgspec.structs.replace(SAVED, final=True), ENDED],
        {"newest_checkpoint": "/c/4", "newest_number": 4, "final_checkpoint": True},
    ),
    "no resume": ({}, [MISSED, ENDED], {"missed": f"{NOT_RESUMED} is not protected"}),
    "no resume, with a copy": (
        {},
        [KEPT, MISSED, ENDED],
        {"missed": f"{NOT_RESUMED} is kept as a copy: /r/copy"},
    ),
    "memory": (
        {},
        [ENDED, ev.Diagnosed(t=4.0, attempt=1, verdict=OOM)],
        {"memory": MemoryPoint(16, 70 * GIB, 2 * GIB, 80 * GIB)},
    ),
}


@pytest.mark.parametrize("what", TOLD)
def test_the_policy_is_told_what_is_known_and_nothing_else(tmp_path: Path, what: str) -> None:
    changes, facts, fields = TOLD[what]
    record = job_of(tmp_path, **{"entry_kind": EntryKind.SCRIPT, "entry": "train.py", **changes})
    state = replay([BEGUN, *facts])
    found = policy_input(record, state, env={"XDG_STATE_HOME": str(tmp_path)}, on_disk=False)
    assert 0 <= found.jitter < 1
    plain = PolicyInput(attempts=state.attempts, steps_seen=False, jitter=found.jitter)
    assert found == replace(plain, **fields)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("python train.py | tee log", "the pipe in run.sh hides the exit code (`set -o pipefail`)"),
        ("set -o pipefail\npython train.py |& tee log", ""),
        ("python train.py || true", "`|| true` in run.sh hides the exit code"),
        ("python train.py", ""),
    ],
)
def test_what_hides_the_exit_code_of_a_command_is_named_where_it_was_0(
    tmp_path: Path, text: str, why: str
) -> None:
    (tmp_path / "run.sh").write_text(text)
    record = job_of(tmp_path, **COMMAND)
    for ended, told in ((SUCCEEDED, why), (ENDED, "")):
        state = replay([BEGUN, ended])
        assert policy_input(record, state, env={}, on_disk=False).code_hidden_by == told


def test_whether_an_attempt_was_measured_and_a_scheduler_started_it(tmp_path: Path) -> None:
    record, state = job_of(tmp_path, entry_kind=EntryKind.SCRIPT, entry="train.py"), replay([BEGUN, ENDED])
    telemetry = tmp_path / "nodes" / "0" / "attempts" / "1" / "telemetry"
    told = [policy_input(record, state, env={}, on_disk=False).measured]
    record = msgspec.structs.replace(record, path=str(tmp_path))
    told += [policy_input(record, state, env={}, on_disk=False).measured]
    (telemetry / "instrumented").mkdir(parents=True)
    env = {"SLURM_JOB_ID": "7"}
    found = policy_input(record, state, env=env, on_disk=False)
    told += [
        found.measured,
        policy_input(record, state, env={"STOKER_INSTRUMENT": "0"}, on_disk=False).measured,
    ]
    assert (told, found.in_batch_job) == ([False, False, True, False], True)
