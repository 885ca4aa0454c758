"""What is recorded: throttled, once, by one speaker, also after an adoption and on a full disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.monitoring.log_monitor import LogKey, LogKind, LogWatch
from supervisor.keeper.monitoring.observations import (
    Observation,
    Reported,
    Sampled,
    StepHint,
    StepSeen,
    advice,
)
from supervisor.keeper.recording.recorder import MAX_EVIDENCE, SPEAKER_WAIT_S, Recorder
from supervisor.run import events as ev
from supervisor.run.events import Phase
from supervisor.run.fold import replay
from supervisor.run.series import HOST, METRICS, RANKS, SeriesReader
from supervisor.sources.signature_files import default_cache_dir, load_engine
from supervisor.sources.tail.tailer import Backlog
from supervisor.text.prefixes import Origin
from tests.conftest import wait_until
from tests.keeper.fakes import E, Emitted, FakeClock, evidence

BEFORE: tuple[ev.Event, ...] = (
    ev.RunStarted(t=1.0, run_id="r", name="n", mode="launched", host="h"),
    ev.LaunchIntended(t=2.0, attempt=1, argv=(), reason="first launch"),
    ev.AttemptStarted(t=3.0, attempt=1, pid=5, start_time=1.0),
)


class Bench:
    """A recorder and what it wrote."""

    def __init__(self, folder: Path, earlier: tuple[ev.Event, ...] | None = None) -> None:
        self.clock = FakeClock()
        self.emitted = Emitted()
        self.folder = folder
        self.recorder = Recorder(folder, self.emitted, self.clock)
        self.recorder.begin(1, adopted=replay(earlier) if earlier is not None else None)

    def see(self, *observations: Observation) -> None:
        for seen in observations:
            self.recorder.record(seen)

    def of(self, kind: type[E]) -> list[E]:
        return self.emitted.of(kind)

    def series(self, stream: str) -> list[tuple[str, float | None]]:
        return [(s.k, s.v.get("step")) for s in SeriesReader(self.folder, stream).read()]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.recorder.close()


def step(number: int, rank: int | None = 0, *, wire: bool = True, **values: float) -> StepSeen:
    return StepSeen(10.0 + number, rank, {"step": float(number), "loss": 1.0 / number, **values}, wire)


def reported(kind: Callable[..., Any], t: float, rank: int | None = 0, **values: Any) -> Reported:
    return Reported(kind(t=t, attempt=0, **values), rank)


def phase(t: float, phase: Phase, step: int, rank: int = 0) -> Reported:
    return reported(ev.PhaseChanged, t, rank, phase=phase, step=step)


def saved(t: float, step: int, rank: int = 0, *, final: bool = False) -> Reported:
    return reported(ev.CheckpointCommitted, t, rank, step=step, path=f"c/{step}", final=final)


def test_progress_is_one_a_second_and_never_loses_the_last(bench: Bench) -> None:
    for number in range(1, 101):
        bench.clock.now += 1 / 16
        bench.see(step(number))
        bench.recorder.tick()
    assert [fact.step for fact in bench.of(ev.Progress)] == [1, 17, 33, 49, 65, 81, 97]
    bench.see(*(step(number) for number in range(101, 201)))
    bench.recorder.flush()
    last = bench.of(ev.Progress)[-1]
    assert last == ev.Progress(t=210.0, attempt=1, step=200, loss=1 / 200, minima=last.minima)
    assert last.minima == tuple((number, 1 / number) for number in range(169, 201)), "the latest 32"
    assert bench.series(METRICS) == [("job", float(number)) for number in range(1, 201)]


def test_values_of_one_second_are_merged_and_non_numbers_kept_out(bench: Bench) -> None:
    bench.see(step(1), step(2, lr=0.1, grad_norm=0.5), step(3, grad_norm=float("nan")))
    bench.recorder.flush()
    last = bench.emitted.facts[-1]
    assert isinstance(last, ev.Progress)
    assert (last.step, last.lr, last.loss, last.grad_norm) == (3, 0.1, 1 / 3, 0.5)


INF, NAN = float("inf"), float("nan")


def test_a_loss_that_is_no_number_is_journalled_once_and_its_end(bench: Bench) -> None:
    losses = [2.0, INF, NAN, 1.5, NAN, 1.4]
    bench.see(*(step(n, loss=loss) for n, loss in enumerate(losses, 1)))
    (lost,), (found,) = bench.of(ev.LossNotFinite), bench.of(ev.LossFinite)
    assert lost == ev.LossNotFinite(t=12.0, attempt=1, value="inf", step=2, rank=0, last=2.0)
    assert found == ev.LossFinite(t=14.0, attempt=1, loss=1.5, step=4)
    bench.recorder.flush()
    after = bench.emitted.facts[bench.emitted.facts.index(lost) :]
    assert [fact.loss for fact in after if isinstance(fact, ev.Progress)] == [1.4], "none of before"
    odd = [sample.odd for sample in SeriesReader(bench.folder, METRICS).read()]
    assert odd == [{}, {"loss": "inf"}, {"loss": "nan"}, {}, {"loss": "nan"}, {}]


def test_a_first_loss_that_is_no_number_is_journalled_if_it_stays_so(bench: Bench) -> None:
    bench.see(step(1, loss=NAN), step(2))
    assert not bench.of(ev.LossNotFinite)
    bench.recorder.begin(2)
    bench.see(step(1, loss=NAN), step(2, loss=NAN))
    assert not bench.of(ev.LossNotFinite)
    bench.see(*(step(n, loss=NAN) for n in range(3, 6)))
    assert bench.of(ev.LossNotFinite) == [ev.LossNotFinite(t=11.0, attempt=2, value="nan", step=1, rank=0)]


def test_an_adopting_keeper_does_not_journal_a_lost_loss_again(tmp_path: Path) -> None:
    lost = ev.LossNotFinite(t=4.0, attempt=1, value="nan", step=2, rank=0, last=2.0)
    bench = Bench(tmp_path, (*BEFORE, lost))
    bench.see(step(3, loss=NAN), step(4), step(5, loss=NAN))
    assert not bench.of(ev.LossNotFinite)
    assert len(bench.of(ev.LossFinite)) == 1
    bench.recorder.close()


def test_an_evaluation_that_counts_anew_is_no_progress(bench: Bench) -> None:
    def line(number: int, *, evaluates: bool = False, **values: float) -> StepSeen:
        seen = {"epoch": 2.0, "step": float(number), **values}
        return StepSeen(10.0, None, seen, from_telemetry=False, evaluates=evaluates)

    bench.see(line(5, evaluates=True, val_loss=0.9))
    bench.recorder.flush()
    assert [p.step for p in bench.of(ev.Progress)] == [5], "nothing else counts"
    bench.see(line(500, loss=0.5), line(10, evaluates=True, val_loss=0.4))
    bench.recorder.flush()
    last = bench.of(ev.Progress)[-1]
    assert (last.step, last.val_loss) == (500, 0.4)


def test_telemetry_is_believed_alone(bench: Bench) -> None:
    bench.see(step(1), step(1, wire=False), step(2, rank=None, wire=False), step(1, rank=1))
    assert bench.series(METRICS) == [("job", 1.0)]
    assert sorted(bench.series(RANKS)) == [("0", 1.0), ("1", 1.0)]


def test_one_rank_speaks_for_the_job(bench: Bench) -> None:
    bench.see(*(step(n, rank, wire=False) for n in (1, 2) for rank in (3, 2)))
    assert bench.series(METRICS) == [], "rank 0 may only be late"
    bench.clock.now += SPEAKER_WAIT_S
    bench.recorder.tick()
    assert bench.series(METRICS) == [("job", 1.0), ("job", 2.0)], "the first that spoke"
    bench.see(*(step(n, rank, wire=False) for n in (3, 4) for rank in (0, 3, 2)))
    assert bench.series(METRICS)[2:] == [("job", 3.0), ("job", 4.0)], "rank 0 once it speaks"


def test_samples_without_a_step_are_not_written_again_after_an_adoption(tmp_path: Path) -> None:
    def said(loss: float, *, again: bool = False) -> StepSeen:
        return StepSeen(1.0, 0, {"loss": loss, "epoch": 0.5}, from_telemetry=False, again=again)

    bar = StepSeen(1.0, 0, {"step": 5.0, "total_steps": 9.0}, from_telemetry=False, drawn=True)
    bench = Bench(tmp_path)
    bench.see(said(3.0), bar, said(2.5))
    bench.recorder.close()
    bench = Bench(tmp_path, BEFORE)
    bench.see(said(3.0, again=True), bar, said(2.5, again=True), said(2.5))
    bench.recorder.close()
    after = [sample.v for sample in SeriesReader(tmp_path, METRICS).read()]
    assert [v.get("loss") for v in after] == [None, 3.0, 2.5, 2.5], "the last came after the adoption"


def test_phases_checkpoints_and_warnings_are_said_once(bench: Bench) -> None:
    bench.see(
        phase(1.0, Phase.STEPPING, 1),
        phase(1.1, Phase.STEPPING, 2),
        phase(1.1, Phase.EVALUATING, 2, rank=1),
        reported(ev.TrainerReady, 1.2, 0, resumed_step=40, memory_base_bytes=1000),
        reported(ev.TrainerReady, 1.2, 1, resumed_step=40, memory_base_bytes=1000),
        saved(1.0, 5),
        saved(1.0, 5, rank=1),
        saved(1.0, 5),
        saved(1.0, 5, final=True),
        advice(1.0, "slow", "slow", 0),
        advice(1.0, "slow", "slow again", 1),
        advice(1.0, "lost_0_", "GPU 0 is lost"),
    )
    gpu = ev.GpuFound(t=1.0, index=0, uuid="GPU-a", name="H100")
    bench.see(Reported(gpu))
    assert bench.emitted.facts == [
        ev.PhaseChanged(t=1.0, attempt=1, phase=Phase.STEPPING, step=1),
        ev.TrainerReady(t=1.2, attempt=1, resumed_step=40, memory_base_bytes=1000),
        ev.CheckpointCommitted(t=1.0, attempt=1, step=5, path="c/5"),
        ev.CheckpointCommitted(t=1.0, attempt=1, step=5, path="c/5", final=True),
        ev.Advisory(t=1.0, attempt=1, code="slow", text="slow", rank=0),
        ev.Advisory(t=1.0, attempt=1, code="lost_0_", text="GPU 0 is lost"),
        gpu,
    ]
    bench.see(*(advice(1.0, f"code {n}", 500 * "x") for n in range(30)))
    advised = bench.of(ev.Advisory)[2:]
    assert [(one.code, one.text) for one in advised] == [(f"code {n}", 400 * "x") for n in range(18)]


@pytest.mark.fault("journal and disk", "a phase change at every step", "journaled at a bounded rate")
def test_a_job_that_evaluates_after_every_step_fills_no_journal_with_phases(bench: Bench) -> None:
    """100 changes a second make 860 MB a day."""
    for number in range(500):
        bench.see(phase(10.0 + number / 100, Phase.EVALUATING if number % 2 else Phase.STEPPING, number))
    assert len(bench.of(ev.PhaseChanged)) == 1
    for _ in range(3):
        bench.clock.now += 1.0
        bench.recorder.tick()
    newest = bench.of(ev.PhaseChanged)
    assert len(newest) == 2, "the newest, once"
    assert isinstance(newest[-1], ev.PhaseChanged)
    assert (newest[-1].phase, newest[-1].step) == (Phase.EVALUATING, 499)


def test_a_line_repeated_for_ever_does_not_hide_another_cause(bench: Bench) -> None:
    bench.see(*[evidence("the same line")] * 500, evidence("another cause"))
    assert [f.text for f in bench.of(ev.EvidenceSeen)] == [
        "the same line",
        "another cause",
    ]
    bench.see(*(evidence(f"line {n}") for n in range(100)))
    assert len(bench.of(ev.EvidenceSeen)) == MAX_EVIDENCE


SEEN: tuple[Observation, ...] = (
    reported(ev.TrainerReady, 9.0, memory_base_bytes=1000),
    phase(10.0, Phase.STEPPING, 1),
    step(1),
    step(2),
    evidence("it broke"),
    phase(13.0, Phase.CHECKPOINTING, 2),
    saved(13.5, 2),
    phase(14.0, Phase.STEPPING, 2),
    advice(14.5, "slow", "slow", 0),
)


def test_an_adopting_keeper_that_reads_all_again_writes_nothing_twice(tmp_path: Path) -> None:
    first = Bench(tmp_path)
    first.see(*SEEN)
    first.recorder.close()
    second = Bench(tmp_path, (*BEFORE, *first.emitted.facts))
    second.see(*SEEN)
    second.recorder.flush()
    assert second.emitted.facts == []
    news = (step(3), phase(16.0, Phase.EVALUATING, 3), saved(17.0, 3, final=True))
    second.see(*news)
    second.recorder.close()
    assert [type(f) for f in second.emitted.facts] == [ev.Progress, ev.PhaseChanged, ev.CheckpointCommitted]
    assert second.series(METRICS) == [("job", 1.0), ("job", 2.0), ("job", 3.0)]


@pytest.mark.parametrize("journalled", [0, 1])
def test_steps_that_a_dead_keeper_had_no_time_to_journal_are_journalled(
    tmp_path: Path, journalled: int
) -> None:
    """Samples are written at once, progress once a second: the step that it ended at was in the series alone."""
    lived = [step(n, loss=1.0 + abs(n - 4)) for n in range(1, 8)]
    first = Bench(tmp_path)
    first.see(*lived)
    told = [fact for fact in first.emitted.facts if isinstance(fact, ev.Progress)][:journalled]
    second = Bench(tmp_path, (*BEFORE, *told))
    second.see(*lived)
    second.recorder.close()
    state = replay((*BEFORE, *told, *second.emitted.facts))
    assert state.attempt is not None
    assert (state.attempt.first_step, state.attempt.last_step) == (1, 7)
    assert (state.best_loss, state.best_step) == (1.0, 4), "no progress event was of that step"
    assert second.series(METRICS) == [("job", float(n)) for n in range(1, 8)]


def test_a_series_that_cannot_be_written_costs_the_sample_not_the_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "series")
    (tmp_path / "series" / "host.jsonl").mkdir(parents=True)
    bench.see(Sampled(1.0, HOST, "machine", {"cpu_ratio": 0.5}), step(1))
    bench.recorder.close()
    assert bench.of(ev.Progress)


def behind(folder: Path, sizes: list[Backlog | None]) -> Bench:
    """A recorder of logs that are read as far as the last of `sizes` says."""
    bench = Bench(folder)
    bench.recorder = Recorder(folder / "series", bench.emitted, bench.clock, lambda: sizes[-1])
    bench.recorder.begin(1)
    return bench


def lags(bench: Bench) -> list[tuple[int | None, int | None]]:
    return [(fact.step, fact.lag_bytes) for fact in bench.emitted.facts if isinstance(fact, ev.Progress)]


def test_while_the_reading_is_behind_that_is_told_once_in_a_while(tmp_path: Path) -> None:
    sizes: list[Backlog | None] = [Backlog(1 << 20, 100 << 20)]
    bench = behind(tmp_path, sizes)
    for _ in range(200):
        bench.clock.now += 1 / 8
        bench.recorder.tick()
    told = len(lags(bench))
    assert lags(bench) == [(None, 99 << 20)] * 24, "after a second, then every second"
    bench.clock.now += 1.0
    bench.see(step(7))
    assert lags(bench)[told:] == [(7, 99 << 20)]
    sizes.append(Backlog(100 << 20, 100 << 20))
    for _ in range(250):
        bench.clock.now += 0.1
        bench.recorder.tick()
    assert lags(bench)[told + 1 :] == [(None, None)], "once: it has caught up"
    bench.recorder.close()


def bar(step: int, *, begins: bool = False, **values: float) -> StepSeen:
    said = {"step": float(step), "total_steps": 30.0, **values}
    return StepSeen(10.0 + step, 0, said, from_telemetry=False, drawn=True, begins=begins)


def test_where_a_bar_starts_is_no_step(bench: Bench) -> None:
    """transformers' bar is drawn at 0/30 before a resumed run jumps to 11."""
    bench.see(bar(0, begins=True))
    bench.recorder.flush()
    assert [(p.step, p.total_steps) for p in bench.of(ev.Progress) if isinstance(p, ev.Progress)] == [
        (None, 30)
    ]
    bench.see(bar(11), bar(12))
    bench.recorder.flush()
    state = replay([ev.LaunchIntended(t=0.0, attempt=1, argv=(), reason="x"), *bench.emitted.facts])
    assert state.attempt is not None
    assert state.attempt.first_step == 11


@contextmanager
def watched(log: Path) -> Iterator[list[Observation]]:
    """What is observed of a rank's log as it grows."""
    seen: list[Observation] = []
    stop, engine = threading.Event(), load_engine(default_cache_dir())
    watch = LogWatch(stop, put=seen.append, clock=Clock(), engine=lambda: engine, rank_of=lambda _: 0)
    watch.follow(LogKey(log.name, LogKind.RANK, Origin(local_rank=0)), str(log))
    watch.start()
    try:
        yield seen
    finally:
        stop.set()
        watch.close()


def test_a_bar_that_begins_and_one_that_is_drawn_again_are_read_as_such(tmp_path: Path) -> None:
    """transformers 4.57 warns at each checkpoint, right behind the bar; shorter bars are padded with blanks."""
    log, wiped = tmp_path / "stderr.log", "\r" + " " * 48 + "\r\r"
    with watched(log) as seen:

        def steps() -> list[tuple[float | None, bool | None]]:
            bars = [one for one in seen if isinstance(one, StepSeen | StepHint)]
            return [(b.values.get("step"), b.begins if isinstance(b, StepSeen) else None) for b in bars]

        log.write_text("\r  0%|          | 0/30 [00:00<?, ?it/s]", encoding="utf-8")
        assert wait_until(lambda: steps() == [(0, True)], 20)
        with log.open("a", encoding="utf-8") as file:
            file.write("\r 37%|###6      | 11/30 [00:01<00:02,  9.11it/s]")
        assert wait_until(lambda: steps()[1:] == [(11, False)], 20)
        with log.open("a", encoding="utf-8") as file:
            file.write(
                f"{wiped} 67%|######6   | 20/30 [00:03<00:01,  7.11it/s]/x/trainer.py:4380: UserWarning: mtime\n"
            )
            file.write(f"{wiped} 83%|########3 | 25/30 [00:04<00:00, 43.91it/s] ")
        assert wait_until(lambda: [step for step, begins in steps() if begins is None] == [20, 25], 20)
