"""Snapshots of the folded state: they make readers fast, and change nothing that is read."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisor.keeper.base.ledger import Ledger
from supervisor.run import events as ev
from supervisor.run import journal
from supervisor.run.fold import fold
from supervisor.run.journal import JournalWriter, StateReader, facts_in, read_state, write_snapshot
from supervisor.run.paths import NodePaths, RunPaths
from supervisor.run.state import Preflight, RunState
from supervisor.views.headless.story import story
from supervisor.views.wording.kinds import reading_text
from tests.recorded.old_versions import ARCHIVE, REVISIONS

T = 1_790_000_000.0
KIB = 1 << 10


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Journals of each earlier version: one with every kind of event, and one of a real run."""
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(folder, filter="data")
    return folder


@pytest.fixture(autouse=True)
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of snapshots are not written through to a disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)


@pytest.fixture
def node(tmp_path: Path) -> NodePaths:
    found = RunPaths(tmp_path / "run").node()
    found.root.mkdir(parents=True)
    return found


def every(old: Path) -> Iterator[bytes]:
    for path in sorted(old.glob("*/*/nodes/0/events.jsonl")) + sorted(
        old.glob("*/run/*/nodes/0/events.jsonl")
    ):
        yield path.read_bytes()


def story_of(steps: int = 40) -> list[ev.Event]:
    """A run with a failure, a restart, checkpoints, and progress in between."""
    found: list[ev.Event] = [
        ev.RunStarted(t=T, run_id="r", name="n", mode="launched", host="h", world_size=2),
        ev.KeeperStarted(t=T, pid=3, start_time=1.0, version="0"),
    ]
    for attempt in (1, 2):
        t = T + 1000 * attempt
        found += [
            ev.LaunchIntended(t=t, attempt=attempt, argv=("a",), reason="first launch"),
            ev.AttemptStarted(t=t + 1, attempt=attempt, pid=4, start_time=1.0),
            *(ev.RankStarted(t=t + 2, attempt=attempt, local_rank=n, rank=n, pid=9 + n) for n in range(2)),
        ]
        for step in range(1, steps + 1):
            found.append(ev.Progress(t=t + 2 + step, attempt=attempt, step=step, loss=9.0 / step, lr=1e-3))
            if step % 10 == 0:
                found.append(
                    ev.CheckpointCommitted(t=t + 2 + step, attempt=attempt, step=step, path=f"c{step}")
                )
        found += [
            ev.RankExited(t=t + 900, attempt=attempt, local_rank=1, exit_code=1),
            ev.AttemptEnded(t=t + 901, attempt=attempt, exit_code=1),
        ]
    return [*found, ev.RunEnded(t=T + 4000, outcome=ev.Outcome.FAILED, exit_code=1, reason="no more tries")]


def lines_of(events: list[ev.Event]) -> list[bytes]:
    return [msgspec.json.encode(event) + b"\n" for event in events]


def leave_snapshot(node: NodePaths, state: RunState) -> None:
    of = node.journal.stat()
    write_snapshot(node.journal, state, inode=of.st_ino, offset=of.st_size)


def with_snapshot(node: NodePaths, data: bytes, at: int) -> None:
    """A journal of `data`, with the snapshot that was taken when `at` bytes of it were there."""
    node.journal.write_bytes(data[:at])
    leave_snapshot(node, read_state(node.journal))
    with node.journal.open("ab") as file:
        file.write(data[at:])


def from_start(path: Path) -> RunState:
    """The fold by one event after the other, without any snapshot."""
    state = reduce(fold, facts_in(path), RunState())
    plain = StateReader(Path(shutil.copy(path, path.parent.parent / "plain.jsonl")))
    while plain.refresh():
        pass
    seen = {name: getattr(plain.state, name) for name in ("unknown_events", "newer_version")}
    return msgspec.structs.replace(state, **seen)


# -- the same state, faster ----------------------------------------------------------------------------------------------


def test_a_state_from_a_snapshot_is_that_from_the_start_at_every_cut(old: Path, node: NodePaths) -> None:
    journals = list(every(old))
    assert len(journals) >= len(REVISIONS)
    cuts = 0
    for data in journals:
        lines = data.splitlines(keepends=True)
        node.journal.write_bytes(data)
        expected = from_start(node.journal)
        at = 0
        for number, line in enumerate(lines, 1):
            at += len(line)
            if number % 3 and number < len(lines):
                continue
            with_snapshot(node, data, at)
            reader = StateReader(node.journal)
            news = reader.refresh()
            assert len(news) == len(lines) - number, "only what stands behind the snapshot is read"
            assert reader.state == expected
            assert msgspec.json.encode(reader.state) == msgspec.json.encode(expected)
            cuts += 1
    assert cuts > 150


@pytest.mark.fault(
    "journal and disk", "the journal is cut at any byte", "read up to the cut; new events start on a new line"
)
def test_a_journal_torn_at_each_byte_of_its_last_4_kib_folds_the_same(node: NodePaths) -> None:
    data = b"".join(lines_of(story_of(17)))
    assert len(data) > 4 * KIB
    ends = [at + 1 for at, byte in enumerate(data) if byte == ord("\n")]
    plain = RunPaths(node.root.parent.parent.parent / "plain").node()
    plain.root.mkdir(parents=True)
    whole: dict[int, RunState] = {}
    for cut in range(4 * KIB + 1):
        if (last := data.rfind(b"\n", 0, len(data) - cut)) not in whole:
            plain.journal.write_bytes(data[: len(data) - cut])
            whole[last] = read_state(plain.journal)
    # A snapshot in the middle of what is torn, before it, and of all.
    for at, apart in ((ends[len(ends) // 2], 1), (ends[1], 64), (ends[-1], 64)):
        with_snapshot(node, data, at)
        for cut in range(0, 4 * KIB + 1, apart):
            os.truncate(node.journal, len(data) - cut)
            assert read_state(node.journal) == whole[data.rfind(b"\n", 0, len(data) - cut)], (at, cut)
        again = JournalWriter(node.journal)
        again.append(ev.NoteAdded(t=T, text="goes on", by="me"))
        again.close()
        plain.journal.write_bytes(node.journal.read_bytes())
        assert read_state(node.journal) == read_state(plain.journal)


# -- a snapshot that is not believed -------------------------------------------------------------------------------------


def edited(node: NodePaths, **changes: object) -> None:
    known = json.loads(node.snapshot.read_bytes())
    node.snapshot.write_text(json.dumps({**known, **changes}), encoding="utf-8")


def other_journal(node: NodePaths) -> None:
    """Another run's journal of the same length, as after a copy of one file of two."""
    data = node.journal.read_bytes()
    node.journal.write_bytes(data.replace(b'"run_id":"r"', b'"run_id":"q"'))


def redacted_in_place(node: NodePaths) -> None:
    """What no checksum of the beginning and the end shows."""
    data = bytearray(node.journal.read_bytes())
    middle = data.find(b'"exit_code":1', 64 * KIB)
    data[middle : middle + 13] = b'"exit_code":3'
    node.journal.write_bytes(data)


def a_pipe(node: NodePaths) -> None:
    node.snapshot.unlink()
    os.mkfifo(node.snapshot)


def with_a_huge_number(node: NodePaths) -> None:
    known = json.loads(node.snapshot.read_bytes())
    known["state"]["attempts"][0]["number"] = 10**400
    node.snapshot.write_text(json.dumps(known), encoding="utf-8")


UNSOUND: dict[str, Callable[[NodePaths], object]] = {
    "torn": lambda node: os.truncate(node.snapshot, node.snapshot.stat().st_size // 2),
    "no JSON": lambda node: node.snapshot.write_bytes(b"\x80\x04\x95pickle"),
    "nested without end": lambda node: node.snapshot.write_bytes(b"[" * 200_000),
    "of another stoker": lambda node: edited(node, code="0.0.9 00000000"),
    "of bytes that are not there": lambda node: edited(node, offset=1 << 40),
    "of no bytes": lambda node: edited(node, offset=0, seal=0),
    "of other bytes": lambda node: edited(node, seal=1),
    "of another journal": other_journal,
    "of a journal that was edited in place": redacted_in_place,
    "without a state": lambda node: edited(node, state=None),
    "with a state of another form": lambda node: edited(node, state={"attempts": [{"number": "one"}]}),
    "with a number of 400 digits": with_a_huge_number,
    "too large": lambda node: edited(node, padding="x" * journal.MOST_SNAPSHOT_BYTES),
    "a pipe": a_pipe,
}


@pytest.mark.parametrize("how", UNSOUND)
def test_a_snapshot_that_is_not_sound_is_left_alone(node: NodePaths, how: str) -> None:
    events = story_of(600)
    events.insert(1300, ev.Advisory(t=T, attempt=2, code="x", text="y" * 70 * KIB))
    node.journal.write_bytes(b"".join(lines_of(events)))
    # What nobody would take for the truth, so that a snapshot which is used shows.
    leave_snapshot(node, msgspec.structs.replace(read_state(node.journal), name="from the snapshot"))
    assert read_state(node.journal).name == "from the snapshot"
    UNSOUND[how](node)
    assert read_state(node.journal).name == "n"
    assert read_state(node.journal) == from_start(node.journal)


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from leaves(value, (*path, key))


def test_no_forged_state_breaks_a_reader(node: NodePaths) -> None:
    """Each value of a real state in turn is something else: the fold goes on, and the story is told, or it is left alone."""
    events = story_of(12)
    half = sum(map(len, lines_of(events[: len(events) // 2])))
    with_snapshot(node, b"".join(lines_of(events)), half)
    known, used = node.snapshot.read_bytes(), 0
    values: tuple[Any, ...] = (None, -1, 1e300, "x", [])
    for path, strange in zip(leaves(json.loads(known)["state"]), cycle(values)):
        forged = json.loads(known)
        reduce(lambda place, key: place[key], path[:-1], forged["state"])[path[-1]] = strange
        node.snapshot.write_text(json.dumps(forged), encoding="utf-8")
        reader = StateReader(node.journal)
        used += len(reader.refresh()) < len(events)
        assert story(reader.state, RunPaths(node.root.parent.parent))
    assert used > 30


# -- who writes them -----------------------------------------------------------------------------------------------------


def test_a_keeper_leaves_snapshots_as_its_journal_grows_and_at_its_end(
    node: NodePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.keeper.base.ledger.SNAPSHOT_EVERY", 4 * KIB)
    monkeypatch.setattr("supervisor.keeper.base.ledger.LEAST_SNAPSHOT_BYTES", 4 * KIB)
    ledger = Ledger(node)
    offsets = set()
    for event in story_of(200):
        ledger.emit(event)
        if node.snapshot.exists():
            offsets.add(json.loads(node.snapshot.read_bytes())["offset"])
            assert read_state(node.journal) == ledger.state
    size = node.journal.stat().st_size
    assert size // (6 * KIB) <= len(offsets) <= size // (4 * KIB)
    assert node.snapshot.stat().st_mode & 0o777 == 0o600
    ledger.close()
    assert json.loads(node.snapshot.read_bytes())["offset"] == size
    assert StateReader(node.journal).refresh() == [], "all of it is in the snapshot"
    again = Ledger(node)
    assert (again.adopted, again.state) == (True, ledger.state)
    again.close()


def test_a_state_that_is_ahead_of_its_journal_is_no_snapshot(
    node: NodePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.keeper.base.ledger.LEAST_SNAPSHOT_BYTES", 1)

    def full(*_: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    ledger = Ledger(node)
    ledger.emit(story_of()[0])
    monkeypatch.setattr(ledger._journal, "append", full)
    ledger.emit(ev.NoteAdded(t=T, text="waits in memory", by="me"))
    ledger.close()
    assert "waits in memory" not in str(read_state(node.journal).timeline)


def test_a_snapshot_is_of_what_its_keeper_wrote_and_of_nothing_else(
    node: NodePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another keeper goes on as soon as the journal is free; somebody moves the journal away."""
    monkeypatch.setattr("supervisor.keeper.base.ledger.LEAST_SNAPSHOT_BYTES", 1)
    closes = JournalWriter.close

    def closes_and_is_followed(self: JournalWriter) -> None:
        closes(self)
        with node.journal.open("ab") as file:
            file.write(lines_of([ev.NoteAdded(t=T, text="of the next keeper", by="me")])[0])

    ledger = Ledger(node)
    for event in story_of():
        ledger.emit(event)
    with monkeypatch.context() as followed:
        followed.setattr(JournalWriter, "close", closes_and_is_followed)
        ledger.close()
    assert node.snapshot.exists()
    assert "of the next keeper" in str(read_state(node.journal).timeline)
    assert read_state(node.journal) == from_start(node.journal)

    node.snapshot.unlink()
    again = Ledger(node)
    data = node.journal.read_bytes()
    node.journal.rename(node.root / "moved")
    node.journal.write_bytes(data)
    again.close()
    assert not node.snapshot.exists()


# -- a long journal without one ------------------------------------------------------------------------------------------


def test_an_old_journal_is_marked_until_all_of_it_is_read(
    node: NodePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "TAIL_BYTES", 4 * KIB)
    events = story_of(300)
    node.journal.write_bytes(b"".join(lines_of(events)))
    reader = StateReader(node.journal, tail_first=True)
    shares = []
    while not (shown := reader.refresh()):
        state = reader.state
        assert (state.run_id, state.host, state.condition, state.attempts) == ("r", "h", Preflight(), ())
        assert reading_text(state).startswith("reading ")
        shares.append(reading_text(state))
    assert len(set(shares)) > 5
    assert 10 < len(shown) < 60, "the newest events, to be printed"
    assert shown == events[-len(shown) :]
    assert reader.left_out == sum(map(len, lines_of(events[: -len(shown)])))
    with node.journal.open("ab") as file:
        file.write(lines_of([ev.NoteAdded(t=T + 5000, text="new", by="me")])[0])
    assert [event.t for event in reader.refresh()] == [T + 5000]
    assert reader.state == from_start(node.journal)


def test_a_long_journal_with_a_snapshot_is_whole_at_once_and_its_end_is_printed(
    node: NodePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "TAIL_BYTES", 4 * KIB)
    events = story_of(300)
    data = b"".join(lines_of(events))
    with_snapshot(node, data, len(b"".join(lines_of(events[:-2]))))
    reader = StateReader(node.journal, tail_first=True)
    shown = reader.refresh()
    assert reader.state == from_start(node.journal)
    assert 10 < len(shown) < 60
    assert shown == events[-len(shown) :]
