"""Which of a line's signatures speaks for it: one rule for what is told live and for the last verdict."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from supervisor.diagnosis.scan.signature_tables import Role
from supervisor.text.patterns import Lazy

if TYPE_CHECKING:
    from supervisor.diagnosis.scan.scanner import Hit

GENERIC = frozenset(("code-exception", "code-python"))
_LAUNCHER_WORDS = Lazy(
    r"ChildFailedError|CalledProcessError|ProcessRaisedException|ProcessExitedException|SignalException|RayTaskError|"
    r"ray\.exceptions\.\w+|TaskFailedError|SystemExit|RemoteTraceback|torchelastic|Command '\['?.{0,40}(?:python|torchrun)"
)


# Advice that may stand in one line with what it is about: PyTorch's own messages end in hints.
_SAID_ALONG = frozenset(("hint-advice", "cuda-async-advice"))
_RAISED = Lazy(
    r"^(?:CUDA|HIP) error: .{1,400}?(?:CUDA|HIP) kernel errors|(?:^|[\s\]|:])(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): ?.{0,400}?(?:Hint: |CUDA_LAUNCH|CUDA kernel errors|HIP kernel errors)"
)


def speaker(hits: Iterable[Hit]) -> Hit | None:
    """The hit that speaks for a line: none if advice masks it, a specific one before a plain exception."""
    claims: list[Hit] = []
    special = False
    for hit in hits:
        role = hit.signature.role
        if role is Role.ADVICE:
            if hit.signature.id in _SAID_ALONG and _RAISED.search(hit.text):
                continue
            return None
        if role in (Role.CAUSE, Role.CONSEQUENCE):
            claims.append(hit)
            special = special or hit.signature.id not in GENERIC
    if special:
        claims = [hit for hit in claims if hit.signature.id not in GENERIC]
    if not claims:
        return None
    return max(claims, key=lambda hit: hit.signature.strength)


def is_echo(hit: Hit) -> bool:
    """Whether a plain exception is only a launcher's report of another's, or a warning's name."""
    return hit.signature.id in GENERIC and (
        _LAUNCHER_WORDS.search(hit.text) is not None or _is_warning(hit.text)
    )


def _is_warning(text: str) -> bool:
    return "Warning: " in text and re.search(r"\wWarning: ", text) is not None
