"""Defines the only error of this package: a job that cannot be run as requested."""

from __future__ import annotations


class JobError(Exception):
    """A job that cannot be run as requested. One line per fault. Exit code 2 (usage) or 3 (refused)."""

    def __init__(self, *lines: str, exit_code: int = 2) -> None:
        self.lines = lines
        self.message = "\n".join(lines)
        self.exit_code = exit_code
        super().__init__(self.message)


class NotResumableError(JobError):
    """The job would continue with a batch other than planned. One line."""
