"""Logs are followed to the last byte: whole lines, in order, through truncation and rotation."""

from __future__ import annotations

import os
import shutil
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.sources.follow import LineFeed
from supervisor.sources.tail import Batch, NoteCode, Tailer, TailNote
from supervisor.sources.wake import FolderEvents, InotifyEvents, ObserverEvents, folder_events
from supervisor.text.lines import Line
from tests.conftest import wait_until

Events = Callable[[Callable[[], None]], FolderEvents | None]


class Heard:
    """What a tailer handed over."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.notes: list[TailNote] = []

    def lines(self, key: str = "a") -> list[str]:
        return [line.text for batch in self.batches if batch.key == key for line in batch.lines]

    def data(self, key: str = "a") -> bytes:
        return b"".join(batch.data for batch in self.batches if batch.key == key)

    def progress(self, key: str = "a") -> list[str]:
        return [b.progress.text for b in self.batches if b.key == key and b.progress is not None]

    def codes(self) -> list[NoteCode]:
        return [note.code for note in self.notes]


def _has_lines(heard: Heard, count: int) -> bool:
    return len(heard.lines()) >= count


def no_events(_poke: Callable[[], None]) -> None:
    return None


def inotify(_poke: Callable[[], None]) -> FolderEvents:
    return InotifyEvents()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def make_tailer(heard: Heard) -> Iterator[Callable[..., Tailer]]:
    stop = threading.Event()
    made: list[Tailer] = []

    def make(**settings: object) -> Tailer:
        tailer = Tailer(stop, heard.batches.append, on_note=heard.notes.append, **settings)  # type: ignore[arg-type]
        made.append(tailer)
        return tailer

    yield make
    stop.set()
    for tailer in made:
        assert tailer.close()


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
            assert wait_until(partial(_has_lines, heard, number + 1), 5)


def test_truncation_is_noticed_even_when_the_file_has_grown_past_the_old_end(
    make_tailer: Callable[..., Tailer], heard: Heard, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"old 1\nold 2\n")
    tailer = make_tailer(events=no_events, poll_s=0.02)
    tailer.add(log, "a")
    tailer.start()
    assert wait_until(lambda: len(heard.lines()) == 2, 5)
    # Between two looks: truncated, and longer than before.
    log.write_bytes(b"new 1\nnew 2\nnew 3\n")
    assert wait_until(lambda: heard.lines()[2:] == ["new 1", "new 2", "new 3"], 5)
    assert heard.batches[-1].generation == 1
    assert NoteCode.TRUNCATED in heard.codes()
    log.write_bytes(b"x\n")
    assert wait_until(lambda: heard.lines()[-1] == "x", 5)
    assert heard.batches[-1].lines[0].number == 1


def test_copytruncate_under_a_writer_that_keeps_its_position_skips_the_hole(
    make_tailer: Callable[..., Tailer], heard: Heard, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    tailer = make_tailer(poll_s=0.05)
    tailer.add(log, "a")
    tailer.start()
    with log.open("wb", buffering=0) as out:
        out.write(b"y" * (1 << 20) + b"\n")
        assert wait_until(lambda: len(heard.lines()) == 1, 5)
        os.truncate(log, 0)
        out.write(b"after\n")
    assert wait_until(lambda: heard.lines()[1:] == ["after"], 5)


def test_rotation_by_rename_loses_nothing(
    make_tailer: Callable[..., Tailer], heard: Heard, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"1\n")
    tailer = make_tailer(poll_s=0.05)
    tailer.add(log, "a")
    tailer.start()
    assert wait_until(lambda: heard.lines() == ["1"], 5)
    with log.open("ab", buffering=0) as out:
        log.rename(tmp_path / "a.log.1")
        out.write(b"2\n")
        log.write_bytes(b"3\n")
    assert wait_until(lambda: heard.lines() == ["1", "2", "3"], 5)
    assert NoteCode.ROTATED in heard.codes()


def test_a_removed_file_is_read_to_its_end_and_its_successor_followed(
    make_tailer: Callable[..., Tailer], heard: Heard, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    tailer = make_tailer(poll_s=0.02)
    tailer.add(log, "a")
    tailer.start()
    with log.open("ab", buffering=0) as out:
        out.write(b"1\n")
        assert wait_until(lambda: heard.lines() == ["1"], 5)
        log.unlink()
        out.write(b"2\n")
        assert wait_until(lambda: heard.lines() == ["1", "2"], 5)
    assert wait_until(lambda: NoteCode.GONE in heard.codes(), 5)
    log.write_bytes(b"3\n")
    assert wait_until(lambda: heard.lines() == ["1", "2", "3"], 5)


def test_a_flood_in_one_log_does_not_starve_another(
    make_tailer: Callable[..., Tailer], heard: Heard, tmp_path: Path
) -> None:
    (tmp_path / "a.log").write_bytes(b"flood\n" * 400_000)
    (tmp_path / "b.log").write_bytes(b"quiet\n")
    tailer = make_tailer(read_bytes=1 << 14)
    tailer.add(tmp_path / "a.log", "a")
    tailer.add(tmp_path / "b.log", "b")
    tailer.start()
    assert wait_until(lambda: heard.lines("b") == ["quiet"], 5)
    keys = [batch.key for batch in heard.batches]
    assert keys.index("b") <= 2
    assert tailer.drain(20)
    assert len(heard.lines("a")) == 400_000


def test_a_writer_that_never_ends_a_line_costs_no_memory(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    lines: list[Line] = []
    read = 0

    def reader(batch: Batch) -> None:
        nonlocal read
        read += len(batch.data)
        lines.extend(batch.lines)

    tailer = Tailer(threading.Event(), reader, events=no_events)
    tailer.add(log, "a")
    tracemalloc.start()
    try:
        with log.open("ab", buffering=0) as out:
            for _ in range(32):
                out.write(b"x" * (1 << 20))
                tailer._take_over()
                for file in tailer._all():
                    while tailer._read(file):
                        pass
            assert lines == []
            out.write(b"\nnext\n")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tailer.drain(10)
    assert tailer.close()
    assert read == (32 << 20) + 6
    assert peak < 8 << 20
    assert [(line.offset, line.number, line.was_cut) for line in lines] == [
        (0, 1, True),
        ((32 << 20) + 1, 2, False),
    ]


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


@pytest.mark.parametrize("events", [inotify, no_events], ids=["inotify", "poll"])
def test_rotation_by_copytruncate_and_by_rename_again_and_again(
    make_tailer: Callable[..., Tailer], heard: Heard, tmp_path: Path, events: Events
) -> None:
    log = tmp_path / "a.log"
    tailer = make_tailer(events=events, poll_s=0.02)
    tailer.add(log, "a")
    tailer.start()
    expected = []
    for turn in range(6):
        with log.open("ab", buffering=0) as out:
            for number in range(3):
                out.write(b"turn %d line %d\n" % (turn, number))
                expected.append(f"turn {turn} line {number}")
        assert wait_until(partial(_has_lines, heard, len(expected)), 5)
        if turn % 2:
            shutil.copyfile(log, tmp_path / "a.log.1")
            os.truncate(log, 0)
        else:
            log.rename(tmp_path / "a.log.1")
    assert heard.lines() == expected


def test_a_progress_bar_is_live_but_never_half_a_state(
    make_tailer: Callable[..., Tailer], heard: Heard, tmp_path: Path
) -> None:
    tailer = make_tailer(poll_s=0.02)
    log = tmp_path / "a.log"
    tailer.add(log, "a")
    tailer.start()
    with log.open("ab", buffering=0) as out:
        out.write(b"\r 1/10 loss=4.0\r 2/10 loss=3")
        assert wait_until(lambda: " 1/10 loss=4.0" in heard.progress(), 5)
        out.write(b".5\r 3/10 loss=3.2")
        assert wait_until(lambda: " 2/10 loss=3.5" in heard.progress(), 5)
        # A state that stands still for a while is complete.
        assert wait_until(lambda: " 3/10 loss=3.2" in heard.progress(), 5)
        out.write(b"\n")
    assert wait_until(lambda: heard.lines() == [" 3/10 loss=3.2"], 5)
    assert heard.progress().count(" 3/10 loss=3.2") == 1


def test_windows_newlines_are_no_progress() -> None:
    feed = LineFeed("a")
    parts = [feed.feed(b"one\r"), feed.feed(b"\ntwo\r\nthree"), feed.feed(b"\r\n")]
    assert [part.progress for part in parts] == [None, None, None]
    assert [line.text for part in parts for line in part.lines] == ["one", "two", "three"]


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
    with log.open("ab") as out:
        out.write(b"three\n")
    assert tailer.drain(5)
    assert heard.lines() == ["two"]


# One step of a writer's life: write some bytes, or change the file under the reader.
_BYTES = st.binary(max_size=40).map(lambda b: b.replace(b"\0", b"0"))
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), _BYTES | st.sampled_from([b"\n", b"line\n", b"a\nb\nc", b"\r12%"])),
        st.tuples(st.just("rename"), st.just(b"")),
        st.tuples(st.just("look"), st.just(b"")),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_STEPS, read_bytes=st.sampled_from([1, 3, 7, 64, 1 << 16]))
def test_every_byte_comes_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, bytes]], read_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("tail")
    log = folder / "a.log"
    heard = Heard()
    tailer = Tailer(threading.Event(), heard.batches.append, events=no_events, read_bytes=read_bytes)
    tailer.add(log, "a")
    written: list[bytes] = [b""]
    for number, (what, data) in enumerate(steps):
        if what == "write":
            with log.open("ab") as out:
                out.write(data)
            written[-1] += data
        elif what == "look":
            # The pass of a wake-up, in this thread: reads some, never flushes a half line.
            tailer._take_over()
            for file in tailer._all():
                tailer._read(file)
        elif log.exists() and tailer._all() and tailer._all()[0]._fd >= 0 and log.stat().st_size:
            log.rename(folder / f"a.log.{number}")
            written.append(b"")
            log.touch()
            assert tailer.drain(5)
    assert tailer.drain(5)
    assert tailer.close()
    assert heard.data() == b"".join(written)
    expected = [line for part in written for line in _lines(part)]
    assert [line.raw for batch in heard.batches for line in batch.lines if batch.key == "a"] == expected


def _lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def test_the_best_events_here_are_inotify() -> None:
    events = folder_events(lambda: None)
    assert isinstance(events, InotifyEvents)
    events.close()
