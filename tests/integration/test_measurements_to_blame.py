"""Real two-rank jobs whose instrumentation is broken on purpose: restarted once without it, and remembered where that helps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.job.launch.env import NOT_MEASURED
from supervisor.run import state as st
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import read_run_file
from tests.integration.harness import run_headless, stoker
from tests.tiers import first

pytestmark = pytest.mark.e2e

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
SCRIPT = """
import os, torch, torch.distributed as dist
from torch.utils.data import DataLoader
try:
    import fault
except ImportError:
    pass
if os.environ["FAULT"] == "both":
    os._exit(7)
loader = DataLoader(range(40), batch_size=4)
dist.init_process_group("gloo")
for step, _ in enumerate(loader, 1):
    print(f"step {step}/10 loss {1 / step:.3f}", flush=True)
dist.destroy_process_group()
"""


def job(folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> tuple[str, ...]:
    """The words that start `SCRIPT` in `folder` with a broken instrumentation."""
    (folder / "shim").mkdir(parents=True)
    (folder / "shim" / "sitecustomize.py").write_text(SHIM)
    (folder / "train.py").write_text(SCRIPT)
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


@pytest.mark.thorough
def test_where_it_dies_both_ways_the_failure_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = job(tmp_path, monkeypatch, "both")
    done, _, state = run_headless(*words, cwd=tmp_path)
    assert done.code == 1, done.out + done.err
    assert verdicts(state) == ["worker_crash/exit_code"] * 2
    assert changes(state) == [True, False]
    assert "it ended alike without stoker's measurements" in done.out + done.err
    assert not Path(os.environ["XDG_STATE_HOME"], "stoker", "answers.jsonl").exists()

    refused = stoker("run", "--no-ui", "--no-retry", "--runs-dir", "refused", *words, cwd=tmp_path)
    assert refused.code == 1
    assert "--no-instrument shows whether stoker's measurements are the cause" in refused.out + refused.err
