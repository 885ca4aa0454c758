"""GPUs before a run, through NVML's own C interface (tests/fakes/nvml.c)."""

from __future__ import annotations

import getpass
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.job.spec import EntryKind, JobSpec
from supervisor.preflight.context import CheckContext
from supervisor.preflight.gpus import check_gpus
from supervisor.preflight.interpreter import Interpreter
from supervisor.run.records import Finding, FindingLevel
from tests.fakes.nvml import GIB, Card, StandIn

TWO_RANKS = JobSpec("job", EntryKind.SCRIPT, "train.py", nproc_per_node=2)
TORCH = Interpreter("/env/bin/python", "3.11.7", "2.8.0", "", torch_cuda="12.8")
OK, INFO, WARNING = FindingLevel.OK, FindingLevel.INFO, FindingLevel.WARNING


def cards(count: int) -> list[Card]:
    return [Card(f"GPU-{number}000") for number in range(count)]


def findings(
    spec: JobSpec = TWO_RANKS, torch: Interpreter | None = TORCH, visible: str | None = None
) -> dict[str, list[Finding]]:
    """By check; none of them may refuse a start."""
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found: dict[str, list[Finding]] = {}
    for finding in check_gpus(CheckContext(spec, Path("runs"), env, torch)):
        assert finding.level is not FindingLevel.REFUSE
        found.setdefault(finding.check, []).append(finding)
    return found


def only(found: list[Finding]) -> Finding:
    (finding,) = found
    return finding


def test_two_sound_gpus_for_two_ranks(nvml: StandIn) -> None:
    nvml.show(*cards(2))
    found = findings()
    assert [(f.level, f.what) for each in found.values() for f in each] == [
        (OK, "2 GPUs for as many ranks"),
        (OK, "driver 570.86.15 runs CUDA up to 12.8, torch is built for CUDA 12.8"),
    ]


@pytest.mark.parametrize(
    ("count", "ranks", "visible", "level", "what"),
    [
        (1, 2, None, WARNING, "2 ranks, visible GPUs: 1; NCCL needs a GPU for each rank"),
        (4, 2, None, INFO, "2 of 4 visible GPUs will be used"),
        (4, 2, "3,1", OK, "2 GPUs for as many ranks"),
        (4, 2, "GPU-3,GPU-1", OK, "2 GPUs for as many ranks"),
        (4, 2, "2", WARNING, "2 ranks, visible GPUs: 1"),
        (4, 2, "", INFO, "none of 4 GPUs is visible to the ranks"),
        (4, 2, "-1", INFO, "none of 4 GPUs is visible to the ranks"),
        (
            4,
            2,
            "MIG-7a,MIG-7b",
            WARNING,
            "CUDA_VISIBLE_DEVICES names MIG instances: MIG-7a,MIG-7b; each of 2 ranks sees the first alone",
        ),
        (4, 1, "MIG-7a", INFO, "CUDA_VISIBLE_DEVICES names MIG instances: MIG-7a"),
        (4, 1, "0,-1,1", OK, "1 GPUs for as many ranks"),
    ],
)
def test_as_many_gpus_as_ranks(
    nvml: StandIn, count: int, ranks: int, visible: str | None, level: FindingLevel, what: str
) -> None:
    nvml.show(*cards(count))
    finding = only(findings(replace(TWO_RANKS, nproc_per_node=ranks), visible=visible)["GPUs"])
    assert finding.level is level
    assert finding.what.startswith(what)


def test_who_sits_there_already(nvml: StandIn) -> None:
    first, second = cards(2)
    second.used, second.processes = 70 * GIB, [(os.getppid(), 69 * GIB), (1, 1 * GIB)]
    nvml.show(first, second)
    finding = only(findings()["GPU memory"])
    assert finding.level is WARNING
    assert finding.what.startswith(f"GPU 1: 10.0 GiB of 80.0 GiB free; process {os.getppid()} (")
    assert f"of {getpass.getuser()} since 20" in finding.what
    assert finding.what.endswith("holds 69.0 GiB; 1 more")
    assert "CUDA_VISIBLE_DEVICES" in finding.fix
    assert "GPU memory" not in findings(replace(TWO_RANKS, nproc_per_node=1)), "no rank will sit on GPU 1"


def test_the_ranks_themselves_are_nobody_else(nvml: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the start they may be on the GPU already: what began after the check is theirs."""
    import subprocess

    from supervisor.preflight import gpus

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as rank:
        first, second = cards(2)
        first.used, first.processes = 20 * GIB, [(rank.pid, 20 * GIB)]
        nvml.show(first, second)
        assert "GPU memory" not in findings()
        monkeypatch.setattr(gpus, "NEWER_THAN_S", -3600.0)
        assert f"process {rank.pid} (" in only(findings()["GPU memory"]).what
        rank.communicate(b"\n")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"ecc": 3}, "GPU 0: 3 uncorrected memory errors since the driver was loaded"),
        ({"throttle": 0x40 | 0x08}, "GPU 0 is slowed down now (hw_slowdown, hw_thermal)"),
        ({"fails": {"*": 15}}, "GPU 0 is lost: it does not answer the driver"),
    ],
)
def test_a_card_that_is_not_sound(nvml: StandIn, change: dict[str, object], what: str) -> None:
    first, second = cards(2)
    nvml.show(replace(first, **change), second)  # type: ignore[arg-type]
    finding = only(findings()["GPU health"])
    assert (finding.level, finding.what) == (WARNING, what)
    assert finding.fix


def test_a_card_in_mig_mode(nvml: StandIn) -> None:
    first, second = cards(2)
    nvml.show(replace(first, mig=True), replace(second, mig=False))
    mig = only(findings()["GPU modes"])
    assert mig.level == WARNING
    assert mig.what.startswith("GPU 0 is in MIG mode")
    assert not [f for f in findings(visible="MIG-7a").get("GPU modes", []) if "MIG" in f.what]


@pytest.mark.parametrize(
    ("cuda", "torch", "level", "what"),
    [
        (12_040, "12.8", OK, "driver 550.54.14 runs CUDA up to 12.4, torch is built for CUDA 12.8"),
        (12_080, "13.0", WARNING, "driver 550.54.14 runs CUDA up to 12.8, torch is built for CUDA 13.0"),
        (12_080, "11.8", OK, "driver 550.54.14 runs CUDA up to 12.8, torch is built for CUDA 11.8"),
        (
            12_080,
            None,
            WARNING,
            "torch 2.8.0 of /env/bin/python is built without CUDA: the GPUs will not be used",
        ),
    ],
)
def test_the_driver_against_torch(
    nvml: StandIn, cuda: int, torch: str | None, level: FindingLevel, what: str
) -> None:
    nvml.driver, nvml.cuda = "550.54.14", cuda
    nvml.show(*cards(2))
    finding = only(findings(torch=replace(TORCH, torch_cuda=torch))["driver"])
    assert (finding.level, finding.what) == (level, what)


def test_without_a_driver_a_cuda_build_is_told(nvml: StandIn) -> None:
    nvml.init_code = 9
    nvml.show()
    finding = only(findings()["GPUs"])
    assert (finding.level, finding.what) == (
        INFO,
        "none (NVML: Driver Not Loaded): torch with CUDA 12.8 will run on the CPU",
    )
    assert not findings(torch=replace(TORCH, torch_cuda=None)), "a machine for CPU runs"
