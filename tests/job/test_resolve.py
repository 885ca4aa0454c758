"""What a command line and a job file make of a job, field by field, and what is refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from supervisor.job.batch import BatchSpec, BatchUnit
from supervisor.job.config.resolve import TRAINER_KNOBS
from supervisor.job.errors import JobError
from supervisor.job.launch.plan import command_of, real_command_of
from supervisor.job.spec import (
    AccumulationCounts,
    ClassOverride,
    EntryKind,
    FoundNumber,
    HangSettings,
    JobSpec,
    Knobs,
    KnobScope,
    LoaderKnobs,
    OwnSignature,
    RetrySettings,
    TrialKnob,
    TrialSettings,
)
from tests.job import lines


def job(line: str, config: str | None, gpus: int = 0) -> JobSpec:
    return lines.job(line if config is None else f"--config job.toml {line}", config, gpus=gpus)


def differing(spec: JobSpec, other: JobSpec) -> dict[str, Any]:
    names = (field.name for field in fields(spec) if field.name != "origins")
    return {name: getattr(spec, name) for name in names if getattr(spec, name) != getattr(other, name)}


@pytest.mark.parametrize(
    ("line", "config", "gpus", "changes"),
    [
        ("--nproc-per-node auto train.py", None, 3, {"nproc_per_node": 3, "world_size": 3}),
        ("--nproc-per-node auto train.py", None, 0, {"nproc_per_node": 2, "world_size": 2}),
        ("--nproc-per-node gpu train.py", None, 3, {"nproc_per_node": 3, "world_size": 3}),
        ("--nproc-per-node cpu train.py", None, 3, {"nproc_per_node": 2, "world_size": 2}),
        ("--nnodes 4:4 --node-rank 3 --master-addr a --master-port 29 train.py", None, 0, {"nnodes": "4:4", "node_rank": 3, "master_addr": "a", "master_port": 29, "world_size": 4}),
        ("--nnodes 1:4 train.py", None, 0, {"nnodes": "1:4", "world_size": None}),
        ("--run-dir /x --nnodes 1:4 train.py", None, 0, {"nnodes": "1:4", "world_size": 4}),
        ("--rdzv-backend c10d --rdzv-endpoint=h:1 --standalone --role x train.py", None, 0, {"torchrun_flags": ("--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "--standalone", "--role=x")}),
        ("--single-gpu --nnodes 2 --node-rank 1 --master-addr a --rdzv-backend c10d --role x train.py", None, 2, {"torchrun_flags": ("--role=x",), "env": (("CUDA_VISIBLE_DEVICES", "0"),)}),
        ("--single-gpu --env CUDA_VISIBLE_DEVICES=3,4 --env A=1 train.py", None, 2, {"env": (("A", "1"), ("CUDA_VISIBLE_DEVICES", "3"))}),
        ("--single-gpu --env CUDA_VISIBLE_DEVICES=-1 train.py", None, 2, {"env": (("CUDA_VISIBLE_DEVICES", "-1"),)}),
        ("--no-retry --trust-exit-code --no-instrument train.py", None, 0, {"retry": RetrySettings(enabled=False, exit_zero="trust"), "instrument": False}),
        ("--env A=1 --env B= --env A=2 train.py", "[env]\nA = 0\nC = 3\n", 0, {"env": (("A", "2"), ("C", "3"), ("B", ""))}),
        ("train.py -y", '[run]\nscript = "train.py"\nargs = ["-x"]\nexpected_memory_gib = 1.5\nname = "n"\n[hang]\nact_s = 9\n[[metrics]]\nname = "l"\nregex = "(x)"\n[[signature]]\nid = "mine"\nregex = "boom"\nname = "it"\naction = "stop"\n', 0, {"name": "n", "entry_args": ("-x", "-y"), "retry": RetrySettings(overrides=(ClassOverride("signature:mine", answer="stop"),)), "hang": HangSettings(act_s=9.0, act_given=True), "expected_memory_bytes": 1610612736, "metric_rules": (("l", "(x)"),), "signatures": (OwnSignature("mine", "boom", "code_error", title="it"),)}),
        ("", '[run]\nscript = "a.py"\nargs = ["-x"]\n', 0, {"name": "a", "entry": "a.py", "entry_args": ("-x",)}),
        ("", '[run]\nmodule = "p.a"\n', 0, {"name": "a", "entry_kind": EntryKind.MODULE, "entry": "p.a"}),
        ("-m p.b -y", '[run]\nmodule = "p.a"\nargs = ["-x"]\n', 0, {"name": "b", "entry_kind": EntryKind.MODULE, "entry": "p.b", "entry_args": ("-y",)}),
        ("a/b.train.py", None, 0, {"name": "b.train", "entry": "a/b.train.py"}),
        ("a/.py", None, 0, {"name": ".py", "entry": "a/.py"}),
        ("-- /bin/sh x", None, 0, {"name": "sh", "entry_kind": EntryKind.COMMAND, "entry": "/bin/sh", "entry_args": ("x",), "world_size": None}),
        ("", "depth = 4\n", 0, {"entry_args": ("--depth=4",), "batch": BatchSpec(16, 1, 1, unit=BatchUnit.TOKENS, tokens_per_sample=256), "total_steps": 200}),
        ("--depth=5 --batch_size 2 --nproc-per-node 2", "depth = 4\nmax_seq_len = 8\ngradient_accumulation_steps = 3\n", 0, {"entry_args": ("--depth=5", "--max_seq_len=8", "--gradient_accumulation_steps=3", "--device_batch_size=2"), "nproc_per_node": 2, "batch": BatchSpec(2, 3, 2, unit=BatchUnit.TOKENS, tokens_per_sample=8), "total_steps": 200}),
        ("--micro-batch 3 --nproc-per-node 2", "depth = 4\ntotal_batch_size = 96\nmax_seq_len = 8\n", 0, {"entry_args": ("--depth=4", "--total_batch_size=96", "--max_seq_len=8", "--device_batch_size=3"), "nproc_per_node": 2, "batch": BatchSpec(3, 2, 2, unit=BatchUnit.TOKENS, tokens_per_sample=8), "total_steps": 200}),
        ("--trial", 'depth = 4\ncheckpoint_dir = "c"\nnum_iterations = 100\n', 0, {"entry_args": ("--depth=4", "--checkpoint_dir=", "--num_iterations=20"), "batch": BatchSpec(16, 1, 1, unit=BatchUnit.TOKENS, tokens_per_sample=256), "trial": TrialSettings(ends_itself=True, knobs=(TrialKnob("--num_iterations", "20", before="100"), TrialKnob("--checkpoint_dir", "", before="c")), args=("--depth=4", "--checkpoint_dir=c", "--num_iterations=100")), "total_steps": 20, "notes": ("trial: --num_iterations is 20, not 100", "trial: --checkpoint_dir is empty, not c")}),
        ("--trial --trial-steps 100", "depth = 4\nnum_iterations = 100\n", 0, {"entry_args": ("--depth=4", "--num_iterations=100"), "batch": BatchSpec(16, 1, 1, unit=BatchUnit.TOKENS, tokens_per_sample=256), "trial": TrialSettings(steps=100, ends_itself=True, args=("--depth=4", "--num_iterations=100")), "total_steps": 100}),
        ("--trial", 'depth = 4\nnum_iterations = 100\nresume_from = "auto"\n', 0, {"entry_args": ("--depth=4", "--num_iterations=100", "--resume_from=auto"), "batch": BatchSpec(16, 1, 1, unit=BatchUnit.TOKENS, tokens_per_sample=256), "trial": TrialSettings(args=("--depth=4", "--num_iterations=100", "--resume_from=auto")), "total_steps": 100, "notes": ("trial: no setting for the steps is known: stopped once 20 steps are seen",)}),
        ("", "depth = 4\ndist_timeout_s = 5000\ntie_embeddings = true\n[run]\nexpected_memory_gib = 2\n", 0, {"entry_args": ("--depth=4", "--dist_timeout_s=5000.0", "--tie_embeddings=true"), "batch": BatchSpec(16, 1, 1, unit=BatchUnit.TOKENS, tokens_per_sample=256), "expected_memory_bytes": 2147483648, "total_steps": 200, "group_timeout_s": 5000.0}),
        ("--head_dim 8 --nnodes 1:2", "depth = 4\n[run]\nexpected_memory_gib = 2\ntotal_steps = 7\n", 0, {"entry_args": ("--depth=4", "--head_dim=8"), "nnodes": "1:2", "total_steps": 7}),
        ("--trial train.py --max_steps 100", None, 0, {"entry_args": ("--max_steps", "20"), "trial": TrialSettings(ends_itself=True, knobs=(TrialKnob("--max_steps", "20", before="100"),), args=("--max_steps", "100")), "total_steps": 20, "notes": ("trial: --max_steps is 20, not 100",)}),
        ("--trial train.py --max_steps 20", None, 0, {"entry_args": ("--max_steps", "20"), "trial": TrialSettings(ends_itself=True, args=("--max_steps", "20")), "total_steps": 20}),
        ("--trial train.py --max_steps auto", None, 0, {"entry_args": ("--max_steps", "auto"), "trial": TrialSettings(args=("--max_steps", "auto")), "notes": ("trial: no setting for the steps is known: stopped once 20 steps are seen",)}),
        ("--trial train.py --max_steps=-1", None, 0, {"entry_args": ("--max_steps=20",), "trial": TrialSettings(ends_itself=True, knobs=(TrialKnob("--max_steps", "20", before="-1"),), args=("--max_steps=-1",)), "total_steps": 20, "notes": ("trial: --max_steps is 20, not -1",)}),
        ("--trial --role x train.py --trainer.max_steps 5 --eval.max_steps 9", None, 0, {"entry_args": ("--trainer.max_steps", "5", "--eval.max_steps", "9"), "torchrun_flags": ("--role=x",), "trial": TrialSettings(ends_itself=True, args=("--trainer.max_steps", "5", "--eval.max_steps", "9"), flags=("--role=x",)), "total_steps": 5}),
        ("--trial --resume-knob --go=PATH train.py --go a.pt --max_steps 100", None, 0, {"entry_args": ("--go", "a.pt", "--max_steps", "100"), "knobs": Knobs(declared=True, resume_path="--go", refusal="no batch setting is declared, and none with a conventional name is given", help="--batch-knob FLAG --accumulation-knob FLAG", resumes="named"), "trial": TrialSettings(args=("--go", "a.pt", "--max_steps", "100")), "total_steps": 100, "notes": ("trial: no setting for the steps is known: stopped once 20 steps are seen",)}),
        ("--trial train.py --max_steps 100 --train_iters 50", None, 0, {"entry_args": ("--max_steps", "100", "--train_iters", "50"), "trial": TrialSettings(args=("--max_steps", "100", "--train_iters", "50")), "notes": ("trial: no setting for the steps is known: stopped once 20 steps are seen",)}),
        ("--trial --trial-steps 3 train.py", None, 0, {"trial": TrialSettings(steps=3), "notes": ("trial: no setting for the steps is known: stopped once 3 steps are seen",)}),
        ("--trial train.py train.max_steps=900", None, 0, {"entry_args": ("train.max_steps=20",), "trial": TrialSettings(ends_itself=True, knobs=(TrialKnob("train.max_steps", "20", before="900"),), args=("train.max_steps=900",)), "total_steps": 20, "notes": ("trial: train.max_steps is 20, not 900",)}),
        ("--trial train.py --num_steps 900 --steps 9 --total_steps 9", None, 0, {"entry_args": ("--num_steps", "900", "--steps", "9", "--total_steps", "9"), "trial": TrialSettings(args=("--num_steps", "900", "--steps", "9", "--total_steps", "9")), "notes": ("trial: no setting for the steps is known: stopped once 20 steps are seen",)}),
        ("--trial train.py eval.validation.max_steps=100", None, 0, {"entry_args": ("eval.validation.max_steps=100",), "trial": TrialSettings(args=("eval.validation.max_steps=100",)), "notes": ("trial: no setting for the steps is known: stopped once 20 steps are seen",)}),
        ("--trial train.py --max_steps 9000 --resume c.pt", None, 0, {"entry_args": ("--max_steps", "9000", "--resume", "c.pt"), "knobs": Knobs(resume_path="--resume", refusal="no batch setting is declared, and none with a conventional name is given", help="--batch-knob FLAG --accumulation-knob FLAG", resumes="command line"), "trial": TrialSettings(args=("--max_steps", "9000", "--resume", "c.pt")), "total_steps": 9000, "notes": ("trial: no setting for the steps is known: stopped once 20 steps are seen",)}),
        ("--trial -- trl sft --output_dir o", None, 0, {"name": "trl", "entry_kind": EntryKind.COMMAND, "entry": "trl", "entry_args": ("sft", "--output_dir", "o", "--max_steps=20"), "knobs": Knobs(resume_path="--resume_from_checkpoint", refusal="no batch setting is declared, and none with a conventional name is given", help="--batch-knob FLAG --accumulation-knob FLAG", resumes="Hugging Face TrainingArguments's own"), "trial": TrialSettings(ends_itself=True, knobs=(TrialKnob("--max_steps", "20"),), args=("sft", "--output_dir", "o")), "total_steps": 20, "notes": ("trial: --max_steps is 20, not as the script has it",), "outputs": ("o", "lightning_logs", "checkpoints", "outputs", "output", "trainer_output", "runs"), "output_prefixes": ("o",)}),
        ("--trial -- python m.py fit --trainer.devices 1", None, 0, {"name": "python", "entry_kind": EntryKind.COMMAND, "entry": "python", "entry_args": ("m.py", "fit", "--trainer.devices", "1", "--trainer.max_steps=20"), "knobs": Knobs(resume_path="--ckpt_path", refusal="no batch setting is declared, and none with a conventional name is given", help="--batch-knob FLAG --accumulation-knob FLAG", resumes="LightningCLI's own"), "trial": TrialSettings(ends_itself=True, knobs=(TrialKnob("--trainer.max_steps", "20"),), args=("m.py", "fit", "--trainer.devices", "1")), "total_steps": 20, "notes": ("trial: --trainer.max_steps is 20, not as the script has it",)}),
        ("--trial --nproc-per-node 8 --nnodes 4 --node-rank 2 --master-addr n0 --rdzv-endpoint=n0:29400 train.py --max_steps 900 --lr 1", None, 8, {"entry_args": ("--max_steps", "20", "--lr", "1"), "env": (("CUDA_VISIBLE_DEVICES", "0"),), "trial": TrialSettings(ends_itself=True, knobs=(TrialKnob("--max_steps", "20", before="900"),), args=("--max_steps", "900", "--lr", "1"), flags=("--rdzv-endpoint=n0:29400",)), "total_steps": 20, "notes": ("trial: --max_steps is 20, not 900",)}),
        ("--single-gpu --env CUDA_VISIBLE_DEVICES=GPU-8a2b,GPU-77 train.py", None, 2, {"env": (("CUDA_VISIBLE_DEVICES", "GPU-8a2b"),)}),
        ("--single-gpu --env CUDA_VISIBLE_DEVICES= train.py", None, 0, {"env": (("CUDA_VISIBLE_DEVICES", ""),)}),
        ("--trial -- accelerate launch --num_processes 1 train.py", None, 0, {"name": "accelerate", "entry_kind": EntryKind.COMMAND, "entry": "accelerate", "entry_args": ("launch", "--num_processes", "1", "train.py"), "trial": TrialSettings(args=("launch", "--num_processes", "1", "train.py")), "notes": ("trial: no setting for the steps is known: stopped once 20 steps are seen",)}),
        ("--micro-batch 2 --batch-scope per_rank train.py --batch_size 8 --accum 2", None, 0, {"entry_args": ("--batch_size", "2", "--accum", "2"), "batch": BatchSpec(2, 2, 1), "knobs": Knobs(batch="--batch_size", batch_scope=KnobScope.PER_RANK, accumulation="--accum", declared=True, paired=True, found=(FoundNumber("micro", 8, "command line"), FoundNumber("accumulation", 2, "command line")))}),
        ("--global-batch 32 --nproc-per-node 2 train.py --micro_batch_size 4 --accum 2", None, 0, {"entry_args": ("--micro_batch_size", "4", "--accum", "4"), "nproc_per_node": 2, "batch": BatchSpec(4, 4, 2), "knobs": Knobs(batch="--micro_batch_size", batch_scope=KnobScope.PER_RANK, accumulation="--accum", paired=True, found=(FoundNumber("micro", 4, "command line"), FoundNumber("accumulation", 2, "command line"))), "world_size": 2}),
        ("--global-batch 32 --micro-batch 8 --nproc-per-node 2 train.py --micro_batch_size 4 --accum 2", None, 0, {"entry_args": ("--micro_batch_size", "8", "--accum", "2"), "nproc_per_node": 2, "batch": BatchSpec(8, 2, 2), "knobs": Knobs(batch="--micro_batch_size", batch_scope=KnobScope.PER_RANK, accumulation="--accum", paired=True, found=(FoundNumber("micro", 4, "command line"), FoundNumber("accumulation", 2, "command line"))), "world_size": 2}),
        ("--micro-batch 2 --batch-knob env:BS --accumulation-knob env:GA --batch-scope per_rank --env BS=8 --env GA=1 train.py", None, 0, {"env": (("BS", "8"), ("GA", "1")), "batch": BatchSpec(2, 1, 1), "knobs": Knobs(batch="env:BS", batch_scope=KnobScope.PER_RANK, accumulation="env:GA", declared=True, found=(FoundNumber("micro", 8, "variable BS"), FoundNumber("accumulation", 1, "variable GA"))), "set_knobs": (("env:BS", "2"),)}),
        ("--nproc-per-node 2 train.py --micro_batch_size 4 --global_batch_size 9", None, 0, {"entry_args": ("--micro_batch_size", "4", "--global_batch_size", "9"), "nproc_per_node": 2, "batch": BatchSpec(4, 1, 1, ranks_known=False), "knobs": Knobs(batch="--micro_batch_size", batch_scope=KnobScope.PER_RANK, global_batch="--global_batch_size", found=(FoundNumber("micro", 4, "command line"), FoundNumber("total", 9, "command line"))), "world_size": 2}),
        ("-- python m.py fit --data.batch_size 64 --trainer.accumulate_grad_batches 2", None, 0, {"name": "python", "entry_kind": EntryKind.COMMAND, "entry": "python", "entry_args": ("m.py", "fit", "--data.batch_size", "64", "--trainer.accumulate_grad_batches", "2"), "batch": BatchSpec(64, 2, 1, ranks_known=False), "knobs": Knobs(batch="--data.batch_size", accumulation="--trainer.accumulate_grad_batches", resume_path="--ckpt_path", paired=True, found=(FoundNumber("micro", 64, "command line"), FoundNumber("accumulation", 2, "command line")), resumes="LightningCLI's own")}),
        ("--batch-scope per_rank -- accelerate launch train.py --batch_size 6 --accum 2", None, 0, {"name": "accelerate", "entry_kind": EntryKind.COMMAND, "entry": "accelerate", "entry_args": ("launch", "train.py", "--batch_size", "6", "--accum", "2"), "batch": BatchSpec(6, 2, 1, ranks_known=False), "knobs": Knobs(batch="--batch_size", batch_scope=KnobScope.PER_RANK, accumulation="--accum", declared=True, paired=True, found=(FoundNumber("micro", 6, "command line"), FoundNumber("accumulation", 2, "command line"))), "world_size": None}),
        ("-- accelerate launch train.py --micro_batch_size 4 --global_batch_size 16", None, 0, {"name": "accelerate", "entry_kind": EntryKind.COMMAND, "entry": "accelerate", "entry_args": ("launch", "train.py", "--micro_batch_size", "4", "--global_batch_size", "16"), "batch": BatchSpec(4, 1, 1, ranks_known=False), "knobs": Knobs(batch="--micro_batch_size", batch_scope=KnobScope.PER_RANK, global_batch="--global_batch_size", found=(FoundNumber("micro", 4, "command line"), FoundNumber("total", 16, "command line"))), "world_size": None}),
        ("--batch-scope per_node --nproc-per-node 2 train.py --batch_size 8 --accum 2", None, 0, {"entry_args": ("--batch_size", "8", "--accum", "2"), "nproc_per_node": 2, "batch": BatchSpec(4, 2, 2), "knobs": Knobs(batch="--batch_size", batch_scope=KnobScope.PER_NODE, accumulation="--accum", declared=True, paired=True, found=(FoundNumber("micro", 8, "command line"), FoundNumber("accumulation", 2, "command line"))), "world_size": 2}),
        ("--batch-scope global --nproc-per-node 2 --global-batch 32 train.py --batch_size 16 --accum 2", None, 0, {"entry_args": ("--batch_size", "32", "--accum", "2"), "nproc_per_node": 2, "batch": BatchSpec(8, 2, 2), "knobs": Knobs(batch="--batch_size", batch_scope=KnobScope.GLOBAL, accumulation="--accum", declared=True, found=(FoundNumber("micro", 16, "command line"), FoundNumber("accumulation", 2, "command line"))), "world_size": 2}),
        ("--batch-knob --bs --accumulation-knob --ga --accumulation-counts all_ranks --batch-scope per_rank --nproc-per-node 2 train.py --bs 12 --ga 40", None, 0, {"entry_args": ("--bs", "12", "--ga", "40"), "nproc_per_node": 2, "batch": BatchSpec(12, 20, 2), "knobs": Knobs(batch="--bs", batch_scope=KnobScope.PER_RANK, accumulation="--ga", declared=True, counts=AccumulationCounts.ALL_RANKS, found=(FoundNumber("micro", 12, "command line"), FoundNumber("accumulation", 40, "command line"))), "world_size": 2}),
        ("--nproc-per-node 3 --batch-scope per_node train.py --batch_size 8 --accum 2", None, 0, {"entry_args": ("--batch_size", "8", "--accum", "2"), "nproc_per_node": 3, "knobs": Knobs(batch="--batch_size", batch_scope=KnobScope.PER_NODE, accumulation="--accum", declared=True, paired=True, refusal="--batch_size 8 does not divide by the 3 ranks of a node", found=(FoundNumber("micro", 8, "command line"), FoundNumber("accumulation", 2, "command line"))), "notes": ("batch not understood, so never changed by itself: --batch_size 8 does not divide by the 3 ranks of a node",), "world_size": 3}),
        ("-- python train.py --devices 4", None, 0, {"name": "python", "entry_kind": EntryKind.COMMAND, "entry": "python", "entry_args": ("train.py", "--devices", "4"), "world_size": None}),
        ("train.py --num_workers 4 --output_dir out", None, 0, {"entry_args": ("--num_workers", "4", "--output_dir", "out"), "loader": LoaderKnobs(workers=("--num_workers", 4)), "outputs": ("out", "lightning_logs", "checkpoints", "outputs", "output", "trainer_output", "runs"), "output_prefixes": ("out",)}),
    ],
    ids=lambda value: (value[:40] or "-") if isinstance(value, str) else "",
)  # fmt: skip
def test_a_line_changes_this_of_a_plain_job_and_nothing_else(
    line: str, config: str | None, gpus: int, changes: dict[str, Any]
) -> None:
    spec = job(line, config, gpus)
    if config is not None:
        changes = {**changes, "config_path": "job.toml"}
    if config is not None and config.startswith("depth"):
        trains = {"name": "job", "entry_kind": EntryKind.TRAINER, "entry": "trainer", "knobs": TRAINER_KNOBS}
        changes = {**changes, **trains, "outputs": (), "world_size": None}
    assert differing(spec, job("train.py", None)) == changes
    assert spec.knobs.found == changes.get("knobs", Knobs()).found


@pytest.mark.parametrize(
    ("line", "config", "message"),
    [
        ("--nproc-per-node gpu train.py", None, "--nproc-per-node gpu: no GPU is visible here; give a number, or cpu"),
        ("--nproc-per-node 0 train.py", None, "--nproc-per-node wants a whole number of at least 1 and at most 1024, or auto, gpu, cpu: got '0'"),
        ("--nnodes 0 train.py", None, "--nnodes wants a whole number of at least 1, or MIN:MAX, got '0'"),
        ("--nnodes 3:2 train.py", None, "--nnodes wants a whole number of at least 1, or MIN:MAX, got '3:2'"),
        ("--nnodes 2 --node-rank 2 train.py", None, "--node-rank 2 is not below --nnodes 2"),
        ("--single-gpu train.py --devices 2", None, "--single-gpu wants one rank, and --devices says 2: say 1"),
        ("--single-gpu -- torchrun --nproc-per-node 2 train.py", None, "--single-gpu wants one rank, and the command after `--` starts 2: make it start one, by its own flags"),
        ("--trial -- torchrun --nproc-per-node 4 train.py", None, "--trial wants one rank, and the command after `--` starts 4: make it start one, by its own flags"),
        ("--trial -- accelerate launch --config_file c.yaml train.py", None, "--trial wants one rank, and the command after `--` starts several, perhaps: make it start one, by its own flags"),
        ("--trial -- deepspeed --num_gpus 4 train.py", None, "--trial wants one rank, and --num_gpus says 4: say 1"),
        ("--trial -- deepspeed --include localhost:0,1 train.py", None, "--trial wants one rank, and the command after `--` names machines: make it start one, by its own flags"),
        ("--trial -- python train.py trainer=ddp trainer.devices=4", None, "--trial wants one rank, and trainer.devices says 4: say 1"),
        ("--trial-steps 4 train.py", None, "--trial-steps is of a trial: say --trial too"),
        ("", None, "nothing to run: name a script, -m MODULE, -- COMMAND, or --config FILE"),
        ("train.py", "depth = 4\n", "job.toml: 'depth' is a key of the bundled trainer, but 'train.py' is to run: put the script's arguments after it, or under [run] args"),
        ("", '[run]\nscript = "a.py"\nmodule = "b"\n', "job.toml: [run] names both a script and a module; keep one"),
        ("", 'depth = 4\n[run]\nscript = "a.py"\n', "job.toml: 'depth' is a key of the bundled trainer, but [run] names 'a.py': put its arguments under [run] args"),
        ("--depth 4", '[run]\nmodule = "a"\n', "job.toml: 'depth' is a key of the bundled trainer, but [run] names 'a': put its arguments under [run] args"),
        ("", '[run]\nargs = ["a"]\n', "job.toml: [run] args without script or module; the trainer's keys stand at the top"),
        ("--micro-batch 4 train.py", None, "--micro-batch 4 cannot be set: no batch setting is declared, and none with a conventional name is given (--batch-knob FLAG --accumulation-knob FLAG)"),
        ("--micro-batch 4 --batch-knob --bs train.py --bs 8", None, "--micro-batch 4 cannot be set: what --bs counts is not known: say --batch-scope per_rank"),
        ("--global-batch 4 train.py", None, "--global-batch 4 cannot be set: no batch setting is declared, and none with a conventional name is given (--batch-knob FLAG --accumulation-knob FLAG)"),
        ("--batch-knob FLAG train.py", None, "FLAG: write the script's own option in its place, such as --batch_size"),
        ("--resume-knob NAME train.py", None, "NAME: write the script's own option in its place, such as --batch_size"),
        ("train.py", '[batch]\nunit = "tokens"\n', "batch.unit = tokens needs batch.tokens_per_sample"),
        ("--nproc-per-node 2 --batch-scope per_rank --batch-knob --bs --global-batch 7 train.py --bs 2", None, "global batch 7 is not divisible by 2 (2 ranks); global batch that works: 4, 8"),
    ],
    ids=lambda value: (value[:40] or "-") if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_no_job_is_refused_in_one_line(line: str, config: str | None, message: str) -> None:
    with pytest.raises(JobError) as refused:
        job(line, config)
    assert refused.value.message == message


def test_a_trial_and_the_real_run_behind_it_are_typed_again_as_they_were() -> None:
    line = "--nproc-per-node 8 --nnodes 4 --rdzv-endpoint=n0:29400 train.py --max_steps 900 --lr 1"
    trial = job(f"--trial {line}", None, 8)
    assert real_command_of(trial) == f"stoker run {line}"
    again = command_of(trial)
    assert again is not None
    assert "--trial" in again
    assert again.endswith("train.py --max_steps 900 --lr 1")
    trainer = job("--trial --trial-steps 5", "depth = 4\n")
    assert real_command_of(trainer) == "stoker run --config job.toml"


@pytest.mark.parametrize(("visible", "first"), [("3,1", "3"), ("2", None), ("", None), ("-1", None)])
def test_the_first_of_the_gpus_that_the_shell_shows(visible: str, first: str | None) -> None:
    spec = lines.job("--single-gpu train.py", env={"CUDA_VISIBLE_DEVICES": visible}, gpus=2)
    assert dict(spec.env).get("CUDA_VISIBLE_DEVICES") == first


def test_a_trial_is_over_by_its_steps_or_its_time() -> None:
    seen, known = TrialSettings(steps=20, timeout_s=60), TrialSettings(steps=20, ends_itself=True)
    assert not seen.is_over(None, None, 60)
    assert not seen.is_over(5001, 5019, 1)
    assert seen.is_over(5001, 5020, 1)
    assert seen.is_over(None, None, 61)
    assert not known.is_over(1, 199, 1)  # it ends by itself, and may evaluate and save before
    assert known.is_over(1, 200, 1)
