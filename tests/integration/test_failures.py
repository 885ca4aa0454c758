"""Real jobs under `stoker run --no-ui`: each way to end gets its verdict and its exit code; what counts as success of those that end with 0."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.job.spec import Unread
from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run.events import Outcome
from supervisor.run.records import FailureClass, Reason
from supervisor.run.state import Finished, HeldOpen
from tests.conftest import not_none
from tests.integration.harness import (
    JOB,
    background,
    decision_of,
    detached,
    end_of,
    facts,
    run_headless,
    state_of,
    stoker,
    verdict_of,
    wait_for_end,
    wait_for_state,
)
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


OOM = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.10 GiB is free."
STEPS = 'for s in range(1, {0} + 1): print(f"step {{s}}/{1} loss {{1 / s:.3f}}", flush=True)\n'
RAISES_OOM = f'class OutOfMemoryError(RuntimeError): __module__ = "torch"\nraise OutOfMemoryError("{OOM}")\n'
SWALLOWS = 'import traceback\ntry: {}["x"]\nexcept KeyError: traceback.print_exc()\n'
ARGPARSE = "import argparse\nargparse.ArgumentParser().parse_args()\n"
PIPE = "the pipe in train.sh hides the exit code (`set -o pipefail`)"

JOBS: dict[str, tuple[str, str | None, int, str]] = {
    "out of memory and || true": (STEPS.format(7, 20) + RAISES_OOM, "python t.py || true\n", 1, "cuda_oom"),
    "a usage error, then an echo": (ARGPARSE, "python t.py --foo 3\necho finished\n", 1, "usage_error"),
    "an exception swallowed at step 7 of 20": (STEPS.format(7, 20) + SWALLOWS, None, 1, "code_error"),
    "ended at 10 of 100": (STEPS.format(10, 100), None, 7, "unknown"),
    "early stopping": (STEPS.format(10, 100) + 'print("Early stopping at step 10")\n', None, 0, "healthy"),
    "an error that the run outlived": (
        STEPS.format(5, 20) + SWALLOWS + STEPS.format(20, 20),
        "python t.py 2>&1 | tee log\n",
        0,
        "healthy",
    ),
}


def job(folder: Path, program: str, script: str | None) -> tuple[str, ...]:
    """The command of a small job, whose files are written to `folder`."""
    (folder / "t.py").write_text(program)
    if script is None:
        return (sys.executable, "t.py")
    (folder / "train.sh").write_text(script.replace("python ", f"{sys.executable} "))
    return ("bash", "train.sh")


@pytest.mark.e2e
@pytest.mark.parametrize("name", first(2, JOBS))
def test_exit_code_0_is_a_success_where_the_logs_do_not_contradict(name: str, tmp_path: Path) -> None:
    program, script, code, failure = JOBS[name]
    done, run, state = run_headless("--", *job(tmp_path, program, script), cwd=tmp_path)
    assert done.code == code, done.out + done.err
    verdict = verdict_of(state)
    assert verdict.failure.value == failure
    assert len(state.attempts) == 1
    again = stoker("diagnose", str(run.root), "--json", cwd=tmp_path)
    assert f'"failure":"{failure}"' in again.out, again.out
    if code == 7:
        assert verdict.reason is Reason.ENDED_EARLY
        assert "Ended with exit code 0 at step 10 of 100" in done.out + done.err
        explained = stoker("policy", "explain", run.run_id, cwd=tmp_path)
        assert "unknown/ended_early at step 10 → fail, exit code 7" in explained.out


ONCE = (
    "import pathlib\nfirst = not pathlib.Path('been').exists(); pathlib.Path('been').touch()\n"
    'for s in range(1, 21):\n    if s == 8 and first: raise RuntimeError("CUDA error: device-side assert triggered")\n'
    '    print(f"step {s}/20 loss {1 / s:.3f}", flush=True)\n'
)
SRUN = '#!/bin/sh\n"$@"\nexit 0\n'


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("script", "seen", "why"),
    first(
        1,
        [
            ("python t.py 2>&1 | tee log\necho done, copying results\n", 0, PIPE),
            ("set -o pipefail\npython t.py 2>&1 | tee log\n", 1, ""),
            ("set -o pipefail\n./srun python t.py 2>&1 | tee log\n", 0, ""),
        ],
    ),
)
def test_a_hidden_crash_is_restarted_and_then_succeeds(
    script: str, seen: int, why: str, tmp_path: Path
) -> None:
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    done, _, state = run_headless("--restart-from-scratch", "--", *job(tmp_path, ONCE, script), cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    crashed, second = state.attempts
    assert (crashed.exit_code, crashed.failure) == (seen, FailureClass.CUDA_ERROR)
    assert (second.exit_code, second.failure) == (0, None)
    assert crashed.decision is not None
    hidden = "exit code 0, but rank 0 ended with an exception at step 7 of 20"
    assert (hidden in crashed.decision.reason) == (seen == 0)
    assert why in crashed.decision.reason


@pytest.mark.e2e
def test_the_rule_is_switched_off_by_flag_file_and_one_key_that_is_remembered(tmp_path: Path) -> None:
    os.environ["XDG_STATE_HOME"] = str(tmp_path / "state")
    words = job(tmp_path, STEPS.format(10, 100), None)
    assert stoker("run", "--no-ui", "--trust-exit-code", "--", *words, cwd=tmp_path).code == 0
    (tmp_path / "stoker.toml").write_text('[policy]\nexit_zero = "trust"\n')
    assert stoker("run", "--no-ui", "--", *words, cwd=tmp_path).code == 0
    (tmp_path / "stoker.toml").write_text('[policy]\nexit_zero = "always"\n')
    wrong = stoker("run", "--no-ui", "--", *words, cwd=tmp_path)
    assert wrong.code == 2
    assert "exit_zero takes one of check, trust, got 'always'" in wrong.err
    (tmp_path / "stoker.toml").unlink()

    run = detached(tmp_path, "--", *words)
    wait_for_state(run, HeldOpen)
    question = not_none(state_of(run).open_question)
    assert (question.what, [one.value for one in question.answers]) == (Unread.EXIT_CODE, ["trust"])
    control.send(run.control, ev.RequestKind.ANSWER, if_attempt=1, args=control.RequestArgs(answer="trust"))
    wait_for_end(run)

    again = stoker("run", "--no-ui", "--", *words, cwd=tmp_path)
    assert again.code == 0, again.out + again.err
    assert "finished at step 10; exit code 0 is trusted" in again.out + again.err
    (tmp_path / "t.py").write_text(STEPS.format(11, 100))
    assert stoker("run", "--no-ui", "--", *words, cwd=tmp_path).code == 7, "another text is another script"


@pytest.mark.e2e
def test_a_watched_process_is_judged_by_the_same_words(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    waits = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.05)\n"
    words = job(tmp_path, waits + STEPS.format(10, 100), None)
    with (tmp_path / "out.log").open("w") as log:
        process = subprocess.Popen(words, cwd=tmp_path, stdout=log)
    try:
        with background("attach", str(process.pid), "--no-ui", cwd=tmp_path) as watcher:
            assert watcher.stdout is not None
            # It watches once it says so. The exit code is there until this process takes it, below.
            assert any("watching pid" in line for line in watcher.stdout)
            gate.touch()
            assert watcher.wait(60) == 7
            assert "Ended with exit code 0 at step 10 of 100, for no stated reason" in watcher.stdout.read()
    finally:
        process.kill()
        process.wait(30)


@pytest.mark.e2e
def test_in_slurm_the_code_stays_7_and_a_requeued_job_is_not_resumed(tmp_path: Path) -> None:
    words = job(tmp_path, STEPS.format(10, 100), None)
    slurm = {"SLURM_JOB_ID": "4711"}
    assert stoker("run", "--no-ui", "--", *words, cwd=tmp_path, env=slurm).code == 7
    again = stoker("run", "--no-ui", "--", *words, cwd=tmp_path, env={**slurm, "SLURM_RESTART_COUNT": "1"})
    assert again.code == 7
    assert "Ended with exit code 0 at step 10 of 100, for no stated reason: not started again" in again.err
