"""From a symptom to the failure classes: people's words, lines of logs, names of classes, and words that nobody knows."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as some

from supervisor.diagnosis.scan.signature_tables import Signature, parse_tables
from supervisor.diagnosis.symptoms import leads
from supervisor.run.records import FailureClass
from supervisor.sources.signature_files import read_tables

C = FailureClass


@cache
def known() -> tuple[Signature, ...]:
    return parse_tables(read_tables()).entries


@pytest.mark.parametrize(
    ("symptom", "failure"),
    [
        ("it hangs", C.HANG),
        ("training is stuck, nothing moves", C.HANG),
        ("the loss is nan", C.NAN_LOSS),
        ("loss diverges", C.NAN_LOSS),
        ("bus error in docker", C.SHM_EXHAUSTED),
        ("port 29500 is taken", C.PORT_IN_USE),
        ("no space left on device", C.DISK_FULL),
        ("segfault", C.WORKER_CRASH),
        ("a node cannot join", C.RENDEZVOUS),
        ("corrupt checkpoint", C.CHECKPOINT_LOAD),
        ("GPU fell off the bus", C.GPU_FAULT),
        ("nccl watchdog", C.NCCL_TIMEOUT),
        ("too many open files", C.FD_LIMIT),
        ("time limit", C.TERMINATED),
        ("cuda oom", C.CUDA_OOM),
        ("wandb login", C.AUTH_OR_HUB),
        ("unused parameters", C.DDP_MISMATCH),
        ("no GPU found", C.CUDA_UNAVAILABLE),
        ("RuntimeError: CUDA error: out of memory", C.CUDA_OOM),
        ("ModuleNotFoundError: No module named 'flash_attn'", C.IMPORT_ERROR),
        ("OSError: [Errno 28] No space left on device", C.DISK_FULL),
        ("CUDA_OOM", C.CUDA_OOM),
        ("nan-loss", C.NAN_LOSS),
    ],
)
def test_what_people_say(symptom: str, failure: FailureClass) -> None:
    assert leads(symptom, known()) == (failure,)


@pytest.mark.parametrize(
    ("symptom", "either"),
    [("out of memory", {C.CUDA_OOM, C.HOST_OOM}), ("exit code 137", {C.HOST_OOM, C.WORKER_CRASH})],
)
def test_what_may_be_several(symptom: str, either: set[FailureClass]) -> None:
    found = set(leads(symptom, known()))
    assert either <= found
    assert len(found) <= 3


@pytest.mark.parametrize("symptom", ["", "qqqq", "it is slow", "the of and", "42", "notify"])
def test_what_is_not_known(symptom: str) -> None:
    assert leads(symptom, known()) == ()


@pytest.mark.parametrize("failure", [c for c in C if c not in {C.HEALTHY, C.UNKNOWN}])
def test_each_class_leads_to_itself(failure: FailureClass) -> None:
    assert leads(failure.value.replace("_", " "), known())[0] is failure


@given(some.text(max_size=400))
def test_any_text(symptom: str) -> None:
    leads(symptom, known())
