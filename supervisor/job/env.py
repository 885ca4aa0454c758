"""The environment of a launch as a list of changes, each with its reason; nothing is set silently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from supervisor.job.arguments.flags import OWNED
from supervisor.job.spec import EntryKind, JobSpec

WIRE_REASON: Final = "tells a trainer that knows stoker where to report"
WIRE_NAMES: Final = ("STOKER_RUN_DIR", "STOKER_ATTEMPT", "STOKER_TELEMETRY_DIR", "STOKER_STOP_FILE")
_ALLOCATOR_NAMES: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@dataclass(frozen=True, slots=True)
class EnvChange:
    """One change to the environment of the launch and why. `value` None removes the name."""

    name: str
    value: str | None
    reason: str


INJECTED: Final = str(Path(__file__).parent.parent / "inject")
"""The folder with the sitecustomize.py that registers Python's faulthandler in a rank."""


def environment(
    spec: JobSpec,
    *,
    base: Mapping[str, str],
    wire: Mapping[str, str],
    extra: Mapping[str, str] | None = None,
    extra_reason: str = "changed for this attempt",
) -> tuple[EnvChange, ...]:
    """What a launch changes in the environment `base`, in the order to show it.

    Later sources win: stoker's defaults, the user's own, the wire, then `extra` (the plan of a restart).
    """
    changes: dict[str, EnvChange] = {}

    def put(name: str, value: str | None, reason: str) -> None:
        changes.pop(name, None)
        changes[name] = EnvChange(name, value, reason)

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
    if not spec.libuv:
        why = "libuv = false: this PyTorch has no libuv; agent and workers need to know"
        put("USE_LIBUV", "0", why)
        put("TORCHELASTIC_USE_AGENT_STORE", "0", why)
    if spec.torch_local_path:
        path = spec.torch_local_path
        why = "torch_local_path: a PyTorch built here comes first"
        put("PYTHONPATH", _joined(path, base.get("PYTHONPATH")), why)
        put("LD_LIBRARY_PATH", _joined(f"{path}/torch/lib", base.get("LD_LIBRARY_PATH")), why)
    origins = {name: origin for name, _, origin in spec.origins if name.startswith("env.")}
    for name, value in spec.env:
        put(name, value, f"yours ({origins.get(f'env.{name}', 'config')})")
    if spec.hang.faulthandler:
        own = changes.get("PYTHONPATH")
        rest = own.value if own is not None else base.get("PYTHONPATH")
        put("PYTHONPATH", _joined(INJECTED, rest), "hang.faulthandler: ranks can be asked for their stacks")
    twin = _allocator_twin(spec)
    if twin is not None:
        put(twin.name, twin.value, twin.reason)
    if spec.entry_kind is EntryKind.TRAINER:
        put("PYTHONSAFEPATH", "1", "so that a trainer.py of yours is not imported instead of the bundled one")
    for name, value in wire.items():
        put(name, value, WIRE_REASON)
    for name, value in (extra or {}).items():
        put(name, value, extra_reason)
    return tuple(changes.values())


def applied(base: Mapping[str, str], changes: tuple[EnvChange, ...]) -> dict[str, str]:
    """`base` with the changes made: what the child gets."""
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
    """PyTorch renamed the variable in 2.9; which one a build reads is not known before it runs."""
    own = dict(spec.env)
    given = [name for name in _ALLOCATOR_NAMES if name in own]
    if len(given) != 1:
        return None
    other = next(name for name in _ALLOCATOR_NAMES if name not in given)
    return EnvChange(
        other, own[given[0]], f"the other name of {given[0]}: releases differ in which one they read"
    )
