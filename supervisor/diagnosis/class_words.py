"""User-facing text for each failure class (title, meaning, advice) and the words that identify a class in a line.

The English sentences double as translation keys, so update both (`views/wording/lang/zh.toml`). Policy
(`policy/rules.py`) defines the response to each class.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from supervisor.diagnosis.scan.matched_lines import before_hint
from supervisor.run.records import Action, FailureClass
from supervisor.text.patterns import Lazy


class ClassText(NamedTuple):
    """Display text for a failure class. `advice` is general; `advice.py` puts the run's own values first."""

    title: str
    action: Action
    meaning: str
    advice: tuple[str, ...]


@cache
def class_texts() -> dict[FailureClass, ClassText]:
    """Return the display text for every class."""
    c, a = FailureClass, Action
    return {
        c.CUDA_OOM: ClassText(
            "GPU memory ran out",
            a.REDUCE_BATCH,
            "The allocator of PyTorch, cuBLAS, cuDNN, NCCL or Triton asked the device for more memory than was free.",
            ("Lower the micro-batch and raise gradient accumulation by the same factor: the global batch stays as it is.", "bf16, gradient checkpointing and shorter sequences also save memory; set TORCH_COMPILE_DISABLE=1 if compilation itself runs out of memory."),
        ),
        c.HOST_OOM: ClassText(
            "Host memory ran out",
            a.FEWER_WORKERS,
            "The machine, the cgroup or the job's limit had no memory left: an allocation failed, or the kernel or the scheduler killed a process.",
            ("Use fewer data workers or a smaller prefetch, or ask for more memory.", "Look at checkpoint saving and data caches: both peak in host memory."),
        ),
        c.SHM_EXHAUSTED: ClassText(
            "Shared memory (/dev/shm) is full",
            a.FEWER_WORKERS,
            "Data workers or NCCL could not extend a segment in /dev/shm; containers give 64 MiB by default.",
            ("Give the container more: `--shm-size=16g` or `--ipc=host`; with Kubernetes mount an emptyDir of medium Memory at /dev/shm.", "Or use fewer data workers, or torch.multiprocessing's file_system sharing strategy."),
        ),
        c.FD_LIMIT: ClassText(
            "Too many open files or threads",
            a.RAISE_LIMIT,
            "The process reached RLIMIT_NOFILE (or RLIMIT_NPROC): data workers pass tensors as file descriptors.",
            ("Raise the limit: `ulimit -n 65536` before the launch.", "Or set torch.multiprocessing.set_sharing_strategy('file_system')."),
        ),
        c.DISK_FULL: ClassText(
            "The disk or a quota is full",
            a.WAIT_DISK,
            "A write failed with ENOSPC or EDQUOT, usually while saving a checkpoint.",
            ("Free space or raise the quota where checkpoints and logs go; delete old checkpoints.",),
        ),
        c.NCCL_TIMEOUT: ClassText(
            "A collective timed out",
            a.RESTART,
            "Ranks waited in a collective for one that never arrived: it was slow, stuck, or took another code path.",
            ("Look at the rank that did not report: a long save, tokenising, an evaluation on one rank only, or a stuck read.", "Most often the ranks diverged on the CPU side: a stuck read, a starved data loader, work on one rank only. Raising the timeout in init_process_group seldom helps."),
        ),
        c.NCCL_ERROR: ClassText(
            "Communication between ranks failed",
            a.RESTART,
            "NCCL or gloo lost a connection or refused its configuration, and no rank reported that it failed first.",
            ("Read the first NCCL WARN line; run with NCCL_DEBUG=INFO.", "Check NCCL_SOCKET_IFNAME, the fabric's links, and that all nodes have the same NCCL.", "As a stopgap, use the gloo backend: slower, but without NCCL."),
        ),
        c.LIBUV: ClassText(
            "This PyTorch has no libuv",
            a.RESTART_WITH_ENV,
            "TCPStore requested its libuv backend, which this build (usually on Windows) lacks.",
            ("Set USE_LIBUV=0 in the environment.", "TORCHELASTIC_USE_AGENT_STORE=0 too, if the agent's own store was made with libuv."),
        ),
        c.PORT_IN_USE: ClassText(
            "The port is taken",
            a.NEW_PORT,
            "Another process listens on the rendezvous port: another job, or a leftover of an earlier one.",
            ("Use another port (`--master-port`, `--rdzv-endpoint host:port`) or `--standalone`; end leftover processes of the earlier run.",),
        ),
        c.RENDEZVOUS: ClassText(
            "The nodes did not find each other",
            a.RESTART,
            "A node could not reach the rendezvous endpoint, or not all of them joined in time.",
            ("Check that the endpoint's name resolves from each node, that its port is open, and that all nodes use the same --rdzv-id.", "Make sure that no firewall separates the nodes, and that the interface reaches the others: NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME."),
        ),
        c.DATALOADER_WORKER: ClassText(
            "A data worker failed",
            a.STOP,
            "A DataLoader worker raised an exception, crashed or was killed.",
            ("Read the worker's own traceback; num_workers=0 shows it in the main process.", "Workers per rank: the node's cores divided by its ranks. Use persistent_workers=True and a timeout= above the slowest batch."),
        ),
        c.WORKER_CRASH: ClassText(
            "A rank crashed",
            a.RESTART,
            "A process was killed by a signal, or exited with an error code and no Python traceback.",
            ("Run with PYTHONFAULTHANDLER=1 to see the Python stack; look at the last native library loaded.",),
        ),
        c.HANG: ClassText(
            "Training hung",
            a.RESTART,
            "Ranks are alive but no step completes: one waits where the others do not.",
            ("Look at the stack of the rank that is outside the collective.",),
        ),
        c.DDP_MISMATCH: ClassText(
            "Ranks disagree about the model or the collective",
            a.STOP,
            "Parameters, shapes or the order of collectives differ between ranks, or some parameters took no part in the loss.",
            ("Parameters unused in forward: find_unused_parameters=True, or remove them.", "Make sure that all ranks take the same branches and build the same model."),
        ),
        c.CUDA_ERROR: ClassText(
            "A CUDA call or kernel failed",
            a.RESTART,
            "An index out of range on the device, an illegal access, a library call or a kernel not built for this GPU.",
            ("The traceback is asynchronous: run once with CUDA_LAUNCH_BLOCKING=1 to see the real line.",),
        ),
        c.GPU_FAULT: ClassText(
            "A GPU is faulty",
            a.EXCLUDE_GPU,
            "The driver reported a hardware fault: ECC, NVLink, a device that left the bus.",
            ("Take the device or the node out of service; see `nvidia-smi -q` and the kernel log's Xid.",),
        ),
        c.CUDA_UNAVAILABLE: ClassText(
            "No usable GPU",
            a.STOP,
            "No driver, no visible device, or a PyTorch built without CUDA.",
            ("Check `nvidia-smi`, CUDA_VISIBLE_DEVICES and `python -c 'import torch; print(torch.version.cuda)'`.",),
        ),
        c.NAN_LOSS: ClassText(
            "The loss became nan",
            a.RESUME_EARLIER,
            "The loss or the gradients are not finite and stayed so, or the trainer gave up because of it.",
            ("Resume from an earlier checkpoint with a lower learning rate, gradient clipping, or bf16 instead of fp16.",),
        ),
        c.CHECKPOINT_LOAD: ClassText(
            "A checkpoint cannot be loaded",
            a.RESUME_EARLIER,
            "The file is there but damaged, or it does not fit the model, the optimizer or the number of ranks.",
            ("Resume from the previous checkpoint; check that code and checkpoint match.",),
        ),
        c.MISSING_FILE: ClassText(
            "A file is missing",
            a.STOP,
            "A script, data or configuration file is not where the job looked for it.",
            ("Check the path, the working directory and the mounts of this node.",),
        ),
        c.PERMISSION_DENIED: ClassText(
            "Permission denied",
            a.STOP,
            "The user may not read or write a path, or the filesystem is read-only.",
            ("Check owner and mode of the path, and the mount's options.",),
        ),
        c.AUTH_OR_HUB: ClassText(
            "A hub, tracker or object store refused or could not be reached",
            a.STOP,
            "Login, token, rate limit, a gated or unknown repository, no network, or a certificate.",
            ("Check the token and the network of this node; download once on one rank and set HF_HUB_OFFLINE=1 on all.",),
        ),
        c.IMPORT_ERROR: ClassText(
            "An import failed",
            a.STOP,
            "A module or a shared library is missing or incompatible with the others.",
            ("Install the module into the interpreter that runs the job, or align the versions.",),
        ),
        c.USAGE_ERROR: ClassText(
            "Wrong arguments or configuration",
            a.STOP,
            "The launcher or the script refused its arguments.",
            ("Correct the argument that the line names.",),
        ),
        c.COMPILE_ERROR: ClassText(
            "Compilation failed",
            a.STOP,
            "torch.compile, Triton, nvcc or a C++ extension could not be built.",
            ("Check the compiler and CUDA toolkit on this node; TORCH_COMPILE_DISABLE=1 runs without torch.compile.",),
        ),
        c.CODE_ERROR: ClassText(
            "The program raised an exception",
            a.STOP,
            "An ordinary error of the training code.",
            (),
        ),
        c.TERMINATED: ClassText(
            "Stopped from outside",
            a.REQUEUE,
            "A scheduler, a person or the machine ended the job; nothing had failed before.",
            ("Requeue, or ask for more time.",),
        ),
        c.HEALTHY: ClassText(
            "No failure",
            a.NONE,
            "The run finished successfully, or is still running.",
            (),
        ),
        c.UNKNOWN: ClassText(
            "Cause not known",
            a.HOLD,
            "Something ended the run, but no log or record shows what.",
            ("Keep each rank's output (`-r 3 --log-dir`), decorate main with torch's @record, and run with PYTHONFAULTHANDLER=1.",),
        ),
    }  # fmt: skip


# -- the words of a line -----------------------------------------------------------------------------

# The words that any library uses for each class, as a fallback for lines without a signature. A signature is one library's wording. The
# next version words it differently, but a full disk remains "no space" or errno 28, a port "in use". Each phrase weighs 1 (a hint) to 8
# (used for no other class). A class's score is the sum over its rows, and only the leading class counts. Phrases are compared with lines
# in plain form: lower case, with blanks for camel case and punctuation. ``*`` leaves the end of a word open.
ENOUGH = 3
_CAMEL = Lazy(r"(?<=[a-z])(?=[A-Z])")
# A C++ source's folder does not show the class: XLA is in `tensorflow/compiler`. Its file name may.
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


def class_by_words(text: str, *, enough: int = ENOUGH) -> tuple[FailureClass, int] | None:
    """Return the highest-scoring class for a text and its score, or None if there is a tie or it scores below `enough`."""
    opened = _CAMEL.sub(" ", _FOLDERS.sub("", before_hint(text) or text))
    words = f" {_BETWEEN.sub(' ', opened).strip().lower()} "
    scores: dict[FailureClass, int] = {}
    for failure, weight, phrases in _table():
        if count := sum(phrase in words for phrase in phrases):
            # A second word of the same row confirms it. More words add nothing.
            scores[failure] = scores.get(failure, 0) + weight + (count > 1)
    best = max(scores.values(), default=0)
    leaders = [failure for failure, score in scores.items() if score == best]
    return (leaders[0], best) if best >= enough and len(leaders) == 1 else None
