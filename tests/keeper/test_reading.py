"""After the processes are gone: logs are read to their end beside the keeper's loop, and what was not read is said."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.job.spec import RetrySettings
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.monitoring.log_monitor import LogKey, LogKind, LogWatch
from supervisor.keeper.monitoring.observations import Reported, StepSeen
from supervisor.keeper.planning import attempt_evidence as judgement
from supervisor.keeper.planning.attempt_evidence import BackgroundVerdict
from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.events import Outcome, RequestKind
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.records import Verdict
from supervisor.sources.signature_files import default_cache_dir, load_engine
from supervisor.text.prefixes import Origin
from supervisor.views.wording.kinds import unread_text
from supervisor.views.wording.translate import english
from tests.conftest import wait_until
from tests.keeper.fakes import facts_of, job_of, run_in, verdict_of
from tests.keeper.runs import INTENDED, STARTED, T, append, carry, child_in, journalled, outcome

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("engine"),
]  # compiling it takes half a minute on a busy machine

STEPS = 400
# 8 MB of a job's words, 400 steps among them, written at once before it leaves with a code.
BIG = """\
import sys
fill = b"INFO worker 3 took sample 123456 and put it where samples of its length go\\n" * 270
for step in range(1, 401):
    sys.stdout.buffer.write(b"step %d/400 loss: %.3f\\n" % (step, 9 - step / 50) + fill)
sys.stdout.buffer.flush()
"""


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Makes the reading of each 256 KiB take so many seconds more; of the 8 MB that is 32 times."""
    measure = LogWatch._measure
    pause_s = [0.0]

    def slow(self: LogWatch, *args: object) -> None:
        measure(self, *args)  # type: ignore[arg-type]  # passed on
        time.sleep(pause_s[0])

    def set_(value: float) -> None:
        pause_s[0] = value

    monkeypatch.setattr(LogWatch, "_measure", slow)
    yield set_
    pause_s[0] = 0.0


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[list[BaseException]]:
    """`work` in a thread of its own while a keeper is carried here; what it trips over is raised at the end."""
    failed: list[BaseException] = []

    def do() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below, where the test hears of it
            failed.append(error)

    thread = threading.Thread(target=do)
    thread.start()
    yield failed
    thread.join()
    if failed:
        raise failed[0]


def now(run: RunPaths) -> st.RunState:
    return read_state(run.node().journal)


def wait_for_the_reading(run: RunPaths) -> None:
    assert wait_until(lambda: run.node().journal.exists() and reads_on(now(run)), 60)


def reads_on(state: st.RunState) -> bool:
    return state.attempt is not None and state.attempt.reads_on


def ended_of(run: RunPaths) -> ev.AttemptEnded:
    return next(fact for fact in facts_of(run) if isinstance(fact, ev.AttemptEnded))


@pytest.mark.fault("logs and load", "a request comes while logs are read", "it is answered at once")
def test_requests_are_answered_while_the_logs_are_read_and_a_stop_ends_that(
    tmp_path: Path, slowly: Callable[[float], None]
) -> None:
    slowly(0.5)
    run = RunPaths(tmp_path / "run-1")

    def ask() -> None:
        wait_for_the_reading(run)
        note = control.send(run.control, RequestKind.NOTE, args=control.RequestArgs(text="hi"))
        assert wait_until(lambda: note in now(run).answered, 5)
        assert reads_on(now(run))
        stop = control.send(run.control, RequestKind.STOP)
        assert wait_until(lambda: stop in now(run).answered, 10)
        slowly(0.0)

    with meanwhile(ask):
        code, state = carry(run, job_of(tmp_path, sys.executable, "-c", BIG))
    ended, attempt = ended_of(run), state.attempts[0]
    assert ended.log_read_bytes is not None
    assert ended.log_size_bytes is not None
    assert 0 < ended.log_read_bytes < ended.log_size_bytes
    assert attempt.last_step is not None
    assert attempt.last_step < STEPS
    assert (code, outcome(state)) == (0, (Outcome.SUCCEEDED, 1)), "the exit code decides"
    assert isinstance(state.condition, st.Finished)
    assert state.condition.reason == f"finished; {unread_text(attempt)}, to step {attempt.last_step}"
    moments = [english.moment(m) for m in state.timeline]
    assert f"attempt 1 ended, exit 0, {unread_text(attempt)}" in moments


def test_who_wants_the_next_attempt_now_need_not_wait_for_the_logs(
    tmp_path: Path, slowly: Callable[[float], None]
) -> None:
    slowly(0.5)
    run = RunPaths(tmp_path / "run-1")
    mark = tmp_path / "again"
    # The second attempt takes the last step up: one without a step would be no success.
    again = f"print('step {STEPS} loss 1.0', flush=True); raise SystemExit(0)"
    once = f"import os\nif os.path.exists({str(mark)!r}): {again}\nopen({str(mark)!r}, 'w')\n"

    def ask() -> None:
        wait_for_the_reading(run)
        asked = control.send(run.control, RequestKind.RESTART)
        assert wait_until(lambda: asked in now(run).answered, 10)
        assert now(run).answered[asked] == "done"
        slowly(0.0)

    says = f"{once}{BIG}\nimport os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"
    retry = RetrySettings(restart_from_scratch=True)
    job = job_of(tmp_path, sys.executable, "-c", says, interactive=True, retry=retry)
    with meanwhile(ask):
        code, state = carry(run, job)
    assert (code, outcome(state)) == (0, (Outcome.SUCCEEDED, 2))
    assert state.attempts[0].has_unread


@pytest.mark.fault(
    "journal and disk", "the machine shuts down: SIGTERM, then SIGKILL", "the end is on disk before"
)
def test_after_a_signal_the_end_is_on_disk_before_we_are_killed(
    tmp_path: Path, slowly: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.keeper.attempt_monitor.SIGNAL_READ_S", 0.5)
    slowly(0.5)
    run = run_in(tmp_path, STARTED, INTENDED)
    child = child_in(run, BIG)
    stop = ev.StopIntended(t=T, attempt=1, why=ev.StopWhy.SIGNAL, by="SIGTERM", grace_s=60.0)
    append(run, journalled(child), stop)
    assert wait_until(lambda: child.poll() is not None, 30)
    _, state = carry(run, job_of(tmp_path))
    assert state.attempts[0].has_unread


def test_a_keeper_that_adopts_reads_the_logs_of_an_attempt_that_is_over(tmp_path: Path) -> None:
    run = run_in(tmp_path, STARTED, INTENDED)
    child = child_in(run, f"print('step {STEPS}/{STEPS} loss: 1.0')")
    append(run, journalled(child), ev.ProcessesGone(t=T, attempt=1, exit_code=0))
    assert wait_until(lambda: child.poll() is not None, 30)
    code, state = carry(run, job_of(tmp_path))
    assert (code, outcome(state)) == (0, (Outcome.SUCCEEDED, 1))
    assert state.attempts[0].last_step == STEPS


# -- verdicts beside the loop ------------------------------------------------------------------------


def test_a_verdict_on_large_logs_is_made_beside_the_loop() -> None:
    gate, asked = threading.Event(), list[tuple[int, bool]]()

    def judge(number: int, whole: bool) -> Verdict:
        asked.append((number, whole))
        assert gate.wait(10)
        return verdict_of()

    judging = BackgroundVerdict(judge)
    assert judging.look(1, whole=False) is None
    assert judging.busy
    assert judging.look(1, whole=True) is None, "one at a time"
    gate.set()
    assert wait_until(lambda: judging.look(1, whole=True) is not None, 10)
    assert asked == [(1, False), (1, True)]


def test_in_a_hurry_a_large_log_is_judged_by_its_ends_and_lines_keep_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (
        ("ENDS_FROM_BYTES", 4000),
        ("HEAD_BYTES", 1000),
        ("TAIL_BYTES", 1000),
        ("COUNT_BYTES", 700),
    ):
        monkeypatch.setattr(judgement, name, size)
    log = tmp_path / "agent.log"
    log.write_bytes(b"".join(b"line %d\n" % n for n in range(1, 1001)))
    assert b"".join(judgement._chunks(log, whole=True)) == log.read_bytes()
    read = b"".join(judgement._chunks(log, whole=False)).split(b"\n")
    assert read[0] == b"line 1"
    assert read[999] == b"line 1000"
    assert read[500] == b"", "what lies between is only counted"


def test_steps_keep_their_times_while_the_signatures_are_compiled(tmp_path: Path) -> None:
    seen: list[object] = []
    ready, stop = threading.Event(), threading.Event()
    engine = load_engine(default_cache_dir())
    watch = LogWatch(
        stop,
        put=seen.append,
        clock=Clock(),
        engine=lambda: engine,
        rank_of=lambda _origin: 0,
        engine_ready=ready.is_set,
    )
    log = tmp_path / "stdout.log"
    log.write_text("step 1/9 loss: 3.0 lr: 1.0e-03\nKeyError: 'labels'\n", encoding="utf-8")
    watch.follow(LogKey("stdout.log", LogKind.RANK, Origin(local_rank=0)), str(log))
    watch.start()
    try:
        assert wait_until(lambda: any(isinstance(item, StepSeen) for item in seen), 10)
        assert not any(isinstance(item, Reported) for item in seen)
        ready.set()
        watch.finish()
        assert wait_until(lambda: watch.finished, 10)
        assert any(isinstance(item, Reported) for item in seen), "what waited is scanned in the end"
    finally:
        stop.set()
        watch.close()
