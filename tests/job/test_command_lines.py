"""The labelled command lines of public scripts, by what the line alone says: a change or a resume is as labelled, or is left open."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from supervisor.job.arguments.command_line import Launch, container_options, read_launch
from supervisor.job.arguments.run_arguments import parse_run_argv
from supervisor.job.config.resolve import JobInputs, resolve_job
from supervisor.job.config.setting_values import spec_key_names
from supervisor.job.errors import JobError
from supervisor.job.launch.oom_plan import oom_plan

MANIFEST = Path(__file__).parents[1] / "scripts_corpus" / "manifest.jsonl"
LINE = re.compile(r"\(cd [^)]*\) ((?:\w+=\S+ )*)stoker run ")
NO_WAY = re.compile(r"(no|none|nothing|cannot)\b", re.IGNORECASE)
OPTION = re.compile(r"--?\w|\w[._]\w|=")


# Its script refuses to start with a micro-batch of 1, which no name says: the restart ends at the script's own check, and trains nothing.
ENDS_AT_ONCE = {122}


def setting(name: str) -> str:
    """The last part of a flag's, override's or config key's name."""
    return re.split(r"[.#]", name.lstrip("-"))[-1].replace("-", "_")


def verdicts(row: dict[str, Any]) -> tuple[str, str, str]:
    """Of one row: the verdicts on the change and on the resume, and what is said."""
    match = LINE.match(row["command"])
    assert match is not None
    env = dict(word.split("=", 1) for word in match[1].split())
    words = shlex.split(row["command"][match.end() :])
    try:
        parsed = parse_run_argv(words, env=env, spec_keys=spec_key_names())
        plan = oom_plan(resolve_job(JobInputs(parsed=parsed, env=env, cwd="/work", cpus=2)))
    except JobError as error:
        return "refused", "open", str(error)
    ways = [{(setting(n), v) for n, v in way} for way in (row["changes"], *row.get("alternatives", ()))]
    change = "refused"
    if plan.changes:
        got = {(setting(c.knob), c.new) for c in plan.changes}
        change = "right" if got in ways else "WRONG"
    resume, way = plan.resume, row["resume"] or "none"
    if resume.how not in {"flag", "self"}:
        return change, "open", str(plan)
    named = resume.how == "self" or not OPTION.search(way)
    named = named or setting(resume.knob or "") in way.replace("-", "_")
    return change, "right" if named and not NO_WAY.match(way) else "WRONG", str(plan)


def test_no_line_is_read_wrongly() -> None:
    rows = [json.loads(line) for line in MANIFEST.read_text(encoding="utf-8").splitlines()]
    found = [(row, *verdicts(row)) for row in rows]
    wrong = [(row["n"], said) for row, change, resume, said in found if "WRONG" in {change, resume}]
    assert {number for number, _ in wrong} == ENDS_AT_ONCE, "\n".join(map(str, wrong))
    changes = Counter(change for _, change, _, _ in found)
    resumes = Counter(resume for _, _, resume, _ in found)
    assert changes["right"] >= 12, changes
    assert resumes["right"] >= 2, resumes


@pytest.mark.parametrize(
    ("line", "launch", "name", "several"),
    [
        ("python train.py --lr 1", Launch(script="train.py", args_at=2), "train.py", ""),
        ("python -u -W ignore -X dev train.py a", Launch(script="train.py", args_at=7), "train.py", ""),
        ("python -m pkg.train a", Launch(module="pkg.train", args_at=3), "pkg.train", ""),
        ("python -m", Launch(args_at=2), "", ""),
        ("./run.sh a", Launch(program="./run.sh", args_at=1), "./run.sh", ""),
        ("bin/tool a", Launch(program="bin/tool", args_at=1), "bin/tool", ""),
        ("tool a", Launch(program="tool", args_at=1), "tool", ""),
        ("train.py a", Launch(script="train.py", args_at=1), "train.py", ""),
        ("torchrun --nproc-per-node 4 train.py a", Launch(launcher="torchrun", ranks=4, script="train.py", args_at=4), "train.py", "starts 4"),
        ("torchrun --nproc_per_node=2 -m pkg.train a", Launch(launcher="torchrun", ranks=2, module="pkg.train", args_at=4), "pkg.train", "starts 2"),
        ("torchrun --nnodes 2 --nproc-per-node 4 train.py", Launch(launcher="torchrun", machines=True, script="train.py", args_at=6), "train.py", "names machines"),
        ("torchrun --nnodes 1:1 train.py", Launch(launcher="torchrun", script="train.py", args_at=4), "train.py", ""),
        ("torchrun --nproc-per-node gpu train.py", Launch(launcher="torchrun", script="train.py", args_at=4), "train.py", ""),
        ("torchrun --nproc-per-node 0 train.py", Launch(launcher="torchrun", script="train.py", args_at=4), "train.py", ""),
        ("torchrun -- train.py --x", Launch(launcher="torchrun", script="train.py", args_at=3), "train.py", ""),
        ("torchrun --no-python ./tool a", Launch(launcher="torchrun", script="./tool", args_at=3), "tool", ""),
        ("torchrun --standalone", Launch(launcher="torchrun", args_at=2), "", ""),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py a", Launch(launcher="torch.distributed.run", ranks=2, script="train.py", args_at=6), "train.py", "starts 2"),
        ("accelerate launch --num_processes 4 train.py", Launch(launcher="accelerate", ranks=4, script="train.py", args_at=5), "train.py", "starts 4"),
        ("accelerate launch --config_file a.yaml train.py", Launch(launcher="accelerate", script="train.py", args_at=5), "train.py", "starts several, perhaps"),
        ("accelerate test", Launch(program="accelerate", args_at=1), "accelerate", ""),
        ("accelerate launch --cpu --num_processes 2 train.py", Launch(launcher="accelerate", script="train.py", args_at=6), "train.py", "starts several, perhaps"),
        ("accelerate launch -m pkg.train", Launch(launcher="accelerate", module="pkg.train", args_at=4), "pkg.train", "starts several, perhaps"),
        ("deepspeed --num_gpus 2 train.py", Launch(launcher="deepspeed", ranks=2, script="train.py", args_at=4), "train.py", "starts 2"),
        ("deepspeed --include a:0 train.py", Launch(launcher="deepspeed", machines=True, script="train.py", args_at=4), "train.py", "names machines"),
        ("deepspeed -H hosts train.py", Launch(launcher="deepspeed", machines=True, script="train.py", args_at=4), "train.py", "names machines"),
        ("mpirun -np 3 -mca btl self --allow-run-as-root python train.py", Launch(launcher="mpirun", ranks=3, script="train.py", args_at=9), "train.py", "starts 3"),
        ("mpirun -n4 -env A 1 ./tool", Launch(launcher="mpirun", ranks=4, script="./tool", args_at=6), "tool", "starts 4"),
        ("srun -n 8 python train.py", Launch(launcher="srun", ranks=8, script="train.py", args_at=5), "train.py", "starts 8"),
        ("srun --ntasks=2 -l bash x.sh", Launch(launcher="srun", ranks=2, program="bash", args_at=4), "bash", "starts 2"),
        ("srun -N 2 python train.py", Launch(launcher="srun", script="train.py", args_at=5), "train.py", "starts several, perhaps"),
        ("composer -n 2 train.py", Launch(launcher="composer", ranks=2, script="train.py", args_at=4), "train.py", "starts 2"),
        ("composer -n2 train.py", Launch(launcher="composer", ranks=2, script="train.py", args_at=3), "train.py", "starts 2"),
        ("env A=1 timeout -k 5 60 torchrun --nproc-per-node 2 train.py", Launch(launcher="torchrun", ranks=2, script="train.py", args_at=10), "train.py", "starts 2"),
        ("nohup uv run torchrun --nproc-per-node 2 train.py", Launch(launcher="torchrun", ranks=2, script="train.py", args_at=7), "train.py", "starts 2"),
        ("A=1 B=2 python train.py", Launch(script="train.py", args_at=4), "train.py", ""),
        ("srun -n 2 torchrun --nproc-per-node 4 train.py", Launch(launcher="torchrun", ranks=4, script="train.py", args_at=7), "train.py", "starts 4"),
        ("sudo", Launch(args_at=1), "", ""),
        ("x=1.py a", Launch(script="x=1.py", args_at=1), "x=1.py", ""),
        ("numactl --cpunodebind=0 python train.py a", Launch(script="train.py", args_at=4), "train.py", ""),
    ],
)  # fmt: skip
def test_a_launcher_and_the_program_that_it_starts(
    line: str, launch: Launch, name: str, several: str
) -> None:
    found = read_launch(line.split())
    assert found == launch
    assert (found.name, found.several) == (name, several)


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("docker run --gpus all img python t.py", "docker run -v /a:/a -v /b:/b:ro -e A -e B"),
        ("sudo podman run img", "podman run -v /a:/a -v /b:/b:ro -e A -e B"),
        ("apptainer exec img.sif python t.py", "apptainer --bind /a,/b"),
        ("singularity run img", "singularity --bind /a,/b"),
        ("docker build .", ""),
        ("python t.py", ""),
        ("nerdctl compose run x", "nerdctl run -v /a:/a -v /b:/b:ro -e A -e B"),
        ("apptainer shell x", ""),
    ],
)
def test_what_a_container_is_told_to_measure_inside(line: str, options: str) -> None:
    assert container_options(line.split(), ["/a", "/b"], ["A", "B"]) == options
