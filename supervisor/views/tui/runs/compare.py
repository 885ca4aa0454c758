"""Reads the series of a run that is laid beside the one on the screen."""

from __future__ import annotations

import os

from supervisor.run.index import find_run
from supervisor.run.paths import RunPaths
from supervisor.views.model.reader import SnapshotReader
from supervisor.views.tui.pages.metrics import OtherRun


def load_other(this: RunPaths, text: str) -> OtherRun:
    """All series of the run that `text` names: a path, an id, or a unique part of an id.

    Raises:
        RunNotFound: there is none, or more than one.
    """
    found = find_run(text, this.root.parent, os.environ)
    snapshot = SnapshotReader(found).refresh()
    return OtherRun(found.run_id, snapshot.series, snapshot.state.cuts)
