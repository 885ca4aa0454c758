"""How long a job's process groups wait, by its log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.job.knobs.conventions import longer_than_usual, timeout_in_log


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
