"""The one interface to what places jobs on machines; SLURM, Kubernetes and "none" are behind it (CONTRIBUTING.md shows how to add one).

A scheduler says where this process is among its job's nodes, how long it may run, how it warns before the end, and by which exit
code it is told to start the job again. It is read from an environment: nothing is asked before it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from supervisor.policy import EXIT_FAILED


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
    from supervisor.cluster.kubernetes import JobSetPod

    return JobSetPod.of(env) if JobSetPod.is_here(env) else NoScheduler()


def scheduler_asked(job: str) -> str:
    """The state that whoever numbers jobs here gives one; empty: nobody knows. For a process that is in no job itself."""
    from supervisor.cluster.slurm.allocation import Slurm

    return Slurm({}).state_of(job)
