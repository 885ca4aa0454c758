"""Several nodes name one run directory: who makes it, who joins it, and what is refused in one line."""

from __future__ import annotations

import dataclasses
import io
import os
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from supervisor.cli import join_run
from supervisor.cli.join_run import shared_run
from supervisor.cli.main import main
from supervisor.job.errors import JobError
from supervisor.job.spec import EntryKind, FitSettings, Timing, TrialSettings
from supervisor.run.events import Outcome
from supervisor.run.heartbeat import Heartbeat
from supervisor.run.node_files import Order, Orders, Want
from supervisor.run.ownership import KeeperLock
from supervisor.run.paths import RunPaths, make_private
from supervisor.run.runfile import KeeperSettings, RunFile, read_run_file
from tests.keeper.fakes import job_of


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_run, "LISTEN_S", 0.5)
    monkeypatch.setattr(join_run, "LOOK_S", 0.01)


def record(folder: Path, node: int, **changes: object) -> RunFile:
    made = job_of(folder, "train.py")
    fields: dict[str, object] = {
        "entry_kind": EntryKind.SCRIPT,
        "nnodes": "2",
        "node_rank": node,
        "master_addr": "a",
        "timing": Timing(node_timeout_s=0.3),
        **changes,
    }
    job = dataclasses.replace(made.job, **fields)  # type: ignore[arg-type]  # a test's own dict
    return msgspec.structs.replace(
        made, job=job, settings=KeeperSettings(shared=True), uid=os.geteuid(), path=None
    )


def begun(folder: Path) -> RunPaths:
    """A run whose leader has begun."""
    run, _ = shared_run(RunPaths(folder / "run"), record(folder, 0))
    make_private(run.node(0).root)
    run.node(0).journal.touch(mode=0o600)
    return run


def refusal(run: RunPaths, given: RunFile) -> str:
    with pytest.raises(JobError) as caught:
        shared_run(run, given)
    assert caught.value.exit_code == 2
    return caught.value.message


def test_node_0_makes_the_run_and_another_joins(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "new" / "run")
    found: list[tuple[RunPaths, RunFile]] = []
    waits = record(tmp_path, 1, timing=Timing(node_timeout_s=30.0))
    joining = threading.Thread(target=lambda: found.append(shared_run(run, waits)), name="joins")
    joining.start()
    made, mine = shared_run(run, record(tmp_path, 0))
    make_private(run.node(0).root)
    run.node(0).journal.touch(mode=0o600)
    joining.join(30)
    assert (made.root, mine.path, mine.run_id) == (run.root, str(run.root), "run")
    assert read_run_file(run.run_json).job.nnodes == "2"
    [(joined, theirs)] = found
    assert (joined.root, theirs.node, theirs.path) == (run.root, 1, str(run.root))


@pytest.mark.fault(
    "nodes",
    "two starts with --node-rank 0 at once",
    "one creates the run; the others exit with 2 and one line",
)
def test_of_many_nodes_0_one_makes_the_run(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run")
    made: list[tuple[RunPaths, RunFile]] = []
    refused: list[JobError] = []
    start = threading.Barrier(4)

    def lead() -> None:
        start.wait()
        try:
            made.append(shared_run(run, record(tmp_path, 0)))
        except JobError as error:
            refused.append(error)

    threads = [threading.Thread(target=lead, name=f"lead-{n}") for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (len(made), len(refused)) == (1, 3)
    assert {error.exit_code for error in refused} == {2}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nnodes": "1"}, "--run-dir is of a job on several nodes: say --nnodes N and --node-rank K too; else --runs-dir"),
        ({"entry_kind": EntryKind.COMMAND}, "--run-dir is for torchrun's jobs: what stands behind -- starts its nodes itself"),
        ({"trial": TrialSettings()}, "--run-dir: trials and --fit-batch are of one node"),
        ({"fit": FitSettings()}, "--run-dir: trials and --fit-batch are of one node"),
    ],
)  # fmt: skip
def test_a_job_that_nodes_cannot_share_is_refused(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    assert refusal(RunPaths(tmp_path / "run"), record(tmp_path, 0, **changes)) == said
    assert not (tmp_path / "run").exists()


def test_a_live_leader_is_named(tmp_path: Path) -> None:
    run, _ = shared_run(RunPaths(tmp_path / "run"), record(tmp_path, 0))
    again = refusal(run, record(tmp_path, 0))
    assert "holds a run already: `stoker continue" in again
    make_private(run.node(0).root)
    lock = KeeperLock(run.node(0).lock, start_time=1.0)
    found = refusal(run, record(tmp_path, 0))
    lock.release()
    assert f"a keeper is node 0 of it already (pid {os.getpid()} on" in found
    assert found.endswith("two nodes were started with --node-rank 0")


@pytest.mark.fault(
    "nodes",
    "a second keeper for a node, on a file system without locks",
    "it sees the first one's heartbeat: one line, exit 2",
)
def test_a_second_keeper_of_a_node_hears_the_first(tmp_path: Path) -> None:
    run = begun(tmp_path)
    node = run.node(1)
    make_private(node.root)
    node.lock.write_text('{"pid": 7, "start_time": 1.0, "host": "elsewhere"}', encoding="utf-8")
    beats, over = Heartbeat(node.heartbeat, "s"), threading.Event()

    def beat() -> None:
        while not over.wait(0.05):
            beats.beat(time.monotonic() * 100)

    thread = threading.Thread(target=beat, name="beats")
    thread.start()
    try:
        assert "a keeper is node 1 of it already (pid 7 on elsewhere)" in refusal(run, record(tmp_path, 1))
    finally:
        over.set()
        thread.join(10)
    assert shared_run(run, record(tmp_path, 1))[1].node == 1, "it beats no more"


@pytest.mark.parametrize(("changes", "text"), [
    ({"nnodes": "3"}, "node 0 has --nnodes 2, this node --nnodes 3"),
    ({"nproc_per_node": 4}, "node 0 has --nproc-per-node 1, this node --nproc-per-node 4"),
    ({"master_addr": "b"}, "node 0 has --master-addr a, this node --master-addr b"),
    ({"master_port": 2000}, "node 0 has no --master-port, this node --master-port 2000"),
    ({"entry": "other.py"}, "node 0 has as its script train.py, this node as its script other.py"),
])  # fmt: skip
def test_nodes_that_differ_are_refused(tmp_path: Path, changes: dict[str, object], text: str) -> None:
    run = begun(tmp_path)
    assert text in refusal(run, record(tmp_path, 1, **changes))


def test_a_folder_that_is_not_shared_is_said(tmp_path: Path) -> None:
    missing = refusal(RunPaths(tmp_path / "run"), record(tmp_path, 1))
    assert "is not there after 0 s: node 0 makes it: was it started" in missing
    (tmp_path / "run").mkdir()
    assert "is there, and holds no run that node 0 keeps" in refusal(
        RunPaths(tmp_path / "run"), record(tmp_path, 1)
    )


OVER = Order(seq=0, leader="", want=Want.OVER, outcome=Outcome.SUCCEEDED, exit_code=0, reason="finished")


def test_a_run_that_is_over_is_not_joined(tmp_path: Path) -> None:
    run = begun(tmp_path)
    Orders(run.node(), "a").give(OVER)
    assert "is of a run that is over (finished)" in refusal(run, record(tmp_path, 1))


def test_a_run_that_is_over_is_joined_once_node_0_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(tmp_path)
    Orders(run.node(), "a").give(OVER)
    waits, over = threading.Event(), threading.Event()

    class Terminal(io.StringIO):
        def write(self, text: str) -> int:
            if "node 1 waits up to 30 s for node 0 to continue it" in text:
                waits.set()
            return super().write(text)

    def continues() -> None:
        waits.wait(60)
        beats = Heartbeat(run.node().heartbeat, "b")
        while not over.wait(0.05):
            beats.beat(time.monotonic() * 100)

    monkeypatch.setattr(sys, "stderr", Terminal())
    thread = threading.Thread(target=continues, name="continues")
    thread.start()
    try:
        late = record(tmp_path, 1, timing=Timing(node_timeout_s=300.0))
        assert shared_run(run, late)[1].node == 1
    finally:
        waits.set()
        over.set()
        thread.join(10)


@pytest.mark.parametrize(("words", "text"), [
    (("--run-dir", "r", "train.py"), "--run-dir is of a job on several nodes"),
    (("--run-dir", "r", "--nnodes", "2", "--trial", "train.py"), "--run-dir"),
])  # fmt: skip
def test_what_nodes_cannot_share_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass", encoding="utf-8")
    assert main(["run", "--no-ui", "--no-check", *words]) == 2
    assert text in capsys.readouterr().err
