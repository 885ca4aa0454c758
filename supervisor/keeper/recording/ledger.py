"""The journal and the state that it folds to, kept in step: a fact is written, then it counts."""

from __future__ import annotations

import logging

from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.fold import fold
from supervisor.run.journal import JournalWriter, read_state, without_secrets
from supervisor.run.paths import NodePaths
from supervisor.text.redact import Redactor

log = logging.getLogger("stoker.keeper")


class Ledger:
    """One node's facts. Only the keeper that holds the lock may have one.

    `redactor`: takes secrets out of every event before it is written and counts, so that a replay gives the same state.

    Attributes:
        state: what all facts so far fold to.
        adopted: another keeper had begun this journal.

    Raises:
        OSError: the journal cannot be opened.
    """

    def __init__(self, node: NodePaths, redactor: Redactor | None = None) -> None:
        self.redactor = redactor or Redactor()
        self.adopted = node.journal.exists() and node.journal.stat().st_size > 0
        self.state = read_state(node.journal) if self.adopted else st.RunState()
        self._journal = JournalWriter(node.journal)

    def emit(self, event: ev.Event, *, durable: bool = False) -> None:
        """Journal a fact, then fold it. A full disk costs the line, never the run."""
        event = without_secrets(event, self.redactor)
        try:
            self._journal.append(event, durable=durable)
        except OSError as error:
            log.error("journal: %s: a fact was not written: %s", error.strerror, type(event).__name__)
        self.state = fold(self.state, event)

    def close(self) -> None:
        """No more facts."""
        self._journal.close()
