"""Scripts of real frameworks, unchanged, under `stoker run`: each loss stands at the step where the framework computed it."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path

import pytest

from supervisor.run.journal import read_state
from supervisor.run.series import METRICS, SeriesReader
from supervisor.run.state import AttemptState, RunState
from tests.conftest import not_none
from tests.integration.harness import Done, only_run, stoker

SCRIPTS = Path(__file__).parent / "scripts"
# Three significant digits, or four decimals, are what is printed of a loss.
PRINTED = 6e-3
DECIMALS = 6e-5
pytestmark = pytest.mark.timeout(600)


def train(
    cwd: Path, *words: str, env: dict[str, str] | None = None
) -> tuple[Done, RunState, dict[int, list[float]]]:
    """The end of a run, its state, and its losses by step."""
    done = stoker("run", "--no-ui", *words, cwd=cwd, timeout_s=580.0, env=env)
    run = only_run(cwd)
    curve: dict[int, list[float]] = defaultdict(list)
    state = read_state(run.node().journal)
    for sample in SeriesReader(run.node().series, METRICS).read():
        if "loss" in sample.v and sample.a == len(state.attempts):
            assert "step" in sample.v, sample
            value = not_none(sample.v["loss"])
            curve[int(sample.v["step"] or 0)].append(value)
    return done, state, curve


def told(cwd: Path, name: str = "loss") -> dict[int, float]:
    """What the script wrote of what it computed."""
    lines = (cwd / "told.jsonl").read_text(encoding="utf-8").splitlines()
    return {one["step"]: one[name] for one in map(json.loads, lines) if name in one}


def assert_measured(
    attempt: AttemptState, batch: tuple[int, int, int], setting: str | None, accumulation: str | None
) -> None:
    """Its processes had this `batch` (micro-batch, accumulation, ranks), which these two settings made. None: they are in the code."""
    measured = not_none(attempt.measured)
    assert (measured.micro_batch, measured.accumulation, measured.world_size or 1) == batch, measured
    assert measured.global_batch == math.prod(batch)
    assert (measured.setting, measured.accumulation_setting) == (setting, accumulation), measured
    assert ("in the code" in measured.refusal) == (setting is None), "why it would not restart smaller"


def assert_confirmed(attempt: AttemptState, *, resumed: bool) -> None:
    """The first steps of the restart had what was planned. `resumed`: a checkpoint was seen to be loaded before them."""
    assert attempt.differs is None
    assert (not_none(attempt.confirmed).resume is not None) == resumed


def assert_same(
    curve: dict[int, list[float]], said: dict[int, float], least: float, *, late: int = 0
) -> None:
    """Every step of the curve has the value of that step, and `least` of the steps told are there.

    `late`: a bar that moves on before it is given the new loss shows, for a moment, that of the step before.
    """

    def is_right(value: float, step: int) -> bool:
        wanted = [said[one] for one in range(step - late, step + 1) if one in said]
        return any(math.isclose(value, one, rel_tol=PRINTED, abs_tol=DECIMALS) for one in wanted)

    wrong = {
        step: (values, said[step])
        for step, values in curve.items()
        if step in said and not any(is_right(value, step) for value in values)
    }
    assert not wrong
    assert not curve.keys() - said.keys() - {0}
    assert len(curve.keys() & said.keys()) >= least * len(said)


def test_transformers_trainer(tmp_path: Path, python: str) -> None:
    flags = "--max_steps 60 --logging_steps 5 --eval_strategy steps --eval_steps 20 --save_steps 20 --use_cpu --report_to none"
    batch = "--per_device_train_batch_size 8 --gradient_accumulation_steps 2 --output_dir out"
    words = ("--python", python, "--nproc-per-node", "2", str(SCRIPTS / "hf.py"), *flags.split())
    done, state, curve = train(tmp_path, *words, *batch.split())
    assert done.code == 0, done.err
    assert_same(curve, told(tmp_path), 1.0)
    assert [len(values) for values in curve.values()] == [1] * 12
    assert (state.total_steps, state.attempts[-1].last_step) == (60, 60)
    assert [one.step for one in state.checkpoints] == [20, 40, 60]
    batch_spec = not_none(state.attempts[-1].batch)
    assert batch_spec.global_batch == 32
    assert_measured(state.attempts[-1], (8, 2, 2), *TRAINING_ARGUMENTS)


TRAINING_ARGUMENTS = ("--per_device_train_batch_size", "--gradient_accumulation_steps")
SMALLER_FLAGS = (
    "--max_steps 30 --logging_steps 5 --save_steps 5 --use_cpu --report_to none --save_total_limit 2 "
    "--per_device_train_batch_size 8 --gradient_accumulation_steps 2 --output_dir out"
)


@pytest.mark.parametrize("looks", ["", "1"], ids=["by a path", "by itself"])
def test_transformers_trainer_restarts_smaller_and_trains_as_many_samples_a_step(
    tmp_path: Path, transformers_python: str, looks: str
) -> None:
    """8 x 2 runs out of memory on rank 1 at step 12 and continues at 10 as 4 x 4, counted by the script itself."""
    words = ("--python", transformers_python, "--nproc-per-node", "2", str(SCRIPTS / "hf_oom.py"))
    done, state, _curve = train(tmp_path, *words, *SMALLER_FLAGS.split(), env={"LOOKS": looks})
    assert done.code == 0, done.out + done.err
    first, second = state.attempts
    assert first.verdict is not None
    assert (first.verdict.failure, first.verdict.rank) == ("cuda_oom", 1)
    assert second.batch is not None
    assert (second.batch.micro_batch_per_rank, second.batch.accumulation_steps) == (4, 4)
    assert_measured(first, (8, 2, 2), *TRAINING_ARGUMENTS)
    assert_measured(second, (4, 4, 2), *TRAINING_ARGUMENTS)
    assert_confirmed(second, resumed=True)
    said = [json.loads(line) for line in (tmp_path / "told.jsonl").read_text(encoding="utf-8").splitlines()]
    after = [one for one in said if one["samples"] == 4]
    assert {one["step"] for one in after} == set(range(10, 30)), "it continued at the checkpoint's step"
    counts = {step: sum(one["samples"] for one in after if one["step"] == step) for step in range(10, 30)}
    assert set(counts.values()) == {32}, "the global batch, counted after the resume"
    assert not [one for one in said if one["samples"] != 4 and one["step"] > 12]
    assert second.resume_at == 10
    assert second.went_on
    assert second.first_step is not None
    assert second.first_step > 10, "where its bar was first drawn, at 0, is no step"
    assert "from the checkpoint at step 10" in done.out
    old = bool(list(Path(transformers_python).parents[1].glob("lib/*/*/transformers-4.57.1.*")))
    assert (second.resume_copy is not None) == old
    kept = json.loads((tmp_path / "out" / "checkpoint-30" / "trainer_state.json").read_text(encoding="utf-8"))
    assert kept["train_batch_size"] == (4 if old else 8), (
        "the newest keeps the first one's, and heeds it no more"
    )
    assert not list(tmp_path.rglob(".stoker-resume-*")), "removed once a newer checkpoint was committed"
    assert sorted(p.name for p in (tmp_path / "out").glob("checkpoint-*")) == [
        "checkpoint-25",
        "checkpoint-30",
    ]


@pytest.mark.parametrize("bar", ["tqdm", "rich"])
def test_lightning(tmp_path: Path, python: str, bar: str) -> None:
    # rich draws nothing into a file unless it is told to (docs/guide.md).
    env = {"TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "1", "COLUMNS": "160"} if bar == "rich" else None
    done, state, curve = train(tmp_path, "--", python, str(SCRIPTS / "lightning_ddp.py"), bar, env=env)
    assert done.code == 0, done.err
    assert_same(curve, told(tmp_path), 0.2, late=1)
    assert state.attempts[-1].last_step == 128
    assert state.total_steps == (128 if bar == "rich" else None), "tqdm's bar does not name the last epoch"
    assert_measured(state.attempts[-1], (16, 1, 2), None, "none")


def test_a_smaller_batch_under_accelerate(tmp_path: Path, python: str) -> None:
    accelerate = str(Path(python).with_name("accelerate"))
    launcher = ("accelerate", "launch", "--cpu", "--num_processes", "2")
    words = (accelerate, *launcher[1:], str(SCRIPTS / "accelerated.py"), "--gradient_accumulation_steps", "2")
    done, state, curve = train(tmp_path, "--restart-from-scratch", "--", *words)
    assert done.code == 0, done.err
    first, second = state.attempts
    assert not_none(first.verdict).failure == "cuda_oom"
    assert second.batch is not None
    assert (second.batch.micro_batch_per_rank, second.batch.accumulation_steps) == (4, 4)
    # With --cpu this release of accelerate starts one process, whatever the number that it is given.
    assert_measured(first, (8, 2, 1), *TRAINING_ARGUMENTS)
    assert_measured(second, (4, 4, 1), *TRAINING_ARGUMENTS)
    assert_confirmed(second, resumed=False)
    assert_same(curve, told(tmp_path), 0.2, late=1)


def test_keras(tmp_path: Path, python: str) -> None:
    done, state, curve = train(tmp_path, "--", python, str(SCRIPTS / "kerasfit.py"))
    assert done.code == 0, done.err
    assert_same(curve, told(tmp_path), 0.02)
    assert state.attempts[-1].last_step == 309
    # Its data adapter and its optimizers are its own, not torch's: nothing shows the batch or a step, and it says so.
    measured = not_none(state.attempts[-1].measured)
    assert (measured.micro_batch, measured.accumulation, measured.setting) == (None, None, None)
    assert measured.refusal == "the micro-batch could not be measured"


def test_mmengine(tmp_path: Path, python: str) -> None:
    done, state, curve = train(tmp_path, "--", python, str(SCRIPTS / "mmengine_runner.py"))
    assert done.code == 0, done.err
    assert_same(curve, told(tmp_path), 1.0)
    assert state.attempts[-1].last_step == 120
    assert_measured(state.attempts[-1], (16, 1, 1), None, "none")


def test_trl(tmp_path: Path, python: str) -> None:
    done, state, curve = train(tmp_path, "--", python, str(SCRIPTS / "trl_sft.py"))
    assert done.code == 0, done.err
    assert_same(curve, told(tmp_path), 1.0)
    assert_measured(state.attempts[-1], (4, 1, 1), None, "none")


def test_ignite(tmp_path: Path, python: str) -> None:
    done, state, curve = train(tmp_path, "--", python, str(SCRIPTS / "ignite_loop.py"))
    assert done.code == 0, done.err
    said = told(tmp_path)
    # The bar's running mean stands at the steps between; where a line says the loss itself, that holds.
    assert_same({step: values for step, values in curve.items() if step in said}, said, 1.0)
    assert state.total_steps == 192
    assert_measured(state.attempts[-1], (16, 1, 1), None, "none")
