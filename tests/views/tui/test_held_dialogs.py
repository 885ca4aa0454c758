"""What a person is asked and told where a run is held: where a restart begins, that an end is final, what to type."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
from textual.pilot import Pilot

from supervisor.run import events as ev
from supervisor.run.events import RequestKind
from supervisor.run.journal import JournalWriter
from supervisor.run.paths import RunPaths
from supervisor.run.records import DecisionKind
from supervisor.run.runfile import read_run_file, write_run_file
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.shell.prompts import AskLine, Confirm
from tests.views.tui import recorded
from tests.views.tui.driving import drive, on_dashboard, pane, plays, requests, shown, until
from tests.views.tui.recording import Recording

REASON = "cuda_oom: steps were made and no whole checkpoint of this run was found for --resume; press e and add --resume PATH"


def held(root: Path) -> RunPaths:
    """A script that tells of no checkpoint failed at step 47."""
    rec = Recording(root)
    rec.launch("first launch")
    rec.steps(1, 47)
    rec.out_of_memory()
    rec.decide(DecisionKind.HOLD, REASON)
    rec.fact(ev.Held(t=rec.t, attempt=1, reason=REASON, until=rec.t + 86_400))
    run = rec.close()
    record = read_run_file(run.run_json)
    knobs = replace(record.job.knobs, resume=None, resume_path="--resume")
    write_run_file(run.run_json, msgspec.structs.replace(record, job=replace(record.job, knobs=knobs)))
    return run


def test_an_open_dialog_follows_the_run(tmp_path: Path) -> None:
    rec = Recording(tmp_path / "run")
    rec.launch("first launch")
    run = rec.close()
    outputs(run, "out/big", resume=None, cannot_resume=True)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("b")
        await until(pilot, lambda: "attempt 1 before its first" in shown(app), "the dialog")
        writer = JournalWriter(run.node().journal)
        writer.append(ev.Progress(t=rec.t + 1, attempt=1, step=45))
        writer.close()
        await until(pilot, lambda: "attempt 1 at step 45+" in shown(app), "where the run is by now")
        await pilot.press("enter")
        warned = "restart? restarts from step 0, may overwrite"
        await until(pilot, lambda: warned in shown(app), "a warning that was none at first")
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


@plays(held)
async def test_b_asks_before_it_may_overwrite(app: StokerApp, pilot: Pilot[None], run: RunPaths) -> None:
    said = "restart? restarts from step 0, may overwrite outputs"

    await pilot.press("b")
    await until(pilot, lambda: isinstance(app.screen, AskLine), "the dialog")
    await pilot.press("enter")
    await until(pilot, lambda: said in shown(app), "the warning")
    assert isinstance(app.screen, Confirm)
    await pilot.press("y")
    await until(pilot, lambda: bool(requests(run)), "a request")
    (request,) = requests(run)
    assert request.args.micro_batch == 8


@plays(held)
async def test_the_end_of_a_held_run_is_asked_about_and_a_no_is_answered(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    await pilot.press("s")
    assert isinstance(app.screen, Confirm)
    assert "end the run now? `stoker continue` can start its next attempt later" in shown(app)
    await pilot.press("enter")
    assert on_dashboard(app)
    await until(pilot, lambda: "not stopped" in pane(app, "notice"), "the answer to a no")
    assert requests(run) == []
    await pilot.press("s", "y")
    await until(pilot, lambda: bool(requests(run)), "a request")
    (request,) = requests(run)
    assert request.kind is RequestKind.STOP


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


@plays(held)
async def test_what_is_no_number_is_refused_in_the_box_of_the_batch(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    await pilot.press("b")
    for typed in ("²", *"1234567890"):
        await pilot.press(typed)
    assert "type how many samples a rank holds at once" in shown(app)
    await pilot.press("enter")
    assert requests(run) == []


def test_a_change_that_is_no_argument_is_left_to_the_card(tmp_path: Path) -> None:
    run = recorded.held(tmp_path / "run")
    outputs(
        run, batch="configs/base.yaml#train.batch_size", accumulation="configs/base.yaml#train.accumulate"
    )

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("e")
        await until(pilot, lambda: "this does not: micro-batch 16 → 8" in shown(app), "what is left out")
        await pilot.press("enter")
        await until(pilot, lambda: "nothing changed; not restarted" in pane(app, "notice"), "why not")

    drive(run, play)
    assert requests(run) == []
