"""The SLURM job that a process is in, read from its environment.

Source: "OUTPUT ENVIRONMENT VARIABLES" in srun(1) and sbatch(1). A batch script, and the shell of ``salloc``, run once on one node;
only a task of ``srun`` has SLURM_STEP_ID, and its SLURM_NODEID counts within its step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from supervisor.cluster.scheduler import Place
from supervisor.cluster.slurm.commands import JOB, SlurmError, ask
from supervisor.policy import EXIT_DO_NOT_REQUEUE
from supervisor.text.hostlist import host_names

NAME: Final = "SLURM"
ASK_S: Final = 20.0
END_S: Final = 5.0
"""Between SIGTERM and SIGKILL SLURM leaves KillWait, 30 s by default."""


@dataclass(frozen=True, slots=True)
class Slurm:
    """SLURM, as a process within one of its jobs sees it; with an empty environment, as anybody else does."""

    env: Mapping[str, str]

    @staticmethod
    def is_here(env: Mapping[str, str]) -> bool:
        """Whether a process with this environment is in a job of SLURM's."""
        return bool(env.get("SLURM_JOB_ID"))

    @property
    def name(self) -> str:
        """For people."""
        return NAME

    @property
    def job(self) -> str | None:
        """The job's number."""
        return self.env.get("SLURM_JOB_ID") or None

    @property
    def final_code(self) -> int:
        """The batch script ends with this one."""
        return EXIT_DO_NOT_REQUEUE

    @property
    def starts(self) -> int:
        """SLURM_RESTART_COUNT: it is not set in a first start."""
        return number_in(self.env.get("SLURM_RESTART_COUNT")) or 0

    @property
    def place(self) -> Place | None:
        """This process's node among those of its step, else of its job."""
        if self.job is None:
            return None
        in_step = "SLURM_STEP_ID" in self.env
        names = host_names(
            (in_step and self.env.get("SLURM_STEP_NODELIST")) or self.env.get("SLURM_JOB_NODELIST", "")
        )
        told = (in_step and self.env.get("SLURM_STEP_NUM_NODES")) or self.env.get("SLURM_JOB_NUM_NODES")
        nodes = number_in(told or self.env.get("SLURM_NNODES")) or len(names) or 1
        tasks = number_in((in_step and self.env.get("SLURM_STEP_NUM_TASKS")) or self.env.get("SLURM_NTASKS"))
        rank = (number_in(self.env.get("SLURM_NODEID")) or 0) if in_step else 0
        where = f"node {rank} of {nodes} in step {self.env.get('SLURM_STEP_ID')} of SLURM job {self.job}"
        return Place(
            node_rank=rank,
            nodes=nodes,
            names=names,
            tasks_here=-(-(tasks or nodes) // nodes) if in_step else 1,
            started_on_each=in_step,
            step=self.env.get("SLURM_STEP_ID", ""),
            why=where if in_step else f"SLURM job {self.job}, once for its {nodes} nodes",
        )

    def time_left_s(self, now: float) -> float | None:
        """From SLURM_JOB_END_TIME (SLURM 23.02 and later set it; seconds since 1970)."""
        end = number_in(self.env.get("SLURM_JOB_END_TIME"))
        return None if end is None else end - now

    def detach_warning(self) -> str | None:
        """A step's processes end with it (ProctrackType in slurm.conf(5))."""
        return "this is a SLURM job: its step's end kills a detached keeper; use --no-ui in the batch script"

    def state_of(self, job: str) -> str:
        """As squeue says it; it forgets a job some minutes after its end (MinJobAge)."""
        return _asked(job, "%T", ASK_S)

    def end_of(self, job: str) -> str:
        """A job that is being ended is COMPLETING, and its reason is the one that ended it (JOB REASON CODES in squeue(1))."""
        return "TIMEOUT" if _asked(job, "%r", END_S) == "TimeLimit" else ""


def _asked(job: str, fields: str, bound_s: float) -> str:
    if not JOB.fullmatch(job):
        return ""
    try:
        return " ".join(ask(["squeue", "-h", "-j", job, "-o", fields], bound_s=bound_s).split())
    except SlurmError:
        return ""


def number_in(text: str | None) -> int | None:
    """The first number of ``2(x3)``, SLURM's form of 2,2,2; None where there is none."""
    match = re.match(r"\d{1,18}", text or "", re.ASCII)
    return int(match[0]) if match else None
