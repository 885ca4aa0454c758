"""Stoker over strangers' trainings on a real GPU: what the driver tells, what CUDA's own failures are called, what continues."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
import torch

from supervisor.run import events as ev
from supervisor.run.journal import read_state
from supervisor.run.records import FailureClass
from supervisor.run.series import GPU, SeriesReader
from supervisor.run.state import Finished, RunState
from tests.conftest import not_none, wait_until
from tests.integration.harness import background, facts, only_run, run_headless, stoker, wait_for_run

SCRIPTS = Path(__file__).parent / "scripts"
GROWING, BROKEN, HF = (str(SCRIPTS / name) for name in ("growing.py", "broken.py", "hf_long.py"))
HOLDS = """
import sys, torch
share = torch.empty(int(float(sys.argv[1]) * torch.cuda.get_device_properties(0).total_memory), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


def micro_and_global(state: RunState) -> list[tuple[int, int | None]]:
    """Of each attempt."""
    return [
        (attempt.batch.micro_batch_per_rank, attempt.batch.global_batch)
        for attempt in state.attempts
        if attempt.batch is not None
    ]


@pytest.fixture
def other_process() -> Iterator[subprocess.Popen[str]]:
    """A process of somebody else that holds 60 % of the card."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, "0.6"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert not_none(process.stdout).readline() == "held\n"
    yield process
    process.communicate("", timeout=60)


@pytest.mark.timeout(300)
def test_a_training_that_fills_the_card_goes_on_smaller_from_its_checkpoint(tmp_path: Path) -> None:
    done, _, state = run_headless(
        "--", sys.executable, GROWING, "--batch-size", "96", cwd=tmp_path, timeout_s=280
    )
    assert done.code == 0, done.out + done.err
    assert isinstance(state.condition, Finished)
    verdict = not_none(state.attempts[0].verdict)
    assert verdict.failure is FailureClass.CUDA_OOM
    batches = micro_and_global(state)
    assert {whole for _, whole in batches} == {96}
    assert batches[0][0] == 96
    assert batches[-1][0] < 48, "half of it does not fit either"
    assert state.attempts[-1].last_step == 24
    assert any("ckpt_10.pt" in word for word in state.attempts[-1].argv), state.attempts[-1].argv


@pytest.mark.timeout(300)
def test_transformers_own_command_line_goes_on_with_the_same_global_batch(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    words = "--output_dir out --per_device_train_batch_size 256 --max_steps 6 --logging_steps 1 --report_to none --bf16 True --save_strategy no"
    done, _, state = run_headless("--", sys.executable, HF, *words.split(), cwd=tmp_path, timeout_s=280)
    assert done.code == 0, done.out + done.err
    batches = micro_and_global(state)
    assert {whole for _, whole in batches} == {256}
    assert batches[-1][0] < 256


@pytest.mark.timeout(200)
def test_another_process_on_the_card_is_named(tmp_path: Path, other_process: subprocess.Popen[str]) -> None:
    done, run, state = run_headless(
        "--max-retries", "0", "--", sys.executable, GROWING, "--batch-size", "24", cwd=tmp_path, timeout_s=180
    )
    verdict = not_none(state.attempts[0].verdict)
    assert verdict.failure is FailureClass.CUDA_OOM
    assert str(other_process.pid) in done.out, done.out
    assert run.root.is_dir()


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("kind", "failure"),
    [
        ("assert", FailureClass.CUDA_ERROR),
        ("illegal", FailureClass.CUDA_ERROR),
        ("leak", FailureClass.CUDA_OOM),
        ("ordinal", FailureClass.CUDA_ERROR),
        ("duplicate", FailureClass.NCCL_ERROR),
    ],
)
def test_a_failure_of_cuda_is_called_by_its_name(kind: str, failure: FailureClass, tmp_path: Path) -> None:
    ranks = ("--nproc-per-node", "2", BROKEN) if kind == "duplicate" else ("--", sys.executable, BROKEN)
    done, _, state = run_headless("--max-retries", "0", *ranks, kind, cwd=tmp_path, timeout_s=180)
    verdict = not_none(state.attempts[0].verdict)
    assert verdict.failure is failure, f"{verdict}\n{done.out}"


@pytest.mark.timeout(200)
def test_a_kernel_that_never_ends_is_a_hang_with_its_stack(tmp_path: Path) -> None:
    words = ("--hang-timeout", "20", "--end-hangs", "--max-retries", "0")
    done, run, state = run_headless(
        *words, "--", sys.executable, BROKEN, "stuck", cwd=tmp_path, timeout_s=180
    )
    verdict = not_none(state.attempts[0].verdict)
    assert verdict.failure is FailureClass.HANG, done.out
    assert "synchronize" in json.dumps([str(fact) for fact in facts(run)]) + done.out


@pytest.mark.timeout(200)
def test_the_cards_figures_are_the_drivers(tmp_path: Path) -> None:
    """Memory, name and processes as NVML gives them at the same time; utilization above zero while a training runs."""
    pynvml.nvmlInit()  # type: ignore[no-untyped-call]
    card = pynvml.nvmlDeviceGetHandleByIndex(0)  # type: ignore[no-untyped-call]
    words = ("--", sys.executable, GROWING, "--batch-size", "24", "--steps", "400")
    with background("run", "--no-ui", *words, cwd=tmp_path) as job:
        run = wait_for_run(tmp_path)

        def last(name: str) -> float:
            rows = [sample.v.get(name) for sample in SeriesReader(run.node().series, GPU).read()]
            return next((value for value in reversed(rows) if value is not None), 0.0)

        assert wait_until(lambda: last("util_ratio") > 0.5, 90)
        assert wait_until(
            lambda: (
                abs(last("memory_used_bytes") - pynvml.nvmlDeviceGetMemoryInfo(card).used)  # type: ignore[no-untyped-call]
                < 0.05 * last("memory_total_bytes")
            ),
            30,
        )
        assert last("power_w") > 50
        assert last("temperature_c") > 10
        assert stoker("stop", cwd=tmp_path).code == 0
        job.wait(60)
    state = read_state(only_run(tmp_path).node().journal)
    assert state.attempts
    assert torch.cuda.is_available()
    assert not [fact for fact in facts(run) if isinstance(fact, ev.Advisory) and "gpu_lost" in fact.code]
