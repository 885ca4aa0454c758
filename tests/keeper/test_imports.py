"""A first launch waits for no import that it does not need: on two cores torchrun's start is all there is to gain."""

from __future__ import annotations

import subprocess
import sys

LATER = (
    "supervisor.sources.metrics",
    "supervisor.diagnosis.verdict",
    "supervisor.sources.stacks.python_stacks",
    "hyperscan",
    "watchdog",
)


def test_the_loop_loads_without_what_only_a_running_attempt_needs() -> None:
    code = f"import sys, supervisor.keeper.loop; print([name for name in {LATER!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
