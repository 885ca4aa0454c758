"""Checks this machine's GPUs through NVML: are there enough, and are they free, healthy and set up for the job?

NVML can take a second to start on a machine without persistence mode, so GPUs are read only once, at startup.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from supervisor.job.launch.env import VISIBLE
from supervisor.job.memory_fit import size as size_words
from supervisor.job.spec import EntryKind
from supervisor.preflight.context import GIB, CheckContext, note, ok, warn
from supervisor.run.records import Finding
from supervisor.sources.gpu import GpuProcess, GpuSample, GpuSurvey, survey_gpus, visible_devices

# An idle CUDA context holds a few hundred MiB.
WORTH_SAYING_BYTES: Final = 512 * 2**20
# The ranks may already be running when the checks run during the start.
NEWER_THAN_S: Final = 2.0
# Throttle reasons that a user can act on. A power cap is normal under load.
SLOWED: Final = frozenset(("hw_slowdown", "sw_thermal", "hw_thermal", "power_brake"))


@dataclass(frozen=True, slots=True)
class Seen:
    """Input to these checks. `mine` lists the GPUs the ranks will see, in CUDA order, or is None if unknown (a MIG slice)."""

    context: CheckContext
    survey: GpuSurvey
    mine: tuple[GpuSample, ...] | None
    begun_t: float
    env: Mapping[str, str]

    @property
    def used(self) -> tuple[GpuSample, ...]:
        """The GPUs that ranks will use: one per rank, or all if unknown."""
        if self.mine is None:
            return self.survey.samples
        spec = self.context.spec
        return self.mine if spec.entry_kind is EntryKind.COMMAND else self.mine[: spec.nproc_per_node]


def check_gpus(context: CheckContext) -> Iterator[Finding]:
    """Run all GPU checks for a job, using a single NVML survey."""
    begun_t = time.time()
    survey = survey_gpus()
    if isinstance(survey, str):
        cuda = context.interpreter.torch_cuda if context.interpreter is not None else None
        if cuda is not None:
            yield note("GPUs", f"none ({survey}): torch with CUDA {cuda} will run on the CPU")
        return
    env = context.job_env
    devices = visible_devices(env.get(VISIBLE), [sample.device for sample in survey.samples])
    by_index = {sample.device.index: sample for sample in survey.samples}
    mine = None if devices is None else tuple(by_index[device.index] for device in devices)
    seen = Seen(context, survey, mine, begun_t, env)
    for look in LOOKS:
        yield from look(seen)


def _enough(seen: Seen) -> Iterator[Finding]:
    """Check that there is at least one GPU per rank."""
    spec, named = seen.context.spec, seen.env.get(VISIBLE)
    there, ranks = len(seen.survey.samples), spec.nproc_per_node
    if seen.mine is None:
        # https://docs.nvidia.com/datacenter/tesla/mig-user-guide/: CUDA sees one instance.
        if ranks > 1 and spec.entry_kind is not EntryKind.COMMAND:
            what = f"{VISIBLE} names MIG instances: {named}; each of {ranks} ranks sees the first alone"
            yield warn("GPUs", what, "one rank")
        else:
            yield note("GPUs", f"{VISIBLE} names MIG instances: {named}")
        return
    mine = len(seen.mine)
    entries = [part.strip() for part in (named or "").split(",")]
    bad = entries[mine] if named is not None and mine < len(entries) else ""
    if bad and not bad.startswith("-"):  # -1 ends the list on purpose
        what = f"{VISIBLE} names {bad}, which is none of the {there} GPUs here or is named twice: it and what follows are not seen"
        yield warn("GPUs", what, "name each once, as `nvidia-smi -L` lists them")
    if spec.entry_kind is EntryKind.COMMAND:
        yield ok("GPUs", f"{mine} of {there} GPUs are visible")
    elif not mine:
        yield note("GPUs", f"none of {there} GPUs is visible to the ranks ({VISIBLE}={named})")
    elif ranks > mine and spec.entry_kind is EntryKind.TRAINER:
        yield note("GPUs", f"{ranks} ranks share {mine} GPUs, and meet over gloo")
    elif ranks > mine:
        what = f"{ranks} ranks, visible GPUs: {mine}; NCCL needs a GPU for each rank"
        yield warn("GPUs", what, f"--nproc-per-node {mine}")
    elif ranks < mine:
        yield note("GPUs", f"{ranks} of {mine} visible GPUs will be used")
    else:
        yield ok("GPUs", f"{ranks} GPUs for as many ranks")


def _free(seen: Seen) -> Iterator[Finding]:
    """Report who else is using the GPUs, since when, and how much memory is left."""
    for sample in seen.used:
        used, total = sample.memory_used_bytes, sample.memory_total_bytes
        if used is None or total is None or used < WORTH_SAYING_BYTES:
            continue
        before = [p for p in sample.processes or () if not _is_newer(p.pid, seen.begun_t - NEWER_THAN_S)]
        if sample.processes and not before:
            continue
        name, free, size = _name(sample), size_words(total - used), size_words(total)
        if not before:
            what = f"{name}: {free} of {size} free; who holds the rest is not visible from here"
            yield warn("GPU memory", what, "nvidia-smi on the host lists them")
            continue
        greatest = max(before, key=lambda process: process.memory_used_bytes or 0)
        more = f"; {len(before) - 1} more" if len(before) > 1 else ""
        fix = "wait for it, or leave that GPU out with CUDA_VISIBLE_DEVICES"
        yield warn("GPU memory", f"{name}: {free} of {size} free; {_who(greatest)}{more}", fix)


def _sound(seen: Seen) -> Iterator[Finding]:
    """Report lost cards, memory errors, and cards running slower than they should."""
    for sample in seen.used:
        name, slowed = _name(sample), sorted(SLOWED.intersection(sample.throttle or ()))
        if sample.lost:
            fix = "reset or reboot, or leave it out with CUDA_VISIBLE_DEVICES"
            yield warn("GPU health", f"{name} is lost: it does not answer the driver", fix)
        if sample.ecc_uncorrected:
            what = f"{name}: {sample.ecc_uncorrected} uncorrected memory errors since the driver was loaded"
            fix = "a run may get wrong numbers or end with Xid 48 or 94: reset the GPU, or leave it out"
            yield warn("GPU health", what, fix)
        if slowed:
            fix = "look at cooling and power: all ranks wait for the slowest"
            yield warn("GPU health", f"{name} is slowed down now ({', '.join(slowed)})", fix)


def _set_up(seen: Seen) -> Iterator[Finding]:
    """Report GPUs in MIG mode."""
    for sample in seen.used:
        if sample.device.mig and seen.mine is not None:
            what = f"{_name(sample)} is in MIG mode: a process sees one instance of it, and NCCL does not join instances of one GPU"
            yield warn("GPU modes", what, "one rank, with CUDA_VISIBLE_DEVICES=MIG-… of `nvidia-smi -L`")


def _driver(seen: Seen) -> Iterator[Finding]:
    """Compare the driver with torch's CUDA version. An older driver works only within the same CUDA major version.

    See minor version compatibility at https://docs.nvidia.com/deploy/cuda-compatibility/.
    """
    interpreter = seen.context.interpreter
    if interpreter is None or interpreter.torch_version is None:
        return
    cuda, driver = seen.survey.cuda, seen.survey.driver
    if interpreter.torch_cuda is None and seen.used:
        build = "for ROCm" if interpreter.torch_hip is not None else "without CUDA"
        what = f"torch {interpreter.torch_version} of {interpreter.path} is built {build}: the GPUs will not be used"
        yield warn("driver", what, "install a build of torch with CUDA, or name another --python")
    elif interpreter.torch_cuda is not None and cuda is not None:
        wanted = int(interpreter.torch_cuda.partition(".")[0])
        what = f"driver {driver} runs CUDA up to {cuda[0]}.{cuda[1]}, torch is built for CUDA {interpreter.torch_cuda}"
        if wanted > cuda[0]:
            yield warn("driver", what, f"update the driver, or install torch for CUDA {cuda[0]}")
        else:
            yield ok("driver", what)


LOOKS: Final[tuple[Callable[[Seen], Iterator[Finding]], ...]] = (_enough, _free, _sound, _set_up, _driver)


def _name(sample: GpuSample) -> str:
    return f"GPU {sample.device.index}"


def _who(process: GpuProcess) -> str:
    """Describe a process by pid, name, user, start time and memory, leaving out whatever is unknown."""
    import psutil

    held = process.memory_used_bytes
    size = f"{held / GIB:.1f} GiB" if held is not None else "some memory"
    try:
        found = psutil.Process(process.pid)
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.create_time()))
        return f"process {process.pid} ({found.name()}) of {found.username()} since {since} holds {size}"
    except psutil.Error:
        return f"process {process.pid} holds {size}"


def _is_newer(pid: int, t: float) -> bool:
    import psutil

    try:
        return float(psutil.Process(pid).create_time()) > t
    except psutil.Error:
        return False
