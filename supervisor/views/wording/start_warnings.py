"""The warnings of pre-flight, shown where the person looks while the run begins (pure)."""

from __future__ import annotations

import re

from supervisor.run.records import Finding, FindingLevel
from supervisor.run.state import Launching, Preflight, Running, RunState

# They are shown for so long of the first attempt; the page `P` keeps all of them.
SHOWN_S = 600.0
# stoker's own flags; a sentence may name the script's beside them, which are no one's to declare.
_FLAG = re.compile(r"--(?:\w+-knob|batch-scope)\b")


def warnings_of(state: RunState) -> tuple[Finding, ...]:
    """The findings that a person should act upon."""
    return tuple(finding for finding in state.findings if finding.level is FindingLevel.WARNING)


def shown_at_start(state: RunState, now: float) -> tuple[Finding, ...]:
    """The warnings while they are news: until the first attempt ends, or ten minutes are over."""
    begins = isinstance(state.condition, (Preflight, Launching, Running)) and len(state.attempts) <= 1
    fresh = state.started_t is not None and now - state.started_t < SHOWN_S
    return warnings_of(state) if begins and fresh else ()


def in_one_line(finding: Finding) -> str:
    """A warning short enough for the line below the panes; what to declare rather than why."""
    flags = list(dict.fromkeys(_FLAG.findall(finding.what)))
    if finding.check == "restarts" and flags:
        return f"some failures will not restart: add {', '.join(flags)}"
    return f"{finding.check}: {finding.what}"
