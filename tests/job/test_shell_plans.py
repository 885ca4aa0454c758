"""What an out-of-memory failure would change of a training that a shell script starts. Small stand-ins of each style, read and never run but where it says so."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from supervisor.job.arguments.run_arguments import parse_run_argv
from supervisor.job.batch import BatchSpec
from supervisor.job.config.resolve import JobInputs, resolve_job
from supervisor.job.errors import JobError
from supervisor.job.memory_fit import choose_smaller
from supervisor.job.oom_plan import OomPlan, OomRefusal, four_lines, oom_plan
from supervisor.job.plan import LaunchPlan, build_plan
from supervisor.job.spec import JobSpec

BASH = shutil.which("bash")
TRAIN = (
    "p = argparse.ArgumentParser()\np.add_argument('--batch_size', type=int, default=8)\np.add_argument('--accum_iter', type=int, default=1)\n"
    "p.add_argument('--resume', default='', help='path of a checkpoint')\np.add_argument('--lr', type=float)\np.add_argument('--workers', type=int, default=2)\nargs = p.parse_args()\n"
    "if args.resume:\n    state = torch.load(args.resume)\n    optimizer.load_state_dict(state['optimizer'])\n"
    "for i, x in enumerate(DataLoader(d, batch_size=args.batch_size)):\n    loss = model(x) / args.accum_iter\n    loss.backward()\n"
    "    if (i + 1) % args.accum_iter == 0:\n        optimizer.step()\n"
)
CLICK = "import click\n@click.command()\n@click.option('--batch-size', default=8)\n@click.option('--accum', default=1)\ndef main(batch_size, accum):\n    for i, x in enumerate(DataLoader(d, batch_size=batch_size)):\n        (model(x) / accum).backward()\n        if (i + 1) % accum == 0:\n            optimizer.step()\n"
HF = "from transformers import HfArgumentParser, TrainingArguments\n(a,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()\nTrainer(args=a).train()\n"
HYDRA = "import hydra\n@hydra.main(config_path='conf', config_name='config')\ndef main(cfg):\n    DataLoader(d, batch_size=cfg.batch_size)\n    n = cfg.grad_accum_steps\n"
BY_CONFIG = "p.add_argument('--config')\ncfg = load(p.parse_args().config)\nfor i, x in enumerate(DataLoader(d, batch_size=cfg.batch_size)):\n    (model(x) / cfg.accum_steps).backward()\n    if (i + 1) % cfg.accum_steps == 0:\n        optimizer.step()\n"
HALVED = {"--batch_size": "4", "--accum_iter": "4"}
GIVEN = "--batch_size 8 --accum_iter 2"


def job(
    line: str, files: Mapping[str, str], env: Mapping[str, str] | None = None, cwd: str = "/w"
) -> JobSpec:
    parsed = parse_run_argv(line.split())
    return resolve_job(JobInputs(parsed=parsed, env=env or {}, cwd=cwd, read=files.get))


def changed(spec: JobSpec) -> dict[str, str]:
    plan = oom_plan(spec)
    assert isinstance(plan, OomPlan), plan
    return {change.knob: change.new for change in plan.changes}


def refused(spec: JobSpec) -> OomRefusal:
    plan = oom_plan(spec)
    assert isinstance(plan, OomRefusal), plan
    return plan


def launch(spec: JobSpec, batch: BatchSpec | None) -> LaunchPlan:
    return build_plan(
        spec, attempt=2, interpreter="python", run_dir="/r", attempt_dir="/r/2", base_env={}, batch=batch
    )


@pytest.mark.parametrize(
    ("line", "script", "expected"),
    [
        ("bash train.sh", f'python train.py {GIVEN} "$@"\n', HALVED),
        ("sh train.sh", f"python train.py {GIVEN} $@\n", HALVED),
        ("./train.sh", f"#!/bin/bash\nexec torchrun --nproc_per_node=2 train.py {GIVEN} $*\n", HALVED),
        ("bash train.sh 4", f"N=$1\nshift\ntorchrun --nproc_per_node=$N train.py {GIVEN} $@\n", HALVED),
        ("bash train.sh 4", f"torchrun --nproc_per_node=$1 train.py {GIVEN} ${{@:2}}\n", HALVED),
        ("bash train.sh --batch_size 16 --accum_iter 1", 'python train.py "$@"\n', {"--batch_size": "8", "--accum_iter": "2"}),
        ("bash train.sh --batch_size 16", f'python train.py {GIVEN} "$@"\n', {"--batch_size": "8", "--accum_iter": "4"}),
        ("bash train.sh", 'ARGS=(--batch_size 8)\nARGS+=("$@")\npython train.py "${ARGS[@]}"\n', {"--batch_size": "4", "--accum_iter": "2"}),
        ("bash train.sh", "python train.py --batch_size ${BATCH:-8} --accum_iter ${ACC:-2}\n", {"env:BATCH": "4", "env:ACC": "4"}),
        ("bash train.sh", ": ${BATCH:=8}\nACC=${ACC-2}\npython train.py --batch_size=$BATCH --accum_iter=$ACC\n", {"env:BATCH": "4", "env:ACC": "4"}),
        ("bash train.sh", f'cd sub/..\npython train.py {GIVEN} 2>&1 "$@" | tee log\n', HALVED),
        ("bash train.sh 8", 'OUT=out_$(date +%F)\npython "$PWD/train.py" --batch_size $1 --accum_iter 2 --out $OUT "${@:2}"\n', HALVED),
        ("env A=1 nohup bash train.sh", f'python train.py {GIVEN} "$@"\n', HALVED),
        ("bash -ex train.sh", f'if [ -f x ]; then echo x; fi\npython train.py {GIVEN} "$@"\n', HALVED),
    ],
)  # fmt: skip
def test_a_change_reaches_the_training(line: str, script: str, expected: dict[str, str]) -> None:
    spec = job(f"-- {line}", {"train.sh": script, "./train.sh": script, "train.py": TRAIN})
    assert changed(spec) == expected


@pytest.mark.parametrize(
    ("script", "why", "command"),
    [
        (f"python train.py {GIVEN}\n", "train.sh:1 starts it and hands no further arguments on", f"stoker run -- python train.py {GIVEN}"),
        (f'python train.py "$@" {GIVEN}\n', "train.sh:1 starts it and hands its arguments on, but not at its end", f"stoker run -- python train.py {GIVEN}"),
        (f"N=${{1:-2}}\nshift\ntorchrun --nproc_per_node=$N train.py {GIVEN} $@\n", "train.sh:3 starts it and hands its arguments on, but takes a further one for itself", f"stoker run -- torchrun --nproc_per_node=2 train.py {GIVEN}"),
        (f'python train.py {GIVEN} --lr "${{1:-0.1}}"\n', "train.sh:1 starts it and hands no further arguments on", f"stoker run -- python train.py {GIVEN} --lr 0.1"),
        (f"if [ $# -gt 0 ]; then exit 1; fi\npython train.py {GIVEN} $@\n", "with a further argument train.sh:1 ends it with `exit` before a training is started", f"stoker run -- python train.py {GIVEN}"),
        (f'export SEED=$#\npython train.py {GIVEN} "$@"\n', "a further argument changes more than the command in train.sh:2", f"stoker run -- env SEED=0 python train.py {GIVEN}"),
        (f'python train.py {GIVEN} -- "$@"\n', "train.sh:1 has `--` before the arguments that it hands on", f"stoker run -- python train.py {GIVEN} --"),
        ("OUT=out_${BATCH:-8}\npython train.py --batch_size ${BATCH:-8} --accum_iter 2 --out $OUT\n", "train.sh:2 starts it and hands no further arguments on", "stoker run -- python train.py --batch_size 8 --accum_iter 2 --out out_8"),
        ("BATCH=8\npython train.py --batch_size ${BATCH:-4} --accum_iter 2\n", "train.sh:2 starts it and hands no further arguments on", "stoker run -- python train.py --batch_size 8 --accum_iter 2"),
        (f'export TAG="a b" API_KEY=abc123\ncd sub\nCUDA_VISIBLE_DEVICES=0 python ../train.py {GIVEN} --port $RANDOM --name "$(date) x"\n', "train.sh:3 starts it and hands no further arguments on", f'cd sub && stoker run -- env API_KEY="$API_KEY" CUDA_VISIBLE_DEVICES=0 TAG=\'a b\' python ../train.py {GIVEN} --port "$RANDOM" --name "$(date) x"'),
        (f"cd /a/b\npython train.py {GIVEN}\n", "train.sh:2 starts it and hands no further arguments on", f"cd /a/b && stoker run -- python train.py {GIVEN}"),
    ],
)  # fmt: skip
def test_a_change_that_would_not_reach_it_is_refused_with_the_command(
    script: str, why: str, command: str
) -> None:
    files = {"train.sh": script, "train.py": TRAIN, "sub/../train.py": TRAIN, "../a/b/train.py": TRAIN}
    plan = refused(job("-- bash train.sh", files))
    assert (plan.why, plan.help) == (why, command)


def test_a_script_that_divides_a_total_by_the_micro_batch_gets_the_micro_batch_alone() -> None:
    script = (
        "TOTAL=${TOTAL:-64}\nMICRO=${MICRO:-8}\nGPUS=${GPUS:-2}\nSTEPS=$((TOTAL / MICRO / GPUS))\n"
        "torchrun --nproc_per_node=$GPUS train.py --batch_size $MICRO --accum_iter $STEPS\n"
    )
    files = {"train.sh": script, "train.py": TRAIN}
    spec = job("-- bash train.sh", files)
    assert changed(spec) == {"env:MICRO": "4"}
    assert four_lines(spec)[0] == "micro-batch 8 (env:MICRO, train.sh:5) · accumulation follows from env:TOTAL 64 · × 2 ranks"  # fmt: skip
    fixed = {**files, "train.sh": script.replace("${TOTAL:-64}", "64")}
    assert (
        refused(job("-- bash train.sh", fixed)).why
        == "train.sh:5 starts it and hands no further arguments on"
    )


def test_what_the_refusal_names_is_a_plan_of_its_own() -> None:
    files = {"train.sh": f"python train.py {GIVEN}\n", "train.py": TRAIN}
    help_ = refused(job("-- bash train.sh", files)).help
    assert changed(job(help_.removeprefix("stoker run "), files)) == HALVED


@pytest.mark.parametrize(
    ("train", "given", "expected"),
    [
        (CLICK, "--batch-size 8 --accum 2", {"--batch-size": "4", "--accum": "4"}),
        (HF, "--per_device_train_batch_size 8 --output_dir o", {"--per_device_train_batch_size": "4", "--gradient_accumulation_steps": "2"}),
        (f"import docopt\n{TRAIN}", GIVEN, "train.sh:1 sets --batch_size already, and docopt may not take it twice"),
        (f"{TRAIN}s = p.add_subparsers()\n", GIVEN, "train.sh:1 starts a command with subcommands, and a flag behind them may be another's"),
        (f"{TRAIN}p.add_argument('opts', nargs=argparse.REMAINDER)\n", GIVEN, "train.sh:1 starts a command that takes all that follows as one list"),
        (HYDRA, "batch_size=8 grad_accum_steps=2", "train.sh:1 sets batch_size already, and hydra may not take it twice"),
        (BY_CONFIG, "--config c.yaml", {"--config=c.yaml#batch_size": "4", "--config=c.yaml#accum_steps": "2"}),
        (BY_CONFIG.replace("'--config'", "'config'"), "c.yaml", "train.sh:1 names the config c.yaml, and no flag that could come after it"),
    ],
)  # fmt: skip
def test_only_a_parser_that_takes_the_last_of_two_gets_a_flag_twice(
    train: str, given: str, expected: dict[str, str] | str
) -> None:
    files = {"train.sh": f'python train.py {given} "$@"\n', "train.py": train, "c.yaml": "batch_size: 8\naccum_steps: 1\n", "conf/config.yaml": "batch_size: 8\ngrad_accum_steps: 1\n"}  # fmt: skip
    spec = job("-- bash train.sh", files)
    if isinstance(expected, str):
        assert refused(spec).why == expected
    else:
        pairs = [(name.removeprefix("--config="), value) for name, value in expected.items()]
        assert [*changed(spec).items()] == pairs


def test_a_changed_copy_of_the_config_is_named_behind_the_scripts_own() -> None:
    files = {"run/train.sh": 'cd "$(dirname "$0")"\npython ../train.py --config conf/c.yaml "$@"\n', "run/../train.py": BY_CONFIG, "run/conf/c.yaml": "batch_size: 8\naccum_steps: 1\n"}  # fmt: skip
    spec = job("-- bash run/train.sh", files)
    assert spec.batch is not None
    choice = choose_smaller(spec.batch)
    assert choice is not None
    plan = launch(spec, choice.batch)
    assert plan.argv == ("bash", "run/train.sh", "--config=/r/2/config/c.yaml")
    assert [(edit.source, edit.copy) for edit in plan.edits] == [("run/conf/c.yaml", "/r/2/config/c.yaml")]


def test_a_resume_is_appended_too_and_a_self_resuming_script_needs_none() -> None:
    files = {"train.sh": f'python train.py {GIVEN} "$@"\n', "train.py": TRAIN}
    assert oom_plan(job("-- bash train.sh", files)).resume.knob == "--resume"
    closed = {**files, "train.sh": f"python train.py {GIVEN}\n"}
    lost = oom_plan(job("-- bash train.sh", closed)).resume
    assert (lost.how, lost.source) == ("unknown", "train.sh:1 starts it and hands no further arguments on")
    itself = "\nlast = get_last_checkpoint(args.output_dir)\ntrainer.train(resume_from_checkpoint=last)\n"
    assert oom_plan(job("-- bash train.sh", {**closed, "train.py": HF + itself})).resume.how == "self"


@pytest.mark.parametrize(
    ("more", "knob"),
    [
        ('--resume "${RESUME:-}"', "env:RESUME"),
        ("${RESUME:+--resume $RESUME}", "env:RESUME"),
        ("$(echo $EXTRA)", None),
        ("--resume last.pt --out ${RESUME:-x}", None),
    ],
)
def test_a_resume_is_set_as_the_variable_that_the_script_leaves_open(more: str, knob: str | None) -> None:
    files = {"train.sh": f"python train.py {GIVEN} {more}\n", "train.py": TRAIN}
    resume = oom_plan(job("-- bash train.sh", files)).resume
    assert (resume.how, resume.knob) == ("flag" if knob else "unknown", knob)


def test_a_variable_that_is_given_from_outside_is_open_without_a_default() -> None:
    files = {"train.sh": "python train.py --batch_size $BATCH --accum_iter ${ACC}\n", "train.py": TRAIN}
    spec = job("-- bash train.sh", files, env={"BATCH": "16", "ACC": "1"})
    assert changed(spec) == {"env:BATCH": "8", "env:ACC": "2"}


def test_a_path_with_blanks_is_not_handed_to_a_script_that_splits_it() -> None:
    files = {"train.sh": f"python train.py {GIVEN} $@\n", "train.py": TRAIN}
    assert oom_plan(job("-- bash train.sh", files)).resume.how == "flag"
    assert oom_plan(job("-- bash train.sh", files, cwd="/my work")).resume.how == "unknown"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("for s in 1 2; do python train.py --batch_size 8; done\n", "train.sh:1 starts it in a loop over s"),
        ("python train.py --batch_size 8 $(cat more)\n", "train.sh:1 starts it with $(cat more): train.sh:1 takes what $(cat more) prints"),
        ("python train.py --config $(ls *.yaml | shuf -n 1)\n", "train.sh:1 starts it with $(ls *.yaml | shuf -n 1): train.sh:1 takes what $(ls *.yaml | shuf -n 1) prints"),
        ('accelerate launch --num_processes "$(nproc)" train.py\n', "train.sh:1 starts it with $(nproc): train.sh:1 takes what $(nproc) prints"),
    ],
)  # fmt: skip
def test_a_script_that_is_not_read_is_refused_with_the_line(script: str, why: str) -> None:
    spec = job("-- bash train.sh --batch_size 8 --accum_iter 2", {"train.sh": script, "train.py": TRAIN})
    plan = refused(spec)
    assert plan.why == why
    assert plan.help == "name the training command itself behind `--`"
    named = job("--batch-knob --batch_size --accumulation-knob --accum_iter -- bash train.sh --batch_size 8 --accum_iter 2", {"train.sh": script})  # fmt: skip
    assert changed(named) == HALVED


def test_a_declared_setting_is_used_where_it_reaches_the_training_and_as_before_elsewhere() -> None:
    files = {"train.sh": f'python train.py {GIVEN} "$@"\n', "train.py": TRAIN}
    assert changed(job("--batch-knob --batch_size -- bash train.sh", files)) == HALVED
    closed = {**files, "train.sh": 'python train.py --batch_size "$1" --accum_iter "$2"\n'}
    own = job("--batch-knob --bs --accumulation-knob --acc -- bash train.sh --bs 8 --acc 2", closed)
    assert changed(own) == {"--bs": "4", "--acc": "4"}


def test_ranks_and_batch_are_read_from_the_training() -> None:
    script = f'CUDA_VISIBLE_DEVICES=0,1,2,3 accelerate launch --num_processes 4 train.py {GIVEN} "$@"\n'
    spec = job("-- bash train.sh", {"train.sh": script, "train.py": TRAIN})
    assert four_lines(spec)[0] == "micro-batch 8 (--batch_size, train.sh:1) · accumulation 2 (--accum_iter, train.sh:1) · × 4 ranks"  # fmt: skip
    assert (spec.entry, spec.entry_args) == ("bash", ("train.sh",))
    unknown = job("-- bash train.sh", {"train.sh": f"torchrun --nproc_per_node=$(nproc) train.py {GIVEN} $@\n", "train.py": TRAIN})  # fmt: skip
    assert unknown.world_size is None
    assert changed(unknown) == HALVED


def test_what_a_person_sets_reaches_the_training_or_is_refused() -> None:
    files = {"train.sh": f'python train.py {GIVEN} "$@"\n', "train.py": TRAIN}
    assert launch(job("--micro-batch 2 -- bash train.sh", files), None).argv[-1] == "--batch_size=2"
    opened = {**files, "train.sh": "python train.py --batch_size ${B:-8} --accum_iter 2\n"}
    variables = {c.name: c.value for c in launch(job("--micro-batch 2 -- bash train.sh", opened), None).env}
    assert variables["B"] == "2"
    with pytest.raises(JobError, match=r"--batch_size cannot be set: train.sh:1 starts it and hands"):
        job("--micro-batch 2 -- bash train.sh", {**files, "train.sh": f"python train.py {GIVEN}\n"})
    with pytest.raises(JobError, match=r"train.sh:1 starts several ranks: give the command itself"):
        job(
            "--single-gpu -- bash train.sh",
            {**files, "train.sh": "torchrun --nproc_per_node 2 train.py $@\n"},
        )


@pytest.mark.skipif(BASH is None, reason="no bash")
@pytest.mark.parametrize(
    "script",
    [
        f'python train.py {GIVEN} --lr 0.1 "$@" 2>&1 | cat\n',
        f"ARGS=({GIVEN})\npython train.py ${{ARGS[@]}} $*\n",
        f'while [ $# -gt 0 ]; do\n  case "$1" in\n    --lr) LR=$2; shift 2 ;;\n    *) REST+=("$1"); shift ;;\n  esac\ndone\npython train.py {GIVEN} "${{REST[@]}}"\n',
        "python train.py --batch_size ${BATCH:-8} --accum_iter ${ACC:-2}\n",
        'BATCH=8\npython train.py --batch_size "$BATCH" --accum_iter ${ACC:-2} --workers 3 "$@"\n',
    ],
)
def test_the_changed_settings_win_in_the_real_script(script: str, tmp_path: Path) -> None:
    files = {"train.sh": script, "train.py": TRAIN}
    spec = job("-- bash train.sh", files, cwd=str(tmp_path))
    assert spec.batch is not None
    choice = choose_smaller(spec.batch)
    assert choice is not None
    plan = launch(spec, choice.batch)
    (tmp_path / "train.sh").write_text(script)
    head = TRAIN.partition("if args.resume")[0]
    (tmp_path / "train.py").write_text(f"import argparse, json\n{head}print(json.dumps(vars(args)))\n")
    (tmp_path / "python").symlink_to(sys.executable)
    env = {c.name: c.value for c in plan.env if c.value is not None}
    path = f"{tmp_path}:{Path(shutil.which('cat') or '/bin/cat').parent}"
    done = subprocess.run([BASH or "bash", *plan.argv[1:]], cwd=tmp_path, env={**env, "PATH": path}, capture_output=True, text=True, timeout=60, check=True)  # fmt: skip
    seen = json.loads(done.stdout)
    assert (seen["batch_size"], seen["accum_iter"]) == (4, 4)
