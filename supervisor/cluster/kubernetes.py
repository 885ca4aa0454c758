"""A pod of a Kubernetes JobSet, one a node, read from what configs/cluster/hand-off/jobset.yaml puts into its environment.

Source: https://jobset.sigs.k8s.io (v1alpha2: labels of pods, names of hosts, restarts) and JOB_COMPLETION_INDEX of Indexed Jobs. Nothing
asks the API server: what is to happen after an exit code stands in the manifest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from supervisor.cluster.scheduler import NoScheduler, Place
from supervisor.policy import EXIT_DO_NOT_REQUEUE

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
