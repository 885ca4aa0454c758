"""What the words of a plain exception, or of a data worker's, speak of. Loaded where a log has such."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.diagnosis.attribution.log_timeline import is_progress
from supervisor.diagnosis.cause.vocabulary import ENOUGH, class_by_words
from supervisor.diagnosis.scan.hit import speaker
from supervisor.diagnosis.scan.scanner import Hit, SourceScan
from supervisor.run.failures import FailureClass, Reason
from supervisor.text.patterns import Lazy

# Types that are raised for anything; the rest (KeyError, TypeError …) are the program's own.
_ANY_TYPE = Lazy(
    r"\b(?:ValueError|AssertionError|NotImplementedError|FloatingPointError|MisconfigurationException)\b"
)


# A score that the code which raised does not outweigh.
SAID_CLEARLY = ENOUGH + 1


def by_words(hit: Hit) -> tuple[FailureClass, int] | None:
    """What the words of a plain exception, and of the lines that go on with it, speak of."""
    if hit.signature.id == "code-python" and not _ANY_TYPE.search(hit.text):
        return None
    return class_by_words(hit.text)


# What a data worker may run into that keeps its own name: its remedy is not in the data.
_KEPT_IN_WORKER = frozenset(
    (
        FailureClass.FD_LIMIT, FailureClass.SHM_EXHAUSTED, FailureClass.HOST_OOM, FailureClass.DISK_FULL,
        FailureClass.CUDA_OOM, FailureClass.CUDA_ERROR, FailureClass.GPU_FAULT, FailureClass.IMPORT_ERROR,
        FailureClass.PERMISSION_DENIED, FailureClass.AUTH_OR_HUB,
    )
)  # fmt: skip


def worker_cause(
    line: int, text: str, hit: Hit, scans: Sequence[SourceScan], steps_seen: bool, strength: int
) -> tuple[FailureClass, Reason | None, int]:
    """The class of what a data worker raised, in the given line: some keep their own name inside a worker too."""
    inner = speaker(claim for claim in scans[hit.source].hits if claim.line == line)
    if inner is not None and inner.signature.failure in _KEPT_IN_WORKER:
        return inner.signature.failure, inner.signature.reason, max(inner.signature.strength, 80)
    spoken = class_by_words(text, enough=SAID_CLEARLY)
    if spoken is not None and spoken[0] in _KEPT_IN_WORKER:
        return spoken[0], None, 74
    if "FileNotFoundError" in text or "Errno 2]" in text:
        # One absent sample in the middle of an epoch is the data's fault; absent from the start, the path is wrong.
        before = [*scans[hit.source].head[: hit.line], *hit.lines_before(60)]
        if not (steps_seen and any(is_progress(line) for line in before)):
            return FailureClass.MISSING_FILE, None, 78
    return FailureClass.DATALOADER_WORKER, Reason.RAISED, strength
