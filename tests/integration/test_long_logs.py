"""Logs of hundreds of megabytes, on a machine that is busy with other things: read to their end, or said not to be."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.records import FailureClass
from supervisor.run.state import AttemptState
from supervisor.sources.signature_files import default_cache_dir, load_engine
from tests.conftest import not_none
from tests.integration.harness import facts, run_headless, state_of, stoker

pytestmark = [pytest.mark.e2e, pytest.mark.serial, pytest.mark.timeout(900)]

STEPS = 8000
LOAD = 5
WORDS = b"INFO dataloader worker 3: took sample 12345 from shard-00042.tar, 4096 tokens, length ok\n"
# A job, or one rank of it, that says all it has to say at once and leaves.
JOB = f"""\
import os, sys
megabytes, code = int(sys.argv[1]), int(sys.argv[2])
words = {WORDS!r} * (megabytes * 1_000_000 // {STEPS} // {len(WORDS)})
with os.fdopen(1, "wb", buffering=1 << 20, closefd=False) as out:
    for step in range(1, {STEPS} + 1):
        out.write(b"step %d/{STEPS} loss: %.4f\\n" % (step, 8 - step * 7 / {STEPS}) + words)
if code:
    raise KeyError("labels")
"""


@contextmanager
def busy(count: int = LOAD) -> Iterator[None]:
    """So many processes that compute at our own priority while the block runs."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def job_in(folder: Path) -> str:
    script = folder / "job.py"
    script.write_text(JOB, encoding="utf-8")
    return str(script)


def large_log(path: Path, megabytes: int, words: bytes = WORDS) -> None:
    filler = words * (megabytes * 1_000_000 // STEPS // len(words))
    with path.open("wb", buffering=1 << 20) as out:
        for step in range(1, STEPS + 1):
            out.write(b"step %d/%d loss: %.4f\n" % (step, STEPS, 8 - step * 7 / STEPS) + filler)


def kept_run() -> RunPaths:
    (root,) = Path(os.environ["XDG_STATE_HOME"]).glob("stoker/kept/*")
    return RunPaths(root)


def attempt_of(run: RunPaths) -> AttemptState:
    return not_none(state_of(run).attempt)


def assert_told_all_along(run: RunPaths) -> None:
    """Progress stands in the journal every 10 s at least (on a machine five times too slow: 50 s), with its lag."""
    told = [fact for fact in facts(run) if isinstance(fact, ev.Progress)]
    assert any(fact.lag_bytes for fact in told)
    assert max((after.t - before.t for before, after in pairwise(told)), default=0.0) < 50


@pytest.mark.fault(
    "logs and load", "the machine is busy and the log long", "the log is read to its last step"
)
def test_a_finished_log_is_read_to_its_last_step_however_busy_the_machine_is(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    large_log(log, 200)
    with busy():
        done = stoker("attach", "--no-ui", "--keep", str(log), cwd=tmp_path, timeout_s=800)
    assert done.code == 0, done.out
    run = kept_run()
    attempt = attempt_of(run)
    assert (attempt.last_step, attempt.has_unread) == (STEPS, False)
    assert_told_all_along(run)
    assert re.search(r"log read to \d+ of 20\d MB", done.out)


@pytest.mark.fault("logs and load", "ranks print much in their last second", "all of it is read")
def test_what_ranks_under_torchrun_say_in_their_last_second_is_read(tmp_path: Path) -> None:
    with busy():
        done, _, state = run_headless(
            "--nproc-per-node", "2", job_in(tmp_path), "50", "0", cwd=tmp_path, timeout_s=800
        )
    assert done.code == 0, done.out
    assert (state.attempts[0].last_step, state.attempts[0].has_unread) == (STEPS, False)


@pytest.mark.fault(
    "logs and load",
    "a job dies behind a backlog of log",
    "a first verdict within a second, then the final one",
)
def test_a_failures_verdict_stands_within_a_second_of_the_end(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    load_engine(default_cache_dir())  # compiled afresh, once a machine, it takes longer than the job
    done, run, state = run_headless("--", sys.executable, job, "400", "1", cwd=tmp_path, timeout_s=800)
    assert done.code == 1
    exited_t = json.loads(run.node().attempt(1).exit.read_bytes())["t"]
    verdicts = [fact for fact in facts(run) if isinstance(fact, ev.Diagnosed)]
    assert [fact.provisional for fact in verdicts] == [True, False]
    assert {fact.verdict.failure for fact in verdicts} == {FailureClass.CODE_ERROR}
    assert verdicts[0].t - exited_t < 5, "a second, with five times as much for a busy machine"
    assert state.attempts[0].last_step == STEPS
