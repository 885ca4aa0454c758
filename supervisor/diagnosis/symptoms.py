"""Map a symptom, given in a user's own words or as a log line, to failure classes. Pure functions.

If a signature matches the line, its class is returned. Otherwise, the words are looked up in the class names and titles. The
more classes a word appears in, the less it counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

from supervisor.diagnosis.class_words import class_texts
from supervisor.diagnosis.scan.signature_tables import Role, Signature
from supervisor.run.records import FailureClass
from supervisor.text.secret_values import word_set

MOST_CHARACTERS: Final = 2000
"""A symptom is a few words or a single line. Anything longer is treated as a log and belongs in `stoker diagnose`."""

# Minimum score relative to the best for the symptom to mean another class too.
NEAR: Final = 0.6
_FIRM: Final = 60
# Words that do not indicate a failure. Slowness is not a failure.
_STOP_WORDS: Final = word_set(
    "a an and are as at be been but by can cannot could did do does for from has have how i if in is it its me my no not of on or our "
    "out so some stoker that the their them then there they this to too training train run runs running was we what when which "
    "while why will with you your job script get gets got after before error errors failed fails failure problem slow slowly"
)
_SLOW: Final = word_set(
    "slow slower slowly slowdown throughput utilization utilisation straggler starved idle"
)
_NUMBERS: Final = word_set("137 401 403 29500")
# Common names of failures that no class text contains.
_CALLED_SO: Final[Mapping[FailureClass, str]] = {
    FailureClass.CUDA_OOM: "oom vram gpu memory batch large big fit cublas_status_alloc_failed",
    FailureClass.HOST_OOM: "oom ram swap killed kill 137 sigkill cgroup memory leak",
    FailureClass.SHM_EXHAUSTED: "shm docker bus sigbus shared container",
    FailureClass.FD_LIMIT: "ulimit descriptor nofile emfile",
    FailureClass.DISK_FULL: "space left quota enospc disk storage",
    FailureClass.NCCL_TIMEOUT: "watchdog timeout collective allreduce",
    FailureClass.NCCL_ERROR: "nccl network infiniband socket ib connection reset peer gloo",
    FailureClass.LIBUV: "libuv windows tcpstore",
    FailureClass.PORT_IN_USE: "port address bind eaddrinuse 29500 taken",
    FailureClass.RENDEZVOUS: "rendezvous rdzv node join multinode nodes endpoint resolve hostname",
    FailureClass.DATALOADER_WORKER: "dataloader loader worker workers data",
    FailureClass.WORKER_CRASH: "segfault sigsegv segmentation fault core dumped crash crashed abort exit code signal",
    FailureClass.HANG: "hang hangs hung stuck freeze frozen freezes waiting deadlock stalled stops progress nothing moves forever",
    FailureClass.DDP_MISMATCH: "ddp unused parameters mismatch shape find_unused_parameters",
    FailureClass.CUDA_ERROR: "device assert illegal access kernel cuda index",
    FailureClass.GPU_FAULT: "xid ecc fell fallen bus hardware broken gpu lost nvlink",
    FailureClass.CUDA_UNAVAILABLE: "driver gpu found visible available nvidia-smi cpu",
    FailureClass.NAN_LOSS: "nan inf loss diverge diverges diverged explode exploding gradient spike",
    FailureClass.CHECKPOINT_LOAD: "checkpoint corrupt load state_dict resume missing keys unexpected",
    FailureClass.MISSING_FILE: "missing file found enoent directory path",
    FailureClass.PERMISSION_DENIED: "permission denied read-only access eacces rights",
    FailureClass.AUTH_OR_HUB: "hub token login wandb huggingface 401 403 gated download offline s3",
    FailureClass.IMPORT_ERROR: "import module named modulenotfounderror library pip install version",
    FailureClass.USAGE_ERROR: "argument arguments flag usage unrecognized argparse config hydra",
    FailureClass.COMPILE_ERROR: "compile compiler triton inductor nvcc dynamo ninja",
    FailureClass.CODE_ERROR: "exception traceback bug keyerror valueerror typeerror",
    FailureClass.TERMINATED: "preempted sigterm time limit cancelled slurm scancel walltime ctrl-c interrupted",
}
_WORD: Final = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9]|[a-z0-9]")


def samples_of(failure: FailureClass, known: Iterable[Signature], most: int) -> tuple[str, ...]:
    """Return sample lines that identify a class, strongest signature first."""
    lines = (
        one.samples[0].strip() for one in _firmest_first(known) if one.failure is failure and one.samples
    )
    return tuple(dict.fromkeys(lines))[:most]


def leads(symptom: str, known: Iterable[Signature]) -> tuple[FailureClass, ...]:
    """Return the classes that a symptom may refer to, best first, or an empty tuple if no word is recognized."""
    symptom = symptom[:MOST_CHARACTERS]
    name = re.sub(r"[\s-]+", "_", symptom.strip().lower())
    if name in set(FailureClass):
        return (FailureClass(name),)
    # A signature of one plain word, such as "Killed", would take a person's word for a log line.
    if len(symptom.split()) > 2:
        for one in _firmest_first(known):
            if one.strength >= _FIRM and re.search(one.regex, symptom):
                return (one.failure,)
    scores: dict[FailureClass, float] = {}
    for word in _words(symptom):
        meant = _table().get(word, ())
        for failure in meant:
            scores[failure] = scores.get(failure, 0.0) + 1 / len(meant)
    best = max(scores.values(), default=0.0)
    near = [failure for failure in FailureClass if scores.get(failure, 0.0) >= NEAR * best > 0.0]
    return tuple(sorted(near, key=lambda failure: -scores[failure]))


def _firmest_first(known: Iterable[Signature]) -> list[Signature]:
    """Return the cause signatures, then the consequence signatures, each sorted strongest first."""
    shown = (one for one in known if one.role in (Role.CAUSE, Role.CONSEQUENCE) and one.failure in _CALLED_SO)
    return sorted(shown, key=lambda one: (one.role is not Role.CAUSE, -one.strength))


def is_slowness(symptom: str) -> bool:
    """Check whether the symptom is slow training, which is not a failure class."""
    return bool(_SLOW & set(_WORD.findall(symptom[:MOST_CHARACTERS].lower())))


@cache
def _table() -> dict[str, set[FailureClass]]:
    """Map each word in the class names and titles to the classes that contain it."""
    table: dict[str, set[FailureClass]] = {}
    for failure, called in _CALLED_SO.items():
        for word in _words(f"{failure.value} {called} {class_texts()[failure].title}"):
            table.setdefault(word, set()).add(failure)
    return table


def _words(text: str) -> list[str]:
    found = _WORD.findall(text.lower().replace("_", " "))
    return [
        _stem(word)
        for word in dict.fromkeys(found)
        if word not in _STOP_WORDS and (not word.isdigit() or word in _NUMBERS)
    ]


def _stem(word: str) -> str:
    """Return a word's stem, so that hangs, hanging and hang all count as the same word."""
    for ending in ("ing", "ies", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word.removesuffix(ending)
    return word
