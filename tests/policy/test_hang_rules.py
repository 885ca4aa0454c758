"""The rules by which a flagged silence is ended, or is not: each by name, and their order."""

from __future__ import annotations

from dataclasses import replace

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
    seen=2,
    here=2,
    world=2,
    waiting=True,
    late=(late(),),
    alike_s=295.0,
    can_resume=True,
)
# What makes each rule the first that holds, and the silence up to which it does.
FORBIDDEN: dict[str, tuple[dict[str, object], float | None]] = {
    "switched_off": ({"act_s": None}, None),
    "kept_waiting": ({"kept": True}, None),
    "before_first_step": ({"stepped": False}, None),
    "not_looked": ({"seen": 0}, 300.0),
    "no_python_stacks": ({"blind": ("there is no Python stack of rank 1",)}, None),
    "not_all_seen": ({"seen": 1}, None),
    "nobody_waits": ({"waiting": False}, None),
    "late_elsewhere": ({"late": (), "world": 4}, None),
    "late_may_come": ({"late": (late(Kind.SLEEP),)}, None),
    "something_moves": ({"changed": "the stacks change"}, None),
    "one_look": ({"alike_s": 59.0}, 300.0),
    "too_short": ({"silent_s": 299.0}, 300.0),
    "group_timeout": ({"group_timeout_s": 3600.0}, 3600.0),
    "late_computes": ({"late": (late(Kind.RUNS),)}, 1800.0),
    "unwatched": ({"can_resume": False}, None),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_each_rule_forbids_the_end_for_its_own_reason(name: str) -> None:
    changes, until_s = FORBIDDEN[name]
    ruling = judge(replace(HANG, **changes))  # type: ignore[arg-type]  # a test's own dict
    assert isinstance(ruling, Wait)
    assert ruling.rule == name
    assert ruling.why
    assert ruling.until_s == until_s


@pytest.mark.parametrize(
    ("changes", "ground"),
    [
        ({}, "lock_for_ever"),
        ({"late": (late(Kind.PEERS),)}, "other_collective"),
        ({"late": ()}, "all_wait"),
        ({"late": (late(Kind.RUNS),), "silent_s": 1801.0}, "computes_for_ever"),
        ({"late": (late(Kind.UNKNOWN, computes=True),), "settings": ENDS}, "computes_for_ever"),
    ],
)
def test_what_it_is_ended_as(changes: dict[str, object], ground: str) -> None:
    assert judge(replace(HANG, **changes)) == Act(ground)  # type: ignore[arg-type]


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
        found = judge(replace(HANG, **changes, settings=ENDS))  # type: ignore[arg-type]
        assert isinstance(found, Act) == (name in {"late_computes", "unwatched"}), name
