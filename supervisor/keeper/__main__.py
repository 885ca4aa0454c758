"""``python -m supervisor.keeper RUN_DIR``: runs a detached keeper until its run ends.

The job arrives on stdin, secrets included. A run directory alone is not enough to start anything.

Started by `detach.start_detached` in its own session, with stdout and stderr going to keeper.log.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from supervisor.keeper.loop import Group, Keeper
from supervisor.keeper.process.detach import taken_over
from supervisor.run.node_files import LEADER
from supervisor.run.ownership import LockTaken
from supervisor.run.paths import RunPaths
from supervisor.run.records import Finding
from supervisor.run.runfile import BadRunFile, RunFile
from supervisor.sources.processes import become_subreaper
from supervisor.text.decode import printable
from supervisor.text.redact import redact_text


def make_keeper(
    run: RunPaths,
    record: RunFile,
    *,
    env: Mapping[str, str],
    findings: tuple[Finding, ...] = (),
    continued_by: str = "",
) -> Keeper:
    """Return the keeper for a single-machine run, or for this node of a multi-node run.

    Raises:
        LockTaken, OSError: see `Keeper`.
    """
    group: Group | None = None
    if record.settings.shared and record.node == LEADER:
        from supervisor.keeper.leader import Leading

        group = Leading(run, record, continued_by=continued_by)
    elif record.settings.shared:
        from supervisor.keeper.follower import Following, quiet

        record, continued_by = quiet(record), ""
        group = Following(run, record)
    return Keeper(run, record, env=env, findings=findings, continued_by=continued_by, group=group)


Beside: TypeAlias = Callable[[RunPaths, RunFile, Keeper], Callable[[bool], None]]
"""Starts code in the keeper's process and returns its cleanup, which takes True if the run ended without a crash."""


def main(argv: list[str], *, beside: Beside | None = None) -> int:
    """Run the job in `argv[0]` to completion and return its exit code. `beside` starts code that shares this process."""
    _log_without_secrets()
    run = RunPaths(Path(argv[0]))
    try:
        record, findings, continued_by = taken_over(sys.stdin.buffer.read())
        keeper = make_keeper(run, record, env=os.environ, findings=findings, continued_by=continued_by)
    except (BadRunFile, LockTaken, OSError) as error:
        logging.error("%s", error)  # noqa: LOG015 - the process's own log, set up above
        return 2
    become_subreaper()
    keeper.install_signal_handlers()
    wrap_up = beside(run, record, keeper) if beside is not None else None
    why = "the keeper crashed: see keeper.log"
    try:
        code = keeper.run_to_end()
        why = "the run ended"
    finally:
        # Whatever happened here, training continues. Its processes keep running, the lock is released, and
        # `stoker attach --adopt` takes the processes over.
        keeper.close(why)
        logging.info("keeper %d ends: %s", os.getpid(), why)  # noqa: LOG015
        if wrap_up is not None:
            wrap_up(why == "the run ended")
    return code


class _Formatter(logging.Formatter):
    """Hides secrets and terminal escapes in the commands, paths and errors of keeper.log."""

    def format(self, record: logging.LogRecord) -> str:
        return _shown(super().format(record))


def _shown(lines: str) -> str:
    return "\n".join(map(printable, redact_text(lines).split("\n")))


def _log_without_secrets() -> None:
    """Set up keeper.log for the keeper's messages and for crash tracebacks."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])

    def report(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        print(_shown("".join(traceback.format_exception(kind, error, trace))), file=sys.stderr, end="")

    sys.excepthook = report
    threading.excepthook = lambda found: report(found.exc_type, found.exc_value, found.exc_traceback)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
