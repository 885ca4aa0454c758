"""The job of the next attempt: every change of every restart, and what a person typed over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from supervisor.job.batch import BatchChange, BatchSpec, BatchUnit, with_micro_batch
from supervisor.job.errors import JobError
from supervisor.job.launch.env import NOT_MEASURED
from supervisor.job.spec import EntryKind, JobSpec, Knobs, KnobScope
from supervisor.run.next_job import NextJob, got_further, next_job, undecided, unmeasured_trial
from supervisor.run.records import Cause, Decision, DecisionKind, FailureClass, SpecChange
from supervisor.run.state import AttemptState, RunState
from tests.policy.cases import verdict


def test_a_title_says_the_cause_only_if_the_causes_line_has_it() -> None:
    told = verdict(FailureClass.CODE_ERROR)
    said = {
        text: replace(told, title="KeyError: 'a'", cause=Cause("t.log", 3, text))
        for text in ("KeyError: 'a'", "exit")
    }
    assert [told.title_says_cause, *(one.title_says_cause for one in said.values())] == [False, True, False]


BATCH = BatchSpec(8, 2, 2)
KNOBS = Knobs(
    batch="--micro",
    batch_scope=KnobScope.PER_RANK,
    accumulation="--accumulation",
    resume_path="--resume_from",
)
JOB = JobSpec(
    name="job", cwd="/job", entry_kind=EntryKind.SCRIPT, entry="train.py", nproc_per_node=2, world_size=2,
    entry_args=("--micro", "8", "--accumulation", "2", "--lr", "1"), knobs=KNOBS, batch=BATCH,
)  # fmt: skip
HALVED = SpecChange(batch=BatchChange(BATCH, BatchSpec(4, 4, 2)))


def state_of(changes: Sequence[SpecChange | None], kind: DecisionKind = DecisionKind.RESTART) -> RunState:
    decisions = [Decision(kind, "why", change=change) for change in changes]
    views = [AttemptState(number=n + 1, planned_t=0.0, decision=d) for n, d in enumerate(decisions)]
    return RunState(attempts=tuple(views))


def after(*changes: SpecChange, job: JobSpec = JOB) -> NextJob:
    return next_job(job, state_of(changes))


def typed(words: str) -> SpecChange:
    return SpecChange(argv=tuple(words.split()))


CHANGE = some.builds(
    SpecChange,
    batch=some.none()
    | some.sampled_from([8, 4, 2]).map(lambda m: BatchChange(BATCH, with_micro_batch(BATCH, m))),
    env=some.lists(some.tuples(some.sampled_from("AB"), some.sampled_from("12")), max_size=2).map(tuple),
    set_args=some.lists(some.tuples(some.sampled_from(["--a", "--b"]), some.just("1")), max_size=2).map(
        tuple
    ),
    from_scratch=some.booleans(),
    raise_open_files=some.booleans(),
)


@settings(deadline=None)
@given(some.lists(CHANGE, max_size=5))
def test_later_changes_win_and_none_is_lost(changes: list[SpecChange]) -> None:
    folded = after(*changes)
    batches = [c.batch.after for c in changes if c.batch is not None]
    assert folded.batch == (batches[-1] if batches else None)
    env: dict[str, str] = {}
    for change in changes:
        env.update(change.env)
    assert folded.env == env
    assert folded.raise_open_files == any(c.raise_open_files for c in changes)
    assert folded.from_scratch == (changes[-1].from_scratch if changes else False)


@pytest.mark.parametrize(
    ("words", "batch"),
    [
        ("--micro 4 --accumulation 4 --lr 2", BatchSpec(4, 4, 2)),
        ("--micro 2 --accumulation 4 --lr 1", BatchSpec(2, 4, 2)),
        ("--micro=8 --accumulation 2", BATCH),
        ("--micro many --accumulation 4", None),
    ],
)
def test_what_is_typed_wins_over_what_was_set(words: str, batch: BatchSpec | None) -> None:
    now = after(HALVED, SpecChange(set_args=(("--workers", "0"),)), typed(words))
    assert now.words == tuple(words.split()), "nothing of what was taken away comes back"
    assert now.current_batch == batch


def test_a_batch_in_a_config_file_stays_changed_under_typed_arguments() -> None:
    knobs = replace(KNOBS, batch="c.yaml#micro", accumulation="c.yaml#accumulation")
    job = replace(JOB, knobs=knobs, entry_args=("--config", "c.yaml"))
    now = after(HALVED, typed("--config c.yaml --lr 2"), job=job)
    assert now.current_batch == BatchSpec(4, 4, 2)
    assert now.job.set_knobs == (("c.yaml#micro", "4"), ("c.yaml#accumulation", "4"))


def test_numbers_that_do_not_divide_are_refused() -> None:
    knobs = replace(KNOBS, accumulation=None, global_batch="--total")
    job = replace(JOB, knobs=knobs, entry_args=("--micro", "8", "--total", "32"))
    with pytest.raises(JobError, match="does not divide"):
        after(job=job).typed_batch(("--micro", "7", "--total", "32"))
    assert after(job=job).typed_batch(("--micro", "4", "--total", "32")) == BatchSpec(4, 4, 2)
    now = after(typed("--micro 7 --total 32"), job=job)
    assert (now.current_batch, now.words) == (None, ("--micro", "7", "--total", "32")), (
        "an older journal may hold them"
    )


def test_a_typed_batch_is_counted_in_what_the_job_counts() -> None:
    tokens = BatchSpec(8, 2, 2, unit=BatchUnit.TOKENS, tokens_per_sample=64)
    job = replace(JOB, batch=tokens, world_size=None)
    assert after(typed("--micro 4 --accumulation 4"), job=job).current_batch == replace(
        tokens, micro_batch_per_rank=4, accumulation_steps=4
    )
    unknown = after(typed("--micro 4 --accumulation 4"), job=replace(JOB, batch=None))
    assert unknown.current_batch == BatchSpec(4, 4, 2)
    other_ranks = after(SpecChange(nproc_per_node=1), typed("--micro 4 --accumulation 4"))
    assert (other_ranks.job.nproc_per_node, other_ranks.current_batch) == (1, BatchSpec(4, 4, 2))


def test_a_batch_that_cannot_be_set_leaves_the_words() -> None:
    job = replace(JOB, knobs=replace(KNOBS, batch_scope=KnobScope.UNKNOWN))
    now = after(HALVED, job=job)
    assert (now.words, now.current_batch) == (JOB.entry_args, BatchSpec(4, 4, 2))
    assert after(HALVED).words == ("--micro", "4", "--accumulation", "4", "--lr", "1")
    assert after(SpecChange(set_args=(("--resume_from", "c/4"), ("--new", "")))).words == (
        *JOB.entry_args,
        "--new",
    )


@pytest.mark.parametrize(
    ("before", "later", "further"),
    [
        ({"last_step": 4}, {"last_step": 5}, True),
        ({"last_step": 4}, {"last_step": 4}, False),
        ({}, {"last_step": 0}, True),
        ({"last_step": 4}, {}, False),
        ({}, {"verdict": verdict(FailureClass.HEALTHY), "exit_code": 0}, True),
        ({}, {"verdict": verdict(FailureClass.HEALTHY), "exit_code": 1}, False),
        ({}, {"verdict": verdict(FailureClass.HANG), "exit_code": 0}, False),
    ],
)
def test_whether_an_attempt_got_further(before: dict[str, Any], later: dict[str, Any], further: bool) -> None:
    one, other = (AttemptState(number=n, planned_t=0.0, **given) for n, given in ((1, before), (2, later)))
    assert got_further(one, other) is further


def test_the_decision_after_the_last_attempt_can_be_left_out() -> None:
    state = state_of([HALVED, SpecChange(set_args=(("--a", "1"),))])
    assert next_job(JOB, undecided(state)) == after(HALVED)
    assert next_job(JOB, state_of([HALVED], DecisionKind.HOLD)) == NextJob(JOB)


def test_only_a_start_that_was_typed_anew_holds() -> None:
    job = replace(JOB, entry_args=("--resume_from", "c2.pt"))
    assert after(typed("--resume_from c2.pt --lr 2"), job=job).start_typed_after is None
    chosen = SpecChange(set_args=(("--resume_from", "c/4"),))
    now = after(chosen, typed("--resume_from c2.pt --lr 2"), job=job)
    assert now.set_args == {"--resume_from": "c/4"}, "it was only left to stand"
    again = after(chosen, typed("--resume_from c3.pt"), typed("--resume_from c3.pt --lr 3"), job=job)
    assert again.start_typed_after == 2
    assert again.set_args == {}


@pytest.mark.parametrize(
    ("after_it", "stays"),
    [
        ({"verdict": verdict(FailureClass.UNKNOWN)}, False),
        ({"verdict": verdict(FailureClass.CUDA_OOM)}, True),
        ({"verdict": verdict(FailureClass.UNKNOWN), "first_step": 1, "last_step": 4}, True),
        ({"verdict": verdict(FailureClass.HEALTHY), "exit_code": 0}, True),
    ],
)
def test_measurements_that_were_not_to_blame_come_back(after_it: dict[str, Any], stays: bool) -> None:
    without = Decision(DecisionKind.RESTART, "why", change=SpecChange(env=(("A", "1"), NOT_MEASURED)))
    again = Decision(DecisionKind.RESTART, "why", change=SpecChange())
    views = (
        AttemptState(
            number=1,
            planned_t=0.0,
            verdict=verdict(FailureClass.UNKNOWN),
            decision=without,
            decided_by="policy",
        ),
        AttemptState(number=2, planned_t=0.0, decision=again, decided_by="policy", **after_it),
    )
    state = RunState(attempts=views)
    assert unmeasured_trial(state) == views
    assert next_job(JOB, RunState(attempts=views[:1])).env == {"A": "1", "STOKER_INSTRUMENT": "0"}
    assert ("STOKER_INSTRUMENT" in next_job(JOB, state).env) is stays
    assert next_job(JOB, state).env["A"] == "1"


def test_what_a_person_set_is_no_trial() -> None:
    decision = Decision(DecisionKind.RESTART, "why", change=SpecChange(env=(NOT_MEASURED,)))
    views = tuple(
        AttemptState(
            number=n,
            planned_t=0.0,
            verdict=verdict(FailureClass.UNKNOWN),
            decision=decision,
            decided_by="ada",
        )
        for n in (1, 2)
    )
    assert unmeasured_trial(RunState(attempts=views)) is None
    assert dict([NOT_MEASURED]) == next_job(JOB, RunState(attempts=views)).env
