"""Out of memory is a plan: what is made smaller, in which order, and when a person is asked."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from supervisor.job.batch import BatchSpec
from supervisor.job.spec import Knobs, KnobScope, RetrySettings
from supervisor.policy import PolicyInput, budget_text, decide
from supervisor.run.records import Action, DecisionKind, SpecChange
from supervisor.run.state import AttemptState
from tests.policy.cases import (
    NO_RESUME,
    TRAINER,
    F,
    batch_after,
    ended,
    one,
    restarted,
    verdict,
)


def test_out_of_memory_before_the_first_step_is_a_plan_not_a_failed_start() -> None:
    attempts: tuple[AttemptState, ...] = ()
    batch = BatchSpec(64, 1, 2)
    for expected in (32, 16, 8, 4, 2, 1):
        now = ended(F.CUDA_OOM, batch=batch)
        known = PolicyInput(
            attempts=(*attempts, now),
            retry=RetrySettings(max_retries=1),
            knobs=NO_RESUME,
            steps_seen=False,
        )
        decision = decide(known)
        assert decision.kind is DecisionKind.RESTART
        batch = batch_after(decision)
        assert batch.micro_batch_per_rank == expected
        assert budget_text(known, decision) == (
            f"budget, without progress: {len(attempts) + 1} of 12 for cuda_oom; "
            "not counted by --max-retries, for the job changes"
        )
        assert batch.global_batch == 128
        attempts = (*attempts, restarted(now, decision))
    last = decide(
        PolicyInput(attempts=(*attempts, ended(F.CUDA_OOM, batch=batch)), knobs=NO_RESUME, steps_seen=False)
    )
    assert last.kind is DecisionKind.FAIL
    assert last.exit_code == 1
    assert "checkpointing" in last.reason


def test_fragmentation_is_tried_first_and_once() -> None:
    fragmented = replace(verdict(F.CUDA_OOM), action=Action.SET_ALLOCATOR)
    now = structs.replace(ended(F.CUDA_OOM, last=4, batch=BatchSpec(8, 1, 1)), verdict=fragmented)
    first = one(now)
    both = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    assert first.change == SpecChange(env=tuple((name, "expandable_segments:True") for name in both))
    assert first.reason == "cuda_oom: memory is fragmented: expandable segments before a smaller batch"
    second = decide(PolicyInput(attempts=(restarted(now, first), now), knobs=TRAINER))
    assert second.change is not None
    assert second.change.batch is not None


def test_what_could_not_be_read_is_asked_and_nothing_is_offered_before() -> None:
    unread = Knobs(
        resume="--resume",
        refusal="which is the accumulation is not clear: --a or --b",
        help="--accumulation-knob --a, or --accumulation-knob --b",
    )
    now = ended(F.CUDA_OOM, last=4, batch=BatchSpec(8, 1, 2))
    for interactive, kind in ((True, DecisionKind.HOLD), (False, DecisionKind.FAIL)):
        decision = one(now, unread, interactive=interactive, question=True)
        assert (decision.kind, decision.asks) == (kind, True)
        assert decision.change is None or decision.change.batch is None
        assert decision.reason.endswith("--a or --b (--accumulation-knob --a, or --accumulation-knob --b)")
    allowed = RetrySettings(allow_smaller_global=True)
    assert one(now, unread, question=True, retry=allowed).kind is DecisionKind.FAIL, "by which numbers?"
    assert not one(now, unread).asks, "no answer would help"
    assert not one(ended(F.CODE_ERROR, last=4), unread, question=True).asks
    settled = replace(unread, refusal="", batch="--b", batch_scope=KnobScope.PER_RANK, accumulation="--a")
    assert not one(now, settled, question=True).asks


def test_another_way_without_touching_the_batch_comes_before_the_question() -> None:
    unread = Knobs(batch="--batch_size", refusal="what it counts is not known")
    now = ended(F.CUDA_OOM)
    assert now.verdict is not None
    fragmented = structs.replace(now, verdict=replace(now.verdict, action=Action.SET_ALLOCATOR))
    decision = one(fragmented, unread, question=True)
    assert decision.kind is DecisionKind.RESTART
    assert decision.change is not None
    assert decision.change.env
    assert not decision.asks
    held = one(fragmented, unread, question=True, interactive=True, retry=RetrySettings(enabled=False))
    assert held.kind is DecisionKind.HOLD
    assert held.change is not None
    assert held.change.env, "on offer, before anything is asked"
    assert not held.asks
    again = decide(
        PolicyInput(attempts=(restarted(fragmented, decision), fragmented), knobs=unread, question=True)
    )
    assert again.asks, "it was tried"
