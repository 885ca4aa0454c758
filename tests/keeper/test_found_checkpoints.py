"""Checkpoints that a script does not report: which are journalled, once, at which step."""

from __future__ import annotations

import os
import zipfile
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.job.arguments.command_line import settings_of
from supervisor.job.knobs.resume_settings import USUAL_OUTPUTS, find_outputs
from supervisor.job.spec import JobSpec
from supervisor.keeper.monitoring.found_checkpoints import (
    REWRITTEN_S,
    SEARCH_EVERY_S,
    SETTLE_S,
    ConcurrentRun,
    FoundCheckpoints,
    Outputs,
    concurrent_runs,
    search,
)
from supervisor.keeper.monitoring.measured_facts import MeasuredFacts
from supervisor.keeper.monitoring.observations import FactSeen
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.fold import replay
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import write_run_file
from supervisor.run.series import METRICS, SeriesWriter
from supervisor.sources.checkpoint_layouts import FoundCheckpoint
from tests.conftest import wait_until
from tests.keeper.fakes import BATCH, Emitted, FakeClock, job_of
from tests.keeper.runs import INTENDED, RUNS, STARTED, T, append

BEGUN = replay((STARTED, INTENDED, RUNS))


def follower(
    tmp_path: Path, series: Path | None = None, **changes: Any
) -> tuple[FoundCheckpoints, FakeClock, Emitted]:
    clock, told = FakeClock(), Emitted()
    job = replace(job_of(tmp_path).job, outputs=(str(tmp_path / "out"),), **changes)
    return FoundCheckpoints(job, clock, told, series), clock, told


def outputs_of(words: Sequence[str]) -> dict[str, Any]:
    """As the job of a command has them."""
    named = find_outputs(settings_of(words))
    return {"outputs": (*named, *USUAL_OUTPUTS), "output_prefixes": named}


def saved(told: Emitted) -> list[ev.CheckpointCommitted]:
    return [fact for fact in told.facts if isinstance(fact, ev.CheckpointCommitted)]


def found(path: str = "/out/c5", step: int | None = 5, t: float = T) -> FoundCheckpoint:
    return FoundCheckpoint(path, step, t, "torch", 5)


def test_each_is_journalled_once(tmp_path: Path) -> None:
    made, clock, told = follower(tmp_path)
    made._take(([found(), found("/out/c6", 6)], None), BEGUN)
    made._take(([found()], None), BEGUN)
    assert [(one.path, one.step, one.found, one.number, one.written_t) for one in saved(told)] == [
        ("/out/c5", 5, True, 5, T),
        ("/out/c6", 6, True, 5, T),
    ]
    assert all(one.attempt == 1 and one.t == clock.wall() and not one.step_by_time for one in saved(told))
    made._take(([found(t=T + 5)], None), BEGUN)
    assert len(saved(told)) == 2, "a file that is kept up to date is journalled once a minute"
    clock.now += REWRITTEN_S
    made._take(([found(t=T + 9)], None), BEGUN)
    assert len(saved(told)) == 3, "written again"
    known = replay((STARTED, INTENDED, RUNS, *saved(told)))
    other, _, again = follower(tmp_path)
    other._take(([found(), found("/out/c6", 6), found(t=T + 9)], None), known)
    assert saved(again) == [], "another keeper of the run knows them"
    made._take(None, BEGUN)
    made._take(([found("/out/c7", 7)], None), st.RunState())
    assert len(saved(told)) == 3


def test_one_whose_name_says_no_step_is_of_the_step_at_its_time(tmp_path: Path) -> None:
    series = SeriesWriter(tmp_path / "series")
    for step in range(5):
        series.append(METRICS, T + 10 * step, "job", 1, {"step": step, "loss": 1.0})
    series.append(METRICS, T + 15, "job", 1, {"loss": 1.0})
    series.close()
    made, clock, told = follower(tmp_path, tmp_path / "series")
    last = replay((STARTED, INTENDED, RUNS, ev.Progress(t=T, attempt=1, step=3)))
    for t, ahead_s, state in (
        (20.0, 0.0, BEGUN),
        (19.9, 0.0, BEGUN),
        (20.5, 10.0, BEGUN),
        (-100.0, 10.0, last),
        (-101.0, 10.0, BEGUN),
    ):
        clock.ahead = ahead_s
        made._take(([found(step=None, t=T + t)], None), state)
        clock.now += REWRITTEN_S
    assert [one.step for one in saved(told)] == [2, 1, 1, 3, 0]
    assert all(one.step_by_time for one in saved(told))


def looked(made: FoundCheckpoints, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times since which files count, of each look that was begun."""
    begun: list[float] = []
    monkeypatch.setattr(
        "supervisor.keeper.monitoring.found_checkpoints.search",
        lambda _job, since_t, _others: begun.append(since_t) or ([], None),  # type: ignore[func-returns-value]
    )
    return begun


def test_where_nothing_is_measured_folders_are_searched_once_a_minute_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, clock, _ = follower(tmp_path)
    begun = looked(made, monkeypatch)
    made.look(BEGUN)
    clock.now += SEARCH_EVERY_S - 1
    made.look(BEGUN)
    assert begun == []
    clock.now += 1
    clock.ahead = -30.0
    made.look(BEGUN)
    assert wait_until(lambda: begun == [T - SETTLE_S - 30.0], 10.0), "a hang ends only if a restart resumes"
    assert wait_until(lambda: not made._looker.working, 10.0)
    made.look(BEGUN)
    made.hear(FactSeen(T, 0, {"kind": "step"}))
    clock.now += 10 * SEARCH_EVERY_S
    made.look(BEGUN)
    assert len(begun) == 1, "measured saves are reported as they come"
    made.finish(BEGUN)
    assert len(begun) == 2, "what an attempt left decides how the next one starts"
    reported = ev.CheckpointCommitted(t=T, attempt=1, step=5, path="/out/c5")
    made.finish(replay((STARTED, INTENDED, RUNS, reported)))
    made.finish(st.RunState())
    assert len(begun) == 2, "a script that reports its checkpoints is not searched for"
    made.close()


def saved_by_torch(path: Path, t: float) -> None:
    """A whole file of `torch.save` with a training's state, as far as stoker looks at one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("c/data.pkl", b"X\x09\x00\x00\x00optimizer")
    os.utime(path, (t, t))


def file_of(folder: Path, name: str, t: float, size: int = 3) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(b"x" * size)
    os.utime(path, (t, t))
    return path


@pytest.mark.fault(
    "recovery",
    "two runs of one folder save checkpoints at the same time",
    "neither resumes from a checkpoint that the other may have written, and an advisory says so",
)
@pytest.mark.parametrize(
    ("ours", "theirs", "taken", "warned"),
    [
        ((), (), [], True),
        ((), ("theirs",), ["ckpt"], False),
        (("ckpt",), (), ["ckpt"], False),
        (("ckpt",), ("ckpt",), [], True),
    ],
)
def test_what_another_run_may_have_written_is_not_taken(
    tmp_path: Path, ours: tuple[str, ...], theirs: tuple[str, ...], taken: list[str], warned: bool
) -> None:
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path), outputs=ours or ("checkpoints",))
    beside = replace(job, outputs=theirs or ("checkpoints",))
    other = ConcurrentRun("able-ant", Outputs.of(beside))
    told = Emitted()
    made = FoundCheckpoints(job, FakeClock(), told, others=lambda _since_t: [other])
    for name in ("ckpt",) if ours else ("ckpt", "theirs"):
        saved_by_torch(tmp_path / name / "ckpt.pt", T)
    made.finish(BEGUN)
    assert [Path(one.path).parent.name for one in saved(told)] == taken
    said = [fact.code for fact in told.facts if isinstance(fact, ev.Advisory)]
    assert said == (["shared_output"] if warned else [])


class Counted(MeasuredFacts):
    """A script whose process made 100 steps in an earlier attempt, and that logs no step of its own."""

    def __init__(self, steps: Sequence[tuple[float, float]] = (), *, logs_steps: bool = False) -> None:
        self.steps, self.logs_steps = deque(steps), logs_steps

    def step_after(self, counted: int) -> int | None:
        return counted + 100


def measured(path: Path, t: float, step: int | None = 5) -> FactSeen:
    record = {"kind": "saved", "path": str(path), "step": step, "t_wall": t}
    return FactSeen(t, 0, record)


def test_what_a_process_was_measured_to_save_is_a_checkpoint_whatever_its_name_and_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / "work").mkdir()
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path / "work"), outputs=())
    told = Emitted()
    made = FoundCheckpoints(job, FakeClock(), told, measured=Counted())
    odd, part = tmp_path / "heap" / "zeta.q7", tmp_path / "heap" / "zeta.q7~"
    best, weights, torn = (tmp_path / "heap" / name for name in ("best.pt", "net.pt", "torn.pt"))
    for path in (odd, best):
        saved_by_torch(path, T + 10)
    file_of(tmp_path / "heap", "torn.pt", T + 10)
    with zipfile.ZipFile(weights, "w") as archive:
        archive.writestr("c/data.pkl", b"X\x06\x00\x00\x00weight")
    os.utime(weights, (T + 10, T + 10))
    for path in (part, best, weights, torn, odd):
        made.hear(measured(path, T + 10.1))
    assert made._begin(BEGUN), "no setting names a folder to look at"
    assert wait_until(lambda: not made._looker.working, 10.0)
    made.finish(BEGUN)
    assert [(one.path, one.step, one.step_by_time) for one in saved(told)] == [(str(odd), 105, False)]
    assert saved(told)[0].layout == "torch.save"
    made.finish(BEGUN)
    assert len(saved(told)) == 1
    made.close()


def test_a_file_that_was_written_again_waits_for_the_record_of_that_save(tmp_path: Path) -> None:
    """Or it would stand in the journal with the step of its time, and the count of its process would come too late."""
    clock, told = FakeClock(), Emitted()
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path), outputs=())
    made = FoundCheckpoints(job, clock, told, measured=Counted())
    path = tmp_path / "heap" / "zeta.q7"
    made.hear(measured(path, clock.wall(), step=5))
    clock.now += 2
    saved_by_torch(path, clock.wall())
    for later_s in (SETTLE_S / 2, 10.0):
        clock.now += later_s
        made.look(BEGUN)
        assert wait_until(lambda: not made._looker.working, 10.0)
        made.hear(measured(path, clock.wall() if later_s < 1 else T, step=10))
    made.finish(BEGUN)
    assert [(one.step, one.step_by_time) for one in saved(told)] == [(110, False)]


@pytest.mark.parametrize(
    ("late_s", "step", "taken"),
    [(0.0, 105, True), (1.0, 42, True), (30.0, None, False)],
    ids=["the save that was measured", "saved again within the second", "written by somebody else"],
)
def test_a_file_that_was_written_after_the_save_that_was_measured(
    tmp_path: Path, late_s: float, step: int | None, taken: bool
) -> None:
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path), outputs=())
    told = Emitted()
    made = FoundCheckpoints(job, FakeClock(), told, measured=Counted([(T, 41), (T + 10.5, 42), (T + 40, 43)]))
    saved_by_torch(tmp_path / "zeta.q7", T + 10 + late_s)
    made.hear(measured(tmp_path / "zeta.q7", T + 10))
    made.finish(BEGUN)
    assert [(one.step, one.step_by_time) for one in saved(told)] == ([(step, late_s > 0)] if taken else [])


@pytest.mark.parametrize(
    ("first", "logged", "step"),
    [
        (1, [(T + 9.9, 105), (T + 11, 106)], 105),
        (0, [(T + 9.9, 104), (T + 11, 105)], 104),
        (1, [(T + 2, 90), (T + 7, 100), (T + 13, 110)], 105),
        (1, [(T + 9.0, 103), (T + 10.2, 105), (T + 11.2, 106)], 105),
        (10, [(T + 9.9, 105), (T + 11, 106)], None),
        (1, [(T + 9.9, 420), (T + 11, 424)], None),
        (1, [(T + 2, 2), (T + 7, 3), (T + 13, 4)], None),
        (1, [], None),
    ],
    ids=[
        "counts from 1", "counts from 0", "logs each tenth", "read late",
        "unknown base", "counts micro-batches", "counts epochs", "nothing near",
    ],
)  # fmt: skip
def test_the_step_of_a_save_is_counted_in_the_steps_of_the_log(
    tmp_path: Path, first: int, logged: list[tuple[float, float]], step: int | None
) -> None:
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path), outputs=())
    told = Emitted()
    made = FoundCheckpoints(job, FakeClock(), told, measured=Counted(logged, logs_steps=True))
    saved_by_torch(tmp_path / "zeta.q7", T + 10)
    made.hear(measured(tmp_path / "zeta.q7", T + 10))
    made.finish(replay((STARTED, INTENDED, RUNS, ev.Progress(t=T + 1, attempt=1, step=first))))
    (found,) = saved(told)
    assert (None if found.step_by_time else found.step) == step


def test_a_saved_part_names_its_folder_which_must_be_whole(tmp_path: Path) -> None:
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path), outputs=())
    told = Emitted()
    made = FoundCheckpoints(job, FakeClock(), told, measured=Counted())
    folder = tmp_path / "deep" / "checkpoint-7"
    saved_by_torch(folder / "optimizer.pt", T + 10)
    file_of(folder, "model.safetensors", T + 10)
    made.hear(measured(folder / "optimizer.pt", T + 10))
    made.finish(BEGUN)
    assert saved(told) == [], "its state is not written yet"
    (folder / "trainer_state.json").write_text('{"global_step": 7}')
    os.utime(folder / "trainer_state.json", (T + 20, T + 20))
    made.hear(measured(folder / "optimizer.pt", T + 10))
    made.finish(BEGUN)
    assert [(one.path, one.step) for one in saved(told)] == [(str(folder), 7)]


def test_no_folder_is_searched_where_saves_are_measured(tmp_path: Path) -> None:
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path), outputs=("checkpoints",))
    told, clock = Emitted(), FakeClock()
    other = ConcurrentRun("able-ant", Outputs.of(job))
    made = FoundCheckpoints(job, clock, told, others=lambda _since_t: [other], measured=Counted())
    saved_by_torch(tmp_path / "checkpoints" / "mine.ckpt", T + 10)
    made.hear(measured(tmp_path / "checkpoints" / "mine.ckpt", T + 10))
    saved_by_torch(tmp_path / "checkpoints" / "model.pt", T + 20)
    made.finish(BEGUN)
    assert [Path(one.path).name for one in saved(told)] == ["mine.ckpt"]
    assert not [fact for fact in told.facts if isinstance(fact, ev.Advisory)]
    alone, _, told = follower(tmp_path)
    saved_by_torch(tmp_path / "out" / "ckpt_9.pt", T + 10)
    alone.hear(FactSeen(T, 0, {"kind": "step"}))
    alone.finish(BEGUN)
    assert [Path(one.path).name for one in saved(told)] == ["ckpt_9.pt"], "no process was seen to save"


def test_a_run_that_had_ended_before_is_no_other_run(tmp_path: Path) -> None:
    runs, env = tmp_path / "runs", {"XDG_STATE_HOME": str(tmp_path / "state")}
    mine, other = RunPaths(runs / "20261126-1200-able-ant"), RunPaths(runs / "20261126-1201-brave-otter")
    for run in (mine, other):
        run.node().root.mkdir(parents=True)
        write_run_file(run.run_json, job_of(tmp_path))
        append(run, STARTED, INTENDED, RUNS)
    ended = read_state(other.node().journal).attempts[-1]
    assert ended.ended_t is None
    found = concurrent_runs(mine, 0.0, env)
    assert [one.name for one in found] == [other.run_id]
    past = other.node().journal.stat().st_mtime + 1.0
    assert concurrent_runs(mine, past, env) == [], "nobody keeps it, and nothing was written since"
    append(other, ev.AttemptEnded(t=T + 5, attempt=1, exit_code=1))
    assert concurrent_runs(mine, T + 9, env) == [], "it waits for a person"
    assert concurrent_runs(mine, T + 3, env)


@pytest.mark.parametrize(
    ("ours", "theirs", "path", "taken", "shared"),
    [
        ("a", "b", "a_ckpt.pt", True, False),
        ("a", "b", "a/ckpt.pt", True, False),
        ("a", "b", "b/ckpt.pt", False, False),
        ("a", "b", "ckpt.pt", False, False),
        ("a", "a_big", "a_big_step10.pt", False, True),
        ("run", "other", "runner_ckpt.pt", False, False),
        ("a_ckpt.pt", "a_ckpt.pt", "a_ckpt.pt", False, True),
        (None, "b", "ckpt.pt", True, False),
        (None, None, "ckpt.pt", False, True),
        ("checkpoints", "outputs", "outputs/step_12.pt", False, False),
        (None, "outputs", "checkpoints/step_10.pt", True, False),
        ("outputs", "outputs", "outputs/step_12.pt", False, True),
        ("42", "outputs", "42/step_10.pt", True, False),
    ],
)
def test_whose_a_checkpoint_is_by_what_each_run_names(
    tmp_path: Path, ours: str | None, theirs: str | None, path: str, taken: bool, shared: bool
) -> None:
    """An output, which may be a folder, a file or the beginning of a name, of two runs in one folder; a usual name is a name, too."""
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path))

    def of(value: str | None) -> JobSpec:
        return replace(job, **outputs_of(("--output_dir", value) if value else ()))

    saved_by_torch(tmp_path / path, T)
    found = search(of(ours), 0.0, lambda _since_t: [ConcurrentRun("able-ant", Outputs.of(of(theirs)))])
    assert (bool(found[0]), found[1] is not None) == (taken, shared)


@pytest.mark.fault(
    "recovery",
    "a training that stoker does not run saves checkpoints in the same folder",
    "checkpoints outside the run's own output are not used",
)
@pytest.mark.parametrize(
    ("args", "folder", "path", "taken"),
    [
        ("--out mine", None, "theirs/step_5.pt", False),  # it failed before it made its folder
        ("--out mine", "mine", "theirs/step_5.pt", False),
        ("--out mine", "mine", "checkpoints/mine/step_5.pt", True),
        ("--out mine", None, "checkpoints/mine_step_5.pt", True),
        ("--out mine", "mine", "checkpoints/mine2/step_5.pt", False),
        ("--output_dir checkpoints", None, "outputs/step_5.pt", False),
        ("--output_dir 42", "42", "outputs/step_5.pt", False),
        ("--output_dir 42", "42", "42/step_5.pt", True),
        ("--lr 1", None, "theirs/step_5.pt", True),
    ],
)
def test_what_lies_outside_the_output_of_the_arguments_is_not_taken(
    tmp_path: Path, args: str, folder: str | None, path: str, taken: bool
) -> None:
    words = args.split()
    if folder is not None:
        (tmp_path / folder).mkdir()
        os.utime(tmp_path / folder, (T + 1, T + 1))
    saved_by_torch(tmp_path / path, T + 5)
    job = replace(
        job_of(tmp_path).job,
        cwd=str(tmp_path),
        entry_args=tuple(words),
        **outputs_of(words),
    )
    assert bool(search(job, T, lambda _since_t: ())[0]) is taken


@pytest.mark.parametrize(
    ("step", "args", "named", "accumulation", "taken"),
    [
        (5, "", "step_65", 1, False),
        (5, "", "step_6", 1, True),  # saved before the line of its step
        (5, "", "step_20", 2, True),  # counts micro-steps
        (100, "", "step_149", 1, True),  # before the next line
        (5, "", "model", 1, True),  # no step in its name
        (5, "--out step_65", "step_65", 1, True),  # a setting names it
        (5, "--resume c.pt", "step_65", 1, True),  # begins at a step that is not known
        (None, "", "step_65", 1, True),
    ],
)
def test_a_checkpoint_far_beyond_the_last_step_of_the_run_is_not_taken(
    tmp_path: Path, step: int | None, args: str, named: str, accumulation: int, taken: bool
) -> None:
    words = args.split()
    saved_by_torch(tmp_path / f"{named}.pt", T + 9)
    job = replace(
        job_of(tmp_path).job,
        cwd=str(tmp_path),
        entry_args=tuple(words),
        **outputs_of(words),
        batch=replace(BATCH, accumulation_steps=accumulation),
    )
    state = replay((STARTED, INTENDED, RUNS, ev.Progress(t=T, attempt=1, step=step)))
    told = Emitted()
    FoundCheckpoints(job, FakeClock(), told).finish(state)
    assert bool(saved(told)) is taken
