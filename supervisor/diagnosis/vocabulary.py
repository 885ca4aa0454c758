"""The words that any library uses for each class of failure: a fallback for lines without a signature.

A signature is one library's wording; the next version words it differently, but a full disk remains "no
space" or errno 28, a port "in use", a worker a "data loader worker". Each phrase weighs 1 (a hint) to 8 (used
for nothing else); a class's score is the sum over its rows, and only the leading class counts.

Phrases are compared with lines in plain form: camel case and punctuation opened to blanks, lower case.
``*`` leaves the end of a word open.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from supervisor.diagnosis.scan.frames import is_quoted_code
from supervisor.diagnosis.scan.matched_lines import Hit, SourceScan, before_hint
from supervisor.diagnosis.scan.signature_tables import Role, Trait
from supervisor.run.failures import FailureClass
from supervisor.text.patterns import Lazy
from supervisor.text.prefixes import split_prefix

ENOUGH = 3
_CAMEL = Lazy(r"(?<=[a-z])(?=[A-Z])")
# The position of a C++ source in its tree says nothing: XLA is in `tensorflow/compiler`. Its own name may.
_FOLDERS = Lazy(r"(?:[\w.-]+/)+(?=[\w-]+\.(?:cc|cpp|cu|cuh|h|hpp)\b)")
_BETWEEN = Lazy(r"[^A-Za-z0-9]+")


@cache
def _table() -> tuple[tuple[FailureClass, int, tuple[str, ...]], ...]:
    c = FailureClass
    rows = (
        # Memory of devices and hosts. Errno names and numbers: errno(3).
        (c.CUDA_OOM, 4, "cuda out of memory, cuda error out of memory, hip out of memory, hip error out of memory, npu out of memory, xpu out of memory, gpu out of memory, gpu memory, device memory, device out of memory, alloc failed, torch out of memory error, cuda error memory allocation, vram, hbm"),
        (c.CUDA_OOM, 3, "out of memory error"),
        (c.CUDA_OOM, 1, "tried to allocate, allocator, max split size mb, expandable segments"),
        (c.HOST_OOM, 4, "oom kill*, oom reaper, oom killer, memory error, cannot allocate memory, can t allocate memory, bad alloc, memory pressure, memory cgroup, errno 12, enomem, host memory, system memory, cpu memory, default cpu allocator, virtual memory exhausted, failed to allocate memory"),
        (c.HOST_OOM, 2, "out of memory, unable to allocate, insufficient memory, not enough memory, killed"),
        (c.SHM_EXHAUSTED, 5, "dev shm, shm open, shm size, shmget, shared memory, torch shm*, nccl shm*, bus error, posix fallocate, shmmax, shmem, include shm h, shmutils cc, shm cc"),
        (c.SHM_EXHAUSTED, 2, "unable to mmap, unable to open shared, ftruncate"),
        (c.FD_LIMIT, 5, "too many open files, too many files, ancdata, emfile, enfile, errno 23, errno 24, rlimit nofile, ulimit, file descriptors, can t start new thread, thread limit, os error 24, errno 11 resource temporarily"),
        (c.DISK_FULL, 4, "no space left, errno 28, enospc, os error 28, code 28, storage full, disk full, disk is full, quota exceeded, errno 122, edquot, disk quota, disk space, free space, not enough space, not enough free disk, out of disk, no free space"),
        # Between ranks.
        (c.DDP_MISMATCH, 4, "finished reduction, variable ready, unused parameters, find unused parameters, parameters that were not used, did not receive grad, mismatch between collectives, collective mismatch, same model across, params while rank, shapes across ranks, inconsistent across, across all ranks, across ranks, across processes, collective finger print, unused in producing the loss, different number of parameters, desync*, disagreement between, different values for, disagree"),
        (c.DDP_MISMATCH, 1, "all ranks, rank 0, rank 1"),
        (c.NCCL_TIMEOUT, 4, "watchdog*, collective operation timeout, ran for, timed out waiting, monitored barrier, heartbeat monitor, barrier timed out, barrier timeout, barrier reached timeout, nccl timeout, operation timed out, send recv"),
        (c.NCCL_TIMEOUT, 1, "timeout, timed out, timeouts"),
        (c.NCCL_ERROR, 3, "nccl*, rccl, hccl, gloo, process group nccl, process group gloo, process group, unhandled system error, unhandled cuda error, socket progress, remote peer, by peer, broken pipe, connect full mesh, net ib, net ofi, infini band, ibv*, rdma, libfabric, efa, all reduce, all gather, collective"),
        (c.LIBUV, 8, "libuv, use libuv"),
        (c.PORT_IN_USE, 6, "address already in use, address in use, eaddrinuse, errno 98, os error 98, code 98, code 48, port is already, port already, port in use, already listening, another process is utilizing, failed to bind, failed to listen, port is taken, port is occupied"),
        (c.RENDEZVOUS, 3, "rendezvous*, tcpstore, tcp store, clients joined, etcd, master addr, master port, gai error, getaddrinfo, name or service not known, no route to host, client socket, rdzv*, could not resolve host*, waiting for clients, join the group, workers joined"),
        (c.RENDEZVOUS, 5, "store based barrier, initializing process group, initialize process group, init process group"),
        # Data, devices, numbers.
        (c.DATALOADER_WORKER, 5, "data loader worker*, dataloader worker*, in worker process, encountered in worker, pin memory thread, data loader timed out, dataloader timed out, background workers, worker process*, worker init fn, data worker*"),
        (c.CUDA_ERROR, 4, "cuda error*, cublas status*, cudnn status*, cusparse status*, cusolver status*, cufft*, cu dnn error, cudnn error, hip error*, miopen status*, device side assert*, illegal memory access, misaligned address, kernel image, accelerator error, launch failure, launch timed out, invalid device ordinal, src index, idx dim, idx min, indexing cu, index kernel cu, scatter gather kernel cu, cuda kernel*, cuda runtime error, cuda failure"),
        (c.GPU_FAULT, 6, "uncorrectable, ecc, nvlink, fallen off, fell off, gpu is lost, xid, nvrm, gpu is bad, hardware error, hardware fault, row remap*, retired page*, nvswitch, sxid, double bit"),
        (c.CUDA_UNAVAILABLE, 6, "not compiled with cuda, compiled without cuda, no nvidia driver, nvidia driver, cuda driver, driver version, gpu driver, driver library version, no cuda gpus, no cuda capable*, no gpu*, no cuda*, no usable gpu, no supported gpu, no devices, requires cuda, requires a gpu, requires gpu, cuda is not available, cuda is not, cuda not available, cuda unavailable, gpu is not available, get device count, nvml, cuda unknown error, initialization unexpected, valid cuda device, invalid cuda, cuda visible devices, no accelerator*, gpu available false"),
        (c.NAN_LOSS, 5, "loss is nan, nan loss, loss nan, is nan, nans, na n loss, loss na n, loss is na n, nan or inf, nan inf, non finite, nonfinite, not finite, diverge*, loss scale, minimum loss, gradient overflow, grad scale, infinite loss, infinity or nan, inf or nan, nan gradient*, nan values, returned nan, exploding, gradients are nan, unexpected result nan, become infinite, infinite or na n"),
        (c.NAN_LOSS, 1, "nan, inf, na n, floating point error"),
        # Files, hubs.
        (c.CHECKPOINT_LOAD, 4, "state dict, zip archive, central directory, unpickl*, invalid load key, pickle data, archive is corrupted, metadata incomplete*, header too large, invalid header, invalid magic*, shape in current model, copying a param, parameter groups, optimizer state, incompatible keys, ran out of input, checkpoint is corrupt*, corrupt* checkpoint, stream reader, checkpoint mismatch, restore checkpoint, load checkpoint, loading checkpoint, failed to load, could not load model, resume from"),
        (c.CHECKPOINT_LOAD, 2, "checkpoint*, safetensor*, safe tensor*, ckpt"),
        (c.MISSING_FILE, 3, "no such file*, errno 2, enoent, file not found*, does not exist, doesn t exist, not found in, can t open file, cannot find the path, path not found, missing file, is not a file, not a directory, no files found, no such key, find any file, dataset not found, not exist"),
        (c.PERMISSION_DENIED, 5, "permission denied, permission error, errno 13, eacces, read only file system, operation not permitted, errno 30, errno 1, os error 13, not writable, access is denied"),
        (c.AUTH_OR_HUB, 5, "client error, http error, hf hub http error, huggingface co, hugging face hub, huggingface hub, unauthorized, forbidden, gated, api key, access token, max retries exceeded, too many requests, rate limit*, https connection pool, http connection pool, ssl error, ssl*, certificate*, login, credentials, botocore, s3, gcs, repository not found, offline mode, local entry not found*, connect to https, incomplete read, remote disconnected, proxy error, read timeout error, chunked encoding error, gateway, service unavailable, hub, couldn t reach, max retry error"),
        # Building, importing, calling.
        (c.IMPORT_ERROR, 6, "module not found*, import error, no module named, undefined symbol, shared object file, cannot import name, glibc*, glibcxx*, dll load, win error 126, win error 127, specified module, dll, circular import, is not installed, not installed, pip install, please install, package metadata, failed to import, binary incompatib*, abi, incompatible version, version conflict, requires version, please upgrade, numpy 2"),
        (c.USAGE_ERROR, 4, "unrecognized arguments, invalid choice, following arguments are required, expected one argument, expected at least one argument, error argument, ambiguous option, no such option, missing option, unknown option*, unknown argument*, invalid int value, invalid float value, invalid value for, mutually exclusive, could not override, not in struct, must be divisible, not divisible, divisible by, must be one of, must be set, must be specified, is required, required argument*, unsupported argument, invalid config*, config* error, configuration error, unknown config, usage error, not a valid choice, did you mean, cannot be used with, can not be used with, not supported with, only supported with, requires that"),
        (c.COMPILE_ERROR, 5, "compil* failed, compiler failed, compile error, compilation failed, compilation error, compiler*, failed to compile, ptxas, nvcc, ninja, inductor, triton, dynamo, error building, building extension, gcc, clang, cannot find l*, linker, fatal error, failed o, flatten unflatten, out of resource, llvm, lowering exception, cpp extension, cpp compile error, build stopped, cuda home, hopper, codegen, torch jit"),
        # Ends.
        (c.TERMINATED, 4, "sigterm, sigint, sighup, sigusr1, keyboard interrupt, preempt*, time limit, due to time, cancelled at, canceled, scancel, walltime, wall time, evicted, eviction, spot instance, spot interruption, death signal, requeue, node failure, node fail, job step aborted, maintenance"),
        (c.WORKER_CRASH, 4, "segmentation fault, segfault, sigsegv, sigabrt, sigfpe, sigill, sigbus, core dumped, double free, free invalid*, munmap chunk, corrupted size, corrupted double*, heap corruption, stack smashing, fatal python error, access violation, 0xc0000005, malloc invalid*, malloc consolidate*, malloc memory corruption, malloc corrupted*, malloc unaligned*, illegal instruction, floating point exception, aborted, assertion failed, terminate called"),
    )  # fmt: skip
    return tuple(
        # Whole words, unless a star leaves the end open.
        (cls, weight, tuple(f" {word} ".removesuffix("* ") for word in words.split(", ")))
        for cls, weight, words in rows
    )


def plain_words(text: str) -> str:
    """A line as lower-case words separated and surrounded by single blanks."""
    return " " + _BETWEEN.sub(" ", _CAMEL.sub(" ", _FOLDERS.sub("", text))).strip().lower() + " "


def scores(text: str) -> dict[FailureClass, int]:
    """The weights of each class's words in a text."""
    words = plain_words(text)
    found: dict[FailureClass, int] = {}
    for failure, weight, phrases in _table():
        count = sum(phrase in words for phrase in phrases)
        if count:
            # A second word of the same row confirms it; more add nothing.
            found[failure] = found.get(failure, 0) + weight + (count > 1)
    return found


def class_by_words(text: str, *, enough: int = ENOUGH) -> tuple[FailureClass, int] | None:
    """The class whose words lead in a text, with its score; None if none leads or has enough."""
    ranking = sorted(scores(before_hint(text) or text).items(), key=lambda item: -item[1])
    if not ranking or ranking[0][1] < enough or (len(ranking) > 1 and ranking[1][1] >= ranking[0][1]):
        return None
    return ranking[0]


# -- a guess, if no signature matches a possible cause -----------------------------------------------

# One word more than a plain exception needs: these lines lack even an exception's type.
ENOUGH_OF_A_LINE = 4
LAST_LINES = 400
# A printed configuration or text contains all kinds of words.
LONGEST_COMPLAINT = 1200
# A line below the last step, in an otherwise healthy log, must be of a kind that ends a process at once.
_AT_ONCE = frozenset(
    (FailureClass.WORKER_CRASH, FailureClass.HOST_OOM, FailureClass.CUDA_ERROR, FailureClass.GPU_FAULT, FailureClass.TERMINATED)
)  # fmt: skip
_COMPLAINT = Lazy(
    r"(?i)error|fail|fatal|exception|abort|kill|cannot|can't|could ?n[o']t|unable|refused|denied|\blost\b|stopp(?:ed|ing)|not found|core dumped|\bfault\b|assert|invalid|exceeded|cancelled|timed? ?out|insufficient|corrupt|not in\b"
)
_NO_COMPLAINT = Lazy(
    r"(?<!NCCL )\bWARN(?:ING)?\b|Warning: |\bINFO\b|\bDEBUG\b|(?:^|\s)[WI]\d{4} |\[[WI]\d* |: [WI] (?:tensorflow|external|xla|tsl)/|retry|will be|consider|try setting|[Cc]orrected|[\s:=]0$|DataLoader worker \(pid"
)
_NOT_BY_THE_PROGRAM = frozenset((Trait.LAUNCHER_REPORT, Trait.TRACEBACK, Trait.TASK_EXIT, Trait.GOOD_END))


class Guess(NamedTuple):
    """A complaint whose words suggest a class: its position and its writer. `score`: see `class_by_words`."""

    failure: FailureClass
    score: int
    path: str
    line: int
    text: str
    rank: int | None


def guess(scans: Iterable[SourceScan], *, ended_at_once: bool = False) -> Guess | None:
    """The complaint whose words suggest a class most clearly.

    `ended_at_once`: only complaints below the last step, of classes that end a process at once.
    """
    best: Guess | None = None
    for scan in scans:
        known = {hit.line for hit in scan.hits if _is_known(hit, ended_at_once)}
        for row in _complaints(scan, below_steps=ended_at_once):
            line = scan.tail_line + row
            if line in known:
                continue
            # Anybody may print a line about anything.
            found = class_by_words(scan.tail[row].removeprefix("wandb: "), enough=ENOUGH_OF_A_LINE)
            if found is None or (ended_at_once and found[0] not in _AT_ONCE):
                continue
            if best is None or found[1] > best.score:
                origin, text = split_prefix(scan.tail[row], scan.hosts)
                best = Guess(*found, scan.path, line, text, origin.rank)
    return best


def _is_known(hit: Hit, ended_at_once: bool) -> bool:
    """Whether a signature matches the line, so that it was already considered."""
    role = hit.signature.role
    return (
        role in (Role.ADVICE, Role.CONSEQUENCE)
        or not _NOT_BY_THE_PROGRAM.isdisjoint(hit.signature.traits)
        or (ended_at_once and role is Role.CAUSE)
    )


def _complaints(scan: SourceScan, *, below_steps: bool) -> list[int]:
    first = max(len(scan.tail) - LAST_LINES, 0)
    steps = frozenset(scan.steps)
    rows: list[int] = []
    for row in range(first, len(scan.tail)):
        line = scan.tail[row]
        if scan.tail_line + row in steps and "(core dumped)" not in line:
            if below_steps:
                rows.clear()
        elif (
            len(line) <= LONGEST_COMPLAINT
            and _COMPLAINT.search(line)
            and not _NO_COMPLAINT.search(line)
            and not is_quoted_code(line)
        ):
            rows.append(row)
    return rows
