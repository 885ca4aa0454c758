"""The machine that a job will run on: folders, disk, shared memory, limits."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from supervisor.job.knobs.data_loader import find_loader
from supervisor.job.spec import EntryKind
from supervisor.preflight.context import (
    GIB,
    CheckContext,
    existing_parent,
    note,
    ok,
    refuse,
    size_words,
    warn,
)
from supervisor.run.records import Finding

# Logs and series of a long run stay well below this; checkpoints come on top and are the user's.
LOW_DISK_BYTES: Final = 1 * GIB
NO_DISK_BYTES: Final = 64 * 2**20
# Docker's default of 64 MiB is what DataLoader workers run out of; a batch of images is some 100 MiB.
LOW_SHM_BYTES: Final = 512 * 2**20
# Each rank and each DataLoader worker holds some tens of descriptors; 1024 is the usual soft limit.
FILES_PER_RANK: Final = 128


def check_runs_dir(context: CheckContext) -> Iterator[Finding]:
    """Whether a run folder can be made there; the nearest existing parent answers."""
    parent = existing_parent(context.runs_dir)
    fix = "choose another place with --runs-dir"
    if not parent.is_dir():
        yield refuse("run folder", f"{parent} is not a folder", fix)
    # os.access is asked rather than a file made: a refused start leaves nothing behind.
    elif not os.access(parent, os.W_OK | os.X_OK) or os.statvfs(parent).f_flag & os.ST_RDONLY:
        yield refuse("run folder", f"{parent} cannot be written", fix)
    else:
        yield ok("run folder", f"{context.runs_dir} can be written")


def check_disk(context: CheckContext) -> Iterator[Finding]:
    """Space for logs and checkpoints where the run folder will be."""
    parent = existing_parent(context.runs_dir)
    free = shutil.disk_usage(parent).free
    if free < NO_DISK_BYTES:
        what = f"{size_words(free)} left at {parent}"
        yield refuse("disk", what, "free some space, or choose another --runs-dir")
    elif free < LOW_DISK_BYTES:
        yield warn("disk", f"only {size_words(free)} left at {parent}", "free some space")
    else:
        yield ok("disk", f"{size_words(free)} free at {parent}")


def check_shm(context: CheckContext) -> Iterator[Finding]:
    """Shared memory, through which DataLoader workers hand over batches."""
    try:
        usage = shutil.disk_usage("/dev/shm")  # noqa: S108 - its size is the question; nothing is written
    except OSError:
        return
    workers = find_loader(context.spec.entry_args).workers or context.spec.loader.workers
    if usage.free >= LOW_SHM_BYTES or (workers is not None and workers[1] == 0):
        yield ok("shared memory", f"{size_words(usage.free)} free in /dev/shm")
        return
    what = f"only {size_words(usage.free)} free in /dev/shm (of {size_words(usage.total)})"
    fix = "DataLoader workers may die with a bus error: docker run --shm-size=8g, or fewer workers"
    yield warn("shared memory", what, fix)


def check_open_files(context: CheckContext) -> Iterator[Finding]:
    """The soft limit on open files, against what this many ranks tend to need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(256, FILES_PER_RANK * context.spec.nproc_per_node)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        yield ok("open files", f"limit {soft}")
        return
    limit = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    what = f"limit {soft} is low for {context.spec.nproc_per_node} ranks"
    yield warn("open files", what, f"ulimit -n {wanted} (hard limit {limit})")


def check_cores(context: CheckContext) -> Iterator[Finding]:
    """Ranks against cores and GPUs; more ranks than cores is slow, not wrong."""
    spec = context.spec
    if spec.entry_kind is EntryKind.COMMAND:
        return
    cores = len(os.sched_getaffinity(0))
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    what = f"{spec.nproc_per_node} ranks on {cores} cores" + (f" and {gpus} GPUs" if gpus else ", no GPU")
    if spec.nproc_per_node > max(cores, gpus):
        yield warn("ranks", what, "more ranks than cores: expect them to wait on each other")
    elif gpus and spec.nproc_per_node > gpus:
        yield note("ranks", what, "ranks share GPUs, unless the script runs on CPU")
    else:
        yield note("ranks", what)
