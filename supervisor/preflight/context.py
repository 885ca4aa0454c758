"""Defines a check: a function that examines one aspect of a job and its machine and yields its findings."""

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
"""The check of what the script's flags let a restart do."""


@dataclass(frozen=True, slots=True)
class CheckContext:
    """The inputs of the checks besides the job itself.

    `env`: the launch's environment. `interpreter`: the one that launches the job; None if none was found.
    """

    spec: JobSpec
    runs_dir: Path
    env: Mapping[str, str]
    interpreter: Interpreter | None = None

    @property
    def job_env(self) -> dict[str, str]:
        """The same with the job's own variables added: the environment of its ranks."""
        return {**self.env, **dict(self.spec.env)}


Check = Callable[[CheckContext], Iterator[Finding]]


def ok(check: str, what: str) -> Finding:
    """Checked, and nothing to do."""
    return Finding(FindingLevel.OK, check, what)


def note(check: str, what: str, fix: str = "") -> Finding:
    """Worth knowing; nothing is wrong."""
    return Finding(FindingLevel.INFO, check, what, fix)


def warn(check: str, what: str, fix: str = "") -> Finding:
    """May end the run or slow it down."""
    return Finding(FindingLevel.WARNING, check, what, fix)


def refuse(check: str, what: str, fix: str = "") -> Finding:
    """The start cannot succeed: it ends with exit code 3."""
    return Finding(FindingLevel.REFUSE, check, what, fix)


def existing_parent(folder: Path) -> Path:
    """The nearest existing folder: this one or an ancestor."""
    parent = folder.absolute()
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    return parent
