"""Cascades as several ranks, launchers and kernels report them: the root, and the rank that failed first."""

import pytest

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.verdict import diagnose
from supervisor.sources.signature_files import Engine
from supervisor.text.prefixes import Origin
from tests.diagnosis.launcher_logs import CLOSING, DEATH, FAILED, REPORT, STOPPED, trace

STEPS = "".join(f"step {number} loss {3 - number / 100:.3f}\n" for number in range(1, 9))
GLOO = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4711"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
TIMEOUT = "[rank{0}]:[E101 10:10:00.1 ProcessGroupNCCL.cpp:1] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=1) ran for 2 milliseconds before timing out.\n"


def raised(prefix: str, error: str) -> str:
    lines = ["Traceback (most recent call last):", '  File "/w/t.py", line 3, in main', "    go()", error]
    return "".join(f"{prefix}{line}\n" for line in lines)


def ended(rank: int, code: int) -> str:
    return (
        f"E0101 10:00:00.000000 7 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {code}) local_rank: {rank} (pid: 9) of binary: /usr/bin/python\n"
        f"Root Cause (first observed failure):\n[0]:\n  time      : 2025-01-01_10:00:00\n  host      : h\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: 9)\n"
    )


CASES = {
    "noprefix keyerror + gloo": (
        STEPS + raised("", "KeyError: 'x'") + raised("", GLOO) + ended(2, 1),
        "code_error",
        2,
    ),
    "gloo first then keyerror": (
        STEPS + raised("", GLOO) + raised("", "KeyError: 'x'") + ended(2, 1),
        "code_error",
        2,
    ),
    "tee default": (STEPS + raised("[default1]:", OOM) + raised("[default0]:", GLOO), "cuda_oom", 1),
    "segv + nccl remote": (
        STEPS
        + raised(
            "[rank0]: ",
            "torch.distributed.DistBackendError: NCCL error in: x, remote process exited or there was a network error",
        )
        + ended(1, -11),
        "worker_crash",
        1,
    ),
    "sigkill w/ timeouts": (STEPS + TIMEOUT.format(0) + ended(1, -9), "host_oom", 1),
    "time limit then kbd": (
        STEPS
        + "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
        + raised("[rank0]: ", "KeyboardInterrupt"),
        "terminated",
        None,
    ),
    "chain enospc": (
        STEPS
        + raised("[rank0]: ", "OSError: [Errno 28] No space left on device")
        + "[rank0]: \n[rank0]: During handling of the above exception, another exception occurred:\n"
        + raised(
            "[rank0]: ",
            "RuntimeError: [enforce fail at inline_container.cc:659] . unexpected pos 1729 vs 1623",
        ),
        "disk_full",
        0,
    ),
    "spawn": (
        STEPS
        + 'Traceback (most recent call last):\n  File "a.py", line 1\ntorch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 3 terminated with the following error:\n'
        + raised("", "ValueError: bad batch"),
        "code_error",
        3,
    ),
    "deepspeed": (
        STEPS
        + raised("", "TypeError: x")
        + "[2024-01-01 00:00:00,1] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 1\n[2024-01-01 00:00:00,1] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python', '-u', 't.py', '--local_rank=3'] exits with return code = 1\n",
        "code_error",
        3,
    ),
    "lightning": (
        STEPS
        + "[rank: 1] Child process with PID 412 terminated with code -9. Forcefully terminating all other processes to avoid zombies\n",
        "host_oom",
        1,
    ),
    "oom all": (STEPS + "".join(raised(f"[rank{r}]: ", OOM) for r in range(4)), "cuda_oom", None),
    "xid dmesg after": (
        STEPS
        + raised("[rank3]: ", "torch.AcceleratorError: CUDA error: unspecified launch failure")
        + "[Mon Jan  1 00:00:00 2025] NVRM: Xid (PCI:0000:4e:00): 79, pid=1, GPU has fallen off the bus.\n",
        "gpu_fault",
        3,
    ),
    "assert+nccl": (
        STEPS
        + "../aten/src/ATen/native/cuda/Indexing.cu:1292: f: block: [1,0,0], thread: [1,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
        + raised("[rank2]: ", "RuntimeError: CUDA error: device-side assert triggered")
        + "[rank2]:[E101 10:10:00.1 ProcessGroupNCCL.cpp:1] Process group watchdog thread terminated with exception: CUDA error: device-side assert triggered\n"
        + ended(2, -6),
        "cuda_error",
        2,
    ),
    "missing rank": (
        STEPS + "".join(TIMEOUT.format(rank) for rank in (0, 1, 3, 4, 5, 6, 7)),
        "nccl_timeout",
        2,
    ),
    "retry then ok": (
        STEPS + "ConnectionError: hub timeout, retrying 1/5\n" + STEPS + STEPS + "Training complete\n",
        "healthy",
        None,
    ),
    "elastic restart ok": (
        STEPS
        + raised("[rank1]: ", "RuntimeError: x")
        + ended(1, 1)
        + STEPS
        + STEPS
        + "[default] worker group successfully finished. Waiting 300 seconds for other agents to finish.\n",
        "healthy",
        None,
    ),
    "handled tb then crash": (
        STEPS
        + raised("", "urllib.error.URLError: <urlopen error timed out>")
        + "continuing without telemetry\n"
        + STEPS.replace("step ", "step 1")
        + STEPS.replace("step ", "step 2")
        + raised("", "KeyError: 'y'")
        + ended(0, 1),
        "code_error",
        0,
    ),
    "threads left behind": (
        STEPS
        + raised(
            "[rank0]: ",
            "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 6000ms for send operation to complete",
        )
        + "terminate called without an active exception\n"
        + ended(0, -6),
        "nccl_timeout",
        1,
    ),
    "abort without a word": (
        STEPS + raised("[rank0]: ", GLOO) + ended(1, -6),
        "worker_crash",
        1,
    ),
    "quoted rank of a checkpoint": (
        STEPS
        + "[rank0]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2])\n"
        + raised("[rank0]: ", "OSError: [Errno 28] No space left on device").replace(
            "last):", "last): (RANK 2)"
        ),
        "disk_full",
        2,
    ),
    "hint within a message": (
        STEPS
        + raised(
            "",
            "RuntimeError: a leaf Variable that requires grad is being used in an in-place operation. Hint: clone it",
        ),
        "code_error",
        0,
    ),
    "mpirun": (
        "[n02:22811] *** Process received signal ***\n[n02:22811] Signal: Segmentation fault (11)\nmpirun noticed that process rank 1 with PID 22811 on node n02 exited on signal 11 (Segmentation fault).\n",
        "worker_crash",
        1,
    ),
    "srun's own words": (
        "*** JOB 771 starting\nsrun: error: n1: task 0: Exited with exit code 1\n",
        "unknown",
        0,
    ),
    "oom caught on another rank": (
        STEPS
        + f"[rank1]: {OOM}\n[rank1]: WARNING: dropping the batch\n"
        + "".join(f"[rank0]: step {number} loss 1.5\n" for number in range(9, 40)),
        "healthy",
        None,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_cascades(name: str, engine: Engine) -> None:
    text, failure, rank = CASES[name]
    job = JobEvidence(logs=(LogSource("log", (text.encode(),)),))
    verdict = diagnose(job, engine.signatures, engine.matcher)
    assert (verdict.failure.value, verdict.rank) == (failure, rank)


STOPPED_WORKER = "RuntimeError: DataLoader worker (pid 4390) is killed by signal: Terminated. "
CRASHED_WORKER = STOPPED_WORKER.replace("Terminated", "Segmentation fault")
KILLED = [
    line.replace("exitcode: 1", "exitcode: -9").replace(": 1 (pid", ": -9 (pid") for line in [FAILED, *REPORT]
]


def of_loader(rank: int | None, said: str = STOPPED_WORKER) -> list[str]:
    """What a rank prints whose data worker died: the signal, and what the loader raises of it."""
    exited = "RuntimeError: DataLoader worker (pid(s) 4390) exited unexpectedly"
    return [*trace(rank, said, "handler"), "", *trace(rank, exited, "__next__")]


def merged(*lines: str) -> JobEvidence:
    """All ranks in one file."""
    return JobEvidence(logs=(LogSource("log", ((STEPS + "\n".join(lines) + "\n").encode(),)),))


def by_rank(*ranks: list[str], agent: list[str]) -> JobEvidence:
    """A file for each rank, and the launcher's own."""
    logs = [
        LogSource(f"{rank}/stderr.log", ("\n".join([STEPS, *lines, ""]).encode(),), Origin(local_rank=rank))
        for rank, lines in enumerate(ranks)
    ]
    launcher = LogSource("agent.log", ("\n".join([*agent, ""]).encode(),))
    return JobEvidence(logs=(*logs, launcher), launcher_exit=1)


STOPPED_LOADERS: dict[str, tuple[JobEvidence, str, int | None]] = {
    "rank 1 out of memory, a file each": (
        by_rank(of_loader(None), trace(None, OOM), agent=[CLOSING, FAILED, *REPORT]),
        "cuda_oom",
        1,
    ),
    "rank 1 out of memory, written later": (
        merged(*of_loader(0), *trace(1, OOM), CLOSING, FAILED, *REPORT),
        "cuda_oom",
        1,
    ),
    "rank 1 out of memory, no launcher's report": (merged(*of_loader(0), *trace(1, OOM)), "cuda_oom", 1),
    "rank 1 raised, a file each": (
        by_rank(of_loader(None), trace(None, "KeyError: 'image_id'"), agent=[CLOSING, FAILED, *REPORT]),
        "code_error",
        1,
    ),
    "rank 1 killed, a file each": (by_rank(of_loader(None), [], agent=[CLOSING, *KILLED]), "host_oom", 1),
    "the launcher's notice stands before": (merged(CLOSING, *of_loader(0), *KILLED), "host_oom", 1),
    "rank 1 left without a word": (
        by_rank(of_loader(None), [], agent=[CLOSING, FAILED, *REPORT]),
        "unknown",
        1,
    ),
    "the job was stopped": (
        by_rank(of_loader(None), of_loader(None), agent=[DEATH, CLOSING, *STOPPED]),
        "terminated",
        None,
    ),
    # Nothing but the worker's own end is known, or its rank failed first.
    "one process": (merged(*of_loader(None)), "dataloader_worker", None),
    "its peers lost the connection": (
        merged(*of_loader(0), *trace(1, GLOO), FAILED.replace("rank: 1 (pid: 4301", "rank: 0 (pid: 4300")),
        "dataloader_worker",
        0,
    ),
    "a peer fell in its own words after it": (
        merged(
            *of_loader(0),
            *trace(1, "ValueError: no batch from rank 0"),
            FAILED.replace("rank: 1 (pid: 4301", "rank: 0 (pid: 4300"),
        ),
        "dataloader_worker",
        0,
    ),
    "the worker crashed first": (
        merged(*of_loader(0, CRASHED_WORKER), *trace(1, OOM)),
        "dataloader_worker",
        0,
    ),
}


@pytest.mark.parametrize("name", STOPPED_LOADERS)
def test_a_data_worker_that_was_stopped_with_its_job(name: str, engine: Engine) -> None:
    job, failure, rank = STOPPED_LOADERS[name]
    verdict = diagnose(job, engine.signatures, engine.matcher)
    assert verdict.failure.value == failure
    assert rank is None or verdict.rank == rank
