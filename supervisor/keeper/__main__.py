"""``python -m supervisor.keeper RUN_DIR``: a detached keeper, until its run ends.

The job comes through stdin, secrets included: a folder alone starts nothing.

Started by `detach.start_detached` in a session of its own, its stdout and stderr in keeper.log.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from supervisor.keeper.loop import Keeper
from supervisor.keeper.process.detach import taken_over
from supervisor.run.access.lock import LockTaken
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import BadRunFile
from supervisor.sources.processes import become_subreaper


def main(argv: list[str]) -> int:
    """Carry the run in `argv[0]` to its end; the exit code of the run."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    run = RunPaths(Path(argv[0]))
    try:
        record, findings, continued_by = taken_over(sys.stdin.buffer.read())
        keeper = Keeper(run, record, env=os.environ, findings=findings, continued_by=continued_by)
    except (BadRunFile, LockTaken, OSError) as error:
        logging.error("%s", error)  # noqa: LOG015 - the process's own log, set up above
        return 2
    become_subreaper()
    keeper.install_signal_handlers()
    why = "the keeper crashed: see keeper.log"
    try:
        code = keeper.carry()
        why = "the run ended"
    finally:
        # Whatever happened here, training goes on: its processes are left as they are, the lock is let
        # go, and `stoker attach --adopt` takes them over.
        keeper.close(why)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
