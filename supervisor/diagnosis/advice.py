"""What to do next, with the run's own values in it."""

from __future__ import annotations

import re

from supervisor.diagnosis.classes import class_texts
from supervisor.diagnosis.evidence import JobEvidence
from supervisor.run.failures import Action, FailureClass, Reason

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "bytes": 1}


def _size(text: str, pattern: str) -> float | None:
    match = re.search(pattern.replace("SIZE", r"([\d.]+) (KiB|MiB|GiB|TiB|bytes)"), text)
    return float(match.group(1)) * _UNITS[match.group(2)] if match else None


def is_fragmented(text: str) -> bool:
    """Whether a CUDA message says that much more is reserved than allocated, so that the allocator helps first."""
    tried = _size(text, "Tried to allocate SIZE")
    idle = _size(text, "SIZE is reserved by PyTorch but unallocated")
    if idle is None:
        allocated = _size(text, "SIZE already allocated")
        reserved = _size(text, "SIZE (?:reserved in total by PyTorch|cached)")
        idle = reserved - allocated if reserved is not None and allocated is not None else None
    return tried is not None and idle is not None and idle >= max(2 * tried, 1 << 30)


def other_user(text: str, job: JobEvidence) -> str | None:
    """The process of somebody else that holds the GPU's memory, from the message and the machine's records."""
    if job.present.other_gpu_users:
        return job.present.other_gpu_users[0]
    match = re.search(r"Process (\d+) has ([\d.]+ [KMGT]iB) memory in use", text)
    if match and "this process has" in text and int(match.group(1)) not in job.present.own_pids:
        return f"process {match.group(1)} ({match.group(2)})"
    return None


def action_for(failure: FailureClass, reason: Reason | None, text: str, job: JobEvidence) -> Action:
    """The action that fits best; policy decides."""
    match failure:
        case FailureClass.CUDA_OOM if is_fragmented(text) and not job.present.allocator_set:
            return Action.SET_ALLOCATOR
        case FailureClass.HOST_OOM if reason is Reason.ALLOCATOR:
            return Action.REDUCE_BATCH
        case FailureClass.TERMINATED if reason is Reason.USER:
            return Action.STOP
        case FailureClass.TERMINATED if reason is Reason.OUTSIDE:
            return Action.RESTART
        case FailureClass.DATALOADER_WORKER if reason in (Reason.KILLED, Reason.SEGFAULT):
            return Action.RESTART
        case FailureClass.WORKER_CRASH if reason is Reason.AT_EXIT:
            return Action.NONE
        case _:
            return class_texts()[failure].action


def advice_for(failure: FailureClass, reason: Reason | None, text: str, job: JobEvidence) -> tuple[str, ...]:
    """Advice, the most particular first."""
    own = _particular(failure, reason, text, job)
    return tuple(dict.fromkeys((*own, *class_texts()[failure].advice)))


def _particular(failure: FailureClass, reason: Reason | None, text: str, job: JobEvidence) -> list[str]:
    present = job.present
    match failure:
        case FailureClass.CUDA_OOM:
            return _memory(text, job)
        case FailureClass.HOST_OOM if reason is Reason.ALLOCATOR:
            return _smaller_batch(job)
        case FailureClass.PORT_IN_USE:
            taken = present.port or _number(text, r"port:? ?`?(\d{2,5})|\]:(\d{2,5})|:(\d{4,5})\b")
            said = [f"Port {taken} is taken."] if taken else []
            return (
                [*said, f"Port {present.free_port} is free: `--master-port {present.free_port}`."]
                if present.free_port
                else said
            )
        case FailureClass.IMPORT_ERROR:
            return _missing_module(text)
        case FailureClass.MISSING_FILE:
            if match := re.search(
                r"(?:No such file or directory: |can't open file |: )['\"]([^'\"]+)['\"]", text
            ):
                return [f"Not there: {match.group(1)}"]
            if match := re.search(
                r"(\S*/\S+) (?:does not exist|not found)|(?:does not exist|not found|missing)[: ]+(\S*/\S+)",
                text,
            ):
                return [f"Not there: {match.group(1) or match.group(2)}"]
        case FailureClass.DISK_FULL:
            if job.machine.disk_free_bytes is not None:
                where = job.machine.disk_path or "the disk"
                return [f"{where} has {job.machine.disk_free_bytes / (1 << 30):.1f} GiB free."]
        case FailureClass.LIBUV:
            return ["Set USE_LIBUV=0: this build has no libuv."]
        case FailureClass.USAGE_ERROR if "--local_rank" in text or "--local-rank" in text:
            return [
                "Since 2.0 the old launcher passes --local-rank: accept both spellings, or read LOCAL_RANK with torchrun."
            ]
        case FailureClass.RENDEZVOUS:
            if match := re.search(r"(\d+)/(\d+) clients joined", text):
                return [f"{match.group(1)} of {match.group(2)} ranks came: look at the nodes that did not."]
        case FailureClass.CUDA_ERROR if "invalid device ordinal" in text:
            return [
                "More processes a node than visible GPUs: lower --nproc-per-node or check CUDA_VISIBLE_DEVICES."
            ]
        case FailureClass.HOST_OOM | FailureClass.SHM_EXHAUSTED | FailureClass.TERMINATED:
            return []
        case _:
            return []
    return []


def _smaller_batch(job: JobEvidence) -> list[str]:
    present = job.present
    if present.micro_batch is None:
        return []
    now = f"Reduce {present.batch_knob} (now {present.micro_batch})"
    if present.next_micro_batch is not None:
        return [f"{now}: {present.next_micro_batch} divides the global batch."]
    return [f"{now}."]


def _memory(text: str, job: JobEvidence) -> list[str]:
    said: list[str] = []
    if is_fragmented(text) and not job.present.allocator_set:
        said.append(
            "Much is reserved but not allocated: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True first."
        )
    if user := other_user(text, job):
        said.append(f"Another process uses this GPU: {user}.")
    return said + _smaller_batch(job)


def _number(text: str, pattern: str) -> int | None:
    match = re.search(pattern, text)
    return int(next(group for group in match.groups() if group)) if match else None


def _missing_module(text: str) -> list[str]:
    if match := re.search(r"No module named ['\"]?([\w.]+)", text):
        return [f"Install {match.group(1).split('.')[0]} into the interpreter that runs the job."]
    if match := re.search(r"(lib\w[\w.+-]*\.so[\w.]*): cannot open shared object", text):
        return [
            f"{match.group(1)} is not found: check LD_LIBRARY_PATH and the CUDA version that the package was built for."
        ]
    if "undefined symbol" in text:
        return ["The extension was built against another PyTorch: reinstall or rebuild it."]
    return []
