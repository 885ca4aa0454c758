"""Exit codes, signals, stacks, the backend and the disk beside log lines: which of them decides."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.evidence import (
    JobEvidence,
    LogSource,
    MachineRecords,
    SeenGroup,
    SeenHang,
)
from supervisor.diagnosis.journal_facts import with_journal_facts
from supervisor.diagnosis.verdict import diagnose
from supervisor.run import events as ev
from supervisor.run.failures import FailureClass, Reason
from supervisor.run.fold import replay
from supervisor.run.records import Verdict
from supervisor.sources.signature_files import Engine
from tests.diagnosis.launcher_logs import T0, trace

STEPS = [f"step {number} loss {3 - number / 100:.3f}" for number in range(1, 21)]
STORE_LOST = "[rank0]:[W1127 00:00:01.1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=3): Connection reset by peer"
GLOO_LOST = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"
GLOO_TIMEOUT = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete"
NCCL_TIMEOUT = "[rank{0}]:[E1127 00:10:00.1 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.01 GiB is free."
BROKEN = "BrokenPipeError: [Errno 32] Broken pipe"
IGNORED = [
    "Exception ignored in: <_io.TextIOWrapper name='<stdout>' mode='w' encoding='utf-8'>",
    BROKEN,
]


def verdict_of(engine: Engine, *logs: list[str], **known: object) -> Verdict:
    sources = tuple(
        LogSource(f"{number}.log", ("".join(f"{line}\n" for line in lines).encode(),))
        for number, lines in enumerate(logs)
    )
    return diagnose(JobEvidence(logs=sources, **known), engine.signatures, engine.matcher)  # type: ignore[arg-type]


# -- a launcher that was ended by a signal -----------------------------------------------------------


@pytest.mark.parametrize(
    "logs",
    [([],), ([], [], []), (STEPS,), (STEPS, [*STEPS, STORE_LOST]), ([*STEPS, *trace(1, GLOO_LOST)],)],
    ids=["no output", "three empty logs", "steps", "the store lost", "gloo peers lost"],
)
def test_a_killed_launcher_is_known_by_its_own_exit(logs: tuple[list[str], ...], engine: Engine) -> None:
    verdict = verdict_of(engine, *logs, launcher_exit=-9, launcher_signal=9)
    assert (verdict.failure, verdict.reason) == (FailureClass.TERMINATED, Reason.OUTSIDE)
    assert verdict.title == "The launcher was ended by SIGKILL"
    counted = verdict_of(
        engine, *logs, launcher_exit=-9, launcher_signal=9, machine=MachineRecords(cgroup_oom_kills=2)
    )
    assert (counted.failure, counted.reason) == (FailureClass.HOST_OOM, Reason.CGROUP_KILL)


def test_other_signals_of_a_launcher(engine: Engine) -> None:
    crashed = verdict_of(engine, [], launcher_exit=-11, launcher_signal=11)
    assert (crashed.failure, crashed.reason) == (FailureClass.WORKER_CRASH, Reason.SIGNAL)
    assert crashed.title == "The launcher was ended by SIGSEGV"
    ended = verdict_of(engine, STEPS, launcher_exit=-15, launcher_signal=15)
    assert (ended.failure, ended.title) == (FailureClass.TERMINATED, "The launcher was ended by signal 15")


def test_what_stoker_ended_for_want_of_a_killed_launcher_is_no_node_that_never_came(engine: Engine) -> None:
    swept = verdict_of(engine, STEPS, launcher_exit=-9, launcher_signal=9, ended_for="rank_died")
    assert (swept.failure, swept.title) == (FailureClass.TERMINATED, "The launcher was ended by SIGKILL")


def test_a_cause_or_a_timeout_in_the_logs_outranks_the_launchers_signal(engine: Engine) -> None:
    cause = verdict_of(engine, [*STEPS, *trace(1, OUT_OF_MEMORY)], launcher_exit=-9, launcher_signal=9)
    assert (cause.failure, cause.rank) == (FailureClass.CUDA_OOM, 1)
    timeout = [*STEPS, NCCL_TIMEOUT.format(0), NCCL_TIMEOUT.format(2)]
    waited = verdict_of(engine, timeout, launcher_exit=-9, launcher_signal=9)
    assert waited.failure is FailureClass.NCCL_TIMEOUT
    rank = verdict_of(engine, STEPS, exit_codes={1: -11}, launcher_exit=-9, launcher_signal=9)
    assert (rank.failure, rank.rank) == (FailureClass.WORKER_CRASH, 1)


@pytest.mark.parametrize(
    ("stop_s", "why", "signal"),
    [(None, None, 9), (3.0, ev.StopWhy.RANK_DIED, 9), (1.0, ev.StopWhy.RANK_DIED, None), (1.0, ev.StopWhy.HANG, None)],
)  # fmt: skip
def test_a_signal_that_came_after_our_own_stop_is_not_held_against_the_launcher(
    stop_s: float | None, why: ev.StopWhy | None, signal: int | None
) -> None:
    facts: list[ev.Event] = [
        ev.RunStarted(t=T0, run_id="x", name="x", mode="launched", host="box"),
        ev.LaunchIntended(t=T0, attempt=1, argv=(), reason="first launch"),
        ev.AttemptStarted(t=T0, attempt=1, pid=7, start_time=0.0),
    ]
    if stop_s is not None and why is not None:
        facts.append(ev.StopIntended(t=T0 + stop_s, attempt=1, why=why, by="keeper", grace_s=5.0))
    facts.append(ev.AttemptEnded(t=T0 + 9, attempt=1, exit_code=-9, exit_t=T0 + 2))
    state = replay(facts)
    job = with_journal_facts(JobEvidence(logs=()), [(state, state.attempts[0])])
    assert job.launcher_signal == signal


# -- the backend beside the stacks -------------------------------------------------------------------


def seen(doing: str, where: str) -> SeenHang:
    waits = SeenGroup((0, 2), "collective", "in all_reduce", "train.py:50")
    at = SeenGroup((1,), doing, where)
    return SeenHang((1,), f"rank 1 {where}", "all_reduce", "stacks.txt", 3, (waits, at), ended_for_it=False)


@pytest.mark.parametrize(
    "hang",
    [seen("stopped", "stopped by a signal"), seen("own", "in read_shard()"), seen("kernel", "in futex")],
    ids=["stopped", "own line", "kernel"],
)
def test_over_gloo_the_stacks_show_a_hang_and_no_timeout_of_nccl(hang: SeenHang, engine: Engine) -> None:
    gloo = verdict_of(engine, [*STEPS, *trace(0, GLOO_TIMEOUT)], launcher_exit=1, hang=hang)
    assert (gloo.failure, gloo.rank) == (FailureClass.HANG, 1)
    nccl = verdict_of(
        engine, [*STEPS, NCCL_TIMEOUT.format(0), NCCL_TIMEOUT.format(2)], launcher_exit=1, hang=hang
    )
    assert (nccl.failure, nccl.rank) == (FailureClass.NCCL_TIMEOUT, 1)


# -- a full disk beside the last words -----------------------------------------------------------------

FULL = MachineRecords(disk_free_bytes=4096, disk_path="/runs")
FREE = MachineRecords(disk_free_bytes=1 << 34, disk_path="/runs")


@pytest.mark.parametrize(
    ("log", "code"),
    [
        ([*STEPS, *trace(None, BROKEN)], 1),
        ([*STEPS, *trace(None, BROKEN), *IGNORED], 120),
        ([*STEPS, *trace(2, BROKEN)], 1),
        (STEPS, 120),
        ([*STEPS, *trace(None, "")[:3]], 1),
    ],
    ids=["print", "print and exit", "a rank's", "exit code alone", "cut off"],
)
def test_a_full_disk_takes_the_last_words_with_it(log: list[str], code: int, engine: Engine) -> None:
    assert verdict_of(engine, log, launcher_exit=code, machine=FULL).failure is FailureClass.DISK_FULL
    assert verdict_of(engine, log, launcher_exit=code, machine=FREE).failure is not FailureClass.DISK_FULL


def test_what_was_written_of_a_cause_outranks_a_full_disk(engine: Engine) -> None:
    named = verdict_of(engine, [*STEPS, *trace(0, "KeyError: 'x'")], launcher_exit=1, machine=FULL)
    assert named.failure is FailureClass.CODE_ERROR
    lost = verdict_of(engine, [*STEPS, *trace(0, GLOO_LOST)], launcher_exit=1, machine=FULL)
    assert lost.failure is FailureClass.NCCL_ERROR


# -- torchrun's own exceptions ---------------------------------------------------------------------------


def agents(*frames: tuple[str, str], said: str) -> list[str]:
    """A traceback of torchrun that ends in the given frames."""
    above = (("/v/bin/torchrun", "<module>"), ("/v/site-packages/torch/distributed/run.py", "main"), *frames)
    shown = [text for path, name in above for text in (f'  File "{path}", line 8, in {name}', "    call()")]
    return ["Traceback (most recent call last):", *shown, said]


@pytest.mark.parametrize(
    "log",
    [
        agents(
            ("/v/site-packages/torch/distributed/launcher/api.py", "launch_agent"),
            said="AttributeError: 'NoneType' object has no attribute 'is_failed'",
        ),
        agents(
            ("/v/site-packages/torch/distributed/launcher/api.py", "launch_agent"),
            ("/v/site-packages/torch/distributed/elastic/agent/server/api.py", "_assign_worker_ranks"),
            said="KeyError: 'role_infos/1'",
        ),
        agents(
            (
                "/v/site-packages/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py",
                "next_rendezvous",
            ),
            said="IndexError: list index out of range",
        ),
    ],
    ids=["no result", "agent", "rendezvous"],
)
def test_an_exception_of_torchruns_own_is_no_error_of_the_script(log: list[str], engine: Engine) -> None:
    assert verdict_of(engine, log).failure is FailureClass.RENDEZVOUS


def test_an_exception_of_the_script_below_torchruns_wrapper_is_the_scripts(engine: Engine) -> None:
    log = [
        "Traceback (most recent call last):",
        '  File "/v/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 357, in wrapper',
        "    return f(*args, **kwargs)",
        '  File "/w/train.py", line 9, in main',
        "    model.fit()",
        "AttributeError: 'NoneType' object has no attribute 'fit'",
    ]
    assert verdict_of(engine, log).failure is FailureClass.CODE_ERROR
