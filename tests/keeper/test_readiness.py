"""What is waited for before a launch, what is measured of an attempt, and which probe comes next."""

from __future__ import annotations

import socket
import threading
from math import log2
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st_

from supervisor.job.batch import BatchSpec, candidates
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.fit_batch import next_probe
from supervisor.keeper.planning import readiness as preconditions
from supervisor.keeper.planning.readiness import Missing, ReadinessCheck
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.paths import NodePaths
from supervisor.run.records import Decision, DecisionKind, Precondition, SpecChange
from supervisor.run.series import GPU, SeriesWriter
from supervisor.sources.gpu import GpuDevice, GpuProcess, GpuSample
from tests.conftest import not_none
from tests.keeper.fakes import FakeClock

GIB = 2**30
JOB = JobSpec("job", EntryKind.SCRIPT, "train.py")


def clock_at_100() -> FakeClock:
    return FakeClock(now=100.0, epoch=0.0)


def backoff(*proofs_: Precondition, wait_s: float = 10.0) -> st.Backoff:
    decision = Decision(DecisionKind.RESTART, "again", change=SpecChange(), show_first=proofs_, wait_s=wait_s)
    return st.Backoff(attempt=1, until=100.0, decision=decision)


class Look:
    """What is missing, as a test says."""

    def __init__(self, found: Missing | None) -> None:
        self.found = found
        self.wait: threading.Event | None = None

    def __call__(self, *_: object) -> Missing | None:
        if self.wait is not None:
            self.wait.wait(30)
        return self.found


def gate(clock: FakeClock, look: Look, told: list[ev.Event]) -> ReadinessCheck:
    return ReadinessCheck(JOB, NodePaths(Path("/nowhere")), {}, clock, told.append, look=look)


def test_the_gate_waits_then_opens_and_says_how_long_it_took() -> None:
    told: list[ev.Event] = []
    clock, look = clock_at_100(), Look(Missing(Precondition.GPU_MEMORY, "GPU 0: 1 GiB is not back"))
    door = gate(clock, look, told)
    assert not door.ready(st.RunState(), backoff(Precondition.GPU_MEMORY))
    assert isinstance(told[0], ev.WaitingFor)
    look.found = None
    clock.now += 2.0
    assert door.ready(st.RunState(), backoff(Precondition.GPU_MEMORY))
    assert isinstance(told[1], ev.LaunchCleared)
    assert told[1].waited_s == 2.0


def test_a_wait_that_is_over_launches_all_the_same_unless_that_is_pointless() -> None:
    told: list[ev.Event] = []
    clock = clock_at_100()
    door = gate(clock, Look(Missing(Precondition.GPU_MEMORY, "GPU 0: 1 GiB is not back")), told)
    clock.now += 11.0
    assert door.ready(st.RunState(), backoff(Precondition.GPU_MEMORY))
    assert isinstance(told[0], ev.LaunchCleared)
    assert "not back" in told[0].text
    full = gate(clock, Look(Missing(Precondition.DISK, "1 MiB free", fatal=True)), told)
    assert not full.ready(st.RunState(), backoff(Precondition.DISK))
    assert "1 MiB free" in full.refusal
    clock.now += 1.0
    later = st.Backoff(attempt=2, until=clock.now, decision=backoff(Precondition.DISK).decision)
    assert not full.ready(st.RunState(), later)
    assert not full.refusal, "another wait has begun"


def test_a_driver_that_does_not_answer_is_waited_for_no_longer_than_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("supervisor.keeper.planning.readiness.LOOK_S", 0.05)
    told: list[ev.Event] = []
    answer = threading.Event()
    clock = clock_at_100()
    hung = Look(None)
    hung.wait = answer
    door = gate(clock, hung, told)
    wanted = backoff(Precondition.GPU_MEMORY)
    assert not door.ready(st.RunState(), wanted)
    assert isinstance(told[0], ev.WaitingFor)
    assert "no answer" in told[0].text
    clock.now += 11.0
    assert door.ready(st.RunState(), wanted), "the wait is over, the driver still silent"
    answer.set()
    door.close()
    # What was asked after another attempt says nothing of this one.
    later = st.Backoff(attempt=2, until=clock.now, decision=wanted.decision)
    hung.found = Missing(Precondition.GPU_MEMORY, "1 GiB is not back")
    door.ready(st.RunState(), later)
    clock.now += 0.3
    assert not door.ready(st.RunState(), later)


def test_a_look_that_fails_keeps_no_run_from_going_on(caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> Missing | None:
        raise OSError("the disk is gone")

    door = ReadinessCheck(
        JOB, NodePaths(Path("/nowhere")), {}, clock_at_100(), lambda _event: None, look=broken
    )
    assert door.ready(st.RunState(), backoff(Precondition.DISK))
    assert "stoker-proofs failed" in caplog.text


def dead_ranks(pid: int) -> st.RunState:
    view = st.AttemptState(
        number=1, planned_t=0.0, started_t=0.0, ranks={0: st.RankState(local_rank=0, pid=pid)}
    )
    return st.RunState(attempts=(view,))


def sample(used: int, *processes: GpuProcess) -> list[GpuSample]:
    return [
        GpuSample(1.0, GpuDevice(0, "GPU-a", "H100", 80 * GIB), memory_used_bytes=used, processes=processes)
    ]


def test_gpu_memory_of_dead_ranks_is_waited_for_and_that_of_strangers_is_not(tmp_path: Path) -> None:
    node = NodePaths(tmp_path)
    writer = SeriesWriter(node.series)
    writer.append(GPU, 1.0, "0", 1, {"memory_used_bytes": 1.0 * GIB})
    writer.close()
    state, wanted = dead_ranks(4_000_001), (Precondition.GPU_MEMORY,)

    def look(used: int, *processes: GpuProcess) -> Missing | None:
        return preconditions.missing(wanted, JOB, state, node, {}, gpus=lambda: sample(used, *processes))

    held = not_none(look(60 * GIB, GpuProcess(4_000_001, 59 * GIB)))
    assert "4000001" in held.text
    assert not held.fatal
    assert look(60 * GIB) is not None, "memory that nobody holds is still on its way back"
    assert look(1 * GIB + 100) is None
    stranger = GpuProcess(4_000_002, 59 * GIB)
    assert look(60 * GIB, stranger) is None, "a stranger's memory is not waited for"
    hidden = preconditions.missing(
        wanted, JOB, state, node, {"CUDA_VISIBLE_DEVICES": "1"}, gpus=lambda: sample(60 * GIB)
    )
    assert hidden is None, "a GPU that the job does not see"
    assert preconditions.missing(wanted, JOB, state, node, {}, gpus=list) is None


def test_a_named_port_and_the_disk_must_be_shown(tmp_path: Path) -> None:
    node = NodePaths(tmp_path)
    with socket.create_server(("0.0.0.0", 0)) as server:
        named = JobSpec("job", EntryKind.SCRIPT, "train.py", master_port=server.getsockname()[1])
        taken = not_none(preconditions.missing((Precondition.PORT,), named, st.RunState(), node, {}))
        assert taken.fatal
    assert preconditions.missing((Precondition.PORT,), named, st.RunState(), node, {}) is None
    assert preconditions.missing((Precondition.PORT,), JOB, st.RunState(), node, {}) is None
    assert preconditions.missing((Precondition.DISK,), JOB, st.RunState(), node, {}) is None


@given(per_rank=st_.integers(1, 5000), limit=st_.integers(0, 6000))
def test_bisection_finds_the_largest_divisor_in_few_probes(per_rank: int, limit: int) -> None:
    open_ = candidates(BatchSpec(per_rank, 1, 1))
    probes: list[ev.ProbeEnded] = []
    while (micro := next_probe(open_, probes)) is not None:
        fits = micro <= limit
        probes.append(
            ev.ProbeEnded(t=0.0, probe=len(probes) + 1, micro_batch=micro, fitted=fits, why="", took_s=1.0)
        )
    assert len(probes) <= int(log2(len(open_))) + 1
    assert max((p.micro_batch for p in probes if p.fitted), default=0) == max(
        (m for m in open_ if m <= limit), default=0
    )
