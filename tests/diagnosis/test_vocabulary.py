"""Wordings that no signature knows: their words lead to a class, and nobody is told that it is certain."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.cause.vocabulary import class_by_words, plain_words, scores
from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.verdict import diagnose
from supervisor.run.failures import FailureClass
from supervisor.run.records import Verdict
from supervisor.sources.signature_files import Engine

TRACEBACK = 'Traceback (most recent call last):\n  File "/w/train.py", line 3, in main\n    go()\n'


def judged(text: str, engine: Engine) -> Verdict:
    job = JobEvidence(logs=(LogSource("log", (text.encode(),)),))
    return diagnose(job, engine.signatures, engine.matcher)


def test_camel_case_and_punctuation_are_opened() -> None:
    assert (
        plain_words("[rank0]: GpuMemoryError: out_of-memory (7)")
        == " rank0 gpu memory error out of memory 7 "
    )


def test_a_class_is_believed_only_where_it_leads() -> None:
    assert class_by_words("write: ENOSPC") == (FailureClass.DISK_FULL, 4)
    tied = {FailureClass.CUDA_ERROR: 4, FailureClass.CUDA_OOM: 4}
    assert tied.items() <= scores("CUDA error: out of memory").items()
    assert class_by_words("CUDA error: out of memory") is None
    assert class_by_words("step 3 done in 2 s") is None


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("mylib.StorageError: shard 3 not written, no free space on /ckpt", FailureClass.DISK_FULL),
        ("newlib.LinkError: NVSwitch reports a double bit error", FailureClass.GPU_FAULT),
        ("RuntimeError: ranks disagree about parameter 7: desync detected", FailureClass.DDP_MISMATCH),
        ("RuntimeError: data worker 3 went away", FailureClass.DATALOADER_WORKER),
        ("fs.MountError: volume is not writable for this user", FailureClass.PERMISSION_DENIED),
        ("ValueError: exploding activations, giving up", FailureClass.NAN_LOSS),
        ("newlib.StoreFault: gave up waiting for clients of the rendezvous", FailureClass.RENDEZVOUS),
    ],
)
def test_an_exception_in_unknown_words(line: str, failure: FailureClass, engine: Engine) -> None:
    verdict = judged(f"{TRACEBACK}{line}\n", engine)
    assert verdict.failure is failure
    assert verdict.confidence < 0.9
    assert verdict.cause is not None
    assert verdict.cause.line == 4


@pytest.mark.parametrize("line", ["KeyError: 'nan_loss'", "TypeError: shared_memory is not callable"])
def test_words_in_a_programs_own_exception_tell_nothing(line: str, engine: Engine) -> None:
    assert judged(f"{TRACEBACK}{line}\n", engine).failure is FailureClass.CODE_ERROR


def test_a_complaint_without_an_exception_is_a_guess(engine: Engine) -> None:
    verdict = judged("loading weights\nlauncher2: child failed: segfault in worker 3\n", engine)
    assert verdict.failure is FailureClass.WORKER_CRASH
    assert verdict.confidence <= 0.6
    assert verdict.cause is not None
    assert verdict.cause.line == 2


def test_a_notice_after_the_last_step_is_no_guess(engine: Engine) -> None:
    steps = "".join(f"step {number} loss {3 - number / 100:.3f}\n" for number in range(1, 11))
    verdict = judged(f"{steps}monitor: ECC errors corrected: 3\n", engine)
    assert verdict.failure is FailureClass.HEALTHY


def test_a_device_error_in_a_data_worker_keeps_its_class(engine: Engine) -> None:
    text = (
        f"{TRACEBACK}RuntimeError: Caught RuntimeError in pin memory thread for device 0.\n"
        'Original Traceback (most recent call last):\n  File "/t/pin_memory.py", line 34, in do_one_step\n'
        "    data = pin_memory(data, device)\nRuntimeError: CUDA error: out of memory\n"
    )
    assert judged(text, engine).failure is FailureClass.CUDA_OOM


def test_an_abort_after_its_reason_is_a_consequence(engine: Engine) -> None:
    text = (
        "terminate called after throwing an instance of 'gloo::IoException'\n"
        "  what():  [/b/gloo/transport/tcp/pair.cc:724] connect [10.0.0.1]:3210: Connection refused\n"
        "Aborted (core dumped)\n"
    )
    assert judged(text, engine).failure is FailureClass.NCCL_ERROR
    assert judged("Aborted (core dumped)\n", engine).failure is FailureClass.WORKER_CRASH


def test_a_peers_complaint_is_no_guess_beside_an_exit_code(engine: Engine) -> None:
    text = (
        "step 2 loss 0.0773\nstep 4 loss 0.0976\n"
        f"{TRACEBACK}RuntimeError: [/g/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:40334.\n"
        "E1121 03:38:04.760000 15786 torch/distributed/elastic/multiprocessing/api.py:1002] "
        "failed (exitcode: 3) local_rank: 1 (pid: 15797) of binary: /opt/venv/bin/python3\n"
    )
    verdict = judged(text, engine)
    assert (verdict.failure, verdict.rank) == (FailureClass.WORKER_CRASH, 1)
