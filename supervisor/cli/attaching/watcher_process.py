"""The process that watches beside a screen: its words are RUN_DIR TARGET INTERVAL_S PIPE KEEP LOCK_FD.

It ends when its stdin does, so that it never outlives the screen that started it, however that ended. The run directory
was begun by the screen's process, which handed over the lock: from its start this process is the only writer.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from supervisor import LOAD_THIS_COPY
from supervisor.keeper.observer.start_observed import ObservedRun
from supervisor.run.paths import RunPaths

# A last verdict reads what was not read yet, as far as it comes; without `keep` nobody would see it.
END_S = 5.0
END_KEPT_S = 60.0
READ_KEPT_S = 30.0
NO_PIPE = -1
NICENESS = 5
"""What watches yields to what is watched, and to the screen, once the end of a long log is judged: reading a gigabyte again is nobody's hurry."""
# It is loaded once the screen is painted; a screen that takes longer than this is not waited for.
GO_S = 3.0


class Watcher:
    """An observer in a process of its own, while the context lasts.

    Args:
        run: the claimed run directory; its keeper.log takes what goes wrong.
        target: what to watch, as typed.
        observed: the run directory, begun; handed over here.
        interval_s: seconds between sensor readings.
        pipe: the descriptor to read for ``-``.
        keep: the run directory stays: give a last verdict.
    """

    def __init__(
        self,
        run: RunPaths,
        target: str,
        observed: ObservedRun,
        *,
        interval_s: float,
        pipe: int | None = None,
        keep: bool = False,
    ) -> None:
        self._keep = keep
        lock = observed.hand_over()
        words = [
            str(run.root),
            target,
            repr(interval_s),
            str(NO_PIPE if pipe is None else pipe),
            str(int(keep)),
            str(lock),
        ]
        try:
            with open(run.node().log, "ab") as log:
                # A session of its own: Ctrl-C and the hang-up of the terminal are the screen's business.
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-c", BOOTSTRAP, __name__, *words],
                    stdin=subprocess.PIPE,
                    bufsize=0,
                    stdout=log,
                    stderr=log,
                    pass_fds=(lock,) if pipe is None else (lock, pipe),
                    start_new_session=True,
                )
        finally:
            observed.lock.release()  # here only: what the child inherited stays locked
        if pipe is not None:
            os.close(pipe)

    def go(self) -> None:
        """The screen is painted: what watches may be loaded now. Two such programs at once come up half as fast."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.write(b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keep:
            self.go()  # left before it was painted: a last verdict all the same
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            self.process.wait(END_KEPT_S if self._keep else END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


BOOTSTRAP = f"""\
import os, select, sys
select.select([0], [], [], {GO_S})[0] and (os.read(0, 1) or sys.exit(0))
{LOAD_THIS_COPY}
sys.exit(importlib.import_module(sys.argv[1]).main(sys.argv[2:]))
"""


def main(argv: list[str]) -> int:
    """Watch until stdin ends."""
    from supervisor.cli.attaching.observe_target import observer_of
    from supervisor.cli.common import complain
    from supervisor.cli.job_logs import BadInputError
    from supervisor.keeper.base.keeper_clock import SystemClock

    root, target, interval, pipe, keep, lock = argv
    run = RunPaths(Path(root))
    try:
        observed = ObservedRun.inherited(run, int(lock), clock=SystemClock())
    except OSError as error:
        if not run.root.exists():
            return 0  # the screen was left before this process had come up
        return complain("attach", f"{error.filename}: {error.strerror}", 1)
    try:
        observer, _ = observer_of(
            run,
            target,
            interval_s=float(interval),
            pipe=None if int(pipe) == NO_PIPE else int(pipe),
            observed=observed,
        )
    except BadInputError as error:
        return complain("attach", error)
    observer.start()
    while os.read(0, 1):
        continue
    observer.leave(hurried=keep == "0", patience_s=READ_KEPT_S)
    return 0
