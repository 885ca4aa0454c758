"""A foreign script under torchrun, measured from inside: its batch is journalled, and its steps where it prints none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.job.batch import BatchSpec
from supervisor.run import state as st
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import read_run_file
from supervisor.run.series import METRICS, RANKS, SeriesReader
from tests.conftest import not_none
from tests.integration.harness import run_headless, stoker

pytestmark = pytest.mark.e2e

SCRIPT = """
import argparse, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
p = argparse.ArgumentParser()
p.add_argument("--zeta", type=int, default=2)
p.add_argument("--batch-size", type=int, default=4)
p.add_argument("--api-key", type=int, default=8061725)
p.add_argument("--max-steps", type=int, default=12)
a = p.parse_args()
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(8, 2)); opt = torch.optim.Adam(model.parameters())
data = DataLoader(TensorDataset(torch.randn(4096, 8), torch.randint(0, 2, (4096,))), batch_size=a.batch_size)
for number, (x, y) in enumerate(data, 1):
    (torch.nn.functional.cross_entropy(model(x), y) / a.zeta).backward()
    if number % a.zeta == 0:
        opt.step(); opt.zero_grad()
    if number == a.max_steps * a.zeta:
        break
dist.barrier(); dist.destroy_process_group()
"""


def attempt_of(
    folder: Path, *flags: str, arguments: tuple[str, ...] = ()
) -> tuple[int, st.AttemptState, bytes]:
    """The exit code of a run of `SCRIPT` on two ranks, its attempt, and all that its processes reported."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    words = ("--nproc-per-node", "2", "--no-check", "--no-retry", *flags, "train.py", *arguments)
    done, run, state = run_headless(*words, cwd=folder)
    view = not_none(state.attempt)
    assert read_run_file(run.run_json).job.instrument is ("--no-instrument" not in flags)
    files = sorted(run.node().attempt(1).telemetry.glob("measured*.jsonl"))
    return done.code, view, b"".join(file.read_bytes() for file in files)


def run_in(folder: Path) -> RunPaths:
    """The run that was made there."""
    return RunPaths((folder / "runs/latest").resolve())


def printed(folder: Path, *words: str) -> str:
    """What a verb prints of the run that was made there."""
    done = stoker(*words, cwd=folder)
    assert done.code == 0, done.err
    return done.out


def test_batch_setting_and_steps_of_a_script_that_prints_nothing(tmp_path: Path) -> None:
    code, view, written = attempt_of(tmp_path / "on", arguments=("--batch-size", "16"))
    assert code == 0
    assert view.measured is not None
    assert view.shown_batch == BatchSpec(16, 2, 2)
    assert (view.measured.setting, view.measured.scope) == ("--batch-size", "per_rank")
    assert view.measured.accumulation_setting in {"--zeta", None}, (
        "a name that says nothing is asked, or right"
    )
    assert (view.first_step, view.last_step) == (1, 12)
    assert b"8061725" not in written, "a number under a secret's name"
    surfaces(tmp_path / "on")

    code, view, written = attempt_of(tmp_path / "off", "--no-instrument")
    assert (code, view.measured, view.last_step, written) == (0, None, None, b"")


def surfaces(folder: Path) -> None:
    """The same facts in the charts and the ranks table, and by `metrics`, `runs --json` and `policy explain`."""
    run = run_in(folder)
    for stream, ranks in ((METRICS, ["job"]), (RANKS, ["0", "1"])):
        samples = [sample for sample in SeriesReader(run.node().series, stream).read() if "step" in sample.v]
        for rank in ranks:
            own = [sample.v for sample in samples if sample.k == rank]
            steps = [step for values in own if (step := values["step"]) is not None]
            assert (steps[0], steps[-1]) == (1, 12)
            assert steps == sorted(steps)
            assert {"samples_per_sec", "step_time_s", "data_wait_s", "memory_peak_bytes"} <= own[-1].keys()
    lines = [json.loads(line) for line in printed(folder, "metrics", str(run.root), "--json").splitlines()]
    assert {(line["rank"], line["step"]) for line in lines} >= {
        (rank, step) for rank in (0, 1) for step in (1, 12)
    }
    last = lines[-1]
    assert last["samples_per_sec"] == pytest.approx(64 / last["step_time_s"])
    assert last["memory_peak_bytes"] > 1 << 20
    assert last["data_wait_s"] >= 0
    [listed] = [
        json.loads(line) for line in printed(folder, "runs", "--json").splitlines() if line[:1] == "{"
    ]
    assert (listed["step"], listed["micro_batch"], listed["accumulation"], listed["global_batch"]) == (
        12,
        16,
        2,
        64,
    )
    assert listed["measured"]["sample_shape"] == [8]
    assert listed["measured"]["counts_steps"] is True
    assert listed["samples_per_sec"] > 0
    assert listed["memory_peak_bytes"] > 1 << 20
    explained = printed(folder, "policy", "explain", str(run.root))
    assert (
        "measured: micro-batch 16 × accumulation 2 × 2 ranks = global batch 64, set by --batch-size"
        in explained
    )
    assert "micro batch: measured: loader" in explained
