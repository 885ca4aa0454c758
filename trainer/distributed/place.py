"""Who started this process, and which of its peers it is: read from the environment alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trainer.config import Config, UsageError


@dataclass(frozen=True, slots=True)
class Place:
    """This process among its peers, and why we think so. `told_local_rank`: its place on its host, where a launcher gave one."""

    rank: int
    world_size: int
    told_local_rank: int | None
    reason: str


def detect(env: Mapping[str, str], config: Config) -> Place:
    """Finds this process's place from its environment.

    A launcher's own variables win over SLURM's, because torchrun often runs inside a SLURM task.

    Raises:
        UsageError: half of what a launcher sets is there, srun is missing, or --single_gpu contradicts it.
    """
    place = _detect(env, config)
    if config.single_gpu and place.world_size > 1:
        raise UsageError(
            f"--single_gpu, but {place.reason} started {place.world_size} ranks: start one process"
        )
    return place


def _detect(env: Mapping[str, str], config: Config) -> Place:
    if "RANK" in env and "WORLD_SIZE" in env:
        given = config.local_rank if config.local_rank >= 0 else None
        local = _number(env, "LOCAL_RANK") if "LOCAL_RANK" in env else given
        how = "torchrun" if "TORCHELASTIC_RUN_ID" in env else "RANK and WORLD_SIZE in the environment"
        rank, world = _number(env, "RANK"), _number(env, "WORLD_SIZE")
        if rank >= world:
            raise UsageError(
                f"RANK={rank} with WORLD_SIZE={world} in the environment: ranks count from 0 to WORLD_SIZE - 1"
            )
        return Place(rank, world, local, how)
    if "RANK" in env or ("WORLD_SIZE" in env and env["WORLD_SIZE"] != "1"):
        raise UsageError(
            "of RANK and WORLD_SIZE only one is set: set both (and MASTER_ADDR, MASTER_PORT), or neither"
        )
    tasks = _number(env, "SLURM_NTASKS", 1)
    if "SLURM_PROCID" in env and tasks > 1:
        # A batch script runs once, on the first node, and has no step; each task of srun has (sbatch(1), srun(1): SLURM_STEP_ID).
        # The shell of salloc may be a step of one task that keeps the job's count (slurm.conf(5): use_interactive_step).
        in_step = _number(env, "SLURM_STEP_NUM_TASKS", tasks)
        if "SLURM_STEP_ID" not in env or in_step == 1:
            raise UsageError(
                f"SLURM gave this job {tasks} tasks, but a batch script or an interactive shell starts only one: "
                "put srun before the command, or ask for one task"
            )
        local = _number(env, "SLURM_LOCALID") if "SLURM_LOCALID" in env else None
        return Place(_number(env, "SLURM_PROCID"), in_step, local, "SLURM (srun)")
    return Place(0, 1, 0, "hand, as a single process")


def slurm_master(env: Mapping[str, str]) -> tuple[str, str]:
    """Address and port at which the tasks of a SLURM job can meet: the first node, a port from the job id."""
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "127.0.0.1"
    first = re.sub(r"\[(\d+)[^\]]*\]", r"\1", nodes)
    port = 20000 + _number(env, "SLURM_JOB_ID", 0) % 10000
    return first.split(",")[0], str(port)


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name)
    if text is None and default is not None:
        return default
    # SLURM writes lists such as 2(x3); only its first number is ours.
    match = re.match(r"\d+", text or "")
    if match is None:
        raise UsageError(f"{name}={text!r} in the environment is not a number: unset it or correct it")
    return int(match[0])
