"""A keeper whose journal cannot be written for a while, whose user is somebody else's, or that meets a run of a newer stoker."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from pathlib import Path

import pytest

from supervisor.keeper.base import ledger as ledger_module
from supervisor.keeper.base.ledger import Ledger
from supervisor.keeper.loop import LATE, Keeper
from supervisor.keeper.process.takeover import examine_adoption, examine_continuation
from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run.events import Outcome, RequestKind
from supervisor.run.journal import read_state
from supervisor.run.ownership import KeeperLock, NotRequested, ask
from supervisor.run.paths import RunPaths
from supervisor.views.model.reader import SnapshotReader
from supervisor.views.tui.panels.possible_actions import possible, why_not
from tests.keeper.fakes import facts_of, job_of, own_run_in
from tests.keeper.runs import INTENDED, RUNS, STARTED, T, outcome
from tests.tiers import first

pytestmark = pytest.mark.timeout(120)

STEPS = (
    "import time\nfor n in range(1, 60): print(f'step {n} loss {5 / n:.4f}', flush=True); time.sleep(0.05)"
)


class Server:
    """What the file server says of every descriptor that was open when it was restarted, and of all while it is away."""

    def __init__(self, journal: Path, number: int) -> None:
        self.journal, self.number = journal, number
        self.away = False
        self.forgotten: set[int] = set()
        self._write, self._open = os.write, os.open

    def write(self, fd: int, data: bytes) -> int:
        if fd in self.forgotten and os.readlink(f"/proc/self/fd/{fd}") == str(self.journal):
            raise OSError(self.number, os.strerror(self.number))
        return self._write(fd, data)

    def open(self, path: object, *args: object, **more: object) -> int:
        if str(path) == str(self.journal) and self.away:
            raise OSError(self.number, os.strerror(self.number))
        fd: int = self._open(path, *args, **more)  # type: ignore[arg-type]
        self.forgotten.discard(fd)
        return fd


@pytest.mark.parametrize("number", first(2, [errno.ESTALE, errno.EROFS, errno.EIO]))
@pytest.mark.fault(
    "journal and disk",
    "ESTALE, EIO or EROFS in a live run (injected errnos)",
    "no event is missing, and the fault is reported",
)
def test_a_journal_that_is_away_for_a_while_misses_no_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    run = RunPaths(tmp_path / "run-1")
    keeper = Keeper(run, job_of(tmp_path, sys.executable, "-c", STEPS), env=os.environ)
    server = Server(run.node().journal, number)
    monkeypatch.setattr(os, "write", server.write)
    monkeypatch.setattr(os, "open", server.open)
    monkeypatch.setattr("supervisor.keeper.loop.LIFE_S", 0.2)
    act = keeper._act

    def act_and_break(*, hurried: bool = False) -> None:
        step = keeper.state.attempt.last_step or 0 if keeper.state.attempt is not None else 0
        if step and not server.forgotten:
            server.away, server.forgotten = True, set(range(1024))
        if server.away and any(one.code.startswith(LATE) for one in keeper.state.advisories):
            server.away = False
            if number == errno.EROFS:  # nothing is reopened: the same descriptor works again
                server.forgotten = {-1}
        act(hurried=hurried)

    monkeypatch.setattr(keeper, "_act", act_and_break)
    try:
        assert keeper.run_to_end() == 0
        assert not keeper._ledger.trouble
    finally:
        keeper.close()
    assert server.forgotten, "the server was away"
    state = read_state(run.node().journal)
    assert state == keeper.state
    assert outcome(state) == (Outcome.SUCCEEDED, 1)
    steps = [
        event.step for event in facts_of(run) if isinstance(event, ev.Progress) and event.step is not None
    ]
    assert steps == sorted(set(steps))
    said = [advisory for advisory in state.advisories if advisory.code.startswith(LATE)]
    assert [os.strerror(number) in advisory.text for advisory in said] == [True]


@pytest.mark.fault(
    "journal and disk",
    "the journal cannot be written for a long time",
    "events waiting in memory are bounded",
)
def test_what_waits_in_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.keeper.base.ledger.MOST_WAITING", 10)
    run = RunPaths(tmp_path / "run-1")
    run.node().root.mkdir(parents=True)
    ledger = Ledger(run.node())
    ledger.emit(STARTED)
    ledger.emit(INTENDED)
    ledger.emit(RUNS)
    append = ledger._journal.append
    monkeypatch.setattr(ledger._journal, "append", _fails)
    for step in range(1, 2000):
        ledger.emit(
            ev.Progress(
                t=T + step, attempt=1, step=step, loss=5.0 - step / 1e3, minima=((step, 5.0 - step / 1e3),)
            )
        )
    assert len(ledger._unwritten) <= 12
    monkeypatch.setattr(ledger._journal, "append", append)
    ledger.close()
    written, live = read_state(run.node().journal), ledger.state
    assert written.progress is not None
    assert live.progress is not None
    assert (written.progress.step, written.progress.loss) == (live.progress.step, live.progress.loss)
    assert (written.best_loss, written.best_step) == (live.best_loss, live.best_step)
    assert written.attempts[0].first_step == live.attempts[0].first_step


def _fails(*_args: object, **_more: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.fault(
    "journal and disk",
    "a run of months: the journal grows large",
    "it grows a tenth as fast, and still folds",
)
def test_a_large_journal_grows_a_tenth_as_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "APART_S", ((2_000, 1.0), (1 << 62, 60.0)))
    run = RunPaths(tmp_path / "run-1")
    keeper = Keeper(run, job_of(tmp_path, sys.executable, "-c", STEPS), env=os.environ)
    for number in range(10):
        keeper.emit(ev.NoteAdded(t=T, text="x" * 300 + str(number), by="me"))
    try:
        assert keeper.run_to_end() == 0
    finally:
        keeper.close()
    steps = [event.step for event in facts_of(run) if isinstance(event, ev.Progress)]
    assert len(steps) <= 2, "the first and the last"
    assert steps[-1] == 59
    assert read_state(run.node().journal) == keeper.state


# -- who asks ------------------------------------------------------------------------------------------------------------


@pytest.mark.fault("secrets and access", "a request file of another user", "refused")
def test_a_request_counts_by_the_owner_of_its_file(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to somebody else")
    run = RunPaths(tmp_path / "run-1")
    keeper = Keeper(run, job_of(tmp_path), env=os.environ)
    try:
        theirs = control.send(run.control, RequestKind.STOP)
        os.chown(run.control / f"{theirs}.json", 12345, 12345)
        (found,) = control.pending(run.control)
        assert isinstance(found, control.BadRequest)
        assert keeper.run_to_end() == 0, "it was not stopped"
    finally:
        keeper.close()
    assert keeper.state.answered[theirs] == "uid 12345 wrote it, whose run this is not"
    assert not (run.control / f"{theirs}.json").exists()


# -- runs of a newer stoker --------------------------------------------------------------------------------------------------


def newer_run(tmp_path: Path, *, by_journal: bool) -> RunPaths:
    run = own_run_in(tmp_path, job_of(tmp_path), STARTED, INTENDED, RUNS)
    if by_journal:
        with run.node().journal.open("ab") as file:
            file.write(b'{"kind":"progress","v":3,"t":2000000000.0,"attempt":1,"step":"seven"}\n')
            file.write(b'{"kind":"note_added","t":2000000001.0,"text":"after it","by":"me"}\n')
    else:
        record = json.loads(run.run_json.read_bytes())
        run.run_json.write_bytes(
            json.dumps({**record, "schema": 2, "settings": "what it is by now"}).encode()
        )
    run.control.mkdir(mode=0o700)
    return run


@pytest.fixture(params=["by its journal", "by its run.json"])
def newer(request: pytest.FixtureRequest, tmp_path: Path) -> RunPaths:
    return newer_run(tmp_path, by_journal=request.param == "by its journal")


WHY = r"a newer stoker wrote this run \((run.json has schema 2|its journal has events of version 3)\): read-only: update stoker"


@pytest.mark.fault("journal and disk", "a run of a newer stoker", "opened read-only, with the reason")
def test_a_run_of_a_newer_stoker_is_shown_and_nothing_more(newer: RunPaths) -> None:
    lock = KeeperLock(newer.node().lock, start_time=1.0)
    try:
        snapshot = SnapshotReader(newer).refresh()
        assert snapshot.state.name == "job"
        assert snapshot.keeper_alive
        assert re.match(WHY, snapshot.misplaced)
        assert possible(snapshot, read_only=False, can_adopt=True) == frozenset()
        assert why_not("stop", snapshot, read_only=False, can_adopt=True) == snapshot.misplaced
        with pytest.raises(NotRequested, match=WHY):
            ask(newer, RequestKind.STOP)
        assert os.listdir(newer.control) == []
    finally:
        lock.release()


@pytest.mark.fault(
    "secrets and access", "a run of a newer stoker is to be adopted or continued", "refused in one line"
)
def test_a_run_of_a_newer_stoker_is_neither_adopted_nor_continued(newer: RunPaths) -> None:
    offer, record = examine_adoption(newer)
    found = examine_continuation(newer)
    assert record is None
    for refusals in (offer.refusals, found.refusals):
        assert len(refusals) == 1
        assert re.match(WHY, refusals[0])
