"""Why no plan is possible, and what would help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from supervisor.job.spec import Unread

EITHER_SCOPE: Final = "--batch-scope per_rank, or --batch-scope global"
SMALLER_GLOBAL: Final = "--allow-smaller-global"
NO_ACCUMULATION: Final = "only a smaller global batch is possible (--allow-smaller-global)"


@dataclass(frozen=True, slots=True)
class NoPlanError(Exception):
    """No plan, and why; `unread` where a person's answer would settle it, among `choices` where it is one of several settings."""

    why: str
    help: str = ""
    batch: str | None = None
    unread: Unread | None = None
    choices: tuple[str, ...] = ()
