"""The run that a keeper supervises, as its parts are handed it: paths, job, clock, and the journal with its state."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from supervisor.keeper.clock import Clock
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.fold import fold
from supervisor.run.journal import JournalWriter, read_state
from supervisor.run.paths import NodePaths, RunPaths
from supervisor.run.runfile import RunFile

log = logging.getLogger("stoker.keeper")


class Ledger:
    """The journal of one node and its state. Only the keeper that holds the lock may have one.

    Attributes:
        state: the fold of all events so far.
        adopted: another keeper had begun this journal.

    Raises:
        OSError: the journal cannot be opened.
    """

    def __init__(self, node: NodePaths) -> None:
        self.adopted = node.journal.exists() and node.journal.stat().st_size > 0
        self.state = read_state(node.journal) if self.adopted else st.RunState()
        self._journal = JournalWriter(node.journal)

    def emit(self, event: ev.Event, *, durable: bool = False) -> None:
        """Journal an event, then fold it. On a full disk the line is lost, never the run."""
        try:
            self._journal.append(event, durable=durable)
        except OSError as error:
            log.error("journal: %s: a fact was not written: %s", error.strerror, type(event).__name__)
        self.state = fold(self.state, event)

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()


@dataclass(frozen=True, slots=True)
class RunContext:
    """Where a run is, what it runs, and where its events go.

    `record`: the job and its settings as they were at the start. `env`: the environment that the user gave.
    `ledger`: the journal and the state that it folds to.
    """

    run: RunPaths
    node: NodePaths
    record: RunFile
    env: Mapping[str, str]
    clock: Clock
    ledger: Ledger
