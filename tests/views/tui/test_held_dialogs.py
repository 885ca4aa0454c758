"""What a person is asked and told where a run is held: where a restart begins, that an end is final, what to type."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import TextArea

from supervisor.job.batch import BatchChange
from supervisor.job.spec import KnobScope
from supervisor.run import events as ev
from supervisor.run.events import RequestKind
from supervisor.run.journal import JournalWriter
from supervisor.run.paths import RunPaths
from supervisor.run.records import Decision, DecisionKind, FailureClass, SpecChange
from supervisor.run.runfile import read_run_file, write_run_file
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.dialogs.batch import BatchScreen
from supervisor.views.tui.dialogs.edit import Checkpoint, EditScreen
from supervisor.views.tui.dialogs.prompts import Confirm
from tests.keeper.fakes import verdict_of
from tests.views.tui import recorded
from tests.views.tui.driving import drive, on_dashboard, pane, requests, shown, until
from tests.views.tui.recording import Recording

BEGINS = (
    "47 steps may be lost: the next attempt begins from the first step, unless the script resumes by itself"
)
GIVEN = ("--resume", "c2.pt")
REASON = "cuda_oom: steps were made and no whole checkpoint of this run was found for --resume; press e and add --resume PATH"


def held(root: Path, argv: tuple[str, ...] | None = None) -> RunPaths:
    """A script that tells of no checkpoint failed at step 47; `argv`: what a person's restart had changed."""
    rec = Recording(root)
    if argv is not None:
        rec.launch("first launch")
        request = Decision(DecisionKind.RESTART, "ada asked for it", change=SpecChange(argv=argv))
        rec.fact(ev.AttemptEnded(t=rec.t, attempt=1, exit_code=1))
        rec.fact(ev.Decided(t=rec.t, attempt=1, decision=request, by="ada"))
    rec.launch("again")
    rec.steps(1, 47)
    verdict, number = rec.out_of_memory(), rec.number
    rec.fact(ev.AttemptEnded(t=rec.t, attempt=number, exit_code=1, last_step=47))
    rec.fact(ev.Diagnosed(t=rec.t, attempt=number, verdict=verdict))
    rec.decide(DecisionKind.HOLD, REASON)
    rec.fact(ev.Held(t=rec.t, attempt=number, reason=REASON, until=rec.t + 86_400))
    run = rec.close()
    record = read_run_file(run.run_json)
    knobs = replace(record.job.knobs, resume=None, resume_path="--resume")
    write_run_file(run.run_json, msgspec.structs.replace(record, job=replace(record.job, knobs=knobs)))
    return run


def test_the_reason_on_the_card_does_not_repeat_the_class_of_its_title(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        card = pane(app, "card")
        assert "cuda_oom · " in card.splitlines()[0]
        assert "why      steps were made and no whole checkpoint" in card
        assert "--resume; press e and add --resume PATH" in " ".join(card.replace("│", " ").split())
        await pilot.press("v", "G")
        assert "cuda_oom: steps were made" not in pane(app, "failure")

    drive(held(tmp_path / "run"), play, size=(80, 40))


def test_a_held_run_says_where_another_batch_would_begin(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("b")
        await until(pilot, lambda: isinstance(app.screen, BatchScreen), "the dialog")
        await until(pilot, lambda: "47 steps may be lost" in shown(app), "what is lost")

    drive(held(tmp_path / "run"), play)


@pytest.mark.parametrize("key", ["b", "r", "e"])
def test_an_open_dialog_follows_the_run(tmp_path: Path, key: str) -> None:
    rec = Recording(tmp_path / "run")
    rec.launch("first launch")
    run = rec.close()
    outputs(run, "out/big", resume=None, cannot_resume=True)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press(key)
        await until(pilot, lambda: "attempt 1 before its first" in shown(app), "the dialog")
        writer = JournalWriter(run.node().journal)
        writer.append(ev.Progress(t=rec.t + 1, attempt=1, step=45))
        writer.close()
        await until(pilot, lambda: "attempt 1 at step 45+" in shown(app), "where the run is by now")
        if key == "b":
            await pilot.press("enter")
            await until(pilot, lambda: "Enter again: " in shown(app), "a warning that was none at first")
            assert requests(run) == []

    drive(run, play)


def a_found_checkpoint(run: RunPaths) -> None:
    """A checkpoint of step 40 that stoker found whole."""
    writer = JournalWriter(run.node().journal)
    writer.append(ev.CheckpointCommitted(t=recorded.T0, attempt=1, step=40, path="/out/ckpt.pt", found=True))
    writer.close()


def outputs(run: RunPaths, *folders: str, **knobs: object) -> None:
    """What the script writes to, and what is known of it."""
    record = read_run_file(run.run_json)
    job = replace(record.job, outputs=folders, knobs=replace(record.job.knobs, **knobs))  # type: ignore[arg-type]
    write_run_file(run.run_json, msgspec.structs.replace(record, job=job))


def test_one_key_restarts_a_held_run_with_what_is_on_offer(tmp_path: Path) -> None:
    run = recorded.held(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "Enter accept" in pane(app, "footer")
        await pilot.press("enter")
        await until(pilot, lambda: bool(requests(run)), "a request")

    drive(run, play)
    (request,) = requests(run)
    assert (request.kind, request.args.offered, request.if_attempt) == (RequestKind.RESTART_WITH, True, 1)


def test_a_restart_that_may_overwrite_takes_a_second_enter(tmp_path: Path) -> None:
    run = held(tmp_path / "run")
    outputs(run, "out/big", "checkpoints")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        said = "Enter again: restarts from step 0, may overwrite out/big"
        await until(pilot, lambda: said in pane(app, "notice"), "the warning")
        assert requests(run) == []
        await pilot.press("enter")
        await until(pilot, lambda: bool(requests(run)), "a request")

    drive(run, play)
    (request,) = requests(run)
    assert request.args.offered


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({}, "Enter again: restarts from step 0, may overwrite outputs"),
        (
            {"cannot_resume": True, "resume_path": None},
            "Enter again: restarts from step 0, may overwrite outputs",
        ),
        ({"resume_path": None}, "Enter again: stoker cannot tell whether the script resumes by itself: if"),
    ],
)
def test_b_takes_a_second_enter_there_too(tmp_path: Path, knobs: dict[str, Any], said: str) -> None:
    run = held(tmp_path / "run")
    outputs(run, **knobs)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("b")
        await until(pilot, lambda: isinstance(app.screen, BatchScreen), "the dialog")
        await pilot.press("enter")
        await until(pilot, lambda: said in shown(app), "the warning")
        assert isinstance(app.screen, BatchScreen)
        await pilot.press("enter")
        await until(pilot, lambda: bool(requests(run)), "a request")

    drive(run, play)
    (request,) = requests(run)
    assert request.args.micro_batch == 8


@pytest.mark.parametrize("how", ["by itself", "by a path"])
def test_where_it_goes_on_one_enter_is_enough(tmp_path: Path, how: str) -> None:
    run = held(tmp_path / "run")
    if how == "by itself":
        outputs(run, self_resuming=True, resume_path=None)
    else:
        a_found_checkpoint(run)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        where = (
            "the newest checkpoint that the script finds"
            if how == "by itself"
            else "the checkpoint at step 40"
        )
        assert f"from {where}" in pane(app, "card")
        await pilot.press("enter")
        await until(pilot, lambda: bool(requests(run)), "a request")

    drive(run, play)


def test_an_offer_of_another_global_batch_is_said_first(tmp_path: Path) -> None:
    rec = Recording(tmp_path / "run")
    rec.launch("first launch")
    rec.out_of_memory()
    rec.fact(ev.AttemptEnded(t=rec.t, attempt=1, exit_code=1))
    after = replace(rec.batch, micro_batch_per_rank=8)
    change = SpecChange(batch=BatchChange(rec.batch, after))
    rec.fact(ev.Decided(t=rec.t, attempt=1, decision=Decision(DecisionKind.HOLD, REASON, change=change)))
    rec.fact(ev.Held(t=rec.t, attempt=1, reason=REASON, until=rec.t + 86_400))
    run = rec.close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        said = "Enter again: global batch 64 → 32"
        await until(pilot, lambda: said in pane(app, "notice"), "the warning")
        card = pane(app, "card")
        assert f"asked    {said}" in card, "it stands where the keys stood"
        assert "waiting for you" not in card
        assert requests(run) == []

    drive(run, play)


def test_b_offers_a_smaller_global_batch_as_enter_does(tmp_path: Path) -> None:
    """No other micro-batch keeps the global batch where no flag is known for the accumulation."""
    rec = Recording(tmp_path / "run")
    rec.launch("first launch")
    rec.out_of_memory()
    before = rec.batch
    smaller = replace(before, micro_batch_per_rank=before.micro_batch_per_rank // 2)
    decision = Decision(DecisionKind.HOLD, REASON, change=SpecChange(batch=BatchChange(before, smaller)))
    rec.fact(ev.Decided(t=rec.t, attempt=1, decision=decision))
    rec.fact(ev.Held(t=rec.t, attempt=1, reason=REASON, until=rec.t + 86_400))
    run = rec.close()
    outputs(run, accumulation=None)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("b")
        said = "Enter again: global batch 64 → 32"
        await until(pilot, lambda: said in pane(app, "notice"), "the question that Enter asks")
        assert requests(run) == []
        await pilot.press("enter")
        await until(pilot, lambda: bool(requests(run)), "a request")

    drive(run, play)
    assert [each.args.offered for each in requests(run)] == [True]


def test_the_card_says_where_leaving_ends_the_run(tmp_path: Path) -> None:
    rec = Recording(tmp_path / "run")
    rec.launch("first launch")
    wrong = replace(rec.out_of_memory(), failure=FailureClass.CODE_ERROR)
    rec.fact(ev.AttemptEnded(t=rec.t, attempt=1, exit_code=1))
    rec.fact(ev.Diagnosed(t=rec.t, attempt=1, verdict=wrong))
    rec.fact(ev.Decided(t=rec.t, attempt=1, decision=Decision(DecisionKind.HOLD, REASON)))
    rec.fact(ev.Held(t=rec.t, attempt=1, reason=REASON, until=rec.t + 86_400))
    run = rec.close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "(leaving ends the run)" in pane(app, "card")
        assert "(until " not in pane(app, "card")
        assert "leave and end run" in pane(app, "footer")
        await pilot.press("v")
        await until(pilot, lambda: "waiting for you, for another" in pane(app, "failure"), "when")

    drive(run, play, size=(80, 24))


def test_a_held_run_asks_before_a_restart_that_may_overwrite(tmp_path: Path) -> None:
    run = held(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("r")
        await until(pilot, lambda: "restart? the same micro-batch 16 ran out" in shown(app), "the question")
        assert "47 steps may be lost: the" in shown(app)
        assert "by itself" in shown(app), "a long one is shown whole, on two lines"
        await pilot.press("enter")
        await until(pilot, lambda: "not restarted" in pane(app, "notice"), "the answer to a no")

    drive(run, play)
    assert requests(run) == []


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        (
            SpecChange(set_args=(("--num_workers", "4"),)),
            "restart? the same --num_workers 8 ran out of host memory, Enter on the card restarts with --num_workers 4",
        ),
        (SpecChange(), "restart? the same micro-batch 16 ran out of host memory"),
    ],
)
def test_a_restart_after_the_host_ran_out_of_memory_names_what_it_repeats(
    tmp_path: Path, change: SpecChange, asked: str
) -> None:
    rec = Recording(tmp_path / "run")
    rec.launch("first launch")
    rec.fact(ev.AttemptEnded(t=rec.t, attempt=1, exit_code=1))
    rec.fact(ev.Diagnosed(t=rec.t, attempt=1, verdict=verdict_of(FailureClass.HOST_OOM)))
    decision = Decision(DecisionKind.HOLD, "host_oom: a person decides", change=change)
    rec.fact(ev.Decided(t=rec.t, attempt=1, decision=decision))
    rec.fact(ev.Held(t=rec.t, attempt=1, reason="a person decides", until=rec.t + 86_400))
    run = rec.close()
    record = read_run_file(run.run_json)
    job = replace(record.job, entry_args=("--num_workers=8",))
    write_run_file(run.run_json, msgspec.structs.replace(record, job=job))

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("r")
        await until(pilot, lambda: isinstance(app.screen, Confirm), "the question")
        assert isinstance(app.screen, Confirm)
        assert app.screen.question == asked

    drive(run, play)
    assert requests(run) == []


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_question_is_whole_and_its_keys_have_a_line_of_their_own(tmp_path: Path, width: int) -> None:
    run = held(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("r")
        await until(pilot, lambda: isinstance(app.screen, Confirm), "the question")
        await until(pilot, lambda: "y yes  n no" in shown(app), "its keys")
        asked = app.screen
        assert isinstance(asked, Confirm)
        lines = [line.strip() for line in shown(app).splitlines()]
        assert lines[-1] == "y yes  n no"
        text = " ".join(lines[next(at for at, line in enumerate(lines) if line.startswith("restart?")) : -1])
        assert text == asked.question

    drive(run, play, size=(width, 24))


@pytest.mark.parametrize("key", ["s", "S"])
def test_the_end_of_a_held_run_is_asked_about_and_a_no_is_answered(tmp_path: Path, key: str) -> None:
    run = held(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press(key)
        assert isinstance(app.screen, Confirm)
        assert "end the run now? `stoker continue` can start its next attempt later" in shown(app)
        await pilot.press("enter")
        assert on_dashboard(app)
        await until(pilot, lambda: "not stopped" in pane(app, "notice"), "the answer to a no")
        assert requests(run) == []
        await pilot.press(key, "y")
        await until(pilot, lambda: bool(requests(run)), "a request")

    drive(run, play)
    (request,) = requests(run)
    assert request.kind is (RequestKind.STOP if key == "s" else RequestKind.STOP_NOW)


def test_a_start_given_by_hand_is_named(tmp_path: Path) -> None:
    run = held(tmp_path / "run", GIVEN)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "with --resume c2.pt, as given" in pane(app, "card")
        assert "no checkpoint is known" not in pane(app, "card")
        await pilot.press("r")
        assert isinstance(app.screen, Confirm)
        said = "47 steps may be lost: the next attempt begins with --resume c2.pt, as given"
        assert app.screen.question.endswith(said)

    drive(run, play)


def test_the_page_says_the_whole_command_that_would_resume_next_time(tmp_path: Path) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("v")
        await until(
            pilot, lambda: "stoker run --resume-knob '--resume=DIR/FILE'" in pane(app, "failure"), "it"
        )

    drive(held(tmp_path / "run"), play, size=(120, 60))


def test_another_batch_names_the_flag_as_it_was_typed(tmp_path: Path) -> None:
    run = held(tmp_path / "run")
    knobs = {
        "batch": "--batch_size",
        "accumulation": "--accum",
        "batch_scope": KnobScope.GLOBAL,
        "paired": True,
    }
    outputs(run, **knobs)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("b")
        await until(pilot, lambda: "--batch_size 32 (16 a rank)" in shown(app), "the flag")

    drive(run, play)


def test_a_batch_of_a_config_is_said_to_be_changed_in_a_copy(tmp_path: Path) -> None:
    run = held(tmp_path / "run")
    names = {"batch": "configs/base.yaml#train.micro", "accumulation": "configs/base.yaml#train.accumulation"}
    outputs(run, **names)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "in a copy of configs/base.yaml" in pane(app, "card")
        await pilot.press("b")
        await until(pilot, lambda: isinstance(app.screen, BatchScreen), "the dialog")
        assert "in a copy of configs/base.yaml" in shown(app)

    drive(run, play)


@pytest.mark.parametrize(
    ("argv", "knobs", "said"),
    [
        (None, {}, "--resume PATH of the newest checkpoint"),
        (None, {"resume": "--resume", "resume_value": "auto"}, "--resume auto"),
        (
            None,
            {"resume_path": None, "self_resuming": True, "resumes": "train.py:3"},
            "by itself (train.py:3)",
        ),
        (None, {"resume_path": None}, "not known: a restart after the first step waits for you"),
        (GIVEN, {}, "with --resume c2.pt, as given"),
    ],
)
def test_page_i_says_how_a_restart_resumes_as_the_launch_plans_it(
    tmp_path: Path, argv: tuple[str, ...] | None, knobs: dict[str, object], said: str
) -> None:
    run = held(tmp_path / "run", argv)
    outputs(run, **knobs)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("i")
        await until(pilot, lambda: said in " ".join(pane(app, "settings").split()), "how it resumes")

    drive(run, play, size=(160, 60))


def test_a_typed_flag_is_doubted_where_nothing_shows_that_it_resumes(tmp_path: Path) -> None:
    run = held(tmp_path / "run")
    outputs(run, resume_path=None)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("e", *" --load c.pt")
        doubt = "stoker cannot tell whether --load resumes: if it does not, 47 steps may be lost"
        await until(pilot, lambda: doubt in " ".join(shown(app).split()), "the doubt")

    drive(run, play)


def test_a_command_too_long_for_its_line_stands_whole_on_page_i(tmp_path: Path) -> None:
    run = recorded.succeeded(tmp_path / "run")
    command = "stoker run train.py --lr 3e-4 --batch_size 16 --compile"

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("s")
        await until(pilot, lambda: "i shows the command" in pane(app, "notice"), "where it stands")
        await pilot.press("i")
        await until(pilot, lambda: command in pane(app, "settings"), "the command")

    drive(run, play, size=(80, 40))


def test_the_page_that_says_why_offers_itself_no_more(tmp_path: Path) -> None:
    rec = Recording(tmp_path / "run")
    rec.launch("first launch")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "P why" in pane(app, "notice")
        await pilot.press("P")
        await until(pilot, lambda: "P why" not in pane(app, "notice"), "no key to where one is")

    drive(rec.close(), play)


def test_a_checkpoint_that_no_flag_is_known_for_is_put_in_by_one_key(tmp_path: Path) -> None:
    run = held(tmp_path / "run")
    outputs(run, resume_path=None)
    a_found_checkpoint(run)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "from the first step; e, Ctrl-R: from the checkpoint at step 40" in pane(app, "card")
        await pilot.press("e")
        await until(pilot, lambda: "47 steps may be lost" in shown(app), "what is lost")
        await pilot.press(*" --warm ", "ctrl+r")
        believed = "begins with --warm /out/ckpt.pt, as given"
        await until(pilot, lambda: believed in " ".join(shown(app).split()), "the effect")
        await pilot.press("enter")
        await until(pilot, lambda: bool(requests(run)), "a request")

    drive(run, play)
    assert (requests(run)[0].args.argv or ())[-2:] == ("--warm", "/out/ckpt.pt")


@pytest.mark.parametrize(
    ("flag", "text", "said"),
    [
        (None, "grad_accum=2|", "grad_accum=2 |/out/c.pt"),
        (None, "|", "|/out/c.pt"),
        (None, "--init |", "--init /out/c.pt|"),
        (None, "init=|", "init=/out/c.pt|"),
        (None, "--init | --lr 3", "--init /out/c.pt| --lr 3"),
        (None, "--init |--lr 3", "--init /out/c.pt| --lr 3"),
        (None, "init=|old.pt lr=3", "init=/out/c.pt| lr=3"),
        ("--resume", "--config a.yaml|", "--config a.yaml --resume=/out/c.pt|"),
        ("--resume", "--resume b.pt --lr 3|", "--resume /out/c.pt --lr 3|"),
        ("--resume", "--init |", "--init /out/c.pt|"),
        ("init", "lr=3|", "lr=3 init=/out/c.pt|"),
        ("-r", "--lr 3|", "--lr 3 -r /out/c.pt|"),
    ],
)
def test_the_path_of_a_checkpoint_is_a_word_of_its_own(flag: str | None, text: str, said: str) -> None:
    after, at = Checkpoint("/out/c.pt", flag).put_into(text.replace("|", ""), text.index("|"))
    assert f"{after[:at]}|{after[at:]}" == said


def test_a_name_with_an_equals_sign_is_quoted_for_hydra() -> None:
    text, _ = Checkpoint("/o/epoch=3.ckpt").put_into("ckpt_path=", 10)
    assert shlex.split(text) == ["ckpt_path='/o/epoch=3.ckpt'"]
    assert not Checkpoint("/o/epoch=3.ckpt").is_unnamed(shlex.split(text))


def test_nothing_is_started_with_a_path_that_no_flag_takes(tmp_path: Path) -> None:
    run = held(tmp_path / "run")
    outputs(run, resume_path=None)
    a_found_checkpoint(run)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("e", "ctrl+r")
        await until(pilot, lambda: "type the flag before the path" in shown(app), "what is missing")
        await pilot.press("enter", "x", "enter")
        assert isinstance(app.screen, EditScreen), "neither a path by itself nor one behind a letter"
        await pilot.press("backspace", *"--warm ", "enter")
        await until(pilot, lambda: bool(requests(run)), "a request")

    drive(run, play)
    (request,) = requests(run)
    assert (request.args.argv or ())[-2:] == ("--warm", "/out/ckpt.pt")


def test_e_begins_with_the_change_on_offer(tmp_path: Path) -> None:
    run = recorded.held(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("e")
        await until(pilot, lambda: "the change on offer is made here" in shown(app), "what they are")
        assert "--batch_size 8" in app.screen.query_one(TextArea).text
        await pilot.press("ctrl+z")
        assert "--batch_size 16" in app.screen.query_one(TextArea).text
        await until(pilot, lambda: "nothing is changed yet" in shown(app), "the difference")
        await pilot.press("escape", "e", "enter")
        await until(pilot, lambda: bool(requests(run)), "a request")

    drive(run, play)
    (request,) = requests(run)
    assert (request.kind, request.args.offered, request.args.argv) == (RequestKind.RESTART_WITH, True, None)


def test_e_before_a_restart_shows_what_the_restart_changes(tmp_path: Path) -> None:
    """The field has the planned arguments: the difference is to those of the attempt that failed."""
    run = recorded.backing_off(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, EditScreen), "the dialog")
        assert "--batch_size 8" in app.screen.query_one(TextArea).text
        await until(pilot, lambda: "- --batch_size 16" in shown(app), "what the attempt had")
        assert "+ --batch_size 8" in shown(app)
        assert "nothing is changed yet" not in shown(app)
        await pilot.press("enter")
        await until(pilot, lambda: len(requests(run)) == 2, "both requests")

    drive(run, play)
    stopped, restart = requests(run)
    assert stopped.kind is RequestKind.HOLD
    assert (restart.kind, restart.args.offered) == (RequestKind.RESTART_WITH, True)


@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        (("enter",), {"offered": True}),
        ((*" --seed 7", "enter"), {"micro_batch": 8, "argv": ("--seed", "7")}),
        (("ctrl+o", *" --seed 7", "enter"), {"argv": ("--seed", "7")}),
        (("ctrl+o", "enter"), None),
    ],
)
def test_a_change_on_offer_in_a_copy_of_a_config_is_made_with_e_too(
    tmp_path: Path, keys: tuple[str, ...], asked: dict[str, object] | None
) -> None:
    run = recorded.held(tmp_path / "run")
    outputs(
        run, batch="configs/base.yaml#train.batch_size", accumulation="configs/base.yaml#train.accumulate"
    )

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("e")
        change = "+ micro-batch 16 → 8, accumulation 2 → 4, in a copy of configs/base.yaml"
        await until(pilot, lambda: change in shown(app), "what is on offer")
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "nothing is changed yet" in shown(app), "without it")
        await pilot.press("ctrl+o", *keys)
        if asked is None:
            await until(pilot, lambda: "not restarted" in pane(app, "notice"), "why not")
        else:
            await until(pilot, lambda: bool(requests(run)), "a request")

    drive(run, play)
    assert [request.kind for request in requests(run)] == [RequestKind.RESTART_WITH] * (asked is not None)
    for request in requests(run):
        typed = {"argv": (request.args.argv or ())[-2:]} if request.args.argv else {}
        found = {"offered": request.args.offered, "micro_batch": request.args.micro_batch} | typed
        assert {name: value for name, value in found.items() if value} == asked


def test_the_arguments_shown_are_those_of_the_next_launch(tmp_path: Path) -> None:
    rec = Recording(tmp_path / "run")
    rec.launch("first launch")
    rec.out_of_memory()
    rec.fact(ev.AttemptEnded(t=rec.t, attempt=1, exit_code=1))
    rec.decide(DecisionKind.RESTART, REASON)
    rec.launch("smaller")
    rec.steps(1, 7)
    smaller, run = rec.micro // 2, rec.close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("e")
        await until(pilot, lambda: "this ends attempt 2 at step 7" in shown(app), "what it ends")
        assert f"--batch_size {smaller} " in shown(app), "the smaller batch is part of them"

    drive(run, play)
