"""One growing file: whole lines, in order, through truncation, rotation and removal; progress bars; endless lines."""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.sources.tail.follow import FollowedFile, LineFeed, TailNote
from supervisor.sources.tail.tailer import Batch, NoteCode, Tailer
from supervisor.text.lines import Line
from tests.conftest import wait_until
from tests.sources.tailing import Received, drained


def test_truncation_is_noticed_even_when_the_file_has_grown_past_the_old_end(
    make_tailer: Callable[..., Tailer], received: Received, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"old 1\nold 2\n")
    tailer = make_tailer(watch=False, poll_s=0.02)
    tailer.add(log, "a")
    tailer.start()
    assert wait_until(lambda: len(received.lines()) == 2, 5)
    # Between two looks: truncated, and longer than before.
    log.write_bytes(b"new 1\nnew 2\nnew 3\n")
    assert wait_until(lambda: received.lines()[2:] == ["new 1", "new 2", "new 3"], 5)
    assert received.batches[-1].generation == 1
    assert NoteCode.TRUNCATED in received.codes()
    log.write_bytes(b"x\n")
    assert wait_until(lambda: received.lines()[-1] == "x", 5)
    assert received.batches[-1].lines[0].number == 1


@pytest.mark.fault(
    "logs and load",
    "copytruncate under a writer that keeps its position",
    "the hole is skipped, no line is lost",
)
def test_copytruncate_under_a_writer_that_keeps_its_position_skips_the_hole(
    make_tailer: Callable[..., Tailer], received: Received, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    tailer = make_tailer(poll_s=0.05)
    tailer.add(log, "a")
    tailer.start()
    with log.open("wb", buffering=0) as out:
        out.write(b"y" * (1 << 20) + b"\n")
        assert wait_until(lambda: len(received.lines()) == 1, 5)
        os.truncate(log, 0)
        out.write(b"after\n")
    assert wait_until(lambda: received.lines()[1:] == ["after"], 5)


@pytest.mark.fault("logs and load", "a log is rotated by rename", "no line is lost")
def test_rotation_by_rename_loses_nothing(
    make_tailer: Callable[..., Tailer], received: Received, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"1\n")
    tailer = make_tailer(poll_s=0.05)
    tailer.add(log, "a")
    tailer.start()
    assert wait_until(lambda: received.lines() == ["1"], 5)
    with log.open("ab", buffering=0) as out:
        log.rename(tmp_path / "a.log.1")
        out.write(b"2\n")
        log.write_bytes(b"3\n")
    assert wait_until(lambda: received.lines() == ["1", "2", "3"], 5)
    assert NoteCode.ROTATED in received.codes()


@pytest.mark.fault(
    "logs and load", "a log is deleted and created again", "the old one is read to its end, then the new one"
)
def test_a_removed_file_is_read_to_its_end_and_its_successor_followed(
    make_tailer: Callable[..., Tailer], received: Received, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    tailer = make_tailer(poll_s=0.02)
    tailer.add(log, "a")
    tailer.start()
    with log.open("ab", buffering=0) as out:
        out.write(b"1\n")
        assert wait_until(lambda: received.lines() == ["1"], 5)
        log.unlink()
        out.write(b"2\n")
        assert wait_until(lambda: received.lines() == ["1", "2"], 5)
    assert wait_until(lambda: NoteCode.GONE in received.codes(), 5)
    log.write_bytes(b"3\n")
    assert wait_until(lambda: received.lines() == ["1", "2", "3"], 5)


@pytest.mark.fault("logs and load", "a writer that never ends its line", "memory stays bounded")
def test_a_writer_that_never_ends_a_line_costs_no_memory(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    lines: list[Line] = []
    read = 0

    def reader(batch: Batch) -> None:
        nonlocal read
        read += len(batch.data)
        lines.extend(batch.lines)

    tailer = Tailer(threading.Event(), reader, watch=False)
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
    assert drained(tailer, 10)
    assert tailer.close()
    assert read == (32 << 20) + 6
    assert peak < 8 << 20
    assert [(line.offset, line.number, line.was_cut) for line in lines] == [
        (0, 1, True),
        ((32 << 20) + 1, 2, False),
    ]


def test_each_drawn_state_is_handed_over_once_however_the_bytes_are_cut() -> None:
    states = [f" {n}/10 loss={4 - n / 10:.1f}".encode() for n in range(1, 11)]
    data = b"before\n\r" + b"\r".join(states) + b"\nafter\r\n\r 1/2\r 2/2\r"
    for cut in range(len(data) + 1):
        feed = LineFeed("a")
        parts = [feed.feed(data[:cut]), feed.feed(data[cut:])]
        drawn = [state for part in parts for state in part.drawn]
        assert [state.raw for state in drawn] == [*states[:-1], b" 1/2", b" 2/2"], cut
        assert all(data[state.offset :].startswith(state.raw) for state in drawn), cut
        assert [state.number for state in drawn] == [2] * 9 + [4] * 2
        assert [line.text for part in parts for line in part.lines] == [
            "before",
            states[-1].decode(),
            "after",
        ]


def test_a_bar_that_is_drawn_twice_at_a_step_is_read_with_that_steps_loss() -> None:
    """`bar.update(1); bar.set_postfix(loss=…)`: the update's own drawing shows the loss of the step before."""
    feed = LineFeed("bar")

    def drawn(text: str) -> list[str]:
        return [line.text.strip() for line in feed.feed(text.encode()).drawn]

    first = "40%|####      | 12/30 [00:01<00:02, 9.10it/s, loss=19.4]"
    second = "40%|####      | 12/30 [00:01<00:02, 9.10it/s, loss=16.4]"
    assert drawn(f"\r {first}\r {second}") == [first, second], (
        "the newest one at once; it says by itself that it is whole"
    )
    assert drawn("\r 43%|####3     | 13/30 [00:01<00:0") == [], "half a state, after one that was seen"
    assert drawn("2, 9.10it/s, loss=17.2]   ") == ["43%|####3     | 13/30 [00:01<00:02, 9.10it/s, loss=17.2]"]
    assert drawn("\r") == []
    assert drawn("\r epoch [1/3]") == [], "a bracket alone ends no state"


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


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_STEPS, read_bytes=st.sampled_from([1, 3, 7, 64, 1 << 16]))
def test_every_byte_comes_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, bytes]], read_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("tail")
    log = folder / "a.log"
    received = Received()
    tailer = Tailer(threading.Event(), received.batches.append, watch=False, read_bytes=read_bytes)
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
            assert drained(tailer, 5)
    assert drained(tailer, 5)
    assert tailer.close()
    assert received.data() == b"".join(written)
    expected = [line for part in written for line in _lines(part)]
    assert [line.raw for batch in received.batches for line in batch.lines if batch.key == "a"] == expected


def _lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def followed(path: Path) -> tuple[FollowedFile, list[TailNote]]:
    notes: list[TailNote] = []
    return FollowedFile(str(path), "a", on_note=notes.append), notes


def texts(file: FollowedFile, limit_bytes: int = 1 << 16, *, final: bool = False) -> list[str]:
    found, more = [], True
    while more:
        batches, more = file.read(limit_bytes, final=final)
        found += [line.text for batch in batches for line in batch.lines]
    return found


@pytest.mark.fault("logs and load", "a rename while reading is far behind", "the lag counts the old file")
def test_what_waits_in_a_file_that_was_renamed_counts_as_unread(tmp_path: Path) -> None:
    """A rotation while the reading is far behind hid all of the lag: the new file was shorter than what had been read."""
    log = tmp_path / "a.log"
    log.write_bytes(b"one\ntwo\n")
    file, _ = followed(log)
    file.read(4)
    assert file.backlog() == (4, 8)
    log.rename(tmp_path / "a.log.1")
    assert file.backlog() == (4, 8), "no successor yet"
    log.write_bytes(b"x\n")
    assert file.backlog() == (4, 10)
    assert texts(file, final=True) == ["two", "x"]
    assert file.backlog() == (2, 2)
    file.close()
