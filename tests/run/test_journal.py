"""The journal: replay gives the live state; torn lines and strangers' lines cost only themselves."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from supervisor.run import events as ev
from supervisor.run.fold import fold
from supervisor.run.journal import JournalReader, JournalWriter, StateReader, facts_in, read_state
from supervisor.run.state import RunState
from supervisor.views.wording.translate import english
from tests.disks import small_disk
from tests.recorded.old_versions import ARCHIVE


def test_what_is_written_is_read_and_folds_as_it_did(tmp_path: Path) -> None:
    """Each kind of event, as all versions wrote them."""
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(tmp_path, filter="data")
    for number, old in enumerate(sorted(tmp_path.glob("*/every/nodes/0/events.jsonl"))):
        writer, live = JournalWriter(tmp_path / f"{number}.jsonl"), RunState()
        for event in facts_in(old):
            writer.append(event)
            live = fold(live, event)
        writer.close()
        assert [*facts_in(tmp_path / f"{number}.jsonl")] == [*facts_in(old)]
        assert read_state(tmp_path / f"{number}.jsonl") == live


@pytest.mark.fault("journal and disk", "events of a newer version", "skipped and counted")
def test_unknown_kinds_are_counted_not_fatal(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(
        b'{"kind":"from_the_future","t":1.0}\nnot json\n{"kind":"note_added","t":2.0,"text":"hi","by":"me"}\n'
    )
    state = read_state(path)
    assert (state.newer_version, state.unknown_events) == (None, 2)
    assert [english.moment(m) for m in state.timeline] == ["note: hi"]


HUGE = b"9" * 400


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"progress","t":1795989796.5,"attempt":1,"step":%s,"loss":1.5}',
        b'{"kind":"progress","t":1795989796.5,"attempt":1,"step":3,"total_steps":-%s}',
        b'{"kind":"progress","t":1795989796.5,"attempt":1,"step":3,"lows":[[%s,1.5]]}',
        b'{"kind":"from_the_future","v":%s,"t":1.0}',
        b'{"kind":"note_added","v":%s,"t":1.0,"text":"x","by":"me"}',
    ],
    ids=["step", "total", "pair", "unknown", "version"],
)
@pytest.mark.parametrize("number", [HUGE, b"18446744073709551616"], ids=["400", "20"])
def test_an_event_with_an_integer_beyond_64_bits_is_passed_over_and_counted(
    tmp_path: Path, line: bytes, number: bytes
) -> None:
    path = tmp_path / "events.jsonl"
    whole = b'{"kind":"progress","t":1795989797.5,"attempt":1,"step":9223372036854775807,"loss":1.5}'
    path.write_bytes(line % number + b"\n" + whole + b"\n")
    state = read_state(path)
    assert (state.unknown_events, state.newer_version) == (1, None)
    assert state.progress is not None
    assert state.progress.step == 2**63 - 1


def test_a_half_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = JournalReader(path)
    assert reader.read() == []
    line = b'{"kind":"note_added","t":2.0,"text":"hi","by":"me"}\n'
    path.write_bytes(line + line[:10])
    assert len(reader.read()) == 1
    with path.open("ab") as file:
        file.write(line[10:])
    assert len(reader.read()) == 1
    assert reader.read() == []


@pytest.mark.fault(
    "journal and disk", "the journal is replaced while it is read", "read again from its start"
)
def test_a_replaced_journal_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    line = b'{"kind":"note_added","t":2.0,"text":"%s","by":"me"}\n'
    path.write_bytes(line % b"one" + line % b"two")
    reader = StateReader(path)
    reader.refresh()
    other = tmp_path / "other"
    other.write_bytes(line % b"three")
    other.replace(path)
    reader.refresh()
    assert [english.moment(m) for m in reader.state.timeline] == ["note: three"]


@pytest.mark.fault("journal and disk", "a journal of days", "read to its end in bounded pieces")
def test_a_journal_of_days_is_read_to_its_end(tmp_path: Path) -> None:
    """One read takes 16 MiB: what failed last stands behind that."""
    path = tmp_path / "events.jsonl"
    padding = b'{"kind":"note_added","t":1.0,"text":"' + b"x" * 1000 + b'","by":"kim"}\n'
    path.write_bytes(padding * 17_000)
    writer = JournalWriter(path)
    writer.append(ev.RunEnded(t=2.0, outcome=ev.Outcome.SUCCEEDED, exit_code=0, reason="done"))
    writer.close()
    count, last = 0, None
    for fact in facts_in(path):
        count, last = count + 1, fact
    assert count == 17_001
    assert isinstance(last, ev.RunEnded)


def note(text: str) -> ev.NoteAdded:
    return ev.NoteAdded(t=1.0, text=text, by="kim")


def texts(path: Path) -> list[str]:
    reader = JournalReader(path)
    found = [event.text for event in reader.read() if isinstance(event, ev.NoteAdded)]
    assert reader.skipped == 0
    return found


SECOND = """
import sys
from pathlib import Path
from supervisor.run.journal import JournalWriter
try:
    JournalWriter(Path(sys.argv[1]))
except BlockingIOError as error:
    print(error.strerror)
"""


@pytest.mark.fault("journal and disk", "two writers of one journal", "the second is refused")
def test_a_second_writer_is_refused_also_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "j"
    writer = JournalWriter(path)
    writer.append(note("one"))
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(BlockingIOError) as refused:
        JournalWriter(path)
    assert (refused.value.strerror, refused.value.filename) == (
        "another process writes this journal",
        str(path),
    )
    assert len(os.listdir("/proc/self/fd")) == opened
    second = [sys.executable, "-c", SECOND, str(path)]
    done = subprocess.run(second, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "another process writes this journal\n"
    writer.append(note("two"))
    writer.close()
    assert texts(path) == ["one", "two"]
    for _ in range(3):
        with pytest.raises(
            OSError, match="Bad file descriptor"
        ):  # also where an error would have it reopened
            writer.append(note("three"))
    JournalWriter(path).close()


class Failing:
    """`os.write` or `os.fdatasync` of one file that fails so many times, as a server that was restarted makes them fail.

    `arrives`: how many bytes of a write stand in the file all the same.
    """

    def __init__(self, number: int, times: int, arrives: int = 0) -> None:
        self.number, self.times, self.arrives = number, times, arrives
        self.stale: set[int] = set()
        self._write, self._sync, self._truncate = os.write, os.fdatasync, os.ftruncate

    def _fails(self, fd: int) -> bool:
        if self.times > 0:
            self.times -= 1
            self.stale.add(fd)
        return fd in self.stale

    def write(self, fd: int, data: bytes) -> int:
        if self._fails(fd):
            if self.arrives:
                self._write(fd, bytes(data)[: self.arrives])
            raise OSError(self.number, os.strerror(self.number))
        return self._write(fd, data)

    def fdatasync(self, fd: int) -> None:
        if self._fails(fd):
            raise OSError(self.number, os.strerror(self.number))
        self._sync(fd)

    def ftruncate(self, fd: int, length: int) -> None:
        if fd in self.stale:
            raise OSError(self.number, os.strerror(self.number))
        self._truncate(fd, length)


@pytest.mark.parametrize("call", ["write", "fdatasync"])
@pytest.mark.parametrize("arrives", [0, 5, 1000])
@pytest.mark.fault(
    "journal and disk",
    "the journal's descriptor goes stale (ESTALE)",
    "reopened; no event is lost or duplicated",
)
def test_a_stale_descriptor_is_opened_anew_and_no_event_stands_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, arrives: int
) -> None:
    path = tmp_path / "j"
    writer = JournalWriter(path)
    writer.append(note("one"))
    failing = Failing(errno.ESTALE, 1, arrives)
    monkeypatch.setattr(os, call, getattr(failing, call))
    monkeypatch.setattr(os, "ftruncate", failing.ftruncate)
    with pytest.raises(OSError, match="Stale"):
        writer.append(note("two"), durable=True)
    failing.stale.clear()  # the new descriptor may have the old number
    writer.append(note("two"), durable=True)
    writer.append(note("three"))
    writer.close()
    assert texts(path) == ["one", "two", "three"]


@pytest.mark.fault("journal and disk", "another file replaces the journal", "it is not written to")
def test_another_file_in_its_place_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j"
    writer = JournalWriter(path)
    writer.append(note("one"))
    path.rename(tmp_path / "kept")
    path.write_bytes(b"somebody else's\n")
    failing = Failing(errno.ESTALE, 1)
    monkeypatch.setattr(os, "write", failing.write)
    for why in ("Stale file handle", *["another file is in the place of the journal"] * 2):
        with pytest.raises(OSError, match=rf"\[Errno {errno.ESTALE}\] {why}"):
            writer.append(note("two"))
    assert path.read_bytes() == b"somebody else's\n"
    assert writer.astray().startswith("moved to")
    path.unlink()
    with pytest.raises(FileNotFoundError):
        writer.append(note("two"))
    assert not path.exists(), "nothing is made again"
    (tmp_path / "kept").rename(path)
    failing.stale.clear()
    writer.append(note("two"))
    writer.close()
    assert texts(path) == ["one", "two"]


def remounted(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


@pytest.mark.fault("journal and disk", "a read-only mount: the journal", "read; a writer is refused")
def test_a_read_only_filesystem_is_read_and_refuses_a_writer(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        path = disk / "j"
        writer = JournalWriter(path)
        writer.append(note("one"))
        writer.close()
        remounted(disk, "ro")
        assert texts(path) == ["one"]
        with pytest.raises(OSError, match="Read-only"):
            JournalWriter(path)
        remounted(disk, "rw")
        again = JournalWriter(path)
        again.append(note("two"))
        again.close()
        assert texts(path) == ["one", "two"]


@pytest.mark.parametrize("line", [
    b'{"kind":"note_added","v":2,"t":2.0,"text":"it means something else by now","by":"me"}\n',
    b'{"kind":"from_the_future","v":2,"t":2.0}\n',
])  # fmt: skip
def test_events_of_a_newer_version_are_passed_over_and_make_the_run_a_newer_ones(
    tmp_path: Path, line: bytes
) -> None:
    path = tmp_path / "j"
    ours = b'{"kind":"note_added","t":1.0,"text":"hi","by":"me","a_new_field":[1]}\n'
    path.write_bytes(ours + line + ours)
    state = read_state(path)
    assert (state.newer_version, state.unknown_events, len(state.timeline)) == (2, 1, 2)


@pytest.mark.fault("journal and disk", "a full disk tears a line", "only that line is lost")
def test_a_line_torn_by_a_full_disk_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path / "j")
    write = os.write
    room = [20]

    def full(fd: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        part = bytes(data)[: room[0]]
        room[0] -= len(part)
        return write(fd, part)

    monkeypatch.setattr(os, "write", full)
    for text in ("one", "two"):
        with pytest.raises(OSError, match="space"):
            writer.append(note(text))
    monkeypatch.undo()
    writer.append(note("three"))
    writer.append(note("four"))
    writer.close()
    reader = JournalReader(tmp_path / "j")
    assert [f.text for f in reader.read() if isinstance(f, ev.NoteAdded)] == ["three", "four"]
    assert reader.skipped == 0, "the half of a line was taken back"
