"""The run that a keeper supervises, as its parts are handed it: paths, job, clock, and the journal with its state."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from supervisor.keeper.clock import Clock
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.fold import fold
from supervisor.run.journal import JournalWriter, read_state, without_secrets
from supervisor.run.paths import NodePaths, RunPaths
from supervisor.run.runfile import RunFile
from supervisor.text.redact import Redactor

log = logging.getLogger("stoker.keeper")


class Ledger:
    """The journal of one node and its state. Only the keeper that holds the lock may have one.

    `redactor`: takes secrets out of every event before it is written and counts, so that a replay gives the same state.

    Attributes:
        state: the fold of all events so far.
        adopted: another keeper had begun this journal.

    Raises:
        OSError: the journal cannot be opened.
    """

    def __init__(self, node: NodePaths, redactor: Redactor | None = None) -> None:
        self.redactor = redactor or Redactor()
        self.adopted = node.journal.exists() and node.journal.stat().st_size > 0
        self.state = read_state(node.journal) if self.adopted else st.RunState()
        self._journal = JournalWriter(node.journal)
        self._unwritten: deque[tuple[ev.Event, bool]] = deque()

    def emit(self, event: ev.Event, *, durable: bool = False) -> None:
        """Journal an event, then fold it. What a full disk refuses is written later, in order."""
        event = without_secrets(event, self.redactor)
        self._unwritten.append((event, durable))
        self.flush()
        self.state = fold(self.state, event)

    def flush(self) -> None:
        """Write what could not be written so far."""
        while self._unwritten:
            try:
                self._journal.append(self._unwritten[0][0], durable=self._unwritten[0][1])
            except OSError as error:
                if len(self._unwritten) == 1:
                    log.error("journal: %s: facts wait until they can be written", error.strerror)
                return
            self._unwritten.popleft()

    def close(self) -> None:
        """Close the journal."""
        self.flush()
        if self._unwritten:
            log.error("journal: %d facts could not be written", len(self._unwritten))
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
