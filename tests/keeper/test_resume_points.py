"""Where the next attempt continues: the resume flag is set where there is a checkpoint for it, and never with another batch than was planned."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace as replace_fields

from supervisor.job.batch import BatchChange, BatchSpec, with_micro_batch
from supervisor.job.errors import NotResumableError
from supervisor.job.launch.plan import LaunchPlan
from supervisor.job.spec import NAMED, EntryKind, Knobs
from supervisor.keeper.planning import launch_plans as plans
from supervisor.keeper.planning import resume_points
from supervisor.keeper.planning.decisions import policy_input
from supervisor.keeper.planning.resume_points import drop_copies, usable_checkpoint
from supervisor.run import events as ev
from supervisor.run.control import RequestArgs
from supervisor.run.fold import fold, replay
from supervisor.run.paths import RunPaths
from supervisor.run.records import Decision, DecisionKind, FailureClass, SpecChange
from supervisor.run.runfile import RunFile
from supervisor.run.state import RunState
from supervisor.sources.checkpoint_layouts import whole_at
from tests.conftest import not_none
from tests.keeper.fakes import BATCH, KNOBS, job_of, verdict_of
from tests.sources.test_checkpoints import saved, torn, transformers

BASE = replace(KNOBS, resume=None, declared=False)
SMALLER = SpecChange(batch=BatchChange(BATCH, with_micro_batch(BATCH, 8)))


def record_of(tmp_path: Path, knobs: Knobs, *args: str, version: str = "") -> RunFile:
    """A script's run; its interpreter tells which transformers it has."""
    record = job_of(
        tmp_path,
        entry="train.py", entry_kind=EntryKind.SCRIPT, entry_args=args, nproc_per_node=2,
        batch=BATCH, knobs=knobs, outputs=("out",),
    )  # fmt: skip
    asked = tmp_path / "python"
    asked.write_text(f"#!/bin/sh\necho {version}\n")
    asked.chmod(0o755)
    resume_points._version.cache_clear()
    return msgspec.structs.replace(record, interpreter=str(asked))


def state_of(
    *paths: Path,
    change: SpecChange = SMALLER,
    step: int | None = 30,
    told: bool = False,
    batch: BatchSpec = BATCH,
) -> RunState:
    """An attempt made `step` steps and left checkpoints, and a restart with `change` was decided."""
    events: list[ev.Event] = [ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason="first", batch=batch)]
    if step is not None:
        events.append(ev.Progress(t=2.0, attempt=1, step=step))
    for path in paths:
        found = whole_at(str(path))
        assert found is not None or told
        events.append(
            ev.CheckpointCommitted(
                t=3.0,
                attempt=1,
                step=(found.step if found is not None else None) or 7,
                path=str(path),
                found=not told,
                layout=found.layout if found is not None else "",
                number=found.number if found is not None else None,
                written_t=found.t if found is not None else None,
                step_by_time=found is not None and found.step is None,
            )
        )
    decision = Decision(DecisionKind.RESTART, "smaller", change=change)
    events += [
        ev.AttemptEnded(t=4.0, attempt=1, exit_code=1),
        ev.Diagnosed(t=4.0, attempt=1, verdict=verdict_of(FailureClass.CUDA_OOM)),
        ev.Decided(t=4.0, attempt=1, decision=decision),
    ]
    return replay(events)


def next_plan(tmp_path: Path, record: RunFile, state: RunState) -> LaunchPlan:
    run = RunPaths(tmp_path / "run-1")
    return plans.plan_next(record, state, run, run.node().attempt(2), {"PATH": os.environ["PATH"]})


FOUND = replace(BASE, resume="--resume", resume_value="auto", resumes="train.py:3")
SWITCH = replace(BASE, resume="--resume", resume_value="", resumes="train.py:3")
BY_PATH = replace(BASE, resume_path="--resume_from", resumes="takes a path")
BY_STEP = replace(BASE, resume_step="--resume_epoch")
SELF = replace(BASE, self_resuming=True, resumes="last.pt is loaded where it exists")


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        (FOUND, ["--resume=auto"]),
        (SWITCH, ["--resume"]),
        (BY_PATH, ["--resume_from={path}"]),
        (BY_STEP, ["--resume_epoch=12"]),
        (SELF, []),
    ],
    ids=["a word", "a switch", "a path", "a number", "by itself"],
)
def test_a_flag_is_set_once_there_is_a_checkpoint_and_never_before(
    tmp_path: Path, knobs: Knobs, words: list[str]
) -> None:
    record = record_of(tmp_path, knobs, "--micro", "16", "--accumulation", "2")
    path = saved(tmp_path / "out" / "checkpoint_12.pth", "epoch", "optimizer")
    before = next_plan(tmp_path, record, state_of(step=None))
    assert not any("--resume" in word for word in before.argv)
    after = next_plan(tmp_path, record, state_of(path))
    assert [w for w in after.argv if "--resume" in w] == [w.format(path=path) for w in words]
    assert after.argv[after.argv.index("--micro") :][:2] == ("--micro", "8")


@pytest.mark.parametrize("value", ["saved/last.pt", "auto"])
def test_what_a_person_named_is_set_once_a_step_was_made_and_its_file_is_there(
    tmp_path: Path, value: str
) -> None:
    record = record_of(tmp_path, replace(BASE, resume="--resume", resume_value=value, resumes=NAMED))
    env = {"PATH": os.environ["PATH"]}
    assert next_plan(tmp_path, record, state_of(step=None)).resume is None, "nothing to continue from"
    known = policy_input(record, state_of(), env=env)
    if value == "auto":
        assert next_plan(tmp_path, record, state_of()).resume == "auto", "the person knows the script"
        assert known.resume_known
        return
    assert next_plan(tmp_path, record, state_of()).resume is None
    assert not known.resume_known
    assert known.not_now == "--resume=saved/last.pt: there is no saved/last.pt yet"
    saved(tmp_path / value)
    assert next_plan(tmp_path, record, state_of()).resume == value
    assert policy_input(record, state_of(), env=env).resume_known


def test_a_newest_one_that_was_torn_since_is_passed_over(tmp_path: Path) -> None:
    record = record_of(tmp_path, BY_PATH)
    older, newer = (saved(tmp_path / "out" / f"epoch_{n}.pt", "epoch") for n in (1, 2))
    state = state_of(older, newer)
    torn(newer)
    usable = not_none(usable_checkpoint(record.job, state.checkpoints))
    assert usable.path == str(older)
    assert next_plan(tmp_path, record, state).resume == str(older)
    known = policy_input(record, state, env={})
    assert known.newest_checkpoint == str(older)
    older.unlink()
    with pytest.raises(NotResumableError, match="checkpoint is incomplete"):
        next_plan(tmp_path, record, state)
    by_hand = msgspec.structs.replace(
        state, attempts=(msgspec.structs.replace(state.attempts[0], decided_by="ada"),)
    )
    assert next_plan(tmp_path, record, by_hand).resume is None, "a person was told, and asked for it"
    assert not policy_input(record, state, env={}).resume_known


def test_a_start_that_a_person_gave_by_hand_is_not_overridden(tmp_path: Path) -> None:
    record = record_of(tmp_path, BY_PATH)
    path = saved(tmp_path / "out" / "epoch_1.pt", "epoch")
    by_hand = SpecChange(argv=("--resume_from", "mine.pt"))
    assert next_plan(tmp_path, record, state_of(path, change=by_hand)).argv[-2:] == (
        "--resume_from",
        "mine.pt",
    )


def test_the_checkpoint_that_the_command_itself_resumes_from_counts(tmp_path: Path) -> None:
    path = saved(tmp_path / "before" / "epoch_1.pt", "epoch")
    os.utime(path, (1.0, 1.0))
    record = record_of(tmp_path, BY_PATH, "--resume_from", "before/epoch_1.pt")
    known = policy_input(record, state_of(), env={})
    assert known.newest_checkpoint == str(path)
    assert known.resume_known
    assert "--resume_from before/epoch_1.pt" in " ".join(next_plan(tmp_path, record, state_of()).argv)


# -- transformers ----------------------------------------------------------------------------------------


def trainers(folder: Path, step: int = 10, held: int = 16) -> Path:
    """A checkpoint of transformers' Trainer that holds its micro-batch."""
    path = transformers(folder, step)
    state = {"global_step": step, "train_batch_size": held, "epoch": 0.5}
    (path / "trainer_state.json").write_text(json.dumps(state))
    (path / "global_step10").mkdir()
    (path / "global_step10" / "shard.pt").write_bytes(b"s")
    return path


HF_PATH = replace(BY_PATH, resume_path="--resume_from_checkpoint")
HF_SELF = replace(HF_PATH, self_resuming=True)
HF_ONLY_SELF = replace(HF_SELF, resume_path=None)


@pytest.mark.parametrize("knobs", [HF_PATH, HF_SELF], ids=["by a path", "by itself"])
def test_where_transformers_takes_the_old_batch_a_changed_copy_is_resumed_from(
    tmp_path: Path, knobs: Knobs
) -> None:
    record = record_of(tmp_path, knobs, version="5.1.0" if knobs is HF_SELF else "4.36.0")
    path = trainers(tmp_path / "out")
    before = {p: (p.stat().st_ino, p.read_bytes()) for p in path.rglob("*") if p.is_file()}
    state = state_of(path)
    plan = next_plan(tmp_path, record, state)
    assert plan.copy is not None
    copy = Path(plan.copy.target)
    assert f"--resume_from_checkpoint={copy}" in plan.argv
    assert not copy.name.startswith("checkpoint-")
    assert not copy.exists(), "nothing is made before the launch"
    for _ in range(2):  # a keeper that died after it may make it again
        resume_points.make_copy(plan.copy)
    assert json.loads((copy / "trainer_state.json").read_text())["train_batch_size"] == 8
    assert {p: (p.stat().st_ino, p.read_bytes()) for p in path.rglob("*") if p.is_file()} == before
    for name in ("model.safetensors", "global_step10/shard.pt"):
        assert (copy / name).stat().st_ino == (path / name).stat().st_ino, "no byte is copied"
    assert (copy / "trainer_state.json").stat().st_nlink == 1
    launched = replay([ev.LaunchIntended(t=5.0, attempt=2, argv=(), reason="", resume_copy=str(copy))])
    drop_copies(launched)
    assert copy.exists(), "it may be needed again"
    newer = ev.CheckpointCommitted(t=6.0, attempt=2, step=20, path="out/checkpoint-20")
    drop_copies(
        replay([ev.LaunchIntended(t=5.0, attempt=2, argv=(), reason="", resume_copy=str(copy)), newer])
    )
    assert not copy.exists()
    assert {p: (p.stat().st_ino, p.read_bytes()) for p in path.rglob("*") if p.is_file()} == before


def test_under_data_parallel_the_number_is_that_of_all_gpus(tmp_path: Path) -> None:
    record = record_of(tmp_path, HF_PATH, version="4.57.1")
    one = BatchSpec(micro_batch_per_rank=16, accumulation_steps=2, world_size=1)
    change = SpecChange(batch=BatchChange(one, with_micro_batch(one, 8)))
    state = state_of(trainers(tmp_path / "out", held=64), change=change, batch=one)
    plan = next_plan(tmp_path, record, state)
    assert plan.copy is not None
    assert (plan.copy.before, plan.copy.after) == (64, 32)


@pytest.mark.parametrize("version", ["4.35.2", "5.2.0"])
def test_other_versions_resume_from_the_checkpoint_itself(tmp_path: Path, version: str) -> None:
    record = record_of(tmp_path, HF_PATH, version=version)
    path = trainers(tmp_path / "out")
    plan = next_plan(tmp_path, record, state_of(path))
    assert plan.copy is None
    assert plan.resume == str(path)


def test_where_no_flag_can_hand_over_a_copy_the_smaller_batch_is_refused(tmp_path: Path) -> None:
    record = record_of(tmp_path, HF_ONLY_SELF, version="4.57.1")
    state = state_of(trainers(tmp_path / "out"))
    known = policy_input(record, state, env={})
    assert "transformers 4.57.1 takes the micro-batch from trainer_state.json" in known.old_batch
    decision = plans_decision(known)
    assert decision.kind is DecisionKind.FAIL
    assert "would resume with 16" in decision.reason
    with pytest.raises(plans.BadChange, match=r"would resume with 16"):
        plans.requested_change(record, state, RequestArgs(micro_batch=8), {})
    with pytest.raises(NotResumableError):
        next_plan(tmp_path, record, state)


def plans_decision(known: object) -> Decision:
    from supervisor.policy import PolicyInput, decide

    assert isinstance(known, PolicyInput)
    return decide(known)


def test_a_copy_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_of(tmp_path, HF_PATH, version="4.57.1")
    plan = next_plan(tmp_path, record, state_of(trainers(tmp_path / "out")))
    assert plan.copy is not None

    def refuse(_source: str, _target: str) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(resume_points, "_link", refuse)
    with pytest.raises(NotResumableError, match="cannot be made"):
        resume_points.make_copy(plan.copy)
    assert not Path(plan.copy.target).exists()


# -- checkpoints that are no good ----------------------------------------------------------------------------

LOST = ev.LossNotFinite(t=2.5, attempt=1, value="nan", step=8, last=1.0)
TAKES_A_WORD = replace(BASE, resume="--resume_from", resume_value="auto", resumes="train.py:3")


def two_checkpoints(tmp_path: Path, *facts: ev.Event) -> tuple[RunState, Path, Path]:
    """A run that left checkpoints of steps 5 and 10, and what else is known of it."""
    first, second = (saved(tmp_path / "out" / f"step_{n}.pt", "step", "optimizer") for n in (5, 10))
    state = state_of(first, second)
    for fact in facts:
        state = fold(state, fact)
    return state, first, second


@pytest.mark.parametrize(
    ("knobs", "word"),
    [
        (BY_PATH, "--resume_from={first}"),
        (replace(BASE, resume_step="--resume_step"), "--resume_step=5"),
        (TAKES_A_WORD, "--resume_from={first}"),
        (replace(SELF, resume_path="--resume_from"), "--resume_from={first}"),
    ],
    ids=["a path", "a number", "a word for the newest, or a path", "a path before it looks"],
)
def test_what_was_written_after_the_loss_was_no_number_is_passed_over(
    tmp_path: Path, knobs: Knobs, word: str
) -> None:
    record = record_of(tmp_path, knobs)
    state, first, second = two_checkpoints(tmp_path, LOST)
    plan = next_plan(tmp_path, record, state)
    assert [w for w in plan.argv if "--resume" in w] == [word.format(first=first)]
    assert plan.resume_at == 5
    known = policy_input(record, state, env={})
    assert (known.newest_checkpoint, known.unsound) == (str(first), "")
    fine = fold(state, ev.LossFinite(t=2.7, attempt=1, loss=1.0, step=9))
    assert policy_input(record, fine, env={}).newest_checkpoint == str(second), "one bad step is skipped"


def test_what_was_saved_before_a_script_refused_its_loss_is_good_whatever_step_was_logged_last(
    tmp_path: Path,
) -> None:
    first, second = (saved(tmp_path / "out" / f"step_{n}.pt", "step", "optimizer") for n in (5, 10))
    refused = ev.Diagnosed(t=4.0, attempt=1, verdict=verdict_of(FailureClass.NAN_LOSS))
    state = fold(state_of(first, second, step=7), refused)
    for knobs in (BY_PATH, SELF):
        known = policy_input(record_of(tmp_path, knobs), state, env={})
        assert (known.newest_checkpoint, known.unsound) == (str(second), "")


@pytest.mark.parametrize("knobs", [SELF, SWITCH], ids=["by itself", "a switch"])
def test_where_the_script_finds_its_newest_the_one_to_move_away_is_named(
    tmp_path: Path, knobs: Knobs
) -> None:
    record = record_of(tmp_path, knobs)
    state, _, second = two_checkpoints(tmp_path, LOST)
    unsound = policy_input(record, state, env={}).unsound
    assert unsound == (
        "the script loads its newest checkpoint, written after the loss became NaN or Inf at step 8: "
        "move out/step_10.pt away, then restart"
    )
    second.rename(tmp_path / "bad.pt")
    moved = policy_input(record, state, env={})
    assert (moved.unsound, moved.newest_checkpoint) == ("", str(tmp_path / "out" / "step_5.pt"))


def test_nothing_begins_at_step_0_unasked_where_all_are_bad(tmp_path: Path) -> None:
    record = record_of(tmp_path, BY_PATH)
    _, first, _ = two_checkpoints(tmp_path)
    state = fold(state_of(first), replace_fields(LOST, step=3))
    by_person = ev.Decided(
        t=5.0, attempt=1, decision=Decision(DecisionKind.RESTART, "kim", change=SpecChange()), by="kim"
    )
    with pytest.raises(NotResumableError, match=r"cannot resume from out/step_5.pt"):
        next_plan(tmp_path, record, fold(state, by_person))
    again = Decision(DecisionKind.RESTART, "kim", change=SpecChange(from_scratch=True))
    next_plan(tmp_path, record, fold(state, replace_fields(by_person, decision=again)))


def test_a_checkpoint_that_a_person_restarts_with_is_tried_again(tmp_path: Path) -> None:
    record = record_of(tmp_path, BY_PATH)
    refused: tuple[ev.Event, ...] = (
        ev.LaunchIntended(t=5.0, attempt=2, argv=(), reason="again", batch=BATCH, resume_at=10),
        ev.AttemptEnded(t=6.0, attempt=2, exit_code=1),
        ev.Diagnosed(t=6.0, attempt=2, verdict=verdict_of(FailureClass.CHECKPOINT_LOAD)),
    )
    state, first, second = two_checkpoints(tmp_path, *refused)
    assert next_plan(tmp_path, record, state).resume == str(first)
    again = Decision(DecisionKind.RESTART, "kim mounted it", change=SpecChange())
    by_person = fold(state, ev.Decided(t=7.0, attempt=2, decision=again, by="kim"))
    assert next_plan(tmp_path, record, by_person).resume == str(second)


def test_what_an_attempt_wrote_that_had_not_resumed_is_passed_over(tmp_path: Path) -> None:
    record = record_of(tmp_path, BY_PATH)
    state, _, second = two_checkpoints(
        tmp_path,
        ev.LaunchIntended(t=5.0, attempt=2, argv=(), reason="again", batch=BATCH, resume_at=10),
        ev.Progress(t=6.0, attempt=2, step=1),
    )
    third = saved(tmp_path / "out2" / "step_3.pt", "step", "optimizer")
    written = ev.CheckpointCommitted(t=7.0, attempt=2, step=3, path=str(third), found=True, written_t=7.0)
    state = fold(state, written)
    assert next_plan(tmp_path, record, state).resume == str(third)
    missed = fold(state, ev.ResumeMissed(t=8.0, attempt=2, step=10, began=0))
    assert next_plan(tmp_path, record, missed).resume == str(second)
    assert policy_input(record, missed, env={}).missed == (
        "did not resume: began at step 0; checkpoint 10 is not protected"
    )
    kept = ev.CheckpointKept(t=5.0, attempt=2, step=10, path=str(second), copy="/r/.stoker-kept-10")
    past = policy_input(record, fold(missed, kept), env={})
    assert past.missed.endswith("checkpoint 10 is kept as a copy: /r/.stoker-kept-10")
