"""Times, silences, losses and messages of a log: each form once, and what is just beside it."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.root_cause import fingerprint, plain_form
from supervisor.diagnosis.scan.log_timeline import (
    bar_went_on,
    ends_in_nan,
    is_progress,
    progress_rows,
    silence,
    went_on,
)
from supervisor.diagnosis.scan.matched_lines import SourceScan
from supervisor.run.failures import FailureClass, Reason
from supervisor.text.prefixes import Origin


def step(second: int, number: int) -> str:
    return f"2026-01-01 10:{second // 60:02d}:{second % 60:02d} step {number} loss 2.0"


def test_how_long_it_was_silent_at_the_end() -> None:
    lines = [step(10 * at, at) for at in range(6)]
    assert silence([*lines, "2026-01-01 10:05:00 stopped"]) == (250.0, 10.0, 10.0)
    assert silence(lines) is None, "nothing came later"
    assert silence([*lines[:1], "2026-01-01 10:05:00 a", "2026-01-01 10:06:00 b"]) is None, (
        "one step has no pace"
    )
    two = [*lines[:2], "2026-01-01 10:05:00 a"]
    assert silence(two) == (290.0, 10.0, 10.0)
    assert silence(two[:2]) is None
    gaps = [*lines, "2026-01-01 10:01:00 a", "2026-01-01 10:09:00 b", "2026-01-01 10:09:01 c"]
    assert silence(gaps) == (480.0, 10.0, 10.0), "the largest"


def test_training_that_goes_on_without_times_was_not_silent() -> None:
    lines = [step(10 * at, at) for at in range(4)]
    few = [f"step {at} loss 2.0" for at in range(4, 10)]
    many = [f"step {at} loss 2.0" for at in range(4, 12)]
    end = ["2026-01-01 10:30:00 stopped"]
    assert silence([*lines, *few, *end]) is not None
    assert silence([*lines, *many, *end]) is None


@pytest.mark.parametrize(
    ("text", "progress"),
    [
        ("step 5 loss 2.0", True),
        ("epoch 3 begins", True),
        ("srun: step 5 loss 2.0", False),
        ("config step 5 loss 2.0", False),
        ('  File "a.py" step 5 loss 2.0', False),
        ("ValueError: step 5 loss 2.0", False),
        ("hello", False),
    ],
)
def test_training_s_own_lines(text: str, progress: bool) -> None:
    assert is_progress(text) is progress
    assert progress_rows(["x", text]) == ([1] if progress else [])


def test_training_goes_on_where_three_lines_differ() -> None:
    lines = [f"step {at} loss 2.0" for at in range(3)]
    assert went_on(lines)
    assert not went_on(lines[:2])
    assert not went_on([lines[0]] * 9)
    assert went_on(lines[:1], need=1)
    assert not went_on([])


@pytest.mark.parametrize(
    ("losses", "row"),
    [
        (["2.0", "nan", "nan", "nan"], 1),
        (["2.0", "nan", "nan"], None),
        (["2.0", "inf", "nan", "inf"], 1),
        (["nan", "nan", "nan", "2.0"], None),
        (["2.0", "nan", "2.0", "nan", "nan", "nan"], 3),
        (["nan"], 0),
        (["inf"], None),
        (["2.0", "-inf", "-inf", "-inf"], 1),
        (["2.0"], None),
    ],
)
def test_a_loss_that_is_no_number_to_the_end(losses: list[str], row: int | None) -> None:
    lines = [f"step {at} loss: {loss}" for at, loss in enumerate(losses)]
    assert ends_in_nan(lines) == row
    # A dash behind the word is no number.
    assert ends_in_nan([*lines, "training_loss -> shape: [1, 16]"]) == row


# -- the same failure again ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("2026-01-01 10:00:00 [rank3]: KeyError: 17", "KeyError: #"),
        ("KeyError: 17 in /a/b/c.py at 0x7fAB", "KeyError: # in /c.py at #"),
        ("host 10.0.0.12 lost  twice", "host # lost twice"),
        (r"no C:\data\x.bin", "no /x.bin"),
        ("x" * 400, "x" * 300),
    ],
)
def test_a_message_without_what_changes(text: str, form: str) -> None:
    assert plain_form(text) == form


def test_a_fingerprint_is_of_class_reason_and_message() -> None:
    one = fingerprint(FailureClass.CUDA_OOM, None, "at 0x1")
    assert len(one) == 16
    assert one == fingerprint(FailureClass.CUDA_OOM, None, "at 0x2")
    others = {
        fingerprint(FailureClass.HOST_OOM, None, "at 0x1"),
        fingerprint(FailureClass.CUDA_OOM, Reason.USER, "at 0x1"),
        fingerprint(FailureClass.CUDA_OOM, None, "elsewhere"),
    }
    assert len(others | {one}) == 4
    assert fingerprint(FailureClass.UNKNOWN, None, "") == f"{_fnv('unknown||')}"


def _fnv(text: str) -> str:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return f"{value:016x}"


# -- a rank's last words -----------------------------------------------------------------------------------------


def scan(origin: Origin, *tail: str) -> SourceScan:
    return SourceScan("err.log", origin, (), len(tail), 0, (), tail, 10)


def test_the_edges_of_a_log_hold_each_line_once() -> None:
    whole = SourceScan("l", Origin(), (), 2, 0, ("a", "b"), ("a", "b"), 1)
    assert whole.edges() == ("a", "b")
    cut = whole._replace(tail=("y", "z"), tail_line=2)
    assert cut.edges() == ("a", "b", "y", "z")
    assert list(cut.numbered_tail()) == [(2, "y"), (3, "z")]


def test_a_bare_clock_is_of_no_use_beside_dates() -> None:
    """A bar's elapsed time names no day: against a date it would be a silence of years."""
    bar = " 2%|# | {n}/11206 [13:41:09<566:25:39, 186.38s/it] step: {n}"
    dated = [f"2025-08-11 19:{minute:02d}:00 step: {minute}" for minute in range(10)]
    stop = "2025-08-11 19:10:30 stopped"
    assert silence([*dated, stop]) == (90.0, 60.0, 60.0)
    assert silence([bar.format(n=1), *dated, bar.format(n=2), stop]) is None, (
        "the bar continued without a date"
    )


def test_a_silence_is_measured_against_the_longest_pause_too() -> None:
    lines = [f"2026-01-01 10:{minute:02d}:00 step {minute}" for minute in (0, 1, 2, 3, 30, 31)]
    assert silence([*lines, "2026-01-01 10:55:00 stopped"]) == (24 * 60.0, 60.0, 27 * 60.0)


@pytest.mark.parametrize(
    ("before", "after", "went_on"),
    [
        (b" 2%| | 108/5153 [08:05<1", b" 2%| | 109/5153 [08:09<1 2%| | 120/5153 [09:05<1", True),
        (b" 2%| | 108/5153 [08:05<1", b" 2%| | 109/5153 [08:09<1", False),
        (b" 2%| | 108/5153 [08:05<1", b" 2%| | 120/999 [09:05<1", False),
        (b" 0%| | 0/5153 [00:00<1", b" 2%| | 120/5153 [09:05<1", False),
        (b"", b" 2%| | 120/5153 [09:05<1", False),
        (b" 2%| | 108/5153 [08:05<1", b"Traceback\n 2%| | 120/5153 [09:05<1", False),
    ],
)
def test_whether_a_bar_went_on(before: bytes, after: bytes, went_on: bool) -> None:
    assert bar_went_on(before, after) is went_on
