"""Every decision that depends on the machine: device, backend, number type, compiler. Pure: what is there is given as data.

Ranks tell each other which GPUs they see before the process group exists (`group.Group.meet`), so that all of them decide the same. What
`LOCAL_WORLD_SIZE` and a count of GPUs say is not enough: under ``srun --gpus-per-task=1`` each rank sees one GPU, and another one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainer.config import Config, UsageError
from trainer.distributed.place import Place

# Compute capability from which a type has tensor cores: CUDA C++ Programming Guide, "Compute Capabilities". Below 8.0
# torch.cuda.is_bf16_supported() says yes as well, for an emulation that is slower than float32.
BFLOAT16_FROM: Final = (8, 0)
FLOAT16_FROM: Final = (7, 0)
# Triton compiles for nothing older (torch/_inductor/utils.py, has_triton).
TRITON_FROM: Final = (7, 0)

# Dense tensor-core FLOP/s in bfloat16 (float16 where there is none) with float32 accumulation, without sparsity: NVIDIA's data sheets
# and architecture whitepapers. TensorFloat-32 has half of it on all of these from Ampere on.
PEAK_HALF: Final = (
    ("H200 NVL", 835e12),
    ("H200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("H800 PCIe", 756e12),
    ("H800", 989e12),
    ("H20", 148e12),
    ("GH200", 989e12),
    ("GB300", 2500e12),
    ("GB200", 2500e12),
    ("B300", 2250e12),
    ("B200", 2250e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("A30", 165e12),
    ("A40", 149.7e12),
    ("A10G", 70e12),
    ("A10", 125e12),
    ("L40S", 362e12),
    ("L40", 181e12),
    ("L20", 119.5e12),
    ("L4", 121e12),
    ("RTX PRO 6000 Blackwell Workstation", 503.8e12),
    ("RTX 6000 Ada", 364.2e12),
    ("RTX A6000", 154.8e12),
    ("RTX 5090", 209.5e12),
    ("RTX 4090", 165.2e12),
    ("RTX 3090 Ti", 80e12),
    ("RTX 3090", 71e12),
    ("V100S", 130e12),
    ("V100-PCIE", 112e12),
    ("V100", 125e12),
    ("T4", 65e12),
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as a rank sees it. `chip`: the same for two that are parts of one piece of silicon (MIG), which NCCL refuses."""

    name: str
    capability: tuple[int, int]
    chip: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a rank tells the others: its host, its place there if a launcher gave one, and the GPUs that it sees."""

    host: str
    local_rank: int | None
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True)
class Tools:
    """What the compiler needs on this host: a C compiler on PATH, and Python's own headers, which Triton includes."""

    c_compiler: bool
    python_header: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """How one rank computes, each part with its reason.

    Attributes:
        gpu: index of its GPU; None: on the CPU.
        backend: nccl or gloo, alike on all ranks.
        shared: two ranks of the job are on one chip.
        local_ranks: ranks on this host.
        dtype: of matrix products, alike on all ranks.
        compile: whether to compile.
        peak_flops: of all chips of the job together, in this type; None where that is not known.
    """

    gpu: int | None
    backend: str
    shared: bool
    local_ranks: int
    place_why: str
    dtype: str
    dtype_why: str
    compile: bool
    compile_why: str
    peak_flops: float | None
    peak_why: str

    @property
    def fused(self) -> bool:
        """Whether AdamW runs as one kernel: it has one for both devices (torch/optim/adamw.py, `fused`)."""
        return True


def decide(
    config: Config, place: Place, reports: Sequence[Report], tools: Tools, env: Mapping[str, str]
) -> Decision:
    """How rank `place.rank` computes.

    Args:
        config: the settings.
        place: this rank among its peers.
        reports: what each rank sees, by rank.
        tools: what is installed here.
        env: the environment.

    Raises:
        UsageError: a GPU or a backend was asked for that is not there; the same on every rank.
    """
    if config.device == "cpu":
        reports = [Report(report.host, report.local_rank) for report in reports]
    chosen = [_gpu_of(reports, rank) for rank in range(len(reports))]
    _require_gpus(config, reports, chosen)
    shared, where = _sharing(reports, chosen)
    backend = config.backend
    if backend == "auto":
        backend = "nccl" if chosen[0] is not None and not shared else "gloo"
    if backend == "nccl" and (chosen[0] is None or shared):
        why = where or "none is visible here" if chosen[0] is not None else "none is visible here"
        raise UsageError(
            f"--backend nccl needs a GPU of its own for each rank, and {why}; use --backend gloo"
        )
    me = place.rank
    mine, host = chosen[me], reports[me].host
    used = [reports[rank].gpus[gpu] for rank, gpu in enumerate(chosen) if gpu is not None]
    dtype, dtype_why = _dtype(config, used)
    compiles, compile_why = _compile(config, used, shared, where, tools, env)
    peak, peak_why = _peak(config, used, dtype)
    seen = len(reports[me].gpus)
    asked = "asked for" if config.device == "cpu" else "no GPU is visible"
    return Decision(
        gpu=mine,
        backend=backend,
        shared=shared,
        local_ranks=sum(report.host == host for report in reports),
        place_why=asked if mine is None else where or f"GPU {mine} of {seen} that it sees",
        dtype=dtype,
        dtype_why=dtype_why,
        compile=compiles,
        compile_why=compile_why,
        peak_flops=peak,
        peak_why=peak_why,
    )


def _gpu_of(reports: Sequence[Report], rank: int) -> int | None:
    """Index of a rank's GPU among those that it sees: by its local rank, told or counted."""
    report = reports[rank]
    if not report.gpus:
        return None
    local = report.local_rank
    if local is None:
        local = sum(other.host == report.host for other in reports[:rank])
    return local % len(report.gpus)


def _require_gpus(config: Config, reports: Sequence[Report], chosen: Sequence[int | None]) -> None:
    without = [rank for rank, gpu in enumerate(chosen) if gpu is None]
    if config.device == "cuda" and without:
        who = "" if len(reports) == 1 else f" to rank {without[0]} on {reports[without[0]].host}"
        raise UsageError(
            f"--device cuda, but no GPU is visible{who} (CUDA_VISIBLE_DEVICES?); use --device cpu"
        )
    if without and len(without) < len(chosen):
        rank = without[0]
        raise UsageError(
            f"rank {rank} on {reports[rank].host} sees no GPU, and others do: give it one, or use --device cpu"
        )


def _sharing(reports: Sequence[Report], chosen: Sequence[int | None]) -> tuple[bool, str]:
    """Whether two ranks are on one chip, and which."""
    chips = [reports[rank].gpus[gpu].chip for rank, gpu in enumerate(chosen) if gpu is not None]
    often = [(chip, count) for chip, count in Counter(chips).items() if count > 1]
    if not often:
        return False, ""
    count = max(count for _, count in often)
    return True, f"{len(chips)} ranks share {len(set(chips))} GPU(s), up to {count} on one"


def _dtype(config: Config, used: Sequence[Gpu]) -> tuple[str, str]:
    """The type of matrix products, the same on all ranks: that of the oldest GPU."""
    if config.dtype in {"bfloat16", "float16"}:
        emulated = any(gpu.capability < BFLOAT16_FROM for gpu in used)
        if config.dtype == "bfloat16" and emulated:
            return config.dtype, "asked for; emulated on this GPU, float16 is faster"
        return config.dtype, "asked for"
    if config.dtype == "float32" and not config.mixed_precision:
        return "float32", "asked for"
    if not used:
        if config.mixed_precision:
            return "bfloat16", "mixed precision was asked for"
        return "float32", "the default on a CPU"
    oldest = min(used, key=lambda gpu: gpu.capability)
    if oldest.capability >= BFLOAT16_FROM:
        return "bfloat16", f"{oldest.name} has it"
    if oldest.capability >= FLOAT16_FROM or config.mixed_precision:
        return "float16", f"with a loss scaler: {oldest.name} has no bfloat16"
    return "float32", f"{oldest.name} has no tensor cores"


def _compile(
    config: Config, used: Sequence[Gpu], shared: bool, where: str, tools: Tools, env: Mapping[str, str]
) -> tuple[bool, str]:
    if env.get("TORCH_COMPILE") == "0":
        return False, "TORCH_COMPILE=0"
    if config.compile != "auto":
        return config.compile == "on", f"--compile {config.compile}"
    if not used:
        return False, "no gain on a CPU at this size"
    if shared:
        return False, where
    if (oldest := min(used, key=lambda gpu: gpu.capability)).capability < TRITON_FROM:
        return False, f"Triton does not compile for {oldest.name}"
    if not tools.c_compiler:
        return False, "no C compiler is on PATH"
    if not tools.python_header:
        return False, "Python.h is missing: install Python's development files (python3-dev)"
    return True, "what cannot be compiled runs as it is"


def _peak(config: Config, used: Sequence[Gpu], dtype: str) -> tuple[float | None, str]:
    """Peak FLOP/s of the distinct chips of a job, however many ranks are on them."""
    chips = {gpu.chip: gpu for gpu in used}.values()
    if not chips:
        return None, "on a CPU"
    total = 0.0
    for gpu in chips:
        if " MIG " in gpu.name:
            return None, f"{gpu.name}: a part of a GPU"
        peak = peak_of(gpu.name)
        if peak is None:
            return None, f"no peak is known of {gpu.name}"
        if dtype == "bfloat16" and gpu.capability < BFLOAT16_FROM:
            return None, f"bfloat16 is emulated on {gpu.name}"
        if dtype == "float32" and not (config.tf32 and gpu.capability >= BFLOAT16_FROM):
            return None, "float32 without TensorFloat-32"
        total += peak / 2 if dtype == "float32" else peak
    return total, ""


def peak_of(name: str) -> float | None:
    """Dense FLOP/s in half precision of a GPU by its name; None where that is not known."""
    if re.search(
        r"Laptop|Max-Q|Mobile|\bD\b", name
    ):  # the same words, but another chip or clock (4090 D, 5090 D)
        return None
    # Whole words: an RTX A1000 is no A100, an RTX 3090 Ti stands before the 3090.
    return next((peak for words, peak in PEAK_HALF if re.search(rf"\b{words}\b", name)), None)
