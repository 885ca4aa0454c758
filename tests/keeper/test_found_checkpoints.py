"""Checkpoints that a script does not report: which are journalled, once, at which step."""

from __future__ import annotations

import os
import re
import zipfile
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisor.job.arguments.assignments import settings_of
from supervisor.job.knobs.checkpoint_names import USUAL_OUTPUTS, find_prefixes
from supervisor.job.spec import JobSpec
from supervisor.keeper.monitoring.checkpoint_owners import (
    SETTLE_S,
    ConcurrentRun,
    Other,
    Outputs,
    concurrent_runs,
    owner_besides,
)
from supervisor.keeper.monitoring.found_checkpoints import (
    DECIDING_EVERY_S,
    FIRST_STEPS_S,
    LOOK_EVERY_MOST_S,
    LOOK_EVERY_S,
    FoundCheckpoints,
    look_for,
    named_step,
    newest_untaken,
    seen_file,
    untaken_text,
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


def saved(told: Emitted) -> list[ev.CheckpointCommitted]:
    return [fact for fact in told.facts if isinstance(fact, ev.CheckpointCommitted)]


def found(path: str = "/out/c5", step: int | None = 5, t: float = T) -> FoundCheckpoint:
    return FoundCheckpoint(path, step, t, "torch", 5)


def test_each_is_journalled_once(tmp_path: Path) -> None:
    made, clock, told = follower(tmp_path)
    made._take([found(), found("/out/c6", 6)], BEGUN)
    made._take([found()], BEGUN)
    assert [(one.path, one.step, one.found, one.number, one.written_t) for one in saved(told)] == [
        ("/out/c5", 5, True, 5, T),
        ("/out/c6", 6, True, 5, T),
    ]
    assert all(one.attempt == 1 and one.t == clock.wall() and not one.step_by_time for one in saved(told))
    made._take([found(t=T + 5)], BEGUN)
    assert len(saved(told)) == 2, "a file that is kept up to date is journalled once a minute"
    clock.now += LOOK_EVERY_MOST_S
    made._take([found(t=T + 9)], BEGUN)
    assert len(saved(told)) == 3, "written again"
    known = replay((STARTED, INTENDED, RUNS, *saved(told)))
    other, _, again = follower(tmp_path)
    other._take([found(), found("/out/c6", 6), found(t=T + 9)], known)
    assert saved(again) == [], "another keeper of the run knows them"
    made._take(None, BEGUN)
    made._take([found("/out/c7", 7)], st.RunState())
    assert len(saved(told)) == 3


def test_of_what_is_saved_between_two_looks_a_large_journal_gets_the_newest(tmp_path: Path) -> None:
    trains = replay((STARTED, INTENDED, RUNS, ev.Progress(t=T, attempt=1, step=100)))
    many = [found(f"/out/c{step}", step, T + step) for step in range(1, 11)]
    small, _, told = follower(tmp_path)
    small._take(many, trains, trains=True)
    assert len(saved(told)) == 10
    told = Emitted()
    job = replace(job_of(tmp_path).job, outputs=(str(tmp_path / "out"),))
    large = FoundCheckpoints(job, FakeClock(), told, apart_s=lambda: 60.0)
    large._take(many, trains, trains=True)
    assert [one.step for one in saved(told)] == [8, 9, 10]
    large._take(many, trains, trains=True)
    assert len(saved(told)) == 3, "those that were left out do not come later, out of order"
    large._take([*many, found("/out/c11", 11, T + 11), found("/out/c12", 12, T + 12)], trains)
    assert [one.step for one in saved(told)][3:] == [11, 12]


def test_what_the_script_reported_itself_is_known(tmp_path: Path) -> None:
    made, _, told = follower(tmp_path)
    reported = ev.CheckpointCommitted(t=T, attempt=1, step=5, path="/out/c5")
    made._take([found()], replay((STARTED, INTENDED, RUNS, reported)))
    assert saved(told) == []


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
        made._take([found(step=None, t=T + t)], state)
        clock.now += LOOK_EVERY_MOST_S
    assert [one.step for one in saved(told)] == [2, 1, 1, 3, 0]
    assert all(one.step_by_time for one in saved(told))


@pytest.mark.parametrize(
    ("path", "t", "step"),
    [
        ("/out/model_75.pt", 7.5, 75),
        ("/out/model_80.pt", 7.5, 80),
        ("/out/model_70.pt", 7.5, 70),
        ("/out/model_7.pt", 7.5, None),  # of an epoch, or the seventh
        ("/out/epoch_75.pt", 7.5, None),
        ("/out/model_85.pt", 7.5, None),
        ("/out/model_100.pt", 9.5, 100),  # the step after it is not seen yet
        ("/out/model_101.pt", 9.5, None),
        ("/out/model.pt", 7.5, None),
        ("/out/model_5.pt", 0.5, None),
    ],
)
def test_a_number_in_the_name_that_the_steps_bear_out_is_the_step(
    path: str, t: float, step: int | None
) -> None:
    steps = [(float(at), 10.0 * at) for at in range(1, 10)]
    number = next((int(n) for n in re.findall(r"_(\d+)", path)), None)
    one = FoundCheckpoint(path, None, T, "torch.save", number)
    assert named_step(one, t, steps) == step


def test_a_look_is_taken_every_few_seconds(tmp_path: Path) -> None:
    made, clock, _ = follower(tmp_path)
    begun: list[float] = []
    made._find = lambda since_t: begun.append(since_t) or []  # type: ignore[method-assign, func-returns-value]
    made.look(BEGUN)
    clock.now += LOOK_EVERY_S - 1
    made.look(BEGUN)
    assert begun == []
    clock.now += 1
    clock.ahead = -30.0
    made.look(BEGUN)
    assert wait_until(lambda: begun == [T - SETTLE_S - 30.0], 10.0)
    assert wait_until(lambda: not made._looker.working, 10.0)
    made.look(BEGUN)
    assert len(begun) == 1
    made.finish(BEGUN)
    assert len(begun) == 2, "what an attempt left decides how the next one starts"
    made.close()


def test_where_the_script_reports_its_checkpoints_nobody_looks(tmp_path: Path) -> None:
    made, _, _ = follower(tmp_path)
    reported = ev.CheckpointCommitted(t=T, attempt=1, step=5, path="/out/c5")
    assert not made._begin(replay((STARTED, INTENDED, RUNS, reported)))
    assert not made._begin(st.RunState())
    assert made._begin(BEGUN)
    assert not made._begin(BEGUN), "one look at a time"
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


def test_the_newest_file_that_is_named_like_a_checkpoint(tmp_path: Path) -> None:
    job: JobSpec = replace(job_of(tmp_path).job, outputs=("out",), cwd=str(tmp_path))
    assert seen_file(job, BEGUN) is None
    file_of(tmp_path / "out", "old.pt", INTENDED.t - SETTLE_S - 1)
    file_of(tmp_path / "out", "notes.txt", T + 50)
    file_of(tmp_path / "out", "empty.pt", T + 60, size=0)
    assert seen_file(job, BEGUN) is None
    file_of(tmp_path / "out", "one.pt", INTENDED.t - SETTLE_S)
    file_of(tmp_path / "out", "Two.PT", T + 40)
    said = seen_file(job, BEGUN)
    assert said is not None
    assert said.startswith("out/Two.PT was written at ")
    assert said.endswith("; whether it is whole is not known")
    assert seen_file(job, st.RunState()) is None
    assert seen_file(replace(job, knobs=replace(job.knobs, resume="--resume")), BEGUN) is None
    checkpoint = ev.CheckpointCommitted(t=T, attempt=1, step=5, path="/out/c5")
    assert seen_file(job, replay((STARTED, INTENDED, RUNS, checkpoint))) is None


@pytest.mark.parametrize("name", ["model.pt", "MODEL.CKPT", "weights"])
def test_a_flag_may_name_the_file_or_its_folder(tmp_path: Path, name: str) -> None:
    job: JobSpec = replace(job_of(tmp_path).job, outputs=(f"deep/{name}",), cwd=str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    folder = tmp_path / "elsewhere" / "deep" / ("" if "." in name else name)
    file_of(folder, "found.pt", T + 1)
    said = seen_file(job, BEGUN)
    assert said is not None
    assert "found.pt" in said


@pytest.mark.parametrize(
    ("outputs", "holds", "looked_at"),
    [
        (("outputs",), "", ["work/outputs", "work"]),
        (("outputs",), "work/outputs", ["work/outputs"]),
        (("mine", "outputs"), "", ["work/mine"]),
        (("absent", "outputs"), "", ["work"]),
    ],
)
def test_the_scripts_own_folder_is_looked_through_only_where_no_output_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    outputs: tuple[str, ...],
    holds: str,
    looked_at: list[str],
) -> None:
    looked: list[str] = []

    def find(folders: Any, since_t: float, **_options: Any) -> list[FoundCheckpoint]:
        looked.extend(os.path.relpath(folder, tmp_path) for folder in folders)
        return [found()] if holds in looked else []

    monkeypatch.setattr("supervisor.keeper.monitoring.found_checkpoints.find_checkpoints", find)
    (tmp_path / "work" / "mine").mkdir(parents=True)
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path / "work"), outputs=outputs)
    assert bool(FoundCheckpoints(job, FakeClock(), Emitted())._find(0.0)) is bool(holds)
    assert looked == looked_at


def test_a_folder_of_the_script_beside_the_runs_is_looked_through(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "runs" / "20261120-1412-brave-otter")
    for folder in (run.node().root, tmp_path / "runs" / "exp1" / "checkpoints"):
        file_of(folder, "ckpt.pt", T + 1)
        with zipfile.ZipFile(folder / "ckpt.pt", "w") as archive:
            archive.writestr("c/data.pkl", b"X\x09\x00\x00\x00optimizer")
    run.node().journal.touch()
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path), outputs=USUAL_OUTPUTS)
    sighted = look_for(job, 0.0, lambda _since_t: ())
    assert [os.path.relpath(one.path, tmp_path) for one in sighted.ours] == ["runs/exp1/checkpoints/ckpt.pt"]


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
        (("ckpt",), ("theirs",), ["ckpt"], False),
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
    made._take(made._find(0.0), BEGUN)
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


def test_what_was_saved_a_moment_ago_is_not_looked_at_before_it_may_have_its_last_name(
    tmp_path: Path,
) -> None:
    made, clock, told = follower(tmp_path)
    part = tmp_path / "heap" / "zeta.q7~"
    saved_by_torch(part, clock.wall())
    made.hear(measured(part, clock.wall()))
    assert made._begin(BEGUN)
    assert made._looking_at == {}
    assert wait_until(lambda: not made._looker.working, 10.0)
    made.finish(BEGUN)
    assert [one.path for one in saved(told)] == [str(part)], "what an attempt left is what it left"


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


def test_what_is_found_on_the_disk_too_is_journalled_once_also_behind_a_link(tmp_path: Path) -> None:
    made, _, told = follower(tmp_path, cwd=str(tmp_path))
    saved_by_torch(tmp_path / "out" / "ckpt_9.pt", T + 10)
    (tmp_path / "link").symlink_to(tmp_path / "out")
    made.hear(measured(tmp_path / "link" / "ckpt_9.pt", T + 10))
    made.finish(BEGUN)
    assert [one.path for one in saved(told)] == [str(tmp_path / "out" / "ckpt_9.pt")]


def test_a_measured_save_is_this_runs_where_another_run_writes_to_the_same_folder(tmp_path: Path) -> None:
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path), outputs=("checkpoints",))
    told = Emitted()
    other = ConcurrentRun("able-ant", Outputs.of(job))
    made = FoundCheckpoints(job, FakeClock(), told, others=lambda _since_t: [other], measured=Counted())
    saved_by_torch(tmp_path / "checkpoints" / "mine.ckpt", T + 10)
    made.hear(measured(tmp_path / "checkpoints" / "mine.ckpt", T + 10))
    saved_by_torch(tmp_path / "checkpoints" / "model.pt", T + 20)
    made._begin(BEGUN)
    made.finish(BEGUN)
    assert {Path(one.path).name for one in saved(told)} == {"mine.ckpt"}
    assert [fact.code for fact in told.facts if isinstance(fact, ev.Advisory)] == ["shared_output"]


def test_a_file_that_was_written_again_waits_for_the_record_of_that_save(tmp_path: Path) -> None:
    """Or it would stand in the journal with the step of its time, and the count of its process would come too late."""
    clock, told = FakeClock(), Emitted()
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path), outputs=())
    made = FoundCheckpoints(job, clock, told, measured=Counted())
    path = tmp_path / "heap" / "zeta.q7"
    made.hear(measured(path, clock.wall(), step=5))
    clock.now += 2
    saved_by_torch(path, clock.wall())
    clock.now += SETTLE_S / 2
    made.look(BEGUN)
    assert wait_until(lambda: not made._looker.working, 10.0)
    made.hear(measured(path, clock.wall(), step=10))
    clock.now += 10
    made.look(BEGUN)
    assert wait_until(lambda: not made._looker.working, 10.0)
    made.finish(BEGUN)
    assert [(one.step, one.step_by_time) for one in saved(told)] == [(110, False)]


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "saved"},
        {"kind": "saved", "path": 3},
        {"kind": "saved", "path": "relative.pt"},
        {"kind": "saved", "path": "/a\0b"},
        {"kind": "loaded", "path": "/a/b.pt"},
    ],
)
def test_a_record_that_names_no_path_is_left_out(tmp_path: Path, record: dict[str, Any]) -> None:
    made, _, told = follower(tmp_path)
    made.hear(FactSeen(T, 0, record))
    assert made._saved == {}
    made.finish(BEGUN)
    assert saved(told) == []


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
    outputs = found[0].outputs
    assert outputs.may_hold(str(tmp_path / "out" / "c.pt"))
    assert not outputs.may_hold("/elsewhere/c.pt")
    past = other.node().journal.stat().st_mtime + 1.0
    assert concurrent_runs(mine, past, env) == [], "nobody keeps it, and nothing was written since"
    append(other, ev.AttemptEnded(t=T + 5, attempt=1, exit_code=1))
    assert concurrent_runs(mine, T + 9, env) == [], "it waits for a person"
    assert concurrent_runs(mine, T + 3, env)


@pytest.mark.parametrize(
    ("ours", "theirs", "path", "owner"),
    [
        ("a", "b", "a.pt", None),
        ("a", "b", "a_step10.pt", None),
        ("a", "b", "a/c.pt", None),
        ("a", "b", "b_step10.pt", "theirs"),
        ("a", "b", "b/c.pt", "theirs"),
        ("a", "b", "c.pt", "unclear"),
        ("a", "a_big", "a_10.pt", None),
        ("a", "a_big", "a_big_10.pt", "theirs"),
        ("a_big", "a", "a_big_10.pt", None),
        ("run1", "run12", "run12_5.pt", "theirs"),
        ("run", "other", "runner.pt", "unclear"),
        ("a.pt", "b.pt", "a-10.pt", None),
        ("a.pt", "a.pt", "a.pt", "unclear"),
        ("out/", "out/", "out/c.pt", "unclear"),
        ("a", "b", "a_old/c.pt", "unclear"),
        (None, "b", "b/c.pt", "theirs"),
        (None, "b", "c.pt", "unclear"),
        ("a", None, "a/c.pt", None),
        (None, None, "c.pt", "unclear"),
    ],
)
def test_whose_a_checkpoint_is_by_what_each_run_names(
    tmp_path: Path, ours: str | None, theirs: str | None, path: str, owner: str | None
) -> None:
    """`--out`, which may be a folder, a file or the beginning of a name: of two runs in one folder."""
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path), outputs=("checkpoints",))

    def outputs(value: str | None) -> Outputs:
        return Outputs.of(replace(job, output_prefixes=(value,) if value is not None else ()))

    other = ConcurrentRun("able-ant", outputs(theirs))
    found = owner_besides(str(tmp_path / path), T, outputs(ours), [other])
    assert found == (Other("able-ant", owner == "theirs") if owner is not None else None)


def test_what_was_written_when_the_other_run_did_not_train_is_this_runs(tmp_path: Path) -> None:
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path), outputs=("checkpoints",))
    other = ConcurrentRun("able-ant", Outputs.of(job), ((T, T + 10), (T + 30, T + 40)))
    path = str(tmp_path / "c.pt")
    times = {T - 5: True, T + 5: False, T + 20: True, T + 35: False, T + 60: True}
    for t, is_ours in times.items():
        assert (owner_besides(path, t, Outputs.of(job), [other]) is None) is is_ours, t


def test_files_that_begin_as_the_output_setting_says_are_found(tmp_path: Path) -> None:
    for name in ("a_step10.pt", "b_step10.pt"):
        saved_by_torch(tmp_path / name, T)
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path), outputs=("checkpoints",), output_prefixes=("a",))
    beside = replace(job, output_prefixes=("b",))
    told = Emitted()
    other = ConcurrentRun("able-ant", Outputs.of(beside))
    made = FoundCheckpoints(job, FakeClock(), told, others=lambda _since_t: [other])
    made._take(made._find(0.0), BEGUN)
    assert [Path(one.path).name for one in saved(told)] == ["a_step10.pt"]
    assert not [fact for fact in told.facts if isinstance(fact, ev.Advisory)], "each has its own"


def test_a_newer_one_that_was_not_taken_is_named(tmp_path: Path) -> None:
    began_t = INTENDED.t
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path), outputs=("checkpoints",))
    other = ConcurrentRun("able-ant", Outputs.of(job), ((began_t + 20, began_t + 90),))
    saved_by_torch(tmp_path / "step_10.pt", began_t + 10)
    mine = ev.CheckpointCommitted(
        t=T, attempt=1, step=10, path=str(tmp_path / "step_10.pt"), found=True, written_t=began_t + 10
    )
    state = replay((STARTED, INTENDED, RUNS, mine))
    assert newest_untaken(job, state, lambda _since_t: [other]) is None
    saved_by_torch(tmp_path / "step_40.pt", began_t + 40)
    untaken = newest_untaken(job, state, lambda _since_t: [other])
    assert untaken is not None
    text = "step_40.pt (step 40) is newer and was not taken: run able-ant may have written it"
    assert untaken_text(job, untaken) == text
    assert newest_untaken(job, state, lambda _since_t: []) is None, "nobody else trained"


@pytest.mark.fault(
    "recovery",
    "a training that stoker does not run saves checkpoints in the same folder",
    "what lies outside the output that the run's own arguments name is not taken, and the reason names it",
)
@pytest.mark.parametrize(
    ("args", "folder", "path", "taken"),
    [
        ("--out mine", None, "theirs/step_5.pt", False),  # it failed before it made its folder
        ("--out mine", "mine", "theirs/step_5.pt", False),
        ("--save mine", "mine", "checkpoints/step_5.pt", False),
        ("-o mine", "mine", "theirs/step_5.pt", False),
        ("--exp mine", "mine", "theirs/step_5.pt", False),
        ("-o mine", "mine", "mine/step_5.pt", True),
        ("--out mine", "mine", "checkpoints/mine/step_5.pt", True),
        ("--out mine", None, "checkpoints/mine_step_5.pt", True),
        ("--out mine", "mine", "checkpoints/mine2/step_5.pt", False),
        ("-o mine", None, "theirs/step_5.pt", True),  # no folder of that name: it may name anything
        ("--data mine", "mine", "theirs/step_5.pt", True),
        ("--results mine", None, "theirs/step_5.pt", True),
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
    prefixes = find_prefixes(settings_of(words))
    job = replace(
        job_of(tmp_path).job,
        cwd=str(tmp_path),
        entry_args=tuple(words),
        outputs=USUAL_OUTPUTS,
        output_prefixes=prefixes,
    )
    sighted = look_for(job, T, lambda _since_t: ())
    assert bool(sighted.ours) is taken
    untaken = newest_untaken(job, BEGUN, lambda _since_t: ())
    said = f"{path} (step 5) is newer and was not taken: this run writes to mine"
    assert (untaken_text(job, untaken) if untaken is not None else None) == (None if taken else said)
    assert (seen_file(job, BEGUN) is not None) is taken


def test_a_folder_that_was_not_written_to_since_is_no_output(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    os.utime(tmp_path / "old", (T - 60, T - 60))
    saved_by_torch(tmp_path / "theirs" / "step_5.pt", T + 5)
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path), entry_args=("-o", "old"), outputs=USUAL_OUTPUTS)
    assert look_for(job, T, lambda _since_t: ()).ours


def test_another_run_that_writes_to_its_own_folder_writes_nowhere_else(tmp_path: Path) -> None:
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path), outputs=USUAL_OUTPUTS)
    beside = replace(job, entry_args=("--out", "theirs"), output_prefixes=("theirs",))
    other = ConcurrentRun("able-ant", Outputs.of(beside), ((T - 60, T + 60),))
    path = str(tmp_path / "ckpt-sh" / "step_20.pt")
    assert owner_besides(path, T, Outputs.of(job), [other]) == Other("able-ant", False), "not made yet"
    (tmp_path / "theirs").mkdir()
    os.utime(tmp_path / "theirs", (T, T))
    assert owner_besides(path, T, Outputs.of(job), [other]) is None


@pytest.mark.parametrize(
    ("steps", "args", "named", "accumulation", "taken"),
    [
        ((1, 2, 3, 4, 5), "", "step_65", 1, False),
        ((1, 2, 3, 4, 5), "", "step_6", 1, True),  # saved before the line of its step
        ((1, 2, 3, 4, 5), "", "step_10", 2, True),  # counts micro-steps
        ((50, 100), "", "step_149", 1, True),  # before the next line
        ((50, 100), "", "step_151", 1, False),
        ((1, 2, 3, 4, 5), "", "model", 1, True),  # no step in its name
        ((1, 2, 3, 4, 5), "--out step_65", "step_65", 1, True),  # a setting names it
        ((1, 2, 3, 4, 5), "--resume c.pt", "step_65", 1, True),  # begins at a step that is not known
        ((1, 20, 1, 5), "", "step_65", 1, True),  # counts the steps of an epoch
        ((16, 1, 2, 3), "", "step_65", 1, False),  # a line before the first step looks like one
        ((5,), "", "step_65", 1, True),
        ((), "", "step_65", 1, True),
    ],
)
def test_a_checkpoint_beyond_the_last_step_of_the_run_is_not_taken(
    tmp_path: Path, steps: tuple[int, ...], args: str, named: str, accumulation: int, taken: bool
) -> None:
    writer = SeriesWriter(tmp_path / "series")
    for at, step in enumerate(steps):
        writer.append(METRICS, T + at, "job", 1, {"step": step, "loss": 1.0})
    writer.close()
    words = args.split()
    saved_by_torch(tmp_path / f"{named}.pt", T + 9)
    job = replace(
        job_of(tmp_path).job,
        cwd=str(tmp_path),
        entry_args=tuple(words),
        outputs=USUAL_OUTPUTS,
        output_prefixes=find_prefixes(settings_of(words)),
        batch=replace(BATCH, accumulation_steps=accumulation),
    )
    ahead = (ev.Progress(t=T, attempt=1, step=step) for step in steps)
    state = replay((STARTED, INTENDED, RUNS, *ahead))
    told = Emitted()
    found = FoundCheckpoints(job, FakeClock(), told, tmp_path / "series")
    found._take(found._find(T), state)
    assert bool(saved(told)) is taken
    untaken = newest_untaken(job, state, lambda _since_t: (), tmp_path / "series")
    assert (untaken is None) is taken
    if untaken is not None:
        assert untaken_text(job, untaken).endswith(f"not taken: this run has only reached step {steps[-1]}")


def test_a_step_that_no_setting_places_waits_for_the_first_steps_of_the_log(tmp_path: Path) -> None:
    clock, told = FakeClock(), Emitted()
    began = replay((STARTED, msgspec.structs.replace(INTENDED, t=clock.wall()), RUNS))
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path), outputs=USUAL_OUTPUTS)
    made = FoundCheckpoints(job, clock, told)
    one = [found(str(tmp_path / "step_65.pt"), 65)]
    made._take(one, began, trains=True)
    assert not saved(told)
    clock.now += FIRST_STEPS_S
    made._take(one, began, trains=True)
    assert len(saved(told)) == 1, "the log names no steps"
    at_end = Emitted()
    FoundCheckpoints(job, FakeClock(), at_end)._take(one, began)
    assert len(saved(at_end)) == 1


def test_a_file_that_another_run_may_have_written_is_not_shown_as_this_runs(tmp_path: Path) -> None:
    job = replace(job_of(tmp_path).job, cwd=str(tmp_path), outputs=("checkpoints",))
    file_of(tmp_path, "theirs.pt", T + 40)
    other = ConcurrentRun("able-ant", Outputs.of(job))
    assert seen_file(job, BEGUN, lambda _since_t: [other]) is None
    assert seen_file(job, BEGUN) is not None


def test_folders_that_take_long_are_looked_at_less_often(tmp_path: Path) -> None:
    made, clock, _ = follower(tmp_path)
    begun: list[float] = []
    made._find = lambda since_t: begun.append(since_t) or []  # type: ignore[method-assign, func-returns-value]
    made._took_s = 0.2
    # A person who opens the screen reads of what was written 5 s ago, not 20.
    for late_s, watched, looks in (
        (19.0, False, 0),
        (1.0, False, 1),
        (LOOK_EVERY_S - 1, True, 1),
        (1.0, True, 2),
    ):
        clock.now += late_s
        made.look(BEGUN, watched=watched)
        assert wait_until(lambda: not made._looker.working, 10.0)
        assert len(begun) == looks


def test_a_person_in_a_dialog_about_the_next_attempt_reads_of_what_was_written_a_second_ago(
    tmp_path: Path,
) -> None:
    made, clock, _ = follower(tmp_path)
    begun: list[float] = []
    made._find = lambda since_t: begun.append(since_t) or []  # type: ignore[method-assign, func-returns-value]
    for deciding, looks in ((False, 0), (True, 1), (True, 2), (False, 2)):
        clock.now += DECIDING_EVERY_S
        made.look(BEGUN, watched=True, deciding=deciding)
        assert wait_until(lambda: not made._looker.working, 10.0)
        assert len(begun) == looks
