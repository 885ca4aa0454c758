"""The first steps of a restart against its plan: what is confirmed, and what ends the attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.job.batch import BatchChange, BatchSpec
from supervisor.job.knobs.written_facts import Facts
from supervisor.job.spec import BatchAnswer, BatchQuestion, Knobs, Unread
from supervisor.keeper.monitoring.measured_facts import CONFIRMED, PlanCheck
from supervisor.run import events as ev
from supervisor.run.answers import recalled
from supervisor.run.fold import fold, replay
from supervisor.run.paths import AttemptPaths
from supervisor.run.records import Decision, DecisionKind, SpecChange
from supervisor.run.state import RunState
from tests.keeper.fakes import FakeClock, job_of

PLANNED = BatchSpec(8, 2, 2)


class Restart:
    """A second attempt, which was planned with micro-batch 8 × accumulation 2, and the facts of its processes."""

    def __init__(
        self, folder: Path, *, resume_at: int | None = None, saved: bool = True, changed: bool = True
    ) -> None:
        self.folder, self.events, self.facts = folder, list[ev.Event](), Facts()
        paths = AttemptPaths(folder)
        paths.telemetry.mkdir()
        self.file = paths.telemetry / CONFIRMED
        record = job_of(folder, "python", "train.py", knobs=Knobs(batch="--batch", accumulation="--accum"))
        self.check = PlanCheck(
            record, self.events.append, FakeClock(), {"XDG_STATE_HOME": str(folder / "state")}
        )
        self.checkpoint = str(folder / "4.pt")
        facts: list[ev.Event] = [ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason="")]
        if resume_at is not None:
            facts.append(ev.CheckpointCommitted(t=2.0, attempt=1, step=resume_at, path=self.checkpoint))
        change = SpecChange(batch=BatchChange(BatchSpec(16, 1, 2), PLANNED) if changed else None)
        facts.append(ev.Decided(t=2.5, attempt=1, decision=Decision(DecisionKind.RESTART, "", change=change)))
        facts.append(
            ev.LaunchIntended(t=3.0, attempt=2, argv=(), reason="", batch=PLANNED, resume_at=resume_at)
        )
        self.state: RunState = replay(facts)
        first = Facts()
        if saved:
            first.add({"kind": "saved", "path": self.checkpoint})
        self.check.begin(1, paths)
        self.check.look(first, self.state)
        self.check.begin(2, paths)

    def train(
        self,
        *,
        micro: int = 8,
        batches: int = 2,
        steps: int = 1,
        loads: str | None = None,
        ranks: tuple[int, ...] = (0, 1),
    ) -> None:
        for rank in ranks:
            self.add(rank, kind="phase", pid=100 + rank, world_size=2)
            self.add(rank, kind="loader", id=1, batch_size=micro)
            if loads is not None:
                self.add(rank, kind="loaded", path=loads, optimizer_state=True)
            for step in range(1, steps + 1):
                for _ in range(batches):
                    shape = {"kind": "shape", "step": step - 1, "loader": 1, "shapes": [[micro, 4]]}
                    self.add(rank, **shape, of="batch")
                    self.add(rank, **shape, of="forward")
                self.add(rank, kind="step", step=step, steps=1, batches=batches, micro_steps=batches)
        self.check.look(self.facts, self.state)

    def add(self, rank: int, **record: Any) -> None:
        self.facts.add({**record, "rank": rank})


def test_the_first_step_confirms_the_plan_and_lets_the_saves_go_on(tmp_path: Path) -> None:
    restart = Restart(tmp_path)
    restart.train(steps=0)
    assert not restart.events
    restart.train()
    (confirmed,) = restart.events
    assert isinstance(confirmed, ev.PlanConfirmed)
    assert confirmed.planned == "micro-batch 8 × accumulation 2"
    assert restart.file.exists()


def test_another_micro_batch_differs_and_the_overriding_file_is_named(tmp_path: Path) -> None:
    restart = Restart(tmp_path)
    restart.add(0, kind="setting", by="argparse", name="batch", words=["--batch"], value=8)
    restart.add(0, kind="setting", by="json", name="batch", value=16, file="/job/shadow.json")
    restart.train(micro=16)
    (differs,) = restart.events
    assert isinstance(differs, ev.PlanDiffers)
    assert differs.text == (
        "planned micro-batch 8 × accumulation 2, measured micro-batch 16: --batch is overridden by shadow.json"
    )
    assert not restart.file.exists()


def test_another_accumulation_differs_once_three_steps_agree(tmp_path: Path) -> None:
    restart = Restart(tmp_path)
    restart.add(0, kind="setting", by="argparse", name="accum", words=["--accum"], value=2)
    restart.train(batches=1, steps=2)
    assert not restart.events
    assert not restart.file.exists()
    restart.train(batches=1, steps=3)
    (differs,) = restart.events
    assert isinstance(differs, ev.PlanDiffers)
    assert (differs.measured, differs.why) == ("accumulation 1", "--accum does not make it")


@pytest.mark.parametrize("saved", [True, False])
def test_an_attempt_that_loads_nothing_has_not_resumed_if_loads_can_be_seen(
    tmp_path: Path, saved: bool
) -> None:
    restart = Restart(tmp_path, resume_at=4, saved=saved)
    restart.train()
    (event,) = restart.events
    if saved:
        assert isinstance(event, ev.PlanDiffers)
        assert event.text == "did not resume: no checkpoint was loaded"
    else:
        assert isinstance(event, ev.PlanConfirmed)
        assert event.resume is None
    assert not restart.file.exists()


def test_a_rank_that_has_not_told_its_first_step_may_have_loaded(tmp_path: Path) -> None:
    restart = Restart(tmp_path, resume_at=4)
    restart.train(ranks=(1,))
    assert not restart.events
    restart.train(ranks=(0,), loads=restart.checkpoint)
    (confirmed,) = restart.events
    assert isinstance(confirmed, ev.PlanConfirmed)
    assert confirmed.resume == restart.checkpoint
    assert restart.file.exists()


@pytest.mark.parametrize(
    ("trained", "wrong"),
    [
        ({"micro": 16}, Unread.MICRO),
        ({"batches": 3, "steps": 3}, Unread.ACCUMULATION),
        ({}, None),
    ],
)
def test_a_difference_takes_back_the_answer_that_it_refutes_and_a_confirmed_one_is_kept(
    tmp_path: Path, trained: dict[str, int], wrong: Unread | None
) -> None:
    restart, env = Restart(tmp_path), {"XDG_STATE_HOME": str(tmp_path / "state")}
    asked = {
        what: BatchQuestion(what, "", 8, (BatchAnswer("--x"), BatchAnswer("--y")), "abc")
        for what in (Unread.MICRO, Unread.ACCUMULATION)
    }
    for question in asked.values():
        told = ev.BatchAnswered(t=4.0, question=question, value="--x", trial=1)
        restart.state = fold(restart.state, told)
    restart.train(**trained)  # type: ignore[arg-type]
    (event,) = restart.events
    assert (event.wrong if isinstance(event, ev.PlanDiffers) else None) is wrong
    after = fold(restart.state, event)
    assert set(after.answers) == set(asked) - {wrong}
    assert after.wrong == (("--x",) if wrong else ())
    known = {what: recalled(question, env) for what, question in asked.items()}
    kept = {what for what, given in known.items() if given is not None and given.value == "--x"}
    assert kept == (set() if wrong else set(asked))


def test_more_ranks_than_planned_are_no_settings_doing(tmp_path: Path) -> None:
    restart = Restart(tmp_path)
    question = BatchQuestion(Unread.ACCUMULATION, "", 8, (BatchAnswer("--accum"),), "abc")
    restart.state = fold(restart.state, ev.BatchAnswered(t=4.0, question=question, value="--accum"))
    restart.train(steps=0)
    for rank in (0, 1):
        restart.add(rank, kind="phase", pid=100 + rank, world_size=4)
    restart.check.look(restart.facts, restart.state)
    (event,) = restart.events
    assert isinstance(event, ev.PlanDiffers)
    assert (event.measured, event.why, event.wrong) == ("4 ranks", "", None)


@pytest.mark.parametrize(("accumulation", "differs"), [(3, True), (None, False)])
def test_passes_without_a_loader_are_compared_where_they_were_the_accumulation_before(
    tmp_path: Path, accumulation: int | None, differs: bool
) -> None:
    """An option that the script passes over would leave a smaller global batch; of a GAN's two losses nothing is said."""
    restart = Restart(tmp_path)
    before = ev.BatchMeasured(t=2.0, attempt=1, micro_batch=16, accumulation=accumulation, world_size=2)
    restart.state = fold(restart.state, before)
    for rank in (0, 1):
        restart.add(rank, kind="setting", by="main", name="batch", words=["--batch"], value=8)
        restart.add(rank, kind="phase", pid=100 + rank, world_size=2)
        for step in (1, 2, 3):
            restart.add(rank, kind="shape", step=step - 1, shapes=[[8, 4]], of="forward")
            restart.add(rank, kind="step", step=step, steps=1, micro_steps=3)
    restart.check.look(restart.facts, restart.state)
    (event,) = restart.events
    assert isinstance(event, ev.PlanDiffers) is differs
    assert not isinstance(event, ev.PlanDiffers) or event.measured == "accumulation 3"
