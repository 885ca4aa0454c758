"""What an out-of-memory failure would change, by what a command line gives and a person declares; nothing else is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from supervisor.job.batch import BatchSpec
from supervisor.job.launch.oom_plan import answer, four_lines, missing_words, oom_notice, oom_plan
from supervisor.job.launch.plan import build_plan
from supervisor.job.spec import AccumulationCounts, FoundNumber, JobSpec, Knobs, KnobScope
from tests.job.lines import job

SAMPLES = {"c.yaml": "data:\n  bs: 16\n  steps: 3\n"}
HF = "--per_device_train_batch_size 8 --gradient_accumulation_steps 4"


def changes(spec: JobSpec) -> dict[str, str]:
    plan = oom_plan(spec)
    assert plan.changes, plan
    return {c.knob: c.new for c in plan.changes}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"train.py {HF}", {"--per_device_train_batch_size": "4", "--gradient_accumulation_steps": "8"}),
        (f"-- accelerate launch train.py {HF}", {"--per_device_train_batch_size": "4", "--gradient_accumulation_steps": "8"}),
        ("train.py --micro-batch-size=16 --accum_iter=1", {"--micro-batch-size": "8", "--accum_iter": "2"}),
        ("train.py train.micro_batch_size=16 train.grad_accum_steps=1", {"train.micro_batch_size": "8", "train.grad_accum_steps": "2"}),
        ("train.py --batch_size_per_node 16 --grad_accum 1", {"--batch_size_per_node": "8", "--grad_accum": "2"}),
        # The one word makes the part of the whole; a total beside a rank's own batch stays as it is.
        ("train.py --batch_size 128 --micro_batch_size 4", {"--micro_batch_size": "2"}),
        ("train.py --device_batch_size 16 --total_batch_size 524288", {"--device_batch_size": "8"}),
        ("pretrain.py --micro-batch-size 4 --global-batch-size 8 --tensor-model-parallel-size 2", {"--micro-batch-size": "2"}),
        # Of a total alone the accumulation makes more pieces.
        ("--nproc-per-node 2 train.py --total_batch_size 64 --gradient_accumulation_steps 2", {"--gradient_accumulation_steps": "4"}),
        # All three are given, and agree.
        ("--nproc-per-node 2 train.py --micro_batch_size 4 --grad_accum 2 --global_batch_size 16", {"--micro_batch_size": "2", "--grad_accum": "4"}),
        # Settings of frameworks beside which a plain batch size is never cut.
        ("-- python m.py fit --data.batch_size 64 --trainer.accumulate_grad_batches 1", {"--data.batch_size": "32", "--trainer.accumulate_grad_batches": "2"}),
        ("tools/train.py c.py --cfg-options train_dataloader.batch_size=4 optim_wrapper.accumulative_counts=1", {"train_dataloader.batch_size": "2", "optim_wrapper.accumulative_counts": "2"}),
        # Declared: an option, a variable, a key of a file, a key of Hydra; whatever starts the script.
        ("--batch-knob --zeta --accumulation-knob --rho train.py --zeta 16 --rho 1", {"--zeta": "8", "--rho": "2"}),
        ("--batch-knob env:BS --accumulation-knob env:GA --env BS=16 --env GA=2 -- bash train.sh", {"env:BS": "8", "env:GA": "4"}),
        ("--batch-knob c.yaml#data.bs --accumulation-knob c.yaml#data.steps train.py --config c.yaml", {"c.yaml#data.bs": "8", "c.yaml#data.steps": "6"}),
        ("--batch-knob --config=c.yaml#data.bs --accumulation-knob --config=c.yaml#data.steps train.py", {"c.yaml#data.bs": "8", "c.yaml#data.steps": "6"}),
        ("--batch-knob loader.rows --accumulation-knob optim.every train.py loader.rows=4 optim.every=3", {"loader.rows": "2", "optim.every": "6"}),
        ("--batch-knob --bs -- ./launcher --bs 8 --grad_accum 2", {"--bs": "4", "--grad_accum": "4"}),
        ("--batch-scope per_rank train.py --batch_size 24 --accum_iter 2", {"--batch_size": "12", "--accum_iter": "4"}),
        ("--batch-scope global --nproc-per-node 2 train.py --batch_size 24 --accum_iter 2", {"--accum_iter": "4"}),
        ("--batch-knob --bs --accumulation-knob --ga --accumulation-counts all_ranks --nproc-per-node 2 train.py --bs 12 --ga 40", {"--bs": "6", "--ga": "80"}),
    ],
)  # fmt: skip
def test_what_changes_is_named_by_convention_or_declared(line: str, expected: Mapping[str, str]) -> None:
    assert changes(job(line, files=SAMPLES)) == expected


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("train.py", "no batch setting is declared"),
        ("-- bash train.sh 8 config.yaml", "no batch setting is declared"),
        ("train.py --config c.yaml", "no batch setting is declared"),
        ("train.py --eval_batch_size 8 --batch_norm 1 --max_batch_size 9", "no batch setting is declared"),
        ("-- ./run-it --batch_size 8 --accum 2", "what --batch_size counts is not said by its name"),
        ("train.py --batch_size 8 --train_micro_batch_size 4 --local_batch_size 2", r"--train_micro_batch_size|micro-batch is not clear"),
        ("train.py --bs 8 --batch_size 8 --accum 2", "which is the micro-batch is not clear: --bs .8. or --batch_size .8."),
        ("train.py --micro_batch_size 8 --accum 2 --grad_accum 2", "which is the accumulation is not clear"),
        # No accumulation on the line is not an accumulation of 1: the script's default may be another.
        ("train.py --micro_batch_size 8", "no accumulation is given beside --micro_batch_size"),
        ("train.py --micro_batch_size 8 --accum auto", "no accumulation is given"),
        ("--nproc-per-node 2 train.py --micro_batch_size 4 --grad_accum 2 --global_batch_size 24", "4 × --grad_accum 2 × 2 ranks is not --global_batch_size 24"),
        ("train.py --micro_batch_size 9000 --accum 2 --batch_type tokens", "not counted in samples .--batch_type is tokens"),
        ("train.py --micro_batch_size 8 --accum 2 --dynamic_batching 1", "batches are dynamic"),
        (f"-- deepspeed --num_gpus 2 train.py --deepspeed ds.json {HF}", "ds.json may hold the number of --per_device_train_batch_size too"),
        ("train.py --micro_batch_size 1 --accum 4", "--micro_batch_size is 1 already"),
        ("--batch-knob --zeta --accumulation-knob --rho train.py", "the value of --zeta is not known"),
        ("--batch-knob c.yaml#data.rows --accumulation-knob --rho train.py --rho 2", "the value of c.yaml#data.rows is not known"),
        ("--batch-scope global -- accelerate launch train.py --batch_size 6 --accum 2", "how many there are is not known|how many ranks"),
    ],
)  # fmt: skip
def test_what_is_neither_is_left_open_with_the_reason(line: str, why: str) -> None:
    plan = oom_plan(job(line, files=SAMPLES))
    assert not plan.changes
    assert re.search(why, plan.why), plan.why


def test_what_is_left_open_is_known_after_the_first_step_unless_nothing_is_measured() -> None:
    for line in ("train.py", "--batch-knob --zeta --accumulation-knob --rho train.py"):
        measured, unmeasured = oom_plan(job(line)), oom_plan(job(f"--no-instrument {line}"))
        assert not measured.changes
        assert not unmeasured.changes
        assert measured.why == f"known after the first step ({unmeasured.why})"
        assert "--batch-knob FLAG" in unmeasured.help or "give --zeta a number" in unmeasured.help
    final = oom_plan(job("train.py --micro_batch_size 1 --accum 4"))
    assert not final.changes
    assert "after the first step" not in final.why, "it is 1, measured or not"


@pytest.mark.parametrize(
    ("line", "gpus", "ranks"),
    [
        ("-- accelerate launch --multi_gpu --num_processes 2 train.py --num_processes 9", 0, 2),
        ("-- python -m accelerate.commands.launch --cpu --num_processes 2 train.py", 0, None),
        ("-- accelerate launch --num_machines 2 --num_processes 16 train.py", 0, None),
        ("-- deepspeed --hostfile hosts --num_gpus 8 train.py", 0, None),
        ("-- srun --ntasks=8 --nodes=2 python train.py", 0, 8),
        ("-- srun --ntasks-per-node=4 -N 2 python train.py", 0, None),
        ("-- composer --world_size 8 --nproc 4 train.py", 0, None),
        ("-- make train --num_processes 2", 0, None),
        ("-- python train.py", 0, 1),
        ("-- python train.py", 1, 1),
        # It may start a rank for each of them.
        ("-- python train.py", 2, None),
        ("-- python train.py --devices 4", 0, None),
        ("-- accelerate launch train.py", 0, None),
        ("-- bash train.sh", 0, None),
        ("--nproc-per-node 6 -- ./launch.sh", 0, 6),
        ("--nproc-per-node 1 -- python train.py", 2, 1),
    ],
)
def test_ranks_behind_a_command(line: str, gpus: int, ranks: int | None) -> None:
    assert job(line, gpus=gpus).world_size == ranks


@pytest.mark.parametrize(
    ("line", "how", "knob", "value"),
    [
        ("train.py", "unknown", None, None),
        ("train.py --resume", "flag", "--resume", ""),
        ("train.py --resume_from_checkpoint latest", "flag", "--resume_from_checkpoint", "latest"),
        ("train.py --resume_from ckpt/step_5000.pt", "flag", "--resume_from", None),
        ("train.py --auto_resume", "self", None, None),
        ("train.py --auto_resume false", "unknown", None, None),
        ("train.py --auto_resume --no-resume", "unknown", None, None),
        ("--self-resuming train.py", "self", None, None),
        ("train.py fit --data.batch_size 4 --trainer.max_steps 9", "flag", "--ckpt_path", None),
        ("train.py --data.batch_size 4 --trainer.max_steps 9", "unknown", None, None),
        ("train.py --micro-batch-size 1 --train-iters 9 --load /c --save /c", "self", None, None),
        ("train.py --micro-batch-size 1 --train-iters 9 --save /c", "flag", "--load", "/c"),
        ("train.py --resume true hydra.run.dir=out/${now:%H}", "unknown", None, None),
        # Weights that somebody published begin a run; they are no checkpoint of it.
        ("-- dora run solver=small continue_from=//pretrained/a/medium", "unknown", None, None),
        ("-- python src/train.py continue_from=runs/a.pt", "flag", "continue_from", None),
        ("train.py --model.first_stage.ckpt_path a.pt", "unknown", None, None),
        # Declared: a word of its own, the newest checkpoint's path or its number, a bare switch.
        ("--resume-knob --go=newest train.py", "flag", "--go", "newest"),
        ("--resume-knob --go=PATH train.py", "flag", "--go", None),
        ("--resume-knob --restore_step=STEP train.py", "flag", "--restore_step", "STEP"),
        ("--resume-knob train.ckpt train.py", "flag", "train.ckpt", None),
        ("--resume-knob --go train.py", "flag", "--go", ""),
    ],
)
def test_how_it_goes_on(line: str, how: str, knob: str | None, value: str | None) -> None:
    resume = oom_plan(job(line)).resume
    assert (resume.how, resume.knob, resume.value) == (how, knob, value)


KNOWN = Knobs(batch="--bs", batch_scope=KnobScope.PER_RANK, accumulation="--acc", self_resuming=True)


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        (KNOWN, "out of memory: restarts with micro-batch 4 × accumulation 4 from the newest checkpoint"),
        (replace(KNOWN, self_resuming=False), "out of memory would end this run after its first step: how the script resumes is not known; --resume-knob FLAG=PATH"),
        (replace(KNOWN, self_resuming=False, cannot_resume=True), "out of memory would end this run after its first step: the script does not resume; --restart-from-scratch"),
        (Knobs(self_resuming=True, refusal="what makes the 8 samples of a rank is not known"), "out of memory would end this run: what makes the 8 samples of a rank is not known; --batch-knob NAME --accumulation-knob NAME"),
        (replace(KNOWN, accumulation=None), "out of memory would end this run: no accumulation is known beside --bs (--accumulation-knob, or --allow-smaller-global); --accumulation-knob NAME"),
        (replace(KNOWN, batch_scope=KnobScope.UNKNOWN), "out of memory would end this run: what --bs counts is not known: say --batch-scope per_rank, per_node or global; --batch-scope SCOPE"),
        (Knobs(refusal="--bs is a table's key", resume="--go", resume_value=""), "out of memory would end this run: --bs is a table's key; --batch-knob NAME --accumulation-knob NAME"),
    ],
    ids=["restarts", "resume not known", "never resumes", "batch not known", "no accumulation", "no scope", "refused"],
)  # fmt: skip
def test_what_an_out_of_memory_failure_would_do_is_one_line(knobs: Knobs, text: str) -> None:
    spec = replace(job("train.py"), knobs=knobs, batch=BatchSpec(8, 2, 2))
    found, restarts = oom_notice(spec, waits=False)
    assert found == text
    assert restarts is not bool(missing_words(spec))
    assert oom_notice(spec, waits=True)[0] == text.replace("would end this run", "would wait for you")


NUMBERS = (FoundNumber("micro", 8, "command line"), FoundNumber("accumulation", 1, "default"))
READ = replace(KNOWN, self_resuming=False, found=NUMBERS)
UNREAD = replace(READ, found=())


@pytest.mark.parametrize(
    ("knobs", "batch", "words", "lines"),
    [
        (READ, BatchSpec(8, 1, 2), "--bs 8", ("micro-batch 8 (--bs, command line) · accumulation 1 (--acc, default) · × 2 ranks", "--bs 8 → 4, --acc 1 → 2 (same global batch)", "--bs 4 → 2, --acc 2 → 4; --bs 2 → 1, --acc 4 → 8", "not known: a restart after the first step waits for you (--resume-knob, --self-resuming)")),
        (replace(READ, counts=AccumulationCounts.ALL_RANKS, resume="--resume", resume_value=""), BatchSpec(2, 1, 1), "--bs 8", ("micro-batch 8 (--bs, command line) · accumulation 1 (--acc, of all ranks, default) · × 1 rank", "--bs 8 → 1, --acc 1 → 2 (same global batch)", "nothing smaller is left", "--resume")),
        (replace(UNREAD, refusal="no", resume_path="--ckpt"), None, "", ("micro-batch not known · × ranks", "nothing by itself: no", "-", "--ckpt PATH of the newest checkpoint")),
        (replace(UNREAD, cannot_resume=True), BatchSpec(2, 1, 2), "", ("micro-batch not known · × 2 ranks", "--bs unset → 1, --acc unset → 2 (same global batch)", "nothing smaller is left", "not at all: a restart begins at step 0")),
    ],
)  # fmt: skip
def test_a_dry_run_in_four_lines(
    knobs: Knobs, batch: BatchSpec | None, words: str, lines: tuple[str, ...]
) -> None:
    spec = job(f"--no-instrument --nproc-per-node 2 train.py {words}")
    assert four_lines(replace(spec, knobs=knobs, batch=batch, world_size=None)) == lines


NOT_KNOWN = "not known: a restart after the first step waits for you (--resume-knob, --self-resuming)"


@pytest.mark.parametrize(
    ("line", "said", "batch", "resume"),
    [
        ("--nproc-per-node 2 train.py --micro_batch_size 4 --global_batch_size 16", ("micro-batch 4 (--micro_batch_size, command line) · accumulation follows from --global_batch_size 16 · × 2 ranks", "--micro_batch_size 4 → 2 (same global batch)", "--micro_batch_size 2 → 1", NOT_KNOWN), (4, "--micro_batch_size", "command line", None, None, None, "per_rank", 16, None, "per_rank", 2), ("unknown", None, None, None)),
        ("--no-instrument --batch-knob --bs --accumulation-knob --ga --batch-scope per_rank train.py", ("micro-batch of --bs: not known · accumulation of --ga: not known · × 1 rank", "nothing by itself: the value of --bs is not known", "give --bs a number", NOT_KNOWN), (None, "--bs", "named", None, "--ga", "named", "per_rank", None, "samples", "per_rank", 1), ("unknown", None, None, None)),
        ("--batch-scope global --nproc-per-node 2 train.py --batch_size 24 --accum_iter 2", ("micro-batch 24 (--batch_size, command line) · accumulation 2 (--accum_iter, command line) · × 2 ranks", "--accum_iter 2 → 4 (same global batch)", "--accum_iter 4 → 12", NOT_KNOWN), (24, "--batch_size", "command line", 2, "--accum_iter", "command line", "per_rank", 24, "samples", "global", 2), ("unknown", None, None, None)),
        ("--batch-scope global -- accelerate launch train.py --batch_size 6 --accum 2", ("of all ranks 6 (--batch_size, command line) · accumulation 2 (--accum, command line)", "known after the first step (how many ranks there are is not known)", "to say it now: --nproc-per-node N", NOT_KNOWN), (6, "--batch_size", "command line", 2, "--accum", "command line", "per_rank", None, "samples", "global", None), ("unknown", None, None, None)),
        ("train.py", ("micro-batch known after the first step · × 1 rank", "known after the first step (no batch setting is declared, and none with a conventional name is given)", "to say it now: --batch-knob FLAG --accumulation-knob FLAG", NOT_KNOWN), (None, None, None, None, None, None, None, None, "samples", "unknown", 1), ("unknown", None, None, None)),
        ("--allow-smaller-global train.py --micro_batch_size 4", ("micro-batch 4 (--micro_batch_size, command line) · × 1 rank", "--micro_batch_size 4 → 2 (a smaller global batch, as allowed)", "--micro_batch_size 2 → 1", NOT_KNOWN), (4, "--micro_batch_size", "command line", None, None, None, None, 4, "samples", "per_rank", 1), ("unknown", None, None, None)),
        ("--batch-knob --config=c.yaml#data.bs --accumulation-knob c.yaml#data.steps --batch-scope per_rank train.py --config=c.yaml", ("micro-batch 16 (c.yaml#data.bs, c.yaml) · accumulation 3 (c.yaml#data.steps, c.yaml) · × 1 rank", "c.yaml#data.bs 16 → 8, c.yaml#data.steps 3 → 6 (same global batch)", "c.yaml#data.bs 8 → 4, c.yaml#data.steps 6 → 12; c.yaml#data.bs 4 → 2, c.yaml#data.steps 12 → 24; c.yaml#data.bs 2 → 1, c.yaml#data.steps 24 → 48", NOT_KNOWN), (16, "c.yaml#data.bs", "c.yaml", 3, "c.yaml#data.steps", "c.yaml", "per_rank", 48, "samples", "per_rank", 1), ("unknown", None, None, None)),
        ("train.py --micro_batch_size 1 --accum 4", ("micro-batch 1 (--micro_batch_size, command line) · × 1 rank", "nothing by itself: --micro_batch_size is 1 already: no smaller micro-batch is possible", "-", NOT_KNOWN), (1, "--micro_batch_size", "command line", None, None, None, None, None, "samples", "per_rank", 1), ("unknown", None, None, None)),
        ("--batch-scope per_node --nproc-per-node 2 train.py --batch_size 8 --accum 1", ("micro-batch 8 (--batch_size, command line) · accumulation 1 (--accum, command line) · × 2 ranks", "--batch_size 8 → 4, --accum 1 → 2 (same global batch)", "--batch_size 4 → 2, --accum 2 → 4", NOT_KNOWN), (8, "--batch_size", "command line", 1, "--accum", "command line", "per_rank", 8, "samples", "per_node", 2), ("unknown", None, None, None)),
        ("--resume-knob --go=PATH train.py --micro_batch_size 2 --accum 1", ("micro-batch 2 (--micro_batch_size, command line) · accumulation 1 (--accum, command line) · × 1 rank", "--micro_batch_size 2 → 1, --accum 1 → 2 (same global batch)", "nothing smaller is left", "--go PATH of the newest checkpoint"), (2, "--micro_batch_size", "command line", 1, "--accum", "command line", "per_rank", 2, "samples", "per_rank", 1), ("flag", "--go", None, "named")),
        ("--resume-knob --go=STEP --min-micro-batch 2 train.py --micro_batch_size 2 --accum 1", ("micro-batch 2 (--micro_batch_size, command line) · accumulation 1 (--accum, command line) · × 1 rank", "nothing by itself: no micro-batch of 2 or more below 2 is left", "-", "--go STEP"), (2, "--micro_batch_size", "command line", 1, "--accum", "command line", "per_rank", 2, "samples", "per_rank", 1), ("flag", "--go", "STEP", "takes the step of a checkpoint")),
        ("--self-resuming train.py --micro_batch_size 2 --accum 3 --grad_accum 4", ("micro-batch 2 (--micro_batch_size, command line) · × 1 rank", "known after the first step (which is the accumulation is not clear: --accum (3) or --grad_accum (4))", "to say it now: --accumulation-knob --accum, or --accumulation-knob --grad_accum", "by itself (named (--self-resuming))"), (2, "--micro_batch_size", "command line", None, None, None, None, None, "samples", "per_rank", 1), ("self", None, None, "named (--self-resuming)")),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)  # fmt: skip
def test_a_dry_run_says_the_same_in_lines_and_in_json(
    line: str, said: tuple[str, ...], batch: tuple[object, ...], resume: tuple[object, ...]
) -> None:
    spec = job(line, files=SAMPLES)
    assert four_lines(spec) == said
    plan = build_plan(spec, attempt=1, interpreter="python", run_dir="/r", attempt_dir="/r/1", base_env={})
    told = answer(spec, plan)
    assert list(told) == ["schema", "argv", "env", "batch", "on_oom"]
    assert (told["schema"], told["argv"]) == (1, list(plan.argv))
    assert told["env"] == {change.name: change.value for change in plan.env}
    micro, accumulation, *others = told["batch"].values()
    assert (*micro.values(), *accumulation.values(), *others) == batch
    on_oom = told["on_oom"]
    assert tuple(on_oom.pop("resume").values()) == resume
    if "refused" in on_oom:
        why, help_ = said[1].removeprefix("nothing by itself: "), said[2].removeprefix("to say it now: ")
        assert on_oom == {"refused": True, "why": why, "what_would_help": None if help_ == "-" else help_}
        return
    steps = [
        ", ".join(f"{change['knob']} {change['from']} → {change['to']}" for change in step)
        for step in (on_oom["changes"], *on_oom["then"])
    ]
    assert steps[0] == said[1].partition(" (")[0]
    assert "; ".join(steps[1:]) == said[2].removeprefix("nothing smaller is left")
    assert on_oom.get("smaller_global", False) is said[1].endswith("(a smaller global batch, as allowed)")
