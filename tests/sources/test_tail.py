"""Logs are followed by one thread: woken by events, fair among many, to the last byte of files and pipes."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from supervisor.sources.tail.tailer import Batch, NoteCode, Tailer, TailNote
from supervisor.sources.tail.wake import Waker
from tests.conftest import wait_until
from tests.sources.tailing import Received, drained


@pytest.mark.parametrize("watch", [True, False], ids=["watchdog", "poll"])
def test_lines_come_as_they_are_written(
    make_tailer: Callable[..., Tailer], received: Received, tmp_path: Path, watch: bool
) -> None:
    tailer = make_tailer(watch=watch, poll_s=0.05)
    log = tmp_path / "later" / "a.log"
    tailer.add(log, "a")
    tailer.start()
    log.parent.mkdir()
    with log.open("ab", buffering=0) as out:
        out.write(b"one\ntwo\nhal")
        assert wait_until(lambda: received.lines() == ["one", "two"], 5)
        out.write(b"f\n")
        assert wait_until(lambda: received.lines() == ["one", "two", "half"], 5)
        out.write(b"\x1b[31mlast, without newline")
    assert drained(tailer, 5)
    assert received.lines()[-1] == "last, without newline"
    first = received.batches[0].lines[0]
    assert (first.offset, first.number) == (0, 1)
    assert received.data() == log.read_bytes()


@pytest.mark.fault("logs and load", "one log floods", "the others are read in time")
def test_a_flood_in_one_log_does_not_starve_another(
    make_tailer: Callable[..., Tailer], received: Received, tmp_path: Path
) -> None:
    (tmp_path / "a.log").write_bytes(b"flood\n" * 400_000)
    (tmp_path / "b.log").write_bytes(b"quiet\n")
    tailer = make_tailer(read_bytes=1 << 14)
    tailer.add(tmp_path / "a.log", "a")
    tailer.add(tmp_path / "b.log", "b")
    tailer.start()
    assert wait_until(lambda: received.lines("b") == ["quiet"], 20)
    keys = [batch.key for batch in received.batches]
    assert keys.index("b") <= 2
    assert drained(tailer, 120)
    assert len(received.lines("a")) == 400_000


@pytest.mark.fault("logs and load", "a log without read permission", "reported once; the others are read")
def test_what_cannot_be_read_is_reported_once(
    make_tailer: Callable[..., Tailer], received: Received, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    tailer = make_tailer(poll_s=0.01)
    tailer.add(tmp_path, "folder")
    tailer.add(tmp_path / "fifo", "fifo")
    tailer.add(tmp_path / "none", "none")
    tailer.start()
    assert wait_until(lambda: len(received.notes) == 2, 5)
    assert drained(tailer, 5)
    assert sorted(note.key for note in received.notes) == ["fifo", "folder"]


def test_a_reader_that_fails_is_reported_and_the_rest_goes_on(tmp_path: Path) -> None:
    notes: list[TailNote] = []
    seen: list[str] = []

    def reader(batch: Batch) -> None:
        if batch.key == "bad":
            raise ValueError("no")
        seen.extend(line.text for line in batch.lines)

    (tmp_path / "a").write_bytes(b"fine\n")
    stop = threading.Event()
    tailer = Tailer(stop, reader, on_note=notes.append)
    tailer.add(tmp_path / "a", "bad")
    tailer.add(tmp_path / "a", "good")
    assert drained(tailer, 5)
    assert tailer.close()
    assert seen == ["fine"]
    assert [note.code for note in notes] == [NoteCode.FAILED]


def test_it_begins_at_the_offset_it_is_given_and_stops_when_removed(
    make_tailer: Callable[..., Tailer], received: Received, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"one\ntwo\n")
    tailer = make_tailer()
    tailer.add(log, "a", offset=4, number=2)
    tailer.start()
    assert wait_until(lambda: received.lines() == ["two"], 5)
    line = received.batches[0].lines[0]
    assert (line.offset, line.number) == (4, 2)
    tailer.remove("a")
    assert drained(tailer, 5), "the thread has received of it"
    with log.open("ab") as out:
        out.write(b"three\n")
    assert drained(tailer, 5)
    assert received.lines() == ["two"]


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What becomes of watches, in order: "watch NAME" and "no watch NAME", by the file's name."""
    calls: list[str] = []
    watch = Waker.watch

    def recording_watch(self: Waker, path: str) -> bool:
        found = watch(self, path)
        calls.append(f"{'watch' if found else 'no watch'} {os.path.basename(path)}")
        return found

    monkeypatch.setattr(Waker, "watch", recording_watch)
    return calls


@pytest.mark.fault("logs and load", "inotify's queue overflows", "all files are checked")
def test_an_overflow_of_the_queue_means_a_look_at_all(
    make_tailer: Callable[..., Tailer], received: Received, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """watchdog's own thread tells of an overflow as it would of a real one; nothing else ends the wait of a minute."""
    from watchdog.observers.inotify_c import InotifyConstants, InotifyEvent, InotifyFD, WatchDescriptor

    readers: list[InotifyFD] = []
    add_callback = InotifyFD.add_callback

    def recorded(self: InotifyFD, *args: Any) -> WatchDescriptor:
        readers.append(self)
        return add_callback(self, *args)

    monkeypatch.setattr(InotifyFD, "add_callback", recorded)
    monkeypatch.setattr(Waker, "note_change", lambda _self, _path: None)
    log = tmp_path / "a.log"
    log.touch()
    tailer = make_tailer(poll_s=60)
    tailer.add(log, "a")
    tailer.start()
    assert wait_until(lambda: readers, 5)
    assert drained(tailer, 5), "the look that set the watch is over"
    with log.open("ab") as out:
        out.write(b"no event came for this\n")
    assert received.lines() == []
    overflow = InotifyEvent(WatchDescriptor(-1), InotifyConstants.IN_Q_OVERFLOW, 0, b"")
    readers[0].handle_event(overflow)
    assert wait_until(lambda: received.lines() == ["no event came for this"], 5)


@pytest.mark.fault("logs and load", "a network disk sends no events", "growth is found by polling")
def test_where_no_event_comes_growth_is_found_by_looking(
    make_tailer: Callable[..., Tailer], received: Received, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network filesystem that another host writes to."""
    monkeypatch.setattr(Waker, "note_change", lambda _self, _path: None)
    log = tmp_path / "a.log"
    log.touch()
    tailer = make_tailer(poll_s=0.05)
    tailer.add(log, "a")
    tailer.start()
    with log.open("ab", buffering=0) as out:
        for number in range(3):
            out.write(b"line\n")
            assert wait_until(partial(received.has_lines, number + 1), 5)


@pytest.mark.fault("logs and load", "no inotify watch is left", "logs are polled")
def test_without_inotify_watches_left_logs_are_polled(
    make_tailer: Callable[..., Tailer],
    received: Received,
    tmp_path: Path,
    watches: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from watchdog.observers.inotify_c import InotifyFD

    tries: list[object] = []

    def none_left(_self: InotifyFD, path: bytes, *_: object) -> None:
        tries.append(path)
        raise OSError(errno.ENOSPC, "inotify watch limit reached")

    monkeypatch.setattr(InotifyFD, "add_callback", none_left)
    caplog.set_level(logging.INFO, "stoker.tail")
    tailer = make_tailer(poll_s=0.05)
    for name in ("a", "b"):
        tailer.add(tmp_path / name, name)
    tailer.start()
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"line\n")
    assert wait_until(lambda: received.lines("a") == received.lines("b") == ["line"], 5)
    assert wait_until(lambda: watches.count("no watch b") >= 3, 5)
    assert len(tries) == 1, "it is not asked for again and again"
    assert "inotify watch limit reached" in caplog.text


def test_nothing_of_watchdog_is_left_after_the_end(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"line\n")
    lines: list[int] = []

    def follow_once() -> None:
        tailer = Tailer(threading.Event(), lambda batch: lines.append(len(batch.lines)))
        tailer.add(tmp_path / "a.log", "a")
        tailer.start()
        assert wait_until(lambda: "stoker-watchdog" in [thread.name for thread in threading.enumerate()], 5)
        assert tailer.close()

    follow_once()
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        follow_once()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_what_cannot_be_read_counts_as_unread(
    make_tailer: Callable[..., Tailer], received: Received, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that gives an error in the middle of a log: nobody may take that for its end."""
    (tmp_path / "a.log").write_bytes(b"fine\nhalf")
    (tmp_path / "bad.log").write_bytes(b"lost\n")
    tailer = make_tailer(watch=False)
    for name in ("a", "bad"):
        tailer.add(tmp_path / f"{name}.log", name)
    pread = os.pread

    def broken(fd: int, size: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("bad.log"):
            raise OSError(5, "Input/output error")
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", broken)
    tailer.start()
    assert not drained(tailer, 10)
    assert received.lines("a") == ["fine", "half"]
    assert tailer.backlog() == (9, 14)
