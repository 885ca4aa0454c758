"""What a start asks of other programs, while stoker still loads what it needs to continue: the interpreter for its torch, git for the commit."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from supervisor.job.spec import JobSpec
from supervisor.preflight.interpreter import Asked, begin_to_ask

GIT_TIMEOUT_S = 3.0


class StartupProbes:
    """Asks the target interpreter for its torch, and git for the commit.

    Args:
        spec: the job.
        env: the environment.
        commit: whether the commit is wanted.
    """

    def __init__(self, spec: JobSpec, env: Mapping[str, str], *, commit: bool) -> None:
        self.interpreter: Asked | None = begin_to_ask(spec, env)
        self._git = _describe(spec.cwd) if commit else None

    def commit(self) -> str | None:
        """The commit of the user's checkout, with "+" when it has changes; None where there is none."""
        if self._git is None:
            return None
        with self._git as process:
            try:
                head, _ = process.communicate(timeout=GIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                return None
        return head.strip() or None if process.returncode == 0 else None

    def close(self) -> None:
        """End what was asked and is not waited for: the start was refused."""
        for process in (self.interpreter.process if self.interpreter else None, self._git):
            if process is not None and process.returncode is None:
                process.kill()
                with process:
                    process.wait()


def _describe(cwd: str) -> subprocess.Popen[str] | None:
    try:
        return subprocess.Popen(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            text=True,
        )
    except OSError:
        return None
