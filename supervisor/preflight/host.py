"""Checks a job's machine: folders, disk, memory, limits, and whether its processes may be inspected."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from supervisor.job.knobs.conventions import find_loader
from supervisor.job.memory_fit import size as size_words
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.preflight.context import (
    GIB,
    CheckContext,
    existing_parent,
    note,
    ok,
    refuse,
    warn,
)
from supervisor.run.records import Finding
from supervisor.run.regular import open_regular

# Logs and series of a long run stay well below this. Checkpoints come on top and are up to the user.
LOW_DISK_BYTES: Final = 1 * GIB
NO_DISK_BYTES: Final = 64 * 2**20
CHECKPOINTS_AHEAD: Final = 2
# The number of newest runs to check, whatever their job.
LOOK_BACK: Final = 20
# DataLoader workers exhaust Docker's default of 64 MiB. A batch of images takes about 100 MiB.
LOW_SHM_BYTES: Final = 512 * 2**20
# Two floating-point images of 224 pixels fill 1.2 MB, so this holds a batch of 32 and its targets.
BATCH_BYTES: Final = 32 * 2**20
# With fewer free inodes, the run folder with its logs and series may not fit.
FEW_ENTRIES: Final = 200
# Python with torch and a CUDA context: 0.6 to 1.5 GiB of the host's memory on builds of 2024 to 2026.
RANK_BYTES: Final = 1 * GIB
PTRACE_SCOPE: Final = "/proc/sys/kernel/yama/ptrace_scope"
NO_ATTACH: Final = 3  # Documentation/admin-guide/LSM/Yama.rst: no process may attach, until the next boot
CAP_SYS_PTRACE: Final = 19
# Each rank and each DataLoader worker holds a few dozen descriptors. 1024 is the usual soft limit.
FILES_PER_RANK: Final = 128


def check_runs_dir(context: CheckContext) -> Iterator[Finding]:
    """Check whether a run folder can be created, judging by the nearest existing parent."""
    parent = existing_parent(context.runs_dir)
    fix = "choose another place with --runs-dir"
    if not parent.is_dir():
        yield refuse("run folder", f"{parent} is not a folder", fix)
    # Use os.access instead of creating a file, because a refused start must leave nothing behind.
    elif not os.access(parent, os.W_OK | os.X_OK) or os.statvfs(parent).f_flag & os.ST_RDONLY:
        yield refuse("run folder", f"{parent} cannot be written", fix)
    else:
        yield ok("run folder", f"{context.runs_dir} can be written")


def check_disk(context: CheckContext) -> Iterator[Finding]:
    """Check that there is enough space, and enough inodes, for logs and checkpoints where the run folder will be."""
    parent = existing_parent(context.runs_dir)
    free = shutil.disk_usage(parent).free
    entries = os.statvfs(parent)
    if free < NO_DISK_BYTES:
        what = f"{size_words(free)} left at {parent}"
        yield refuse("disk", what, "free some space, or choose another --runs-dir")
    elif entries.f_files and entries.f_favail < FEW_ENTRIES:  # f_files 0: inodes are made on demand
        what = f"{entries.f_favail} more files fit at {parent} (its inodes are used up)"
        yield refuse("disk", what, "remove files there, or choose another --runs-dir")
    elif free < LOW_DISK_BYTES:
        yield warn("disk", f"only {size_words(free)} left at {parent}", "free some space")
    else:
        yield ok("disk", f"{size_words(free)} free at {parent}")


def check_checkpoint_space(context: CheckContext) -> Iterator[Finding]:
    """Check that there is enough space for two checkpoints where this job's last run saved its latest one.

    Two must fit, because a script writes a new checkpoint before deleting an old one.
    """
    from supervisor.run.index import known_runs
    from supervisor.run.journal import read_state
    from supervisor.run.runfile import BadRunFile, read_run_file
    from supervisor.sources.checkpoint_layouts import tree_bytes

    spec = context.spec
    for run in known_runs(context.runs_dir, context.env)[:LOOK_BACK]:
        try:
            job = read_run_file(run.run_json).job
        except BadRunFile:
            continue
        if (job.entry_kind, job.entry, job.cwd) != (spec.entry_kind, spec.entry, spec.cwd):
            continue
        saved = read_state(run.node().journal).checkpoints
        path = Path(job.cwd, saved[-1].path) if saved else None
        size = tree_bytes(path) if path is not None else None
        if path is None or not size:
            continue  # the run saved nothing, or its checkpoint was deleted
        free = shutil.disk_usage(path).free
        what = f"{size_words(free)} free at {path.parent}, and a checkpoint of {run.run_id} takes {size_words(size)}"
        fix = "free some space, or save elsewhere: a failed save ends most scripts"
        yield warn("checkpoints", what, fix) if free < CHECKPOINTS_AHEAD * size else ok("checkpoints", what)
        return


def check_host_memory(context: CheckContext) -> Iterator[Finding]:
    """Compare free memory, as limited by the cgroup, with what the ranks need before they load any data."""
    import psutil

    from supervisor.sources.kernel_memory import read_cgroup_memory

    ranks = context.spec.nproc_per_node
    free = int(psutil.virtual_memory().available)
    what, fix = f"{size_words(free)} free for {ranks} ranks", "end what else runs here, or start fewer ranks"
    group = read_cgroup_memory()
    if group is not None and group.limit_bytes is not None:
        free = min(free, max(group.limit_bytes - (group.used_bytes or 0), 0))
        limit = size_words(group.limit_bytes)
        what = f"{size_words(free)} free for {ranks} ranks, within the control group's {limit}"
        fix = "raise the limit (docker run --memory, SLURM --mem), or start fewer ranks"
    if free >= ranks * RANK_BYTES:
        yield ok("host memory", what)
        return
    needed = size_words(RANK_BYTES)
    yield warn("host memory", f"{what}; a rank with torch takes about {needed} before any data", fix)


def check_shm(context: CheckContext) -> Iterator[Finding]:
    """Check shared memory, where each DataLoader worker keeps two batches at a time (prefetch_factor)."""
    try:
        usage = shutil.disk_usage("/dev/shm")  # noqa: S108 - reads the size, writes nothing
    except OSError:
        return
    workers = _workers(context.spec)
    wanted = max(LOW_SHM_BYTES, context.spec.nproc_per_node * (workers or 0) * 2 * BATCH_BYTES)
    wanted = wanted if workers != 0 else 0
    if usage.free >= wanted:
        yield ok("shared memory", f"{size_words(usage.free)} free in /dev/shm")
        return
    what = f"only {size_words(usage.free)} free in /dev/shm (of {size_words(usage.total)})"
    fix = "DataLoader workers may die with a bus error: docker run --shm-size=8g, or fewer workers"
    yield warn("shared memory", what, fix)


def check_open_files(context: CheckContext) -> Iterator[Finding]:
    """Compare the hard limit on open files, which the soft limit is raised to, with what this many ranks usually need."""
    spec = context.spec
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    workers = _workers(spec)
    wanted = max(256, FILES_PER_RANK * spec.nproc_per_node * (1 + (workers or 0) // 4))
    if hard >= wanted:  # never infinite: the kernel bounds it by fs.nr_open
        yield ok("open files", f"limit {hard}")
    else:
        what = f"limit {hard} is low for {spec.nproc_per_node} ranks"
        fix = f"{wanted} or more: docker run --ulimit nofile=…, LimitNOFILE of a service, /etc/security/limits.conf"
        yield warn("open files", what, fix)


def _workers(spec: JobSpec) -> int | None:
    """Return the number of DataLoader workers per rank, or None if unknown."""
    known = find_loader(spec.entry_args).workers or spec.loader.workers
    return known[1] if known is not None else None


def check_cores(context: CheckContext) -> Iterator[Finding]:
    """Compare the number of ranks with the number of cores. Having more ranks than cores is slow, but not an error."""
    ranks, cores = context.spec.nproc_per_node, len(os.sched_getaffinity(0))
    if ranks > cores and context.spec.entry_kind is not EntryKind.COMMAND:
        yield warn("ranks", f"{ranks} ranks on {cores} cores", "expect them to wait on each other")


FAULTHANDLER = "[hang] faulthandler = true: ranks then write their stacks themselves"


def check_stacks(context: CheckContext) -> Iterator[Finding]:
    """Check whether a hung rank's stacks can be read: py-spy must be installed and allowed to inspect non-child processes."""
    from supervisor.sources.stacks.python_stacks import find_py_spy

    python = context.interpreter.path if context.interpreter is not None else None
    # faulthandler needs no rights, but a signal and a variable. Suggest it only if nothing else works.
    offer = None if context.spec.hang.faulthandler else FAULTHANDLER
    if find_py_spy(python) is None:
        yield note(
            "stacks",
            "py-spy is not installed: of a rank that hangs in C only the kernel's view is known",
            f"pip install py-spy{'' if offer is None else f'; or {offer}'}",
        )
        return
    scope = _yama(PTRACE_SCOPE)
    if not scope or (scope != NO_ATTACH and _has_capability(CAP_SYS_PTRACE)):
        yield ok("stacks", "py-spy may look into ranks")
        return
    fix = "sudo sysctl kernel.yama.ptrace_scope=0; in a container --cap-add SYS_PTRACE"
    if scope == NO_ATTACH:
        fix = "it cannot be changed before the next boot"
    what = f"py-spy may not look into ranks (kernel.yama.ptrace_scope is {scope})"
    yield note("stacks", what, fix if offer is None else f"{fix}; or {offer}")


def _yama(path: str) -> int:
    """Return the kernel's Yama setting, or 0 if the kernel does not have Yama."""
    try:
        with open_regular(path) as file:
            return int(file.read(16))
    except (OSError, ValueError):
        return 0


def _has_capability(number: int) -> bool:
    """Check whether this process, and hence its children, has a capability (CapEff in /proc/self/status)."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> number & 1)
