"""What `--trial` and `--single-gpu` make of a job: one rank, few steps where the setting is known, nothing guessed."""

from __future__ import annotations

import pytest

from supervisor.job.errors import JobError
from supervisor.job.launch.plan import build_plan, command_of, real_command_of
from supervisor.job.spec import JobSpec, TrialSettings
from tests.job.lines import job as resolved

TRAINER = 'num_iterations = 500\ncheckpoint_dir = "/data/ckpt"\n'


def changed(job: JobSpec) -> dict[str, str]:
    assert job.trial is not None
    return {knob.name: knob.value for knob in job.trial.knobs}


def last_words(job: JobSpec) -> tuple[str, ...]:
    """The script's arguments of the first launch."""
    plan = build_plan(
        job,
        attempt=1,
        interpreter="python",
        run_dir="/r",
        attempt_dir="/r/1",
        base_env={},
        trainer_main="/t/__main__.py",
    )
    at = next(i for i, word in enumerate(plan.argv) if word.endswith(".py"))
    return plan.argv[at + 1 :]


@pytest.mark.parametrize(
    ("line", "steps"),
    [
        ("train.py --max_steps 9000", {"--max_steps": "20"}),
        ("train.py train.max_steps=900", {"train.max_steps": "20"}),
        # Of two nobody knows which one ends the training.
        ("train.py --max_steps 900 --num_iterations 900", {}),
        # A sampler's steps, an epoch's, a schedule's: names that mean more than one thing.
        ("train.py --num_steps 900 --steps 9 --total_steps 9", {}),
        ("train.py --max_steps auto", {}),
        ("train.py eval.validation.max_steps=100", {}),
        ("train.py", {}),
        # Few steps in all may be behind the checkpoint already.
        ("train.py --max_steps 9000 --resume c.pt", {}),
        # A framework's own setting, which its program has.
        ("-- trl sft --output_dir o", {"--max_steps": "20"}),
        ("-- python m.py fit --trainer.devices 1", {"--trainer.max_steps": "20"}),
    ],
)
def test_the_steps_are_set_where_their_setting_is_known(line: str, steps: dict[str, str]) -> None:
    job = resolved(f"--trial {line}")
    assert changed(job) == steps
    assert job.trial is not None
    assert job.trial.ends_itself == bool(steps)
    noted = any("no setting for the steps is known" in note for note in job.notes)
    assert noted != bool(steps)


def test_one_rank_of_one_machine_whatever_the_real_run_has() -> None:
    line = (
        "--nproc-per-node 8 --nnodes 4 --node-rank 2 --master-addr n0 --rdzv-endpoint=n0:29400"
        " train.py --max_steps 900 --lr 1"
    )
    job = resolved(f"--trial {line}", gpus=8)
    assert (job.nproc_per_node, job.nnodes, job.node_rank, job.master_addr) == (1, "1", 0, None)
    assert job.torchrun_flags == ()
    assert job.env == (("CUDA_VISIBLE_DEVICES", "0"),)
    assert last_words(job) == ("--max_steps", "20", "--lr", "1")
    assert real_command_of(job) == f"stoker run {line}"
    again = command_of(job)
    assert again is not None
    assert "--trial" in again
    assert again.endswith("train.py --max_steps 900 --lr 1")


@pytest.mark.parametrize(
    ("visible", "gpus", "set_to"),
    [
        (None, 4, "0"),
        (None, 0, None),
        ("3,1", 2, "3"),
        ("GPU-8a2b,GPU-77", 2, "GPU-8a2b"),
        ("2", 1, None),
        ("", 0, None),
        ("-1", 0, None),
    ],
)
def test_the_first_of_the_visible_gpus(visible: str | None, gpus: int, set_to: str | None) -> None:
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    job = resolved("--single-gpu --nproc-per-node 2 train.py --lr 1", env=env, gpus=gpus)
    assert dict(job.env).get("CUDA_VISIBLE_DEVICES") == set_to
    assert (job.nproc_per_node, job.trial, job.entry_args) == (1, None, ("--lr", "1"))
    own = resolved("--single-gpu --env CUDA_VISIBLE_DEVICES=5,6 train.py", env=env, gpus=gpus)
    assert own.env == (("CUDA_VISIBLE_DEVICES", "5"),)


def test_the_bundled_trainer_leaves_no_checkpoint_where_the_real_run_has_its_own() -> None:
    job = resolved("--config job.toml --trial --trial-steps 5", TRAINER)
    assert last_words(job) == ("--num_iterations=5", "--checkpoint_dir=")
    assert job.total_steps == 5
    assert real_command_of(job) == "stoker run --config job.toml"
    resumes = resolved("--config job.toml --trial --resume_from=/data/ckpt/step_100", TRAINER)
    assert "--num_iterations=500" in last_words(resumes)
    assert resumes.trial is not None
    assert not resumes.trial.ends_itself


def test_a_trial_is_over_by_its_steps_or_its_time() -> None:
    seen, known = TrialSettings(steps=20, timeout_s=60), TrialSettings(steps=20, ends_itself=True)
    assert not seen.is_over(None, None, 59)
    assert not seen.is_over(5001, 5019, 1)
    assert seen.is_over(5001, 5020, 1)
    assert seen.is_over(None, None, 61)
    assert not known.is_over(1, 20, 1)  # it ends by itself, and may evaluate and save before
    assert known.is_over(1, 200, 1)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("torchrun --nproc-per-node 4 train.py", "starts 4: make it start one"),
        ("accelerate launch --config_file c.yaml train.py", "starts several, perhaps: make it start one"),
        ("deepspeed --num_gpus 4 train.py", "--num_gpus says 4: say 1"),
        ("deepspeed --include localhost:0,1 train.py", "names machines: make it start one"),
        ("mpirun -n 4 python train.py", "starts 4: make it start one"),
        ("srun --ntasks-per-node=4 python train.py", "starts several, perhaps: make it start one"),
        ("python train.py trainer=ddp trainer.devices=4", "trainer.devices says 4: say 1"),
    ],
)
def test_what_is_not_known_to_start_one_rank_alone_is_refused(command: str, why: str) -> None:
    with pytest.raises(JobError, match=why):
        resolved(f"--trial -- {command}")
    assert resolved("--trial -- python train.py").entry_args == ("train.py",)
    assert resolved("--trial -- accelerate launch --num_processes 1 train.py").nproc_per_node == 1
