"""One small function a check; each looks at one thing and says what it found and what to do about it."""

from __future__ import annotations

import ast
import os
import resource
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from supervisor.job.knobs.batch_settings.find import why_not_changeable
from supervisor.job.knobs.data_loader import find_loader
from supervisor.job.oom_plan import OomRefusal, oom_plan
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.preflight.memory import check_memory
from supervisor.preflight.ports import is_free, port_holder
from supervisor.run.records import Finding, FindingLevel
from supervisor.run.regular import open_regular

GIB: Final = 2**30
# Logs and series of a long run stay well below this; checkpoints come on top and are the user's.
LOW_DISK_BYTES: Final = 1 * GIB
NO_DISK_BYTES: Final = 64 * 2**20
# Docker's default of 64 MiB is what DataLoader workers run out of; a batch of images is some 100 MiB.
LOW_SHM_BYTES: Final = 512 * 2**20
# Each rank and each DataLoader worker holds some tens of descriptors; 1024 is the usual soft limit.
FILES_PER_RANK: Final = 128
MAX_SOURCE_BYTES: Final = 4 * 2**20


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What the checks look at besides the job itself."""

    spec: JobSpec
    runs_dir: Path
    env: Mapping[str, str]


def run_checks(spec: JobSpec, *, runs_dir: Path, env: Mapping[str, str]) -> list[Finding]:
    """Every check, in order, for one job; none of them writes anything that stays."""
    context = CheckContext(spec, runs_dir, env)
    return [found for check in CHECKS for found in [check(context)] if found is not None]


def refused(findings: list[Finding]) -> list[Finding]:
    """The findings that forbid a start (exit code 3)."""
    return [f for f in findings if f.level is FindingLevel.REFUSE]


def check_script(context: CheckContext) -> Finding | None:
    """Whether the script compiles. Only a warning: it may be generated, or meant for another Python."""
    spec = context.spec
    if spec.entry_kind is not EntryKind.SCRIPT or not spec.entry.endswith(".py"):
        return None
    path = Path(spec.cwd) / spec.entry
    try:
        with open_regular(path) as file:
            source = file.read(MAX_SOURCE_BYTES)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source, filename=spec.entry)
    except SyntaxError as error:
        what = f"{spec.entry}:{error.lineno or 1}: {error.msg}"
        return Finding(
            FindingLevel.WARNING, "script", what, "it will fail at once unless its Python reads it otherwise"
        )
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        return Finding(FindingLevel.WARNING, "script", f"{spec.entry} could not be read as Python: {error}")
    return Finding(FindingLevel.OK, "script", f"{spec.entry} compiles")


def check_knobs(context: CheckContext) -> Finding | None:
    """Whether the job could be restarted without a person: reported now, not after the first failure at night."""
    spec = context.spec
    if not spec.retry.enabled or spec.entry_kind is EntryKind.TRAINER:
        return None
    missing: list[str] = []
    fixes: list[str] = []
    plan = oom_plan(spec)
    if isinstance(plan, OomRefusal) and spec.batch is None and spec.knobs.can_change_batch:
        missing.append(f"out of memory will not be restarted smaller: {plan.why} ({plan.help})")
    elif isinstance(plan, OomRefusal) and not spec.knobs.can_change_batch:
        missing.append(f"out of memory will not be restarted smaller: {why_not_changeable(spec.knobs)}")
    resumes = spec.knobs.resume_is_set or spec.knobs.self_resuming
    flag = spec.knobs.start or spec.knobs.resume_step
    if not resumes and not spec.retry.restart_from_scratch:
        missing.append(
            "after its first step a crash will not be restarted: no resume flag is known (--resume-knob)"
            if flag is None
            else f"after its first step a crash is restarted only if a whole checkpoint is found for {flag}"
        )
        told = f"{flag or 'FLAG'}=PATH"
        if flag is not None and flag == spec.knobs.resume:  # its word for the newest one; a switch has none
            told = f"{flag}={spec.knobs.resume_value}" if spec.knobs.resume_value else flag
        fixes.append(
            "a script that keeps one file up to date can be told it: --resume-knob "
            f"'{told}', handed over from the second attempt on"
        )
    if not missing:
        return Finding(FindingLevel.OK, "restarts", "batch and resume flags are known")
    return Finding(FindingLevel.WARNING, "restarts", "; ".join(missing), "; ".join(fixes))


def check_port(context: CheckContext) -> Finding | None:
    """Whether a named port is free on the machine that will listen on it."""
    spec = context.spec
    if spec.master_port is None or spec.entry_kind is EntryKind.COMMAND or spec.node_rank != 0:
        return None
    if is_free(spec.master_port):
        return Finding(FindingLevel.OK, "port", f"port {spec.master_port} is free")
    holder = port_holder(spec.master_port)
    what = f"port {spec.master_port} is taken" + (f" by {holder}" if holder else "")
    return Finding(
        FindingLevel.REFUSE,
        "port",
        what,
        "name another with --master-port, or leave it out: stoker finds one",
    )


def check_runs_dir(context: CheckContext) -> Finding | None:
    """Whether a run folder can be made there; the nearest existing parent answers."""
    parent = _existing_parent(context.runs_dir)
    fix = "choose another place with --runs-dir"
    if not parent.is_dir():
        return Finding(FindingLevel.REFUSE, "run folder", f"{parent} is not a folder", fix)
    # os.access is asked rather than a file made: a refused start leaves nothing behind.
    if not os.access(parent, os.W_OK | os.X_OK) or os.statvfs(parent).f_flag & os.ST_RDONLY:
        return Finding(FindingLevel.REFUSE, "run folder", f"{parent} cannot be written", fix)
    return Finding(FindingLevel.OK, "run folder", f"{context.runs_dir} can be written")


def check_disk(context: CheckContext) -> Finding | None:
    """Space for logs and checkpoints where the run folder will be."""
    parent = _existing_parent(context.runs_dir)
    free = shutil.disk_usage(parent).free
    if free < NO_DISK_BYTES:
        what = f"{_size(free)} left at {parent}"
        return Finding(FindingLevel.REFUSE, "disk", what, "free some space, or choose another --runs-dir")
    if free < LOW_DISK_BYTES:
        return Finding(
            FindingLevel.WARNING, "disk", f"only {_size(free)} left at {parent}", "free some space"
        )
    return Finding(FindingLevel.OK, "disk", f"{_size(free)} free at {parent}")


def check_shm(context: CheckContext) -> Finding | None:
    """Shared memory, through which DataLoader workers hand over batches."""
    try:
        usage = shutil.disk_usage("/dev/shm")  # noqa: S108 - its size is the question; nothing is written
    except OSError:
        return None
    workers = find_loader(context.spec.entry_args).workers or context.spec.loader.workers
    if usage.free >= LOW_SHM_BYTES or (workers is not None and workers[1] == 0):
        return Finding(FindingLevel.OK, "shared memory", f"{_size(usage.free)} free in /dev/shm")
    what = f"only {_size(usage.free)} free in /dev/shm (of {_size(usage.total)})"
    fix = "DataLoader workers may die with a bus error: docker run --shm-size=8g, or fewer workers"
    return Finding(FindingLevel.WARNING, "shared memory", what, fix)


def check_open_files(context: CheckContext) -> Finding | None:
    """The soft limit on open files, against what this many ranks tend to need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(256, FILES_PER_RANK * context.spec.nproc_per_node)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return Finding(FindingLevel.OK, "open files", f"limit {soft}")
    limit = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    what = f"limit {soft} is low for {context.spec.nproc_per_node} ranks"
    return Finding(FindingLevel.WARNING, "open files", what, f"ulimit -n {wanted} (hard limit {limit})")


def check_cores(context: CheckContext) -> Finding | None:
    """Ranks against cores and GPUs; more ranks than cores is slow, not wrong."""
    spec = context.spec
    if spec.entry_kind is EntryKind.COMMAND:
        return None
    cores = len(os.sched_getaffinity(0))
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    what = f"{spec.nproc_per_node} ranks on {cores} cores" + (f" and {gpus} GPUs" if gpus else ", no GPU")
    if spec.nproc_per_node > max(cores, gpus):
        return Finding(
            FindingLevel.WARNING, "ranks", what, "more ranks than cores: expect them to wait on each other"
        )
    if gpus and spec.nproc_per_node > gpus:
        return Finding(FindingLevel.INFO, "ranks", what, "ranks share GPUs, unless the script runs on CPU")
    return Finding(FindingLevel.INFO, "ranks", what)


def check_batch_memory(context: CheckContext) -> Finding | None:
    """What earlier runs of the same kind say of the micro-batch."""
    return check_memory(context.spec, context.env)


CHECKS: Final[tuple[Callable[[CheckContext], Finding | None], ...]] = (
    check_knobs,
    check_batch_memory,
    check_script,
    check_port,
    check_runs_dir,
    check_disk,
    check_shm,
    check_open_files,
    check_cores,
)


def _existing_parent(folder: Path) -> Path:
    """The nearest folder above, or the folder itself, that exists."""
    parent = folder.absolute()
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    return parent


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.0f} MiB"
