"""The table of rules: its order, and the rules whose evidence is no text (of the others: data/verdicts.jsonl)."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.evidence import (
    JobEvidence,
    LogSource,
    SeenHang,
    SeenRecorder,
)
from supervisor.diagnosis.root_rules import RULES
from supervisor.diagnosis.verdict import Examination, examine
from supervisor.run.events import RanksAt
from supervisor.run.records import FailureClass
from supervisor.sources.signature_files import Engine

STEPS = "".join(f"step {number} loss {3 - number / 100:.3f}\n" for number in range(1, 21))
GLOO = "[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4711\n"
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
    found = examined(one(STEPS + raised("KeyError: 'x'") + GLOO + exited(-11)), engine).decision
    assert found.rule.name == "earliest_cause"
    assert [rule.name for rule in found.yielded()] == [
        "fatal_signal",
        "silent_exit",
        "complaint",
        "bad_exit",
    ]
