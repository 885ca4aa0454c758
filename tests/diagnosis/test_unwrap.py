"""A verdict does not hang on who wrote the log down: launchers, collectors, terminals, and parts of other logs around it."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.scan.windows import unwrapped
from supervisor.diagnosis.verdict import diagnose
from supervisor.run.records import Verdict
from supervisor.sources.signature_files import Engine
from tests.corpus.layouts import LAYOUTS

STEPS = [f"step {number} loss {3 - number / 100:.3f}" for number in range(10, 16)]
BOX = [
    "E0811 14:22:03.402000 40880 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -11) local_rank: 1 (pid: 41023) of binary: /usr/bin/python3",
    "============================================================",
    "train.py FAILED",
    "------------------------------------------------------------",
    "Root Cause (first observed failure):",
    "[0]:",
    "  time      : 2024-08-11_14:22:01",
    "  host      : gpu-a03",
    "  rank      : 1 (local_rank: 1)",
    "  exitcode  : -11 (pid: 41023)",
    "  error_file: <N/A>",
    "  traceback : Signal 11 (SIGSEGV) received by PID 41023",
    "============================================================",
]
TRACE = [
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 88, in main',
    "    out = step(batch)",
]
# Name: (class, the causing line's place, the lines).
LOGS: dict[str, tuple[str, int, list[str]]] = {
    "key error": ("code_error", 9, [*STEPS, *TRACE, "KeyError: 'labels'"]),
    "no memory": ("cuda_oom", 9, [*STEPS, *TRACE, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"]),
    "segfault": ("worker_crash", 6, [*STEPS, *BOX]),
    "faulthandler": ("worker_crash", 6, [*STEPS, "Fatal Python error: Segmentation fault", "", "Current thread 0x00007f1bd01c1000 (most recent call first):", '  File "/w/ops.py", line 12 in forward', '  File "/w/train.py", line 88 in main']),
    "killed": ("host_oom", 6, [*STEPS, "run.sh: line 12:  8842 Killed                  python train.py"]),
    "shared memory": ("shm_exhausted", 1, ["gpu-a03:51:90 [0] NCCL INFO Channel 00 : 0[7000] -> 1[8000] via SHM/direct/direct", "gpu-a03:51:90 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-zL8rTQ to 33030532 bytes", "gpu-a03:51:90 [0] NCCL INFO misc/shmutils.cc:113 -> 2", *TRACE, "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error, NCCL version 2.18.1"]),
    "nan": ("nan_loss", 2, ["epoch 1 | step 100 | train_loss 2.31", "epoch 1 | step 200 | train_loss 2.91", "epoch 1 | step 300 | train_loss nan", "epoch 1 | step 400 | train_loss nan", "epoch 1 | step 500 | train_loss nan", "epoch 2 | step 600 | train_loss nan"]),
    "stacks": ("hang", 8, [*STEPS, "Process 91: python fit.py --devices 4", 'Thread 91 (idle): "MainThread"', "    read_shard (loader.py:71)", "    train_one_epoch (trainer.py:626)"]),
    "silence": ("hang", -1, [*(f"2025-11-06 03:0{minute}:19,787 step: {400 + minute}  loss: 3.6054" for minute in range(6)), "W1106 05:41:58.118000 17 torch/distributed/elastic/agent/server/api.py:723] Received Signals.SIGTERM death signal, shutting down workers"]),
    "time limit": ("terminated", 6, [*STEPS, "slurmstepd: error: *** JOB 77 ON cn7 CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***"]),
    "a worker's error": ("dataloader_worker", 13, [*STEPS, *TRACE, "ValueError: Caught ValueError in DataLoader worker process 3.", "Original Traceback (most recent call last):", '  File "/w/data.py", line 71, in __getitem__', "    img = decode(buf)", "ValueError: cannot decode sample 118213"]),
    "compiler": ("compile_error", 6, [*STEPS, "/tmp/x/main.c:4:10: fatal error: Python.h: No such file or directory", "compilation terminated.", *TRACE, "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:"]),
    "notices": ("healthy", -1, [*STEPS[:3], "NCCL WARN Failed to open libibverbs.so[.1]", "wandb: Network error (ConnectionError), entering retry loop.", *STEPS[3:], "Training complete."]),
}  # fmt: skip


def judged(data: bytes, engine: Engine) -> Verdict:
    return diagnose(JobEvidence(logs=(LogSource("log", (data,)),)), engine.signatures, engine.matcher)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_log_in_other_layouts(layout: str, engine: Engine) -> None:
    wrong = []
    for name, (truth, cause, lines) in LOGS.items():
        rewritten = LAYOUTS[layout](lines, cause)
        verdict = judged(rewritten.data, engine)
        place = rewritten.place[cause] if cause >= 0 else None
        line = verdict.cause.line if verdict.cause is not None else None
        near = place is None or (line is not None and abs(line - place) <= 2)
        if verdict.failure.value != truth or not near:
            wrong.append((name, verdict.failure.value, line, place))
    assert wrong == []


def test_the_rank_of_a_prefix_is_kept() -> None:
    wrapped = "\n".join(f"2024-08-11 10:00:0{row} out | [rank3]: {line}" for row, line in enumerate(TRACE))
    bare = unwrapped(wrapped.encode()).decode().split("\n")
    assert bare == [f"[rank3]: {line}" for line in TRACE]


@pytest.mark.parametrize(
    "lines",
    [
        [f"[rank3]: {line}" for line in TRACE],
        [f"[default0]:{line}" for line in TRACE],
        [f"node1: {line}" for line in TRACE],
        # A logger that puts its label to the head alone, and a program's own records.
        ["ERROR:root:Traceback (most recent call last):", *TRACE[1:]],
        ['{"rank": 1, "level": "ERROR", "msg": "missing /data (ENOENT)", "exc": "FileNotFoundError"}'],
    ],
)
def test_what_launchers_and_programs_say_themselves_is_left(lines: list[str]) -> None:
    text = "\n".join(lines).encode()
    assert unwrapped(text) is text


def test_a_programs_level_outlives_its_record(engine: Engine) -> None:
    lines = [
        f'{{"ts": "2024-08-11T10:00:0{row}Z", "level": "info", "msg": "{step}"}}'
        for row, step in enumerate(STEPS)
    ]
    notice = '{"ts": "2024-08-11T10:00:08Z", "level": "warn", "msg": "cannot write the cache: PermissionError: [Errno 13] Permission denied"}'
    warned = judged("".join(f"{line}\n" for line in [*lines, notice]).encode(), engine)
    assert warned.failure.value == "healthy"
    failed = judged(
        "".join(f"{line}\n" for line in [*lines, notice.replace('"warn"', '"error"')]).encode(), engine
    )
    assert failed.failure.value == "permission_denied"


def test_a_traceback_in_one_record_is_read_to_its_last_line(engine: Engine) -> None:
    record = b'{"level": "error", "msg": "Traceback (most recent call last):\\n  File \\"/w/x.py\\", line 3, in f\\n    g()\\nKeyError: \'labels\'"}\n'
    verdict = judged(b"".join(f"{line}\n".encode() for line in STEPS) + record, engine)
    assert (verdict.failure.value, verdict.cause.line if verdict.cause else None) == ("code_error", 7)
    assert verdict.cause is not None
    assert verdict.cause.text == "KeyError: 'labels'"
