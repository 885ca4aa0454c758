"""What of a batch is asked of a person: only where an answer leads somewhere, with the numbers of each, and never what is known."""

from __future__ import annotations

import shlex

import pytest

from supervisor.job.arguments.run_arguments import parse_run_argv
from supervisor.job.batch import BatchSpec
from supervisor.job.config.resolve import JobInputs, resolve_job
from supervisor.job.config.settings import spec_key_names
from supervisor.job.oom_plan import OomPlan, OomRefusal, answer, oom_plan
from supervisor.job.plan import build_plan
from supervisor.job.spec import AnswerGiven, BatchQuestion, JobSpec, KnobScope, Unread

# What is in it is never read: an answer is remembered by it.
SCRIPT = "import torch\n"


def job(
    line: str,
    source: str | None,
    *,
    answers: dict[str, str] | None = None,
    asked: list[BatchQuestion] | None = None,
) -> JobSpec:
    """The job of a command line; `answers`: what was answered before, by question; `asked`: what was looked up."""

    def answered(question: BatchQuestion) -> AnswerGiven | None:
        (asked if asked is not None else []).append(question)
        found = (answers or {}).get(question.key)
        return AnswerGiven(question, found, "2026-11-22") if found is not None else None

    parsed = parse_run_argv(shlex.split(line), env={}, spec_keys=spec_key_names())
    files = {"train.py": source} if source is not None else {}
    return resolve_job(
        JobInputs(parsed=parsed, env={}, cwd="/work", read=files.get, answered=answered, cpus=2)
    )


def question(line: str, source: str | None) -> BatchQuestion:
    found = job(line, source)
    assert found.question is not None
    assert found.answered is None
    return found.question


def numbers(asked: BatchQuestion) -> dict[str, tuple[int, int, int, int]]:
    """Of each answer: micro-batch and accumulation before and after."""
    return {
        a.value: (
            a.change.before.micro_batch_per_rank,
            a.change.before.accumulation_steps,
            a.change.after.micro_batch_per_rank,
            a.change.after.accumulation_steps,
        )
        for a in asked.answers
        if a.change is not None
    }


def test_without_an_accumulation_the_scope_says_what_a_smaller_global_batch_is() -> None:
    asked = question("--nproc-per-node 2 train.py --batch_size 24", SCRIPT)
    assert (asked.what, asked.knob, asked.number) == (Unread.SCOPE, "--batch_size", 24)
    assert numbers(asked) == {"per_rank": (24, 1, 12, 1), "global": (12, 1, 6, 1)}
    assert [a.change.after.global_batch for a in asked.answers if a.change] == [24, 12]
    assert asked.flag("global") == "--batch-scope global"


def test_a_batch_that_may_be_divided_is_halved_or_cut_by_its_answer() -> None:
    line = "--nproc-per-node 2 train.py --train_batch_size 24 --gradient_accumulation_steps 2"
    asked = question(line, SCRIPT)
    assert numbers(asked) == {"per_rank": (24, 2, 12, 4), "global": (6, 2, 3, 4)}
    assert all(a.change.before.global_batch == a.change.after.global_batch for a in asked.answers if a.change)


def test_an_answer_that_cannot_be_says_why_beside_the_other() -> None:
    asked = question(
        "--nproc-per-node 5 train.py --train_batch_size 24 --gradient_accumulation_steps 2", SCRIPT
    )
    per_rank, whole = asked.answers
    assert per_rank.change is not None
    assert whole.change is None
    assert "24 is not divisible by 5" in whole.refusal


def test_one_of_two_accumulations_is_a_question_about_their_names() -> None:
    asked = question(
        "--nproc-per-node 2 --batch-scope per_rank train.py --batch_size 16 --accum_iter 2 --grad_accum 4",
        SCRIPT,
    )
    assert asked.what is Unread.ACCUMULATION
    assert numbers(asked) == {"--accum_iter": (16, 2, 8, 4), "--grad_accum": (16, 4, 8, 8)}
    assert asked.flag("--grad_accum") == "--accumulation-knob --grad_accum"


def test_of_a_source_that_cannot_be_read_a_batch_beside_an_accumulation_is_asked_about() -> None:
    found = job("--nproc-per-node 2 -- ./launcher --batch_size 24 --gradient_accumulation_steps 2", None)
    assert found.question is not None
    assert numbers(found.question) == {"per_rank": (24, 2, 12, 4), "global": (6, 2, 3, 4)}
    assert found.question.script == "", "nothing was read that an answer could be remembered by"


@pytest.mark.parametrize(
    ("line", "source"),
    [
        ("train.py --batch_size 24", SCRIPT),  # one rank: all scopes are the same numbers
        ("--nproc-per-node 2 train.py --batch_size 1", SCRIPT),  # nothing smaller, whatever it counts
        ("--nproc-per-node 2 train.py", SCRIPT),
        (
            "--nproc-per-node 2 train.py --batch_size 16 --accum_iter 2 --grad_accum 4",
            SCRIPT,
        ),  # one answer is not enough
    ],
)
def test_nothing_is_asked_where_no_answer_would_matter_or_help(line: str, source: str) -> None:
    found = job(line, source)
    assert found.question is None
    assert found.if_answered == ()


def test_where_all_answers_are_the_same_numbers_the_smaller_global_batch_is_known() -> None:
    found = job("--allow-smaller-global train.py --batch_size 24", SCRIPT)
    assert found.batch == BatchSpec(24, 1, 1)
    assert found.knobs.batch_scope is not KnobScope.UNKNOWN
    assert found.knobs.help == "--allow-smaller-global", "which alone is enough"


def test_a_flag_answers_for_good_and_what_was_remembered_is_not_looked_at() -> None:
    looked: list[BatchQuestion] = []
    line = (
        "--nproc-per-node 2 --batch-scope {} train.py --train_batch_size 24 --gradient_accumulation_steps 2"
    )
    wrong = {question(line.replace("--batch-scope {} ", ""), SCRIPT).key: "global"}
    found = job(line.format("per_rank"), SCRIPT, answers=wrong, asked=looked)
    assert (found.question, found.answered, looked) == (None, None, [])
    assert found.batch == BatchSpec(24, 2, 2)
    plan = oom_plan(found)
    assert isinstance(plan, OomPlan)
    assert [(c.knob, c.new) for c in plan.changes] == [
        ("--train_batch_size", "12"),
        ("--gradient_accumulation_steps", "4"),
    ]


def test_an_answer_from_before_is_used_and_its_day_stands_in_the_source() -> None:
    line = "--nproc-per-node 2 train.py --train_batch_size {} --gradient_accumulation_steps 2"
    remembered = {question(line.format(24), SCRIPT).key: "per_rank"}
    found = job(line.format(32), SCRIPT, answers=remembered)
    assert found.question is None
    assert found.answered is not None
    assert found.batch == BatchSpec(32, 2, 2)
    plan = build_plan(
        found, attempt=1, interpreter="python", run_dir="r", attempt_dir="a", base_env={}, port=1
    )
    said = answer(found, plan)
    source = said["batch"]["micro"]["source"]
    assert source.startswith("command line, you answered on 2026-11-22")
    assert source.endswith(": --batch-scope per_rank")
    assert said["on_oom"]["changes"][0] == {"knob": "--train_batch_size", "from": "32", "to": "16"}


@pytest.mark.parametrize("value", ["sideways", "", "--batch_size", "per_node"])
def test_a_remembered_word_that_is_no_answer_is_nothing(value: str) -> None:
    line = "--nproc-per-node 2 train.py --train_batch_size 24 --gradient_accumulation_steps 2"
    key = question(line, SCRIPT).key
    found = job(line, SCRIPT, answers={key: value})
    assert found.answered is None
    assert found.question is not None


def test_an_answer_that_does_not_divide_here_refuses() -> None:
    line = "--nproc-per-node {} train.py --train_batch_size 24 --gradient_accumulation_steps 2"
    remembered = {question(line.format(2), SCRIPT).key: "global"}
    plan = oom_plan(job(line.format(5), SCRIPT, answers=remembered))
    assert isinstance(plan, OomRefusal)
    assert "24 is not divisible by 5" in plan.why


REFUSED = [
    "--nproc-per-node 2 train.py --batch_size 24",
    "--nproc-per-node 2 train.py --train_batch_size 24 --gradient_accumulation_steps 2",
    "--nproc-per-node 2 --batch-scope per_rank train.py --batch_size 16 --accum_iter 2 --grad_accum 4",
    "--nproc-per-node 2 train.py --batch_size 16 --accum_iter 2 --grad_accum 4",
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
    refused = job(line, SCRIPT)
    plan = oom_plan(refused)
    assert isinstance(plan, OomRefusal), plan
    shared, _, rest = plan.help.partition(" with ")
    ways = [f"{shared} {way}" for way in rest.split(", or ")] if rest else plan.help.split(", or ")
    flags = [way for way in ways if way.startswith("--")]
    assert flags or not plan.help.startswith("--"), plan.help
    for flag in flags:
        done = job(f"{flag.replace(' N', ' 2')} {line}", SCRIPT)
        if done.retry.allow_smaller_global:
            known = done.knobs.batch_scope is not KnobScope.UNKNOWN and done.knobs.unread is None
            assert done.batch is not None, (flag, done.knobs)
            assert known, (flag, done.knobs)
            smaller = oom_plan(done)
            assert isinstance(smaller, OomPlan), smaller
            assert smaller.smaller_global
        else:
            assert isinstance(oom_plan(done), OomPlan), (flag, oom_plan(done))
