"""What a keeper reports of a recovery: how long it took, whether the batch fits, and whether measurements were to blame."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.job.launch.env import NOT_MEASURED
from supervisor.job.memory_fit import Measure, MemoryTrial
from supervisor.keeper.base.ledger import Ledger, RunContext
from supervisor.keeper.recording.recovery_report import LEAST_STEPS, RecoveryReport
from supervisor.run import events as ev
from supervisor.run.answers import unmeasured_since
from supervisor.run.records import Decision, DecisionKind, FailureClass, SpecChange
from supervisor.run.runfile import RunFile
from supervisor.run.series import GPU, RANKS, SeriesWriter
from tests.keeper.fakes import BATCH, E, FakeClock, facts_of, job_of, run_in, verdict_of

GIB = 1 << 30
CLOCK = FakeClock()
T = CLOCK.wall()
OFF = Decision(DecisionKind.RESTART, "without", change=SpecChange(env=(NOT_MEASURED,)))
FIRST = (
    ev.LaunchIntended(t=T - 90, attempt=1, argv=(), reason="first"),
    ev.AttemptStarted(t=T - 89, attempt=1, pid=1, start_time=1.0),
    ev.AttemptEnded(t=T - 30, attempt=1, exit_code=1),
    ev.Diagnosed(t=T - 29, attempt=1, verdict=verdict_of(FailureClass.UNKNOWN)),
)
SECOND = (
    ev.Decided(t=T - 28, attempt=1, decision=OFF),
    ev.LaunchIntended(t=T - 20, attempt=2, argv=(), reason="without"),
    ev.AttemptStarted(t=T - 19, attempt=2, pid=1, start_time=1.0),
)
STEP = ev.Progress(t=T - 17.5, attempt=2, step=1)


class Reporting:
    """A report on a run with this journal."""

    def __init__(self, folder: Path, record: RunFile, *facts: ev.Event) -> None:
        self.run = run_in(folder, *facts)
        self.env = {"XDG_STATE_HOME": str(folder / "state")}
        self.ledger = Ledger(self.run.node())
        self.context = RunContext(self.run, self.run.node(), record, self.env, CLOCK, self.ledger)
        self.report = RecoveryReport(self.context)

    def told(self, kind: type[E]) -> list[E]:
        return [fact for fact in facts_of(self.run) if isinstance(fact, kind)]


@pytest.mark.parametrize("writable", [True, False])
def test_measurements_without_which_it_gets_further_are_blamed_once_and_left_out_later(
    tmp_path: Path, writable: bool
) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    record = job_of(tmp_path, "train.py")
    made = Reporting(tmp_path, record, *FIRST, *SECOND)
    if not writable:
        (tmp_path / "state").touch()
    made.report.look(made.ledger.state)
    assert made.told(ev.Advisory) == [], "it has made no step"
    made.ledger.emit(STEP)
    for _ in range(2):
        made.report.look(made.ledger.state)
    RecoveryReport(made.context).look(made.ledger.state)
    text = "without stoker's measurements it got further than attempt 1"
    later = ": later runs of this script start without them (--instrument: with them)"
    failed = "; this could not be remembered (File exists): start it with --no-instrument"
    (advice,) = made.told(ev.Advisory)
    assert advice == ev.Advisory(
        t=T, attempt=2, code="instrument_off", text=text + (later if writable else failed)
    )
    assert unmeasured_since(record.job, made.env) == (T if writable else None)
    (recovered,) = made.told(ev.Recovered)
    assert recovered == ev.Recovered(t=T, attempt=2, after=1, total_s=12.5)
    made.ledger.close()


@pytest.mark.parametrize(
    ("expected", "steps", "text"),
    [
        (None, LEAST_STEPS, None),
        (8 * GIB, LEAST_STEPS, None),
        (4 * GIB, LEAST_STEPS, "GPU memory: 8.0 GiB (10 %) at most where 4.0 GiB (5 %) were expected: less room is left than the configuration says"),
        (32 * GIB, LEAST_STEPS, "GPU memory: 8.0 GiB (10 %) at most where 32.0 GiB (40 %) were expected: a larger micro-batch may fit (--fit-batch finds it)"),
        (4 * GIB, LEAST_STEPS - 1, None),
    ],
)  # fmt: skip
def test_the_memory_of_an_attempt_is_kept_and_told_where_it_is_far_from_what_was_expected(
    tmp_path: Path, expected: int | None, steps: int, text: str | None
) -> None:
    record = job_of(tmp_path, "train.py", batch=BATCH, expected_memory_bytes=expected)
    intended = ev.LaunchIntended(t=T - 90, attempt=1, argv=(), reason="first", batch=BATCH)
    trained = [ev.Progress(t=T - 40, attempt=1, step=step) for step in (1, steps)]
    made = Reporting(tmp_path, record, intended, FIRST[1], *trained, *FIRST[2:])
    series = SeriesWriter(made.run.node().series)
    series.append(RANKS, T - 40, "0", 1, {"memory_peak_bytes": 8.0 * GIB, "memory_reserved_bytes": 9.0 * GIB})
    series.append(GPU, T - 40, "0", 1, {"memory_used_bytes": 9.0 * GIB, "memory_total_bytes": 80.0 * GIB})
    series.close()
    made.report.measure(made.ledger.state)
    trial = MemoryTrial(
        16, fitted=True, peak_bytes=8 * GIB, capacity_bytes=80 * GIB, measure=Measure.ALLOCATOR
    )
    assert made.told(ev.MemoryMeasured) == [ev.MemoryMeasured(t=T, attempt=1, trial=trial)]
    advised = [(fact.attempt, fact.code, fact.text) for fact in made.told(ev.Advisory)]
    assert advised == ([(1, "memory_unexpected", text)] if text is not None else [])
    made.ledger.close()
