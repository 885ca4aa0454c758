"""What a keeper would do now, why it would not, and what an action costs: for each state of a run."""

from __future__ import annotations

from dataclasses import replace as replace_job
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from supervisor.job.batch import BatchChange, BatchSpec
from supervisor.job.memory_fit import MemoryTrial
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.events import Outcome, RequestKind
from supervisor.run.ownership import NotRequested
from supervisor.run.paths import RunPaths
from supervisor.run.records import Decision, DecisionKind, FailureClass, SpecChange
from supervisor.run.runfile import RunFile, read_run_file
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.panels import possible_actions as actions
from supervisor.views.tui.shell import feeder as request_client
from supervisor.views.tui.shell.feeder import Answer
from tests.views.tui import recorded
from tests.views.tui.still import attempt_of, running, snapshot_of, state_of, verdict

AGAIN = Decision(DecisionKind.RESTART, "again")
HELD = st.HeldOpen(attempt=1, reason="", decision=None)
BACKOFF = st.Backoff(attempt=1, until=9.0, decision=AGAIN)
STOPPING = st.Stopping(attempt=1, why=ev.StopWhy.REQUEST, by="me")
ENDED = st.Ended(attempt=1, exit_code=1)
BATCH = BatchSpec(8, 2, 2)
SMALLER = Decision(
    DecisionKind.RESTART, "smaller", change=SpecChange(batch=BatchChange(BATCH, BatchSpec(4, 4, 2)))
)


def finished(outcome: Outcome) -> st.Finished:
    return st.Finished(outcome=outcome, exit_code=1, reason="")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunFile:
    """What a run with known flags for batch, accumulation and resume was started with."""
    run = recorded.Recording(tmp_path_factory.mktemp("runs") / "run").close()
    found = read_run_file(run.run_json)
    assert isinstance(found, RunFile)
    return found


def possible(condition: st.Condition, **values: object) -> set[str]:
    mode = str(values.pop("mode", "launched"))
    asked = {name: bool(values.pop(name)) for name in ("read_only", "can_adopt") if name in values}
    state = state_of(condition, values.pop("attempt", attempt_of()), mode=mode)  # type: ignore[arg-type]
    snapshot = snapshot_of(state, **values)  # type: ignore[arg-type]
    return set(actions.possible(snapshot, **asked))


@pytest.mark.parametrize(
    ("condition", "more"),
    [
        (st.Preflight(), "stop"),
        (st.Launching(attempt=1), "stop stacks"),
        (running(), "stop stacks restart"),
        (STOPPING, "stacks"),
        (ENDED, "stop restart"),
        (BACKOFF, "stop restart start_now hold"),
        (HELD, "stop restart"),
    ],
)
def test_what_is_possible_in_each_state(condition: st.Condition, more: str) -> None:
    assert possible(condition) == {"note", "stop_now", *more.split()}
    assert possible(condition, read_only=True) == set()
    assert possible(condition, gone=True) == set()
    assert possible(condition, misplaced="moved") == set()
    assert possible(condition, keeper=False) == set()
    assert possible(condition, keeper=False, can_adopt=True) == {"adopt"}
    assert possible(condition, keeper=False, can_adopt=True, mode="observed") == set()
    assert possible(condition, mode="observed") == {"note"}, "a log has no processes"
    of_a_process = possible(condition, mode="observed", attempt=attempt_of(pid=4400))
    assert of_a_process == {"note", *({"stacks"} & set(more.split()))}


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        (None, None),
        (SpecChange(new_port=True), None),
        (SpecChange(batch=BatchChange(BATCH, BatchSpec(4, 4, 2))), ""),
        (SpecChange(batch=BatchChange(BATCH, BatchSpec(4, 2, 2))), "global batch 32 → 16"),
        (SpecChange(env=(("A", "1"),)), ""),
        (SpecChange(set_args=(("--x", "1"),)), ""),
    ],
)
def test_one_key_accepts_a_change_that_answers_the_failure(
    change: SpecChange | None, warning: str | None
) -> None:
    held = replace(HELD, decision=Decision(DecisionKind.HOLD, "no", change=change))
    snapshot = snapshot_of(state_of(held))
    assert ("accept" in possible(held)) is (actions.offer(snapshot) is not None) is (warning is not None)
    assert warning is None or actions.offer_warning(snapshot) == warning
    assert actions.offer(snapshot_of(state_of(BACKOFF))) is None


@pytest.mark.parametrize(
    ("condition", "name", "why"),
    [
        (STOPPING, "restart", "it is stopping"),
        (st.Preflight(), "restart", "it is only starting"),
        (st.Launching(attempt=1), "restart", "it is only starting"),
        (ENDED, "hold", "a decision is being made"),
        (HELD, "stacks", "nothing runs"),
        (HELD, "answer", "there is no open question"),
        (HELD, "edit", "run.json cannot be read"),
        (running(), "adopt", "a supervisor process is there already"),
        (running(), "hold", "it is not possible now"),
        (finished(Outcome.SUCCEEDED), "stop", "the run is over: i shows the command"),
    ],
)
def test_why_an_action_is_not_possible(condition: st.Condition, name: str, why: str) -> None:
    def said(*, can_adopt: bool = False, read_only: bool = False, **values: object) -> str:
        mode = str(values.pop("mode", "launched"))
        snapshot = snapshot_of(state_of(condition, mode=mode), **values)  # type: ignore[arg-type]
        return actions.why_not(name, snapshot, read_only=read_only, can_adopt=can_adopt)

    assert said().startswith(why)
    assert "directory is gone" in said(gone=True, misplaced="moved")
    assert said(misplaced="moved") == "moved"
    if isinstance(condition, st.Finished):
        return
    assert "--read-only" in said(read_only=True)
    assert ("no process is known" if name == "stacks" else "it only watches") in said(mode="observed")
    assert "A adopts the run if it can" in said(keeper=False, can_adopt=True)
    assert "`stoker attach --adopt 20261121-1412-brave-otter`" in said(keeper=False)


def test_a_run_that_is_over_takes_notes_and_is_continued_or_started_again(record: RunFile) -> None:
    def said(outcome: Outcome) -> str:
        snapshot = snapshot_of(state_of(finished(outcome)), run_file=record)
        return actions.why_not("stop", snapshot, read_only=False, can_adopt=False)

    assert possible(finished(Outcome.SUCCEEDED)) == {"note"}
    assert possible(finished(Outcome.FAILED), can_adopt=True) == {"note"}
    assert possible(finished(Outcome.FAILED), read_only=True) == set()
    assert "`stoker continue 20261121-1412-brave-otter`" in said(Outcome.FAILED)
    assert said(Outcome.SUCCEEDED) == "the run is over: i shows the command that starts it again"


BEGINS = f"the next begins {actions.FROM_FIRST_STEP}"
ENDS = "end the run now? `stoker continue` can start its next attempt later"
ENDS_1 = "this ends attempt 1"


def saved(step: int, path: str = "") -> ev.CheckpointCommitted:
    return ev.CheckpointCommitted(t=0.0, attempt=1, step=step, path=path or f"ckpt/{step}")


@pytest.mark.parametrize(
    ("last", "step", "text"),
    [
        (None, None, ""),
        (1, None, "1 step, no checkpoint is known"),
        (1840, None, "1 840 steps, no checkpoint is known"),
        (1840, 1800, "40 steps since the checkpoint at step 1 800"),
        (1800, 1800, ""),
    ],
)
def test_what_ending_it_would_lose(last: int | None, step: int | None, text: str) -> None:
    values = {"checkpoint": saved(step)} if step is not None else {}
    attempt = attempt_of(last_step=last)
    assert actions.cost(snapshot_of(state_of(running(), attempt, **values))) == text
    assert actions.cost(snapshot_of(state_of(HELD, attempt, **values))) == "", (
        "what has ended is lost already"
    )


@pytest.mark.parametrize(
    ("kind", "condition", "last", "text"),
    [
        (RequestKind.STOP, running(), None, "stop the run?"),
        (RequestKind.STOP, BACKOFF, 5, ENDS),
        (RequestKind.STOP, running(), 5, "stop? may be lost: 5 steps, no checkpoint is known"),
        (RequestKind.STOP, HELD, 5, ENDS),
        (RequestKind.STOP_NOW, running(), None, "stop at once, without a checkpoint?"),
        (RequestKind.STOP_NOW, running(), 5, "stop at once? lost: 5 steps, no checkpoint is known"),
        (RequestKind.STOP_NOW, HELD, 5, ENDS),
        (RequestKind.STOP_NOW, BACKOFF, None, ENDS),
        (RequestKind.RESTART, running(), None, f"restart? {ENDS_1} before its first step; {BEGINS}"),
        (RequestKind.RESTART, running(), 5, f"restart? {ENDS_1} at step 5+; {BEGINS}"),
        (RequestKind.RESTART, BACKOFF, 5, None),
        (RequestKind.HOLD, BACKOFF, 5, None),
        (RequestKind.STACKS, running(), 5, None),
    ],
)
def test_what_is_asked_before_something_is_lost(
    kind: RequestKind, condition: st.Condition, last: int | None, text: str | None
) -> None:
    snapshot = snapshot_of(state_of(condition, attempt_of(last_step=last)))
    assert actions.question(kind, snapshot) == text


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (BACKOFF, "restart? it ran out of memory with these settings"),
        (HELD,
            f"restart? it ran out of memory with these settings; 5 steps may be lost: the next attempt begins {actions.FROM_FIRST_STEP}"),
    ],
)  # fmt: skip
def test_a_restart_that_would_run_out_of_memory_again_is_asked_about(
    condition: st.Condition, text: str
) -> None:
    attempt = attempt_of(batch=BATCH, last_step=5, verdict=verdict(FailureClass.CUDA_OOM))
    asked = actions.question(RequestKind.RESTART, snapshot_of(state_of(condition, attempt)))
    assert asked is not None
    assert asked.startswith(text)
    again = attempt_of(2, batch=BATCH)
    nothing = actions.question(RequestKind.RESTART, snapshot_of(state_of(BACKOFF, attempt, again)))
    assert nothing is None, "of the newest attempt"


def test_what_a_restart_ends_and_where_the_next_attempt_begins() -> None:
    def effect(condition: st.Condition, last: int | None, **values: object) -> str:
        return actions.restart_effect(snapshot_of(state_of(condition, attempt_of(last_step=last), **values)))

    assert effect(HELD, 5) == f"5 steps may be lost: the next attempt begins {actions.FROM_FIRST_STEP}"
    assert effect(HELD, 1).startswith("1 step may be lost")
    assert effect(HELD, None) == f"the next attempt begins {actions.FROM_FIRST_STEP}"
    again = "from the checkpoint at step 4 (1 step again)"
    assert effect(HELD, 5, checkpoint=saved(4)) == f"the next attempt begins {again}", "nothing more is lost"
    assert (
        effect(running(), 5, checkpoint=saved(4))
        == f"this ends attempt 1 at step 5+; the next begins {again}"
    )
    assert effect(BACKOFF, 5) == f"the next attempt begins {actions.FROM_FIRST_STEP}"


def test_a_live_run_may_have_a_checkpoint_that_was_not_seen_yet(record: RunFile) -> None:
    """The keeper looks every few seconds, and again when the attempt has ended: what it finds then is taken."""
    knobs = replace_job(record.job.knobs, resume=None, resume_path="--resume", self_resuming=False)

    def snapshot(condition: st.Condition, **found: Any) -> Snapshot:
        job = replace_job(record.job, knobs=replace_job(knobs, **found))
        return snapshot_of(state_of(condition, attempt_of(last_step=5)), run_file=replace(record, job=job))

    live = snapshot(running())
    assert (
        actions.restart_effect(live)
        == f"this ends attempt 1 at step 5+; {BEGINS}, or from a newer checkpoint found then"
    )
    assert "step 0 unless a checkpoint is found when it has ended, may" in actions.overwrite_warning(live)
    assert actions.overwrite_warning(snapshot(HELD)).startswith("restarts from step 0, may overwrite")


def starts(snapshot: Snapshot, typed: tuple[str, ...] | None = None) -> tuple[str, str]:
    """Where the next attempt would begin, and why."""
    return actions.resume_text(snapshot, actions.next_start(snapshot, typed))


def test_a_start_that_was_typed_is_believed(record: RunFile) -> None:
    knobs = replace_job(record.job.knobs, resume=None, resume_path="--resume", self_resuming=False)
    job = replace_job(record.job, cwd="/job", entry_args=("--resume", "c2.pt", "--out", "out"), knobs=knobs)
    state = state_of(HELD, attempt_of(last_step=5), checkpoint=saved(4, path="/job/out/c4.pt"))
    snapshot = snapshot_of(state, run_file=replace(record, job=job))
    newest = "from the checkpoint at step 4 (1 step again)"
    left = (*job.entry_args, "--lr", "2")
    assert starts(snapshot, left) == (newest, "out/c4.pt")
    assert actions.set_to_resume(actions.next_start(snapshot, left)) == "--resume=/job/out/c4.pt"
    typed = ("--resume", "c3.pt")
    assert starts(snapshot, typed) == ("with --resume c3.pt, as given", "")
    assert actions.set_to_resume(actions.next_start(snapshot, typed)) == ""
    assert actions.checkpoint_words(actions.next_start(snapshot)) == "", "it is handed over anyway"
    # No flag is known: a person puts the checkpoint behind whatever the script calls it.
    unknown = replace_job(job, entry_args=("--out", "out"), knobs=replace_job(knobs, resume_path=None))
    snapshot = snapshot_of(state, run_file=replace(record, job=unknown))
    assert starts(snapshot, ("--lr", "2"))[0] == actions.FROM_FIRST_STEP
    assert starts(snapshot, ("--warm", "out/c4.pt"))[0] == "with --warm out/c4.pt, as given"
    assert actions.checkpoint_words(actions.next_start(snapshot)) == "/job/out/c4.pt"


def test_a_step_known_by_the_files_time_alone_is_shown_as_a_guess() -> None:
    guessed = ev.CheckpointCommitted(t=0.0, attempt=1, step=1800, path="c.pt", found=True, step_by_time=True)
    snapshot = snapshot_of(state_of(HELD, attempt_of(last_step=1840), checkpoint=guessed))
    text = "from the checkpoint about step 1 800, by its time (about 40 steps again)"
    assert starts(snapshot) == (text, "c.pt")
    lives = snapshot_of(state_of(running(), attempt_of(last_step=1840), checkpoint=guessed))
    assert actions.cost(lives) == "40 steps since the checkpoint about step 1 800, by its time"


def test_where_it_starts_without_a_checkpoint(record: RunFile) -> None:
    plain = snapshot_of(state_of(HELD))
    assert starts(plain) == (actions.FROM_FIRST_STEP, "no checkpoint is known")
    job = replace_job(record.job, knobs=replace_job(record.job.knobs, self_resuming=True))
    itself = snapshot_of(state_of(HELD), run_file=replace(record, job=job))
    assert starts(itself) == ("from the newest checkpoint that the script finds", "")
    given = replace_job(record.job, entry_args=("--resume", "c2.pt"))
    named = snapshot_of(state_of(HELD), run_file=replace(record, job=given))
    assert starts(named) == ("with --resume c2.pt, as given", "")


def test_the_smaller_batch_is_the_planned_one_else_the_next_divisor(record: RunFile) -> None:
    def suggested(batch: BatchSpec | None, **values: object) -> BatchSpec | None:
        decision = values.pop("decision", None)
        state = state_of(HELD, attempt_of(batch=batch, decision=decision))
        return actions.suggested_batch(snapshot_of(state, **values))  # type: ignore[arg-type]

    assert suggested(None) is None
    assert suggested(BATCH) == BatchSpec(4, 4, 2)
    assert suggested(BatchSpec(1, 2, 2)) == BatchSpec(1, 2, 2), "the same if none is smaller"
    ran_out = attempt_of(trial=MemoryTrial(4, fitted=False)), attempt_of(2, batch=BATCH)
    assert actions.suggested_batch(snapshot_of(state_of(HELD, *ran_out))) == BatchSpec(2, 8, 2)
    change = SpecChange(batch=BatchChange(BATCH, BatchSpec(2, 8, 2)))
    planned = Decision(DecisionKind.RESTART, "", change=change)
    assert suggested(BATCH, decision=planned) == BatchSpec(2, 8, 2)
    unknown = replace_job(record.job, knobs=replace_job(record.job.knobs, batch=None))
    assert suggested(BATCH, run_file=replace(record, job=unknown)) is None
    assert suggested(BATCH, run_file=record) == BatchSpec(4, 4, 2)
    unread = snapshot_of(state_of(HELD, attempt_of(batch=BATCH)))
    assert (actions.batch_flag(unread), actions.batch_copy(unread)) == ("", "")
    read = snapshot_of(unread.state, run_file=record)
    assert (actions.batch_flag(read), actions.batch_copy(read)) == ("", "")
    knobs = replace_job(record.job.knobs, batch="conf/a.yaml#batch", accumulation="conf/b.yaml#accum")
    files = replace(record, job=replace_job(record.job, knobs=knobs))
    copy = "in a copy of conf/a.yaml, conf/b.yaml"
    assert actions.batch_copy(snapshot_of(unread.state, run_file=files)) == copy


# -- keys that do nothing, requests -----------------------------------------------------------------------------


def test_what_became_of_a_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    client = request_client.RequestClient(RunPaths(tmp_path))
    told: list[Answer] = []

    def send(kind: RequestKind = RequestKind.HOLD, **asked: Any) -> None:
        monkeypatch.setattr(request_client, "ask", Mock(return_value="7", **asked))
        client.sender(kind, 1, None, 100.0, told.append)()

    send()
    assert told.pop() == Answer("hold: asked the supervisor process", None)
    late = 100.0 + request_client.PATIENCE_S
    assert client.answers(state_of(), late) == []
    (answer,) = client.answers(state_of(), late + 0.1)
    late_text = "hold: no answer yet; is the supervisor process alive? its log is keeper.log"
    assert answer == Answer(late_text, False)
    assert client.answers(state_of(), late + 9.0) == [], "said once"
    assert client.answers(state_of(answered={"7": "done"}), late + 9.0) == [Answer("hold: done", True)]
    assert client.answers(state_of(answered={"7": "done"}), late + 9.0) == []
    send()
    assert client.answers(state_of(answered={"7": "no"}), 0.0) == [Answer("hold refused: no", False)]
    for kind, said in (
        (RequestKind.STACKS, "stacks: done · p shows them"),
        (RequestKind.NOTE, "note: done"),
        (RequestKind.ANSWER, "answer: done"),
        (RequestKind.STOP_NOW, "stop now: accepted"),
    ):
        send(kind)
        assert client.answers(state_of(answered={"7": "done"}), 0.0) == [Answer(said, True)]
    told.clear()
    send(side_effect=OSError(28, "No space left on device"))
    send(side_effect=NotRequested("it is over"))
    assert told == [
        Answer(f"hold: not sent: No space left on device: {tmp_path / 'control'}", False),
        Answer("hold: not sent: it is over", False),
    ]
    assert client.answers(state_of(answered={"7": "done"}), 0.0) == []
