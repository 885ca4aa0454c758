"""The one interface to what places jobs on machines; SLURM, Kubernetes and "none" are behind it (CONTRIBUTING.md shows how to add one).

A scheduler says where this process is among its job's nodes, how long it may run, how it warns before the end, and by which exit
code it is told to start the job again. It is read from an environment: nothing is asked before it is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from supervisor.policy import EXIT_DO_NOT_REQUEUE, EXIT_FAILED


@dataclass(frozen=True, slots=True)
class Place:
    """This node among the nodes of its job.

    Attributes:
        node_rank: from 0; node 0 is where the ranks meet.
        nodes: how many the job, or the step within it, has.
        names: the scheduler's names of all of them, in the order of their ranks; empty where it gave no list.
        tasks_here: how many processes like this one the scheduler started on this node.
        started_on_each: whether it was started on each node (srun), not once in all (a batch script, a shell).
        step: the number of the step that it was started as; empty: of none.
        why: how it is known, for people.
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
        """Name of node 0."""
        return self.names[0] if self.names else None

    @property
    def name(self) -> str | None:
        """This node's name at the scheduler."""
        return self.names[self.node_rank] if self.node_rank < len(self.names) else None


class Scheduler(Protocol):
    """What started this process, or would start its job again."""

    @property
    def name(self) -> str:
        """For people: ``SLURM``; empty for none."""

    @property
    def job(self) -> str | None:
        """The number of the job that this process is in; None outside of any."""

    @property
    def place(self) -> Place | None:
        """Where this process is among the nodes of its job; None outside of any."""

    @property
    def final_code(self) -> int:
        """The exit code of a failure that would come again."""

    @property
    def starts(self) -> int:
        """How many times it has started this job before."""

    def time_left_s(self, now: float) -> float | None:
        """Seconds until it ends the job, at `now` (seconds since 1970); None: it said no limit."""

    def detach_warning(self) -> str | None:
        """Why a detached supervisor would not outlive the shell here; None: it would."""

    def end_of(self, job: str) -> str:
        """The state that a job will have which it is ending now (``TIMEOUT``); empty: it gives no reason, or cannot be asked."""


@dataclass(frozen=True, slots=True)
class NoScheduler:
    """A machine of one's own, or hosts reached by ssh: nobody requeues, nobody limits."""

    name: str = ""
    job: str | None = None
    place: Place | None = None
    final_code: int = EXIT_FAILED
    starts: int = 0

    def time_left_s(self, now: float) -> float | None:
        """No limit."""
        del now
        return None

    def detach_warning(self) -> str | None:
        """Nothing that a scheduler would end."""
        return None

    def end_of(self, job: str) -> str:
        """No job is known."""
        del job
        return ""


def scheduler_of(env: Mapping[str, str]) -> Scheduler:
    """The scheduler whose job a process with this environment is in."""
    from supervisor.cluster.slurm.allocation import Slurm

    if Slurm.is_here(env):
        return Slurm(env)
    return JobSetPod.of(env) if JobSetPod.is_here(env) else NoScheduler()


def scheduler_asked(job: str) -> str:
    """The state that whoever numbers jobs here gives one; empty: nobody knows. For a process that is in no job itself."""
    from supervisor.cluster.slurm.allocation import Slurm

    return Slurm({}).state_of(job)


# -- a pod of a Kubernetes JobSet, one a node, read from what configs/cluster/hand-off/jobset.yaml sets
# Source: https://jobset.sigs.k8s.io (v1alpha2: labels of pods, names of hosts, restarts) and JOB_COMPLETION_INDEX of Indexed Jobs. Nothing
# asks the API server: what is to happen after an exit code stands in the manifest.

NAME, UID, ROLE = "JOBSET_NAME", "JOBSET_UID", "JOBSET_ROLE"
NODES, RESTARTS, INDEX = "JOBSET_NODES", "JOBSET_RESTARTS", "JOB_COMPLETION_INDEX"


@dataclass(frozen=True, slots=True)
class JobSetPod(NoScheduler):
    """Kubernetes, as a pod of a JobSet sees it: SIGTERM comes before a pod is moved, and a failed job is started again as a whole."""

    @staticmethod
    def is_here(env: Mapping[str, str]) -> bool:
        """Whether a process with this environment is in such a pod."""
        return bool(env.get(NAME)) and INDEX in env

    @classmethod
    def of(cls, env: Mapping[str, str]) -> JobSetPod:
        """From its variables. A JobSet that is made again under its name is another job: its uid is in the job's name."""
        name, nodes = env[NAME], max(_number(env.get(NODES)), 1)
        host = f"{name}-{env.get(ROLE) or 'node'}-0"
        rank = _number(env.get(INDEX))
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
            starts=_number(env.get(RESTARTS)),
        )

    def detach_warning(self) -> str | None:
        """A pod's processes end with its first one."""
        return "this is a pod: its end kills a detached keeper; use --no-ui"


def _number(text: str | None) -> int:
    return int(text) if text is not None and re.fullmatch(r"\d{1,9}", text, re.ASCII) else 0
