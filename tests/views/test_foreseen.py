"""A failure that a warning from before the start bears on quotes it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from supervisor.run.events import Phase, PreflightFound
from supervisor.run.records import FailureClass, Finding, FindingLevel
from supervisor.run.state import Running
from supervisor.views.wording.start_warnings import (
    BEARING,
    SHOWN_S,
    foreseen,
    in_one_line,
    shown_at_start,
)
from tests.keeper.fakes import run_in
from tests.views.test_console import journal, printed
from tests.views.tui.still import attempt_of, state_of

PREFLIGHT = Path(__file__).parents[2] / "supervisor" / "preflight"
SHM = Finding(
    FindingLevel.WARNING,
    "shared memory",
    "only 8 MiB free in /dev/shm (of 64 MiB)",
    "docker run --shm-size=8g",
)
DISK = Finding(FindingLevel.WARNING, "disk", "only 500 MiB left at /runs", "free some space")
FINE = Finding(FindingLevel.OK, "shared memory", "4.0 GiB free in /dev/shm")


def test_every_name_in_the_table_is_one_that_a_check_gives() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in PREFLIGHT.glob("*.py"))
    given = set(re.findall(r'\b(?:ok|note|warn|refuse)\(\s*"([^"]+)"', source))
    given |= set(re.findall(r'FindingLevel\.\w+,\s*"([^"]+)"', source))
    assert frozenset().union(*BEARING.values()) <= given


@pytest.mark.parametrize(
    ("failure", "found"),
    [
        (FailureClass.SHM_EXHAUSTED, (SHM,)),
        (FailureClass.DATALOADER_WORKER, (SHM,)),
        (FailureClass.DISK_FULL, (DISK,)),
        (FailureClass.CODE_ERROR, ()),
        (FailureClass.CUDA_OOM, ()),
    ],
)
def test_only_warnings_that_bear_on_it(failure: FailureClass, found: tuple[Finding, ...]) -> None:
    assert foreseen(state_of(findings=(FINE, SHM, DISK)), failure) == found


def test_headless_it_follows_the_verdict(tmp_path: Path) -> None:
    known = Finding(FindingLevel.WARNING, "host memory", "1.0 GiB free for 4 ranks")
    first, *rest = journal()
    text = printed(run_in(tmp_path, first, PreflightFound(t=first.t, finding=known), *rest))
    assert "[WARNING]" in text
    assert text.index("out of memory on rank 1") < text.index(
        "found before the start: host memory: 1.0 GiB free for 4 ranks"
    )


RUNNING = Running(attempt=1, phase=Phase.LOADING)


@pytest.mark.parametrize(
    ("condition", "age_s", "attempts", "shown"),
    [
        (RUNNING, 0.0, 1, True),
        (RUNNING, SHOWN_S - 1, 1, True),
        (RUNNING, SHOWN_S, 1, False),
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
