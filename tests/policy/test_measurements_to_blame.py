"""When stoker's own measurements may have ended an attempt: one restart without them, outside of all budgets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from supervisor.job.launch.env import NOT_MEASURED
from supervisor.job.spec import ClassOverride, RetrySettings, TrialSettings
from supervisor.policy import PolicyInput, budget_text, decide
from supervisor.run.events import StopWhy
from supervisor.run.records import Decision, DecisionKind, FailureClass, Reason
from supervisor.run.state import AttemptState
from tests.policy.cases import FOREIGN, F, ended, one, restarted

CAUSELESS: list[tuple[FailureClass, Reason | None]] = [
    (F.UNKNOWN, None),
    (F.WORKER_CRASH, Reason.EXIT_CODE),
    (F.WORKER_CRASH, Reason.SIGNAL),
    (F.WORKER_CRASH, Reason.SILENT),
]


def is_without_them(decision: Decision) -> bool:
    return (
        decision.kind is DecisionKind.RESTART
        and decision.change is not None
        and NOT_MEASURED in decision.change.env
    )


def start_failed(
    failure: FailureClass,
    reason: Reason | None = None,
    *,
    stop: StopWhy | None = None,
    exit_code: int | None = 1,
    lived_s: float = 9.0,
) -> AttemptState:
    """An attempt of a script that nothing is known of, which ended within seconds and without a step."""
    return ended(failure, reason, stop=stop, exit_code=exit_code, lived_s=lived_s)


@pytest.mark.parametrize("stop", [None, StopWhy.RANK_DIED])
@pytest.mark.parametrize(("failure", "reason"), CAUSELESS)
def test_no_known_cause_before_the_first_step_is_restarted_without_them_once(
    failure: FailureClass, reason: Reason | None, stop: StopWhy | None
) -> None:
    now = start_failed(failure, reason, stop=stop)
    first = one(now, FOREIGN, measured=True, steps_seen=False)
    assert is_without_them(first)
    assert (
        "no cause is known and no step was made: restart once without stoker's measurements" in first.reason
    )
    history = PolicyInput(attempts=(now,), knobs=FOREIGN, measured=True, steps_seen=False)
    assert budget_text(history, first) == "budget: none is spent, for once a run is outside of them"

    again = decide(PolicyInput(attempts=(restarted(now, first), now), knobs=FOREIGN, steps_seen=False))
    ordinary = one(now, FOREIGN, steps_seen=False)
    assert again == replace(
        ordinary, reason=f"{ordinary.reason}; it ended alike without stoker's measurements"
    )
    otherwise = decide(
        PolicyInput(
            attempts=(restarted(now, first), start_failed(F.IMPORT_ERROR)), knobs=FOREIGN, steps_seen=False
        )
    )
    assert otherwise == one(start_failed(F.IMPORT_ERROR), FOREIGN, steps_seen=False)


def test_what_they_raised_themselves_is_restarted_without_them_also_after_steps() -> None:
    raised = ended(F.CODE_ERROR, Reason.INSTRUMENT, last=9, saved=(8,))
    decision = one(raised, measured=True)
    assert is_without_them(decision)
    assert "raised in stoker's own measurements" in decision.reason
    unsaved = structs.replace(raised, checkpoint_steps=())
    assert one(unsaved, FOREIGN, measured=True, steps_seen=False).kind is DecisionKind.FAIL, (
        "its steps would be lost"
    )
    assert is_without_them(
        one(start_failed(F.CODE_ERROR, Reason.INSTRUMENT), FOREIGN, measured=True, steps_seen=False)
    )


@pytest.mark.parametrize(
    "now",
    [
        start_failed(F.CUDA_OOM),
        start_failed(F.IMPORT_ERROR),
        start_failed(F.USAGE_ERROR),
        start_failed(F.CODE_ERROR),
        start_failed(F.TERMINATED, Reason.OUTSIDE),
        start_failed(F.TERMINATED, Reason.USER, stop=StopWhy.REQUEST),
        start_failed(F.UNKNOWN, stop=StopWhy.SIGNAL),
        start_failed(F.HANG, stop=StopWhy.HANG),
        start_failed(F.UNKNOWN, stop=StopWhy.NOT_RESUMED),
        start_failed(F.HOST_OOM, Reason.KERNEL_KILL),
        ended(F.WORKER_CRASH, Reason.EXIT_CODE, last=3),
        start_failed(F.UNKNOWN, exit_code=0),
        start_failed(F.UNKNOWN, lived_s=3600.0),
    ],
)
def test_a_known_cause_a_stop_and_an_attempt_that_trained_are_answered_as_ever(now: AttemptState) -> None:
    decision = one(now, FOREIGN, measured=True, steps_seen=False)
    assert not is_without_them(decision)
    ordinary = one(now, FOREIGN, steps_seen=False)
    assert (decision.kind, decision.change, decision.exit_code) == (
        ordinary.kind,
        ordinary.change,
        ordinary.exit_code,
    )


def test_a_kill_comes_from_somebody_else() -> None:
    now = start_failed(F.WORKER_CRASH, Reason.SIGNAL)
    assert now.verdict is not None
    killed = structs.replace(now, verdict=replace(now.verdict, title="Rank 1 was killed (SIGKILL)"))
    assert not is_without_them(one(killed, FOREIGN, measured=True, steps_seen=False))
    known = structs.replace(now, verdict=replace(now.verdict, signature="sim-diverged"))
    assert not is_without_them(one(known, FOREIGN, measured=True, steps_seen=False)), (
        "the user's own signature names the cause"
    )


def test_what_a_person_has_settled_comes_first() -> None:
    now = start_failed(F.UNKNOWN)
    assert not is_without_them(one(now, FOREIGN, steps_seen=False)), "nothing was measured"
    for retry in (RetrySettings(enabled=False), RetrySettings(max_retries=0)):
        off = one(now, FOREIGN, measured=True, retry=retry)
        assert off.kind is DecisionKind.FAIL
        assert "--no-instrument shows whether stoker's measurements are the cause" in off.reason
    trial = one(now, FOREIGN, measured=True, trial=TrialSettings())
    assert trial.kind is DecisionKind.FAIL
    for answer in ("stop", "hold"):
        own = RetrySettings(overrides=(ClassOverride("unknown", answer),))
        assert not is_without_them(one(now, FOREIGN, measured=True, retry=own))


def test_no_budget_counts_it_and_it_counts_no_budget() -> None:
    now = ended(F.WORKER_CRASH, Reason.SIGNAL, lived_s=9.0)
    first = one(now, measured=True, retry=RetrySettings(max_retries=1))
    assert is_without_them(first)
    past = restarted(now, first)
    history = PolicyInput(attempts=(past, now), retry=RetrySettings(max_retries=1), measured=True)
    second = decide(history)
    assert second.kind is DecisionKind.RESTART
    assert not is_without_them(second)
    assert budget_text(history, second) == "budget, without progress: 1 of 1 (--max-retries)"
    third = decide(replace(history, attempts=(past, restarted(now, second), now)))
    assert third.kind is DecisionKind.GIVE_UP, "never a second restart without them"
    assert third.reason == "worker_crash: once restarted without progress (--max-retries 1)"
