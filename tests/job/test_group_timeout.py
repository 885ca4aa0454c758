"""How long a job's process groups wait: by its flags, its environment, its log."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.job.arguments.assignments import settings_of
from supervisor.job.knobs.conventions import find_group_timeout, longer_than_usual, timeout_in_log


def found(*args: str, env: Mapping[str, str] | None = None) -> float | None:
    return find_group_timeout(settings_of(args), env or {})


@pytest.mark.parametrize(
    ("args", "seconds"),
    [
        (("--ddp_timeout", "7200"), 7200),
        (("--ddp_timeout=7200",), 7200),
        (("--distributed-timeout-minutes", "60"), 3600),
        (("--nccl-timeout-s", "1200"), 1200),
        (("train.dist_timeout=1800",), 1800),
        (("--dist-timeout-hours", "2"), 7200),
        (("--nccl_timeout_ms=1200000",), 1200),
        (("--ddp_timeout", "300"), None),
        (("--ddp_timeout", "long"), None),
        (("--timeout", "7200"), None),
        (("--data_timeout", "7200"), None),
        (("--nccl_heartbeat_timeout", "7200"), None),
    ],
)
def test_flags_that_are_named_so(args: tuple[str, ...], seconds: float | None) -> None:
    assert found(*args) == seconds


def test_variables() -> None:
    assert found(env={"DEEPSPEED_TIMEOUT": "60"}) == 3600
    assert found(env={"NCCL_TIMEOUT": "1200", "NCCL_IB_TIMEOUT": "22"}) == 1200
    assert found(env={"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "7200"}) is None


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        (b"ProcessGroupNCCL initialization options: size: 2, global rank: 0, TIMEOUT(ms): 3600000, USE_HIGH", 3600),
        (b"WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, Timeout(ms)=1800000) ran for", 1800),
        (b"ddp_timeout=7200,", 7200),
        (b"  'ddp_timeout': 7200,", 7200),
        (b"  distributed_timeout_minutes ..................... 60", 3600),
        (b"InitProcessGroupKwargs(backend='nccl', timeout=datetime.timedelta(seconds=5400))", 5400),
        (b"timeout=datetime.timedelta(days=1, seconds=3600)", 90_000),
        (b"TIMEOUT(ms): 600000", None),
        (b"step 900 loss 3.1 timeout 7200", None),
        (b"nccl_heartbeat_timeout_sec: 7200", None),
        (b"", None),
    ],
)  # fmt: skip
def test_lines_of_a_log(line: bytes, seconds: float | None) -> None:
    assert timeout_in_log(b"before\n" + line + b"\nafter\n") == seconds


@given(st.binary(max_size=300))
def test_any_bytes_are_a_log(data: bytes) -> None:
    seconds = timeout_in_log(b"ddp_timeout" + data)
    assert seconds is None or seconds > 600


@pytest.mark.parametrize("value", [None, "x", True, float("nan"), 600, -1])
def test_what_is_no_longer_wait_is_none(value: object) -> None:
    assert longer_than_usual(value) is None
