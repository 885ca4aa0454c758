"""Ranks that a launcher of the user's own starts, read from its arguments and never guessed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from supervisor.job.arguments.command_line import read_launch
from supervisor.job.arguments.run_arguments import parse_run_argv
from supervisor.job.config.resolve import JobInputs, resolve_job
from supervisor.keeper.recording.start_events import world_size_of
from tests.keeper.fakes import job_of


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ("accelerate launch --multi_gpu --num_processes 2 train.py --num_processes 9", 2),
        ("accelerate launch --cpu --num_processes 2 train.py", None),
        ("accelerate launch --num_processes 2 train.py --cpu", 2),
        ("accelerate launch --cpu --mpirun_hostfile hosts --num_processes 2 train.py", None),
        ("/opt/env/bin/accelerate launch --num-processes=4 src/train.py", 4),
        ("deepspeed --num_gpus 8 train.py --deepspeed ds.json", 8),
        ("python -m torch.distributed.run --nproc_per_node=2 --nnodes 1 train.py", 2),
        ("torchrun --nproc-per-node gpu train.py", None),
        ("accelerate launch --num_machines 2 --num_processes 16 train.py", None),
        ("deepspeed --hostfile hosts --num_gpus 8 train.py", None),
        ("make train --num_processes 2", None),
        ("accelerate launch --num_processes 0 train.py", None),
        ("accelerate-launch --num_processes 2 train.py", 2),
        ("python -m accelerate.commands.launch --num_processes 2 train.py", 2),
        ("deepspeed --num_nodes 2 --num_gpus 8 train.py", None),
        ("torchrun --nproc-per-node 4 --nnodes 2 train.py", None),
        ("mpirun -np 4 python train.py", 4),
        ("mpirun -n 3 python train.py", 3),
        ("mpiexec -n 5 python train.py", 5),
        ("srun -n 8 python train.py", 8),
        ("srun --ntasks=8 --nodes=2 python train.py", 8),
        ("srun --ntasks-per-node=4 -N 2 python train.py", None),
        ("composer -n 4 train.py", 4),
        ("composer --nproc 4 train.py", 4),
        ("composer --world_size 8 --nproc 4 train.py", None),
    ],
)
def test_ranks_of_a_command(words: str, ranks: int | None) -> None:
    assert read_launch(words.split()).ranks == ranks


def test_a_run_begins_with_the_ranks_of_its_launcher(tmp_path: Path) -> None:
    def world(*words: str) -> int | None:
        parsed = parse_run_argv(["--", *words])
        job = resolve_job(JobInputs(parsed, {}, str(tmp_path)))
        record = msgspec.structs.replace(job_of(tmp_path, *words), job=job)
        return world_size_of(record.job)

    assert world("torchrun", "--nproc-per-node", "4", "train.py") == 4
    assert world("make", "train") is None, "it may start any number of its own"
    assert world("python", "train.py") == 1
