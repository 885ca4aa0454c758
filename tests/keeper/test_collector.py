"""What the sensors of one attempt follow, and under whose name: logs of the launcher and of ranks, telemetry, processes."""

from __future__ import annotations

import json
import os
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.job.spec import EntryKind
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.monitoring.collector import Collector
from supervisor.keeper.monitoring.observations import LinesSeen, Observation, Reported, StepSeen
from supervisor.run import events as ev
from supervisor.run.paths import AttemptPaths
from supervisor.run.records import FailureClass
from supervisor.run.state import AttemptState, RankState
from supervisor.sources.processes import identify
from supervisor.sources.signature_files import default_cache_dir, load_engine
from tests.conftest import wait_until
from tests.keeper.fakes import job_of

STEP = "step 3/9 loss: 2.5\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB\n"


@contextmanager
def collecting(
    tmp_path: Path, **changes: object
) -> Iterator[tuple[Collector, AttemptPaths, list[Observation]]]:
    """A collector of a torchrun job, not started yet, and what it has observed."""
    job = job_of(tmp_path, **{"entry_kind": EntryKind.SCRIPT, **changes}).job  # type: ignore[arg-type]
    paths, seen = AttemptPaths(tmp_path / "1"), queue.SimpleQueue[Observation]()
    paths.root.mkdir()
    got: list[Observation] = []
    made = Collector(
        paths,
        queue=seen,
        clock=Clock(),
        interval_s=60.0,
        engine=lambda: load_engine(default_cache_dir()),
        job=job,
    )
    made.logs._put = got.append
    made.start()
    try:
        yield made, paths, got
    finally:
        made.stop()
        while not seen.empty():
            got.append(seen.get())


def rank(local: int, number: int | None = None, *, pid: int | None = None) -> ev.RankStarted:
    process = identify(pid) if pid is not None else None
    return ev.RankStarted(
        t=0.0,
        attempt=1,
        local_rank=local,
        rank=number,
        pid=pid,
        start_time=process.start_time if process is not None else None,
        stdout=f"{local}/stdout.log",
        stderr=f"{local}/stderr.log",
    )


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def read_out(made: Collector) -> None:
    made.logs.finish()
    assert wait_until(lambda: made.logs.finished, 60)


@pytest.mark.parametrize(
    ("nnodes", "known", "ranks"), [("1", None, 1), ("2", None, None), ("2", 5, 5), ("1", 5, 5)]
)
def test_a_step_is_of_the_rank_whose_log_says_it(
    tmp_path: Path, nnodes: str, known: int | None, ranks: int | None
) -> None:
    with collecting(tmp_path, nnodes=nnodes) as (made, paths, got):
        write(paths.root / "1/stdout.log", STEP)
        write(paths.root / "1/stderr.log", OOM)
        made.add_rank(rank(1, known))
        read_out(made)
    heard = [len(one.lines) for one in got if isinstance(one, LinesSeen) and one.log == "1/stdout.log"]
    assert heard == [1]
    assert not [one for one in got if isinstance(one, LinesSeen) and not one.lines]
    step = next(one for one in got if isinstance(one, StepSeen))
    events = (one.event for one in got if isinstance(one, Reported))
    hit = next(one for one in events if isinstance(one, ev.EvidenceSeen))
    assert (step.rank, step.log, step.values["step"], step.values["loss"]) == (ranks, "1/stdout.log", 3, 2.5)
    assert (hit.rank, hit.path, hit.line, hit.failure) == (ranks, "1/stderr.log", 1, FailureClass.CUDA_OOM)


def test_the_losses_of_an_evaluation_are_named_as_such(tmp_path: Path) -> None:
    line = "Validation results: loss: 0.41, box_loss: 0.2, val_cls_loss: 0.3, acc: 0.9\n"
    with collecting(tmp_path) as (made, paths, got):
        write(paths.root / "0/stdout.log", line)
        made.add_rank(rank(0))
        read_out(made)
    (step,) = (one for one in got if isinstance(one, StepSeen))
    assert step == StepSeen(
        step.t, 0, {"val_loss": 0.41, "val box_loss": 0.2, "val_cls_loss": 0.3, "acc": 0.9},
        from_telemetry=False, log="0/stdout.log", evaluates=True,
    )  # fmt: skip


def test_a_trainers_telemetry_is_read_instead_of_its_lines(tmp_path: Path) -> None:
    with collecting(tmp_path, entry_kind=EntryKind.TRAINER) as (made, paths, got):
        made.look()  # nothing is there yet
        write(paths.root / "0/stdout.log", STEP)
        for name in ("rank2.jsonl", "rankx.jsonl", "other.jsonl"):
            line = {"v": 1, "kind": "step", "t_wall": 0.0, "step": 7, "loss": 1.5}
            write(paths.telemetry / name, json.dumps(line) + "\n")
        made.add_rank(rank(0))
        made.look()
        made.look()
        read_out(made)
    steps = [one for one in got if isinstance(one, StepSeen)]
    assert [(one.rank, one.values["step"], one.from_telemetry) for one in steps] == [(2, 7, True)]
    assert len(made.logs.paths) == 4, "agent.log, a rank's two, one of telemetry"


@pytest.mark.parametrize(
    ("line", "ending"),
    [
        ("W torch/elastic Sending process 41 closing signal SIGTERM\n", True),
        ("E torch/elastic failed (exitcode: 1) local_rank: 0 (pid: 41)\n", True),
        ("W torch/elastic Received Signals.SIGTERM death signal, shutting down workers\n", False),
        ("closing signal after Received Signals.SIGINT\n", False),
        ("closing signal: death signal\n", False),
        ("all is well\n", False),
    ],
)
def test_when_torchrun_ends_its_workers_by_itself(tmp_path: Path, line: str, ending: bool) -> None:
    with collecting(tmp_path) as (made, paths, _):
        assert not made.agent_is_ending()
        write(paths.agent_log, line)
        read_out(made)
        assert made.agent_is_ending() is ending


@pytest.mark.parametrize(
    ("kind", "steps"), [(EntryKind.COMMAND, 1), (EntryKind.SCRIPT, 0), (EntryKind.TRAINER, 0)]
)
def test_the_log_of_a_command_is_its_ranks_and_of_torchrun_its_own(
    tmp_path: Path, kind: EntryKind, steps: int
) -> None:
    with collecting(tmp_path, entry_kind=kind) as (made, paths, got):
        write(paths.agent_log, STEP)
        read_out(made)
    assert sum(isinstance(one, StepSeen) for one in got) == steps


def test_what_an_earlier_keeper_found_is_followed_on(tmp_path: Path) -> None:
    known = RankState(local_rank=1, rank=9, stdout="1/stdout.log", stderr="1/stderr.log")
    with collecting(tmp_path, nnodes="2") as (made, paths, got):
        write(paths.root / "1/stdout.log", STEP)
        made.know(AttemptState(number=1, planned_t=0.0, ranks={1: known}))
        read_out(made)
    assert [one.rank for one in got if isinstance(one, StepSeen)] == [9]
    names = [os.path.relpath(path, paths.root) for path in made.logs.paths]
    assert names == ["agent.log", "1/stdout.log", "1/stderr.log"]
