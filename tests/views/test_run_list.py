"""The list of runs as data: what is read of each, how it is filtered and sorted."""

from __future__ import annotations

import shlex
from dataclasses import replace as replace_row
from datetime import date
from pathlib import Path

import pytest
from msgspec.structs import replace

from supervisor.job.batch import BatchSpec
from supervisor.run import events as ev
from supervisor.run.events import Outcome
from supervisor.run.fold import replay
from supervisor.run.paths import RunPaths
from supervisor.run.records import FailureClass
from supervisor.run.state import AttemptState, Finished, RunState
from supervisor.views.model.run_list import (
    LOOK_S,
    SLICE_S,
    RunRow,
    RunsReader,
    Scope,
    SortKey,
    batch_of,
    filtered,
    newest_rate,
    note_of,
    ordered,
    own_arguments,
    short_reason,
)
from tests.keeper.fakes import job_of, verdict_of
from tests.views.tui import recorded

NOW = recorded.T0 + 9000
ATTEMPT = AttemptState(number=1, planned_t=0.0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunPaths]:
    """A failed, a held and a finished run; none has a keeper."""
    tmp_path = tmp_path_factory.mktemp("runs")
    return [
        recorded.failed(tmp_path / "20261121-1412-brave-otter"),
        recorded.held(tmp_path / "20261121-1410-calm-crane"),
        recorded.succeeded(tmp_path / "20261120-0900-able-ant"),
    ]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("", ["brave-otter", "calm-crane", "able-ant"]), ("otter", ["brave-otter"]),
        ("state:failed", ["brave-otter", "calm-crane"]), ("failed", ["brave-otter", "calm-crane"]),
        ("failure:cuda_oom", ["calm-crane", "able-ant"]),
        ("failure!=code_error state:no_keeper", ["calm-crane"]), ("loss<0", []),
        ("loss>0 step>=40 attempts=1", ["brave-otter", "calm-crane"]),
        ("state:succeeded loss<2.9", ["able-ant"]), ("loss<words", []),
        ("attempts<=1", ["brave-otter", "calm-crane"]), ("attempts<1", []), ("attempts>1", ["able-ant"]),
        ("attempts>=2 id:ANT", ["able-ant"]), ("attempts=2", ["able-ant"]),
        ("attempts!=2", ["brave-otter", "calm-crane"]), ("state=fail", []),
        ("state=failed", ["brave-otter", "calm-crane"]), ("host<5", []),
        ("failure=cuda_oom attempts>1", ["able-ant"]), ("note:x", []),
        ("-otter -state:x", ["calm-crane", "able-ant"]), ('"brave otter"', []),
        ('"brave-otter"', ["brave-otter"]), ("/^2026112[01].*(otter|ant)$/", ["brave-otter", "able-ant"]),
        ("loss>=", ["brave-otter", "calm-crane", "able-ant"]),
    ],
)  # fmt: skip
def test_filter(runs: list[RunPaths], query: str, wanted: list[str]) -> None:
    rows = RunsReader(lambda: runs).refresh().rows
    assert [row.run.run_id[14:] for row in filtered(rows, query, NOW)] == wanted


def test_a_filter_takes_a_day_of_the_start_a_name_and_a_note(runs: list[RunPaths]) -> None:
    rows = RunsReader(lambda: runs).refresh().rows
    days = (20_000 * 86400.0, 19_999 * 86400.0, 19_000 * 86400.0)
    rows = tuple(
        replace_row(row, state=replace(row.state, started_t=t)) for row, t in zip(rows, days, strict=True)
    )
    rows = (rows[0], replace_row(rows[1], given="oomfix"), replace_row(rows[2], note="as yesterday"))
    now = days[0] + 60

    def found(query: str) -> list[int]:
        return [rows.index(row) for row in filtered(rows, query, now)]

    assert found("started:today") == found("today") == found(str(date.fromtimestamp(now))) == [0]  # noqa: DTZ012
    assert found("started:yesterday") == [1]
    assert found("yesterday") == [1, 2], "words of a note are found too"
    assert found(f"started:{str(date.fromtimestamp(now))[:4]}") == [0, 1]  # noqa: DTZ012
    assert found("name:oomfix") == found("name=oomfix") == [1]
    assert found(f"name:{rows[1].state.name}") == [0, 1, 2], "its script's name stays one of its names"
    assert found("note:yester") == [2]


def test_the_other_order_keeps_what_is_unknown_last(runs: list[RunPaths]) -> None:
    rows = RunsReader(lambda: runs).refresh().rows
    unknown = RunRow(runs[0], RunState(name="z"), live=False)
    assert ordered(rows, SortKey.NEWEST, NOW, reverse=True) == list(reversed(rows))
    for key in set(SortKey) - {SortKey.NEWEST, SortKey.STATE, SortKey.NAME}:
        usual, other = (ordered([unknown, *rows], key, NOW, reverse=way) for way in (False, True))
        assert usual[-1] is other[-1] is unknown, key
    losses = [row.state.best_loss for row in ordered(rows, SortKey.LOSS, NOW, reverse=True)]
    assert losses == sorted(losses, key=lambda loss: -(loss or 0.0))


def test_a_name_that_was_given_later_counts(runs: list[RunPaths]) -> None:
    names: dict[str, str] = {}
    reader = RunsReader(lambda: runs, names=lambda: names)
    row = reader.refresh().rows[0]
    assert row.given == ""
    names[str(row.run.root)] = row.state.name
    reader.look_again()
    assert reader.refresh().rows[0].given == "", "the index has each run's own name from its start"
    names[str(row.run.root)] = "baseline"
    reader.look_again()
    assert reader.refresh().rows[0].given == "baseline"


def test_each_sort_key(runs: list[RunPaths]) -> None:
    rows = RunsReader(lambda: runs).refresh().rows

    def names(key: SortKey) -> list[str]:
        return [row.run.run_id[14:] for row in ordered(rows, key, NOW)]

    assert names(SortKey.NEWEST) == ["brave-otter", "calm-crane", "able-ant"]
    assert [row.word for row in ordered(rows, SortKey.STATE, NOW)] == ["failed", "no_keeper", "succeeded"]
    durations = [row.duration_s(NOW) or 0.0 for row in ordered(rows, SortKey.DURATION, NOW)]
    assert durations == sorted(durations, reverse=True)
    live = RunRow(runs[0], RunState(name="a"), live=True)
    assert ordered([*rows, live], SortKey.STATE, NOW)[0] is live
    assert ordered([*rows, live], SortKey.NAME, NOW)[0] is live
    assert names(SortKey.NAME) == ["able-ant", "brave-otter", "calm-crane"], (
        "of one script by their own words"
    )
    named = RunRow(runs[0], RunState(name="zebra"), live=False, given="Aardvark")
    assert ordered([*rows, named], SortKey.NAME, NOW)[0] is named, "the name that a person gave it"


def test_a_run_lasts_to_the_end_of_its_newest_attempt_and_else_until_now(runs: list[RunPaths]) -> None:
    row = RunsReader(lambda: runs).refresh().rows[1]
    start_t, last_t, attempt = row.state.started_t, row.state.last_t, row.state.attempt
    assert start_t is not None
    assert last_t is not None
    assert attempt is not None
    assert attempt.ended_t is not None
    assert row.duration_s(NOW) == attempt.ended_t - start_t
    held = RunRow(row.run, row.state, live=True)
    assert held.duration_s(NOW) == attempt.ended_t - start_t, "waiting for a person is no part of it"
    training = replace(row.state, attempts=(replace(attempt, ended_t=None),))
    assert RunRow(row.run, training, live=True).duration_s(NOW) == NOW - start_t
    assert RunRow(row.run, training, live=False).duration_s(NOW) == last_t - start_t
    assert RunRow(row.run, RunState(), live=True).duration_s(NOW) is None


@pytest.mark.parametrize(
    ("failure", "title", "reason"),
    [
        (FailureClass.CODE_ERROR, "ValueError: label 1001 is bad on rank 1", "ValueError: label 1001 is bad"),
        (FailureClass.CODE_ERROR, "KeyError", "KeyError"), (FailureClass.CODE_ERROR, "it broke", "code_error"),
        (FailureClass.CUDA_OOM, "OutOfMemoryError: x", "cuda_oom"), (FailureClass.HOST_OOM, "out of memory", "host_oom"),
        (FailureClass.USAGE_ERROR, "wrong usage: no option --foo", "no option --foo"),
        (FailureClass.USAGE_ERROR, "wrong usage", "usage_error"),
        (FailureClass.WORKER_CRASH, "Rank 0 crashed (SIGSEGV: invalid memory)", "SIGSEGV"),
        (FailureClass.HOST_OOM, "Rank 0 was killed (SIGKILL)", "SIGKILL (host memory?)"),
    ],
)  # fmt: skip
def test_a_reason_fits_a_column(failure: FailureClass, title: str, reason: str) -> None:
    assert short_reason(replace_row(verdict_of(failure), title=title)) == reason
    own = replace_row(verdict_of(failure), title="the disk of ours", signature="ours")
    assert short_reason(own) == "the disk of ours"


@pytest.mark.parametrize(
    ("words", "rate"),
    [
        ("--lr 3e-4", "3e-4"), ("-lr=3e-4", "3e-4"), ("optim.lr=3e-4", "3e-4"), ("--optim.LR 3e-4", "3e-4"),
        ("--learning-rate 1 --learning_rate=2", "2"), ("--lr 1 --lr x --lr nan --lr inf --lr", "1"),
        ("lr 2", ""), ("--lr_decay 2 --lr= x", ""), ("", ""),
    ],
)  # fmt: skip
def test_the_rate_of_a_command_is_the_last_number_that_it_gives(words: str, rate: str) -> None:
    assert newest_rate(RunState(attempts=(ATTEMPT,)), words.split(" ")) == rate
    restarted = RunState(attempts=(replace(ATTEMPT, argv=("x", "--lr", "7")),))
    assert newest_rate(restarted, words.split(" ")) == "7"


def test_a_batch_is_the_global_one_or_of_a_rank() -> None:
    batches = (None, BatchSpec(8, 2, 4), BatchSpec(8, 2, 1, ranks_known=False))
    assert [batch_of(each) for each in batches] == ["", "64", "16 a rank"]


def test_the_newest_note_counts_wherever_it_was_written() -> None:
    note = "note with hf_abcdefghijklmnopqrstuvwxyz0123456789"
    state = replay([ev.NoteAdded(t=5.0, text="first", by="ada"), ev.NoteAdded(t=6.0, text=note, by="ada")])
    assert note_of(state) == note_of(state, (6.0, "listed")) == note_of(state, (5.9, "listed"))
    assert note_of(state).startswith("note with ")
    assert "abcdef" not in note_of(state)
    assert note_of(state, (6.1, "listed")) == note_of(RunState(), (0.0, "listed")) == "listed"
    assert note_of(RunState()) == ""


def test_the_arguments_of_a_run_are_those_that_it_shares_with_others(tmp_path: Path) -> None:
    job = job_of(tmp_path, "train.py", "--lr", "1", "--token", "hf_abcdefghijklmnopqrstuvwxyz0123456789").job
    state = RunState(run_id="brave-otter")
    assert own_arguments(job, state) == ("--lr", "1", "--token", "<redacted>")
    argv = "train.py --lr 2 --out /r/brave-otter/o --fused --log=/r/brave-otter --resume_from c/5"
    launched = replace(state, attempts=(replace(ATTEMPT, argv=("x", *shlex.split(argv))),))
    assert own_arguments(job, launched) == ("--lr", "2", "--fused")
    assert own_arguments(None, launched) is None


@pytest.mark.parametrize(
    ("outcome", "quiet_t", "live", "word"),
    [
        (None, None, True, "live"), (None, 3.0, True, "quiet"), (None, None, False, "no_keeper"),
        (Outcome.STOPPED, None, False, "unwatched"), (Outcome.LOST, None, False, "unknown"),
        (Outcome.FAILED, None, False, "failed"),
    ],
)  # fmt: skip
def test_the_word_of_a_watched_job_is_what_its_log_shows(
    tmp_path: Path, outcome: Outcome | None, quiet_t: float | None, live: bool, word: str
) -> None:
    state = RunState(mode="observed", attempts=(replace(ATTEMPT, quiet_since=quiet_t),))
    if outcome is not None:
        state = replace(state, condition=Finished(outcome=outcome, exit_code=0, reason="x"))
    assert RunRow(RunPaths(tmp_path), state, live=live).word == word


def test_a_filter_finds_what_a_list_shows_and_who_is_alive(runs: list[RunPaths]) -> None:
    rows = [replace_row(row, live=True) for row in RunsReader(lambda: runs).refresh().rows]
    assert filtered(rows, "state=live", NOW) == [rows[1]], "a run that is over is not alive"
    said = {rows[0].run: ("Exit 3",), rows[1].run: (), rows[2].run: ("exit 0",)}
    assert filtered(rows, "state=exit_3", NOW, lambda row: said[row.run]) == [rows[0]]
    assert filtered(rows, "exit_", NOW, lambda row: said[row.run]) == [rows[0], rows[2]]
    host = rows[0].state.host
    assert filtered(rows, f"host={host.upper()} host:{host[1:]} host!=x", NOW) == rows
    assert filtered(rows, f"host!={host}", NOW) == []
    assert filtered(rows, f"total={rows[0].state.planned_steps}", NOW)[:1] == rows[:1]
    longest = max(rows, key=lambda row: row.duration_s(NOW) or 0.0)
    assert filtered(rows, f"duration>={longest.duration_s(NOW)}", NOW) == [longest]
    unknown = RunRow(runs[0], RunState(), live=False)
    assert filtered([unknown], "started=unknown loss!=1", NOW) == [unknown]
    assert filtered([unknown], "loss<1", NOW) == filtered([unknown], "loss=x", NOW) == []


def test_a_long_list_fills_in_slices(tmp_path: Path) -> None:
    runs = [recorded.failed(tmp_path / name) for name in ("c", "b", "a")]
    clock, journal_s = [0.0], [SLICE_S * 0.4]

    def slow() -> float:
        clock[0] += journal_s[0]
        return clock[0]

    reader = RunsReader(lambda: runs, monotonic=slow)
    first = reader.refresh()
    assert not first.complete
    assert 0 < len(first.rows) < len(runs)
    journal_s[0] = 0.0
    assert reader.refresh().complete
    assert [row.run for row in reader.refresh().rows] == runs


def test_the_folder_is_listed_again_after_a_while_or_when_asked(runs: list[RunPaths]) -> None:
    clock, known = [0.0], runs[:1]
    reader = RunsReader(lambda: list(known), monotonic=lambda: clock[0])
    assert len(reader.refresh().rows) == 1
    known.append(runs[1])
    clock[0] = LOOK_S - 0.1
    assert len(reader.refresh().rows) == 1
    clock[0] = LOOK_S
    assert len(reader.refresh().rows) == 2
    known.append(runs[2])
    reader.look_again()
    assert len(reader.refresh().rows) == 3


def test_a_scope_lists_one_folder_and_counts_the_others(tmp_path: Path) -> None:
    here, there = recorded.failed(tmp_path / "here" / "a"), recorded.held(tmp_path / "there" / "b")
    scope = Scope(tmp_path / "here")
    reader = RunsReader(lambda: [here, there], scope)
    found = reader.refresh()
    assert ([row.run for row in found.rows], found.elsewhere) == ([here], 1)
    scope.everywhere = True
    reader.look_again()
    found = reader.refresh()
    assert ([row.run for row in found.rows], found.elsewhere) == ([here, there], 1)
