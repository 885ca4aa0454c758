"""The run that a keeper supervises, as its parts are handed it: paths, job, clock, and the journal with its state."""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from supervisor.keeper.clock import Clock
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.fold import fold, merge_progress
from supervisor.run.journal import JournalWriter, read_state, without_secrets
from supervisor.run.paths import NodePaths, RunPaths
from supervisor.run.runfile import RunFile
from supervisor.text.redact import Redactor

log = logging.getLogger("stoker.keeper")

MOST_WAITING = 10_000
"""Events kept while the journal cannot be written, of about 1 KB each: three hours at one a second. From then on what was
progress is kept as the newest alone."""
MOST_MINIMA = 64


class Ledger:
    """The journal of one node and its state. Only the keeper that holds the lock may have one.

    `redactor`: takes secrets out of every event before it is written and counts, so that a replay gives the same state.

    Attributes:
        state: the fold of all events so far.
        adopted: another keeper had begun this journal.
        trouble: why events wait in memory; empty while they are written.

    Raises:
        OSError: the journal cannot be opened.
    """

    def __init__(self, node: NodePaths, redactor: Redactor | None = None) -> None:
        self.redactor = redactor or Redactor()
        self.adopted = node.journal.exists() and node.journal.stat().st_size > 0
        self.state = read_state(node.journal) if self.adopted else st.RunState()
        self._journal = JournalWriter(node.journal)
        self.trouble, self._closed = "", False
        self._unwritten: deque[tuple[ev.Event, bool]] = deque()

    @property
    def size(self) -> int:
        """Bytes of the journal; 0 while they cannot be had."""
        try:
            return self._journal.size
        except OSError:
            return 0

    def astray(self) -> str:
        """Where the journal went, with the run's folder, whose name was deleted or moved away; empty: it is in its place."""
        return self._journal.astray()

    def emit(self, event: ev.Event, *, durable: bool = False) -> None:
        """Journal an event, then fold it. What a full disk or an absent file server refuses is written later, in order.

        Raises:
            OSError: it is closed: another process may write it by now.
        """
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        event = without_secrets(event, self.redactor)
        self._keep(event, durable=durable)
        self.flush()
        self.state = fold(self.state, event)

    def _keep(self, event: ev.Event, *, durable: bool) -> None:
        last = self._unwritten[-1][0] if self._unwritten else None
        full = len(self._unwritten) >= MOST_WAITING
        if (
            full
            and isinstance(event, ev.Progress)
            and isinstance(last, ev.Progress)
            and event.attempt == last.attempt
        ):
            minima = (*last.minima, *event.minima)[-MOST_MINIMA:]  # the lowest is the last
            self._unwritten[-1] = (replace(merge_progress(last, event), minima=minima), durable)
            return
        self._unwritten.append((event, durable))

    def flush(self) -> None:
        """Write what could not be written so far."""
        while self._unwritten:
            try:
                self._journal.append(self._unwritten[0][0], durable=self._unwritten[0][1])
            except OSError as error:
                why = error.strerror or os.strerror(error.errno or 0)
                if why != self.trouble:
                    log.error("journal: %s: events wait in memory until they can be written", why)
                self.trouble = why
                return
            self._unwritten.popleft()
        if self.trouble:
            log.warning("journal: it can be written again: no event is missing")
            self.trouble = ""

    def close(self) -> None:
        """Close the journal."""
        self.flush()
        if self._unwritten:
            log.error("journal: %d events could not be written: %s", len(self._unwritten), self.trouble)
        self._journal.close()
        self._closed = True


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
