"""A foreign script under torchrun, measured from inside: its batch is journalled, and its steps where it prints none."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.job.batch import BatchSpec
from supervisor.run import state as st
from supervisor.run.runfile import read_run_file
from tests.integration.harness import run_headless

pytestmark = pytest.mark.e2e

SCRIPT = """
import argparse, torch, torch.distributed as dist, traceback
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
p = argparse.ArgumentParser()
p.add_argument("--zeta", type=int, default=2)
p.add_argument("--batch-size", type=int, default=4)
p.add_argument("--api-key", type=int, default=8061725)
p.add_argument("--fail", action="store_true")
a = p.parse_args()
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(8, 2)); opt = torch.optim.Adam(model.parameters())
data = DataLoader(TensorDataset(torch.randn(4096, 8), torch.randint(0, 2, (4096,))), batch_size=a.batch_size)
for number, (x, y) in enumerate(data, 1):
    (torch.nn.functional.cross_entropy(model(x), y) / a.zeta).backward()
    if number % a.zeta == 0:
        opt.step(); opt.zero_grad()
    if number == 24:
        break
def statistics():
    try:
        return open("/nowhere/statistics.json")
    except OSError:
        traceback.print_exc()
if a.fail:
    statistics()
    raise KeyError("gone")
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
    view = state.attempt
    assert view is not None
    assert read_run_file(run.run_json).job.instrument is ("--no-instrument" not in flags)
    files = sorted(run.node().attempt(1).telemetry.glob("measured*.jsonl"))
    return done.code, view, b"".join(file.read_bytes() for file in files)


def test_batch_setting_and_steps_of_a_script_that_prints_nothing(tmp_path: Path) -> None:
    code, view, written = attempt_of(tmp_path / "on", arguments=("--batch-size", "16"))
    assert code == 0
    assert view.measured is not None
    assert view.shown_batch == BatchSpec(16, 2, 2)
    assert (view.measured.setting, view.measured.scope) == ("--batch-size", "per_rank")
    assert view.measured.accumulation_setting in {"--zeta", None}, (
        "a name that says nothing is asked, or right"
    )
    assert view.last_step == 12
    assert b"8061725" not in written, "a number under a secret's name"

    code, view, written = attempt_of(tmp_path / "off", "--no-instrument")
    assert (code, view.measured, view.last_step, written) == (0, None, None, b"")


def test_a_failure_is_the_last_of_the_script_and_comes_with_its_step(tmp_path: Path) -> None:
    code, view, written = attempt_of(tmp_path / "on", arguments=("--fail",))
    assert code == 1
    assert view.verdict is not None
    assert view.verdict.failure.value == "code_error"
    assert view.verdict.cause is not None
    assert "KeyError" in view.verdict.cause.text
    assert view.last_step == 12
    assert written.count(b'"exception":"KeyError"') == 2
