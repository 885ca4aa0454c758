"""Words of one class in a line that was given to another: then the verdict is not certain.

With the very signature of a line held out, most of what was wrong and sure of itself was of this kind: an
uncorrectable ECC error is a "CUDA error" too, a full /dev/shm also says "No space left on device".
"""

from __future__ import annotations

from functools import cache

from supervisor.run.failures import FailureClass
from supervisor.text.patterns import Lazy


@cache
def _words() -> tuple[tuple[Lazy, frozenset[FailureClass]], ...]:
    c = FailureClass
    return tuple(
        (Lazy(text), frozenset(classes))
        for text, classes in (
            (r"uncorrectable|\bECC\b|NVLink|fallen off|GPU is lost", (c.GPU_FAULT,)),
            (r"ALLOC_FAILED|[Oo]ut of memory|[Cc]annot allocate memory|bad_alloc", (c.CUDA_OOM, c.HOST_OOM, c.SHM_EXHAUSTED, c.DATALOADER_WORKER, c.NCCL_ERROR)),
            (r"\bshm\b|include/shm|/dev/shm|shared memory|fallocate|\b[Bb]us error", (c.SHM_EXHAUSTED, c.DATALOADER_WORKER, c.IMPORT_ERROR, c.COMPILE_ERROR)),
            (r"\b[Nn]a[Nn]s?\b|\bInf\b|\binfinite\b|[Dd]iverged", (c.NAN_LOSS,)),
            (r"libuv", (c.LIBUV,)),
            (r"[Tt]oo many open files|ancdata", (c.FD_LIMIT,)),
            (r"\betcd\b|[Rr]endezvous|clients joined", (c.RENDEZVOUS, c.LIBUV, c.PORT_IN_USE)),
            (r"--device\b|CUDA device|visible devices", (c.CUDA_UNAVAILABLE, c.CUDA_ERROR, c.CUDA_OOM)),
            (r"\.dll\b|\.so(?:\.\d+)*: |specified module", (c.IMPORT_ERROR, c.COMPILE_ERROR)),
        )
    )  # fmt: skip


def speaks_of_another(text: str, failure: FailureClass) -> bool:
    """Whether a line has words of other classes and none of its own class's."""
    named = [classes for words, classes in _words() if words.search(text)]
    return bool(named) and not any(failure in classes for classes in named)
