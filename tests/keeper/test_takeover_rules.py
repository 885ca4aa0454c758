"""When a run may be taken over or continued, by what its folder says; and what probes and trials come to. No process is started."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from supervisor.job.batch import BatchSpec, MemoryPoint
from supervisor.job.memory_fit import Measure, MemoryTrial
from supervisor.job.spec import RetrySettings
from supervisor.keeper.monitoring.observations import (
    MAX_LINE_BYTES,
    from_telemetry,
)
from supervisor.keeper.planning.attempt_evidence import trial_of
from supervisor.keeper.process import takeover
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.events import Outcome
from supervisor.run.ownership import KeeperLock
from supervisor.run.records import FailureClass
from supervisor.run.series import GPU, RANKS, SeriesWriter
from supervisor.sources.processes import command_of, identify
from tests.conftest import not_none
from tests.keeper.fakes import FakeClock, job_of, own_run_in, run_in, verdict_of
from tests.keeper.runs import INTENDED, RUNS, STARTED, WAITS, T

HERE = msgspec.structs.replace(STARTED, host=socket.gethostname())
FAILED = ev.RunEnded(t=T, outcome=Outcome.FAILED, exit_code=1, reason="it broke")
DONE = ev.RunEnded(t=T, outcome=Outcome.SUCCEEDED, exit_code=0, reason="all done")


def members(monkeypatch: pytest.MonkeyPatch, ours: int = 0, unknown: int = 0, nested: int = 0) -> None:
    """What is found of the run's processes: this very one, so many times."""
    me = not_none(identify(os.getpid()))
    made = SimpleNamespace(ours=(me,) * ours, unknown=(me,) * unknown, nested=(me,) * nested)
    monkeypatch.setattr(takeover, "find_members", lambda *_args, **_more: made)


def named() -> str:
    """This process as it is named: ME in a table, since a test runner may change its title."""
    return f"{os.getpid()} ({command_of(os.getpid())})"


def test_a_run_whose_journal_lost_its_first_line_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = msgspec.structs.replace(job_of(tmp_path), host=socket.gethostname())
    run = own_run_in(tmp_path, record)
    run.node().journal.write_bytes(b'{"kind":"run_sta')
    members(monkeypatch)
    assert takeover.examine_continuation(run).refusals == ()
    members(monkeypatch, ours=1)
    offer, _ = takeover.examine_adoption(run)
    assert offer.refusals == ()


PROBES = ev.ProbeStarted(t=T, probe=1, micro_batch=4, argv=())
AGAIN = "`stoker continue run-1` starts the next attempt"
BOOTED = ev.KeeperStarted(
    t=T, pid=1, start_time=1.0, version="1", boot_id="another", host=socket.gethostname()
)
LIVES = (HERE, INTENDED, RUNS)
STOPS = ev.StopIntended(t=T, attempt=1, why=ev.StopWhy.REQUEST, by="kim", grace_s=1.0)
TAKES = (
    "takes over what lives of it: pid ME",
    f"starts a new supervisor process on this host ({socket.gethostname()})",
    "may stop the job, and restart it by the run's policy (--max-retries 3)",
)
NINE = TAKES[0].replace("pid ME", f"pids {', '.join(['ME'] * 8)} and 1 more")
OFFERS: dict[str, tuple[tuple[ev.Event, ...], dict[str, int], tuple[str, ...], tuple[str, ...]]] = {
    "it failed": ((HERE, FAILED), {}, (f"the run is over (failed): {AGAIN}",), ()),
    "it succeeded": ((HERE, DONE), {}, ("the run is over (succeeded)",), ()),
    "another host": ((STARTED,), {}, ("it ran on box: there it can be adopted",), ()),
    "a boot": ((*LIVES, BOOTED), {}, (f"this machine was booted since: nothing of it lives: {AGAIN}",), ()),
    "files alone": (LIVES, {"unknown": 1}, ("only its files say that pid ME belongs to it: that is not enough to take it over",), ()),
    "nothing": (LIVES, {}, (f"nothing of it lives: {AGAIN}",), ()),
    "it lives": (LIVES, {"ours": 1}, (), TAKES),
    "nine live": (LIVES, {"ours": 9}, (), (NINE, *TAKES[1:])),
    "another stoker": (LIVES, {"ours": 1, "nested": 1}, (), (TAKES[0], "leaves alone what another stoker within it keeps: pid ME", *TAKES[1:])),
    "a stop": ((*LIVES, STOPS), {"ours": 1}, (), (*TAKES[:2], "continues with the stop that was begun", TAKES[2])),
    "a restart": ((*LIVES, *WAITS), {"ours": 1}, (), (*TAKES[:2], "starts the next attempt once its wait is over: that was decided already", TAKES[2])),
    "a probe": ((HERE, PROBES), {"ours": 1}, (), (*TAKES[:2], "watches the probe that runs to its end", TAKES[2])),
}  # fmt: skip


@pytest.mark.parametrize("what", OFFERS)
def test_what_an_adoption_would_do_or_why_it_may_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    facts, counts, refusals, actions = OFFERS[what]
    members(monkeypatch, **counts)
    offer, _ = takeover.examine_adoption(own_run_in(tmp_path, job_of(tmp_path), *facts))
    told = (tuple(text.replace("ME", named()) for text in texts) for texts in (refusals, actions))
    assert (offer.refusals, offer.actions) == tuple(told)


def test_a_job_that_is_not_restarted_is_adopted_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members(monkeypatch, ours=1)
    run = own_run_in(tmp_path, job_of(tmp_path, retry=RetrySettings(max_retries=0)), *LIVES)
    assert takeover.examine_adoption(run)[0].actions[-1] == "may stop the job; does not restart it by itself"


def test_a_run_with_a_keeper_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members(monkeypatch, ours=1)
    run = own_run_in(tmp_path, job_of(tmp_path), HERE, INTENDED, RUNS)
    lock = KeeperLock(run.node().lock, start_time=1.0)
    why = f"a supervisor process looks after it (pid {os.getpid()} on {socket.gethostname()})"
    assert takeover.examine_adoption(run)[0].refusals == (why,)
    assert takeover.examine_continuation(run).refusals == (why,)
    lock.release()


@pytest.mark.parametrize(
    ("facts", "ours", "refused", "warned"),
    [
        ((HERE, INTENDED, RUNS), 0, "", ""),
        ((HERE, INTENDED, RUNS), 1, "it lives: pid ME: `stoker attach --adopt run-1` takes it over", ""),
        ((HERE, FAILED), 1, "", "left by its earlier attempts, and alive: pid ME"),
        ((HERE, FAILED), 0, "", ""),
        ((HERE, DONE), 0, "it succeeded: all done: there is nothing to continue", ""),
    ],
)
def test_whether_a_run_is_continued_here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    facts: tuple[ev.Event, ...],
    ours: int,
    refused: str,
    warned: str,
) -> None:
    members(monkeypatch, ours=ours)
    found = takeover.examine_continuation(own_run_in(tmp_path, job_of(tmp_path), *facts))
    assert found.refusals == ((refused.replace("ME", named()),) if refused else ())
    assert [text for text in found.warnings if "alive" in text] == (
        [warned.replace("ME", named())] if warned else []
    )
    assert (found.record is None) is (facts == (HERE, DONE))


@pytest.mark.parametrize(
    ("facts", "doubts", "listens"),
    [
        ((STARTED, INTENDED, RUNS), 1, "box"),
        ((STARTED, INTENDED, RUNS, *WAITS), 0, "box"),
        ((STARTED, FAILED), 0, ""),
    ],
)
def test_whether_a_run_of_another_host_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: tuple[ev.Event, ...], doubts: int, listens: str
) -> None:
    slurm = ev.KeeperStarted(t=T, pid=1, start_time=1.0, version="1", slurm_job="77")
    run = own_run_in(tmp_path, job_of(tmp_path), facts[0], slurm, *facts[1:])
    found = takeover.examine_continuation(run)
    assert (len(found.doubts), found.listen_to) == (doubts, listens)
    assert found.slurm_job == ("77" if doubts else None)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert takeover.examine_continuation(run).slurm_job is None, "within it, it says nothing"


def test_a_keeper_of_another_host_shows_by_what_it_writes(tmp_path: Path) -> None:
    run = run_in(tmp_path, STARTED)
    assert takeover.other_host_with_keeper(run, 0.0) == ""
    assert takeover.other_host_with_keeper(run, 0.05, lambda _s: None) == ""

    def write(_s: float) -> None:
        run.node().log.write_text("alive")

    assert takeover.other_host_with_keeper(run, 5.0, write) == "keeper.log"


# -- what an attempt showed of its batch ------------------------------------------------------------------------

BATCH = BatchSpec(8, 1, 2)


def view(failure: FailureClass = FailureClass.CODE_ERROR, **values: Any) -> st.AttemptState:
    return st.AttemptState(number=1, planned_t=0.0, verdict=verdict_of(failure), **values)


def test_out_of_memory_shows_that_a_batch_does_not_fit(tmp_path: Path) -> None:
    node = run_in(tmp_path).node()
    oom = view(FailureClass.CUDA_OOM)
    assert trial_of(node, oom, BATCH, None) == MemoryTrial(8, fitted=False)
    point = MemoryPoint(8, 70, 10, 75, base_bytes=5)
    found = not_none(trial_of(node, oom, BATCH, point))
    assert (found.peak_bytes, found.capacity_bytes, found.base_bytes, found.fitted) == (80, 75, 5, False)
    assert trial_of(node, view(FailureClass.HOST_OOM), BATCH, None) == MemoryTrial(8, fitted=False)
    assert trial_of(node, oom, None, point) is None
    assert trial_of(node, st.AttemptState(number=1, planned_t=0.0), BATCH, None) is None
    assert trial_of(node, view(), BATCH, None) is None, "it never stepped"


@pytest.mark.parametrize(
    ("ranks", "gpus", "shown"),
    [
        ([], [], (Measure.ALLOCATOR, None, None)),
        ([], [{"memory_used_bytes": 7.0, "memory_total_bytes": 9.0}], (Measure.DEVICE, 7, 9)),
        (
            [
                {"memory_peak_bytes": 5.0, "memory_reserved_bytes": 6.0},
                {"memory_peak_bytes": 4.0, "memory_reserved_bytes": 6.0},
            ],
            [{"memory_used_bytes": 7.0, "memory_total_bytes": 9.0}],
            (Measure.ALLOCATOR, 5, 9),
        ),
        ([{"memory_peak_bytes": 5.0}], [{"memory_total_bytes": 9.0}], (Measure.RESIDENT, 5, None)),
    ],
)
def test_steps_show_how_much_a_batch_takes(
    tmp_path: Path, ranks: list[dict[str, float]], gpus: list[dict[str, float]], shown: tuple[object, ...]
) -> None:
    node = run_in(tmp_path).node()
    series = SeriesWriter(node.series)
    for stream, readings in ((RANKS, ranks), (GPU, gpus)):
        for key, values in enumerate(readings):
            series.append(stream, T, str(key), 1, dict(values))
    series.close()
    found = not_none(trial_of(node, view(first_step=1, memory_base_bytes=2), BATCH, None))
    assert (found.fitted, found.micro_batch, found.base_bytes) == (True, 8, 2)
    assert (found.measure, found.peak_bytes, found.capacity_bytes) == shown


# -- telemetry -------------------------------------------------------------------------------------------------


def test_a_line_of_telemetry_has_bounds() -> None:
    clock = FakeClock()
    line = json.dumps({"v": 1, "kind": "step", "t_wall": clock.wall(), "step": 1}).encode()
    whole = line + b" " * (MAX_LINE_BYTES - len(line))
    assert list(from_telemetry(whole, rank=None, clock=clock))
    assert list(from_telemetry(whole + b" ", rank=None, clock=clock)) == []


# -- checkpoints and probes ---------------------------------------------------------------------------------------
