"""Which states of a redrawn bar are points of the curve, and durations in their spellings."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.main import main
from supervisor.sources.metrics import standing_states


def printed(text: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> list[dict[str, Any]]:
    """What `stoker metrics --json` prints of a log, with carriage returns."""
    log = tmp_path / "train.log"
    log.write_bytes(text.encode())
    assert main(["metrics", "--json", str(log)]) == 0
    return [json.loads(line) for line in io.BytesIO(capsysbinary.readouterr().out)]


@pytest.mark.parametrize(
    ("states", "before", "stands"),
    [
        ([], None, []),
        ([(1, 2.0)], None, [True]),
        # `update`, then `set_postfix`: the same step first with the loss of the step before.
        ([(1, 3.0), (1, 2.0)], None, [False, True]),
        ([(1, 3.0), (1, 2.0), (2, 2.0), (2, 1.0)], None, [False, True, False, True]),
        # Several steps between two states of the counter: only what is drawn again is no other point.
        (
            [(1, 3.0), (1, 2.0), (4, 2.0), (4, 1.0), (4, 0.1), (4, 1.6)],
            None,
            [False, True, False, True, True, True],
        ),
        # `set_postfix` first: the same loss with the step before.
        ([(1, 3.0), (2, 3.0), (2, 2.0), (3, 2.0)], None, [False, True, False, True]),
        # No step is drawn twice: an equal loss is nothing but an equal loss.
        ([(1, 3.0), (2, 3.0), (3, 2.0)], None, [True, True, True]),
        # What was read last tells whether the first draws its step again.
        ([(2, 3.0), (3, 3.0)], (2, 4.0), [False, True]),
        ([(2, 3.0), (3, 3.0)], (1, 4.0), [True, True]),
        ([(2, 3.0)], (2, 3.0), [True]),
        # A state without a loss is no point, unless it is the newest.
        ([(1, None), (2, 3.0)], None, [False, True]),
        ([(1, 3.0), (2, None)], None, [True, True]),
    ],
)
def test_of_a_bar_that_is_drawn_twice_a_step_the_later_state_counts(
    states: list[tuple[float | None, float | None]],
    before: tuple[float | None, float | None] | None,
    stands: list[bool],
) -> None:
    assert standing_states(states, before) == stands


def _bar(count: int, loss: str | None, left: str = "00:10") -> str:
    shown = f", loss={loss}" if loss is not None else ""
    return f"\rEpoch 1:  25%|##        | {count}/4 [00:00<{left},  2.00s/it{shown}]"


def _set_before_counted(end: str) -> str:
    """A bar whose loss is set, and drawn, before its count."""
    losses = ["0.60", "0.59", "0.58", "0.57"]
    states = [_bar(at, loss) + _bar(at + 1, loss) for at, loss in enumerate(losses)]
    return "".join(states) + end


@pytest.mark.parametrize(
    "end",
    [
        "\n",
        "\r      \n",  # wiped
        _bar(4, "0.57", "00:00") + "\n",  # drawn once more as it closes
        "\r      \rEpoch 1/30, Train Loss: 0.58, Val Loss: 0.61\n",
    ],
    ids=["plain", "wiped", "closed", "summed up"],
)
def test_a_bar_redrawn_at_its_end_counts_each_step_once(
    end: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    found = printed(_set_before_counted(end), tmp_path, capsysbinary)
    assert [(one["step"], one["loss"]) for one in found if "step" in one] == [
        (1, 0.6),
        (2, 0.59),
        (3, 0.58),
        (4, 0.57),
    ]


def test_a_validation_s_bar_within_a_redrawn_line_is_one_point_of_its_own(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    passes = [
        f"\rValidating:  40%|####      | {at}/50 [00:01<00:02,  9.75it/s, val_loss={loss}]"
        for at, loss in ((10, 2.4), (30, 2.3), (50, 2.2))
    ]
    text = _bar(1, "0.6") + _bar(2, "0.5") + "".join(passes) + _bar(3, "0.5") + _bar(4, "0.5") + "\n"
    found = printed(text, tmp_path, capsysbinary)
    assert [(one.get("step"), one.get("loss"), one.get("val_loss")) for one in found] == [
        (1, 0.6, None),
        (2, 0.5, None),
        (None, None, 2.2),
        (3, 0.5, None),
        (4, 0.5, None),
    ]
