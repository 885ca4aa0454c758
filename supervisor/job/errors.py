"""Defines this package's only kind of error: a job that cannot be run as requested."""

from __future__ import annotations


class JobError(Exception):
    """A job cannot be run as requested. The message has one line per problem. The exit code is 2 (usage) or 3 (refused)."""

    def __init__(self, *lines: str, exit_code: int = 2) -> None:
        self.lines = lines
        self.message = "\n".join(lines)
        self.exit_code = exit_code
        super().__init__(self.message)


class NotResumableError(JobError):
    """The job would continue with a different batch than planned. The message is a single line."""
