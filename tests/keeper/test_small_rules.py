"""The keeper's small rules, each at its bounds: requests by condition, set clocks, counters of epochs, who shares a GPU."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.job.batch import BatchSpec
from supervisor.job.spec import EntryKind
from supervisor.keeper.base.background import Background, BackgroundTask, within
from supervisor.keeper.base.keeper_clock import of_others
from supervisor.keeper.base.request_rules import Refused, RequestAction, judge
from supervisor.keeper.monitoring.collector import (
    Sensors,
    Use,
    gpu_values,
    own_values,
)
from supervisor.keeper.recording.start_events import _world_size
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.control import Request, RequestArgs, Requester
from supervisor.run.events import Outcome, RequestKind
from supervisor.run.records import Decision, DecisionKind
from supervisor.sources.gpu import GpuDevice, GpuNote, GpuNoteCode, GpuProcess, GpuSample
from supervisor.sources.machine import HostSample, ProcessSample
from supervisor.sources.processes import ProcessId
from tests.keeper.fakes import FakeClock, job_of, verdict_of

# -- requests ------------------------------------------------------------------------------------------------

AGAIN = Decision(DecisionKind.RESTART, "again")
CONDITIONS: dict[str, st.Condition] = {
    "preflight": st.Preflight(),
    "launching": st.Launching(attempt=1),
    "running": st.Running(attempt=1, phase=ev.Phase.STEPPING),
    "stopping": st.Stopping(attempt=1, why=ev.StopWhy.REQUEST, by="me"),
    "ended": st.Ended(attempt=1, exit_code=1),
    "diagnosed": st.DiagnosedAs(attempt=1, verdict=verdict_of()),
    "backoff": st.Backoff(attempt=1, until=1.0, decision=AGAIN),
    "held": st.HeldOpen(attempt=1, reason="", decision=None),
    "finished": st.Finished(outcome=Outcome.FAILED, exit_code=1, reason=""),
}
A = RequestAction
RESTARTS = {
    "launching": A.STOP_THEN_RESTART,
    "running": A.STOP_THEN_RESTART,
    "ended": A.RESTART,
    "backoff": A.RESTART,
    "held": A.RESTART,
}
ENDS = dict.fromkeys(("preflight", "ended", "diagnosed", "backoff", "held"), A.END)
ALLOWED: dict[RequestKind, dict[str, RequestAction]] = {
    RequestKind.STOP: {**ENDS, **dict.fromkeys(("launching", "running", "stopping"), A.STOP)},
    RequestKind.STOP_NOW: {**ENDS, **dict.fromkeys(("launching", "running", "stopping"), A.STOP_NOW)},
    RequestKind.RESTART: RESTARTS,
    RequestKind.RESTART_WITH: RESTARTS,
    RequestKind.START_NOW: dict.fromkeys(("backoff", "ended"), A.START_NOW),
    RequestKind.HOLD: {"backoff": A.HOLD},
    RequestKind.STACKS: dict.fromkeys(("running", "stopping"), A.STACKS),
    RequestKind.PROFILE: {"running": A.PROFILE},
    RequestKind.KEEP_WAITING: {},
    RequestKind.ANSWER: {},
    RequestKind.NOTE: dict.fromkeys(CONDITIONS, A.NOTE),
}


def request(kind: RequestKind, *, if_attempt: int | None = None, text: str | None = "a note") -> Request:
    by = Requester(uid=0, host="box")
    return Request(id="1", kind=kind, by=by, if_attempt=if_attempt, args=RequestArgs(text=text))


def state_in(condition: st.Condition, mode: str = "launched", **attempt: object) -> st.RunState:
    only = st.AttemptState(number=1, planned_t=0.0, **attempt)  # type: ignore[arg-type]
    return st.RunState(condition=condition, attempts=(only,), mode=mode)


def judged(asked: Request, state: st.RunState) -> RequestAction | str:
    try:
        return judge(asked, state)
    except Refused as why:
        return str(why)


@pytest.mark.fault(
    "processes", "a request that was meant for an earlier attempt", "it is answered as stale and does nothing"
)
@pytest.mark.parametrize("kind", list(RequestKind))
@pytest.mark.parametrize("name", list(CONDITIONS))
def test_what_each_request_means_in_each_condition(kind: RequestKind, name: str) -> None:
    state = state_in(CONDITIONS[name])
    found = judged(request(kind), state)
    if (allowed := ALLOWED[kind].get(name)) is not None:
        assert found is allowed
    else:
        assert isinstance(found, str), "refused, with a reason"
        assert found
    assert judged(request(kind, if_attempt=1), state) == found
    assert judged(request(kind, if_attempt=2), state) == "stale"
    watched = judged(request(kind), state_in(CONDITIONS[name], mode="observed"))
    if kind in {RequestKind.NOTE, RequestKind.STACKS}:
        assert watched == found
    else:
        assert "it only watches" in str(watched)


def test_a_request_for_the_first_attempt_of_a_run_without_one_is_stale() -> None:
    assert judged(request(RequestKind.STOP, if_attempt=1), st.RunState()) == "stale"
    assert judged(request(RequestKind.STOP, if_attempt=0), st.RunState()) is A.END
    assert judged(request(RequestKind.NOTE, text=""), st.RunState()) == "a note without text"


def test_keeping_waiting_needs_a_countdown_of_a_run_that_runs() -> None:
    countdown = ev.HangCountdown(t=0.0, attempt=1, until=9.0, left_s=9, text="", rule="")
    asked = request(RequestKind.KEEP_WAITING)
    assert judged(asked, state_in(CONDITIONS["running"], countdown=countdown)) is A.KEEP_WAITING
    for condition in (CONDITIONS["running"], CONDITIONS["stopping"]):
        kept = None if condition is CONDITIONS["running"] else countdown
        refused = "neither a hang nor a run that waits for you is about to be ended"
        assert judged(asked, state_in(condition, countdown=kept)) == refused


# -- clocks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ahead_s", "t", "t_mono", "by_s"),
    [
        (0.0, -3.0, None, -3.0),
        (10.0, 7.0, None, -3.0),
        (0.0, -3.0, -3.5, -3.5),
        (0.0, -3.0, -7.9, -7.9),
        (0.0, -3.0, -8.0, -3.0),
        (1.0, -3.0, -50.0, -50.0),
        (0.9, -3.0, -50.0, -3.9),
        (0.0, 0.5, 1.0, 1.0),
        (0.0, 0.5, 1.1, 0.5),
    ],
)
def test_a_time_that_another_process_wrote(
    ahead_s: float, t: float, t_mono: float | None, by_s: float
) -> None:
    clock = FakeClock()
    clock.ahead = ahead_s
    wall, mono = clock.wall(), clock.mono()
    found = of_others(wall + t, clock, None if t_mono is None else mono + t_mono)
    assert found == pytest.approx(wall + by_s)


# -- who shares a GPU, and how many ranks there are -------------------------------------------------------------


def use(*held: int | None, own: int = 1) -> Use:
    mine = tuple(GpuProcess(100 + at, 1 << 30) for at in range(own))
    return Use(3, mine, tuple(GpuProcess(4_194_305 + at, size) for at, size in enumerate(held)))


def test_the_ranks_of_the_whole_job(tmp_path: Path) -> None:
    job = job_of(tmp_path).job
    assert _world_size(replace(job, batch=BatchSpec(1, 1, 8), world_size=4, nproc_per_node=2)) == 8
    assert _world_size(replace(job, batch=None, world_size=4, nproc_per_node=2)) == 4
    unknown = replace(job, batch=None, world_size=None, nproc_per_node=2)
    assert _world_size(unknown) is None, "a command may start any number of its own"
    assert _world_size(replace(unknown, entry_kind=EntryKind.SCRIPT)) == 2


# -- work beside the loop ---------------------------------------------------------------------------------------


def test_work_in_the_background_is_fetched_once() -> None:
    doing: Background[int] = Background("test")
    assert (doing.busy, doing.working, doing.is_idle(), doing.poll()) == (False, False, True, None)
    go = threading.Event()
    doing.start(lambda: 7 if go.wait(10.0) else 0)
    doing.start(lambda: 8)
    assert (doing.busy, doing.working, doing.is_idle()) == (True, True, False)
    assert doing.poll() is None
    go.set()
    assert doing.poll(10.0) == 7
    assert (doing.busy, doing.poll()) == (False, None)


def test_work_that_fails_or_hangs_gives_nothing() -> None:
    failing: Background[int] = Background("test")
    failing.start(lambda: 1 // 0)
    assert failing.poll(10.0) is None
    assert failing.is_idle()
    assert within(10.0, lambda: 5, "test") == 5
    go = threading.Event()
    assert within(0.01, lambda: go.wait(10.0), "test") is None
    go.set()


def test_a_task_answers_in_the_thread_that_asks_and_raises_what_it_met() -> None:
    here = threading.current_thread()
    where: list[threading.Thread] = []

    def finish(found: int) -> int:
        where.append(threading.current_thread())
        return found + 1

    task = BackgroundTask("test", lambda: 1, finish)
    task.close(10.0)
    assert (task.poll(), task.poll(), where) == (2, 2, [here])

    def refuse() -> int:
        raise OSError("no")

    refused = BackgroundTask("test", refuse, finish)
    refused.close(10.0)
    for _ in range(2):
        with pytest.raises(OSError, match="no"):
            refused.poll()
    failed = BackgroundTask("test", lambda: 1 // 0, finish)
    failed.close(10.0)
    with pytest.raises(OSError, match=r"see keeper\.log"):
        failed.poll()


# -- what is sampled, by the names of the series ------------------------------------------------------------------


def gpu_sample(**values: Any) -> GpuSample:
    return GpuSample(t=1.0, device=GpuDevice(2, "GPU-2", "Fake", 80 << 30), **values)


def test_a_gpus_numbers_by_the_names_of_the_series() -> None:
    found = gpu_values(gpu_sample(util_ratio=0.5, sm_clock_hz=1.98e9, temperature_celsius=70.0, lost=True))
    assert found["sm_clock_mhz"] == 1980.0
    assert (found["util_ratio"], found["temperature_c"], found["lost"]) == (0.5, 70.0, 1.0)
    assert "own_memory_bytes" not in found
    assert gpu_values(gpu_sample())["sm_clock_mhz"] is None
    assert gpu_values(gpu_sample(), use(1 << 30))["others_memory_bytes"] == 1 << 30


def sensors(told: list[Any]) -> Sensors:
    return Sensors(threading.Event(), told.append, FakeClock(), interval_s=60.0, disk="/")


def test_a_machine_without_gpus_is_no_news() -> None:
    told: list[Any] = []
    made = sensors(told)
    made._on_gpu_note(GpuNote(1.0, GpuNoteCode.ABSENT, "no driver"))
    assert told == []
    other = next(code for code in GpuNoteCode if code is not GpuNoteCode.ABSENT)
    made._on_gpu_note(GpuNote(1.0, other, "something", index=0, xid=79))
    made._on_gpu_note(GpuNote(1.0, other, "something"))
    assert [fact.code for fact in told] == [f"{other}_0_79", f"{other}__"]


def test_what_the_keeper_takes_stands_with_the_machine_and_is_no_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []
    made = sensors(told)
    assert made._read()["stoker"].pid == os.getpid()
    assert made._watched() == {}
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    own = ProcessSample(2.0, "stoker", ProcessId(1, 0.0), alive=True, cpu_ratio=0.1, rss_bytes=48 << 20)
    rank = replace(own, key="0", rss_bytes=1 << 30)
    made._on_host(HostSample(t=2.0, cpu_ratio=0.5), [rank, own])
    assert [one.key for one in told] == ["machine", "0"]
    assert told[0].values["stoker_cpu_ratio"] == 0.025, "a share of all cores, as the machine's own"
    assert told[0].values["stoker_rss_bytes"] == 48 << 20
    assert own_values(None) == own_values(replace(own, alive=False)) == {}
    assert own_values(replace(own, cpu_ratio=None))["stoker_cpu_ratio"] is None


# -- running minima of the loss -----------------------------------------------------------------------------------
