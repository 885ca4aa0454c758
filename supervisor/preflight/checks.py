"""Lists the checks and runs them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from supervisor.preflight import host, network, target
from supervisor.preflight.context import Check, CheckContext, note
from supervisor.run.records import Finding, FindingLevel

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
"""Checks that run before anything starts: those that can refuse a start and those that take only milliseconds."""


def beside() -> tuple[Check, ...]:
    """Return checks for keeper startup and `stoker check`. They query programs, drivers and DNS, and cannot refuse a start."""
    from supervisor.preflight import gpus  # imported here, so that no start waits for its imports

    return (
        gpus.check_gpus,
        target.check_memory,
        host.check_host_memory,
        host.check_checkpoint_space,
        network.check_master,
        host.check_stacks,
    )


def asked() -> tuple[Check, ...]:
    """Return checks that run only on request (`--deep`) because they take several seconds."""
    from supervisor.preflight import collective, meeting

    return (
        target.check_data_through,
        meeting.check_meeting,
        collective.check_collective,
        collective.check_nodes_meet,
    )


def run_checks(checks: Iterable[Check], context: CheckContext) -> list[Finding]:
    """Run `checks` in order and return their results. Checks leave nothing behind.

    If the system denies a check access, the result is a note and the start goes ahead.
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
    """Return the refusals, which prevent the start (exit code 3)."""
    return [finding for finding in findings if finding.level is FindingLevel.REFUSE]
