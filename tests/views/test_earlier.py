"""What was not read of the logs when a run was opened comes when a person looks back: every line once, in its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.run import events as ev
from supervisor.run.fold import replay
from supervisor.run.paths import RunPaths
from supervisor.run.state import RunState
from supervisor.views.logs import newest as logs
from supervisor.views.logs.newest import LogLine, LogReader, Tone
from supervisor.views.tui.logs.buffer import MAX_ENTRIES, LogBuffer, LogFilter

QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def log(who: str, text: str, attempt: int = 1) -> LogLine:
    return LogLine(attempt, who, "stdout", text, Tone.PLAIN, "p", 0)


def test_lines_from_before_stand_before_those_of_their_own_attempt() -> None:
    buffer = LogBuffer()
    buffer.add([log("0", "b"), log("0", "y", 2)])
    assert [entry.text for entry in buffer.visible] == ["b", "attempt 2", "y"]
    buffer.put_before([log("0", "a"), log("1", "a"), log("0", "x", 2)])
    assert [entry.text for entry in buffer.visible] == ["a", "b", "attempt 2", "x", "y"]
    assert buffer.visible[0].who == ("0", "1")
    assert buffer.total == 5
    buffer.put_before([log("0", str(number)) for number in range(MAX_ENTRIES)])
    assert len(buffer.visible) == MAX_ENTRIES
    assert [entry.text for entry in buffer.visible[-3:]] == ["attempt 2", "x", "y"]


def test_a_filter_holds_for_lines_from_before() -> None:
    buffer = LogBuffer()
    buffer.set_filter(LogFilter.parse("loss"))
    buffer.add([log("0", "loss 2")])
    buffer.put_before([log("0", "loss 1"), log("0", "other")])
    assert [entry.text for entry in buffer.visible] == ["loss 1", "loss 2"]


def watched(run: RunPaths, *files: Path) -> RunState:
    """The state of an observed run of these files."""
    facts: list[ev.Event] = [
        ev.RunStarted(t=1.0, run_id=run.run_id, name="x", mode="observed", host="box"),
        ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason="watching"),
        ev.AttemptStarted(t=1.0, attempt=1, pid=0, start_time=0.0),
    ]
    facts += [
        ev.RankStarted(t=1.0, attempt=1, local_rank=n, rank=n, stdout=str(file))
        for n, file in enumerate(files)
    ]
    return replay(facts)


@QUIET
@given(
    lines=st.lists(st.text("ab\x1b ", max_size=30), max_size=40),
    later=st.lists(st.text("cd", max_size=9), max_size=4),
    ended=st.booleans(),
    opens=st.integers(1, 200),
)
def test_every_line_comes_once(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    lines: list[str],
    later: list[str],
    ended: bool,
    opens: int,
) -> None:
    for name in ("OPEN_BYTES", "OPEN_MIN_BYTES", "OPEN_MAX_BYTES", "READ_BYTES"):
        monkeypatch.setattr(logs, name, opens)
    folder = tmp_path_factory.mktemp("early")
    file, run = folder / "a.log", RunPaths(folder / "run")
    file.write_text("\n".join(lines) + ("\n" if ended else ""), encoding="utf-8")
    reader, state = LogReader(run.node()), watched(run, file)
    first = reader.refresh(state)
    assert first.earlier == ()
    with file.open("a", encoding="utf-8") as writer:
        writer.write("".join(f"{text}\n" for text in later))
    monkeypatch.setattr(logs, "READ_BYTES", 1 << 20)
    reader.look_back()
    second = reader.refresh(state)
    third = reader.refresh(state)
    assert third.earlier == ()
    found = [*second.earlier, *first.lines, *second.lines, *third.lines]
    assert all(line.tone is not Tone.NOTE for line in found)
    assert [line.offset for line in found] == sorted({line.offset for line in found})
    whole = file.read_bytes()
    # A line longer than what is read at first is shown by its end, or, where others were ended with it, not at all.
    after = [*first.lines, *second.lines, *third.lines]
    for line in found:
        assert line in after[:1] or line.offset == 0 or whole[line.offset - 1 : line.offset] == b"\n"
    torn = not first.lines
    assert whole.count(b"\n") - torn <= len(found) <= whole.count(b"\n")


def test_files_of_ranks_are_read_back_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "OPEN_MIN_BYTES", 100)
    monkeypatch.setattr(logs, "OPEN_MAX_BYTES", 100)
    files = [tmp_path / f"{rank}.log" for rank in range(2)]
    for file in files:
        file.write_text("".join(f"step {n:03}\n" for n in range(100)), encoding="utf-8")
    run = RunPaths(tmp_path / "run")
    reader, state = LogReader(run.node()), watched(run, *files)
    buffer = LogBuffer()
    buffer.add(reader.refresh(state).lines)
    assert 5 < len(buffer.visible) < 12
    reader.look_back()
    buffer.put_before(reader.refresh(state).earlier)
    assert [entry.text for entry in buffer.visible] == [f"step {n:03}" for n in range(100)]
    assert all(sorted(entry.who) == ["0", "1"] for entry in buffer.visible)


def test_a_file_that_was_replaced_has_nothing_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "OPEN_MIN_BYTES", 100)
    monkeypatch.setattr(logs, "OPEN_MAX_BYTES", 100)
    file, run = tmp_path / "a.log", RunPaths(tmp_path / "run")
    file.write_text("old line\n" * 100, encoding="utf-8")
    reader, state = LogReader(run.node()), watched(run, file)
    assert reader.refresh(state).lines
    file.rename(tmp_path / "a.log.1")
    file.write_text("new\n", encoding="utf-8")
    reader.look_back()
    news = reader.refresh(state)
    assert news.earlier == ()
    assert [line.text for line in news.lines if line.tone is not Tone.NOTE] == ["new"]
