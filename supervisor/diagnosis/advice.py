"""Choose the best next action and give advice on the failure, putting the run's own values before general advice."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from supervisor.diagnosis.class_words import class_texts
from supervisor.diagnosis.evidence import JobEvidence, RunValues
from supervisor.job.memory_fit import choose_smaller, memory_point
from supervisor.run.records import Action, FailureClass, Reason
from supervisor.text.patterns import whole

# Reasons for the end of a job without a failure of its own. The advice depends on who ended the job.
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
    """Return the recommended action. The policy makes the final decision."""
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
    """Return advice, most specific first. `text` is the line that shows the cause plus a few lines below it.

    If `bare_kill` is true, the only thing known about the exit is that SIGKILL caused it.
    """
    line = text.split("\n", 1)[0]
    own, replaces_general = _by_message(failure, text if failure is FailureClass.DDP_MISMATCH else line)
    if failure is not FailureClass.HOST_OOM or not own:
        own += _by_values(failure, reason, line, job)
    by_reason = _BY_REASON.get(reason) if reason is not None else None
    general = (by_reason,) if by_reason is not None else class_texts()[failure].advice
    if bare_kill:
        counted_none = job.machine.cgroup_oom_kills == 0
        own.insert(0, UNCOUNTED_KILL_ADVICE if counted_none else BARE_KILL_ADVICE)
    if failure is FailureClass.CUDA_OOM and not job.run_values.keeps_global:
        general = (ONLY_SMALLER_ADVICE, *general[1:])
    is_stop = failure is FailureClass.TERMINATED and reason not in _REQUEUED
    # faulthandler cannot catch a SIGKILL: signal(7).
    if replaces_general or is_stop or (failure is FailureClass.WORKER_CRASH and bare_kill):
        general = ()
    return tuple(dict.fromkeys((*own, *general)))


# -- from the message --------------------------------------------------------------------------------


class _Row(NamedTuple):
    """Advice for messages in certain classes. `{0}` and `{1}` stand for the pattern's groups.

    If `alone`, omit the class's advice, which would mislead (free space won't fix a mount). If `more`, also try later rows.
    """

    classes: tuple[FailureClass, ...]
    pattern: str
    text: str
    alone: bool = False
    more: bool = False


# errno(3): EIO, ESTALE, ENOTCONN, EREMOTEIO.
_MOUNT_ERROR: Final = r"\[Errno (?:5|116|107|121)\]|Stale file handle|Transport endpoint is not connected"
# getaddrinfo(3), urllib3's NameResolutionError.
_NAME_ERROR: Final = r"gaierror|NameResolutionError|[Nn]ame or service not known|[Tt]emporary failure in name resolution|nodename nor servname|No address associated with hostname"
_F = FailureClass
_FILES: Final = (_F.DISK_FULL, _F.PERMISSION_DENIED)
_DEVICE: Final = (_F.CUDA_ERROR, _F.NCCL_ERROR)

# The first matching row of a class gives the advice.
_ROWS: Final = (
    _Row((_F.CHECKPOINT_LOAD,), r"No valid checkpoint found in output directory \(([^)]+)\)",
         "There is no checkpoint in {0} yet: start without resume_from_checkpoint, or give it the path of one.", alone=True),
    _Row((_F.WORKER_CRASH,), r"\b(?:exit code|code|exitcode:|status) 127\b",
         "Exit code 127 means that the shell did not find a program: check $PATH, and the modules or the container of this node."),
    # DistributedDataParallel's message of an unfinished reduction (reducer.cpp, TORCH_DISTRIBUTED_DEBUG).
    _Row((_F.DDP_MISMATCH,), r"[Pp]arameters which did not receive grad for rank (\d+): ([\w.]+(?:, [\w.]+){0,40})",
         "No gradient on rank {0} for {1}."),
    _Row((_F.DDP_MISMATCH,), r"Parameter indices which did not receive grad for rank (\d+): ?([\d ]{1,200}\d)",
         "No gradient on rank {0} for the parameters at {1} of model.parameters(); TORCH_DISTRIBUTED_DEBUG=INFO shows their names."),
    _Row((_F.DDP_MISMATCH,), r"Parameter at index (\d+)(?: with name [\w.]+)? has been marked as ready twice",
         "Used twice in one backward: the parameter at {0}."),
    _Row((_F.AUTH_OR_HUB,), rf"host='([\w.-]+)'.*(?:{_NAME_ERROR})",
         "The name {0} could not be resolved: check the spelling, and this node's DNS and network; logging in does not help. Without a network: download once where there is one, and set HF_HUB_OFFLINE=1 (wandb: WANDB_MODE=offline).", alone=True),
    _Row((_F.AUTH_OR_HUB,), _NAME_ERROR,
         "A host's name could not be resolved: check the spelling, and this node's DNS and network; logging in does not help. Without a network: download once where there is one, and set HF_HUB_OFFLINE=1 (wandb: WANDB_MODE=offline).", alone=True),
    _Row((_F.AUTH_OR_HUB,), r"wandb|WANDB",
         "wandb: run `wandb login` on this node or set WANDB_API_KEY; WANDB_MODE=offline runs without it."),
    _Row((_F.AUTH_OR_HUB,), r"huggingface\.co/(?:api/(?:models|datasets)/|datasets/)?([\w.-]+/[\w.-]+)",
         "Refused or not reached: {0}. Accept its terms on the hub, and set HF_TOKEN on each node."),
    _Row((_F.AUTH_OR_HUB,), r"429", "The rate limit was reached: let one rank download, the others read its cache."),
    _Row((_F.DATALOADER_WORKER, _F.HOST_OOM), r"abruptly died during (?:map|filter) operation",
         "A process of datasets' map died, most often for lack of memory: lower num_proc of the call, and writer_batch_size; num_proc=1 shows the error of the process itself.", alone=True),
    _Row((_F.DATALOADER_WORKER,), r"timed out", "Raise the DataLoader's timeout=, and keep its workers: persistent_workers=True."),
    _Row((_F.RENDEZVOUS,), r"(\d+)/(\d+) clients joined", "{0} of {1} ranks joined: check the nodes that did not."),
    _Row((_F.USAGE_ERROR,), r"--local[-_]rank",
         "Since 2.0 the old launcher passes --local-rank: accept both spellings, or read LOCAL_RANK with torchrun."),
    _Row(_DEVICE, r"Duplicate GPU detected",
         "NCCL needs a GPU for each rank: lower --nproc-per-node, or choose the device by LOCAL_RANK (torch.cuda.set_device)."),
    _Row(_DEVICE, r"internal error|ncclInternalError",
         "An internal NCCL error is usually a problem of the layout: check that the nodes reach each other, and that no two ranks share a GPU (CUDA_VISIBLE_DEVICES, local ranks)."),
    _Row(_DEVICE, r"invalid device ordinal",
         "More processes a node than visible GPUs: lower --nproc-per-node or check CUDA_VISIBLE_DEVICES."),
    _Row(_DEVICE, r"Assertion|device-side assert",
         "Most often an index is out of range: check label and token ids against the sizes of their tables."),
    _Row(_DEVICE, r"illegal memory access|misaligned address|launch failure|LAUNCH_FAILED",
         "`compute-sanitizer python …` names the kernel; custom and Triton kernels are the first to look at."),
    # A program called by its bare name that is in no folder of $PATH.
    _Row((_F.MISSING_FILE,), r"No such file or directory: b?['\"]([\w+-]+)['\"]|execve\(\): ([\w.+-]+): No such file",
         "{0} is not on $PATH: load its module, or install it where the job runs (in the container, on each node).", alone=True),
    _Row((_F.MISSING_FILE,), r"(?:No such file or directory: |can't open file |: )b?['\"]([^'\"]+)['\"]|(\S*/\S+) (?:does not exist|not found)|(?:does not exist|not found|missing)[: ]+(\S*/\S+)",
         "Not there: {0}"),
    # A module inside an existing package: Python reports the first part that it does not find.
    _Row((_F.IMPORT_ERROR,), r"No module named ['\"]?(\w+)\.[\w.]+['\"]?; ['\"][\w.]+['\"] is not a package",
         "{0} is a file here, not the package: a script or folder of that name hides it; rename that.", alone=True),
    _Row((_F.IMPORT_ERROR,), r"No module named ['\"]?((\w+)\.[\w.]+)['\"]?",
         "{1} was found but has no {0}: its version does not match the code that imports it, or a folder of that name hides it.", alone=True),
    _Row((_F.IMPORT_ERROR,), r"cannot import name ['\"](\w+)['\"] from ['\"](\w+)[\w.]*['\"] \([^)]*(?:site|dist)-packages/",
         "{1} was found but has no {0}: its version does not match the code that imports it, or a folder of that name hides it.", alone=True),
    _Row((_F.IMPORT_ERROR,), r"No module named ['\"]?(\w+)", "Install {0} into the interpreter that runs the job."),
    _Row((_F.IMPORT_ERROR,), r"(lib\w[\w.+-]*\.so[\w.]*): cannot open shared object",
         "{0} is not found: check LD_LIBRARY_PATH and the CUDA version that the package was built for."),
    _Row((_F.IMPORT_ERROR,), r"undefined symbol", "The extension was built against another PyTorch: reinstall or rebuild it."),
    _Row(_FILES, _MOUNT_ERROR,
         "The filesystem or its server failed; this is not about free space: check the mount on this node (`dmesg`, `df`), remount it, or exclude the node.", alone=True, more=True),
    _Row(_FILES, r"['\"](/(?:var/)?tmp|/dev/shm)/", "{0} is full on this node: set TMPDIR to a folder with space, or clear it.", more=True),
    _Row(_FILES, r"(?:Errno \d+\] [\w -]+|denied): ['\"]([^'\"]+)['\"]", "Path being written or read: {0}"),
)  # fmt: skip


def _by_message(failure: FailureClass, text: str) -> tuple[list[str], bool]:
    """Return the advice from matching rows and whether it replaces the general advice."""
    found: list[str] = []
    alone = False
    for row in _ROWS:
        if failure not in row.classes or (match := re.search(row.pattern, text)) is None:
            continue
        found.append(row.text.format(*(part for part in match.groups() if part is not None)))
        alone = alone or row.alone
        if not row.more:
            break
    return found, alone


def is_mount_error(line: str) -> bool:
    """Check whether a line reports a failed filesystem or file server, which has nothing to do with free space."""
    return re.search(_MOUNT_ERROR, line) is not None


# A host name has at most 253 characters (RFC 1035).
_FAILED_NODE = re.compile(
    r"[Nn]ode failure on (\S{1,253})(?!\S)|\bnode (\S{1,253}) (?:is|became|went) (?:not ready|unreachable|down|NotReady)"
)


def node_named(line: str) -> str | None:
    """Return the failed node that a scheduler names. In a line about the job itself, the node after `ON` only ran the script."""
    found = _FAILED_NODE.search(line)
    return (found[1] or found[2]).rstrip(".,:;") if found else None


# -- from the run's own values -----------------------------------------------------------------------


def _by_values(failure: FailureClass, reason: Reason | None, line: str, job: JobEvidence) -> list[str]:
    """Return advice that quotes values from the run and from the machine's records."""
    match failure:
        case FailureClass.CUDA_OOM:
            return _memory(line, job)
        case FailureClass.HOST_OOM if job.run_values.workers and reason is not Reason.ALLOCATOR:
            return [_fewer_workers(job)]
        case FailureClass.HOST_OOM:
            return _smaller_batch("", job.run_values) if job.run_values.micro_batch is not None else []
        case FailureClass.PORT_IN_USE:
            return _port(line, job.run_values)
        case FailureClass.TERMINATED if reason is Reason.NODE_FAIL and (node := node_named(line)):
            return [f"Node {node} failed: exclude it (`--exclude={node}`) until it has been checked."]
        case FailureClass.DISK_FULL | FailureClass.PERMISSION_DENIED if (
            free_bytes := job.machine.disk_free_bytes
        ) is not None:
            return [f"{job.machine.disk_path or 'the disk'} has {free_bytes / (1 << 30):.1f} GiB free."]
        case FailureClass.DATALOADER_WORKER | FailureClass.SHM_EXHAUSTED:
            return _workers(failure, reason, line, job)
        case FailureClass.USAGE_ERROR:
            return _misplaced(line, job.run_values)
        case _:
            return []


def _fewer_workers(job: JobEvidence) -> str:
    values = job.run_values
    now = values.workers_knob if values.workers is None else f"{values.workers_knob} (now {values.workers})"
    return f"Lower {now}: each holds memory of its own; (cores of the node) / (ranks on it), less one, is enough."


def _workers(failure: FailureClass, reason: Reason | None, line: str, job: JobEvidence) -> list[str]:
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
        lines.append(_fewer_workers(job))
    return lines


def _misplaced(line: str, values: RunValues) -> list[str]:
    """Explain that a flag rejected by the script was meant for `stoker run`."""
    refused = line.partition("error: ")[2] or line
    words = {word.partition("=")[0].strip("'\"`:,.") for word in refused.split()}
    return [
        f"`{name}` is a flag of stoker: put it before {values.entry}"
        for name in values.behind_entry
        if name in words
    ]


def _port(line: str, values: RunValues) -> list[str]:
    named = re.search(r"port:? ?`?(\d{2,5})|\]:(\d{2,5})|:(\d{4,5})\b", line)
    taken = values.port or (named and next(group for group in named.groups() if group))
    lines = [f"Port {taken} is taken."] if taken else []
    if values.free_port:
        lines.append(f"Port {values.free_port} is free: `--master-port {values.free_port}`.")
    return lines


_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "bytes": 1}


def _size(text: str, pattern: str) -> float | None:
    match = re.search(pattern.replace("SIZE", r"(\d{1,9}(?:\.\d{1,9})?) (KiB|MiB|GiB|TiB|bytes)"), text)
    return float(match.group(1)) * _UNITS[match.group(2)] if match else None


def is_fragmented(text: str) -> bool:
    """Check whether a CUDA message shows far more memory reserved than allocated; if so, fix the allocator first."""
    tried = _size(text, "Tried to allocate SIZE")
    idle = _size(text, "SIZE is reserved by PyTorch but unallocated")
    if idle is None:
        allocated = _size(text, "SIZE already allocated")
        reserved = _size(text, "SIZE (?:reserved in total by PyTorch|cached)")
        idle = reserved - allocated if reserved is not None and allocated is not None else None
    return tried is not None and idle is not None and idle >= max(2 * tried, 1 << 30)


def _smaller_batch(text: str, values: RunValues) -> list[str]:
    smaller = _next_micro_batch(text, values) if values.keeps_global else None
    if values.divided_batch and smaller is not None:
        return [f"Reduce {values.divided_batch}: {smaller} a rank divides the global batch."]
    if values.divided_batch:
        return [f"Reduce {values.divided_batch}."]
    now = f"Reduce {values.batch_knob} (now {values.micro_batch})"
    return [f"{now}: {smaller} divides the global batch." if smaller is not None else f"{now}."]


def _next_micro_batch(text: str, values: RunValues) -> int | None:
    """Return the next smaller size that should fit at the same global batch, or None if that size already failed."""
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
    values = job.run_values
    match = re.search(r"Process (\d+) has ([\d.]+ [KMGT]iB) memory in use", text)
    if match and "this process has" in text and whole(match[1]) not in values.own_pids:
        user = values.user_of(whole(match[1])) if values.user_of is not None else None
        other = f"process {match[1]}{f' of {user}' if user else ''} ({match[2]})"
        lines.append(f"Another process uses this GPU: {other}.")
    return lines + (_smaller_batch(text, values) if values.micro_batch is not None else [])
