"""The checks that a start waits for, and how checks are made. What it does not wait for: `later_checks.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from supervisor.preflight import host, network, target
from supervisor.preflight.context import Check, CheckContext, note
from supervisor.run.records import Finding, FindingLevel

# Made before anything starts: what may refuse a start, and what costs a few milliseconds.
BEFORE: Final[tuple[Check, ...]] = (
    target.check_knobs,
    target.check_script,
    target.check_data,
    target.check_resume,
    target.check_allocation,
    network.check_port,
    host.check_runs_dir,
    host.check_disk,
    host.check_shm,
    host.check_open_files,
    host.check_cores,
)


def run_checks(checks: Iterable[Check], context: CheckContext) -> list[Finding]:
    """What `checks` find, in their order; none of them writes anything that stays.

    What the system does not let a check look at is a note, and stops no start.
    """
    found: list[Finding] = []
    for check in checks:
        try:
            found += check(context)
        except OSError as error:
            name = check.__name__.removeprefix("check_").replace("_", " ")
            found.append(note(name, f"could not be looked at: {error.strerror or error}"))
    return found


def refused(findings: Sequence[Finding]) -> list[Finding]:
    """The findings that forbid a start (exit code 3)."""
    return [finding for finding in findings if finding.level is FindingLevel.REFUSE]
