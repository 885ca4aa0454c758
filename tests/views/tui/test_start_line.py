"""Pre-flight warnings in the line below the panes."""

from __future__ import annotations

import msgspec
import pytest

from supervisor.run.events import Phase
from supervisor.run.records import Finding, FindingLevel
from supervisor.run.state import Running
from supervisor.views.tui.panels.notice import START_S, in_one_line, shown_at_start
from tests.views.tui.still import attempt_of, state_of

SHM = Finding(
    FindingLevel.WARNING,
    "shared memory",
    "only 8 MiB free in /dev/shm (of 64 MiB)",
    "docker run --shm-size=8g",
)
DISK = Finding(FindingLevel.WARNING, "disk", "only 500 MiB left at /runs", "free some space")
FINE = Finding(FindingLevel.OK, "shared memory", "4.0 GiB free in /dev/shm")


RUNNING = Running(attempt=1, phase=Phase.LOADING)


@pytest.mark.parametrize(
    ("condition", "age_s", "attempts", "shown"),
    [
        (RUNNING, 0.0, 1, True),
        (RUNNING, START_S - 1, 1, True),
        (RUNNING, START_S, 1, False),
        (RUNNING, 0.0, 2, False),
    ],
)
def test_warnings_are_shown_while_they_are_news(
    condition: Running, age_s: float, attempts: int, shown: bool
) -> None:
    state = msgspec.structs.replace(
        state_of(findings=(FINE, SHM, DISK)),
        condition=condition,
        started_t=100.0,
        attempts=tuple(attempt_of(number=n + 1) for n in range(attempts)),
    )
    assert shown_at_start(state, 100.0 + age_s) == ((SHM, DISK) if shown else ())
    assert shown_at_start(msgspec.structs.replace(state, started_t=None), 100.0) == ()


@pytest.mark.parametrize(
    ("check", "what", "line"),
    [
        ("disk", "only 500 MiB left", "disk: only 500 MiB left"),
        ("restarts", "steps cannot be seen", "restarts: steps cannot be seen"),
        (
            "restarts",
            "name it: --resume-knob FLAG, or --batch-scope, --resume-knob; the script has --lr-knobs",
            "some failures will not restart: add --resume-knob, --batch-scope",
        ),
        ("disk", "--resume-knob", "disk: --resume-knob"),
    ],
)
def test_a_warning_in_one_line_says_what_to_declare(check: str, what: str, line: str) -> None:
    assert in_one_line(Finding(FindingLevel.WARNING, check, what)) == line
