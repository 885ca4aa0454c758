"""GPUs before a run, through NVML's own C interface (tests/fakes/nvml.c)."""

from __future__ import annotations

import getpass
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.job.spec import EntryKind, JobSpec
from supervisor.preflight.context import CheckContext, note, ok, warn
from supervisor.preflight.gpus import check_gpus
from supervisor.preflight.interpreter import Interpreter
from supervisor.run.records import Finding, FindingLevel
from tests.fakes.nvml import GIB, Card, StandIn

TWO_RANKS = JobSpec("job", EntryKind.SCRIPT, "train.py", nproc_per_node=2)
TORCH = Interpreter("/env/bin/python", "3.11.7", "2.8.0", "", torch_cuda="12.8")
OK, WARNING = FindingLevel.OK, FindingLevel.WARNING


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


NONE_SEEN = "none of 4 GPUs is visible to the ranks (CUDA_VISIBLE_DEVICES="
NAMED = "CUDA_VISIBLE_DEVICES names"
NOT_SEEN = "which is none of the 4 GPUs here or is named twice: it and what follows are not seen"
ONCE = "name each once, as `nvidia-smi -L` lists them"


@pytest.mark.parametrize(
    ("count", "ranks", "visible", "expected"),
    [
        (1, 2, None, [warn("GPUs", "2 ranks, visible GPUs: 1; NCCL needs a GPU for each rank", "--nproc-per-node 1")]),
        (4, 2, None, [note("GPUs", "2 of 4 visible GPUs will be used")]),
        (4, 2, "3,1", [ok("GPUs", "2 GPUs for as many ranks")]),
        (4, 2, "GPU-3,GPU-1", [ok("GPUs", "2 GPUs for as many ranks")]),
        (4, 2, "2", [warn("GPUs", "2 ranks, visible GPUs: 1; NCCL needs a GPU for each rank", "--nproc-per-node 1")]),
        (4, 2, "", [note("GPUs", f"{NONE_SEEN})")]),
        (4, 2, "-1", [note("GPUs", f"{NONE_SEEN}-1)")]),
        (4, 2, "MIG-7a,MIG-7b", [warn("GPUs", f"{NAMED} MIG instances: MIG-7a,MIG-7b; each of 2 ranks sees the first alone", "one rank")]),
        (4, 1, "MIG-7a", [note("GPUs", f"{NAMED} MIG instances: MIG-7a")]),
        (4, 1, "0,-1,1", [ok("GPUs", "1 GPUs for as many ranks")]),
        (4, 1, "2, 7,1", [warn("GPUs", f"{NAMED} 7, {NOT_SEEN}", ONCE), ok("GPUs", "1 GPUs for as many ranks")]),
        (4, 1, "2,2", [warn("GPUs", f"{NAMED} 2, {NOT_SEEN}", ONCE), note("GPUs", f"{NONE_SEEN}2,2)")]),
    ],
)  # fmt: skip
def test_as_many_gpus_as_ranks(
    nvml: StandIn, count: int, ranks: int, visible: str | None, expected: list[Finding]
) -> None:
    nvml.show(*cards(count))
    assert findings(replace(TWO_RANKS, nproc_per_node=ranks), visible=visible)["GPUs"] == expected


def test_a_command_is_told_what_it_sees_and_the_trainer_shares(nvml: StandIn) -> None:
    nvml.show(*cards(4))
    command = replace(TWO_RANKS, entry_kind=EntryKind.COMMAND)
    assert findings(command, visible="1,2,3")["GPUs"] == [ok("GPUs", "3 of 4 GPUs are visible")]
    assert findings(command, visible="MIG-7a")["GPUs"] == [note("GPUs", f"{NAMED} MIG instances: MIG-7a")]
    trainer = replace(TWO_RANKS, entry_kind=EntryKind.TRAINER)
    assert findings(trainer, visible="1")["GPUs"] == [
        note("GPUs", "2 ranks share 1 GPUs, and meet over gloo")
    ]


WAIT = "wait for it, or leave that GPU out with CUDA_VISIBLE_DEVICES"


def test_who_sits_there_already(nvml: StandIn) -> None:
    first, second = cards(2)
    second.used, second.processes = 70 * GIB, [(os.getppid(), 69 * GIB), (1, 1 * GIB)]
    nvml.show(first, second)
    finding = only(findings()["GPU memory"])
    assert finding.level is WARNING
    assert finding.what.startswith(f"GPU 1: 10.0 GiB of 80.0 GiB free; process {os.getppid()} (")
    assert f"of {getpass.getuser()} since 20" in finding.what
    assert finding.what.endswith("holds 69.0 GiB; 1 more")
    assert finding.fix == WAIT
    one_rank = replace(TWO_RANKS, nproc_per_node=1)
    assert "GPU memory" not in findings(one_rank), "no rank will sit on GPU 1"
    assert "GPU memory" in findings(replace(one_rank, entry_kind=EntryKind.COMMAND)), "it may use any"
    assert "GPU memory" in findings(one_rank, visible="MIG-7a"), "which one is not known"


@pytest.mark.parametrize(
    ("used", "processes", "what", "fix"),
    [
        (512 << 20, [], "79.5 GiB of 80.0 GiB free; who holds the rest is not visible from here", "nvidia-smi on the host lists them"),
        ((512 << 20) - 1, [], "", ""),
        (20 * GIB, [(2**22 + 1, 20 * GIB)], f"60.0 GiB of 80.0 GiB free; process {2**22 + 1} holds 20.0 GiB", WAIT),
        (20 * GIB, [(2**22 + 1, None)], f"60.0 GiB of 80.0 GiB free; process {2**22 + 1} holds some memory", WAIT),
    ],
)  # fmt: skip
def test_memory_that_a_process_out_of_sight_holds(
    nvml: StandIn, used: int, processes: list[tuple[int, int | None]], what: str, fix: str
) -> None:
    first, second = cards(2)
    nvml.show(replace(first, used=used, processes=processes), second)
    expected = [warn("GPU memory", f"GPU 0: {what}", fix)] if what else []
    assert findings().get("GPU memory", []) == expected


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
    ("change", "what", "fix"),
    [
        ({"ecc": 3}, "GPU 0: 3 uncorrected memory errors since the driver was loaded", "a run may get wrong numbers or end with Xid 48 or 94: reset the GPU, or leave it out"),
        ({"throttle": 0x40 | 0x08}, "GPU 0 is slowed down now (hw_slowdown, hw_thermal)", "look at cooling and power: all ranks wait for the slowest"),
        ({"throttle": 0x80 | 0x20 | 0x04}, "GPU 0 is slowed down now (power_brake, sw_thermal)", "look at cooling and power: all ranks wait for the slowest"),
        ({"fails": {"*": 15}}, "GPU 0 is lost: it does not answer the driver", "reset or reboot, or leave it out with CUDA_VISIBLE_DEVICES"),
    ],
)  # fmt: skip
def test_a_card_that_is_not_sound(nvml: StandIn, change: dict[str, object], what: str, fix: str) -> None:
    first, second = cards(2)
    nvml.show(replace(first, **change), second)  # type: ignore[arg-type]
    assert findings()["GPU health"] == [warn("GPU health", what, fix)]


def test_a_card_in_mig_mode(nvml: StandIn) -> None:
    first, second = cards(2)
    nvml.show(replace(first, mig=True), replace(second, mig=False))
    what = (
        "GPU 0 is in MIG mode: a process sees one instance of it, and NCCL does not join instances of one GPU"
    )
    fix = "one rank, with CUDA_VISIBLE_DEVICES=MIG-… of `nvidia-smi -L`"
    assert findings()["GPU modes"] == [warn("GPU modes", what, fix)]
    assert "GPU modes" not in findings(visible="MIG-7a")


@pytest.mark.parametrize(
    ("cuda", "torch", "level", "what"),
    [
        (12_040, "12.8", OK, "driver 550.54.14 runs CUDA up to 12.4, torch is built for CUDA 12.8"),
        (12_080, "13.0", WARNING, "driver 550.54.14 runs CUDA up to 12.8, torch is built for CUDA 13.0"),
        (12_080, "11.8", OK, "driver 550.54.14 runs CUDA up to 12.8, torch is built for CUDA 11.8"),
        (12_080, None, WARNING, "torch 2.8.0 of /env/bin/python is built without CUDA: the GPUs will not be used"),
    ],
)  # fmt: skip
def test_the_driver_against_torch(
    nvml: StandIn, cuda: int, torch: str | None, level: FindingLevel, what: str
) -> None:
    nvml.driver, nvml.cuda = "550.54.14", cuda
    nvml.show(*cards(2))
    finding = only(findings(torch=replace(TORCH, torch_cuda=torch))["driver"])
    fix = "install a build of torch with CUDA, or name another --python"
    if torch is not None:
        fix = "update the driver, or install torch for CUDA 12"
    assert finding == Finding(level, "driver", what, fix if level is WARNING else "")


def test_a_build_for_rocm_is_named_and_without_torch_nothing_is_said(nvml: StandIn) -> None:
    nvml.show(*cards(2))
    rocm = replace(TORCH, torch_cuda=None, torch_hip="6.4")
    what = "torch 2.8.0 of /env/bin/python is built for ROCm: the GPUs will not be used"
    assert only(findings(torch=rocm)["driver"]).what == what
    assert "driver" not in findings(torch=rocm, visible=""), "no GPU was to be used"
    for none in (None, replace(TORCH, torch_version=None)):
        assert "driver" not in findings(torch=none)


def test_without_a_driver_a_cuda_build_is_told(nvml: StandIn) -> None:
    nvml.init_code = 9
    nvml.show()
    what = "none (NVML: Driver Not Loaded): torch with CUDA 12.8 will run on the CPU"
    assert findings() == {"GPUs": [note("GPUs", what)]}
    assert not findings(torch=replace(TORCH, torch_cuda=None)), "a machine for CPU runs"
    assert not findings(torch=None)
