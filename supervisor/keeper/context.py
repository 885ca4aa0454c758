"""The run in a keeper's charge, as the parts of a keeper are handed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from supervisor.keeper.clock import Clock
from supervisor.keeper.recording.ledger import Ledger
from supervisor.run.paths import NodePaths, RunPaths
from supervisor.run.runfile import RunFile


@dataclass(frozen=True, slots=True)
class RunContext:
    """Where a run lies, what it is, and where its facts go.

    `record`: the job and its settings as they were at the start. `env`: the environment that the user gave.
    `ledger`: the journal and the state that it folds to.
    """

    run: RunPaths
    node: NodePaths
    record: RunFile
    env: Mapping[str, str]
    clock: Clock
    ledger: Ledger
