"""The failure classes in words: title, meaning, advice. The response to each is policy's (`policy/rules.py`).

The English sentences are the keys of their translations: change both (`views/wording/lang/zh.toml`).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from supervisor.run.failures import Action, FailureClass


class ClassText(NamedTuple):
    """One class for people. `advice` is general; `advice.py` puts advice with the run's own values first."""

    title: str
    action: Action
    meaning: str
    advice: tuple[str, ...]


@cache
def class_texts() -> dict[FailureClass, ClassText]:
    """All classes."""
    c, a = FailureClass, Action
    return {
        c.CUDA_OOM: ClassText("GPU memory ran out", a.REDUCE_BATCH,
            "The allocator of PyTorch, cuBLAS, cuDNN, NCCL or Triton asked the device for more memory than was free.",
            ("Lower the micro-batch and raise gradient accumulation by the same factor: the global batch stays as it is.", "bf16, gradient checkpointing and shorter sequences also save memory; set TORCH_COMPILE_DISABLE=1 if compilation itself runs out of memory.")),
        c.HOST_OOM: ClassText("Host memory ran out", a.FEWER_WORKERS,
            "The machine, the cgroup or the job's limit had no memory left: an allocation failed, or the kernel or the scheduler killed a process.",
            ("Use fewer data workers or a smaller prefetch, or ask for more memory.", "Look at checkpoint saving and data caches: both peak in host memory.")),
        c.SHM_EXHAUSTED: ClassText("Shared memory (/dev/shm) is full", a.FEWER_WORKERS,
            "Data workers or NCCL could not extend a segment in /dev/shm; containers give 64 MiB by default.",
            ("Give the container more: `--shm-size=16g` or `--ipc=host`; with Kubernetes mount an emptyDir of medium Memory at /dev/shm.", "Or use fewer data workers, or torch.multiprocessing's file_system sharing strategy.")),
        c.FD_LIMIT: ClassText("Too many open files or threads", a.RAISE_LIMIT,
            "The process reached RLIMIT_NOFILE (or RLIMIT_NPROC): data workers pass tensors as file descriptors.",
            ("Raise the limit: `ulimit -n 65536` before the launch.", "Or set torch.multiprocessing.set_sharing_strategy('file_system').")),
        c.DISK_FULL: ClassText("The disk or a quota is full", a.WAIT_DISK,
            "A write failed with ENOSPC or EDQUOT, usually while saving a checkpoint.",
            ("Free space or raise the quota where checkpoints and logs go; delete old checkpoints.",)),
        c.NCCL_TIMEOUT: ClassText("A collective timed out", a.RESTART,
            "Ranks waited in a collective for one that never arrived: it was slow, stuck, or took another code path.",
            ("Look at the rank that did not report: a long save, tokenising, an evaluation on one rank only, or a stuck read.", "Most often the ranks diverged on the CPU side: a stuck read, a starved data loader, work on one rank only. Raising the timeout in init_process_group seldom helps.")),
        c.NCCL_ERROR: ClassText("Communication between ranks failed", a.RESTART,
            "NCCL or gloo lost a connection or refused its configuration, and no rank reported that it failed first.",
            ("Read the first NCCL WARN line; run with NCCL_DEBUG=INFO.", "Check NCCL_SOCKET_IFNAME, the fabric's links, and that all nodes have the same NCCL.", "As a stopgap, use the gloo backend: slower, but without NCCL.")),
        c.LIBUV: ClassText("This PyTorch has no libuv", a.RESTART_WITH_ENV,
            "TCPStore requested its libuv backend, which this build (usually on Windows) lacks.",
            ("Set USE_LIBUV=0 in the environment.", "TORCHELASTIC_USE_AGENT_STORE=0 too, if the agent's own store was made with libuv.")),
        c.PORT_IN_USE: ClassText("The port is taken", a.NEW_PORT,
            "Another process listens on the rendezvous port: another job, or a leftover of an earlier one.",
            ("Use another port (`--master-port`, `--rdzv-endpoint host:port`) or `--standalone`; end leftover processes of the earlier run.",)),
        c.RENDEZVOUS: ClassText("The nodes did not find each other", a.RESTART,
            "A node could not reach the rendezvous endpoint, or not all of them joined in time.",
            ("Check that the endpoint's name resolves from each node, that its port is open, and that all nodes use the same --rdzv-id.", "Make sure that no firewall separates the nodes, and that the interface reaches the others: NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME.")),
        c.DATALOADER_WORKER: ClassText("A data worker failed", a.STOP,
            "A DataLoader worker raised an exception, crashed or was killed.",
            ("Read the worker's own traceback; num_workers=0 shows it in the main process.", "Workers per rank: the node's cores divided by its ranks. Use persistent_workers=True and a timeout= above the slowest batch.")),
        c.WORKER_CRASH: ClassText("A rank crashed", a.RESTART,
            "A process was killed by a signal, or exited with an error code and no Python traceback.",
            ("Run with PYTHONFAULTHANDLER=1 to see the Python stack; look at the last native library loaded.",)),
        c.HANG: ClassText("Training hung", a.RESTART,
            "Ranks are alive but no step completes: one waits where the others do not.",
            ("Look at the stack of the rank that is outside the collective.",)),
        c.DDP_MISMATCH: ClassText("Ranks disagree about the model or the collective", a.STOP,
            "Parameters, shapes or the order of collectives differ between ranks, or some parameters took no part in the loss.",
            ("Parameters unused in forward: find_unused_parameters=True, or remove them.", "Make sure that all ranks take the same branches and build the same model.")),
        c.CUDA_ERROR: ClassText("A CUDA call or kernel failed", a.RESTART,
            "An index out of range on the device, an illegal access, a library call or a kernel not built for this GPU.",
            ("The traceback is asynchronous: run once with CUDA_LAUNCH_BLOCKING=1 to see the real line.",)),
        c.GPU_FAULT: ClassText("A GPU is faulty", a.EXCLUDE_GPU,
            "The driver reported a hardware fault: ECC, NVLink, a device that left the bus.",
            ("Take the device or the node out of service; see `nvidia-smi -q` and the kernel log's Xid.",)),
        c.CUDA_UNAVAILABLE: ClassText("No usable GPU", a.STOP,
            "No driver, no visible device, or a PyTorch built without CUDA.",
            ("Check `nvidia-smi`, CUDA_VISIBLE_DEVICES and `python -c 'import torch; print(torch.version.cuda)'`.",)),
        c.NAN_LOSS: ClassText("The loss became nan", a.RESUME_EARLIER,
            "The loss or the gradients are not finite and stayed so, or the trainer gave up because of it.",
            ("Resume from an earlier checkpoint with a lower learning rate, gradient clipping, or bf16 instead of fp16.",)),
        c.CHECKPOINT_LOAD: ClassText("A checkpoint cannot be loaded", a.RESUME_EARLIER,
            "The file is there but damaged, or it does not fit the model, the optimizer or the number of ranks.",
            ("Resume from the previous checkpoint; check that code and checkpoint match.",)),
        c.MISSING_FILE: ClassText("A file is missing", a.STOP,
            "A script, data or configuration file is not where the job looked for it.",
            ("Check the path, the working directory and the mounts of this node.",)),
        c.PERMISSION_DENIED: ClassText("Permission denied", a.STOP,
            "The user may not read or write a path, or the filesystem is read-only.",
            ("Check owner and mode of the path, and the mount's options.",)),
        c.AUTH_OR_HUB: ClassText("A hub, tracker or object store refused or could not be reached", a.STOP,
            "Login, token, rate limit, a gated or unknown repository, no network, or a certificate.",
            ("Check the token and the network of this node; download once on one rank and set HF_HUB_OFFLINE=1 on all.",)),
        c.IMPORT_ERROR: ClassText("An import failed", a.STOP,
            "A module or a shared library is missing or incompatible with the others.",
            ("Install the module into the interpreter that runs the job, or align the versions.",)),
        c.USAGE_ERROR: ClassText("Wrong arguments or configuration", a.STOP,
            "The launcher or the script refused its arguments.",
            ("Correct the argument that the line names.",)),
        c.COMPILE_ERROR: ClassText("Compilation failed", a.STOP,
            "torch.compile, Triton, nvcc or a C++ extension could not be built.",
            ("Check the compiler and CUDA toolkit on this node; TORCH_COMPILE_DISABLE=1 runs without torch.compile.",)),
        c.CODE_ERROR: ClassText("The program raised an exception", a.STOP,
            "An ordinary error of the training code.",
            ()),
        c.TERMINATED: ClassText("Stopped from outside", a.REQUEUE,
            "A scheduler, a person or the machine ended the job; nothing had failed before.",
            ("Requeue, or ask for more time.",)),
        c.HEALTHY: ClassText("No failure", a.NONE, "The run finished successfully, or is still running.", ()),
        c.UNKNOWN: ClassText("Cause not known", a.HOLD,
            "Something ended the run, but no log or record shows what.",
            ("Keep each rank's output (`-r 3 --log-dir`), decorate main with torch's @record, and run with PYTHONFAULTHANDLER=1.",)),
    }  # fmt: skip
