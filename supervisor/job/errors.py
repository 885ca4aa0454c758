"""The one error of this package: a job that cannot be run as asked."""

from __future__ import annotations


class JobError(Exception):
    """A job that cannot be run as asked: one line for the user, exit code 2 (usage) or 3 (refused)."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


class NotResumableError(JobError):
    """What was decided would continue with another batch than was planned: one line."""
