"""Knobs in config files and in the environment; a restart as a diff."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from supervisor.job.batch import BatchSpec
from supervisor.job.config.files import read_values
from supervisor.job.errors import JobError
from supervisor.job.knobs.named_settings import find_knobs
from supervisor.job.knobs.set_batch import batch_of
from supervisor.job.launch.plan import build_plan, diff_lines, plan_as_record
from supervisor.job.spec import EntryKind, JobSpec, Knobs, KnobScope
from tests.job.lines import job

YAML = """\
# the run
train: {lr: 1e-4}
data:
  batch_size: 16  # a rank's
  grad_accum: 3
  note: "batch_size: 16"
eval:
  batch_size: 64
resume: auto
"""


def test_a_declared_key_of_a_file_has_its_value_and_a_variable_too() -> None:
    where = {f"c.yaml#{key}": value for key, value in read_values("c.yaml", YAML).items()}
    where["env:BATCH_SIZE"] = "32"
    named = Knobs("c.yaml#data.batch_size", KnobScope.PER_RANK, "c.yaml#data.grad_accum")
    knobs = find_knobs(("--config", "c.yaml"), named, elsewhere=where)
    batch = batch_of((), knobs, world_size=1, local_world_size=1, elsewhere=where)
    assert batch == BatchSpec(16, 3, 1)
    assert [(n.value, n.where) for n in knobs.found] == [(16, "c.yaml"), (3, "c.yaml")]
    knobs = find_knobs((), Knobs("env:BATCH_SIZE", accumulation="env:GRAD_ACCUM"), elsewhere=where)
    assert [(n.value, n.where) for n in knobs.found] == [(32, "variable BATCH_SIZE"), (None, "named")]
    assert batch_of((), knobs, world_size=1, local_world_size=1, elsewhere=where) is None


def plan_of(
    knobs: Knobs,
    args: tuple[str, ...],
    attempt: int,
    batch: BatchSpec | None = None,
    env: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:
    spec = JobSpec(
        "job", EntryKind.SCRIPT, "train.py", args, cwd="/w", batch=BatchSpec(16, 3, 1), knobs=knobs
    )
    plan = build_plan(
        spec,
        attempt=attempt,
        interpreter="python",
        run_dir="/r",
        attempt_dir=f"/r/{attempt}",
        base_env={},
        batch=batch,
        env=env,
    )
    return plan_as_record(plan)


def files_of(plan: dict[str, Any]) -> list[dict[str, object]]:
    """The keys of files that the ranks set, and in which processes: in any that loads the file."""
    carried = next(json.loads(change["value"]) for change in plan["env"] if change["name"] == "STOKER_APPLY")
    assert carried["argv"] is None
    assert carried["options"] == []
    files: list[dict[str, object]] = carried["files"]
    return files


def test_a_key_of_a_file_is_set_where_it_is_loaded_and_shown_as_a_diff() -> None:
    knobs = Knobs("c.yaml#data.batch_size", KnobScope.PER_RANK, "c.yaml#data.grad_accum")
    first = plan_of(knobs, ("--config=c.yaml",), 1)
    second = plan_of(knobs, ("--config=c.yaml",), 2, BatchSpec(12, 4, 1))
    assert second["argv"][-1] == "--config=c.yaml"
    assert files_of(second) == [
        {"path": "/w/c.yaml", "key": "data.batch_size", "value": 12},
        {"path": "/w/c.yaml", "key": "data.grad_accum", "value": 4},
    ]
    held = {"c.yaml#data.batch_size": 16, "c.yaml#data.grad_accum": 3}
    assert diff_lines(first, second, held) == (
        "- c.yaml#data.batch_size 16 (in the ranks)",
        "+ c.yaml#data.batch_size 12 (in the ranks)",
        "- c.yaml#data.grad_accum 3 (in the ranks)",
        "+ c.yaml#data.grad_accum 4 (in the ranks)",
    )
    third = plan_of(knobs, ("--config=c.yaml",), 3, BatchSpec(8, 6, 1))
    assert "- c.yaml#data.batch_size 12 (in the ranks)" in diff_lines(second, third, held)


UNMEASURED = [("--no-instrument", {}), ("", {"STOKER_INSTRUMENT": "0"}), ("--env=STOKER_INSTRUMENT=0", {})]


def job_of(flags: str, env: dict[str, str]) -> JobSpec:
    words = f"{flags} --batch-scope per_rank --batch-knob c.yaml#data.batch_size "
    words += "--accumulation-knob c.yaml#data.grad_accum train.py --config c.yaml"
    return job(words, env=env, files={"c.yaml": YAML})


@pytest.mark.parametrize(("flags", "env"), UNMEASURED)
def test_a_key_of_a_file_is_not_changed_where_nothing_is_measured(flags: str, env: dict[str, str]) -> None:
    assert job_of("", {}).knobs.can_change_batch
    found = job_of(flags, env)
    assert not found.knobs.can_change_batch
    assert found.knobs.refusal.startswith("c.yaml#data.batch_size is set inside the job's processes")
    assert found.batch == BatchSpec(16, 3, 1), "its numbers are known all the same"
    with pytest.raises(JobError, match=r"--no-instrument.*: set it in the file"):
        job_of(f"{flags} --micro-batch 8", env)


def test_a_restart_sets_flags_and_variables() -> None:
    by_flag = Knobs("--bs", KnobScope.PER_RANK, "--accum", resume="--resume", resume_value="auto")
    first, second = (
        plan_of(by_flag, ("--bs", "16", "-x"), 1),
        plan_of(by_flag, ("--bs", "16", "-x"), 2, BatchSpec(12, 4, 1)),
    )
    assert diff_lines(first, second, {}) == ("- --bs 16", "+ --bs 12", "+ --accum 4", "+ --resume auto")
    by_env = Knobs("env:BATCH_SIZE", KnobScope.PER_RANK, "env:ACCUM")
    second = plan_of(by_env, (), 2, BatchSpec(12, 4, 1))
    assert diff_lines(plan_of(by_env, (), 1), second, {}) == ("+ ACCUM=4", "+ BATCH_SIZE=12")
