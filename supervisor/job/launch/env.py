"""Lists the environment changes for a launch, each with its reason. Nothing is set silently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from supervisor.job.arguments.run_arguments import OWNED
from supervisor.job.errors import JobError
from supervisor.job.knobs.setting_names import Place, place_of
from supervisor.job.spec import EntryKind, JobSpec

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
WIRE_REASON: Final = "tells a trainer that knows stoker where to report"
WIRE_NAMES: Final = (
    "STOKER_RUN_DIR",
    "STOKER_ATTEMPT",
    "STOKER_TELEMETRY_DIR",
    "STOKER_STOP_FILE",
    "STOKER_NODE_DIR",
    "STOKER_APPLY",
    "STOKER_CONFIRM",
)
APPLY: Final = "STOKER_APPLY"
"""The variable that carries the plan for the instrumentation to apply inside the ranks (instrument/settings.py)."""
_ALLOCATOR_NAMES: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


# INFO, not DETAIL. DETAIL wraps each process group in one that checks every call, which changes the job.
DEBUG_DISTRIBUTED: Final[Mapping[str, str]] = {
    "NCCL_DEBUG": "INFO",
    "TORCH_DISTRIBUTED_DEBUG": "INFO",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}
"""Variables that show how ranks connect and wait: NCCL logs, DDP checks and the flight recorder (see its tutorial).

See https://docs.pytorch.org/docs/stable/distributed.html#debugging-torch-distributed-applications
"""
DETERMINISTIC: Final[Mapping[str, str]] = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONHASHSEED": "0"}
"""Determinism variables needed at process start. Seeds and `torch.use_deterministic_algorithms` are up to the script.

See https://docs.pytorch.org/docs/stable/notes/randomness.html
"""


@dataclass(frozen=True, slots=True)
class EnvChange:
    """A change to the launch environment and its reason. If `value` is None, the variable is removed."""

    name: str
    value: str | None
    reason: str


INSTRUMENT: Final = str(Path(__file__).parents[2] / "instrument" / "on_path")
"""The folder whose sitecustomize.py measures inside a rank and registers Python's faulthandler there."""


NOT_MEASURED: Final = ("STOKER_INSTRUMENT", "0")
"""The variable and the value that turn off measurements in a process."""
UNREACHED: Final = (
    "is set inside the job's processes, and --no-instrument or STOKER_INSTRUMENT=0 keeps stoker out of them"
)
"""The explanation shown for a setting that neither the launch command nor its variables can reach."""


def environment(
    spec: JobSpec,
    *,
    base: Mapping[str, str],
    wire: Mapping[str, str],
    extra: Mapping[str, str] | None = None,
) -> tuple[EnvChange, ...]:
    """Return a launch's changes to the environment `base`, in display order. If a variable has several, the last layer wins."""
    changes: dict[str, EnvChange] = {}
    for change in environment_layers(spec, base=base, wire=wire, extra=extra):
        changes.pop(change.name, None)
        changes[change.name] = change
    return tuple(changes.values())


def environment_layers(
    spec: JobSpec,
    *,
    base: Mapping[str, str],
    wire: Mapping[str, str],
    extra: Mapping[str, str] | None = None,
) -> list[EnvChange]:
    """Return each source's changes to the environment `base`, lowest precedence first.

    For each name, the last change is in effect. The sources are stoker's defaults and switches, the user's own
    changes, the wire, and `extra` (a restart's plan). A switch never overrides what `base` already has.
    """
    changes = [*_defaults(spec, base), *_asked_for(spec, base)]
    for name, value in spec.env:
        *beaten, (_, origin) = spec.sources(f"env.{name}") or [("", "config")]
        changes += (EnvChange(name, given, f"yours ({at})") for given, at in beaten)
        changes.append(EnvChange(name, value, f"yours ({origin})"))
    changes += _instrumentation(spec, base, {change.name: change.value for change in changes}, extra or {})
    # PyTorch renamed the variable in 2.9. Which name a build reads is unknown before it runs.
    own = {name: value for name, value in spec.env if name in _ALLOCATOR_NAMES}
    if len(own) == 1:
        ((name, value),) = own.items()
        twin = next(other for other in _ALLOCATOR_NAMES if other != name)
        why = f"the other name of {name}: releases differ in which one they read"
        changes.append(EnvChange(twin, value, why))
    if spec.entry_kind is EntryKind.TRAINER:
        why = "so that a trainer.py of yours is not imported instead of the bundled one"
        changes.append(EnvChange("PYTHONSAFEPATH", "1", why))
    changes += (EnvChange(name, value, WIRE_REASON) for name, value in wire.items())
    changes += (EnvChange(name, value, "changed for this attempt") for name, value in (extra or {}).items())
    return changes


def _defaults(spec: JobSpec, base: Mapping[str, str]) -> Iterator[EnvChange]:
    """Yield the variables that every launch sets unless the shell already does."""
    if "PYTHONUNBUFFERED" not in base:
        why = "else a rank's lines reach its file only when a buffer is full"
        yield EnvChange("PYTHONUNBUFFERED", "1", why)
    if spec.entry_kind is EntryKind.COMMAND:
        return
    if spec.nproc_per_node > 1 and "OMP_NUM_THREADS" not in base:
        yield EnvChange("OMP_NUM_THREADS", "1", "as torchrun would: several ranks share the cores")
    for name in (f"PET_{key.upper()}" for key in OWNED):
        if name in base:
            yield EnvChange(name, None, "stoker sets this flag of torchrun itself")


def _instrumentation(
    spec: JobSpec, base: Mapping[str, str], own: Mapping[str, str | None], extra: Mapping[str, str]
) -> Iterator[EnvChange]:
    """Yield the variables that load the instrumentation into the job's Python processes and limit what it does."""
    seen = {name: value for name, value in {**base, **own, **extra}.items() if value}
    measures, handles = is_measured(spec, seen), spec.hang.faulthandler
    if not (measures or handles):
        return
    why = "batch, steps and checkpoints are measured in the process (--no-instrument: not)"
    stacks = "hang.faulthandler: ranks can be asked for their stacks"
    if handles:
        yield EnvChange("STOKER_FAULTHANDLER", "1", stacks)
    if not measures:
        yield EnvChange(*NOT_MEASURED, "nothing is measured in the process")
    path = _joined(INSTRUMENT, own.get("PYTHONPATH", base.get("PYTHONPATH")))
    yield EnvChange("PYTHONPATH", path, why if measures else stacks)
    if measures and "SLURM_PROCID" in base:  # in an sbatch job every process has it, rank or not
        step = f"{base.get('SLURM_STEP_ID', '')}:{base['SLURM_PROCID']}"
        yield EnvChange("STOKER_SLURM_STEP", step, "tells a rank's SLURM_PROCID from stoker's own")


def _asked_for(spec: JobSpec, base: Mapping[str, str]) -> Iterator[EnvChange]:
    """Yield the variables that the job's settings and switches require."""
    libraries = base.get("LD_LIBRARY_PATH")
    if not spec.libuv:
        why = "libuv = false: this PyTorch has no libuv; agent and workers need to know"
        yield EnvChange("USE_LIBUV", "0", why)
        yield EnvChange("TORCHELASTIC_USE_AGENT_STORE", "0", why)
    if path := spec.torch_local_path:
        why = "torch_local_path: a PyTorch built here comes first"
        libraries = _joined(f"{path}/torch/lib", libraries)
        yield EnvChange("PYTHONPATH", _joined(path, base.get("PYTHONPATH")), why)
        yield EnvChange("LD_LIBRARY_PATH", libraries, why)
    if path := spec.cuda_home:
        why = "cuda_home: this CUDA comes first"
        yield EnvChange("CUDA_HOME", path, why)
        yield EnvChange("PATH", _joined(f"{path}/bin", base.get("PATH")), why)
        yield EnvChange("LD_LIBRARY_PATH", _joined(f"{path}/lib64", libraries), why)
    if spec.debug_distributed:  # do not override the shell's variables, here and below
        why = "--debug-distributed: how ranks meet and where they wait"
        yield from (EnvChange(*pair, why) for pair in DEBUG_DISTRIBUTED.items() if pair[0] not in base)
    if spec.deterministic:
        why = "--deterministic: what a script cannot set for itself"
        yield from (EnvChange(*pair, why) for pair in DETERMINISTIC.items() if pair[0] not in base)


def is_measured(spec: JobSpec, env: Mapping[str, str]) -> bool:
    """Check whether the processes of a job that runs with the environment `env` are measured from inside."""
    name, refusal = NOT_MEASURED
    return spec.instrument and spec.entry_kind is not EntryKind.TRAINER and env.get(name) != refusal


def refuse_unreached(spec: JobSpec, env: Mapping[str, str]) -> JobSpec:
    """Refuse batch changes if the batch is set by a key in a file and the job's processes (with `env`) are not measured.

    Raises:
        JobError: the key would have to be set from the first launch on.
    """
    if is_measured(spec, env):
        return spec
    if unset := [name for name, _ in spec.set_knobs if place_of(name) is Place.FILE]:
        raise JobError(f"{unset[0]} {UNREACHED}: set it in the file")
    knobs = spec.knobs
    named = (knobs.batch, knobs.accumulation, knobs.global_batch)
    files = [name for name in named if name is not None and place_of(name) is Place.FILE]
    if not files or knobs.refusal:
        return spec
    return replace(
        spec,
        knobs=replace(
            knobs, refusal=f"{files[0]} {UNREACHED}", help="drop --no-instrument or STOKER_INSTRUMENT=0"
        ),
    )


def applied(base: Mapping[str, str], changes: tuple[EnvChange, ...]) -> dict[str, str]:
    """Apply the changes to `base` and return the child's environment."""
    made = {**base, **{change.name: change.value for change in changes}}
    return {name: value for name, value in made.items() if value is not None}


def _joined(first: str, rest: str | None) -> str:
    return f"{first}:{rest}" if rest else first
