"""The same failure again: in other attempts, and in other runs."""

from __future__ import annotations

from pathlib import Path

from supervisor.run import events as ev
from supervisor.run.failure_history import (
    Sighting,
    recurrence_lines,
    same_failure,
    seen_in_runs,
)
from supervisor.run.fold import replay
from supervisor.run.journal import JournalWriter
from supervisor.run.paths import RunPaths
from supervisor.run.records import Action, FailureClass, Verdict

MARK = "0123456789abcdef"


def diagnosed(attempt: int, fingerprint: str, t: float = 5.0) -> ev.Diagnosed:
    verdict = Verdict(
        failure=FailureClass.CODE_ERROR,
        reason=None,
        confidence=0.9,
        rank=0,
        ranks=(0,),
        node=None,
        title="x",
        cause=None,
        consequences=(),
        advice=(),
        action=Action.NONE,
        fingerprint=fingerprint,
    )
    return ev.Diagnosed(t=t, attempt=attempt, verdict=verdict)


def run_with(folder: Path, *events: ev.Event) -> RunPaths:
    run = RunPaths(folder)
    run.node().root.mkdir(parents=True)
    writer = JournalWriter(run.node().journal)
    for event in events:
        writer.append(event)
    writer.close()
    return run


def test_other_attempts_with_the_same_fingerprint() -> None:
    started = [ev.LaunchIntended(t=float(n), attempt=n, reason="x", argv=("x",)) for n in (1, 2, 3)]
    marks = [MARK, "f" * 16, MARK]
    facts = [
        each
        for launch, mark in zip(started, marks, strict=True)
        for each in (launch, diagnosed(launch.attempt, mark))
    ]
    state = replay(facts)
    assert same_failure(state, MARK, 3) == (1,)
    assert same_failure(state, MARK, 2) == (1, 3)
    assert same_failure(state, "f" * 16, 2) == ()
    assert same_failure(state, "", 2) == ()


def test_the_newest_other_run_and_how_many_more(tmp_path: Path) -> None:
    runs = [run_with(tmp_path / f"r{n}", diagnosed(n, MARK, t=10.0 * n)) for n in (3, 2, 1)]
    other = run_with(tmp_path / "other", diagnosed(1, "e" * 16))
    assert seen_in_runs(MARK, [other, *runs], tmp_path / "own") == Sighting("r3", 3, 30.0, 2)
    assert seen_in_runs(MARK, [other, *runs], tmp_path / "r3") == Sighting("r2", 2, 20.0, 1), "not its own"
    assert seen_in_runs(MARK, [other], tmp_path / "own") is None
    assert seen_in_runs(MARK[:15], runs, tmp_path / "own") is None, "a mark without a log behind it"
    last = run_with(tmp_path / "two", diagnosed(1, MARK, t=1.0), diagnosed(2, MARK, t=2.0))
    assert seen_in_runs(MARK, [last], tmp_path / "own") == Sighting("two", 2, 2.0), "its last verdict"


def test_a_damaged_journal_is_no_sighting(tmp_path: Path) -> None:
    run = run_with(tmp_path / "r")
    run.node().journal.write_bytes(
        b'{"kind": "diagnosed", "verdict": {"fingerprint":"' + MARK.encode() + b'"'
    )
    assert seen_in_runs(MARK, [run], tmp_path / "own") is None


def test_it_is_one_line_a_fact() -> None:
    day_t = 1_795_176_000.0  # noon UTC of 2026-11-20
    assert recurrence_lines((), None) == []
    assert recurrence_lines((1,), None) == ["the same failure as attempt 1"]
    lines = recurrence_lines((1, 2), Sighting("r3", 4, day_t, 2))
    assert lines == [
        "the same failure as attempts 1, 2",
        "seen before in run r3 (attempt 4) on 2026-11-20, and in 2 more",
    ]
    assert recurrence_lines((), Sighting("r3", 4, day_t)) == [
        "seen before in run r3 (attempt 4) on 2026-11-20"
    ]
