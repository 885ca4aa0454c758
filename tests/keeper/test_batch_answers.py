"""An answer about the batch that nobody need be asked for: one from an earlier run, or one to try where nothing can be lost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
import torch

from supervisor.job.batch import BatchSpec
from supervisor.job.knobs.measured_knobs import MeasuredSettings, OpenAnswer
from supervisor.job.spec import IN_CODE, EntryKind, KnobScope, Unread
from supervisor.keeper.base.control_input import Refused
from supervisor.keeper.loop import Keeper
from supervisor.keeper.planning.decisions import next_answer
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.answers import AnswerLine, batch_question, keep_answers, recalled, remember_answer
from supervisor.run.fold import replay
from supervisor.run.runfile import RunFile
from supervisor.run.state import RunState
from supervisor.sources.processes import send_signal
from tests.conftest import not_none, wait_until
from tests.keeper.fakes import SLEEP, facts_of, job_of, run_in
from tests.keeper.runs import INTENDED, STARTED, append, child_in, journalled

NAMES = ("--batch_size", "--mini_batch_size")


def measured(folder: Path, *, loaded: bool = False, why: str = "asked: no_step") -> ev.BatchMeasured:
    """Two settings make the micro-batch alike, and each leaves nothing else open."""
    then = {
        name: MeasuredSettings(BatchSpec(8, 1, 2), name, KnobScope.PER_RANK, accumulation="--accum")
        for name in NAMES
    }
    answers = (
        *(OpenAnswer(name, 8, seen) for name, seen in then.items()),
        OpenAnswer(IN_CODE, None, MeasuredSettings()),
    )
    return ev.BatchMeasured(
        t=2.0,
        attempt=1,
        micro_batch=8,
        world_size=2,
        how={"accumulation": why},
        refusal="one of two",
        asks=Unread.MICRO,
        answers=answers,
        has_loaded=loaded,
        outputs=(str(folder / "out"),),
    )


def state_of(event: ev.BatchMeasured, *more: ev.Event) -> RunState:
    return replay([ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason=""), event, *more])


def record_of(folder: Path, *words: str) -> RunFile:
    (folder / "train.py").write_text("import torch\n")
    return job_of(folder, "train.py", *words, entry_kind=EntryKind.SCRIPT)


def tried(record: RunFile, state: RunState, env: Mapping[str, str]) -> tuple[str, int | None] | None:
    told = next_answer(record, state, env, 9.0, tries=True)
    return (told.value, told.trial) if told is not None else None


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def test_the_likeliest_is_tried_then_the_next_and_then_a_person_is_asked(
    tmp_path: Path, env: dict[str, str]
) -> None:
    record, seen = record_of(tmp_path), measured(tmp_path)
    state, facts = state_of(seen), list[ev.Event]()
    for trial, name in enumerate(NAMES, 1):
        assert tried(record, state, env) == (name, trial)
        told = not_none(next_answer(record, state, env, 9.0, tries=True))
        assert told.batch == BatchSpec(8, 1, 2)
        facts += [told, ev.PlanDiffers(t=9.0, attempt=1, planned="p", measured="m", wrong=Unread.MICRO)]
        state = state_of(seen, *facts)
    assert state.wrong == NAMES
    assert tried(record, state, env) is None
    assert batch_question(record.job, state) is None, "no answer is left that would help"


def test_without_leave_to_try_nothing_is(tmp_path: Path, env: dict[str, str]) -> None:
    assert next_answer(record_of(tmp_path), state_of(measured(tmp_path)), env, 9.0) is None


@pytest.mark.parametrize(
    "what", ["a step", "a checkpoint", "a load", "a start", "an old checkpoint", "an unseen step"]
)
def test_nothing_is_tried_where_something_may_be_lost(tmp_path: Path, env: dict[str, str], what: str) -> None:
    words, more, seen = ("--save", "x"), list[ev.Event](), measured(tmp_path)
    match what:
        case "a step":
            more.append(ev.Progress(t=3.0, attempt=1, step=1))
        case "a checkpoint":
            more.append(ev.CheckpointCommitted(t=3.0, attempt=1, step=0, path=str(tmp_path / "0.pt")))
        case "a load":
            seen = measured(tmp_path, loaded=True)
        case "a start":
            words = ("--resume", "old.pt")
        case "an old checkpoint":
            (tmp_path / "out").mkdir()
            torch.save({"model": torch.zeros(2)}, tmp_path / "out" / "4.pt")
        case "an unseen step":
            seen = measured(tmp_path, why="measured: batches")
    record = record_of(tmp_path, *words)
    assert tried(record, state_of(seen, *more), env) is None
    assert batch_question(record.job, state_of(seen, *more)) is not None, "a person is asked"


def test_what_was_confirmed_is_known_to_later_runs_until_it_is_refuted(
    tmp_path: Path, env: dict[str, str]
) -> None:
    record, seen = record_of(tmp_path), measured(tmp_path, why="measured: batches")
    question = not_none(batch_question(record.job, state_of(seen)))
    told = ev.BatchAnswered(t=3.0, question=question, value="--mini_batch_size", trial=1)
    keep_answers(state_of(seen, told), env, 5.0)
    known = not_none(next_answer(record, state_of(seen), env, 9.0))
    assert (known.value, known.trial, bool(known.day)) == ("--mini_batch_size", None, True)
    keep_answers(state_of(seen, known), env, 6.0, wrong=Unread.MICRO)
    assert next_answer(record, state_of(seen), env, 9.0) is None
    (tmp_path / "train.py").write_text("import torch  # edited\n")
    keep_answers(state_of(seen, told), env, 7.0)
    assert next_answer(record, state_of(seen), env, 9.0) is None, "an edited script is asked about again"


@pytest.mark.parametrize("value", ["--heads", "", "per_rank", "--batch_size --evil"])
def test_a_remembered_word_that_is_no_answer_is_nothing(
    tmp_path: Path, env: dict[str, str], value: str
) -> None:
    record, state = record_of(tmp_path), state_of(measured(tmp_path, why="measured: batches"))
    question = not_none(batch_question(record.job, state))
    remember_answer(AnswerLine(script=question.script, question=question.key, value=value, t=1.0), env)
    assert recalled(question, env) is not None
    assert next_answer(record, state, env, 9.0) is None


def test_another_answer_for_the_batch_takes_back_what_the_one_before_counts(tmp_path: Path) -> None:
    record, seen = record_of(tmp_path), measured(tmp_path)
    question = not_none(batch_question(record.job, state_of(seen)))
    asked = {
        what: question.__class__(what, "", 8, question.answers)
        for what in (Unread.SCOPE, Unread.ACCUMULATION)
    }
    facts: list[ev.Event] = [ev.BatchAnswered(t=3.0, question=one, value="x") for one in asked.values()]
    facts.append(ev.BatchAnswered(t=4.0, question=question, value="--batch_size"))
    assert set(state_of(seen, *facts).answers) == {Unread.ACCUMULATION, Unread.MICRO}


def test_what_a_lack_of_memory_would_lead_to_is_told_while_it_trains_and_again_once_it_was_answered(
    tmp_path: Path, env: dict[str, str]
) -> None:
    record = record_of(tmp_path)
    record = msgspec.structs.replace(
        record, settings=msgspec.structs.replace(record.settings, interactive=True)
    )
    run = run_in(tmp_path, STARTED, INTENDED)
    child = child_in(run, SLEEP)
    append(run, journalled(child))
    keeper = Keeper(run, record, env={**os.environ, **env})

    def told() -> list[tuple[str, str]]:
        for _ in range(3):
            keeper._act()
        return [(one.code, one.text) for one in keeper.state.advisories]

    try:
        assert told() == []
        with pytest.raises(Refused, match="there is no open question"):
            keeper.answer("--batch_size", "kim")
        keeper.emit(measured(tmp_path, why="measured: batches"))
        ends = "out of memory would wait for you: one of two"
        first = (
            f"{ev.ON_OOM}ends",
            f"{ends}; --batch-knob NAME --accumulation-knob NAME --resume-knob FLAG=PATH",
        )
        assert told() == [first]
        question = not_none(keeper.state.open_question)
        (asked,) = (fact for fact in facts_of(run) if isinstance(fact, ev.BatchAsked))
        assert (asked.attempt, asked.question) == (1, question)
        with pytest.raises(Refused, match="that is no answer to what is asked"):
            keeper.answer("--heads", "kim")
        keeper.answer("--batch_size", "kim")
        (answered,) = (fact for fact in facts_of(run) if isinstance(fact, ev.BatchAnswered))
        assert (answered.value, answered.by, answered.batch) == ("--batch_size", "kim", BatchSpec(8, 1, 2))
        assert not_none(recalled(question, {**os.environ, **env})).value == "--batch_size"
        resumes = "how the script resumes is not known; --resume-knob FLAG=PATH"
        later = (f"{ev.ON_OOM}ends", f"out of memory would wait for you after its first step: {resumes}")
        assert told() == [first, later]
        assert isinstance(keeper.state.condition, st.Running), "the answer is for a failure that may come"
    finally:
        keeper.close()
        send_signal(child.pid)
        assert wait_until(lambda: child.poll() is not None, 10)
        child.release()
