"""Logs are followed by one thread: woken by events, fair among many, to the last byte of files and pipes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from supervisor.sources.tail.tailer import Batch, NoteCode, Tailer, TailNote
from supervisor.sources.tail.wake import InotifyEvents, ObserverEvents, folder_events
from tests.conftest import wait_until
from tests.sources.tailing import Events, Heard, inotify, no_events


@pytest.mark.parametrize("events", [inotify, ObserverEvents, no_events], ids=["inotify", "observer", "poll"])
def test_lines_come_as_they_are_written(
    make_tailer: Callable[..., Tailer], heard: Heard, tmp_path: Path, events: Events
) -> None:
    tailer = make_tailer(events=events, poll_s=0.05)
    log = tmp_path / "later" / "a.log"
    tailer.add(log, "a")
    tailer.start()
    log.parent.mkdir()
    with log.open("ab", buffering=0) as out:
        out.write(b"one\ntwo\nhal")
        assert wait_until(lambda: heard.lines() == ["one", "two"], 5)
        out.write(b"f\n")
        assert wait_until(lambda: heard.lines() == ["one", "two", "half"], 5)
        out.write(b"\x1b[31mlast, without newline")
    assert tailer.drain(5)
    assert heard.lines()[-1] == "last, without newline"
    first = heard.batches[0].lines[0]
    assert (first.offset, first.number) == (0, 1)
    assert heard.data() == log.read_bytes()


def test_an_event_wakes_long_before_the_poll(
    make_tailer: Callable[..., Tailer], heard: Heard, tmp_path: Path
) -> None:
    tailer = make_tailer(poll_s=60)
    log = tmp_path / "a.log"
    log.touch()
    tailer.add(log, "a")
    tailer.start()
    with log.open("ab", buffering=0) as out:
        for number in range(20):
            out.write(b"%d\n" % number)
            assert wait_until(partial(heard.has_lines, number + 1), 5)


def test_a_flood_in_one_log_does_not_starve_another(
    make_tailer: Callable[..., Tailer], heard: Heard, tmp_path: Path
) -> None:
    (tmp_path / "a.log").write_bytes(b"flood\n" * 400_000)
    (tmp_path / "b.log").write_bytes(b"quiet\n")
    tailer = make_tailer(read_bytes=1 << 14)
    tailer.add(tmp_path / "a.log", "a")
    tailer.add(tmp_path / "b.log", "b")
    tailer.start()
    assert wait_until(lambda: heard.lines("b") == ["quiet"], 20)
    keys = [batch.key for batch in heard.batches]
    assert keys.index("b") <= 2
    assert tailer.drain(120)
    assert len(heard.lines("a")) == 400_000


@pytest.mark.serial
@pytest.mark.parametrize("events", [inotify, no_events], ids=["inotify", "poll"])
def test_a_burst_of_50_000_lines_a_second_is_kept_up_with(tmp_path: Path, events: Events) -> None:
    log = tmp_path / "a.log"
    log.touch()
    stop = threading.Event()
    seen: list[int] = []
    tailer = Tailer(stop, lambda batch: seen.append(len(batch.lines)), events=events)
    tailer.add(log, "a")
    tailer.start()
    line = b"INFO worker 3 took sample 123456 and put it where samples of its length go\n"
    began = time.monotonic()
    with log.open("ab", buffering=0) as out:
        for tick in range(100):
            out.write(line * 500)
            stop.wait(max(0.0, began + (tick + 1) * 0.01 - time.monotonic()))
    assert wait_until(lambda: sum(seen) == 50_000, 5), sum(seen)
    # Read in pieces as it came, not a line at a time.
    assert len(seen) <= 1000
    stop.set()
    assert tailer.close()


def test_a_pipe_is_read_to_its_end(make_tailer: Callable[..., Tailer], heard: Heard) -> None:
    read_end, write_end = os.pipe()
    tailer = make_tailer()
    tailer.add_pipe(read_end, "a")
    tailer.start()
    os.write(write_end, b"one\ntw")
    assert wait_until(lambda: heard.lines() == ["one"], 5)
    os.write(write_end, b"o")
    os.close(write_end)
    assert wait_until(lambda: heard.lines() == ["one", "two"], 5)
    assert wait_until(lambda: heard.codes() == [NoteCode.ENDED], 5)
    os.close(read_end)


def test_what_cannot_be_read_is_said_once(
    make_tailer: Callable[..., Tailer], heard: Heard, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    tailer = make_tailer(poll_s=0.01)
    tailer.add(tmp_path, "folder")
    tailer.add(tmp_path / "fifo", "fifo")
    tailer.add(tmp_path / "none", "none")
    tailer.start()
    assert wait_until(lambda: len(heard.notes) == 2, 5)
    assert tailer.drain(5)
    assert sorted(note.key for note in heard.notes) == ["fifo", "folder"]


def test_a_reader_that_fails_is_said_and_the_rest_goes_on(tmp_path: Path) -> None:
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
    assert tailer.drain(5)
    assert tailer.close()
    assert seen == ["fine"]
    assert [note.code for note in notes] == [NoteCode.FAILED]


def test_it_begins_where_it_is_told_and_stops_when_told(
    make_tailer: Callable[..., Tailer], heard: Heard, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"one\ntwo\n")
    tailer = make_tailer()
    tailer.add(log, "a", offset=4, number=2)
    tailer.start()
    assert wait_until(lambda: heard.lines() == ["two"], 5)
    line = heard.batches[0].lines[0]
    assert (line.offset, line.number) == (4, 2)
    tailer.remove("a")
    assert tailer.drain(5), "the thread has heard of it"
    with log.open("ab") as out:
        out.write(b"three\n")
    assert tailer.drain(5)
    assert heard.lines() == ["two"]


def test_the_best_events_here_are_inotify() -> None:
    events = folder_events(lambda: None)
    assert isinstance(events, InotifyEvents)
    events.close()


def test_a_long_reading_to_the_end_is_asked_for_and_looked_at(
    make_tailer: Callable[..., Tailer], heard: Heard, tmp_path: Path
) -> None:
    (tmp_path / "a.log").write_bytes(b"line\n" * 400_000 + b"half")
    tailer = make_tailer(read_bytes=1 << 14)
    tailer.add(tmp_path / "a.log", "a")
    tailer.start()
    told: list[int] = []
    drain = tailer.ask_drain(lambda: told.append(len(heard.lines())))
    assert wait_until(drain.done.is_set, 30)
    assert drain.complete
    assert told == [400_001], "after the last line, half as it is"
    assert tailer.backlog() == (2_000_004, 2_000_004)


def test_a_reading_that_is_broken_off_tells_how_far_it_came(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"line\n" * 400_000)
    (tmp_path / "b.log").write_bytes(b"half")
    begun = threading.Event()

    def reader(_batch: Batch) -> None:
        begun.set()
        time.sleep(0.02)

    stop = threading.Event()
    tailer = Tailer(stop, reader, read_bytes=1 << 10)
    tailer.add(tmp_path / "a.log", "a")
    tailer.add(tmp_path / "b.log", "b")
    tailer.start()
    drain = tailer.ask_drain()
    assert begun.wait(10)
    stop.set()
    assert tailer.close()
    assert not drain.complete
    backlog = tailer.backlog()
    assert backlog.size_bytes == 2_000_004
    assert 0 < backlog.read_bytes < backlog.size_bytes
    assert tailer.close(), "a second time too"


def test_a_log_that_is_written_on_and_on_is_read_to_where_it_was(
    make_tailer: Callable[..., Tailer], tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"line\n" * 1000)

    def writes_on(_batch: Batch) -> None:
        with log.open("ab") as out:
            out.write(b"line\n" * 1000)

    tailer = Tailer(threading.Event(), writes_on, events=no_events, read_bytes=1 << 10)
    tailer.add(log, "a")
    assert tailer.drain(10), "though more was there at every look"
    assert tailer.backlog().unread_bytes > 0
    assert tailer.close()


def test_what_cannot_be_read_counts_as_unread(
    make_tailer: Callable[..., Tailer], heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that gives an error in the middle of a log: nobody may take that for its end."""
    (tmp_path / "a.log").write_bytes(b"fine\nhalf")
    (tmp_path / "bad.log").write_bytes(b"lost\n")
    tailer = make_tailer(events=no_events)
    for name in ("a", "bad"):
        tailer.add(tmp_path / f"{name}.log", name)
    pread = os.pread

    def broken(fd: int, size: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("bad.log"):
            raise OSError(5, "Input/output error")
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", broken)
    tailer.start()
    assert not tailer.drain(10)
    assert heard.lines("a") == ["fine", "half"]
    assert tailer.backlog() == (9, 14)
