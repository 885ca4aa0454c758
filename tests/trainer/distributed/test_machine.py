"""Placement and precision on machines that are not here: each described, each with what has to come out and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from trainer.config import Config, UsageError
from trainer.distributed.machine import Decision, Gpu, Report, Tools, decide, peak_of
from trainer.distributed.place import detect

BOTH = Tools(c_compiler=True, python_header=True)
CAPABILITY = {
    "Tesla P100-PCIE-16GB": (6, 0),
    "Tesla V100-SXM2-16GB": (7, 0),
    "Tesla T4": (7, 5),
    "NVIDIA A100-SXM4-80GB": (8, 0),
    "NVIDIA A10G": (8, 6),
    "NVIDIA GeForce RTX 3090": (8, 6),
    "NVIDIA GeForce RTX 4090": (8, 9),
    "NVIDIA H100 80GB HBM3": (9, 0),
    "NVIDIA B200": (10, 0),
    "NVIDIA GeForce RTX 5090": (12, 0),
}
P100, V100, T4, A100, A10G, RTX3090, RTX4090, H100, B200, RTX5090 = CAPABILITY


def gpus(name: str, *chips: str) -> tuple[Gpu, ...]:
    return tuple(Gpu(name, CAPABILITY.get(name, (8, 0)), chip) for chip in chips)


def torchrun(rank: int, world: int, local: int) -> dict[str, str]:
    return {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(local), "TORCHELASTIC_RUN_ID": "x",
    }  # fmt: skip


def srun(rank: int, world: int, local: int) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(world),
        "SLURM_LOCALID": str(local),
        "SLURM_STEP_ID": "0",
    }


def pods(rank: int, world: int) -> dict[str, str]:
    """A training operator's variables: no local rank, no local size."""
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "job-0", "MASTER_PORT": "29500"}


@dataclass(frozen=True)
class Case:
    """A machine as each rank sees it: (host, environment, GPUs); the rank that is looked at; what comes out."""

    name: str
    ranks: list[tuple[str, dict[str, str], tuple[Gpu, ...]]]
    wanted: dict[str, Any]
    rank: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    tools: Tools = BOTH
    env: dict[str, str] = field(default_factory=dict)


def node(
    name: str, count: int, ranks: int | None = None
) -> list[tuple[str, dict[str, str], tuple[Gpu, ...]]]:
    """One host under torchrun, where each rank sees all GPUs."""
    all_ = gpus(name, *(f"{name}-{n}" for n in range(count)))
    world = ranks if ranks is not None else count
    return [("n0", torchrun(rank, world, rank) if world > 1 else {}, all_) for rank in range(world)]


def tasks(
    name: str, hosts: int, each: int, env: Any = srun
) -> list[tuple[str, dict[str, str], tuple[Gpu, ...]]]:
    """One GPU a task: each rank sees its own alone."""
    return [
        (f"n{rank // each}", env(rank, hosts * each, rank % each), gpus(name, f"GPU-{rank}"))
        for rank in range(hosts * each)
    ]


def pod_ranks(name: str, each: int, count: int) -> list[tuple[str, dict[str, str], tuple[Gpu, ...]]]:
    """`count` pods of `each` GPUs, one process a pod or, with several, one a GPU."""
    return [
        (
            f"job-{rank // each}",
            pods(rank, count * each),
            gpus(name, *(f"{rank // each}-{n}" for n in range(each))),
        )
        for rank in range(count * each)
    ]


MIG = "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
HALF = {"backend": "nccl", "dtype": "bfloat16", "compile": True, "shared": False}
CPU = {"gpu": None, "backend": "gloo", "dtype": "float32", "compile": False}
NONE: tuple[Gpu, ...] = ()
CASES = [
    Case("a laptop without a GPU", [("me", {}, NONE)], {**CPU, "place_why": "no GPU is visible", "local_ranks": 1}),
    Case("no GPU, two ranks", [("me", torchrun(r, 2, r), NONE) for r in (0, 1)], {**CPU, "local_ranks": 2}),
    Case("a GPU that is not wanted", node(A100, 1), {**CPU, "place_why": "asked for"}, settings={"device": "cpu"}),
    Case("one A100", node(A100, 1), {**HALF, "gpu": 0, "peak_flops": 312e12}),
    Case("one 4090 without a compiler", node(RTX4090, 1), {"compile": False, "compile_why": "no C compiler is on PATH"},
         tools=Tools(c_compiler=False, python_header=True)),
    Case("one 3090 without Python.h", node(RTX3090, 1), {"compile": False, "compile_why": "Python.h"},
         tools=Tools(c_compiler=True, python_header=False)),
    Case("compile off by flag", node(A100, 1), {"compile": False, "compile_why": "--compile off"}, settings={"compile": "off"}),
    Case("one V100", node(V100, 1), {"dtype": "float16", "dtype_why": "no bfloat16", "compile": True, "peak_flops": 125e12}),
    Case("one P100", node(P100, 1), {"dtype": "float32", "dtype_why": "no tensor cores", "compile": False, "peak_flops": None}),
    Case("bfloat16 asked of a V100", node(V100, 1), {"dtype": "bfloat16", "dtype_why": "emulated", "peak_flops": None, "peak_why": "emulated"}, settings={"dtype": "bfloat16"}),
    Case("float32 asked of an A100", node(A100, 1), {"dtype": "float32", "peak_flops": 156e12}, settings={"dtype": "float32"}),
    Case("float32 without TF32", node(A100, 1), {"peak_flops": None, "peak_why": "without TensorFloat-32"},
         settings={"dtype": "float32", "tf32": False}),
    Case("8 H100 under torchrun", node(H100, 8), {**HALF, "gpu": 5, "local_ranks": 8, "peak_flops": 8 * 989e12}, rank=5),
    Case("2 ranks share one GPU", node(A100, 1, 2),
         {"backend": "gloo", "shared": True, "compile": False, "compile_why": "2 ranks share 1", "peak_flops": 312e12}, rank=1),
    Case("srun, 1 GPU a task, 2 nodes", tasks(H100, 2, 4), {**HALF, "gpu": 0, "local_ranks": 4}, rank=6),
    Case("srun, 4 GPUs a task, 1 task", [("n0", {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, gpus(A100, *"abcd"))],
         {**HALF, "gpu": 0, "peak_flops": 312e12}),
    Case("srun, all 8 seen by 8 tasks", [("n0", srun(r, 8, r), gpus(H100, *"abcdefgh")) for r in range(8)], {**HALF, "gpu": 7}, rank=7),
    Case("2 pods of 4 GPUs, a process a GPU, no local rank", pod_ranks(H100, 4, 2), {**HALF, "gpu": 2, "local_ranks": 4}, rank=6),
    Case("MIG slices of two GPUs", [("n0", torchrun(r, 2, 0), gpus(MIG, f"n0/{r}")) for r in range(2)],
         {"backend": "nccl", "shared": False, "peak_flops": None, "peak_why": "a part of a GPU"}),
    Case("MIG slices of one GPU", [("n0", torchrun(r, 2, r), gpus(MIG, "n0/7", "n0/7")) for r in range(2)],
         {"backend": "gloo", "shared": True}),
    Case("an A100 and a V100", [("n0", torchrun(0, 2, 0), gpus(A100, "a")), ("n1", torchrun(1, 2, 0), gpus(V100, "v"))],
         {"backend": "nccl", "dtype": "float16", "peak_flops": 437e12}),
    Case("gloo asked for on 2 GPUs", node(A100, 2), {"backend": "gloo", "shared": False, "gpu": 1}, rank=1, settings={"backend": "gloo"}),
    Case("a GPU nobody has heard of", node("NVIDIA Q9000", 1), {**HALF, "peak_flops": None, "peak_why": "NVIDIA Q9000"}),
    Case("an old launcher's --local_rank", [("n0", pods(r, 2), gpus(A100, "a", "b")) for r in range(2)], {**HALF, "gpu": 1}, rank=1,
         settings={"local_rank": 1}),
]  # fmt: skip


def decided(case: Case) -> Decision:
    config = Config(**case.settings)
    reports = []
    for rank, (host, env, seen) in enumerate(case.ranks):
        told = config if rank == case.rank else Config()
        reports.append(Report(host, detect(env, told).told_local_rank, seen))
    place = detect(case.ranks[case.rank][1], config)
    return decide(config, place, reports, case.tools, case.env)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_decided_on_a_described_machine(case: Case) -> None:
    found = decided(case)
    for name, wanted in case.wanted.items():
        value = getattr(found, name)
        if name.endswith("_why"):
            assert wanted in value, name
        else:
            assert value == wanted, name
    assert found.fused


def test_all_ranks_decide_alike() -> None:
    for case in CASES:
        alike = {
            (found.backend, found.dtype, found.shared, found.peak_flops)
            for rank in range(len(case.ranks))
            if (
                found := decided(Case(case.name, case.ranks, {}, rank, {**case.settings, "local_rank": rank}))
            )
        }
        assert len(alike) == 1, case.name


@pytest.mark.parametrize(
    ("ranks", "settings", "says"),
    [
        ([("me", {}, NONE)], {"device": "cuda"}, "no GPU is visible"),
        ([("me", {}, NONE)], {"backend": "nccl"}, "none is visible here"),
        (node(A100, 1, 2), {"backend": "nccl"}, "2 ranks share 1"),
        (
            [("n0", torchrun(0, 2, 0), gpus(A100, "a")), ("n1", torchrun(1, 2, 0), NONE)],
            {},
            "rank 1 on n1 sees no GPU, and others do",
        ),
        (
            [("n0", torchrun(0, 2, 0), gpus(A100, "a")), ("n1", torchrun(1, 2, 0), NONE)],
            {"device": "cuda"},
            "no GPU is visible to rank 1 on n1",
        ),
    ],
)
def test_what_cannot_work_is_refused_alike_on_every_rank(
    ranks: list[tuple[str, dict[str, str], tuple[Gpu, ...]]], settings: dict[str, Any], says: str
) -> None:
    for rank in range(len(ranks)):
        with pytest.raises(UsageError, match=says):
            decided(Case("refused", ranks, {}, rank, settings))


def test_a_gpus_peak_is_found_by_whole_words() -> None:
    known = {
        "NVIDIA H200": 989e12, "NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H100 PCIe": 756e12, "NVIDIA H20": 148e12,
        A100: 312e12, V100: 125e12, "Tesla V100-PCIE-32GB": 112e12, A10G: 70e12, "NVIDIA A10": 125e12,
        "NVIDIA GeForce RTX 3090 Ti": 80e12, "NVIDIA RTX 6000 Ada Generation": 364.2e12,
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": 503.8e12, "NVIDIA B300 SXM6 AC": 2250e12,
    }  # fmt: skip
    assert {name: peak_of(name) for name in known} == known
    for unknown in (
        "NVIDIA RTX A1000",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 5090 D v2",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "Quadro RTX 6000",
        "",
    ):
        assert peak_of(unknown) is None, unknown
