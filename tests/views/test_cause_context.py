"""The lines around a cause are those of the file, wherever the run lies and however large it is."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor.run.paths import RunPaths
from supervisor.run.records import Cause
from supervisor.run.state import RunState
from supervisor.views.model import cause_context as nearby
from supervisor.views.model.cause_context import Context, NearbyReader, read_context


def context_of(path: Path, line: int) -> nearby.Context:
    return read_context(RunPaths(path.parent), 1, Cause(str(path), line, ""))


@example(lines=["aaaaééé"], at=1, chunk=10, ends=False)
@given(
    lines=st.lists(st.text(alphabet="ab é\r", max_size=9), min_size=1, max_size=60),
    at=st.integers(1, 60),
    chunk=st.integers(1, 40),
    ends=st.booleans(),
)
def test_lines_are_those_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], at: int, chunk: int, ends: bool
) -> None:
    lines = [f"{text}." for text in lines]
    path = tmp_path_factory.mktemp("log") / "x.log"
    path.write_bytes(("\n".join(lines) + ("\n" if ends else "")).encode())
    before = nearby.CHUNK_BYTES
    nearby.CHUNK_BYTES = chunk
    try:
        found = context_of(path, at)
    finally:
        nearby.CHUNK_BYTES = before
    first = max(1, at - nearby.BEFORE_LINES)
    wanted = [text.rpartition("\r")[2] for text in lines[first - 1 : at + nearby.AFTER_LINES]]
    if not wanted:
        assert "there is no line" in found.trouble
    else:
        assert (found.first, list(found.lines)) == (first, wanted)


def test_gzip_and_a_run_that_was_moved(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "moved")
    log = run.node().attempt(1).root / "stderr.log.gz"
    log.parent.mkdir(parents=True)
    log.write_bytes(gzip.compress(b"one\ntwo\nthree\n"))
    cause = Cause("/elsewhere/runs/r/nodes/0/attempts/1/stderr.log.gz", 2, "two")
    assert read_context(run, 1, cause).lines == ("one", "two", "three")


def test_a_cause_is_named_from_its_attempts_folder(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    log = run.node().attempt(2).root / "torchrun" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("KeyError: 'x'\n")
    run.artifacts.mkdir()
    (run.artifacts / "stacks-2-1.txt").write_text("3 ranks in all_reduce\n")
    assert read_context(run, 2, Cause("torchrun/stderr.log", 1, "")).lines == ("KeyError: 'x'",)
    hang = Cause("../../../../artifacts/stacks-2-1.txt", 1, "")
    assert read_context(run, 2, hang).lines == ("3 ranks in all_reduce",)


def test_a_file_that_is_gone_says_so(tmp_path: Path) -> None:
    gone = tmp_path / "gone.log"
    assert context_of(gone, 3) == Context(str(gone), 3, trouble=f"No such file or directory: {gone}")
    gone.write_text("one\n")
    assert context_of(gone, 15).lines == ("one",)
    assert context_of(gone, 16) == Context(str(gone), 16, trouble=f"there is no line 16 any more: {gone}")
    assert read_context(RunPaths(tmp_path), 1, Cause("x.log", None, "")) == Context(
        "x.log", 0, trouble="no line to point at"
    )


def test_newest_stacks_are_read_once(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    reader = NearbyReader(run)
    assert reader.refresh(RunState()).stacks is None
    run.artifacts.mkdir()
    (run.artifacts / "stacks-1.txt").write_text("old")
    (run.artifacts / "stacks-2.txt").write_bytes(b"new\x1b[31m red")
    os.utime(run.artifacts / "stacks-1.txt", (1, 1))
    first = reader.refresh(RunState())
    assert first.stacks is not None
    assert (first.stacks.name, first.stacks.lines) == ("stacks-2.txt", ("new red",))
    assert reader.refresh(RunState()) is first
    for number, name in enumerate(("stacks-3.txt.part", "stacks-3.json", "notes.txt")):
        (run.artifacts / name).write_text("x")
        os.utime(run.artifacts / name, (time.time() + 60 + number, time.time() + 60 + number))
        os.utime(run.artifacts, (number + 5, number + 5))
        assert reader.refresh(RunState()) is first, name
