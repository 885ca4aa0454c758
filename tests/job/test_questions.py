"""What of a batch is asked of a person: what measuring left open, with the numbers of each answer; and what is tried instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from supervisor.job.batch import BatchSpec
from supervisor.job.knobs.measured_knobs import MeasuredSettings, with_measured
from supervisor.job.knobs.set_batch import batch_values
from supervisor.job.launch.batch_questions import asked_settings, question_of, to_try
from supervisor.job.launch.oom_plan import oom_plan
from supervisor.job.spec import IN_CODE, BatchQuestion, EntryKind, JobSpec, Knobs, KnobScope, Unread
from tests.job.lines import job
from tests.job.test_measured import derived, loader, phase, recorded, setting, steps

JOB = JobSpec(name="job", entry_kind=EntryKind.SCRIPT, entry="train.py", cwd="/job", nproc_per_node=2)
FED = [phase(), phase(1), loader(8)]
FIRST_FORWARD = [r for r in steps([1]) if r["kind"] == "shape"]
"""It ran out of memory there: no step was complete."""


def option(name: str, value: int) -> dict[str, object]:
    return setting(name, value, words=[f"--{name}"])


def seen(records: Iterable[Mapping[str, object]], **named: str) -> MeasuredSettings:
    facts = list(records)
    return asked_settings(lambda knobs: derived(facts, named=knobs), Knobs(**named))  # type: ignore[arg-type]


def asked(found: MeasuredSettings, *wrong: str) -> BatchQuestion:
    question = question_of(JOB, found, wrong, "abc")
    assert question is not None
    return question


def numbers(question: BatchQuestion) -> dict[str, tuple[int, int, int, int] | str]:
    """Of each answer micro-batch and accumulation before and after, or why nothing would change."""
    return {
        a.value: a.refusal
        if a.change is None
        else (
            a.change.before.micro_batch_per_rank,
            a.change.before.accumulation_steps,
            a.change.after.micro_batch_per_rank,
            a.change.after.accumulation_steps,
        )
        for a in question.answers
    }


def halved(found: MeasuredSettings, batch: BatchSpec) -> dict[str, str]:
    """The settings of `batch`, in place of the one that was measured."""
    job = with_measured(JOB, found)
    return dict(batch_values(job.knobs, batch, before=job.batch, local_world_size=2))


def test_two_settings_of_one_value_are_asked_about_by_name_and_value() -> None:
    found = seen(recorded("h04_two"))
    question = asked(found)
    assert (question.what, question.number, question.ranks, question.passes) == (Unread.MICRO, 8, 2, 1)
    assert [(a.value, a.number) for a in question.answers] == [
        ("--batch_size", 8),
        ("--mini_batch_size", 8),
        (IN_CODE, None),
    ]
    assert numbers(question) == {
        "--batch_size": (8, 1, 4, 1),
        "--mini_batch_size": (8, 1, 4, 1),
        IN_CODE: "no restart can change it",  # what an answer has made true is said once it was given
    }
    in_code = found.answered({Unread.MICRO: IN_CODE})
    assert in_code.refusal == "what makes the 8 samples of a rank is in the code, as you answered"
    answered = found.answered({Unread.MICRO: "--mini_batch_size"})
    assert (answered.setting, answered.asks, answered.refusal) == ("--mini_batch_size", None, "")
    assert halved(answered, BatchSpec(4, 1, 2)) == {"--mini_batch_size": "4"}


def test_after_the_batch_its_accumulation_is_asked_about() -> None:
    given = [*FED, option("batch_size", 8), option("mini_batch_size", 8), option("accum", 2), option("ga", 2)]
    found = seen([*given, *steps([2] * 4)])
    first = asked(found)
    assert numbers(first)["--batch_size"] == "what makes the accumulation of 2 is one of --accum, --ga"
    then = found.answered({Unread.MICRO: "--mini_batch_size"})
    second = asked(then)
    assert (second.what, second.number) == (Unread.ACCUMULATION, 2)
    assert numbers(second)["--ga"] == (8, 2, 4, 4)
    settled = found.answered({Unread.MICRO: "--mini_batch_size", Unread.ACCUMULATION: "--ga"})
    assert settled.asks is None
    assert halved(settled, BatchSpec(4, 4, 2)) == {"--mini_batch_size": "4", "--ga": "4"}


@pytest.mark.parametrize(
    ("scope", "change", "words"),
    [
        ("global", (8, 2, 4, 4), {"--batch_size": "8", "--accum": "4"}),
        # One rank's whole step stays what it is; the script cuts it into more passes.
        ("per_rank", (8, 2, 4, 4), {"--batch_size": "16", "--accum": "4"}),
    ],
)
def test_what_a_value_counts_is_asked_where_ranks_and_passes_are_as_many(
    scope: str, change: tuple[int, ...], words: dict[str, str]
) -> None:
    found = seen([*FED, option("batch_size", 16), option("accum", 2), *steps([2] * 4)])
    question = asked(found)
    assert (question.what, question.knob, question.number) == (Unread.SCOPE, "--batch_size", 16)
    assert numbers(question)[scope] == change
    assert halved(found.answered({Unread.SCOPE: scope}), BatchSpec(4, 4, 2)) == words


@pytest.mark.parametrize(
    ("records", "tried"),
    [
        ([option("batch_size", 8), option("mini_batch_size", 8)], "--batch_size"),
        ([option("batch_size", 8)], "--accum"),
        ([option("heads", 8)], None),
        ([option("hidden_batch_dim", 8)], None),
        ([option("batch_steps", 8), option("vocab_batch", 8)], None),
        ([option("batch_epochs", 8), option("seq_batch_length", 8), option("batch_workers", 8)], None),
    ],
)
def test_only_a_name_with_a_batch_word_is_tried(records: list[dict[str, object]], tried: str | None) -> None:
    found = seen([*FED, *records, option("accum", 1), *FIRST_FORWARD])
    assert to_try(found, ()) == tried


def test_before_a_step_the_accumulation_by_name_is_an_answer_and_its_value_holds_until_it_is_measured() -> (
    None
):
    found = seen(recorded("h08_oom"))
    question = asked(found)
    assert (question.what, question.number) == (Unread.ACCUMULATION, None)
    assert numbers(question)["--grad-accum"] == (16, 2, 8, 4)
    settled = found.answered({Unread.ACCUMULATION: "--grad-accum"})
    assert (settled.batch, settled.refusal) == (BatchSpec(16, 2, 2), "")
    assert halved(settled, BatchSpec(8, 4, 2)) == {"--batch-size": "8", "--grad-accum": "4"}


@pytest.mark.parametrize("style", ["s24_const", "h02_ppo", "h03_pk", "s13_maxtok"])
def test_nothing_is_asked_where_no_setting_makes_the_batch(style: str) -> None:
    assert question_of(JOB, seen(recorded(style))) is None


REFUSED = [
    "--nproc-per-node 2 train.py --batch_size 24",
    "--nproc-per-node 2 train.py --train_batch_size 24 --gradient_accumulation_steps 2",
    "--nproc-per-node 2 --batch-scope per_rank train.py --batch_size 16 --accum_iter 2 --grad_accum 4",
    "--nproc-per-node 2 -- ./launcher --batch_size 24 --gradient_accumulation_steps 2",
    "--nproc-per-node 2 -- ./launcher --batch_size 24",
    "-- ./launcher --micro_batch_size 24",
    "-- ./launcher --batch_size 24 --gradient_accumulation_steps 2",
    "--nproc-per-node 2 train.py --per_device_train_batch_size 24 --per_gpu_train_batch_size 12 --grad_accum 2",
    "--nproc-per-node 2 train.py --train_batch_size 24",
    "--nproc-per-node 2 train.py --batch_size 8",
    "--nproc-per-node 2 --batch-knob --bs train.py --bs 24",
]


@pytest.mark.parametrize("line", REFUSED)
def test_every_flag_that_a_refusal_names_helps(line: str) -> None:
    """Typed as it stands there, each leads to a plan, or with ``--allow-smaller-global`` to a smaller global batch."""
    refused = job(line)
    plan = oom_plan(refused)
    assert not plan.changes, plan
    shared, _, rest = plan.help.partition(" with ")
    ways = [f"{shared} {way}" for way in rest.split(", or ")] if rest else plan.help.split(", or ")
    flags = [way for way in ways if way.startswith("--")]
    assert flags or not plan.help.startswith("--"), plan.help
    for flag in flags:
        done = job(f"{flag.replace(' N', ' 2')} {line}")
        if done.retry.allow_smaller_global:
            known = done.knobs.batch_scope is not KnobScope.UNKNOWN
            assert done.batch is not None, (flag, done.knobs)
            assert known, (flag, done.knobs)
            smaller = oom_plan(done)
            assert smaller.changes, smaller
            assert smaller.smaller_global
        else:
            assert oom_plan(done).changes, (flag, oom_plan(done))
