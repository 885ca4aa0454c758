"""What the stacks showed outweighs what the ending left in the logs, but not a cause that a rank wrote itself."""

from __future__ import annotations

import msgspec
import pytest

from supervisor.diagnosis.evidence import JobEvidence, LogSource, SeenHang
from supervisor.diagnosis.journal_facts import with_journal_facts
from supervisor.diagnosis.verdict import diagnose
from supervisor.run import events as ev
from supervisor.run.events import RanksAt
from supervisor.run.fold import replay
from supervisor.run.records import FailureClass, Reason, Verdict
from supervisor.sources.signature_files import Engine
from supervisor.text.prefixes import Origin

SEEN = SeenHang(
    (1,), "3 ranks in backward at train.py:23, rank 1 in read() at data.py:41", None, "artifacts/s.txt", 28
)
STEPS = "".join(f"step {number} loss {3 - number / 100:.3f}\n" for number in range(1, 21))
AFTERMATH = (
    "W1121 14:01:41.751000 22429 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, shutting down workers\n"
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 22429 got signal: 15\n"
)
PEER = "[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4711\n"
OWN = (
    "[rank1]: Traceback (most recent call last):\n"
    '[rank1]:   File "train.py", line 9, in main\n'
    "[rank1]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB\n"
)


def judge(engine: Engine, text: str, hang: SeenHang | None, ended_for: str | None = "hang") -> Verdict:
    job = JobEvidence(
        ended_for=ended_for,
        logs=(LogSource("agent.log", (text.encode(),), Origin()),),
        exit_codes={0: -9, 1: -9},
        launcher_exit=-9,
        world_size=2,
        hang=hang,
    )
    return diagnose(job, engine.signatures, engine.matcher)


@pytest.mark.parametrize("text", [STEPS, STEPS + AFTERMATH, STEPS + PEER + AFTERMATH])
def test_our_own_signals_and_peers_complaints_follow_from_the_hang(engine: Engine, text: str) -> None:
    verdict = judge(engine, text, SEEN)
    assert (verdict.failure, verdict.rank, verdict.ranks) == (FailureClass.HANG, 1, (1,))
    assert verdict.cause is not None
    assert (verdict.cause.path, verdict.cause.line, verdict.cause.text) == (SEEN.path, 28, SEEN.text)
    assert (
        verdict.fingerprint == judge(engine, text, SEEN._replace(line=99, path="artifacts/t.txt")).fingerprint
    )


WAITING = RanksAt(
    ranks=(0, 2, 3), doing="backward", what="in backward", line_at="train.py:23", lines=(9, 39, 49)
)
READING = RanksAt(ranks=(1,), doing="own", what="in read()", line_at="data.py:41", lines=(28,))
TOLD = SEEN._replace(groups=(READING, WAITING))
TIMED_OUT_IN_NCCL = "[rank{0}]:[E101 00:10:00.1 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
TIMED_OUT = "[rank{}]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 10000ms for recv operation to complete\n"


def test_the_rank_that_is_elsewhere_is_the_cause_and_those_that_wait_are_what_followed(
    engine: Engine,
) -> None:
    verdict = judge(engine, STEPS + AFTERMATH, TOLD)
    assert verdict.cause is not None
    assert verdict.cause.text == "rank 1 in read() at data.py:41"
    waiting = [item for item in verdict.consequences if item.words.startswith("waited")]
    assert {(item.rank, item.line, item.path) for item in waiting} == {
        (rank, line, SEEN.path) for rank, line in ((0, 9), (2, 39), (3, 49))
    }
    assert {item.words for item in waiting} == {"waited for rank 1 in backward at train.py:23"}
    assert verdict.advice[0].startswith("Look why data.py:41 does not end")
    assert "rank 1 in read(), outside the collective" in verdict.advice[0]
    assert not any("Look at the stack" in text for text in verdict.advice)


@pytest.mark.parametrize(
    ("doing", "expected"),
    [
        ("collective", "different branches"),
        ("data", "data workers"),
        ("gpu", "Xid"),
        ("stopped", "kill -CONT"),
        ("kernel", "py-spy"),
        ("unknown", "py-spy"),
    ],
)
def test_the_advice_goes_on_from_what_the_stacks_show(engine: Engine, doing: str, expected: str) -> None:
    verdict = judge(
        engine, STEPS, SEEN._replace(groups=(msgspec.structs.replace(READING, doing=doing), WAITING))
    )
    assert expected in verdict.advice[0]


def test_where_all_wait_for_each_other_the_advice_says_so(engine: Engine) -> None:
    verdict = judge(engine, STEPS, SEEN._replace(ranks=(), groups=(WAITING,)))
    assert "network" in verdict.advice[0]
    barrier = msgspec.structs.replace(
        WAITING, ranks=(1,), doing="collective", what="in barrier", line_at="train.py:9"
    )
    parted = judge(engine, STEPS, SEEN._replace(ranks=(), groups=(WAITING, barrier)))
    assert "the branch that parts the ranks" in parted.advice[0]
    assert verdict.rank is None
    assert not [item for item in verdict.consequences if item.words.startswith("waited")]


@pytest.mark.parametrize(
    ("line", "failure", "headline"),
    [
        (TIMED_OUT_IN_NCCL, FailureClass.NCCL_TIMEOUT, "rank 1 never joined"),
        (TIMED_OUT, FailureClass.HANG, "on rank 1"),  # there is no NCCL to look at
    ],
)
def test_where_those_that_wait_gave_up_first_the_stacks_name_whom_they_waited_for(
    line: str, failure: FailureClass, headline: str, engine: Engine
) -> None:
    """Each of them tells where it waited itself: its own line is nobody's fault."""
    text = STEPS + line.format(0) + line.format(2)
    silence = TOLD._replace(ended_for_it=False)

    def ended(hang: SeenHang | None, said: str) -> Verdict:
        log = (LogSource("agent.log", (said.encode(),), Origin()),)
        codes = {0: 1, 1: -15, 2: 1}
        job = JobEvidence(logs=log, exit_codes=codes, launcher_exit=1, world_size=3, hang=hang)
        return diagnose(job, engine.signatures, engine.matcher)

    verdict = ended(silence, text)
    assert (verdict.failure, verdict.rank) == (failure, 1)
    assert verdict.cause is not None
    assert (verdict.cause.path, verdict.cause.line) == (SEEN.path, 28)
    assert headline in verdict.title
    words = [item.words for item in verdict.consequences]
    assert "waited for rank 1 in backward at train.py:23" in words
    assert "nccl timeout" in words
    # Without stacks, and against the logs' own word, nothing changes.
    assert ended(None, text).advice != verdict.advice
    crash = ended(silence, STEPS + OWN)
    assert (crash.failure, crash.cause and crash.cause.path) == (FailureClass.CUDA_OOM, "agent.log")


@pytest.mark.parametrize(
    ("steps", "title"),
    [
        ((40.0,), "Stopped on request, 310 s after the last step: rank 1 in read() at data.py:41"),
        ((), "Stopped on request, before a step: rank 1 in read() at data.py:41"),
        ((40.0, 340.0), "Stopped on request"),
    ],
    ids=["hung", "hung before a step", "moved again"],
)
def test_a_stop_on_request_names_where_the_run_hung(
    engine: Engine, steps: tuple[float, ...], title: str
) -> None:
    at = ev.RanksAt(ranks=(1,), doing="own", what="in read()", line_at="data.py:41", lines=(28,))
    text = "rank 1 in read() at data.py:41"
    state = replay(
        [
            ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason="first"),
            ev.AttemptStarted(t=1.0, attempt=1, pid=1, start_time=1.0),
            *(ev.Progress(t=t, attempt=1, step=7) for t in steps[:1]),
            ev.StacksTaken(t=60.0, attempt=1, text=text, odd=(1,), artifact="artifacts/s.txt", groups=(at,)),
            *(ev.Progress(t=t, attempt=1, step=8) for t in steps[1:]),
            ev.StopIntended(t=350.0, attempt=1, why=ev.StopWhy.REQUEST, by="me", grace_s=5.0),
        ]
    )
    view = state.attempt
    assert view is not None
    log = (LogSource("agent.log", (STEPS.encode(),), Origin()),)
    job = with_journal_facts(JobEvidence(log, launcher_exit=-15), [(state, view)], run_root="/runs/x")
    found = diagnose(job, engine.signatures, engine.matcher)
    assert (found.reason, found.title) == (Reason.USER, title)


def test_a_cause_that_a_rank_wrote_before_it_stopped_still_wins(engine: Engine) -> None:
    verdict = judge(engine, STEPS + OWN + AFTERMATH, SEEN)
    assert (verdict.failure, verdict.rank) == (FailureClass.CUDA_OOM, 1)


def test_what_stoker_sent_itself_is_blamed_on_nobody_else(engine: Engine) -> None:
    verdict = judge(engine, STEPS + PEER + AFTERMATH, SEEN)
    words = [item.words for item in verdict.consequences]
    assert "ended by stoker after the hang" in words
    assert "lost the connection to a peer" in words
    assert not {"terminated", "nccl error"} & set(words)
    # The same lines without us are somebody's doing.
    other = judge(engine, STEPS + PEER + AFTERMATH, None, ended_for=None)
    assert not any("stoker" in item.words for item in other.consequences)
    log = (LogSource("agent.log", ((STEPS + AFTERMATH).encode(),), Origin()),)
    for ours, expected in ((None, FailureClass.TERMINATED), ("hang", FailureClass.UNKNOWN)):
        job = JobEvidence(logs=log, launcher_exit=1, world_size=2, ended_for=ours)
        assert diagnose(job, engine.signatures, engine.matcher).failure is expected


@pytest.mark.parametrize("counted", [None, 0, 2])
def test_a_count_of_kills_for_memory_that_the_journal_holds_settles_a_bare_kill(
    engine: Engine, counted: int | None
) -> None:
    state = replay(
        [
            ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason="first"),
            ev.AttemptStarted(t=1.0, attempt=1, pid=1, start_time=1.0),
            ev.AttemptEnded(
                t=9.0, attempt=1, exit_code=1, rank_exit_codes={0: 1, 1: -9}, memory_kills=counted
            ),
        ]
    )
    view = state.attempt
    assert view is not None
    killed = (
        "E1121 14:01:41.751000 22429 torch/distributed/elastic/multiprocessing/api.py:1001] "
        "failed (exitcode: -9) local_rank: 1 (pid: 22482) of binary: /usr/bin/python\n"
    )
    log = LogSource("agent.log", ((STEPS + killed).encode(),), Origin())
    job = with_journal_facts(JobEvidence(logs=(log,), world_size=2), [(state, view)])
    verdict = diagnose(job, engine.signatures, engine.matcher)
    expected = {
        None: (FailureClass.HOST_OOM, Reason.KERNEL_KILL),
        0: (FailureClass.WORKER_CRASH, Reason.SIGNAL),
        2: (FailureClass.HOST_OOM, Reason.CGROUP_KILL),
    }
    assert (verdict.failure, verdict.reason) == expected[counted]
