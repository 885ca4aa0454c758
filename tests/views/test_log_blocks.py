"""Tracebacks as blocks: where one begins and ends, which are torchrun's own, what the one line says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.views.logs.tracebacks import Block, block_at, summary, texts_from
from tests.diagnosis.launcher_logs import REPORT, STOPPED, trace

CHAIN = [
    *trace(None, "KeyError: 'lr'"),
    "",
    "During handling of the above exception, another exception occurred:",
    "",
    *trace(None, "RuntimeError: no lr"),
]


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


def block(lines: list[str], start: int = 0) -> Block | None:
    return block_at(texts_from(lines, start))


@pytest.mark.parametrize(
    ("lines", "length"),
    [
        (trace(None, "ValueError: x"), 6),
        (CHAIN, len(CHAIN)),
        ([*trace(None, "RuntimeError: Error(s) in loading state_dict:"), "\tMissing key(s)", "    size"], 8),
        (["Current thread 0x00007f12 (most recent call first):", '  File "a.py", line 3 in f'], 2),
        (
            [
                "╭───── Traceback (most recent call last) ─────╮",
                "│ train.py:3 in f │",
                "╰──────────────────╯",
                "ValueError: x",
            ],
            4,
        ),
        (STOPPED, len(STOPPED)),
        (REPORT, len(REPORT)),
        (WORKER, len(WORKER)),
    ],
)
def test_a_traceback_reaches_to_its_last_line_and_no_further(lines: list[str], length: int) -> None:
    found = block([*lines, "step 5 loss 2.3", "", "  indented"])
    assert found is not None
    assert (found.lines, found.ended) == (length, True)


@pytest.mark.parametrize("lines", [trace(None, "ValueError: x"), REPORT])
def test_a_traceback_that_is_still_being_written_is_not_ended(lines: list[str]) -> None:
    for count in range(1, len(lines)):
        found = block(lines[:count])
        assert found is not None
        # What comes after the line that names an exception may be torchrun's table.
        assert found.ended == (count > 5 and lines is not REPORT), lines[count - 1]


BOX = ["╭─ Traceback (most recent call last) ─╮", "│ train.py:3 in f │", "╰──────╯", "ValueError: x"]


@pytest.mark.parametrize(
    ("lines", "length", "ended"),
    [
        (BOX[:1], 1, False),
        (BOX[:2], 2, False),
        (BOX[:3], 3, False),
        (BOX, 4, True),
        ([*BOX, "step 1"], 4, True),
        ([*BOX, "  more of its message", "step 1"], 5, True),
        ([*BOX[:2], "step 1"], 2, True),
        ([*BOX, "", CHAIN[7], "", *BOX, "step 1"], 11, True),
        ([*trace(None, "A: x"), "", CHAIN[7], "step 1", *BOX], 6, True),
        ([*trace(None, "A: x"), "", *BOX], 6, True),
        ([*trace(None, "A: x"), "", "The above exception was the direct cause of the following exception:", "", *BOX, "step 1"], 13, True),
        ([*trace(None, "A: x"), "", CHAIN[7], "", "", *BOX, "step 1"], 6, True),
        (["Thread 0x00007f12 [python] (most recent call first):", '  File "a.py", line 3 in f', "step 1"], 2, True),
    ],
)  # fmt: skip
def test_a_box_and_what_joins_two_tracebacks(lines: list[str], length: int, ended: bool) -> None:
    found = block(lines)
    assert found is not None
    assert (found.lines, found.ended) == (length, ended)


def test_only_torchruns_own_is_a_report() -> None:
    for lines, is_report in ((STOPPED, True), (REPORT, True), (REPORT[:20], False), (CHAIN, False)):
        found = block(lines)
        assert found is not None
        assert found.is_report == is_report
    rendezvous = [*STOPPED[:3], "torch.distributed.DistNetworkError: the port is taken"]
    found = block(rendezvous)
    assert found is not None
    assert not found.is_report, "it is the failure itself"


def test_a_report_in_one_line() -> None:
    for lines, said in (
        (STOPPED, "launcher: SignalException: Process 4242 got signal: 15"),
        (REPORT, "launcher: ChildFailedError: train.py FAILED, rank 1 exitcode 1"),
    ):
        found = block(lines)
        assert found is not None
        assert summary(lines, found) == said


def test_ordinary_lines_begin_none() -> None:
    for text in ("step 5 loss 2.3", "  indented", "", "the most recent call failed", "Traceback was printed"):
        assert block([text, "  File", "x"]) is None


@given(
    st.lists(
        st.sampled_from(
            [*trace(None, "ValueError: x"), *REPORT, "", "╭ Traceback (most recent call last) ╮", "│ x", "╰"]
        ),
        max_size=60,
    )
)
def test_a_block_never_reaches_beyond_what_there_is(lines: list[str]) -> None:
    for start in range(len(lines)):
        found = block(lines, start)
        if found is not None:
            assert 1 <= found.lines <= len(lines) - start
