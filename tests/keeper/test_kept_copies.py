"""The copy of a checkpoint that an attempt resumes from: nothing of the job reaches it, and it never keeps an attempt from its launch."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.job.spec import EntryKind, Knobs
from supervisor.keeper.base.ledger import Ledger, RunContext
from supervisor.keeper.planning import readiness as kept_copies
from supervisor.keeper.planning.readiness import FICLONE, KEPT_NAME, KeptCopies
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.journal import read_state
from supervisor.run.records import Decision, DecisionKind, SpecChange
from supervisor.sources.checkpoint_layouts import find_checkpoints, whole_at
from supervisor.views.headless.console import event_lines
from tests.conftest import not_none, wait_until
from tests.keeper.fakes import BATCH, KNOBS, FakeClock, job_of, run_in
from tests.sources.test_checkpoints import megatron, saved, transformers

DECISION = Decision(DecisionKind.RESTART, "again", change=SpecChange())
BACKOFF = st.Backoff(attempt=1, until=0.0, decision=DECISION, delay_s=0.0)


class Resuming:
    """A run whose first attempt left a checkpoint, and is to go on from it."""

    def __init__(self, folder: Path, path: Path, step: int = 12) -> None:
        knobs = Knobs(batch=KNOBS.batch, accumulation=KNOBS.accumulation, self_resuming=True)
        record = job_of(
            folder, entry="train.py", entry_kind=EntryKind.SCRIPT, batch=BATCH, knobs=knobs, outputs=("out",)
        )
        self.run, self.path, self.step = run_in(folder), path, step
        self.node, self.clock = self.run.node(), FakeClock()
        self.ledger = Ledger(self.node)
        found = not_none(whole_at(str(path)))
        self.emit(
            ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason="first", batch=BATCH),
            ev.Progress(t=2.0, attempt=1, step=step + 3),
            self.committed(1, step, found.layout, found.number),
            ev.Decided(t=4.0, attempt=1, decision=DECISION),
        )
        env = {"PATH": os.environ["PATH"]}
        self.copies = KeptCopies(RunContext(self.run, self.node, record, env, self.clock, self.ledger))

    def committed(self, attempt: int, step: int, layout: str = "", number: int | None = None) -> ev.Event:
        return ev.CheckpointCommitted(
            t=3.0, attempt=attempt, step=step, path=str(self.path), found=True, layout=layout, number=number
        )

    def emit(self, *facts: ev.Event) -> None:
        for fact in facts:
            self.ledger.emit(fact)

    def kept(self) -> ev.CheckpointKept:
        """Prepare the next attempt; what is journalled of its checkpoint."""
        assert wait_until(lambda: self.copies.ready(BACKOFF), 20)
        assert len(self.ledger.state.kept) == 1
        return self.ledger.state.kept[0]

    def resumes(self) -> None:
        self.emit(ev.LaunchIntended(t=5.0, attempt=2, argv=(), reason="again", resume_at=self.step))


@pytest.fixture
def resuming(tmp_path: Path) -> Iterator[Resuming]:
    made = Resuming(tmp_path, saved(tmp_path / "out" / "epoch_12.pt", "epoch", "optimizer"))
    yield made
    made.copies.close()
    made.ledger.close()


def no_reflink(*_: object) -> None:
    raise OSError(95, "Operation not supported")


@pytest.mark.parametrize("reflinks", [True, False])
def test_a_file_that_is_written_over_in_place_keeps_its_bytes(
    resuming: Resuming, monkeypatch: pytest.MonkeyPatch, reflinks: bool
) -> None:
    asked: list[int] = []

    def clone(target: int, request: int, source: int) -> None:
        """Btrfs and XFS."""
        asked.append(request)
        os.sendfile(target, source, 0, 1 << 20)

    monkeypatch.setattr(fcntl, "ioctl", clone if reflinks else no_reflink)
    if reflinks:  # shared blocks need no room
        monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_bavail=0, f_frsize=4096))
    before = resuming.path.read_bytes()
    kept = resuming.kept()
    assert (kept.attempt, kept.step, kept.path, kept.why) == (2, 12, str(resuming.path), "")
    with resuming.path.open("wb") as file:  # as torch.save opens it
        file.write(b"another training")
    copy = Path(kept.copy)
    assert copy.read_bytes() == before
    assert copy.parent == resuming.node.attempt(2).root
    assert asked in ([FICLONE], [])
    assert copy.parent.stat().st_mode & 0o077 == 0, "it is its owner's alone"
    assert read_state(resuming.node.journal).kept == (kept,)
    assert [text for _, text in event_lines(kept)] == [f"checkpoint 12 is kept as a copy: {copy}"]


def test_no_search_for_checkpoints_finds_it(resuming: Resuming, tmp_path: Path) -> None:
    kept = resuming.kept()
    runs = resuming.run.root
    assert Path(kept.copy).is_relative_to(runs)
    found = [*runs.rglob("*.pt"), *runs.rglob("checkpoint*"), *runs.rglob("*epoch*"), *runs.rglob("step*")]
    assert found == []
    assert not glob.glob(f"{tmp_path}/**/*kept*", recursive=True), "hidden from Python's glob"
    assert [one.path for one in find_checkpoints([tmp_path], 0.0)] == [str(resuming.path)]


def test_of_a_folder_of_many_the_one_is_copied_and_a_folder_whole(tmp_path: Path) -> None:
    for step in (5, 10):
        megatron(tmp_path / "many" / "out", step)
    many = Resuming(tmp_path / "many", tmp_path / "many" / "out", 10)
    kept = Path(many.kept().copy)
    names = {path.relative_to(kept).parts[0] for path in kept.rglob("*") if path.is_file()}
    assert names == {"latest_checkpointed_iteration.txt", "iter_0000010"}

    one = transformers(tmp_path / "one" / "out", 30)
    whole = Resuming(tmp_path / "one", one, 30)
    copy = Path(whole.kept().copy)
    original = {path.name: path.read_bytes() for path in one.iterdir()}
    shutil.rmtree(one)  # rotated away, or begun again
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == original
    for made in (many, whole):
        made.copies.close()
        made.ledger.close()


def test_without_room_it_is_said_and_the_attempt_is_launched(
    resuming: Resuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "ioctl", no_reflink)
    size = resuming.path.stat().st_size
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_bavail=2 * size - 1, f_frsize=1))
    kept = resuming.kept()
    assert kept.copy == ""
    assert "twice its" in kept.why
    assert [text for _, text in event_lines(kept)] == [f"checkpoint 12 is not protected: {kept.why}"]
    assert not list(resuming.run.root.rglob(f"{KEPT_NAME}*")), "nothing half is left"


def test_a_copy_that_fails_keeps_nothing_from_being_launched(
    resuming: Resuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(kept_copies, "files_of", broken)
    kept = resuming.kept()
    assert (kept.copy, kept.why) == ("", "Permission denied")


def test_a_long_copy_leaves_the_loop_free_and_is_given_up(
    resuming: Resuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_copies, "COPY_WAIT_S", 0.01)
    monkeypatch.setattr(kept_copies, "CHUNK_BYTES", 64)
    goes_on = threading.Event()

    def slow(source: Any, _made: Any) -> bool:
        goes_on.wait(20)
        return False

    monkeypatch.setattr(kept_copies, "_shares_blocks", slow)
    assert not resuming.copies.ready(BACKOFF)
    waiting = not_none(resuming.ledger.state.waiting)
    assert "copying the checkpoint" in waiting.text
    resuming.clock.now += kept_copies.MOST_S + 1
    assert not resuming.copies.ready(BACKOFF)
    goes_on.set()
    kept = resuming.kept()
    assert kept.copy == ""
    assert "takes longer than 600 s" in kept.why
    assert resuming.ledger.state.waiting is None


def test_it_goes_with_the_next_whole_checkpoint_of_the_attempt_and_not_with_one_that_is_no_good(
    resuming: Resuming,
) -> None:
    copy = Path(resuming.kept().copy)
    resuming.resumes()
    resuming.copies.release()
    assert copy.exists()
    resuming.emit(resuming.committed(2, 8))  # an attempt that began at 0 writes its first
    resuming.copies.release()
    assert copy.exists()
    resuming.emit(ev.LossNotFinite(t=6.0, attempt=2, value="nan", step=14), resuming.committed(2, 16))
    resuming.copies.release()
    assert copy.exists(), "its loss is no number"
    resuming.emit(ev.LossFinite(t=7.0, attempt=2, loss=1.0, step=17), resuming.committed(2, 20))
    resuming.copies.release()
    assert not copy.exists()
    assert resuming.ledger.state.kept == ()


def test_an_attempt_after_it_that_resumes_from_the_same_one_needs_no_other_copy(resuming: Resuming) -> None:
    kept = resuming.kept()
    resuming.resumes()
    resuming.emit(ev.Decided(t=6.0, attempt=2, decision=DECISION))
    resuming.copies.ready(BACKOFF)
    assert resuming.ledger.state.kept == (kept,)
