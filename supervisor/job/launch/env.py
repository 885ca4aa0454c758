"""The environment of a launch as a list of changes, each with its reason; nothing is set silently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from supervisor.job.arguments.flags import OWNED
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
"""The plan that the instrumentation puts into the ranks (instrument/settings.py)."""
_ALLOCATOR_NAMES: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


# INFO, not DETAIL, which wraps each process group in another one that checks every call and changes the job.
DEBUG_DISTRIBUTED: Final[Mapping[str, str]] = {
    "NCCL_DEBUG": "INFO",
    "TORCH_DISTRIBUTED_DEBUG": "INFO",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}
"""What shows how the ranks meet and where a collective waits: NCCL's own log, DDP's checks, PyTorch's flight recorder.

https://docs.pytorch.org/docs/stable/distributed.html#debugging-torch-distributed-applications, and its tutorial of the flight recorder.
"""
DETERMINISTIC: Final[Mapping[str, str]] = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONHASHSEED": "0"}
"""What has to stand in the environment before a process begins; the rest is the script's: seeds, `torch.use_deterministic_algorithms`.

https://docs.pytorch.org/docs/stable/notes/randomness.html
"""


@dataclass(frozen=True, slots=True)
class EnvChange:
    """One change to the launch environment, and the reason. `value` None removes the name."""

    name: str
    value: str | None
    reason: str


INSTRUMENT: Final = str(Path(__file__).parents[2] / "instrument" / "on_path")
"""The folder with the sitecustomize.py that measures inside a rank, and registers Python's faulthandler there."""


NOT_MEASURED: Final = ("STOKER_INSTRUMENT", "0")
"""The variable, and its value, with which a process measures nothing."""
UNREACHED: Final = (
    "is set inside the job's processes, and --no-instrument or STOKER_INSTRUMENT=0 keeps stoker out of them"
)
"""Said of a setting that no word or variable of the launch reaches."""


def environment(
    spec: JobSpec,
    *,
    base: Mapping[str, str],
    wire: Mapping[str, str],
    extra: Mapping[str, str] | None = None,
) -> tuple[EnvChange, ...]:
    """The launch's changes to the environment `base`, in display order: the last of each name in `environment_layers`."""
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
    """Every source's change to the environment `base`, the lowest first: a later one overrides those of the same name before it.

    The sources are: stoker's defaults and switches, the user's own, the wire, then `extra` (the plan of a
    restart). A switch sets nothing that `base` already has.
    """
    changes: list[EnvChange] = []

    def put(name: str, value: str | None, reason: str) -> None:
        changes.append(EnvChange(name, value, reason))

    under_torchrun = spec.entry_kind is not EntryKind.COMMAND
    if "PYTHONUNBUFFERED" not in base:
        put("PYTHONUNBUFFERED", "1", "else a rank's lines reach its file only when a buffer is full")
    if under_torchrun and spec.nproc_per_node > 1 and "OMP_NUM_THREADS" not in base:
        put("OMP_NUM_THREADS", "1", "as torchrun would: several ranks share the cores")
    if under_torchrun:
        for key in OWNED:
            name = f"PET_{key.upper()}"
            if name in base:
                put(name, None, "stoker sets this flag of torchrun itself")
    changes += _asked_for(spec, base)
    for name, value in spec.env:
        *beaten, (_, origin) = spec.sources(f"env.{name}") or [("", "config")]
        for given, at in beaten:
            put(name, given, f"yours ({at})")
        put(name, value, f"yours ({origin})")
    changes += _instrumentation(spec, base, changes, extra or {})
    twin = _allocator_twin(spec)
    if twin is not None:
        put(twin.name, twin.value, twin.reason)
    if spec.entry_kind is EntryKind.TRAINER:
        put("PYTHONSAFEPATH", "1", "so that a trainer.py of yours is not imported instead of the bundled one")
    for name, value in wire.items():
        put(name, value, WIRE_REASON)
    for name, value in (extra or {}).items():
        put(name, value, "changed for this attempt")
    return changes


def _instrumentation(
    spec: JobSpec, base: Mapping[str, str], earlier: Sequence[EnvChange], extra: Mapping[str, str]
) -> Iterator[EnvChange]:
    """Variables that load the instrumentation into the job's Python processes, and limit what it may do."""
    own = {change.name: change.value for change in earlier}
    seen = {name: value for name, value in {**base, **own, **extra}.items() if value}
    measures = is_measured(spec, seen)
    if not (measures or spec.hang.faulthandler):
        return
    why = "batch, steps and checkpoints are measured in the process (--no-instrument: not)"
    if spec.hang.faulthandler:
        yield EnvChange("STOKER_FAULTHANDLER", "1", "hang.faulthandler: ranks can be asked for their stacks")
    if not measures:
        why = "hang.faulthandler: ranks can be asked for their stacks"
        yield EnvChange(*NOT_MEASURED, "nothing is measured in the process")
    rest = own.get("PYTHONPATH", base.get("PYTHONPATH"))
    yield EnvChange("PYTHONPATH", _joined(INSTRUMENT, rest), why)
    if measures and "SLURM_PROCID" in base:  # in an sbatch job every process has one, which is not a rank's
        step = f"{base.get('SLURM_STEP_ID', '')}:{base['SLURM_PROCID']}"
        yield EnvChange("STOKER_SLURM_STEP", step, "tells a rank's SLURM_PROCID from stoker's own")


def _asked_for(spec: JobSpec, base: Mapping[str, str]) -> Iterator[EnvChange]:
    """Variables for the job's settings and switches."""
    libraries = base.get("LD_LIBRARY_PATH")
    if not spec.libuv:
        why = "libuv = false: this PyTorch has no libuv; agent and workers need to know"
        yield EnvChange("USE_LIBUV", "0", why)
        yield EnvChange("TORCHELASTIC_USE_AGENT_STORE", "0", why)
    if spec.torch_local_path:
        path = spec.torch_local_path
        why = "torch_local_path: a PyTorch built here comes first"
        libraries = _joined(f"{path}/torch/lib", libraries)
        yield EnvChange("PYTHONPATH", _joined(path, base.get("PYTHONPATH")), why)
        yield EnvChange("LD_LIBRARY_PATH", libraries, why)
    if spec.cuda_home:
        why = "cuda_home: this CUDA comes first"
        yield EnvChange("CUDA_HOME", spec.cuda_home, why)
        yield EnvChange("PATH", _joined(f"{spec.cuda_home}/bin", base.get("PATH")), why)
        yield EnvChange("LD_LIBRARY_PATH", _joined(f"{spec.cuda_home}/lib64", libraries), why)
    for wanted, table, why in (
        (
            spec.debug_distributed,
            DEBUG_DISTRIBUTED,
            "--debug-distributed: how ranks meet and where they wait",
        ),
        (spec.deterministic, DETERMINISTIC, "--deterministic: what a script cannot set for itself"),
    ):
        if wanted:  # the shell's variables are the user's
            yield from (EnvChange(name, value, why) for name, value in table.items() if name not in base)


def is_measured(spec: JobSpec, env: Mapping[str, str]) -> bool:
    """Whether processes of a job with the environment `env` are measured from inside."""
    name, refusal = NOT_MEASURED
    return spec.instrument and spec.entry_kind is not EntryKind.TRAINER and env.get(name) != refusal


def refuse_unreached(spec: JobSpec, env: Mapping[str, str]) -> JobSpec:
    """Refuse to change the batch if a file's key sets it and the job's processes, with the environment `env`, are not measured.

    Raises:
        JobError: such a key must be set from the first launch on.
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
    """`base` with the changes made: the child's environment."""
    result = dict(base)
    for change in changes:
        if change.value is None:
            result.pop(change.name, None)
        else:
            result[change.name] = change.value
    return result


def _joined(first: str, rest: str | None) -> str:
    return f"{first}:{rest}" if rest else first


def _allocator_twin(spec: JobSpec) -> EnvChange | None:
    """PyTorch renamed the variable in 2.9; which name a build reads is unknown before it runs."""
    own = dict(spec.env)
    given = [name for name in _ALLOCATOR_NAMES if name in own]
    if len(given) != 1:
        return None
    other = next(name for name in _ALLOCATOR_NAMES if name not in given)
    return EnvChange(
        other, own[given[0]], f"the other name of {given[0]}: releases differ in which one they read"
    )
