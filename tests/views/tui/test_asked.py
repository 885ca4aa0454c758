"""What cannot be read of a batch is asked on the card: the numbers of each answer, one key for it, then Enter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
from textual.pilot import Pilot

from supervisor.job.batch import BatchChange, BatchSpec
from supervisor.job.knobs.measured_knobs import MeasuredSettings, OpenAnswer
from supervisor.job.spec import IN_CODE, BatchAnswer, BatchQuestion, EntryKind, Knobs, KnobScope, Unread
from supervisor.run import events as ev
from supervisor.run.answers import batch_question
from supervisor.run.events import RequestKind
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.records import Decision, DecisionKind, FailureClass, SpecChange
from supervisor.run.runfile import read_run_file, write_run_file
from supervisor.views.tui.app import StokerApp
from tests.views.tui import recorded
from tests.views.tui.driving import drive, pane, plays, requests, shown, until
from tests.views.tui.recording import Recording

PER_RANK, WHOLE = BatchSpec(16, 2, 2), BatchSpec(4, 2, 2)
WITH_BATCH = MeasuredSettings(BatchSpec(8, 1, 2), "--batch_size", KnobScope.PER_RANK, accumulation="--accum")
MEASURED = ev.BatchMeasured(
    t=recorded.T0,
    attempt=1,
    micro_batch=8,
    accumulation=1,
    world_size=2,
    refusal="what makes the 8 samples of a rank is one of --batch_size, --mini_batch_size",
    help="--batch-knob NAME",
    asks=Unread.MICRO,
    answers=(
        OpenAnswer("--batch_size", 8, WITH_BATCH),
        OpenAnswer("--mini_batch_size", 8, replace(WITH_BATCH, setting="--mini_batch_size")),
        OpenAnswer(IN_CODE, None, MeasuredSettings(refusal="it is in the code, as you answered")),
    ),
)
QUESTION = BatchQuestion(
    Unread.SCOPE,
    "--batch_size",
    16,
    (
        BatchAnswer("per_rank", BatchChange(PER_RANK, BatchSpec(8, 4, 2))),
        BatchAnswer("global", BatchChange(WHOLE, BatchSpec(2, 4, 2))),
    ),
)
REASON = "cuda_oom: --batch_size may be divided by --grad_accum in the source (--batch-scope per_rank, or --batch-scope global)"


def held(root: Path) -> RunPaths:
    """Memory ran out before the first step, and what the batch counts is not known."""
    rec = Recording(root)
    rec.launch("first launch")
    rec.fact(ev.AttemptEnded(t=rec.t, attempt=1, exit_code=1))
    rec.fact(ev.Diagnosed(t=rec.t, attempt=1, verdict=rec.out_of_memory()))
    decision = Decision(DecisionKind.HOLD, REASON, change=SpecChange(), asks=True)
    rec.fact(ev.Decided(t=rec.t, attempt=1, decision=decision))
    rec.fact(ev.BatchAsked(t=rec.t, attempt=1, question=QUESTION))
    rec.fact(ev.Held(t=rec.t, attempt=1, reason=REASON, until=rec.t + 86_400))
    run = rec.close()
    record = read_run_file(run.run_json)
    job = replace(
        record.job,
        batch=None,
        knobs=Knobs(batch="--batch_size", refusal="--batch_size may be divided"),
    )
    write_run_file(run.run_json, msgspec.structs.replace(record, job=job))
    return run


def measured(root: Path) -> RunPaths:
    """Two settings fit what was measured."""
    rec = Recording(root)
    rec.launch("first launch")
    rec.fact(MEASURED)
    record = read_run_file(rec.run.run_json)
    write_run_file(
        rec.run.run_json,
        msgspec.structs.replace(
            record, job=replace(record.job, entry_kind=EntryKind.SCRIPT, knobs=Knobs(), batch=None)
        ),
    )
    question = batch_question(read_run_file(rec.run.run_json).job, read_state(rec.run.node().journal))
    assert question is not None
    rec.fact(ev.BatchAsked(t=rec.t, attempt=1, question=question))
    text = f"out of memory would wait for you: {MEASURED.refusal}"
    rec.fact(ev.Advisory(t=rec.t, attempt=1, code=f"{ev.ON_OOM}ends", text=text))
    return rec.close()


@plays(measured)
async def test_it_is_asked_while_it_trains_and_one_key_answers(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    assert "which setting makes the 8?" in shown(app)
    assert "6 --batch_size 7 --mini_batch_size 8 code" in shown(app)
    await pilot.press("6")
    await until(pilot, lambda: bool(requests(run)), "a request")
    (request,) = requests(run)
    assert (request.kind, request.args.answer) == (RequestKind.ANSWER, "--batch_size")


@plays(held)
async def test_the_card_has_the_numbers_of_each_answer_and_one_key_gives_it(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    card = pane(app, "card")
    assert "what does --batch_size 16 count?" in card
    assert "6      16 is per rank: 8 × accumulation 4 × 2 ranks = global batch 64" in card
    assert "7      16 is global: 2 × accumulation 4 × 2 ranks = global batch 16" in card
    assert "one key answers, then Enter restarts" in card
    assert "on offer" not in card, "nothing is before it is answered"
    assert "6 per rank  7 global" in pane(app, "footer")
    assert "8 " not in pane(app, "footer")
    await pilot.press("8")
    await until(pilot, lambda: "that is no answer" in shown(app), "no third")
    await pilot.press("b")
    await until(pilot, lambda: "6 or 7 answers what is asked" in shown(app), "b points to it")
    assert not requests(run)
    await pilot.press("6")
    await until(pilot, lambda: bool(requests(run)), "a request")
    (request,) = requests(run)
    assert (request.kind, request.args.answer, request.if_attempt) == (RequestKind.ANSWER, "per_rank", 1)


def test_a_restart_that_did_not_resume_says_where_the_copy_is_and_asks_how_the_script_counts(
    tmp_path: Path,
) -> None:
    rec = Recording(tmp_path / "run")
    rec.launch("first launch")
    restarts = BatchAnswer("restarts", refusal="restart from the newest checkpoint")
    answers = restarts, BatchAnswer("continues", refusal="wait: the resume needs a fix first")
    question = BatchQuestion(Unread.COUNTER, "", None, answers, "abc")
    reason = (
        "did not resume: began at step 0; checkpoint 200 is kept as a copy: /r/attempts/1/.stoker-kept-200"
    )
    title = "did not resume: began at step 0, not after checkpoint 200"
    rec.fact(ev.CheckpointKept(t=rec.t, attempt=1, step=200, path="/o/200.pt", copy="/r/.stoker-kept-200"))
    rec.fact(ev.ResumeMissed(t=rec.t, attempt=1, step=200, began=0))
    rec.fact(ev.StopIntended(t=rec.t, attempt=1, why=ev.StopWhy.NOT_RESUMED, by="keeper", grace_s=5.0))
    rec.fact(ev.AttemptEnded(t=rec.t, attempt=1, exit_code=1))
    verdict = replace(rec.out_of_memory(), failure=FailureClass.CHECKPOINT_LOAD, title=title, cause=None)
    rec.fact(ev.Diagnosed(t=rec.t, attempt=1, verdict=verdict))
    decision = Decision(DecisionKind.HOLD, reason, change=SpecChange(), asks=True)
    rec.fact(ev.Decided(t=rec.t, attempt=1, decision=decision))
    rec.fact(ev.BatchAsked(t=rec.t, attempt=1, question=question))
    rec.fact(ev.Held(t=rec.t, attempt=1, reason=reason, until=rec.t + 86_400))
    run = rec.close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        card = pane(app, "card")
        assert title in card
        assert "checkpoint 200 is kept as a copy: /r/attempts/1/.stoker-kept-200" in card
        assert "does the script's step count start over at 0 after a resume?" in card
        assert "6      yes: its step count starts over at 0: restart from the newest checkpoint" in card
        assert "then Enter restarts" not in card, "an answer alone decides"
        await pilot.press("6")
        await until(pilot, lambda: bool(requests(run)), "a request")

    drive(run, play)
    (request,) = requests(run)
    assert (request.kind, request.args.answer) == (RequestKind.ANSWER, "restarts")
