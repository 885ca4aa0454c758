"""What is waited for before a launch, what is measured of an attempt, and which probe comes next."""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import replace
from math import log2
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st_

from supervisor.job.batch import BatchSpec, candidates
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.fit_batch import next_probe
from supervisor.keeper.planning import readiness as preconditions
from supervisor.keeper.planning.readiness import Missing, ReadinessCheck, RendezvousWatch, rendezvous_of
from supervisor.preflight.meeting import why_not
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.fold import replay
from supervisor.run.node_files import Launch, Order, Want
from supervisor.run.paths import NodePaths
from supervisor.run.records import Decision, DecisionKind, Precondition, SpecChange
from supervisor.run.series import GPU, SeriesWriter
from supervisor.sources.gpu import GpuDevice, GpuProcess, GpuSample
from tests.conftest import not_none, wait_until
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
    door, wanted = gate(clock, look, told), backoff(Precondition.GPU_MEMORY)
    assert door.ready(st.RunState(), backoff()), "nothing is to be shown"
    assert told == []
    assert not door.ready(st.RunState(), wanted)
    text = "waiting, 10 s at most: GPU 0: 1 GiB is not back"
    waits = ev.WaitingFor(t=100.0, attempt=1, precondition=Precondition.GPU_MEMORY, text=text)
    assert told == [waits]
    clock.now += 1.0
    assert not door.ready(st.RunState(waiting=waits), wanted)
    assert told == [waits], "it is said once"
    look.found = Missing(Precondition.DISK, "1 MiB free")
    clock.now += 0.5
    assert not door.ready(st.RunState(waiting=waits), wanted)
    assert [fact.text for fact in told if isinstance(fact, ev.WaitingFor)][1:] == [
        "waiting, 10 s at most: 1 MiB free"
    ]
    look.found = None
    clock.now += 0.2
    assert not door.ready(st.RunState(), wanted), "it looks four times a second"
    clock.now += 0.3
    assert door.ready(st.RunState(), wanted)
    assert told[2:] == [ev.LaunchCleared(t=102.0, attempt=1, waited_s=2.0, text="")]


def test_a_wait_that_is_over_launches_all_the_same_unless_that_is_pointless() -> None:
    told: list[ev.Event] = []
    clock = clock_at_100()
    door = gate(clock, Look(Missing(Precondition.GPU_MEMORY, "GPU 0: 1 GiB is not back")), told)
    clock.now += 10.0
    assert door.ready(st.RunState(), backoff(Precondition.GPU_MEMORY))
    text = "launched after 10 s all the same: GPU 0: 1 GiB is not back"
    assert told == [ev.LaunchCleared(t=110.0, attempt=1, waited_s=10.0, text=text)]
    full = gate(clock, Look(Missing(Precondition.DISK, "1 MiB free", fatal=True)), told)
    assert not full.ready(st.RunState(), backoff(Precondition.DISK))
    assert full.refusal == "waited 10 s: 1 MiB free"
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
    assert told[0].text == "waiting, 10 s at most: no answer yet to what was asked of gpu memory"
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


def dead_ranks(pid: int, started_t: float | None = 0.0) -> st.RunState:
    ranks = {0: st.RankState(local_rank=0, pid=pid), 1: st.RankState(local_rank=1)}
    view = st.AttemptState(number=1, planned_t=0.0, started_t=started_t, ranks=ranks)
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

    def text(*found: GpuProcess, used: int = 60 * GIB) -> str | None:
        got = look(used, *found)
        assert got is None or (got.precondition, got.fatal) == (Precondition.GPU_MEMORY, False)
        return got.text if got is not None else None

    more = "more in use than before the launch"
    dead, stranger = GpuProcess(4_000_001, 59 * GIB), GpuProcess(4_000_002, 59 * GIB)
    assert text(dead) == "GPU 0: 59.0 GiB of pid 4000001 (ended) are not back yet"
    assert text(stranger, GpuProcess(4_000_001, None), dead) == text(dead)
    assert text() == f"GPU 0: 58.5 GiB {more}", "memory that nobody holds is still on its way back"
    assert text(used=GIB + (512 << 20)) is None, "contexts of the driver come and go"
    assert text(used=GIB + (513 << 20)) == f"GPU 0: 1 MiB {more}"
    assert text(stranger) is None, "a stranger's memory is not waited for"
    own = GpuProcess(os.getpid(), 59 * GIB)
    assert text(own) is None, "a process that came after the launch"
    state = st.RunState(attempts=(dead_ranks(4_000_001, time.time() + 60.0).attempts))
    assert text(own) == f"GPU 0: 58.5 GiB {more}", "it was there before, with the memory that was used then"
    state = dead_ranks(4_000_001, None)
    assert text(own) is None
    state = dead_ranks(4_000_001)
    named = replace(JOB, env=(("CUDA_VISIBLE_DEVICES", "1"),))
    seen = {"CUDA_VISIBLE_DEVICES": "0"}
    assert preconditions.missing(wanted, named, state, node, seen, gpus=lambda: sample(60 * GIB)) is None
    assert preconditions.missing(wanted, JOB, state, node, seen, gpus=lambda: sample(60 * GIB)) is not None
    assert (
        preconditions.missing(wanted, JOB, st.RunState(), node, seen, gpus=lambda: sample(60 * GIB)) is None
    )
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
        holder = f"port {named.master_port} is still held by "
        assert (taken.precondition, taken.fatal) == (Precondition.PORT, True)
        assert taken.text.startswith(holder)
        assert "somebody" not in taken.text
    both = (Precondition.PORT, Precondition.DISK)
    assert preconditions.missing(both, named, st.RunState(), node, {}) is None
    assert preconditions.missing(both, JOB, st.RunState(), node, {}) is None


def test_room_for_logs_and_for_another_checkpoint_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The free space of the machine changes by itself: what is there is set."""
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "4.pt"
    path.write_bytes(bytes(3 << 20))
    saved = ev.CheckpointCommitted(t=0.0, attempt=1, step=4, path=str(path))
    node, state = NodePaths(tmp_path), replay([saved])
    free = {str(tmp_path): 256 << 20, str(path.parent): 259 << 20}
    monkeypatch.setattr(preconditions, "disk_fill", lambda path: SimpleNamespace(available_bytes=free[path]))

    def found(state: st.RunState) -> Missing | None:
        return preconditions.missing((Precondition.DISK,), JOB, state, node, {})

    assert found(state) is None
    free[str(path.parent)] -= 1
    text = f"259 MiB free at {path.parent}, 259 MiB needed"
    assert found(state) == Missing(Precondition.DISK, text, fatal=True)
    path.unlink()
    assert found(state) is None, "its size is not known"
    free[str(tmp_path)] = 1 << 20
    text = f"1 MiB free at {tmp_path}, 256 MiB needed"
    assert found(st.RunState()) == Missing(Precondition.DISK, text, fatal=True)


def test_a_rendezvous_that_refuses_twice_is_told_of_once() -> None:
    told, clock = list[ev.Event](), clock_at_100()
    watch = RendezvousWatch(clock, told.append)
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = ("127.0.0.1", server.getsockname()[1])
        view = st.AttemptState(number=3, planned_t=0.0, started_t=0.0, ranks={0: st.RankState(local_rank=0)})

        def look_for(seconds: float, view: st.AttemptState = view) -> list[ev.Event]:
            end = clock.now + seconds
            while clock.now < end:
                clock.now += 1.0
                watch.look(view, where)
                assert wait_until(lambda: not watch._probe.working, 10)
            return told

        assert look_for(40.0) == [], "it listens"
    with_rank = {0: st.RankState(local_rank=0, pid=1)}
    assert look_for(40.0, st.AttemptState(number=3, planned_t=0.0, started_t=0.0, ranks=with_rank)) == []
    assert look_for(40.0, st.AttemptState(number=3, planned_t=0.0)) == []
    refused = why_not(*where)
    assert refused is not None
    later = st.AttemptState(number=4, planned_t=0.0, started_t=0.0)
    assert look_for(16.0, later) == [], "once is not enough, and the ranks need 10 s"
    text = f"waiting for the rendezvous: {refused.what}; {refused.fix}"
    (advice,) = look_for(1.0, later) or look_for(2.0, later)
    assert isinstance(advice, ev.Advisory)
    assert (advice.attempt, advice.code, advice.text) == (4, "rendezvous_4_refused", text)
    assert len(look_for(60.0, later)) == 1


def test_the_rendezvous_is_where_node_0_listens() -> None:
    job = replace(JOB, nnodes="2", master_addr="a")
    order = Order(seq=1, leader="", want=Want.RUN, attempt=1, launch=Launch(nodes=(0, 1), master_port=7))
    assert [rendezvous_of(job, each) for each in (None, order)] == [("a", 29_500), ("a", 7)]
    assert rendezvous_of(replace(job, master_port=8), None) == ("a", 8)
    named = (replace(job, torchrun_flags=(f"--rdzv-endpoint={where}",)) for where in ("b", "b:9", "b:x"))
    assert [rendezvous_of(each, order) for each in named] == [("b", 29_400), ("b", 9), ("b", 29_400)]
    assert rendezvous_of(JOB, None) is None


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
