"""The rules by which a flagged silence is ended, or is not: each by name, and their order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.diagnosis.hang.stacks import BY_KIND, Kind
from supervisor.job.spec import HangSettings
from supervisor.policy.health.ending import Act, LateRank, Silence, Wait, judge

AT = "at train.py:30"
ENDS = HangSettings(end_hangs=True)


def late(kind: Kind = Kind.LOCK, rank: int = 1, *, computes: bool = False) -> LateRank:
    return LateRank(rank, kind, f"in f() {AT}", computes=computes or kind is Kind.RUNS)


# A real hang that nothing speaks against: rank 0 waits in a collective for rank 1, which waits for a lock.
HANG = Silence(
    HangSettings(),
    silent_s=310.0,
    act_s=300.0,
    asked=False,
    group_timeout_s=None,
    stepped=True,
    kept=False,
    changed="",
    watched=False,
    seen=2,
    here=2,
    world=2,
    waiting=True,
    late=(late(),),
    alike_s=295.0,
    can_resume=True,
)
NOT_YET = "no stacks are there yet"
UNWATCHED = (
    "nobody watches, and how the script resumes is not known: --end-hangs would end it, "
    "and --resume-knob FLAG let it continue"
)
# What makes each rule the first that holds, and what it says.
RULES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("switched_off", {"act_s": None}, "act_s is 0: nothing is ended", {"reported": False}),
    ("kept_waiting", {"kept": True}, "a person keeps waiting", {"reported": False}),
    ("before_first_step", {"stepped": False}, "no step of this attempt is done yet", {}),
    ("not_looked", {"seen": 0}, NOT_YET, {"until_s": 300.0, "reported": False, "passing": True}),
    ("no_python_stacks", {"blind": ("there is no Python stack of rank 1",)}, "there is no Python stack of rank 1", {}),
    ("not_all_seen", {"seen": 1}, "stacks are there of 1 ranks of 2 on this node", {}),
    ("nobody_waits", {"waiting": False}, "no rank waits for another in a collective", {}),
    ("late_elsewhere", {"late": (), "world": 4}, "all ranks here wait: the one that is late is on another node", {}),
    ("late_may_come", {"late": (late(Kind.SLEEP),)}, f"rank 1 sleeps in f() {AT}", {}),
    ("something_moves", {"changed": "the stacks change"}, "the stacks change", {}),
    ("one_look", {"alike_s": 59.0}, "stacks that lie 60 s apart must be alike", {"until_s": 300.0, "reported": False, "passing": True}),
    ("too_short", {"silent_s": 299.0}, "it has lasted 299 s", {"until_s": 300.0, "reported": False}),
    ("group_timeout", {"group_timeout_s": 3600.0}, "the job's process groups wait 3600 s", {"until_s": 3600.0}),
    ("late_computes", {"late": (late(Kind.RUNS), late(Kind.RUNS, 2))}, f"rank 1 computes in f() {AT}, and 1 other rank", {"until_s": 1800.0}),
    ("unwatched", {"can_resume": False}, UNWATCHED, {}),
]  # fmt: skip
FORBIDDEN = {name: (changes, Wait(name, why, **more)) for name, changes, why, more in RULES}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_each_rule_forbids_the_end_for_its_own_reason(name: str) -> None:
    changes, wait = FORBIDDEN[name]
    assert judge(replace(HANG, **changes)) == wait


BOUNDS: list[tuple[dict[str, Any], str]] = [
    ({"silent_s": 300.0}, ""),
    ({"alike_s": 60.0}, ""),
    ({"silent_s": 3600.0, "group_timeout_s": 3600.0}, ""),
    ({"silent_s": 1800.0, "late": (late(Kind.RUNS),)}, ""),
    ({"silent_s": 2000.0, "act_s": 2000.0, "late": (late(Kind.RUNS),)}, ""),
    ({"here": None}, "not_all_seen"),
    ({"late": (), "world": None}, "late_elsewhere"),
    ({"can_resume": False, "watched": True}, ""),
]
ASKED: list[tuple[dict[str, Any], str]] = [
    ({"silent_s": 299.0}, "too_short"),
    ({"kept": True}, "kept_waiting"),
    ({"seen": 0, "silent_s": 330.0}, "not_looked"),
    ({"seen": 0, "silent_s": 330.5}, ""),
    ({"waiting": False, "stepped": False, "can_resume": False}, ""),
]


@pytest.mark.parametrize(
    ("changes", "rule"), [*BOUNDS, *(({**changes, "asked": True}, rule) for changes, rule in ASKED)]
)
def test_a_hang_is_ended_from_its_limit_on(changes: dict[str, Any], rule: str) -> None:
    found = judge(replace(HANG, **changes))
    assert (found.rule if isinstance(found, Wait) else "") == rule


def test_a_late_rank_is_told_in_words() -> None:
    assert late(Kind.LOCK).words == f"rank 1 {BY_KIND[Kind.LOCK].words} in f() {AT}"
    assert late(Kind.LOCK, computes=True).words == f"rank 1 computes in f() {AT}"
    assert late(Kind.SLEEP, computes=True).words == f"rank 1 sleeps in f() {AT}"
    assert LateRank(2, Kind.UNKNOWN, f"waiting for data {AT}", computes=False).words == (
        f"rank 2 is waiting for data {AT}"
    )
    assert isinstance(judge(replace(HANG, late=(late(Kind.UNKNOWN),))), Wait)


@pytest.mark.parametrize(
    ("changes", "ground"),
    [
        ({}, "lock_for_ever"),
        ({"late": (late(Kind.PEERS),)}, "other_collective"),
        ({"late": ()}, "all_wait"),
        ({"asked": True}, "lock_for_ever"),
        ({"asked": True, "late": (late(Kind.SLEEP),)}, "no_progress"),
        ({"asked": True, "late": (), "waiting": False}, "no_progress"),
        ({"asked": True, "late": (late(Kind.PEERS),)}, "other_collective"),
        ({"late": (late(Kind.RUNS),), "silent_s": 1801.0}, "computes_for_ever"),
        ({"late": (late(Kind.UNKNOWN, computes=True),), "settings": ENDS}, "computes_for_ever"),
    ],
)
def test_what_it_is_ended_as(changes: dict[str, Any], ground: str) -> None:
    assert judge(replace(HANG, **changes)) == Act(ground)


MAY_COME = [
    Kind.SLEEP,
    Kind.NETWORK,
    Kind.PROCESS,
    Kind.FILE,
    Kind.DEVICE,
    Kind.TIMED,
    Kind.THREAD,
    Kind.UNKNOWN,
]


@pytest.mark.parametrize("kind", MAY_COME)
@pytest.mark.parametrize("end_hangs", [False, True])
def test_a_rank_of_which_something_may_come_is_only_flagged_for_ever(kind: Kind, end_hangs: bool) -> None:
    found = judge(
        replace(
            HANG,
            late=(late(), late(kind, 3)),
            silent_s=1e7,
            settings=replace(ENDS, end_hangs=end_hangs),
            watched=True,
        )
    )
    assert isinstance(found, Wait)
    assert (found.rule, found.until_s) == ("late_may_come", None)
    assert found.why == f"rank 3 {BY_KIND[kind].words} in f() {AT}"


def test_end_hangs_lifts_two_rules_and_no_other() -> None:
    for name, (changes, _) in FORBIDDEN.items():
        found = judge(replace(HANG, **changes, settings=ENDS))
        assert isinstance(found, Act) == (name in {"late_computes", "unwatched"}), name
