"""When the keeper says whether a resumed attempt is the same training, and out of what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.job.batch import BatchSpec
from supervisor.job.spec import EntryKind, Knobs, RetrySettings
from supervisor.keeper.base.ledger import Ledger, RunContext
from supervisor.keeper.recording.recovery_report import ResumeComparison
from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.records import Sameness
from supervisor.run.series import JOB_KEY, METRICS, SeriesWriter
from supervisor.views.wording.translate import english
from tests.conftest import not_none
from tests.keeper.fakes import KNOBS, FakeClock, job_of, run_in
from tests.policy.test_same_training import AFTER, BEFORE, Log, Rows


class Resumed:
    """A run whose second attempt was told to resume at step 100."""

    def __init__(
        self,
        folder: Path,
        *,
        resume_at: int | None = None,
        before: Rows | None = None,
        steps: int = 2,
        **job: Any,
    ) -> None:
        self.run: RunPaths = run_in(folder)
        self.clock = FakeClock()
        self.ledger = Ledger(self.run.node())
        about: dict[str, Any] = {"entry_args": (), "knobs": KNOBS, **job}
        record = job_of(folder, entry="train.py", entry_kind=EntryKind.SCRIPT, **about)
        node = self.run.node()
        env = {"XDG_STATE_HOME": str(folder / "home")}
        self.context = RunContext(self.run, node, record, env, self.clock, self.ledger)
        self.series = SeriesWriter(node.series)
        self.write(1, BEFORE.rows() if before is None else before)
        self.emit(
            ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason="first launch", batch=BatchSpec(8, 1, 2)),
            ev.Progress(t=2.0, attempt=1, step=1),
            ev.CheckpointCommitted(t=3.0, attempt=1, step=100, path="c/100"),
            ev.LaunchIntended(
                t=4.0,
                attempt=2,
                argv=(),
                reason="smaller",
                batch=BatchSpec(4, steps, 2),
                resume="--resume_from",
                resume_at=resume_at,
            ),
        )
        self.comparison = ResumeComparison(self.context)

    def emit(self, *facts: ev.Event) -> None:
        for fact in facts:
            self.ledger.emit(fact)

    def write(self, attempt: int, rows: Rows) -> None:
        for step, values in rows.items():
            self.series.append(
                METRICS, 2.5 if attempt == 1 else 5.0, JOB_KEY, attempt, {"step": float(step), **values}
            )

    def trains(self, rows: Rows, *, final: bool = False) -> list[ev.ResumeCompared]:
        """The second attempt logs these; what was said until then."""
        self.write(2, rows)
        self.emit(ev.Progress(t=6.0, attempt=2, step=max(rows)))
        self.clock.now += 1.5
        self.comparison.look(self.ledger.state, final=final)
        return self.said()

    def said(self) -> list[ev.ResumeCompared]:
        from tests.keeper.fakes import facts_of

        return [fact for fact in facts_of(self.run) if isinstance(fact, ev.ResumeCompared)]

    def close(self) -> None:
        self.series.close()
        self.ledger.close()


@pytest.fixture
def resumed(tmp_path: Path) -> Iterator[Resumed]:
    made = Resumed(tmp_path)
    yield made
    made.close()


def part(log: Log, first: int, last: int) -> Rows:
    return {step: row for step, row in log.rows().items() if first <= step <= last}


def test_it_is_said_once_after_the_steps_trained_twice_and_twenty_more(resumed: Resumed) -> None:
    assert resumed.trains(part(AFTER, 101, 130)) == []
    assert resumed.trains(part(AFTER, 131, 149)) == []
    (said,) = resumed.trains(part(AFTER, 150, 150))
    assert (said.attempt, said.result) == (2, Sameness.SAME)
    resumed.trains(part(Log(range(151, 170)), 151, 169), final=True)
    assert len(resumed.said()) == 1
    view = not_none(resumed.ledger.state.attempt)
    assert view.compared == said
    assert english.moment(resumed.ledger.state.timeline[-1]).startswith(
        "attempt 2: same training: 30 steps trained twice"
    )


def test_the_log_is_read_once_a_second_and_at_the_end_at_once(resumed: Resumed) -> None:
    assert resumed.trains(part(AFTER, 101, 130)) == []
    resumed.write(2, part(AFTER, 131, 150))
    resumed.comparison.look(resumed.ledger.state)
    assert resumed.said() == []
    resumed.comparison.look(resumed.ledger.state, final=True)
    (said,) = resumed.said()
    assert (said.result, said.t) == (Sameness.SAME, resumed.clock.wall())


@pytest.mark.parametrize("steps", [1, 2])
def test_where_each_step_has_more_micro_batches_another_total_may_count_those(
    tmp_path: Path, steps: int
) -> None:
    before = {step: {**row, "total_steps": 300.0} for step, row in BEFORE.rows().items()}
    made = Resumed(tmp_path, before=before, steps=steps)
    try:
        made.trains({step: {**row, "total_steps": 600.0} for step, row in AFTER.rows().items()}, final=True)
        (said,) = made.said()
        assert (said.result is Sameness.UNKNOWN) is (steps == 2), said
    finally:
        made.close()


def test_the_bar_that_jumps_to_the_step_it_resumes_from_is_no_step_0(resumed: Resumed) -> None:
    """tqdm draws 0/150 before transformers' Trainer skips to step 101."""
    resumed.series.append(METRICS, 5.0, JOB_KEY, 2, {"step": 0.0, "total_steps": 150.0})
    resumed.trains(part(AFTER, 101, 149))
    (said,) = resumed.trains(part(AFTER, 150, 150))
    assert said.result is Sameness.SAME


def test_another_keeper_does_not_say_it_again(resumed: Resumed) -> None:
    resumed.trains(AFTER.rows())
    assert len(resumed.said()) == 1
    again = ResumeComparison(resumed.context)
    again.look(resumed.ledger.state)
    again.look(resumed.ledger.state, final=True)
    assert len(resumed.said()) == 1


# -- an attempt that did not resume -----------------------------------------------------------------------


def rows_at(*steps: int) -> Rows:
    return {step: {"loss": 2.0} for step in steps}


EVERY_10 = rows_at(*range(10, 151, 10))


def began_of(folder: Path, after: Rows, **made: Any) -> str | None:
    """How a second attempt that was to go on from checkpoint 100 and logs these began, if that is journalled."""
    resumed = Resumed(folder, **{"resume_at": 100, "before": EVERY_10, **made})
    try:
        resumed.trains(after)
        view = resumed.ledger.state.attempt
        return view.differs.text if view is not None and view.differs is not None else None
    finally:
        resumed.close()


AGAIN = "did not resume: began at step 0"


@pytest.mark.parametrize(
    ("after", "made", "found"),
    [
        (rows_at(110, 120), {}, None),
        (rows_at(100, 110), {}, None),
        (rows_at(10), {}, None),
        (rows_at(0, 110), {}, None),
        (rows_at(91, 101), {}, None),
        (rows_at(10, 20), {}, AGAIN),
        (rows_at(10, 20), {"retry": RetrySettings(step_counter="restarts")}, None),
        (rows_at(16, 17), {"before": rows_at(*range(1, 16))}, None),
        (rows_at(1, 2), {"before": rows_at(*range(1, 16))}, AGAIN),
        (rows_at(60, 70), {"knobs": Knobs(self_resuming=True)}, None),
        (rows_at(60, 70), {"knobs": Knobs(resume_path="--ckpt")}, "did not resume: began at step 50"),
    ],
    ids=[
        "it resumed",
        "the checkpoint's own step is logged again",
        "one step shows nothing yet",
        "an evaluation before the training is logged as step 0",
        "within one logging interval",
        "from 0",
        "a script that is said to count from 0",
        "a checkpoint named by another count",
        "from 0, and named by another count",
        "a script that takes an older checkpoint by itself",
        "an older checkpoint than the option's",
    ],
)
def test_an_attempt_that_begins_below_its_checkpoint_did_not_resume(
    tmp_path: Path, after: Rows, made: dict[str, Any], found: str | None
) -> None:
    assert began_of(tmp_path, after, **made) == found


def test_it_is_found_once_a_run_and_not_of_an_attempt_that_was_seen_to_load(tmp_path: Path) -> None:
    for name, told in (
        ("loaded", ev.PlanConfirmed(t=4.5, attempt=2, planned="", resume="c/100")),
        ("before", ev.PlanDiffers(t=1.5, attempt=1, planned="", measured="", of_resume=True)),
    ):
        resumed = Resumed(tmp_path / name, resume_at=100, before=EVERY_10)
        try:
            resumed.emit(told)
            resumed.trains(rows_at(10, 20))
            view = not_none(resumed.ledger.state.attempt)
            assert view.differs is None, name
        finally:
            resumed.close()


@pytest.mark.parametrize(("first", "differs"), [(101, False), (1, True)], ids=["resumed", "from the start"])
def test_a_checkpoint_that_is_named_by_another_count_than_the_logs_is_compared_by_its_time(
    tmp_path: Path, first: int, differs: bool
) -> None:
    """micro_400.pt was written after step 100 of the log, which went on to step 150."""
    resumed = Resumed(
        tmp_path, resume_at=400, before=rows_at(*range(1, 101)), knobs=Knobs(resume_path="--ckpt")
    )
    try:
        resumed.emit(ev.CheckpointCommitted(t=3.0, attempt=1, step=400, path="c/micro_400.pt", written_t=2.8))
        for step in range(101, 151):
            resumed.series.append(METRICS, 3.5, JOB_KEY, 1, {"step": float(step), "loss": 2.0})
        resumed.trains(rows_at(first, first + 1))
        assert (not_none(resumed.ledger.state.attempt).differs is not None) == differs
    finally:
        resumed.close()
