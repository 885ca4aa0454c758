"""Foreign scripts under torchrun, measured from inside: batch and steps are journalled; where the measurements break a script it runs without them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.job.batch import BatchSpec
from supervisor.job.launch.env import NOT_MEASURED
from supervisor.run import state as st
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import read_run_file
from supervisor.run.series import METRICS, RANKS, SeriesReader
from tests.conftest import not_none
from tests.integration.harness import run_headless, stoker
from tests.tiers import first

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


# The environment's own sitecustomize, which runs after stoker's: at ``import fault`` it breaks what is loaded of the instrumentation.
SHIM = """
import os, sys
class Fault:
    def find_spec(self, name, path=None, target=None):
        wire = sys.modules.get("_stoker_instrument.wire")
        if name == "fault" and wire is not None:
            if os.environ["FAULT"] == "exit":
                os._exit(7)
            wire.wire = None
sys.meta_path.insert(0, Fault())
"""
BREAKS = """
import os, torch, torch.distributed as dist
from torch.utils.data import DataLoader
try:
    import fault
except ImportError:
    pass
loader = DataLoader(range(40), batch_size=4)
dist.init_process_group("gloo")
for step, _ in enumerate(loader, 1):
    print(f"step {step}/10 loss {1 / step:.3f}", flush=True)
dist.destroy_process_group()
"""


def job(folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> tuple[str, ...]:
    """The words that start `BREAKS` in `folder` with a broken instrumentation."""
    (folder / "shim").mkdir(parents=True)
    (folder / "shim" / "sitecustomize.py").write_text(SHIM)
    (folder / "train.py").write_text(BREAKS)
    monkeypatch.setenv("FAULT", fault)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    variable = f"PYTHONPATH={folder / 'shim'}"
    return ("--no-check", "--nproc-per-node", "2", "--env", variable, "train.py")


def verdicts(state: st.RunState) -> list[str]:
    """Of each attempt the class and the reason."""
    found = [view.verdict for view in state.attempts]
    return [f"{v.failure.value}/{v.reason}" if v is not None else "" for v in found]


def changes(state: st.RunState) -> list[bool]:
    """Of each restart, whether it is one without the measurements."""
    made = [view.decision.change for view in state.attempts if view.decision is not None]
    return [change is not None and NOT_MEASURED in change.env for change in made]


@pytest.mark.parametrize(
    ("fault", "verdict"), first(1, [("exit", "worker_crash/exit_code"), ("raise", "code_error/instrument")])
)
def test_it_trains_without_them_and_later_runs_start_so(
    fault: str, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = job(tmp_path, monkeypatch, fault)
    done, run, state = run_headless(*words, "--max-retries", "1", cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    assert verdicts(state) == [verdict, "healthy/None"]
    assert changes(state) == [True, False]
    assert state.attempts[-1].last_step == 10
    assert "without stoker's measurements it got further than attempt 1" in done.out + done.err
    explained = stoker("policy", "explain", run.run_id, cwd=tmp_path)
    assert "restart once without" in explained.out
    assert "budget: none is spent" in explained.out
    assert " was (" not in explained.out

    dry = stoker("run", "--dry-run", *words, cwd=tmp_path)
    assert "this script got further without it (--instrument measures again)" in dry.out
    assert "instrument/on_path" not in dry.out
    asked = stoker("run", "--dry-run", "--instrument", *words, cwd=tmp_path)
    assert "instrument/on_path" in asked.out

    if fault == "exit":  # once is enough
        later = stoker("run", "--no-ui", "--runs-dir", "later", *words, cwd=tmp_path)
        assert later.code == 0, later.out + later.err
        told = [line for line in (later.out + later.err).splitlines() if "got further without it" in line]
        assert len(told) == 1
        later_runs = (tmp_path / "later").iterdir()
        started = next(path for path in later_runs if path.is_dir() and not path.is_symlink())
        assert not read_run_file(RunPaths(started).run_json).job.instrument
