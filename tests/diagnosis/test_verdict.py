"""Verdicts: any text has one; titles; the table of rules, and evidence beside the text; a user's own signatures."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.diagnosis.attempt_facts import Root
from supervisor.diagnosis.evidence import (
    JobEvidence,
    LogSource,
    MachineRecords,
    SeenHang,
    SeenRecorder,
)
from supervisor.diagnosis.root_rules import RULES
from supervisor.diagnosis.verdict import Examination, diagnose, examine, title_of
from supervisor.job.spec import OwnSignature
from supervisor.run.events import RanksAt
from supervisor.run.records import FailureClass, Reason, Verdict
from supervisor.sources.signature_files import Engine, load_engine
from supervisor.text.prefixes import Origin

STEPS = "".join(f"step {number} loss {3 - number / 100:.3f}\n" for number in range(1, 21))
GLOO = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4711"


def logs(text: str, origin: Origin | None = None) -> tuple[LogSource, ...]:
    return (LogSource("a.log", (text.encode(),), origin or Origin()),)


def judge(engine: Engine, job: JobEvidence) -> Verdict:
    return diagnose(job, engine.signatures, engine.matcher)


def on_text(engine: Engine, text: str) -> Verdict:
    return judge(engine, JobEvidence(logs=logs(text)))


@given(
    st.lists(
        st.one_of(
            st.text(max_size=60),
            st.sampled_from(
                [
                    GLOO,
                    "KeyError: 'x'",
                    "[rank1]: MemoryError",
                    "failed (exitcode: -9) local_rank: 1 (pid: 12) of binary: x",
                ]
            ),
        ),
        max_size=20,
    )
)
@settings(max_examples=60, deadline=None)
def test_any_text_gets_a_verdict(engine: Engine, lines: list[str]) -> None:
    verdict = on_text(engine, "\n".join(lines))
    assert 0 <= verdict.confidence <= 1
    assert verdict.rank is None or verdict.rank >= 0


def test_what_a_person_stopped_did_not_fail_and_needs_no_queue(engine: Engine) -> None:
    stopped = judge(engine, JobEvidence(logs=logs(STEPS), launcher_exit=1, stop_reason="request"))
    assert (stopped.failure, stopped.reason) == (FailureClass.TERMINATED, Reason.USER)
    assert (stopped.advice, stopped.fingerprint) == ((), "")
    machine = MachineRecords(slurm_state="TIMEOUT")
    limit = judge(engine, JobEvidence(logs=logs(STEPS), launcher_exit=1, machine=machine))
    assert (limit.failure, limit.reason) == (FailureClass.TERMINATED, Reason.TIME_LIMIT)
    assert "Requeue" in limit.advice[0]
    assert limit.fingerprint


@pytest.mark.parametrize(
    ("failure", "text", "title"),
    [
        (FailureClass.CODE_ERROR, "ValueError: label 1001 out of range", "ValueError on rank 1: label 1001 out of range"),
        (FailureClass.CODE_ERROR, "[rank1]: torch._C._LinAlgError: no svd", "_LinAlgError on rank 1: no svd"),
        (FailureClass.CODE_ERROR, "AssertionError", "AssertionError on rank 1"),
        (FailureClass.CODE_ERROR, "CommError      Traceback (most recent call last)", "The program raised an exception on rank 1"),
        (FailureClass.CODE_ERROR, "the simulator said no", "The program raised an exception on rank 1"),
        (FailureClass.CODE_ERROR, f"KeyError: {'k' * 400}", f"KeyError on rank 1: {'k' * 159}…"),
        (FailureClass.CODE_ERROR, "KeyError: 'HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyzABCDEFGH'", "KeyError on rank 1: 'HF_TOKEN=<redacted>'"),
        (FailureClass.IMPORT_ERROR, "ModuleNotFoundError: No module named 'flash_attn'", "ModuleNotFoundError on rank 1: No module named 'flash_attn'"),
        (FailureClass.MISSING_FILE, "FileNotFoundError: [Errno 2] No such file or directory: '/d'", "FileNotFoundError on rank 1: [Errno 2] No such file or directory: '/d'"),
        (FailureClass.USAGE_ERROR, "train.py: error: unrecognized arguments: --foo", "Wrong arguments or configuration on rank 1: unrecognized arguments: --foo"),
        (FailureClass.USAGE_ERROR, "usage: train.py [-h]", "Wrong arguments or configuration on rank 1"),
        (FailureClass.CUDA_OOM, "torch.OutOfMemoryError: CUDA out of memory. Tried", "GPU memory ran out on rank 1"),
    ],
)  # fmt: skip
def test_an_ordinary_error_is_named_by_its_own_words(failure: FailureClass, text: str, title: str) -> None:
    assert title_of(Root(failure, rank=1, text=text, confidence=0.9)) == title


@pytest.mark.parametrize(
    ("number", "title"),
    [
        (4, "Rank 1 crashed (SIGILL: it used an instruction that this CPU does not support)"),
        (6, "Rank 1 crashed (SIGABRT: its native code called abort())"),
        (
            7,
            "Rank 1 crashed (SIGBUS: memory behind a mapping was missing, for example because /dev/shm is full)",
        ),
        (8, "Rank 1 crashed (SIGFPE: an arithmetic error, as a division of whole numbers by zero)"),
        (9, "Rank 1 crashed (SIGKILL: somebody or the kernel killed it)"),
        (11, "Rank 1 crashed (SIGSEGV: invalid memory access)"),
        (12, "Rank 1 crashed"),
    ],
)
def test_a_signal_is_told_with_its_meaning(number: int, title: str) -> None:
    text = f"signal {number}"
    assert title_of(Root(FailureClass.WORKER_CRASH, Reason.SIGNAL, rank=1, text=text)) == title


@pytest.mark.parametrize(
    ("contents", "title"),
    [
        (("",), "The log is empty: there is nothing to judge"),
        (("", ""), "All logs are empty: there is nothing to judge"),
        (("\x00\x01\x02\n",), "There is no text in it: a binary file, not a log"),
    ],
)
def test_a_log_without_text_is_told_as_such(engine: Engine, contents: tuple[str, ...], title: str) -> None:
    found = judge(engine, JobEvidence(logs=tuple(log for text in contents for log in logs(text))))
    assert (found.failure, found.title) == (FailureClass.UNKNOWN, title)
    assert on_text(engine, "some words that tell of nothing\n").title != title


PEER_LOST = "[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4711\n"
TIMEOUT = "[rank{0}]:[E101 00:10:00.1 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"


def raised(error: str) -> str:
    return f'Traceback (most recent call last):\n  File "/w/train.py", line 3, in main\n    go()\n{error}\n'


def exited(code: int, rank: int = 1) -> str:
    return f"E0101 00:00:02.000000 9 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: {code}) local_rank: {rank} (pid: 12) of binary: /usr/bin/python\n"


def one(text: str) -> JobEvidence:
    return JobEvidence(logs=(LogSource("log", (text.encode(),)),))


HUNG = SeenHang(
    (1,),
    "rank 1 in read_it()",
    None,
    "stacks.txt",
    3,
    (RanksAt(ranks=(1,), doing="own", what="in read_it()"),),
)

BY_OTHER_EVIDENCE: dict[str, tuple[JobEvidence, FailureClass]] = {
    "stacks_of_hang": (one(STEPS)._replace(hang=HUNG, ended_for="hang"), FailureClass.HANG),
    "stacks_of_timeout": (
        one(STEPS + TIMEOUT.format(0) + TIMEOUT.format(2))._replace(hang=HUNG._replace(ended_for_it=False)),
        FailureClass.NCCL_TIMEOUT,
    ),
    "flight_recorder": (
        one(STEPS)._replace(
            recorder=SeenRecorder((1,), "all_reduce 7 of DATA: rank 1 did not come", "_dump_1")
        ),
        FailureClass.HANG,
    ),
}


def examined(job: JobEvidence, engine: Engine) -> Examination:
    return examine(job, engine.signatures, engine.matcher)


def test_the_table_is_in_order_and_each_rule_says_why() -> None:
    assert [rule.stage for rule in RULES] == sorted(rule.stage for rule in RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.why.endswith(".") and rule.why.count(". ") == 0 for rule in RULES)


@pytest.mark.parametrize("name", BY_OTHER_EVIDENCE)
def test_other_evidence_corrects_the_logs(name: str, engine: Engine) -> None:
    job, failure = BY_OTHER_EVIDENCE[name]
    found = examined(job, engine)
    assert name in [item.name for item in found.decision.corrections]
    assert found.verdict.failure is failure


def test_the_rules_that_yielded_are_on_record(engine: Engine) -> None:
    found = examined(one(STEPS + raised("KeyError: 'x'") + PEER_LOST + exited(-11)), engine).decision
    assert found.rule.name == "earliest_cause"
    assert [rule.name for rule in found.yielded()] == [
        "fatal_signal",
        "silent_exit",
        "complaint",
        "bad_exit",
    ]


DIVERGED = "simulator diverged at t=41 (energy 9e9)\n"
NAMED = OwnSignature("sim-diverged", r"simulator diverged at t=\d+", "code_error", "The simulator diverged")


def judged(text: str, *own: OwnSignature, cache: Path | None = None) -> Verdict:
    engine = load_engine(str(cache) if cache is not None else None, own)
    job = JobEvidence(logs=(LogSource("log", (text.encode(),)),))
    return diagnose(job, engine.signatures, engine.matcher)


def test_a_name_of_their_own_is_the_headline(tmp_path: Path) -> None:
    for _ in range(2):  # compiled, and then out of the cache
        found = judged(STEPS + DIVERGED, NAMED, cache=tmp_path)
        assert (found.failure, found.signature) == (FailureClass.CODE_ERROR, "sim-diverged")
        assert found.title == "The simulator diverged"
        assert found.cause is not None
        assert found.cause.line == 21
        assert found.advice == ()
    assert judged(STEPS + DIVERGED, cache=tmp_path).signature == "", "the cache of others has it not"


def test_in_a_line_it_counts_for_more_than_a_signature_of_stoker() -> None:
    line = "RuntimeError: CUDA out of memory: arena of plugin physx is exhausted\n"
    assert judged(STEPS + line).failure is FailureClass.CUDA_OOM
    own = OwnSignature("physx-arena", "plugin physx is exhausted", "code_error", "PhysX ran out of its arena")
    assert judged(STEPS + line, own).signature == "physx-arena"


@pytest.mark.parametrize(
    ("start", "text", "counts"),
    [
        ("after_first_step", STEPS + DIVERGED, True),
        ("after_first_step", DIVERGED, False),
        ("before_first_step", DIVERGED, True),
        ("before_first_step", STEPS + DIVERGED, False),
    ],
)
def test_it_counts_when_it_is_expected(start: str, text: str, counts: bool) -> None:
    own = OwnSignature(NAMED.id, NAMED.regex, NAMED.failure, NAMED.title, start=start)
    assert bool(judged(text, own).signature) is counts


def test_as_advice_it_masks_a_line() -> None:
    line = "RuntimeError: CUDA out of memory (expected by the probe)\n"
    own = OwnSignature("probe", "expected by the probe", "cuda_oom", role="advice")
    assert judged(STEPS + line, own).failure is FailureClass.HEALTHY


def test_a_consequence_yields_to_a_cause() -> None:
    own = OwnSignature(NAMED.id, NAMED.regex, "nccl_error", role="consequence")
    raised = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in f\n    go()\nKeyError: 1\n'
    assert judged(STEPS + raised + DIVERGED, own).failure is FailureClass.CODE_ERROR
    assert judged(STEPS + DIVERGED, own).failure is FailureClass.NCCL_ERROR
