"""Every rule of the table has a case that fires it; a rule without one fails here."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.evidence import (
    ErrorFile,
    JobEvidence,
    LogSource,
    MachineRecords,
    SeenGroup,
    SeenHang,
    SeenRecorder,
)
from supervisor.diagnosis.rules import RULES, Stage
from supervisor.diagnosis.verdict import Examination, examine
from supervisor.run.failures import FailureClass, Reason
from supervisor.sources.signature_files import Engine

STEPS = "".join(f"step {number} loss {3 - number / 100:.3f}\n" for number in range(1, 21))
NANS = "".join(f"step {number} loss nan\n" for number in range(21, 40))
GLOO = "[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4711\n"
TIMEOUT = "[rank{0}]:[E101 00:10:00.1 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
DUMP = '$ py-spy dump --pid 70\nThread 70 (idle): "MainThread"\n    read_it (/w/data.py:41)\n    main (/w/train.py:9)\n'
CANCELLED = "slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-01-01T03:00:00 DUE TO {0} ***\n"


def raised(error: str) -> str:
    return f'Traceback (most recent call last):\n  File "/w/train.py", line 3, in main\n    go()\n{error}\n'


def exited(code: int, rank: int = 1) -> str:
    return f"E0101 00:00:02.000000 9 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: {code}) local_rank: {rank} (pid: 12) of binary: /usr/bin/python\n"


def by_signal(name: str, number: int) -> str:
    return f"subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.{name}: {number}>.\n"


def timed_steps(count: int) -> str:
    return "".join(f"2026-01-01 00:0{n // 6}:{n % 6}0 step {n} loss 2.5\n" for n in range(1, count))


def one(text: str) -> JobEvidence:
    return JobEvidence(logs=(LogSource("log", (text.encode(),)),))


COUNTED = "".join(f"step {number}/20 loss {3 - number / 100:.3f}\n" for number in range(1, 21))


def with_zero(text: str, last: int) -> JobEvidence:
    """A training of 20 steps behind a shell that ended with exit code 0."""
    return one(text)._replace(launcher_exit=0, last_step=last, total_steps=20)


RULE_CASES: dict[str, tuple[JobEvidence, FailureClass, Reason | None]] = {
    "stack_dump": (one(STEPS + DUMP), FailureClass.HANG, None),
    "earliest_cause": (one(STEPS + raised("KeyError: 'x'") + GLOO), FailureClass.CODE_ERROR, None),
    "scheduler_stop": (
        one(STEPS + CANCELLED.format("PREEMPTION")),
        FailureClass.TERMINATED,
        Reason.PREEMPTED,
    ),
    "killed": (one(STEPS + GLOO + exited(-9)), FailureClass.HOST_OOM, Reason.KERNEL_KILL),
    "fatal_signal": (one(STEPS + GLOO + exited(-11)), FailureClass.WORKER_CRASH, Reason.SIGNAL),
    "silent_exit": (one(STEPS + GLOO + exited(3)), FailureClass.WORKER_CRASH, Reason.EXIT_CODE),
    "silence_before_stop": (
        one(timed_steps(20) + CANCELLED.format("TIME LIMIT")),
        FailureClass.HANG,
        None,
    ),
    "stop": (one(STEPS + CANCELLED.format("TIME LIMIT")), FailureClass.TERMINATED, Reason.TIME_LIMIT),
    "nan_to_the_end": (one(STEPS + NANS + GLOO), FailureClass.NAN_LOSS, None),
    "complaint": (one(STEPS + TIMEOUT.format(0) + TIMEOUT.format(2)), FailureClass.NCCL_TIMEOUT, None),
    "all_signalled": (one(STEPS + by_signal("SIGTERM", 15)), FailureClass.TERMINATED, Reason.OUTSIDE),
    "exit_code": (
        one(STEPS + "[launch.py:321:sigkill_handler] ['python', 't.py'] exits with return code = 7\n"),
        FailureClass.WORKER_CRASH,
        Reason.EXIT_CODE,
    ),
    "unexplained_end": (one(STEPS + exited(1)), FailureClass.UNKNOWN, None),
    "cut_off": (one(STEPS + raised("").rstrip() + "\n"), FailureClass.UNKNOWN, None),
    "good_end": (one(STEPS + "Training complete.\n"), FailureClass.HEALTHY, None),
    "still_training": (one(STEPS), FailureClass.HEALTHY, None),
    "metrics_printed": (one("hello\n")._replace(metric_rows=5), FailureClass.HEALTHY, None),
    "nothing_known": (one("hello\n")._replace(metric_rows=4), FailureClass.UNKNOWN, None),
}

HUNG = SeenHang((1,), "rank 1 in read_it()", None, "stacks.txt", 3, (SeenGroup((1,), "own", "in read_it()"),))
KEY_ERROR = b'{"message": {"message": "KeyError: \'x\'", "extraInfo": {"timestamp": "1700000000"}}}'
LOADER_KILLED = "RuntimeError: DataLoader worker (pid 411) is killed by signal: Killed.\n"

DEATH_SIGNAL = "W1127 00:00:01.000000 9 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, shutting down workers\n"
CORRECTION_CASES: dict[str, tuple[JobEvidence, FailureClass, Reason | None]] = {
    "error_file": (
        one(STEPS)._replace(launcher_exit=1, error_files=(ErrorFile("error.json", KEY_ERROR),)),
        FailureClass.CODE_ERROR,
        None,
    ),
    "memory_kill_counted": (
        one(STEPS + exited(-9))._replace(machine=MachineRecords(cgroup_oom_kills=1)),
        FailureClass.HOST_OOM,
        Reason.CGROUP_KILL,
    ),
    "no_memory_kill_counted": (
        one(STEPS + exited(-9))._replace(machine=MachineRecords(cgroup_oom_kills=0)),
        FailureClass.WORKER_CRASH,
        Reason.SIGNAL,
    ),
    "worker_killed_with_memory_left": (
        one(STEPS + raised(LOADER_KILLED))._replace(machine=MachineRecords(cgroup_oom_kills=0)),
        FailureClass.DATALOADER_WORKER,
        Reason.KILLED,
    ),
    "slurm_state": (
        one(STEPS)._replace(launcher_exit=1, machine=MachineRecords(slurm_state="TIMEOUT")),
        FailureClass.TERMINATED,
        Reason.TIME_LIMIT,
    ),
    "shared_memory_full": (
        one(STEPS + exited(-11))._replace(machine=MachineRecords(shm_used_share=0.99)),
        FailureClass.SHM_EXHAUSTED,
        None,
    ),
    "gpu_reported_fault": (
        one(STEPS + exited(-11))._replace(machine=MachineRecords(gpu_xids=((0, 79),))),
        FailureClass.GPU_FAULT,
        None,
    ),
    "full_disk": (
        one(STEPS)._replace(launcher_exit=1, machine=MachineRecords(disk_free_bytes=4096, disk_path="/runs")),
        FailureClass.DISK_FULL,
        None,
    ),
    "launcher_killed": (
        one("")._replace(launcher_exit=-9, launcher_signal=9),
        FailureClass.TERMINATED,
        Reason.OUTSIDE,
    ),
    "aborted_at_exit": (
        one(STEPS + exited(-6))._replace(last_step=20, total_steps=20),
        FailureClass.WORKER_CRASH,
        Reason.AT_EXIT,
    ),
    "stopped_for_slurm": (
        one(STEPS + DEATH_SIGNAL)._replace(
            stop_reason="signal", machine=MachineRecords(slurm_state="TIMEOUT")
        ),
        FailureClass.TERMINATED,
        Reason.TIME_LIMIT,
    ),
    "warned_of_limit": (
        one(STEPS + GLOO)._replace(stop_reason="requeue"),
        FailureClass.TERMINATED,
        Reason.TIME_LIMIT,
    ),
    "stopped_by_stoker": (
        one(STEPS + GLOO)._replace(stop_reason="request"),
        FailureClass.TERMINATED,
        Reason.USER,
    ),
    "node_never_came": (
        JobEvidence(logs=(), exit_codes={}, launcher_exit=-15, ended_for="rank_died"),
        FailureClass.RENDEZVOUS,
        None,
    ),
    "made_no_step": (
        one("loading\nnothing to do\n")._replace(launcher_exit=0, earlier_step=(1, 30), total_steps=90),
        FailureClass.UNKNOWN,
        Reason.NO_STEP,
    ),
    "words_below_last_step": (
        one(STEPS + "launcher2: child failed: segfault in worker 3\n"),
        FailureClass.WORKER_CRASH,
        None,
    ),
    "words_of_complaint": (
        one("loading weights\nlauncher2: child failed: segfault in worker 3\n"),
        FailureClass.WORKER_CRASH,
        None,
    ),
    "stacks_of_hang": (one(STEPS)._replace(hang=HUNG, ended_for="hang"), FailureClass.HANG, None),
    "stacks_of_timeout": (
        one(STEPS + TIMEOUT.format(0) + TIMEOUT.format(2))._replace(hang=HUNG._replace(ended_for_it=False)),
        FailureClass.NCCL_TIMEOUT,
        None,
    ),
    "flight_recorder": (
        one(STEPS)._replace(
            recorder=SeenRecorder((1,), "all_reduce 7 of DATA: rank 1 did not come", "_dump_1")
        ),
        FailureClass.HANG,
        None,
    ),
    "exit_zero_after_end": (
        with_zero(COUNTED + raised("RuntimeError: CUDA error: driver shutting down"), 20),
        FailureClass.HEALTHY,
        Reason.AT_EXIT,
    ),
    "exit_zero_not_a_failure": (
        with_zero(COUNTED + raised("KeyError: 'x'"), 20),
        FailureClass.HEALTHY,
        None,
    ),
    "exit_zero_of_launcher": (with_zero(STEPS + exited(1), 20), FailureClass.WORKER_CRASH, Reason.EXIT_CODE),
    "ended_early": (
        with_zero(COUNTED.partition("step 11/")[0], 10),
        FailureClass.UNKNOWN,
        Reason.ENDED_EARLY,
    ),
}


def examined(job: JobEvidence, engine: Engine) -> Examination:
    return examine(job, engine.signatures, engine.matcher)


def test_the_table_is_in_order_and_each_rule_has_a_case_and_says_why() -> None:
    assert [*RULE_CASES, *CORRECTION_CASES] == [rule.name for rule in RULES]
    assert [rule.stage for rule in RULES] == sorted(rule.stage for rule in RULES)
    assert all(rule.why.endswith(".") and rule.why.count(". ") == 0 for rule in RULES)


@pytest.mark.parametrize("name", RULE_CASES)
def test_a_rule_fires(name: str, engine: Engine) -> None:
    job, failure, reason = RULE_CASES[name]
    found = examined(job, engine).decision
    assert (found.rule.name, found.rule.stage) == (name, Stage.LOGS)
    assert (found.first.failure, found.first.reason) == (failure, reason)
    assert found.rule.confidence in {None, found.first.confidence}


@pytest.mark.parametrize("name", CORRECTION_CASES)
def test_a_correction_is_made(name: str, engine: Engine) -> None:
    job, failure, reason = CORRECTION_CASES[name]
    found = examined(job, engine)
    assert name in [item.name for item in found.decision.corrections]
    assert (found.verdict.failure, found.verdict.reason) == (failure, reason)


def test_one_process_that_a_signal_stopped_among_peers_was_stopped_from_outside(engine: Engine) -> None:
    found = examined(one(STEPS + GLOO + exited(-15)), engine).decision
    assert found.rule.name == "silent_exit"
    assert (found.root.failure, found.root.reason) == (FailureClass.TERMINATED, Reason.OUTSIDE)


def test_the_rules_that_yielded_are_on_record(engine: Engine) -> None:
    found = examined(one(STEPS + raised("KeyError: 'x'") + GLOO + exited(-11)), engine).decision
    assert found.rule.name == "earliest_cause"
    assert [rule.name for rule in found.yielded()] == [
        "fatal_signal",
        "silent_exit",
        "complaint",
        "exit_code",
    ]
