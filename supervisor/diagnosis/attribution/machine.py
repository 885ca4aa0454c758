"""Evidence beyond text, weighed against what the logs say: error files, the machine's records, our own doing."""

from __future__ import annotations

import re

from supervisor.diagnosis.cause.root import Case, Root
from supervisor.diagnosis.evidence import ErrorFile
from supervisor.diagnosis.scan.signature_tables import Role, Signatures
from supervisor.run.failures import FailureClass, Reason
from supervisor.text.decode import clean

_HARD_XIDS = frozenset((46, 48, 54, 61, 62, 64, 74, 79, 94, 95, 109, 110, 119, 120, 140, 143))
_SLURM = {
    "OUT_OF_MEMORY": (FailureClass.HOST_OOM, Reason.SLURM),
    "TIMEOUT": (FailureClass.TERMINATED, Reason.TIME_LIMIT),
    "PREEMPTED": (FailureClass.TERMINATED, Reason.PREEMPTED),
    "NODE_FAIL": (FailureClass.TERMINATED, Reason.NODE_FAIL),
    "CANCELLED": (FailureClass.TERMINATED, Reason.USER),
}
_OPEN = (
    FailureClass.UNKNOWN,
    FailureClass.HEALTHY,
    FailureClass.NCCL_ERROR,
    FailureClass.NCCL_TIMEOUT,
    FailureClass.RENDEZVOUS,
)


def weigh(case: Case, root: Root, signatures: Signatures) -> Root:
    """Correct or confirm a root by what is known beside the logs."""
    root = _from_error_files(case, root, signatures)
    root = _from_machine(case, root)
    root = _at_exit(case, root)
    if case.job.stop_reason is not None and not (
        root.chosen is not None
        and root.chosen.is_cause
        and root.failure is not FailureClass.TERMINATED
        and root.chosen.strength >= 60
    ):
        return Root(FailureClass.TERMINATED, Reason.USER, None, (), None, "", 0, "", 0.97)
    if root.failure is FailureClass.HEALTHY and (case.job.launcher_exit or 0) != 0:
        return root._replace(failure=FailureClass.UNKNOWN, confidence=0.5)
    if (
        case.job.first_dead_rank is not None
        and root.rank is None
        and not root.ranks
        and root.failure not in (FailureClass.HEALTHY, FailureClass.TERMINATED)
    ):
        rank = case.job.first_dead_rank
        return root._replace(rank=rank, ranks=(rank,))
    return root


def _from_error_files(case: Case, root: Root, signatures: Signatures) -> Root:
    """Where the logs name no cause, an error file may: the earliest one that is not about a peer."""
    if root.chosen is not None and root.chosen.is_cause:
        return root
    if root.failure in (FailureClass.TERMINATED, FailureClass.HANG):
        return root
    if not case.job.error_files:
        return root
    from supervisor.diagnosis.attribution.error_file import (
        read_error_file,  # json: 1.3 ms that other jobs need not pay
    )

    best: tuple[float, int, Root] | None = None
    for place, file in enumerate(case.job.error_files):
        said = read_error_file(file.content)
        if said is None or not said.message:
            continue
        found = _judge_message(case, file, said.message, signatures)
        stamp = float(said.timestamp_s or 0)
        if found is not None and (best is None or (stamp, place) < best[:2]):
            best = (stamp, place, found)
    return best[2] if best is not None else root


# What a SIGKILL without any text is worth (see `settle`).
BARE_KILL = 0.7
# The signature of "DataLoader worker (pid 411) is killed by signal: Killed".
_LOADER_KILLED = "dl-worker-killed"


def _judge_message(case: Case, file: ErrorFile, message: str, signatures: Signatures) -> Root | None:
    text = clean(message.split("\n", maxsplit=1)[0].encode("utf-8", "replace"))
    hits = [entry for entry in signatures.entries if re.search(entry.regex, text)]
    if any(entry.role is not Role.CAUSE for entry in hits if entry.role is not Role.CONFIRMATION):
        return None
    causes = [entry for entry in hits if entry.role is Role.CAUSE]
    if not causes or "SignalException" in text:
        return None
    top = max(causes, key=lambda entry: entry.strength)
    rank = file.origin.rank
    if rank is None and file.origin.local_rank is not None:
        rank = case.ranks.from_local(file.origin.local_rank, file.origin.node)
    return Root(
        top.failure, top.reason, rank, (rank,) if rank is not None else (), file.origin.node, file.path, 1, text,
        0.94 if top.strength >= 76 else 0.9,
    )  # fmt: skip


def _from_machine(case: Case, root: Root) -> Root:
    machine = case.job.machine
    weak = root.failure in _OPEN or (
        root.chosen is None
        and root.failure in (FailureClass.WORKER_CRASH, FailureClass.HOST_OOM, FailureClass.TERMINATED)
    )
    if machine.cgroup_oom_kills:
        killed = root.reason is Reason.KERNEL_KILL or any(item.code == -9 for item in case.launch.exits)
        if weak or killed:
            return root._replace(failure=FailureClass.HOST_OOM, reason=Reason.CGROUP_KILL, confidence=0.96)
    if machine.cgroup_oom_kills == 0 and root.reason is Reason.KERNEL_KILL and root.confidence <= BARE_KILL:
        # oom_kill in memory.events counts kills by any OOM killer (Linux, cgroup-v2.rst): none, so it was
        # somebody else who sent the SIGKILL.
        return root._replace(failure=FailureClass.WORKER_CRASH, reason=Reason.SIGNAL, confidence=0.85)
    nobody_short = machine.cgroup_oom_kills == 0 and not machine.kernel_log
    if nobody_short and root.chosen is not None and root.chosen.signature == _LOADER_KILLED:
        # PyTorch's line says SIGKILL and no more: as above, somebody else sent it.
        return root._replace(failure=FailureClass.DATALOADER_WORKER, reason=Reason.KILLED, confidence=0.85)
    if machine.slurm_state is not None and (known := _SLURM.get(machine.slurm_state.split()[0].rstrip("+"))):
        failure, reason = known
        if weak:
            path, line, text = (root.path, root.line, root.text) if root.failure is failure else ("", 0, "")
            return root._replace(
                failure=failure, reason=reason, path=path, line=line, text=text, confidence=0.95
            )
    if (
        machine.shm_used_share is not None
        and machine.shm_used_share > 0.98
        and root.failure in (FailureClass.DATALOADER_WORKER, FailureClass.WORKER_CRASH)
    ):
        return root._replace(failure=FailureClass.SHM_EXHAUSTED, reason=None, confidence=0.93)
    if any(xid in _HARD_XIDS for _, xid in machine.gpu_xids) and (
        weak or root.failure is FailureClass.CUDA_ERROR
    ):
        return root._replace(failure=FailureClass.GPU_FAULT, reason=None, confidence=0.95)
    return root


def _at_exit(case: Case, root: Root) -> Root:
    """An abort after the last step or the final checkpoint is the interpreter's, not training's."""
    job = case.job
    finished = job.final_checkpoint or (
        job.total_steps is not None and job.last_step is not None and job.last_step >= job.total_steps
    )
    if not finished:
        finished = any(
            hit.signature.id == "end-success" and hit.line < root.line and case.scans[hit.source].path == root.path
            for scan in case.scans for hit in scan.hits
        )  # fmt: skip
    aborted = root.failure is FailureClass.WORKER_CRASH or (
        root.failure is FailureClass.NCCL_ERROR and any(item.code == -6 for item in case.launch.exits)
    )
    if finished and aborted:
        return root._replace(failure=FailureClass.WORKER_CRASH, reason=Reason.AT_EXIT, confidence=0.93)
    return root
