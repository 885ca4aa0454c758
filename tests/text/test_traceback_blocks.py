"""Tracebacks as blocks: where one begins and ends, which are torchrun's own, what the one line says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.text.tracebacks import Block, block_at, summary
from tests.diagnosis.launcher_logs import REPORT, STOPPED, trace

JOINT = "During handling of the above exception, another exception occurred:"
CHAIN = [*trace(None, "KeyError: 'lr'"), "", JOINT, "", *trace(None, "RuntimeError: no lr")]
WORKER = [
    *trace(None, "RuntimeError: Caught RuntimeError in DataLoader worker process 0."),
    *(
        line.replace("Traceback", "Original Traceback")
        for line in trace(None, "RuntimeError: CUDA error: device-side assert")
    ),
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
]
BOX = ["╭─ Traceback (most recent call last) ─╮", "│ train.py:3 in f │", "╰──────╯", "ValueError: x"]
STACK = ["Current thread 0x00007f12 (most recent call first):", '  File "a.py", line 3 in f']


def block(lines: list[str], start: int = 0) -> Block | None:
    return block_at(lambda n: lines[start + n] if start + n < len(lines) else None)


@pytest.mark.parametrize(
    ("lines", "length"),
    [
        (trace(None, "ValueError: x"), 6),
        (CHAIN, len(CHAIN)),
        ([*trace(None, "RuntimeError: Error(s) in loading state_dict:"), "\tMissing key(s)", "    size"], 8),
        (STACK, 2),
        (BOX, 4),
        ([*BOX, "  more of its message"], 5),
        ([*BOX, "", JOINT, "", *BOX], 11),
        ([*trace(None, "A: x"), "", JOINT, "step 1", *BOX], 6),
        ([*trace(None, "A: x"), "", *BOX], 6),
        (STOPPED, len(STOPPED)),
        (REPORT, len(REPORT)),
        (WORKER, len(WORKER)),
    ],
)
def test_a_traceback_reaches_to_its_last_line_and_no_further(lines: list[str], length: int) -> None:
    found = block([*lines, "step 5 loss 2.3", "", "  indented"])
    assert found is not None
    assert found.lines == length


def test_torchruns_own_traceback_is_said_in_one_line_once_it_is_whole() -> None:
    for lines, said in (
        (STOPPED, "launcher: SignalException: Process 4242 got signal: 15"),
        (REPORT, "launcher: ChildFailedError: train.py FAILED, rank 1 exitcode 1"),
    ):
        found = block(lines)
        assert found is not None
        assert found.is_report
        assert summary(lines, found) == said
    rendezvous = [*STOPPED[:3], "torch.distributed.DistNetworkError: the port is taken"]
    for lines in (REPORT[:20], CHAIN, rendezvous):
        found = block(lines)
        assert found is not None
        assert not found.is_report


def test_ordinary_lines_begin_none() -> None:
    for text in ("step 5 loss 2.3", "  indented", "", "the most recent call failed", "Traceback was printed"):
        assert block([text, "  File", "x"]) is None


@given(st.lists(st.sampled_from([*trace(None, "ValueError: x"), *REPORT, "", *BOX]), max_size=60))
def test_a_block_never_reaches_beyond_what_there_is(lines: list[str]) -> None:
    for start in range(len(lines)):
        found = block(lines, start)
        if found is not None:
            assert 1 <= found.lines <= len(lines) - start
