"""A common interface to whatever places jobs on machines: SLURM, Kubernetes or nothing. CONTRIBUTING.md says how to add one.

A scheduler provides this process's place among its job's nodes, the job's time limit, the advance warning it gives,
and the exit code that requests a requeue. These come from the environment; queries are sent only when needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from supervisor.policy import EXIT_DO_NOT_REQUEUE, EXIT_FAILED
from supervisor.text.patterns import host_names


@dataclass(frozen=True, slots=True)
class Place:
    """This node's place among the nodes of its job.

    Attributes:
        node_rank: 0-based; node 0 hosts the rendezvous.
        nodes: number of nodes in the job, or in the step within it.
        names: the scheduler's names for all nodes in rank order, or empty if there is no list.
        tasks_here: number of processes like this one that the scheduler started on this node.
        started_on_each: whether it was started on every node (srun) rather than just once (a batch script, a shell).
        step: the step number, or empty if there is none.
        why: where these values came from, as text for the user.
    """

    node_rank: int
    nodes: int
    names: tuple[str, ...] = ()
    tasks_here: int = 1
    started_on_each: bool = False
    step: str = ""
    why: str = ""

    @property
    def master(self) -> str | None:
        """The name of node 0, or None if there is no list of names."""
        return self.names[0] if self.names else None

    @property
    def name(self) -> str | None:
        """The scheduler's name for this node, or None if it is not listed."""
        return self.names[self.node_rank] if self.node_rank < len(self.names) else None


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The scheduler that started this process or would restart its job. The base class stands for a local machine or ssh host.

    Attributes:
        name: display name such as ``SLURM``, or empty if there is no scheduler.
        job: the number of the job this process belongs to, or None outside a job.
        place: this process's place among its job's nodes, or None outside a job.
        final_code: the exit code for a failure that would recur.
        starts: how many times the scheduler has started this job before.
        detach_warning: why a detached supervisor would not survive the shell here, or None if it would.
    """

    name: str = ""
    job: str | None = None
    place: Place | None = None
    final_code: int = EXIT_FAILED
    starts: int = 0
    detach_warning: str | None = None
    end_t: float | None = None
    """When the scheduler will terminate the job, in seconds since 1970, or None if there is no limit."""

    def time_left_s(self, now: float) -> float | None:
        """Return the seconds left at `now` (seconds since 1970) until the job's end, or None if there is no limit."""
        return None if self.end_t is None else self.end_t - now

    def end_of(self, job: str) -> str:
        """Return the state of a job the scheduler is terminating, such as ``TIMEOUT``, or "" if unknown."""
        del job
        return ""


# -- SLURM, read from the environment of its jobs
# Source: "OUTPUT ENVIRONMENT VARIABLES" in srun(1) and sbatch(1). A batch script, and the shell of ``salloc``, run once on one node.
# Only a task of ``srun`` has SLURM_STEP_ID. Its SLURM_NODEID counts within its step.

ASK_S: Final = 20.0
END_S: Final = 5.0
"""Query timeout while a job is being terminated. By default, SLURM sends SIGKILL 30 s after SIGTERM (KillWait)."""


@dataclass(frozen=True, slots=True)
class Slurm(Scheduler):
    """SLURM, as seen from inside one of its jobs."""

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Slurm:
        """Read SLURM's variables. SLURM_RESTART_COUNT is unset on a first start; SLURM_JOB_END_TIME requires SLURM 23.02."""
        return cls(
            name="SLURM",
            job=env["SLURM_JOB_ID"],
            place=_place_in_slurm(env),
            final_code=EXIT_DO_NOT_REQUEUE,  # the batch script exits with this code
            starts=_number(env.get("SLURM_RESTART_COUNT")) or 0,
            # The end of a step kills its processes (ProctrackType in slurm.conf(5)).
            detach_warning="this is a SLURM job: its step's end kills a detached keeper; use --no-ui in the batch script",
            end_t=_number(env.get("SLURM_JOB_END_TIME")),
        )

    def end_of(self, job: str) -> str:
        """Return why a COMPLETING job is being terminated, according to its reason code (JOB REASON CODES in squeue(1))."""
        return "TIMEOUT" if _asked(job, "%r", END_S) == "TimeLimit" else ""


def scheduler_asked(job: str) -> str:
    """Return a job's state from squeue, or "" if unknown or already purged (minutes after it finished; see MinJobAge)."""
    return _asked(job, "%T", ASK_S)


def _place_in_slurm(env: Mapping[str, str]) -> Place:
    """Return this process's place among the nodes of its step or, outside a step, of its job."""
    in_step = "SLURM_STEP_ID" in env
    names = host_names((in_step and env.get("SLURM_STEP_NODELIST")) or env.get("SLURM_JOB_NODELIST", ""))
    told = (in_step and env.get("SLURM_STEP_NUM_NODES")) or env.get("SLURM_JOB_NUM_NODES")
    nodes = _number(told or env.get("SLURM_NNODES")) or len(names) or 1
    tasks = _number((in_step and env.get("SLURM_STEP_NUM_TASKS")) or env.get("SLURM_NTASKS"))
    rank = (_number(env.get("SLURM_NODEID")) or 0) if in_step else 0
    job = f"SLURM job {env['SLURM_JOB_ID']}"
    where = f"node {rank} of {nodes} in step {env.get('SLURM_STEP_ID')} of {job}"
    return Place(
        node_rank=rank,
        nodes=nodes,
        names=names,
        tasks_here=-(-(tasks or nodes) // nodes) if in_step else 1,
        started_on_each=in_step,
        step=env.get("SLURM_STEP_ID", ""),
        why=where if in_step else f"{job}, once for its {nodes} nodes",
    )


def _asked(job: str, fields: str, bound_s: float) -> str:
    """Return what squeue says about a job within `bound_s` seconds, or "" if it fails."""
    from supervisor.cluster.slurm.programs import JOB, SlurmError, ask

    if not JOB.fullmatch(job):
        return ""
    try:
        return " ".join(ask(["squeue", "-h", "-j", job, "-o", fields], bound_s=bound_s).split())
    except SlurmError:
        return ""


# -- a pod of a Kubernetes JobSet, one per node, from the variables in configs/cluster/hand-off/jobset.yaml
# Source: https://jobset.sigs.k8s.io (v1alpha2: labels of pods, names of hosts, restarts) and JOB_COMPLETION_INDEX of Indexed Jobs. No
# code here calls the API server. The manifest defines the reaction to each exit code.

NAME, UID, ROLE = "JOBSET_NAME", "JOBSET_UID", "JOBSET_ROLE"
NODES, RESTARTS, INDEX = "JOBSET_NODES", "JOBSET_RESTARTS", "JOB_COMPLETION_INDEX"


@dataclass(frozen=True, slots=True)
class JobSetPod(Scheduler):
    """Kubernetes, as seen from a JobSet pod. Pods get SIGTERM before being moved; a failed job restarts as a whole."""

    @staticmethod
    def is_here(env: Mapping[str, str]) -> bool:
        """Check whether a process with this environment is running in a JobSet pod."""
        return bool(env.get(NAME)) and INDEX in env

    @classmethod
    def of(cls, env: Mapping[str, str]) -> JobSetPod:
        """Read the JobSet's variables. The job name includes the uid, because a JobSet recreated under the same name is a new job."""
        name, nodes = env[NAME], _number(env.get(NODES)) or 1
        host = f"{name}-{env.get(ROLE) or 'node'}-0"
        rank = _number(env.get(INDEX)) or 0
        return cls(
            name="Kubernetes",
            job=f"{name}-{env.get(UID, '')[:8]}".strip("-"),
            place=Place(
                node_rank=rank,
                nodes=nodes,
                names=tuple(f"{host}-{index}.{name}" for index in range(nodes)),
                started_on_each=True,
                why=f"node {rank} of {nodes} in JobSet {name}",
            ),
            final_code=EXIT_DO_NOT_REQUEUE,
            starts=_number(env.get(RESTARTS)) or 0,
            detach_warning="this is a pod: its end kills a detached keeper; use --no-ui",
        )


def scheduler_of(env: Mapping[str, str]) -> Scheduler:
    """Return the scheduler of the job that a process with this environment belongs to."""
    if env.get("SLURM_JOB_ID"):
        return Slurm.of(env)
    return JobSetPod.of(env) if JobSetPod.is_here(env) else Scheduler()


def _number(text: str | None) -> int | None:
    """Parse a leading number, such as 2 in ``2(x3)`` (SLURM's notation for 2,2,2). Return None if there is none."""
    match = re.match(r"\d{1,18}", text or "", re.ASCII)
    return int(match[0]) if match else None
