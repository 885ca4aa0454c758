"""What a consequence was, where more is known of it than its class says; and which signals were ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.run.failures import FailureClass

if TYPE_CHECKING:
    from supervisor.diagnosis.cause.candidates import Candidate
    from supervisor.diagnosis.evidence import JobEvidence

_LOST = "lost the connection to a peer"
# Their class is nccl_error for what is to be done about it; none of them need come from NCCL.
_BY_SIGNATURE = {
    "gloo-peer-closed": _LOST,
    "peer-generic": _LOST,
    "nccl-remote": _LOST,
    "nccl-net-peer-gone": _LOST,
    "store-lost": "lost the connection to the store",
}
SIGNALLED = frozenset(("agent-death-signal", "signal-exception", "launcher-sigterm", "shell-terminated"))
"""Signatures of lines that tell of a SIGTERM and not of who sent it."""
_BY_US = {
    "hang": "ended by stoker after the hang",
    # torchrun signals the ranks that are left; who does not go is killed by stoker.
    "rank_died": "ended with the others after the failure",
    "request": "ended by stoker as asked",
    "restart": "ended by stoker as asked",
    "signal": "ended by stoker, which was told to stop",
    "requeue": "ended by stoker, which was told to stop",
}


def is_our_signal(item: Candidate, job: JobEvidence) -> bool:
    """Whether a line tells of the signal with which we ended a hang: nobody else sent one."""
    return job.ended_for == "hang" and item.signature in SIGNALLED


def what_followed(item: Candidate, job: JobEvidence) -> str:
    """A few words for a consequence; empty where its class says enough."""
    if item.signature in SIGNALLED:
        return _BY_US.get(job.ended_for or job.stop_reason or "", "")
    return _BY_SIGNATURE.get(item.signature, "") if item.failure is FailureClass.NCCL_ERROR else ""
