"""Every fault of the bundled trainer, for real: its verdict, its decision, and how the run ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.records import DecisionKind
from supervisor.run.state import Finished
from supervisor.sources.kernel_memory import read_cgroup_memory
from supervisor.sources.signature_files import default_cache_dir, load_engine
from tests.disks import needs_full_device
from tests.integration.harness import facts, run_headless
from tests.integration.matrix import MATRIX, Case
from tests.tiers import first

TINY = (
    "--depth=2", "--model_dim=32", "--head_dim=16", "--max_seq_len=32", "--device_batch_size=4",
    "--total_batch_size=256", "--num_iterations=12", "--save_every=3", "--log_interval=1", "--eval_every=0",
    "--corpus_mib=1", "--device=cpu", "--seed=3",
)  # fmt: skip
JOB = """\
nproc_per_node = 2
[env]
OMP_NUM_THREADS = "1"
"""


# `make e2e` plays these. Others that it shows: the demo runs out of memory, test_hangs.py hangs, test_failures.py crashes.
IN_E2E = ("nan@6", "disk_full@4:0", "corrupt_checkpoint@6,sigkill@7:1")
CASES = sorted(MATRIX, key=lambda case: case.fault not in IN_E2E)


@pytest.mark.e2e
@pytest.mark.parametrize("case", first(len(IN_E2E), CASES), ids=lambda c: c.fault)
def test_each_fault_has_its_verdict_decision_and_outcome(tmp_path: Path, case: Case) -> None:
    if "disk_full" in case.fault:
        needs_full_device()
    # The times below hold once the signatures are compiled, which the first start on a machine does: 2 s, or
    # twenty on cores that others use.
    load_engine(default_cache_dir())
    hang = "\n".join(["[hang]", *case.settings, ""]) if case.settings else ""
    (tmp_path / "job.toml").write_text(JOB + hang, encoding="utf-8")
    words = (*case.flags, "--config", "job.toml", *TINY, *case.args, f"--fault={case.fault}")
    done, run, state = run_headless(*words, cwd=tmp_path)
    story = done.out + done.err
    assert len(state.attempts) == case.attempts, story
    struck = state.attempts[max(case.attempts - 2, 0)] if case.attempts > 1 else state.attempts[0]
    verdict, decision = struck.verdict, struck.decision
    assert verdict is not None
    assert decision is not None
    expected = (case.failure, case.reason)
    memory = read_cgroup_memory()
    if case.uncounted is not None and (memory is None or memory.oom_kills is None):
        expected = case.uncounted
    assert (verdict.failure, verdict.reason) == expected, story
    if case.rank is not None:
        assert verdict.rank == case.rank, verdict
    assert decision.kind is case.decision, story
    assert done.code == case.exit_code, story
    assert isinstance(state.condition, Finished)
    if case.outcome == "stopped":
        return
    assert state.attempts[-1].last_step == state.total_steps, story
    if decision.kind is DecisionKind.RESTART:
        last = state.attempts[-1]
        assert last.resumed_step is not None, "it resumed from a committed checkpoint"
        assert struck.last_step is None or last.resumed_step <= struck.last_step
        check_times(run, facts(run))


def check_times(run: RunPaths, journal: list[ev.Event]) -> None:
    """What is promised of the times, with five times the slack: the machine may be busy with other things."""
    recovered = next(fact for fact in journal if isinstance(fact, ev.Recovered))
    assert recovered.total_s > 0
    first_death = min(fact.t for fact in journal if isinstance(fact, ev.RankExited) and fact.attempt == 1)
    verdicts = [fact for fact in journal if isinstance(fact, ev.Diagnosed) and fact.attempt == 1]
    assert verdicts[0].t - first_death < 5 * 1.0, (
        "the first verdict, provisional or not, after the first death"
    )
    torchrun_ended = json.loads(run.node().attempt(1).exit.read_bytes())["t"]
    assert verdicts[-1].t - torchrun_ended < 5 * 1.0, "the verdict after torchrun's exit"
    cleared = next(fact.t for fact in journal if isinstance(fact, ev.LaunchCleared))
    started = next(fact.t for fact in journal if isinstance(fact, ev.AttemptStarted) and fact.attempt == 2)
    assert started - cleared < 5 * 0.5, "the new torchrun after the end of the drain"
