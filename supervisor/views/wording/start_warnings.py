"""Pre-flight warnings, shown in the main view while the run starts (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from supervisor.preflight.context import KNOBS_CHECK
from supervisor.run.records import FailureClass, Finding, FindingLevel
from supervisor.run.state import Launching, Preflight, Running, RunState
from supervisor.views.wording.translate import Tr, english

# How long to show the warnings in the first attempt. The page `P` keeps all of them.
SHOWN_S = 600.0
# stoker's own flags. A sentence may also contain the script's flags, which need no setting.
_FLAG = re.compile(r"--(?:\w+-knob|batch-scope)\b")

_LINKS = frozenset(("rendezvous", "GPU health", "GPU modes", "GPUs"))
# The checks (`preflight`) whose warnings explain a failure.
BEARING: Final[Mapping[FailureClass, frozenset[str]]] = MappingProxyType(
    {
        FailureClass.CUDA_OOM: frozenset(("GPU memory", "memory", "GPU modes")),
        FailureClass.HOST_OOM: frozenset(("host memory",)),
        FailureClass.SHM_EXHAUSTED: frozenset(("shared memory",)),
        FailureClass.DATALOADER_WORKER: frozenset(("shared memory", "host memory", "open files")),
        FailureClass.WORKER_CRASH: frozenset(("host memory", "shared memory", "GPU health")),
        FailureClass.FD_LIMIT: frozenset(("open files",)),
        FailureClass.DISK_FULL: frozenset(("disk", "checkpoints")),
        FailureClass.PORT_IN_USE: frozenset(("port",)),
        FailureClass.RENDEZVOUS: frozenset(("rendezvous", "port", "SLURM")),
        FailureClass.NCCL_TIMEOUT: _LINKS,
        FailureClass.NCCL_ERROR: _LINKS,
        FailureClass.HANG: _LINKS,
        FailureClass.GPU_FAULT: frozenset(("GPU health",)),
        FailureClass.CUDA_ERROR: frozenset(("GPU health", "driver")),
        FailureClass.CUDA_UNAVAILABLE: frozenset(("driver", "GPUs", "GPU modes")),
        FailureClass.CHECKPOINT_LOAD: frozenset(("resume",)),
        FailureClass.MISSING_FILE: frozenset(("resume", "data")),
        FailureClass.TERMINATED: frozenset(("SLURM",)),
    }
)


def warnings_of(state: RunState) -> tuple[Finding, ...]:
    """Return the warnings that the user should act on."""
    return tuple(finding for finding in state.findings if finding.level is FindingLevel.WARNING)


def shown_at_start(state: RunState, now: float) -> tuple[Finding, ...]:
    """Return the warnings while they are new: until the first attempt ends, or for ten minutes."""
    begins = isinstance(state.condition, (Preflight, Launching, Running)) and len(state.attempts) <= 1
    fresh = state.started_t is not None and now - state.started_t < SHOWN_S
    return warnings_of(state) if begins and fresh else ()


def in_one_line(finding: Finding) -> str:
    """Shorten a warning for the line below the panes. Show what to declare, not why."""
    flags = list(dict.fromkeys(_FLAG.findall(finding.what)))
    if finding.check == KNOBS_CHECK and flags:
        return f"some failures will not restart: add {', '.join(flags)}"
    return f"{finding.check}: {finding.what}"


def foreseen(state: RunState, failure: FailureClass) -> tuple[Finding, ...]:
    """Return warnings from before the start that explain a failure and might have prevented it."""
    checks = BEARING.get(failure, frozenset())
    return tuple(finding for finding in warnings_of(state) if finding.check in checks)


def foreseen_text(finding: Finding, tr: Tr = english) -> str:
    """Return such a warning in one line."""
    return f"{tr('found before the start')}: {tr(finding.check)}: {tr(finding.what)}"
