"""Defines a check: a function that examines one aspect of a job or its machine and yields its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from supervisor.job.spec import JobSpec
from supervisor.preflight.interpreter import Interpreter
from supervisor.run.records import Finding, FindingLevel

GIB: Final = 2**30

KNOBS_CHECK: Final = "restarts"
"""The name of the check that reports what a restart can do, given the script's flags."""


@dataclass(frozen=True, slots=True)
class CheckContext:
    """Inputs to the checks.

    `env` is the environment of the launch. `interpreter` is what launches the job, or None if none was found.
    """

    spec: JobSpec
    runs_dir: Path
    env: Mapping[str, str]
    interpreter: Interpreter | None = None

    @property
    def job_env(self) -> dict[str, str]:
        """The environment of the job's ranks: `env` plus the job's own variables."""
        return {**self.env, **dict(self.spec.env)}


Check = Callable[[CheckContext], Iterator[Finding]]


def ok(check: str, what: str) -> Finding:
    """Return a result that requires no action."""
    return Finding(FindingLevel.OK, check, what)


def note(check: str, what: str, fix: str = "") -> Finding:
    """Return a result that is worth knowing but is not a problem."""
    return Finding(FindingLevel.INFO, check, what, fix)


def warn(check: str, what: str, fix: str = "") -> Finding:
    """Return a result for something that may kill the run or slow it down."""
    return Finding(FindingLevel.WARNING, check, what, fix)


def refuse(check: str, what: str, fix: str = "") -> Finding:
    """Return a result that refuses a start that cannot succeed (exit code 3)."""
    return Finding(FindingLevel.REFUSE, check, what, fix)


def existing_parent(folder: Path) -> Path:
    """Return the nearest folder that exists: this one or an ancestor."""
    parent = folder.absolute()
    while not parent.exists():
        parent = parent.parent
    return parent
