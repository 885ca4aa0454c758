"""Logs of several attempts, tasks that ended by a signal, and ranks that did not come."""

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.verdict import diagnose
from supervisor.run.records import FailureClass, Verdict
from supervisor.sources.signature_files import Engine


def judged(text: str, engine: Engine) -> Verdict:
    job = JobEvidence(logs=(LogSource("log", (text.encode(),)),))
    return diagnose(job, engine.signatures, engine.matcher)


def steps(first: int) -> str:
    return "".join(f"step {number} loss {3 - number / 100:.3f}\n" for number in range(first, first + 8))


RESTART = "I0811 12:22:03.902000 40880 torch/distributed/elastic/agent/server/api.py:879] [default] Worker group FAILED. 2/3 attempts left; will restart worker group\n"
KEY_ERROR = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/w/train.py", line 8, in main\n[rank1]: KeyError: 1\n'
TAKEN = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/w/train.py", line 3, in main\n[rank1]: RuntimeError: shard 17 has 0 samples\n'
DISK = '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/w/ckpt.py", line 31, in save\n[rank0]: OSError: [Errno 28] No space left on device\n'

MODULE = "[rank0]: Traceback (most recent call last):\n[rank0]:   File \"/w/train.py\", line 31, in go\n[rank0]: ModuleNotFoundError: No module named 'apex'\n"


def test_an_attempt_that_came_to_steps_again_is_judged_by_what_ended_it(engine: Engine) -> None:
    again = judged(steps(1) + KEY_ERROR + RESTART + steps(1) + DISK, engine)
    assert (again.failure, again.rank) == (FailureClass.DISK_FULL, 0)
    # What comes of a restart that never got to a step is a sequel, not a new failure.
    never = judged(steps(1) + KEY_ERROR + RESTART + TAKEN, engine)
    assert (never.failure, never.rank) == (FailureClass.CODE_ERROR, 1)


def test_a_timeout_of_an_earlier_attempt_hides_no_later_failure(engine: Engine) -> None:
    timed_out = "[rank0]:[E811 12:22:02.100 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=51, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.\n"
    verdict = judged(steps(1) + timed_out + RESTART + steps(1) + DISK, engine)
    assert (verdict.failure, verdict.rank) == (FailureClass.DISK_FULL, 0)


def test_srun_tells_of_a_tasks_signal(engine: Engine) -> None:
    crashed = judged(
        steps(1)
        + "srun: error: cn1: task 5: Bus error\nsrun: Terminating job step 7.0\nslurmstepd: error: *** STEP 7.0 ON cn1 CANCELLED AT 2025-01-01T00:00:00 ***\n",
        engine,
    )
    assert (crashed.failure, crashed.rank) == (FailureClass.WORKER_CRASH, 5)
    swept = judged(
        steps(1)
        + "slurmstepd: error: *** STEP 7.0 ON cn1 CANCELLED AT 2025-01-01T00:00:00 ***\nsrun: error: cn1: task 5: Killed\n",
        engine,
    )
    assert swept.failure is FailureClass.TERMINATED
    hungry = judged(
        steps(1)
        + "slurmstepd: error: Detected 1 oom-kill event(s) in step 7.0 cgroup.\nsrun: error: cn1: task 4: Out Of Memory\n",
        engine,
    )
    assert (hungry.failure, hungry.rank) == (FailureClass.HOST_OOM, 4)


def test_what_lightning_kills_is_no_loss_of_memory(engine: Engine) -> None:
    text = (
        steps(1)
        + "[rank: 1] Child process with PID 20117 terminated with code -11. Forcefully terminating all other processes to avoid zombies\nKilled\n"
    )
    verdict = judged(text, engine)
    assert (verdict.failure, verdict.rank) == (FailureClass.WORKER_CRASH, 1)


def test_the_desync_report_names_who_did_not_come(engine: Engine) -> None:
    text = (
        "[rank2]:[E1115 16:42:37.784 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=730, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.\n"
        "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n"
        "\t   - [5] finished collective #729, but didn't join collective #730 (count from 1)\n"
    )
    verdict = judged(text, engine)
    assert (verdict.failure, verdict.rank) == (FailureClass.NCCL_TIMEOUT, 5)


def test_a_crash_is_named_by_its_signal(engine: Engine) -> None:
    said = {
        "Fatal Python error: Segmentation fault\n": "SIGSEGV",
        "['/usr/bin/python', '-u', 'train.py', '--local_rank=1'] exits with return code = -6\n": "SIGABRT",
        "srun: error: n: task 3: Bus error\n": "SIGBUS",
        "run.sh: line 3: 152 Illegal instruction     (core dumped) python train.py\n": "SIGILL",
        "RuntimeError: DataLoader worker (pid 88) is killed by signal: Segmentation fault. \n": "SIGSEGV",
    }
    for line, signal in said.items():
        assert f"crashed ({signal}: " in judged(steps(1) + line, engine).title
    assert (
        "SIG"
        not in judged(steps(1) + "torchrun: failed (exitcode: 3) local_rank: 0 (pid: 7)\n", engine).title
    )


def test_steps_of_before_the_restart_are_not_the_last_attempts(engine: Engine) -> None:
    """Two steps of its own are the least; one may be printed before a rank reads what another did."""
    for count, failure in (
        (0, FailureClass.CODE_ERROR),
        (1, FailureClass.CODE_ERROR),
        (2, FailureClass.IMPORT_ERROR),
    ):
        again = "".join(steps(1).splitlines(keepends=True)[:count])
        assert judged(steps(1) + KEY_ERROR + RESTART + again + MODULE, engine).failure is failure, count
