"""Real torchrun children under `stoker run --no-ui`: each way to end gets its verdict and its exit code."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.run import events as ev
from supervisor.run.events import Outcome
from supervisor.run.records import FailureClass, Reason
from supervisor.run.state import Finished
from tests.integration.harness import JOB, decision_of, end_of, facts, run_headless, verdict_of
from tests.tiers import first


@dataclass(frozen=True)
class Case:
    mode: str
    failure: FailureClass
    reason: Reason | None
    exit_code: int = 1
    outcome: Outcome = Outcome.FAILED


CASES = [
    Case("exception", FailureClass.CODE_ERROR, None),
    Case("sigsegv", FailureClass.WORKER_CRASH, Reason.SIGNAL),
    Case("exit3", FailureClass.WORKER_CRASH, None),
    Case("alloc", FailureClass.HOST_OOM, Reason.ALLOCATOR),
]

# The line of the script that raises, and its number.
OWN_CODE = {
    mode: next(
        (at, line.strip()) for at, line in enumerate(Path(JOB).read_text().splitlines(), 1) if source in line
    )
    for mode, source in {"exception": 'labels["missing"]', "alloc": "torch.empty(1 << 44)"}.items()
}


def test_a_healthy_run_succeeds_and_leaves_its_story(tmp_path: Path) -> None:
    done, run, state = run_headless("--nproc-per-node", "2", JOB, "--steps", "12", cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    assert end_of(state).outcome is Outcome.SUCCEEDED
    attempt = state.attempts[0]
    assert (attempt.first_step, attempt.last_step) == (1, 12) or attempt.last_step == 12
    assert attempt.last_loss == pytest.approx(4.0 / 12, abs=1e-4)
    assert {r.rank for r in attempt.ranks.values()} == {0, 1}
    assert "[SUCCESS]" in done.out
    assert str(run.root) in done.out
    assert (tmp_path / "runs" / "latest").resolve() == run.root.resolve()


@pytest.mark.parametrize("case", first(1, CASES), ids=lambda c: c.mode)
@pytest.mark.fault(
    "recovery", "each way to die: exceptions, signals, memory, exits", "the right verdict, with rank and line"
)
def test_each_way_to_die_has_its_verdict(tmp_path: Path, case: Case) -> None:
    done, run, state = run_headless("--nproc-per-node", "2", JOB, "--mode", case.mode, cwd=tmp_path)
    verdict = verdict_of(state)
    assert verdict.failure is case.failure, (verdict, done.out)
    if case.reason is not None:
        assert verdict.reason is case.reason
    assert verdict.rank == 1, verdict
    assert done.code == case.exit_code, done.out
    assert isinstance(state.condition, Finished)
    assert state.condition.outcome is case.outcome
    assert len(state.attempts) == 1, "a script that knows no resume is not restarted"
    if case.mode in {"exception", "alloc"}:
        assert verdict.cause is not None
        path = Path(verdict.cause.path)
        path = path if path.is_absolute() else run.node().attempt(1).root / path
        assert verdict.cause.line is not None
        line = path.read_text(encoding="utf-8").splitlines()[verdict.cause.line - 1]
        assert verdict.cause.text.strip() in line or line.strip() in verdict.cause.text
        number, source = OWN_CODE[case.mode]
        assert f"code   {JOB}:{number}  {source}\n" in done.out
    assert not any(isinstance(f, ev.StopStepTaken) and f.step is ev.StopStep.SURVIVORS for f in facts(run))


@pytest.mark.thorough
def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    """Under a launcher of the user's own: stoker may not move its port, and says what happened."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}", JOB]
        done, _run, state = run_headless("--", sys.executable, *launcher, cwd=tmp_path)
    verdict = verdict_of(state)
    assert verdict.failure is FailureClass.PORT_IN_USE, done.out
    assert done.code == 1
    assert len(state.attempts) == 1


@pytest.mark.e2e
@pytest.mark.fault(
    "recovery", "one of two ranks crashes at step 6", "the next attempt resumes there and finishes"
)
def test_a_script_that_can_resume_is_restarted_until_it_is_done(tmp_path: Path) -> None:
    """A crash at step 6 of attempt 1; the second attempt resumes and finishes."""
    script = tmp_path / "train.py"
    script.write_text(RESUMING, encoding="utf-8")
    done, _run, state = run_headless(
        "--nproc-per-node", "2", "--resume-knob", "--resume=auto", str(script), cwd=tmp_path
    )
    assert done.code == 0, done.out
    assert [a.exit_code for a in state.attempts] == [1, 0]
    assert state.attempts[1].first_step == 6
    assert "--resume=auto" in state.attempts[1].argv or "auto" in state.attempts[1].argv


RESUMING = """
import argparse, os, signal, sys
parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
args = parser.parse_args()
first = 6 if args.resume else 1
for step in range(first, 11):
    if os.environ["RANK"] == "0":
        print(f"step {step}/10 loss: {4 / step:.3f}")
    if step == 6 and not args.resume:
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGSEGV)
        signal.pause()
"""


@pytest.mark.e2e
@pytest.mark.fault(
    "recovery",
    "a script that cannot resume fails after its first step",
    "it waits for the user; no checkpoint is overwritten",
)
def test_that_a_rank_fails_is_journalled_before_its_launcher_ends_and_nothing_restarts(
    tmp_path: Path,
) -> None:
    args = ("--nproc-per-node", "2", JOB, "--mode", "sigkill", "--step-time", "0.3")
    done, run, state = run_headless(*args, cwd=tmp_path)
    assert done.code == 1
    assert len(state.attempts) == 1
    decision = decision_of(state, 0)
    assert "resume" in decision.reason
    (told,) = [fact for fact in facts(run) if isinstance(fact, ev.RankFailing)]
    (ended,) = [fact for fact in facts(run) if isinstance(fact, ev.AttemptEnded)]
    assert told.t < ended.t
    assert (told.sign, told.exit_code) == (ev.FailureSign.GONE, -9)
    assert f"rank {told.local_rank} died: SIGKILL; waiting for the launcher to end" in done.out
