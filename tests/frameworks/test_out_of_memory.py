"""Out of memory on rank 1 of real trainings: restarted smaller, the same global batch, resumed, finished; and what is said of it.

The samples of each optimizer step are counted by the script itself, over all ranks (scripts/memory.py).
"""

from __future__ import annotations

import json
import os
import random
import shutil
from array import array
from collections import defaultdict
from pathlib import Path

import pytest

from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.records import Sameness
from supervisor.run.state import AttemptState, RunState
from tests.conftest import not_none
from tests.frameworks.conftest import NANOGPT_TREE
from tests.frameworks.test_frameworks import SCRIPTS, TRAINING_ARGUMENTS, assert_confirmed, assert_measured
from tests.integration.harness import ROOT, Done, facts, only_run, stoker

pytestmark = pytest.mark.timeout(600)
SAME = (Sameness.SAME, Sameness.SAME_WITHIN_NOISE)


def train(
    cwd: Path, *words: str, begin_at: int, env: dict[str, str] | None = None, code: int = 0
) -> tuple[Done, RunPaths]:
    """A run whose rank 1 has memory for 4 samples from the step `begin_at` on, and that ends with `code`."""
    path = os.pathsep.join(filter(None, (str(ROOT), (env or {}).get("PYTHONPATH"))))
    variables = {**(env or {}), "PYTHONPATH": path, "LIMIT": "4", "FROM": str(begin_at)}
    done = stoker("run", "--no-ui", *words, cwd=cwd, timeout_s=580.0, env=variables)
    assert done.code == code, done.out + done.err
    return done, only_run(cwd)


def samples_of_steps(cwd: Path, micro: int) -> dict[int, int]:
    """How many samples each optimizer step was made of, over all ranks, as they were counted with this micro-batch."""
    found: dict[int, int] = defaultdict(int)
    for line in (cwd / "told.jsonl").read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        if one["samples"] == micro:
            found[one["step"]] += one["samples"]
    return found


def assert_restarted_smaller(
    cwd: Path,
    done: Done,
    run: RunPaths,
    *,
    accumulation: tuple[int, int],
    whole: int,
    resumed: int,
    steps: int,
    settings: tuple[str, str] = TRAINING_ARGUMENTS,
) -> tuple[RunState, AttemptState]:
    """Rank 1 ran out of memory with 8 samples; it continued at step `resumed` with 4 and made all `steps` of `whole` samples.

    `settings`: what was measured to make the micro-batch and the accumulation.
    """
    state = read_state(run.node().journal)
    assert isinstance(state.condition, st.Finished)
    first, second = state.attempts
    assert first.verdict is not None
    assert (first.verdict.failure, first.verdict.rank) == ("cuda_oom", 1)
    assert second.batch is not None
    assert (second.batch.micro_batch_per_rank, second.batch.accumulation_steps) == (4, accumulation[1])
    assert_measured(first, (8, accumulation[0], 2), *settings)
    assert_measured(second, (4, accumulation[1], 2), *settings)
    assert_confirmed(second)
    before, after = samples_of_steps(cwd, 8), samples_of_steps(cwd, 4)
    failed_at = max(before)
    assert {count for step, count in before.items() if step < failed_at} == {whole}
    assert set(after) == set(range(resumed, steps))
    assert set(after.values()) == {whole}, "the global batch, counted after the resume"

    change = f"micro-batch 8 → 4, accumulation {accumulation[0]} → {accumulation[1]}, global batch"
    assert f"restart: cuda_oom: {change}" in done.out
    assert "GPU memory ran out on rank 1" in done.out
    assert "succeeded: finished at step" in done.out
    (decided,) = [
        one
        for one in facts(run)
        if isinstance(one, ev.Decided)
        and one.decision.change is not None
        and one.decision.change.batch is not None
    ]
    assert decided.decision.reason.startswith(f"cuda_oom: {change}")
    assert (second.resume_at, second.went_on or second.first_step == resumed) == (resumed, True)
    places = (f"at step {resumed}", f"about step {resumed}, by its time")  # nanoGPT's ckpt.pt names none
    assert any(f"from the checkpoint {place}" in done.out for place in places), done.out
    return state, second


def assert_same_training(done: Done, second: AttemptState) -> None:
    """Journal and console say that it was the same training, or that no step was trained twice to show it."""
    assert second.compared is not None
    if second.compared.result is Sameness.UNKNOWN:
        assert second.compared.text.startswith("no step was trained twice"), second.compared.text
        assert second.compared.difference is None
        return
    assert second.compared.result in SAME, second.compared.text
    assert second.compared.difference is None
    assert ": same training" in done.out
    assert "compared  same training" in done.out


TRAINER_FLAGS = "--logging_steps 1 --use_cpu --report_to none --output_dir out"


def test_trl(tmp_path: Path, python: str) -> None:
    """No accumulation on the command line: TrainingArguments' own flag is set beside the smaller micro-batch."""
    flags = f"{TRAINER_FLAGS} --bf16 False --max_steps 26 --save_steps 10 --per_device_train_batch_size 8 --learning_rate 1e-3"
    script = str(SCRIPTS / "trl_oom.py")
    done, run = train(
        tmp_path, "--python", python, "--nproc-per-node", "2", script, *flags.split(), begin_at=17
    )
    _, second = assert_restarted_smaller(
        tmp_path, done, run, accumulation=(1, 2), whole=16, resumed=10, steps=26
    )
    assert_same_training(done, second)
    assert {"--gradient_accumulation_steps=2", "--gradient_accumulation_steps"} & set(second.argv)
    assert "global batch 16 unchanged" in done.out


ACCELERATE_CONFIG = """compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
machine_rank: 0
main_training_function: main
mixed_precision: 'no'
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
use_cpu: true
"""


def test_accelerate_with_a_config_file(tmp_path: Path, python: str) -> None:
    (tmp_path / "accelerate.yaml").write_text(ACCELERATE_CONFIG, encoding="utf-8")
    launch = (str(Path(python).with_name("accelerate")), "launch", "--config_file", "accelerate.yaml")
    flags = (
        "--train_batch_size 8 --gradient_accumulation_steps 2 --max_train_steps 26 --checkpointing_steps 10"
    )
    script = str(SCRIPTS / "accelerate_oom.py")
    done, run = train(tmp_path, "--", *launch, script, *flags.split(), begin_at=17)
    _, second = assert_restarted_smaller(
        tmp_path,
        done,
        run,
        accumulation=(2, 4),
        whole=32,
        resumed=10,
        steps=26,
        settings=("--train_batch_size", "--gradient_accumulation_steps"),
    )
    assert_same_training(done, second)
    assert "× 2 ranks = global batch 32" in done.out
    checkpoint = tmp_path / "out" / "checkpoint-10"
    assert f"change: + --resume_from_checkpoint {checkpoint} (in the ranks)" in done.out
    assert (tmp_path / "accelerate.yaml").read_text(encoding="utf-8") == ACCELERATE_CONFIG


def test_lightning_cli(tmp_path: Path, python: str) -> None:
    """Its bar counts micro-batches, of which there are twice as many after: the steps cannot be compared, and it is not accused."""
    flags = "--trainer.accumulate_grad_batches=2 --data.batch_size=8"
    cli = (str(SCRIPTS / "lightning_cli.py"), "fit", "--config", str(SCRIPTS / "lightning_cli.yaml"))
    done, run = train(tmp_path, "--", python, *cli, *flags.split(), begin_at=15)
    _, second = assert_restarted_smaller(
        tmp_path,
        done,
        run,
        accumulation=(2, 4),
        whole=32,
        resumed=10,
        steps=30,
        settings=("--data.batch_size", "--trainer.accumulate_grad_batches"),
    )
    checkpoint = tmp_path / "checkpoints" / "epoch=0-step=10.ckpt"
    assert f"change: + --ckpt_path {checkpoint} (in the ranks)" in done.out
    assert second.compared is not None
    assert second.compared.result in {*SAME, Sameness.UNKNOWN}, second.compared.text
    if second.compared.result is Sameness.UNKNOWN:
        assert "count micro-batches" in second.compared.text
    assert second.begins_at == 11


def test_a_deepspeed_json_beside_the_trainers_own_flags_waits(tmp_path: Path, python: str) -> None:
    """Flags and file hold the same numbers. Which of them makes the batch is not measured, and transformers refuses a change of one alone."""
    says = {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": "auto",
    }
    config = tmp_path / "ds.json"
    config.write_text(json.dumps(says), encoding="utf-8")
    batch = "--per_device_train_batch_size 8 --gradient_accumulation_steps 2"
    flags = f"--deepspeed ds.json {TRAINER_FLAGS} --max_steps 24 --save_steps 5 {batch}"
    script = str(SCRIPTS / "deepspeed_json.py")
    words = ("--python", python, "--nproc-per-node", "2", script, *flags.split())
    done, run = train(tmp_path, *words, begin_at=12, code=1)
    state = read_state(run.node().journal)
    (only,) = state.attempts
    measured = not_none(only.measured)
    assert (measured.micro_batch, measured.accumulation, measured.world_size) == (8, 2, 2)
    assert measured.setting is None
    both = (TRAINING_ARGUMENTS[0], "ds.json#train_micro_batch_size_per_gpu")
    assert measured.candidates == both
    assert f"what makes the 8 samples of a rank is one of {', '.join(both)}" in done.out
    assert done.out.rstrip().splitlines()[-1].startswith("stoker run --batch-knob NAME ")
    assert set(samples_of_steps(tmp_path, 8).values()) <= {16, 24, 32}, (
        "nothing was trained after the failure"
    )
    assert not samples_of_steps(tmp_path, 4)
    assert json.loads(config.read_text(encoding="utf-8")) == says, "never the user's own file"
    assert (tmp_path / "out" / "checkpoint-10" / "trainer_state.json").is_file()


@pytest.fixture
def nanogpt(tmp_path: Path) -> Path:
    """nanoGPT as its author keeps it, with a small set of numbers to train on."""
    where = NANOGPT_TREE
    if not where or not Path(where, "train.py").is_file():
        pytest.skip("no checkout of karpathy/nanoGPT (make frameworks fetches it where the network has it)")
    tree = tmp_path / "nanoGPT"
    names = ("train.py", "model.py", "configurator.py", "config")
    tree.mkdir()
    for name in names:
        source = Path(where, name)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tree / name)
    data = tree / "data" / "numbers"
    data.mkdir(parents=True)
    draw = random.Random(1)
    for name, length in (("train", 20_000), ("val", 4_000)):
        numbers, at = array("H"), 1
        for _ in range(length):
            at = (at * 3 + draw.choice((1, 1, 1, 2, 5))) % 61
            numbers.append(at)
        (data / f"{name}.bin").write_bytes(numbers.tobytes())
    return tree


def test_nanogpt_as_it_is(nanogpt: Path, python: str) -> None:
    """Accumulation counts all ranks there, which is measured. That a word resumes from ckpt.pt no step shows: it is declared, or the run waits."""
    torchrun = (str(Path(python).with_name("torchrun")), "--standalone", "--nproc_per_node=2")
    flags = (
        "--dataset=numbers --device=cpu --backend=gloo --dtype=float32 --compile=False --out_dir=out --eval_interval=10 --eval_iters=2 "
        "--always_save_checkpoint=True --block_size=32 --batch_size=8 --gradient_accumulation_steps=4 --n_layer=1 --n_head=2 --n_embd=32 "
        "--dropout=0.0 --max_iters=24 --lr_decay_iters=24 --warmup_iters=5 --log_interval=1"
    )
    path = os.pathsep.join((str(SCRIPTS / "cpu_site"), str(SCRIPTS)))
    words = (
        "--resume-knob",
        "--init_from=resume",
        "--",
        *torchrun,
        "train.py",
        "config/train_shakespeare_char.py",
        *flags.split(),
    )
    done, run = train(nanogpt, *words, begin_at=16, env={"PYTHONPATH": path})
    # Its steps count from 0 and the last one is max_iters; 4 and 8 micro-batches are those of both ranks.
    _, second = assert_restarted_smaller(
        nanogpt,
        done,
        run,
        accumulation=(2, 4),
        whole=32,
        resumed=10,
        steps=25,
        settings=("--batch_size", "--gradient_accumulation_steps"),
    )
    assert_same_training(done, second)
    assert "× accumulation 2 × 2 ranks = global batch 32" in done.out
    for line in ("--batch_size 4", "--gradient_accumulation_steps 8", "--init_from resume"):
        assert f"change: + {line} (in the ranks)" in done.out
