"""Whatever happens in whatever order: no forbidden restart, no loop without an end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from supervisor.job.batch import BatchSpec
from supervisor.job.spec import Knobs, LoaderKnobs, RetrySettings
from supervisor.policy import PolicyInput, decide
from supervisor.policy.history import has_trained
from supervisor.run.records import DecisionKind, FailureClass, Reason
from supervisor.run.state import AttemptState
from tests.policy.cases import (
    FOREIGN,
    NEVER,
    NO_RESUME,
    TRAINER,
    ended,
    restarted,
)

reasons = st.one_of(st.none(), st.sampled_from(Reason))


attempts_ = st.builds(
    ended,
    st.sampled_from(FailureClass),
    reasons,
    exit_code=st.sampled_from([1, 1, 1, 2, -9]),
    last=st.one_of(st.none(), st.integers(1, 20)),
    lived_s=st.floats(0, 1e5),
    fingerprint=st.sampled_from(["", "a", "b"]),
)


inputs = st.builds(
    PolicyInput,
    attempts=st.just(()),
    retry=st.builds(
        RetrySettings,
        enabled=st.booleans(),
        max_retries=st.integers(0, 5),
        min_micro_batch=st.integers(1, 4),
        restart_from_scratch=st.booleans(),
    ),
    knobs=st.sampled_from([TRAINER, NO_RESUME, FOREIGN, Knobs(resume_path="--ckpt_path")]),
    newest_checkpoint=st.sampled_from([None, "out/checkpoint-5"]),
    interactive=st.booleans(),
    total_steps=st.one_of(st.none(), st.just(100)),
    port_named=st.booleans(),
    loader=st.sampled_from([LoaderKnobs(), LoaderKnobs(("--num_workers", 4))]),
    measured=st.booleans(),
    steps_seen=st.booleans(),
    unsound=st.sampled_from(["", "the script picks its newest checkpoint, which cannot be loaded"]),
)


@settings(max_examples=80, deadline=None)
@given(inputs, st.lists(attempts_, min_size=1, max_size=8))
def test_whatever_happens_the_rules_hold(base: PolicyInput, ends: list[AttemptState]) -> None:
    batch = BatchSpec(16, 2, 2)
    done: tuple[AttemptState, ...] = ()
    for end in ends:
        now = structs.replace(end, batch=batch)
        decision = decide(replace(base, attempts=(*done, now)))
        failure = now.verdict.failure if now.verdict else None
        assert decision.reason
        assert "\n" not in decision.reason
        if not base.interactive:
            assert decision.kind is not DecisionKind.HOLD
        if decision.kind is not DecisionKind.RESTART:
            assert decision.exit_code is not None
            return
        assert base.retry.enabled
        ours = now.verdict is not None and now.verdict.reason is Reason.INSTRUMENT
        assert failure not in NEVER or (failure is FailureClass.CODE_ERROR and ours)
        assert decision.change is not None
        if not base.resume_known and not base.retry.restart_from_scratch:
            assert not any(has_trained(a) for a in (*done, now)), "more than the first step would be lost"
        if decision.change.batch is not None:
            assert decision.change.batch.after.global_batch == batch.global_batch
            assert decision.change.batch.after.micro_batch_per_rank >= base.retry.min_micro_batch
            batch = decision.change.batch.after
        done = (*done, restarted(now, decision))


@settings(max_examples=60, deadline=None)
@given(inputs, st.lists(attempts_, min_size=1, max_size=4))
def test_without_progress_every_run_comes_to_an_end(base: PolicyInput, ends: list[AttemptState]) -> None:
    """The same few failures over and over, none of them a step further: the attempts are bounded."""
    batch = BatchSpec(16, 2, 2)
    done: tuple[AttemptState, ...] = ()
    for number in range(120):
        now = structs.replace(ends[number % len(ends)], batch=batch, last_step=None, first_step=None)
        decision = decide(replace(base, attempts=(*done, now)))
        if decision.kind is not DecisionKind.RESTART:
            return
        if decision.change is not None and decision.change.batch is not None:
            batch = decision.change.batch.after
        done = (*done, restarted(now, decision))
    pytest.fail("restarted 120 times without progress")
