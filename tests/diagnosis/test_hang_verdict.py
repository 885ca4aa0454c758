"""What the stacks showed outweighs what the ending left in the logs, but not a cause that a rank wrote itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from supervisor.diagnosis.evidence import JobEvidence, LogSource, SeenHang
from supervisor.diagnosis.journal_facts import with_journal_facts
from supervisor.diagnosis.verdict import diagnose
from supervisor.run import events as ev
from supervisor.run.fold import replay
from supervisor.run.records import FailureClass, Reason, Verdict
from supervisor.sources.signature_files import Engine

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
KILLED = "E1121 14:01:41.751000 22429 torch/distributed/elastic/multiprocessing/api.py:1001] failed (exitcode: -9) local_rank: 1 (pid: 22482) of binary: python\n"
NCCL = "[rank{0}]:[E101 00:10:00.1 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
TIMED_OUT = "[rank{}]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 10000ms for recv operation to complete\n"
WAITING = ev.RanksAt(
    ranks=(0, 2, 3), doing="backward", what="in backward", line_at="train.py:23", lines=(9, 39, 49)
)
READING = ev.RanksAt(ranks=(1,), doing="own", what="in read()", line_at="data.py:41", lines=(28,))
SEEN = SeenHang(
    (1,), "3 ranks in backward at train.py:23, rank 1 in read() at data.py:41", None, "artifacts/s.txt", 28
)
SHOWN = "The stacks show rank 1 in read() at data.py:41"
BRANCHES = "the ranks took different branches. Look for a collective under `if rank == …`, and for batches that differ in number."
KERNEL = "Only the kernel's side was seen, rank 1 in read() at data.py:41: with py-spy, or `[hang] faulthandler = true`, its line is told too."
TOLD = SEEN._replace(groups=(READING, WAITING))


def judge(engine: Engine, text: str, hang: SeenHang | None = None, **known: Any) -> Verdict:
    """The verdict on an attempt of two ranks that stoker ended, or that ended as `known`."""
    ended: dict[str, Any] = {
        "ended_for": "hang",
        "exit_codes": {0: -9, 1: -9},
        "launcher_exit": -9,
        "world_size": 2,
        **known,
    }
    job = JobEvidence((LogSource("agent.log", (text.encode(),)),), hang=hang)._replace(**ended)
    return diagnose(job, engine.signatures, engine.matcher)


def from_journal(engine: Engine, text: str, *facts: ev.Event, launcher_exit: int | None = None) -> Verdict:
    """The same with what the journal says of the attempt."""
    begun = (
        ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason="first"),
        ev.AttemptStarted(t=1.0, attempt=1, pid=1, start_time=1.0),
    )
    state = replay([*begun, *facts])
    assert state.attempt is not None
    job = JobEvidence((LogSource("agent.log", (text.encode(),)),), launcher_exit=launcher_exit, world_size=2)
    known = with_journal_facts(job, [(state, state.attempt)], run_root="/runs/x")
    return diagnose(known, engine.signatures, engine.matcher)


@pytest.mark.parametrize("text", [STEPS, STEPS + AFTERMATH, STEPS + PEER + AFTERMATH])
def test_our_own_signals_and_peers_complaints_follow_from_the_hang(engine: Engine, text: str) -> None:
    verdict = judge(engine, text, SEEN)
    assert (verdict.failure, verdict.rank, verdict.ranks) == (FailureClass.HANG, 1, (1,))
    assert verdict.cause is not None
    assert (verdict.cause.path, verdict.cause.line, verdict.cause.text) == (SEEN.path, 28, SEEN.text)
    again = judge(engine, text, SEEN._replace(line=99, path="artifacts/t.txt"))
    assert verdict.fingerprint == again.fingerprint


def test_the_rank_that_is_elsewhere_is_the_cause_and_those_that_wait_are_what_followed(
    engine: Engine,
) -> None:
    verdict = judge(engine, STEPS + PEER + AFTERMATH, TOLD)
    assert verdict.cause is not None
    assert verdict.cause.text == "rank 1 in read() at data.py:41"
    waiting = [item for item in verdict.consequences if item.words.startswith("waited")]
    assert {(item.rank, item.line, item.path, item.words) for item in waiting} == {
        (rank, line, SEEN.path, "waited for rank 1 in backward at train.py:23")
        for rank, line in ((0, 9), (2, 39), (3, 49))
    }
    assert "rank 1 in read(), outside the collective" in verdict.advice[0]
    assert not any("Look at the stack" in text for text in verdict.advice)
    words = {item.words for item in verdict.consequences}
    assert {"ended by stoker after the hang", "lost the connection to a peer"} <= words
    assert not {"terminated", "nccl error"} & words


@pytest.mark.parametrize(
    ("ended_for", "failure"), [(None, FailureClass.TERMINATED), ("hang", FailureClass.UNKNOWN)]
)
def test_what_stoker_sent_itself_is_blamed_on_nobody_else(
    engine: Engine, ended_for: str | None, failure: FailureClass
) -> None:
    found = judge(engine, STEPS + AFTERMATH, ended_for=ended_for, exit_codes={}, launcher_exit=1)
    assert found.failure is failure


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        *(
            ((msgspec.structs.replace(READING, doing=doing), WAITING), said)
            for doing, said in (
                ("own", "Look why data.py:41 does not end (a loop without a bound, a lock, a file or a server that does not answer): the stacks show rank 1 in read(), outside the collective."),
                ("collective", f"{SHOWN} and the others elsewhere: {BRANCHES}"),
                ("backward", f"{SHOWN} and the others elsewhere: {BRANCHES}"),
                ("data", f"{SHOWN}: look at what its data workers read, and give the DataLoader a timeout=."),
                ("gpu", f"{SHOWN}: look for a kernel that does not end, and for Xid errors in `dmesg`."),
                ("stopped", f"{SHOWN}: find out who suspended it; `kill -CONT` lets it continue."),
                ("kernel", KERNEL),
                ("unknown", KERNEL),
            )
        ),
        ((msgspec.structs.replace(READING, line_at=None), WAITING), "Look why it does not end (a loop without a bound, a lock, a file or a server that does not answer): the stacks show rank 1 in read(), outside the collective."),
        ((WAITING,), "Look at the network and at the ranks of other nodes: the stacks show all ranks here in the same collective, and none is missing."),
        (
            (WAITING, msgspec.structs.replace(WAITING, ranks=(1,), what="in barrier")),
            "Look for the branch that parts the ranks (a collective under `if rank == …`, batches that differ in number): the stacks show each waiting at another line for the others.",
        ),
        (
            (WAITING, msgspec.structs.replace(WAITING, ranks=(1,), doing="gpu")),
            "The stacks show no rank apart from the others: look at the line that all of them stand at.",
        ),
    ],
)  # fmt: skip
def test_the_advice_goes_on_from_what_the_stacks_show(
    engine: Engine, groups: tuple[ev.RanksAt, ...], expected: str
) -> None:
    late = () if groups[0] is WAITING else (1,)
    verdict = judge(engine, STEPS, SEEN._replace(ranks=late, groups=groups))
    assert verdict.advice[0] == expected
    assert verdict.rank == next(iter(late), None)


def test_many_ranks_are_told_together(engine: Engine) -> None:
    """Those at fault as a text, up to 8 groups; those that wait one by one, up to 16 ranks."""
    apart = tuple(
        ev.RanksAt(ranks=(rank,), doing="own", what="in read()", line_at=f"d.py:{rank}", lines=())
        for rank in range(1, 10)
    )
    many = msgspec.structs.replace(WAITING, ranks=tuple(range(10, 27)), lines=())
    few = ev.RanksAt(ranks=(0, 27), doing="gpu", what="waiting for its GPU", line_at=None, lines=(5,))
    late = tuple(range(1, 10))
    seen = SEEN._replace(ranks=late, collective="barrier 3", groups=(*apart, many, few))
    verdict = judge(engine, STEPS, seen, world_size=28)
    assert (verdict.rank, verdict.ranks) == (None, late)
    assert verdict.cause is not None
    told = ", ".join(f"rank {rank} in read() at d.py:{rank}" for rank in range(1, 9))
    assert verdict.cause.text == f"{told}, …; barrier 3"
    named = "ranks 1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert [(item.rank, item.line, item.words) for item in verdict.consequences] == [
        (None, None, f"17 ranks: waited for {named} in backward at train.py:23"),
        (0, 5, "was waiting for its GPU"),
        (27, None, "was waiting for its GPU"),
    ]
    eight = judge(engine, STEPS, seen._replace(ranks=late[:8], collective=None), world_size=28)
    assert eight.cause is not None
    assert eight.cause.text == told


@pytest.mark.parametrize(
    ("line", "failure", "headline"),
    [
        (NCCL, FailureClass.NCCL_TIMEOUT, "rank 1 never joined"),
        (TIMED_OUT, FailureClass.HANG, "on rank 1"),  # there is no NCCL to look at
    ],
)
def test_where_those_that_wait_gave_up_first_the_stacks_name_whom_they_waited_for(
    line: str, failure: FailureClass, headline: str, engine: Engine
) -> None:
    """Each of them tells where it waited itself: its own line is nobody's fault."""
    ended: dict[str, Any] = {
        "ended_for": None,
        "exit_codes": {0: 1, 1: -15, 2: 1},
        "launcher_exit": 1,
        "world_size": 3,
    }
    silence = TOLD._replace(ended_for_it=False)
    verdict = judge(engine, STEPS + line.format(0) + line.format(2), silence, **ended)
    assert (verdict.failure, verdict.rank) == (failure, 1)
    assert verdict.cause is not None
    assert (verdict.cause.path, verdict.cause.line) == (SEEN.path, 28)
    assert headline in verdict.title
    words = [item.words for item in verdict.consequences]
    assert "waited for rank 1 in backward at train.py:23" in words
    assert "nccl timeout" in words
    crash = judge(engine, STEPS + OWN, silence, **ended)
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
    text = "rank 1 in read() at data.py:41"
    found = from_journal(
        engine,
        STEPS,
        *(ev.Progress(t=t, attempt=1, step=7) for t in steps[:1]),
        ev.StacksTaken(t=60.0, attempt=1, text=text, odd=(1,), artifact="artifacts/s.txt", groups=(READING,)),
        *(ev.Progress(t=t, attempt=1, step=8) for t in steps[1:]),
        ev.StopIntended(t=350.0, attempt=1, why=ev.StopWhy.REQUEST, by="me", grace_s=5.0),
        launcher_exit=-15,
    )
    assert (found.reason, found.title) == (Reason.USER, title)


def test_a_cause_that_a_rank_wrote_before_it_stopped_still_wins(engine: Engine) -> None:
    verdict = judge(engine, STEPS + OWN + AFTERMATH, SEEN)
    assert (verdict.failure, verdict.rank) == (FailureClass.CUDA_OOM, 1)


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        (None, (FailureClass.HOST_OOM, Reason.KERNEL_KILL)),
        (0, (FailureClass.WORKER_CRASH, Reason.SIGNAL)),
        (2, (FailureClass.HOST_OOM, Reason.CGROUP_KILL)),
    ],
)
def test_a_count_of_kills_for_memory_that_the_journal_holds_settles_a_bare_kill(
    engine: Engine, counted: int | None, expected: tuple[FailureClass, Reason]
) -> None:
    codes = {0: 1, 1: -9}
    ended = ev.AttemptEnded(t=9.0, attempt=1, exit_code=1, rank_exit_codes=codes, memory_kills=counted)
    found = from_journal(engine, STEPS + KILLED, ended)
    assert (found.failure, found.reason) == expected
