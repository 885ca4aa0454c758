"""Advice on this one failure: the names in its message, and the run's present values."""

from __future__ import annotations

import re

from supervisor.diagnosis.evidence import JobEvidence, Present
from supervisor.run.failures import FailureClass, Reason
from supervisor.text.numbers import whole

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "bytes": 1}


def _size(text: str, pattern: str) -> float | None:
    match = re.search(pattern.replace("SIZE", r"(\d{1,9}(?:\.\d{1,9})?) (KiB|MiB|GiB|TiB|bytes)"), text)
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
    match = re.search(r"Process (\d+) has ([\d.]+ [KMGT]iB) memory in use", text)
    if match and "this process has" in text and whole(match.group(1)) not in job.present.own_pids:
        user = job.present.user_of(whole(match.group(1))) if job.present.user_of is not None else None
        return f"process {match.group(1)}{f' of {user}' if user else ''} ({match.group(2)})"
    return job.present.other_gpu_users[0] if job.present.other_gpu_users else None


def particulars(failure: FailureClass, reason: Reason | None, text: str, job: JobEvidence) -> list[str]:
    """What can be said of this one failure: names out of its message, values out of the run.

    `text` is the causing line and a few below it; only messages known to be long are read past the first.
    """
    line = text.split("\n", 1)[0]
    match failure:
        case FailureClass.CUDA_OOM:
            return _memory(line, job)
        case FailureClass.HOST_OOM:
            return _host_memory(reason, job)
        case FailureClass.PORT_IN_USE:
            return _port(line, job)
        case FailureClass.IMPORT_ERROR:
            return _missing_module(line)
        case FailureClass.MISSING_FILE:
            return _missing_file(line)
        case FailureClass.DISK_FULL | FailureClass.PERMISSION_DENIED:
            return _path(line, job)
        case FailureClass.DDP_MISMATCH:
            return _parameters(text)
        case FailureClass.AUTH_OR_HUB:
            return _hub(line)
        case FailureClass.DATALOADER_WORKER | FailureClass.SHM_EXHAUSTED:
            return _workers(failure, reason, line, job)
        case FailureClass.RENDEZVOUS:
            if found := re.search(r"(\d+)/(\d+) clients joined", line):
                return [f"{found[1]} of {found[2]} ranks came: look at the nodes that did not."]
        case FailureClass.USAGE_ERROR if "--local_rank" in line or "--local-rank" in line:
            return [
                "Since 2.0 the old launcher passes --local-rank: accept both spellings, or read LOCAL_RANK with torchrun."
            ]
        case FailureClass.USAGE_ERROR:
            return _misplaced(line, job.present)
        case FailureClass.CUDA_ERROR if "invalid device ordinal" in line:
            return [
                "More processes a node than visible GPUs: lower --nproc-per-node or check CUDA_VISIBLE_DEVICES."
            ]
        case _:
            pass
    return []


def _misplaced(line: str, present: Present) -> list[str]:
    """A flag that the script refused because it was meant for `stoker run`."""
    refused = line.partition("error: ")[2] or line
    words = {word.partition("=")[0].strip("'\"`:,.") for word in refused.split()}
    return [
        f"`{name}` is stoker's: put it before {present.entry}"
        for name in present.behind_entry
        if name in words
    ]


def _port(line: str, job: JobEvidence) -> list[str]:
    present = job.present
    taken = present.port or _number(line, r"port:? ?`?(\d{2,5})|\]:(\d{2,5})|:(\d{4,5})\b")
    said = [f"Port {taken} is taken."] if taken else []
    if present.free_port:
        said.append(f"Port {present.free_port} is free: `--master-port {present.free_port}`.")
    return said


def _missing_file(line: str) -> list[str]:
    found = re.search(
        r"(?:No such file or directory: |can't open file |: )b?['\"]([^'\"]+)['\"]"
        r"|(\S*/\S+) (?:does not exist|not found)|(?:does not exist|not found|missing)[: ]+(\S*/\S+)",
        line,
    )
    return [f"Not there: {found[1] or found[2] or found[3]}"] if found else []


def _path(line: str, job: JobEvidence) -> list[str]:
    said = []
    if found := re.search(r"(?:Errno \d+\] [\w -]+|denied): ['\"]([^'\"]+)['\"]", line):
        said.append(f"It was to be written or read: {found[1]}")
    if job.machine.disk_free_bytes is not None:
        where = job.machine.disk_path or "the disk"
        said.append(f"{where} has {job.machine.disk_free_bytes / (1 << 30):.1f} GiB free.")
    return said


def _parameters(text: str) -> list[str]:
    """What DistributedDataParallel names in the message of an unfinished reduction (reducer.cpp, TORCH_DISTRIBUTED_DEBUG)."""
    if found := re.search(r"[Pp]arameters which did not receive grad for rank (\d+): ([\w., ]{1,400})", text):
        return [f"No gradient on rank {found[1]} for {found[2].strip()}."]
    if found := re.search(
        r"Parameter indices which did not receive grad for rank (\d+): ?([\d ]{1,200})", text
    ):
        places = ", ".join(found[2].split())
        return [
            (
                f"No gradient on rank {found[1]} for the parameters at {places} of model.parameters(); "
                "TORCH_DISTRIBUTED_DEBUG=DETAIL says their names."
            )
        ]
    if found := re.search(
        r"Parameter at index (\d+)(?: with name ([\w.]+))? has been marked as ready twice", text
    ):
        return [f"Used twice in one backward: {found[2] or f'the parameter at {found[1]}'}."]
    return []


def _hub(line: str) -> list[str]:
    if re.search(r"wandb|WANDB", line):
        return [
            "wandb: run `wandb login` on this node or set WANDB_API_KEY; WANDB_MODE=offline goes on without."
        ]
    if found := re.search(r"huggingface\.co/(?:api/(?:models|datasets)/|datasets/)?([\w.-]+/[\w.-]+)", line):
        return [
            f"Refused or not reached: {found[1]}. Accept its terms on the hub, and set HF_TOKEN on each node."
        ]
    if "429" in line:
        return ["The rate limit was reached: let one rank download, the others read its cache."]
    return []


def _workers(failure: FailureClass, reason: Reason | None, line: str, job: JobEvidence) -> list[str]:
    said = []
    if job.machine.shm_used_share is not None:
        said.append(f"Shared memory (/dev/shm) was {job.machine.shm_used_share:.0%} full.")
    elif failure is FailureClass.SHM_EXHAUSTED and "us error" in line:
        said.append("A bus error in a data worker: see `df -h /dev/shm` while it runs.")
    if reason is Reason.SEGFAULT:
        said.append(
            "A crash in native code, perhaps of a library that does not bear fork: multiprocessing_context='spawn'."
        )
    elif reason is Reason.KILLED:
        said.append(f"Lower {_workers_now(job)}: (cores of the node) / (ranks on it), less one, is enough.")
    elif "timed out" in line:
        said.append("Raise the DataLoader's timeout=, and keep its workers: persistent_workers=True.")
    return said


def _workers_now(job: JobEvidence) -> str:
    now = job.present.workers
    return job.present.workers_knob if now is None else f"{job.present.workers_knob} (now {now})"


def _host_memory(reason: Reason | None, job: JobEvidence) -> list[str]:
    if reason is Reason.ALLOCATOR:
        return _smaller_batch("", job)
    if job.present.workers:
        return [
            f"Lower {_workers_now(job)}: each holds memory of its own; (cores of the node) / (ranks on it), less one, is enough."
        ]
    return _smaller_batch("", job)


def _smaller_batch(text: str, job: JobEvidence) -> list[str]:
    present = job.present
    if present.micro_batch is None:
        return []
    now = f"Reduce {present.batch_knob} (now {present.micro_batch})"
    smaller = _next_micro_batch(text, present)
    if smaller is not None:
        return [f"{now}: {smaller} divides the global batch."]
    return [f"{now}."]


def _next_micro_batch(text: str, present: Present) -> int | None:
    """The next that keeps the global batch, and by the message's numbers fits: as a restart would choose it."""
    batch = present.batch
    if batch is None:
        return present.next_micro_batch
    from supervisor.job.batch import next_smaller
    from supervisor.job.knobs.memory_message import memory_point

    point = memory_point(text, batch.micro_batch_per_rank, base_bytes=present.memory_base_bytes)
    smaller = next_smaller(batch, point)
    return smaller.micro_batch_per_rank if smaller is not None else None


def _memory(text: str, job: JobEvidence) -> list[str]:
    said: list[str] = []
    if is_fragmented(text) and not job.present.allocator_set:
        said.append(
            "Much is reserved but not allocated: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True first."
        )
    if user := other_user(text, job):
        said.append(f"Another process uses this GPU: {user}.")
    return said + _smaller_batch(text, job)


def _number(text: str, pattern: str) -> int | None:
    match = re.search(pattern, text)
    return whole(next(group for group in match.groups() if group)) if match else None


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
