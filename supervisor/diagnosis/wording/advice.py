"""What to do next: the action that fits, and advice on this failure, with the run's own values, before the general one."""

from __future__ import annotations

import re
from typing import Final

from supervisor.diagnosis.evidence import JobEvidence, RunValues
from supervisor.diagnosis.wording.class_texts import class_texts
from supervisor.job.memory_fit import choose_smaller, memory_point
from supervisor.run.failures import Action, FailureClass, Reason
from supervisor.text.numbers import whole
from supervisor.text.patterns import Lazy

# Why a job ended that nothing in it failed for; what to do about it depends on who ended it.
_REQUEUED = frozenset((Reason.TIME_LIMIT, Reason.PREEMPTED, Reason.NODE_FAIL))
NO_STEP_ADVICE = "The script exited on its own. Its last lines, and the checkpoint it resumed from, show why it had nothing left to do."
_BY_REASON: Final = {
    Reason.NO_STEP: NO_STEP_ADVICE,
    Reason.ENDED_EARLY: NO_STEP_ADVICE,
    Reason.INSTRUMENT: "stoker's own measurements raised this, not the script: start it with --no-instrument, and report it.",
}
BARE_KILL_ADVICE = (
    "A SIGKILL leaves no message: check `dmesg` and the job's memory record (oom_kill in memory.events) at this "
    "time; without an entry there, a person or a scheduler sent it."
)
UNCOUNTED_KILL_ADVICE = (
    "The job's memory record counted no out-of-memory kill: a scheduler, a script or a person sent the SIGKILL; "
    "check the scheduler's record and `dmesg` at this time."
)


def action_for(failure: FailureClass, reason: Reason | None, text: str, job: JobEvidence) -> Action:
    """The action that fits best; policy decides."""
    match failure:
        case FailureClass.CUDA_OOM if is_fragmented(text) and not job.run_values.allocator_set:
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


ONLY_SMALLER_ADVICE: Final = "A smaller batch would also be a smaller global batch here: add gradient accumulation to the script to keep it."


def advice_for(
    failure: FailureClass, reason: Reason | None, text: str, job: JobEvidence, *, bare_kill: bool = False
) -> tuple[str, ...]:
    """Advice, the most particular first. `text`: the causing line and a few below it.

    `bare_kill`: a SIGKILL is all that is known of the end.
    """
    own = specific_advice(failure, reason, text, job)
    by_reason = _BY_REASON.get(reason) if reason is not None else None
    general = (by_reason,) if by_reason is not None else class_texts()[failure].advice
    if bare_kill:
        counted_none = job.machine.cgroup_oom_kills == 0
        own.insert(0, UNCOUNTED_KILL_ADVICE if counted_none else BARE_KILL_ADVICE)
    if failure is FailureClass.WORKER_CRASH and bare_kill:
        general = ()  # faulthandler cannot catch a SIGKILL: signal(7)
    if failure is FailureClass.TERMINATED and reason not in _REQUEUED:
        general = ()
    if failure is FailureClass.CUDA_OOM and not job.run_values.keeps_global:
        general = (ONLY_SMALLER_ADVICE, *general[1:])
    if replaces_general(failure, text):
        general = ()
    return tuple(dict.fromkeys((*own, *general)))


def replaces_general(failure: FailureClass, text: str) -> bool:
    """Whether the class's general advice would mislead: no space helps a mount, no login a name, no install a version."""
    line = text.split("\n", 1)[0]
    match failure:
        case FailureClass.DISK_FULL:
            return is_mount_error(line)
        case FailureClass.AUTH_OR_HUB:
            return _NAME_ERROR.search(line) is not None
        case FailureClass.IMPORT_ERROR:
            return _OF_INSTALLED.search(line) is not None
        case FailureClass.MISSING_FILE:
            return _program_in(line) is not None
        case FailureClass.DATALOADER_WORKER:
            return _MAP_WORKER.search(line) is not None
        case FailureClass.CHECKPOINT_LOAD:
            return _NO_CHECKPOINT.search(line) is not None
        case _:
            return False


# errno(3): EIO, ESTALE, ENOTCONN, EREMOTEIO.
_MOUNT_ERROR = re.compile(
    r"\[Errno (?:5|116|107|121)\]|Stale file handle|Transport endpoint is not connected"
)
# getaddrinfo(3), urllib3's NameResolutionError.
_NAME_ERROR = re.compile(
    r"gaierror|NameResolutionError|[Nn]ame or service not known|[Tt]emporary failure in name resolution|"
    r"nodename nor servname|No address associated with hostname"
)
_HOST = re.compile(
    r"host='([\w.-]+)'|Failed to resolve '([\w.-]+)'|(?:for|resolve)(?: host)? ['\"]?([\w-]+(?:\.[\w-]+)+)"
)
# A module below one that was found: Python names the first that it does not find.
_OF_INSTALLED = re.compile(
    r"No module named ['\"]?(\w+)\.([\w.]+)['\"]?(; ['\"][\w.]+['\"] is not a package)?|"
    r"cannot import name ['\"](\w+)['\"] from ['\"](\w+)[\w.]*['\"] \([^)]*(?:site|dist)-packages/"
)
_MAP_WORKER = re.compile(r"abruptly died during (?:map|filter) operation")
_NO_CHECKPOINT = re.compile(r"No valid checkpoint found in output directory \(([^)]+)\)")
_TEMPORARY = re.compile(r"['\"](/(?:var/)?tmp|/dev/shm)/")
_FAILED_NODE = re.compile(
    # A host's name has at most 253 characters (RFC 1035).
    r"[Nn]ode failure on (\S{1,253})(?!\S)|\bnode (\S{1,253}) (?:is|became|went) (?:not ready|unreachable|down|NotReady)"
)


def is_mount_error(line: str) -> bool:
    """Whether a filesystem or its server failed, which has nothing to do with space."""
    return _MOUNT_ERROR.search(line) is not None


def node_named(failure: FailureClass, reason: Reason | None, line: str) -> str | None:
    """The node that failed, by the scheduler's line; the one that a job's own line stands `ON` is where its script ran."""
    if failure is not FailureClass.TERMINATED or reason is not Reason.NODE_FAIL:
        return None
    found = _FAILED_NODE.search(line)
    return (found[1] or found[2]).rstrip(".,:;") if found else None


# -- on this one failure -----------------------------------------------------------------------------

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
    if match and "this process has" in text and whole(match.group(1)) not in job.run_values.own_pids:
        user = job.run_values.user_of(whole(match.group(1))) if job.run_values.user_of is not None else None
        return f"process {match.group(1)}{f' of {user}' if user else ''} ({match.group(2)})"
    return job.run_values.other_gpu_users[0] if job.run_values.other_gpu_users else None


def specific_advice(failure: FailureClass, reason: Reason | None, text: str, job: JobEvidence) -> list[str]:
    """Advice on this one failure: names out of its message, values out of the run.

    `text` is the causing line and a few below it; only messages known to be long are read past the first.
    """
    line = text.split("\n", 1)[0]
    match failure:
        case FailureClass.CUDA_OOM:
            return _memory(line, job)
        case FailureClass.HOST_OOM:
            return _host_memory(reason, line, job)
        case FailureClass.PORT_IN_USE:
            return _port(line, job)
        case FailureClass.IMPORT_ERROR:
            return _missing_module(line)
        case FailureClass.MISSING_FILE:
            return _missing_file(line)
        case FailureClass.CHECKPOINT_LOAD if found := _NO_CHECKPOINT.search(line):
            return [
                f"There is no checkpoint in {found[1]} yet: start without resume_from_checkpoint, or give it the path of one."
            ]
        case FailureClass.TERMINATED if node := node_named(failure, reason, line):
            return [f"Node {node} failed: exclude it (`--exclude={node}`) until it has been checked."]
        case FailureClass.WORKER_CRASH if re.search(r"\b(?:exit code|code|exitcode:|status) 127\b", line):
            return [
                "Exit code 127 means that the shell did not find a program: check $PATH, and the modules or the container of this node."
            ]
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
                return [f"{found[1]} of {found[2]} ranks joined: check the nodes that did not."]
        case FailureClass.USAGE_ERROR if "--local_rank" in line or "--local-rank" in line:
            return [
                "Since 2.0 the old launcher passes --local-rank: accept both spellings, or read LOCAL_RANK with torchrun."
            ]
        case FailureClass.USAGE_ERROR:
            return _misplaced(line, job.run_values)
        case FailureClass.CUDA_ERROR | FailureClass.NCCL_ERROR:
            return _by_message(line)
        case _:
            pass
    return []


# Advice by what the message of CUDA or NCCL says.
_OF_MESSAGES: Final = (
    (
        Lazy(r"Duplicate GPU detected"),
        "NCCL needs a GPU for each rank: lower --nproc-per-node, or choose the device by LOCAL_RANK (torch.cuda.set_device).",
    ),
    (
        Lazy(r"internal error|ncclInternalError"),
        "An internal NCCL error is usually a problem of the layout: check that the nodes reach each other, and that no two ranks share a GPU (CUDA_VISIBLE_DEVICES, local ranks).",
    ),
    (
        Lazy(r"invalid device ordinal"),
        "More processes a node than visible GPUs: lower --nproc-per-node or check CUDA_VISIBLE_DEVICES.",
    ),
    (
        Lazy(r"Assertion|device-side assert"),
        "Most often an index is out of range: check label and token ids against the sizes of their tables.",
    ),
    (
        Lazy(r"illegal memory access|misaligned address|launch failure|LAUNCH_FAILED"),
        "`compute-sanitizer python …` names the kernel; custom and Triton kernels are the first to look at.",
    ),
)
_MAP_ADVICE: Final = "A process of datasets' map died, most often for lack of memory: lower num_proc of the call, and writer_batch_size; num_proc=1 shows the error of the process itself."


def _by_message(line: str) -> list[str]:
    return [text for mark, text in _OF_MESSAGES if mark.search(line)][:1]


def _misplaced(line: str, values: RunValues) -> list[str]:
    """A flag that the script refused because it was meant for `stoker run`."""
    refused = line.partition("error: ")[2] or line
    words = {word.partition("=")[0].strip("'\"`:,.") for word in refused.split()}
    return [
        f"`{name}` is a flag of stoker: put it before {values.entry}"
        for name in values.behind_entry
        if name in words
    ]


def _port(line: str, job: JobEvidence) -> list[str]:
    values = job.run_values
    taken = values.port or _number(line, r"port:? ?`?(\d{2,5})|\]:(\d{2,5})|:(\d{4,5})\b")
    lines = [f"Port {taken} is taken."] if taken else []
    if values.free_port:
        lines.append(f"Port {values.free_port} is free: `--master-port {values.free_port}`.")
    return lines


def _program_in(line: str) -> str | None:
    """A program that was to be run by its bare name, and is on no folder of $PATH."""
    found = re.search(
        r"No such file or directory: b?['\"]([\w+-]+)['\"]|execve\(\): ([\w.+-]+): No such file", line
    )
    return found and (found[1] or found[2])


def _missing_file(line: str) -> list[str]:
    if program := _program_in(line):
        return [
            f"{program} is not on $PATH: load its module, or install it where the job runs (in the container, on each node)."
        ]
    found = re.search(
        r"(?:No such file or directory: |can't open file |: )b?['\"]([^'\"]+)['\"]"
        r"|(\S*/\S+) (?:does not exist|not found)|(?:does not exist|not found|missing)[: ]+(\S*/\S+)",
        line,
    )
    return [f"Not there: {found[1] or found[2] or found[3]}"] if found else []


def _path(line: str, job: JobEvidence) -> list[str]:
    lines = []
    if is_mount_error(line):
        lines.append(
            "The filesystem or its server failed; this is not about free space: check the mount on this node (`dmesg`, `df`), remount it, or exclude the node."
        )
    elif found := _TEMPORARY.search(line):
        lines.append(f"{found[1]} is full on this node: set TMPDIR to a folder with space, or clear it.")
    if found := re.search(r"(?:Errno \d+\] [\w -]+|denied): ['\"]([^'\"]+)['\"]", line):
        lines.append(f"Path being written or read: {found[1]}")
    if job.machine.disk_free_bytes is not None:
        where = job.machine.disk_path or "the disk"
        lines.append(f"{where} has {job.machine.disk_free_bytes / (1 << 30):.1f} GiB free.")
    return lines


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
                "TORCH_DISTRIBUTED_DEBUG=INFO shows their names."
            )
        ]
    if found := re.search(
        r"Parameter at index (\d+)(?: with name ([\w.]+))? has been marked as ready twice", text
    ):
        return [f"Used twice in one backward: {found[2] or f'the parameter at {found[1]}'}."]
    return []


def _hub(line: str) -> list[str]:
    if _NAME_ERROR.search(line):
        found = _HOST.search(line)
        host = next((part for part in found.groups() if part), "") if found else ""
        return [
            f"The name {host} could not be resolved: check the spelling, and this node's DNS and network; logging in does not help."
            if host
            else "A host's name could not be resolved: check the spelling, and this node's DNS and network; logging in does not help.",
            "Without a network: download once where there is one, and set HF_HUB_OFFLINE=1 (wandb: WANDB_MODE=offline).",
        ]
    if re.search(r"wandb|WANDB", line):
        return [
            "wandb: run `wandb login` on this node or set WANDB_API_KEY; WANDB_MODE=offline runs without it."
        ]
    if found := re.search(r"huggingface\.co/(?:api/(?:models|datasets)/|datasets/)?([\w.-]+/[\w.-]+)", line):
        return [
            f"Refused or not reached: {found[1]}. Accept its terms on the hub, and set HF_TOKEN on each node."
        ]
    if "429" in line:
        return ["The rate limit was reached: let one rank download, the others read its cache."]
    return []


def _workers(failure: FailureClass, reason: Reason | None, line: str, job: JobEvidence) -> list[str]:
    if _MAP_WORKER.search(line):
        return [_MAP_ADVICE]
    lines = []
    if job.machine.shm_used_share is not None:
        lines.append(f"Shared memory (/dev/shm) was {job.machine.shm_used_share:.0%} full.")
    elif failure is FailureClass.SHM_EXHAUSTED and "us error" in line:
        lines.append("A bus error in a data worker: see `df -h /dev/shm` while it runs.")
    if reason is Reason.SEGFAULT:
        lines.append(
            "A crash in native code, perhaps in a library that is not fork-safe: try multiprocessing_context='spawn'."
        )
    elif reason is Reason.KILLED:
        lines.append(f"Lower {_workers_now(job)}: (cores of the node) / (ranks on it), less one, is enough.")
    elif "timed out" in line:
        lines.append("Raise the DataLoader's timeout=, and keep its workers: persistent_workers=True.")
    return lines


def _workers_now(job: JobEvidence) -> str:
    now = job.run_values.workers
    return job.run_values.workers_knob if now is None else f"{job.run_values.workers_knob} (now {now})"


def _host_memory(reason: Reason | None, line: str, job: JobEvidence) -> list[str]:
    if _MAP_WORKER.search(line):
        return [_MAP_ADVICE]
    if reason is Reason.ALLOCATOR:
        return _smaller_batch("", job)
    if job.run_values.workers:
        return [
            f"Lower {_workers_now(job)}: each holds memory of its own; (cores of the node) / (ranks on it), less one, is enough."
        ]
    return _smaller_batch("", job)


def _smaller_batch(text: str, job: JobEvidence) -> list[str]:
    values = job.run_values
    if values.micro_batch is None:
        return []
    smaller = _next_micro_batch(text, values) if values.keeps_global else None
    if values.divided_batch and smaller is not None:
        return [f"Reduce {values.divided_batch}: {smaller} a rank divides the global batch."]
    if values.divided_batch:
        return [f"Reduce {values.divided_batch}."]
    now = f"Reduce {values.batch_knob} (now {values.micro_batch})"
    return [f"{now}: {smaller} divides the global batch." if smaller is not None else f"{now}."]


def _next_micro_batch(text: str, values: RunValues) -> int | None:
    """The next that keeps the global batch, and by the message's numbers fits: as a restart would choose it; none that ran out of memory."""
    batch = values.batch
    if batch is None:
        return None
    point = memory_point(text, batch.micro_batch_per_rank, base_bytes=values.memory_base_bytes)
    trials = values.trials()
    choice = choose_smaller(batch, point, trials)
    smaller = choice.batch.micro_batch_per_rank if choice is not None else None
    return None if smaller in {trial.micro_batch for trial in trials if not trial.fitted} else smaller


def _memory(text: str, job: JobEvidence) -> list[str]:
    lines: list[str] = []
    if is_fragmented(text) and not job.run_values.allocator_set:
        lines.append(
            "Much is reserved but not allocated: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True first."
        )
    if user := other_user(text, job):
        lines.append(f"Another process uses this GPU: {user}.")
    return lines + _smaller_batch(text, job)


def _number(text: str, pattern: str) -> int | None:
    match = re.search(pattern, text)
    return whole(next(group for group in match.groups() if group)) if match else None


def _missing_module(text: str) -> list[str]:
    if match := _OF_INSTALLED.search(text):
        if match[3]:
            return [
                f"{match[1]} is a file here, not the package: a script or folder of that name hides it; rename that."
            ]
        package, missing = (match[1], f"{match[1]}.{match[2]}") if match[1] else (match[5], match[4])
        return [
            f"{package} was found but has no {missing}: its version does not match the code that imports it, or a folder of that name hides it."
        ]
    if match := re.search(r"No module named ['\"]?([\w.]+)", text):
        return [f"Install {match.group(1).split('.')[0]} into the interpreter that runs the job."]
    if match := re.search(r"(lib\w[\w.+-]*\.so[\w.]*): cannot open shared object", text):
        return [
            f"{match.group(1)} is not found: check LD_LIBRARY_PATH and the CUDA version that the package was built for."
        ]
    if "undefined symbol" in text:
        return ["The extension was built against another PyTorch: reinstall or rebuild it."]
    return []
