"""An observer: a file, a pipe, processes; it judges, acts on nothing, and leaves a whole directory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.keeper import observer as observer_module
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.monitoring.log_monitor import LogWatch
from supervisor.keeper.observed_run import PIPE_NAME, ObservedLog, ObservedRun, PipeCopy, Target
from supervisor.keeper.observer import Observer
from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.events import Outcome, RequestKind
from supervisor.run.journal import read_state
from supervisor.run.ownership import keeper_is_alive
from supervisor.run.paths import RunPaths
from supervisor.run.records import FailureClass
from supervisor.run.series import HOST, METRICS, SeriesReader
from supervisor.sources.processes import identify
from supervisor.text.prefixes import Origin
from supervisor.views.wording.kinds import reading_text, unread_text
from tests.conftest import not_none, wait_until
from tests.keeper.fakes import SLEEP, facts_of

FAILS = """\
step 3/9 loss: 1.5
Traceback (most recent call last):
  File "t.py", line 3, in <module>
    labels['missing']
KeyError: 'missing'
"""


def read_of(*paths: Path) -> Callable[[], JobEvidence]:
    return lambda: JobEvidence(
        logs=tuple(LogSource(str(p), iter([p.read_bytes()])) for p in paths if p.exists())
    )


@contextmanager
def observing(
    tmp_path: Path, target: Target, *logs: Path, rules: tuple[tuple[str, str], ...] = ()
) -> Iterator[tuple[Observer, RunPaths]]:
    run = RunPaths(tmp_path / "observed-1")
    observed = ObservedRun(run, target, host="box", clock=Clock())
    observer = Observer(observed, target, read=read_of(*logs), interval_s=60.0, rules=rules)
    observer.start()
    try:
        yield observer, run
    finally:
        observer.leave()
        assert not keeper_is_alive(run.node().lock)


def written(folder: Path, text: str | bytes, *, old: bool = False) -> Path:
    """A log; `old`: as if it had been written an hour ago."""
    log = folder / "x.log"
    log.write_bytes(text if isinstance(text, bytes) else text.encode())
    if old:
        make_old(log)
    return log


@contextmanager
def watching(
    log: Path, *, ended: bool = False, rank: int | None = None, rules: tuple[tuple[str, str], ...] = ()
) -> Iterator[tuple[Observer, RunPaths]]:
    target = Target(log.name, str(log), (ObservedLog(str(log), log.name, Origin(rank=rank)),), ended=ended)
    with observing(log.parent, target, log, rules=rules) as watched:
        yield watched


def ending(run: RunPaths) -> tuple[Outcome, int, str]:
    condition = read_state(run.node().journal).condition
    assert isinstance(condition, st.Finished)
    return condition.outcome, condition.exit_code, condition.reason


FAILED = (Outcome.FAILED, 1, "KeyError: 'missing'")
NO_END = (Outcome.LOST, 0, "no line says how the job ended")


def test_a_log_that_fails_while_it_is_watched_gets_a_verdict(tmp_path: Path) -> None:
    log = written(tmp_path, "step 1/9 loss: 2.5\n")
    rules = (("badness", r"loss: ([\d.]+)"),)
    with watching(log, rank=2, rules=rules) as (observer, run):
        assert wait_until(lambda: attempt_of(observer).last_step == 1, 60)
        with log.open("a", encoding="utf-8") as writer:
            writer.write(FAILS)
        assert wait_until(lambda: attempt_of(observer).verdict is not None, 90)
        assert observer.state.attempt is not None
        assert observer.state.attempt.verdict is not None
        assert observer.state.attempt.verdict.failure is FailureClass.CODE_ERROR
        assert observer.state.attempt.verdict_provisional
        assert isinstance(observer.state.condition, st.Running), "a provisional verdict ends nothing"
    assert ending(run) == FAILED
    marks = [f for f in facts_of(run) if isinstance(f, ev.EvidenceSeen)]
    assert [m.rank for m in marks] == [2]
    assert {sample["badness"] for sample in job_samples(run)} == {2.5, 1.5}, "by the user's own rule"


def make_old(log: Path) -> None:
    """As if it had been written an hour ago."""
    os.utime(log, (time.time() - 3600.0,) * 2)


def attempt_of(observer: Observer) -> st.AttemptState:
    assert observer.state.attempt is not None
    return observer.state.attempt


def add(log: Path, text: str) -> None:
    """A line by somebody who opens the file for each, so that nobody is seen to write it."""
    with log.open("a", encoding="utf-8") as file:
        file.write(text)


def test_a_growing_log_that_nobody_is_seen_to_write_is_no_finished_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over NFS or from a container: live, then quiet, live again, and over only by its own words."""
    monkeypatch.setattr(observer_module, "LATELY_S", 1.0)
    monkeypatch.setattr(observer_module, "STAT_S", 0.05)
    log = written(tmp_path, "step 1/90 loss: 2.5\n")
    with watching(log, ended=True) as (observer, run):
        for step in range(2, 5):
            add(log, f"step {step}/90 loss: {3 / step:.3f}\n")
            assert wait_until(lambda at=step: attempt_of(observer).last_step == at, 15)  # type: ignore[misc]
            assert isinstance(observer.state.condition, st.Running)
        assert wait_until(lambda: attempt_of(observer).quiet_since is not None, 30)
        assert isinstance(observer.state.condition, st.Running), "quiet is not over"
        add(log, "step 12/90 loss: 0.2\n")
        assert wait_until(lambda: attempt_of(observer).quiet_since is None, 15)
        add(log, "Training complete.\n")
        assert wait_until(lambda: isinstance(observer.state.condition, st.DiagnosedAs), 30)
        assert attempt_of(observer).ended_t is not None
        assert not attempt_of(observer).found_over, "it was watched to its end"

        add(log, "step 13/90 loss: 0.19\n")  # another training into the same file
        assert wait_until(lambda: isinstance(observer.state.condition, st.Running), 15)
        assert attempt_of(observer).verdict is None
        assert attempt_of(observer).ended_t is None
        add(log, FAILS)
        assert wait_until(lambda: attempt_of(observer).verdict is not None, 30)
    assert ending(run) == FAILED


def test_a_failure_that_is_logged_while_a_verdict_is_made_is_judged_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first verdict on a log takes a while on a busy machine: what it did not read was taken for judged."""
    log = written(tmp_path, "step 1/90 loss: 2.5\n")
    judging, go_on = threading.Event(), threading.Event()
    read = read_of(log)

    def slowly() -> JobEvidence:
        evidence = read()
        judging.set()
        go_on.wait(60)
        return evidence

    monkeypatch.setitem(globals(), "read_of", lambda *_: slowly)
    with watching(log, ended=True) as (observer, _):
        assert judging.wait(60)
        add(log, FAILS)
        assert wait_until(lambda: attempt_of(observer).last_step == 3, 60)
        go_on.set()
        assert wait_until(lambda: attempt_of(observer).verdict is not None, 30)


@pytest.mark.parametrize("ended", [True, False])
def test_the_watching_machine_is_shown_where_the_job_runs_on_it(tmp_path: Path, ended: bool) -> None:
    """A log that nobody here holds open may come from anywhere."""
    log = written(tmp_path, "step 1/90 loss: 2.5\n")

    def machine(run: RunPaths) -> bool:
        return any(sample.k == "machine" for sample in SeriesReader(run.node().series, HOST).read())

    with watching(log, ended=ended) as (observer, run):
        assert wait_until(lambda: attempt_of(observer).last_step == 1, 15)
        if not ended:
            assert wait_until(lambda: machine(run), 30)
    assert machine(run) is not ended


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ("Training complete.\n", (Outcome.SUCCEEDED, 0, "the log reports the end of the job")),
        ("", NO_END),
        (FAILS, FAILED),
    ],
    ids=["said", "cut", "failed"],
)
def test_without_a_screen_a_log_ends_with_what_it_shows(
    tmp_path: Path, end: str, outcome: tuple[Outcome, int, str]
) -> None:
    log = written(tmp_path, "step 1/90 loss: 2.5\nstep 2/90 loss: 2.0\n" + end, old=True)
    with watching(log, ended=True) as (observer, run):
        observer.end_when_read()
        assert observer.join(30)
    assert ending(run) == outcome


def test_a_pipe_is_copied_read_and_its_end_is_the_end(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    try:
        with observing(tmp_path, Target("stdin", "a pipe", pipe=read_fd)) as (observer, run):
            os.write(write_fd, b"step 1/9 loss: 2.5\nstep 9/9 loss: 1.0\n")
            assert wait_until(lambda: attempt_of(observer).last_step == 9, 15)
            os.close(write_fd)
            assert observer.join(15)
    finally:
        os.close(read_fd)
    assert ending(run) == NO_END, "no failure, and nothing that says it went well"
    copy = run.node().attempt(1).root / PIPE_NAME
    assert copy.read_bytes().endswith(b"loss: 1.0\n")
    assert copy.stat().st_mode & 0o777 == 0o600


def test_a_pipe_that_cannot_be_copied_does_not_hang(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    stop = threading.Event()
    try:
        copy = PipeCopy(read_fd, tmp_path / PIPE_NAME, stop)
        copy.start()
        os.close(read_fd)
        assert wait_until(lambda: copy.ended, 5), "its reader is told, as at the pipe's end"
        copy.join()
    finally:
        os.close(write_fd)


def test_of_two_watched_processes_the_one_that_is_killed_is_told_at_once_and_the_end_of_both_is_the_end(
    tmp_path: Path,
) -> None:
    ranks = [subprocess.Popen([sys.executable, "-c", SLEEP]) for _ in range(2)]
    try:
        found = [(rank, identify(process.pid)) for rank, process in enumerate(ranks)]
        processes = tuple((rank, known) for rank, known in found if known is not None)
        with observing(tmp_path, Target("job", "pids", processes=processes)) as (observer, run):
            ranks[1].kill()
            assert wait_until(lambda: observer.state.attempt and observer.state.attempt.failing, 20)
            assert isinstance(observer.state.condition, st.Running), "the other lives"
            ranks[0].kill()
            assert observer.join(20)
        ended = (Outcome.FAILED, 1, "exit code -9 of a watched process")
        assert ending(run) == ended, "its exit code was seen before its parent took it"
        assert read_state(run.node().journal).mode == "observed"
        told = [fact for fact in facts_of(run) if isinstance(fact, ev.RankFailing | ev.RankExited)]
        assert [(type(fact), fact.local_rank, fact.exit_code) for fact in told][:2] == [
            (ev.RankExited, 1, -9),
            (ev.RankFailing, 1, -9),
        ]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def test_watched_processes_that_all_end_with_0_have_succeeded_and_began_when_they_did(tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        began_t, known = time.time(), not_none(identify(process.pid))
        with observing(tmp_path, Target("job", "pid", processes=((0, known),))) as (observer, run):
            assert not observer.join(0.3), "it lives"
            go.touch()
            assert observer.join(30)
    assert ending(run) == (Outcome.SUCCEEDED, 0, "the watched processes ended with exit code 0")
    dated = next(fact for fact in facts_of(run) if isinstance(fact, ev.LogsDated))
    assert not_none(dated.began_t) == pytest.approx(began_t, abs=5.0)
    assert (dated.over_t, dated.over, dated.copied) == (None, False, False)


def test_a_job_that_is_left_alive_is_no_longer_watched_and_has_no_end(tmp_path: Path) -> None:
    with watching(written(tmp_path, "step 1/9 loss: 2.5\n")) as (observer, run):
        assert wait_until(lambda: attempt_of(observer).last_step == 1, 30)
        request = control.send(run.control, RequestKind.STACKS)
        assert wait_until(lambda: request in observer.state.answered, 30)
    assert ending(run) == (Outcome.STOPPED, 0, "no longer watched")
    facts = facts_of(run)
    assert [fact.reason for fact in facts if isinstance(fact, ev.RequestRefused)] == [
        "a log has no processes to look into"
    ]
    assert not [fact for fact in facts if isinstance(fact, ev.AttemptEnded)]


def test_stacks_of_a_watched_process_are_an_artifact(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEP]) as process:
        known = not_none(identify(process.pid))
        with observing(tmp_path, Target("job", "pid", processes=((0, known),))) as (observer, run):
            request = control.send(run.control, RequestKind.STACKS)
            assert wait_until(lambda: request in observer.state.answered, 15)
            (artifact,) = run.artifacts.iterdir()
            assert f"pid {process.pid}" in artifact.read_text(encoding="utf-8")
        process.kill()


@pytest.fixture
def slow_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading 256 KiB takes 0.15 s more."""
    measure = LogWatch._measure

    def slow(self: LogWatch, *args: object) -> None:
        measure(self, *args)  # type: ignore[arg-type]  # passed on
        time.sleep(0.15)

    monkeypatch.setattr(LogWatch, "_measure", slow)


LARGE = b"".join(
    b"step %d/400 loss: 1.5\n" % step + b"some words that make a log long\n" * 650 for step in range(1, 401)
)


def is_behind(observer: Observer) -> bool:
    progress = observer.state.progress
    return progress is not None and progress.step is not None and bool(progress.lag_bytes)


@pytest.mark.usefixtures("slow_reader")
@pytest.mark.parametrize("ended", [True, False], ids=["finished", "live"])
def test_a_log_that_is_left_before_it_was_read_is_no_success(tmp_path: Path, ended: bool) -> None:
    log = written(tmp_path, LARGE)
    with watching(log, ended=ended) as (observer, run):
        assert wait_until(lambda: is_behind(observer), 30)
        began = time.monotonic()
        observer.leave(patience_s=0.5)
        assert time.monotonic() - began < 10
    assert ending(run)[:2] == (Outcome.LOST, 6)
    state = read_state(run.node().journal)
    attempt, condition = state.attempt, state.condition
    assert attempt is not None
    assert attempt.verdict is not None
    assert attempt.verdict.failure is FailureClass.UNKNOWN
    assert attempt.verdict_provisional is not ended
    assert isinstance(condition, st.Finished)
    assert "log read to" in condition.reason
    if ended:
        assert attempt.log_read_bytes is not None
        assert 0 < attempt.log_read_bytes < len(LARGE) == attempt.log_size_bytes
        assert unread_text(attempt) in condition.reason


def test_a_long_finished_log_gives_samples_for_a_chart(tmp_path: Path) -> None:
    """Not a sample a line, but the extremes."""
    log, lines = tmp_path / "x.log", 12_000
    with log.open("w", encoding="utf-8") as out:
        for step in range(1, lines + 1):
            loss = 9.5 if step == lines // 2 else 0.25 if step == lines // 3 else 2.0 + step % 100 / 1000
            out.write(
                f"2026-11-20 10:00:00,000 INFO trainer: step {step} loss {loss:.4f} and more words, as logs have\n"
            )
    make_old(log)
    with watching(log, ended=True) as (observer, run):
        observer.end_when_read()
        assert observer.join(120)
    samples = job_samples(run)
    assert 250 <= len(samples) <= 800
    assert samples[-1]["step"] == lines
    assert {9.5, 0.25} <= {sample["loss"] for sample in samples}


def test_the_bar_of_an_evaluation_within_a_finished_log_is_no_step_of_the_training(tmp_path: Path) -> None:
    """Of a backlog's bars without a loss few are kept: the training's is, where the other one begins."""

    def states(total: int, first: int, last: int, each: str) -> list[str]:
        return [
            f"{100 * n // total:3d}%|#   | {n}/{total} [10:00<10:00,  {each}]" for n in range(first, last)
        ]

    log = tmp_path / "x.log"
    evaluation = "".join(f"\n\r{state}\x1b[A" for state in states(300, 0, 301, "4.00it/s"))
    losses = "".join(f"{{'loss': {2 + n / 100}, 'epoch': {n / 100:.2f}}}\n" for n in range(1, 40))
    training = ["\r" + "\r".join(states(600, *part, "5.00s/it")) for part in ((1, 401), (401, 601))]
    log.write_text(f"{training[0]}\n{losses}{evaluation}\n{training[1]}\n{evaluation}\n", encoding="utf-8")
    make_old(log)
    with watching(log, ended=True) as (observer, run):
        observer.end_when_read()
        assert observer.join(60)
        assert attempt_of(observer).last_step == 600
    assert {sample["step_time_s"] for sample in job_samples(run) if "step_time_s" in sample} == {5.0}


def test_what_stood_in_a_log_bears_its_lines_own_clocks_and_what_comes_none(tmp_path: Path) -> None:
    """Reading times are no step times: only what is read as it is written is timed by that."""
    log = written(tmp_path, "step 1 loss 2.5\n2026-11-21 10:00:07 step 2 loss 2.4\n")
    with watching(log) as (observer, run):
        assert wait_until(lambda: attempt_of(observer).last_step == 2, 15)
        with log.open("a", encoding="utf-8") as writer:
            writer.write("step 3 loss 2.3\n")
        assert wait_until(lambda: len(job_samples(run)) == 3, 15)
        assert [sample.get("line_t", "live") for sample in job_samples(run)] == [None, 1795255207.0, "live"]


def job_samples(run: RunPaths) -> list[dict[str, float | None]]:
    reader = SeriesReader(run.node().series, METRICS)
    return [sample.v for sample in reader.read()]


def test_a_log_whose_writer_here_has_ended_is_over(tmp_path: Path) -> None:
    """It says no end, and breaks off; but who wrote it is gone."""
    log = tmp_path / "x.log"
    script = f"import time; f = open({str(log)!r}, 'a', buffering=1); f.write('step 1/90 loss: 2.5\\n'); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        assert wait_until(lambda: log.exists() and log.stat().st_size > 0, 20)
        with watching(log) as (observer, run):
            assert wait_until(lambda: attempt_of(observer).last_step == 1, 20)
            assert wait_until(lambda: observer._writers._known, 20)
            assert isinstance(observer.state.condition, st.Running)
            process.kill()
            process.wait()
            assert wait_until(lambda: isinstance(observer.state.condition, st.DiagnosedAs), 20)
            add(log, "step 2/90 loss: 2.25\n")  # somebody writes on
            assert wait_until(lambda: isinstance(observer.state.condition, st.Running), 20)
            assert wait_until(lambda: attempt_of(observer).last_step == 2, 20)
    assert ending(run)[0] is not Outcome.SUCCEEDED


# -- a large finished log: its end is judged first ---------------------------------------------------

STEPS = "".join(f"step {n} loss {2 + 1 / n:.4f}\n" for n in range(1, 3_000))
OOM = """Traceback (most recent call last):
  File "/job/train.py", line 47, in <module>
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.20 GiB is free.
"""


@pytest.mark.usefixtures("slow_reader")
@pytest.mark.parametrize("confirmed", [True, False])
def test_a_clear_failure_at_the_end_of_a_large_log_is_shown_before_the_rest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, confirmed: bool
) -> None:
    monkeypatch.setattr("supervisor.keeper.observed_run.LARGE_BYTES", 1 << 14)
    monkeypatch.setattr("supervisor.keeper.observed_run.END_BYTES", 1 << 14)
    log, whole = tmp_path / "x.log", tmp_path / "whole.log"
    log.write_text(STEPS + OOM, encoding="utf-8")
    whole.write_text(STEPS + OOM if confirmed else STEPS, encoding="utf-8")
    make_old(log)
    target = Target("x.log", str(log), (ObservedLog(str(log), "x.log"),), ended=True)
    with observing(tmp_path, target, whole) as (observer, run):
        assert reading_text(observer.state), "from the first event on"
        if confirmed:
            assert wait_until(lambda: isinstance(observer.state.condition, st.DiagnosedAs), 60)
            verdict = not_none(attempt_of(observer).verdict)
            assert verdict.cause is not None
            assert verdict.cause.line == STEPS.count("\n") + 4
        else:
            assert wait_until(lambda: (v := attempt_of(observer)).log_checked and v.verdict is None, 60)
    facts = facts_of(run)
    first = next(fact for fact in facts if isinstance(fact, ev.Diagnosed))
    assert (first.provisional, first.verdict.failure) == (True, FailureClass.CUDA_OOM)
    assert first.verdict.cause is not None
    assert first.verdict.cause.line is None, "the lines above it are not counted"
    assert [type(fact) for fact in facts].count(ev.AttemptEnded) == 1 if confirmed else True


@pytest.mark.parametrize(
    ("text", "ended", "old"),
    [
        (STEPS + OOM, True, False),  # it may be written still
        (STEPS + OOM, False, True),
        (STEPS + OOM + "step 9 loss 2.0\n" * 400, True, True),  # it continued
    ],
    ids=["lately written", "live", "continued"],
)
def test_any_other_end_waits_for_the_whole_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, ended: bool, old: bool
) -> None:
    monkeypatch.setattr("supervisor.keeper.observed_run.LARGE_BYTES", 1 << 14)
    monkeypatch.setattr("supervisor.keeper.observed_run.END_BYTES", 1 << 14)
    log = written(tmp_path, text)
    if old:
        make_old(log)
    with watching(log, ended=ended) as (observer, run):
        assert wait_until(lambda: observer._judged is not None, 60)
    judged = [fact.verdict.cause for fact in facts_of(run) if isinstance(fact, ev.Diagnosed)]
    assert all(cause is None or cause.line is not None for cause in judged)
