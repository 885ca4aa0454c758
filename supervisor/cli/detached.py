"""Run a detached keeper and write the console output to a file, as in a run without the TUI.

`keeper.process.detach` starts this module by name. The command line supplies the name (`cli.common.WITH_LOG`) because
the keeper itself imports no view.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Final

from supervisor.keeper.__main__ import main as carry
from supervisor.keeper.base.job_secrets import redactor_of
from supervisor.keeper.loop import Keeper
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import RunFile

if TYPE_CHECKING:
    from supervisor.views.headless.console import ConsoleView

BEGIN_S: Final = 1.0
"""Delay before the view is loaded, so the launcher starts first. The view still reads the journal from the start."""


def main(argv: list[str]) -> int:
    """Run the job in `argv[0]` to completion and return the run's exit code."""
    return carry(argv, beside=lambda run, record, keeper: ConsoleLog(run, record, keeper).finish)


class ConsoleLog:
    """Writes a run's console output to a file among its artifacts until `finish` is called."""

    def __init__(self, run: RunPaths, record: RunFile, keeper: Keeper) -> None:
        self._run, self._record, self._keeper = run, record, keeper
        self._view: ConsoleView | None = None
        self._timer = threading.Timer(BEGIN_S, self._begin)
        self._timer.name = "stoker-console-log"
        if keeper.adopted:  # the previous keeper's file has the earlier events of the journal
            self._begin()
        else:
            self._timer.start()

    def _begin(self) -> None:
        from supervisor.views.headless.console import ConsoleSettings, ConsoleView, console_file

        settings = ConsoleSettings(
            stdout=None,
            log_file=console_file(self._run, self._record.node),
            redactor=redactor_of(self._record.job, os.environ),
        )
        self._view = ConsoleView(self._run, settings, node=self._record.node, only_news=self._keeper.adopted)
        self._view.start()

    def finish(self, ended: bool) -> None:
        """Write the remaining lines, followed by the run's summary if it has `ended`."""
        self._timer.cancel()
        if self._timer.ident is not None:
            self._timer.join()
        try:
            if self._view is None:
                self._begin()
            if self._view is not None:
                self._view.finish(with_story=ended and not self._keeper.astray)
        except Exception:  # a failed write does not change the run's outcome
            logging.exception("the console log could not be finished")  # noqa: LOG015 - as in keeper.__main__
