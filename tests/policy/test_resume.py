"""Whether a restart may continue by itself where the script wants a checkpoint's path, and what a person is told else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from supervisor.job.spec import Knobs, KnobScope, Unread
from supervisor.policy import PolicyInput, decide
from supervisor.run import events as ev
from supervisor.run.events import StopWhy
from supervisor.run.records import DecisionKind, FailureClass, SpecChange
from tests.policy.cases import ended, one, stop_by

CRASH = ended(FailureClass.WORKER_CRASH, last=18)
BY_PATH = Knobs(resume_path="--resume_from_checkpoint")


MISSED = "did not resume: began at step 0; checkpoint 200 is kept as a copy: /r/attempts/2/.stoker-kept-200"


@pytest.mark.parametrize("exit_code", [1, 0, None])
@pytest.mark.parametrize(
    "failure", [FailureClass.CHECKPOINT_LOAD, FailureClass.CUDA_OOM, FailureClass.HEALTHY]
)
def test_an_attempt_that_did_not_resume_waits_whatever_became_of_it(
    exit_code: int | None, failure: FailureClass
) -> None:
    now = ended(failure, last=18, exit_code=exit_code, stop=StopWhy.NOT_RESUMED)
    known = PolicyInput(
        attempts=(CRASH, now), missed=MISSED, knobs=BY_PATH, newest_checkpoint="/out/c-200", interactive=True
    )
    held = decide(known)
    assert (held.kind, held.reason) == (DecisionKind.HOLD, MISSED)
    assert not held.asks
    headless = decide(replace(known, interactive=False))
    assert (headless.kind, headless.exit_code, headless.reason) == (DecisionKind.FAIL, 1, MISSED)
    stopped = decide(replace(known, attempts=(CRASH, structs.replace(now, stop=stop_by(StopWhy.REQUEST)))))
    assert stopped.kind is DecisionKind.STOP


DIFFERS = "planned micro-batch 4 × accumulation 2, measured micro-batch 8: --b does not make it"


@pytest.mark.parametrize("failure", [FailureClass.USAGE_ERROR, FailureClass.CUDA_OOM])
def test_a_plan_with_a_refuted_answer_is_made_again_with_the_next_one_or_asked(failure: FailureClass) -> None:
    differs = ev.PlanDiffers(
        t=0.0,
        attempt=1,
        planned="micro-batch 4 × accumulation 2",
        measured="micro-batch 8",
        why="--b does not make it",
        wrong=Unread.MICRO,
    )
    now = structs.replace(ended(failure), differs=differs)
    settled = Knobs(batch="--m", batch_scope=KnobScope.PER_RANK, accumulation="--a")
    again = one(now, settled, missed=DIFFERS)
    assert again.kind is DecisionKind.RESTART
    assert again.change == SpecChange(from_scratch=True), "the batch is the planned one already"
    assert again.reason == f"{DIFFERS}; the same plan with --m and --a"
    asked = one(now, Knobs(), missed=DIFFERS, question=True, interactive=True)
    assert (asked.kind, asked.asks, asked.reason) == (DecisionKind.HOLD, True, DIFFERS)
    assert one(now, Knobs(), missed=DIFFERS, question=True).kind is DecisionKind.FAIL
    assert not one(now, Knobs(), missed=DIFFERS, interactive=True).asks, "no answer is left"
    trained = structs.replace(now, first_step=1, last_step=40)
    assert one(trained, settled, missed=DIFFERS, interactive=True).kind is DecisionKind.HOLD, (
        "it may overwrite its checkpoint"
    )
    by_path = replace(settled, resume_path="--load")
    resumed = one(trained, by_path, missed=DIFFERS, newest_checkpoint="/out/4.pt")
    assert (resumed.kind, resumed.change) == (DecisionKind.RESTART, SpecChange())


@pytest.mark.parametrize(
    ("knobs", "asks"),
    [
        (Knobs(), True),
        (BY_PATH, False),
        (Knobs(cannot_resume=True), False),
    ],
    ids=["nothing is known", "a flag without a checkpoint", "it cannot"],
)
def test_how_the_script_resumes_is_asked_only_where_no_way_is_known(knobs: Knobs, asks: bool) -> None:
    assert decide(PolicyInput(attempts=(CRASH,), knobs=knobs)).asks is asks
    early = ended(FailureClass.WORKER_CRASH, last=None)
    assert not decide(PolicyInput(attempts=(structs.replace(early, first_step=None),), knobs=knobs)).asks
