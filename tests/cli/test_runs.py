"""The list of runs on a terminal and in a pipe; flags without a verb; what is said after the screen was left."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from supervisor.cli.runs import COLUMNS, facts_of, full_lines, table_of, texts_of
from supervisor.run import events as ev
from supervisor.run.index import register
from supervisor.run.journal import JournalWriter
from supervisor.run.ownership import KeeperLock
from supervisor.run.paths import RunPaths
from supervisor.run.records import FailureClass
from supervisor.run.runfile import write_run_file
from supervisor.views.model.run_list import RunRow, RunsReader
from tests.cli.conftest import Call
from tests.keeper.fakes import job_of, verdict_of
from tests.views.tui import recorded

OUT_OF_MEMORY = verdict_of(FailureClass.CUDA_OOM)
OTTER = dict.fromkeys([*COLUMNS, "reason"], "") | {
    "run": "20261121-1412-brave-otter",
    "state": "live",
    "attempt": "attempt 2",
    "step": "step 1840/6000",
    "verdict": "cuda_oom",
    "folder": "/data/runs/20261121-1412-brave-otter",
}
ANT = OTTER | {
    "run": "20261120-0900-able-ant",
    "state": "succeeded",
    "attempt": "attempt 12",
    "step": "step 900/1000",
    "verdict": "-",
    "folder": "/data/runs/20261120-0900-able-ant",
}
FULL = OTTER | {
    "state": "failed",
    "verdict": "code_error",
    "reason": "ValueError: label 1001 out of range [0, 1000)",
    "name": "wide-batch",
    "note": "wider batch",
    "batch": "64",
    "rate": "3e-4",
    "command": "train.py --lr 3e-4 --epochs 3 --data corpus",
    "ended": "2026-11-20 14:31",
}


def row_of(run: RunPaths, noted: tuple[float, str] = (0.0, "")) -> RunRow:
    """The run as lists have it; `noted`: its note in the index."""
    (row,) = RunsReader(lambda: [run], notes=lambda: {str(run.root): noted}).refresh().rows
    return row


def test_a_pipe_gets_all_and_no_word_of_it_moves() -> None:
    plain, full = full_lines([OTTER, FULL])
    assert plain.endswith(OTTER["folder"])
    assert full.endswith(f"{FULL['folder']}  wide-batch  note: wider batch")
    assert plain.split()[:2] == [OTTER["run"], "live"]
    assert full.split()[2:7] == ["attempt", "2", "step", "1840/6000", "code_error"]


def test_a_terminal_gets_what_fits_in_columns() -> None:
    long = OTTER | {"name": "n" * 300}
    for width in range(20, 260):
        head, *lines = table_of([FULL, ANT, long], width)
        assert all(len(line) <= width for line in (head, *lines))
        assert {line.index(word) for line, word in zip(lines, ("fail", "succ", "live"), strict=True)} == {
            head.index("STATE")
        }
    head, first, _ = table_of([FULL, ANT], 250)
    shown = {
        "ENDED": "2026-11-20 14:31",
        "VERDICT": FULL["reason"],
        "NAME": "wide-batch",
        "NOTE": "wider batch",
    }
    shown |= {"BATCH": "64", "LR": "3e-4", "FOLDER": FULL["folder"], "COMMAND": "train.py --lr"}
    for name, text in shown.items():
        assert head.index(f" {name}") + 1 == first.index(text), name
    assert not set(table_of([OTTER], 200)[0].split()) & {
        "NAME",
        "NOTE",
        "BATCH",
        "LR",
        "ENDED",
        "COMMAND",
    }


@pytest.mark.parametrize(("width", "words"), [
    (150, ("wide-batch", "2026-11-20 14:31", "1840/6000", "ValueError: label 1001 out of")),
    (100, ("brave-otter", "2026-11-20 14:31", "1840/6000", "ValueError: label 1001")),
    (80, ("brave-otter", "2026-11-20 14:31", "1840/6000", "ValueError: label 1…")),
    (45, ("brave-otter", "failed", "ValueError: label 1…")),
])  # fmt: skip
def test_a_narrow_terminal_keeps_the_run_its_state_and_why_it_failed(
    width: int, words: tuple[str, ...]
) -> None:
    line = table_of([FULL, ANT], width)[1]
    assert not [word for word in words if word not in line], line


def test_a_failure_and_a_note_stay_in_the_list_after_a_stop(tmp_path: Path) -> None:
    run = journal(
        tmp_path / "stopped",
        ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason="first launch"),
        ev.Diagnosed(t=2.0, attempt=1, verdict=OUT_OF_MEMORY),
        ev.NoteAdded(t=2.5, text="wider\x1b]0;x\x07 batch", by="user"),
        ev.LaunchIntended(t=3.0, attempt=2, argv=(), reason="again"),
        ev.StopIntended(t=4.0, attempt=2, why=ev.StopWhy.REQUEST, by="user", grace_s=5.0),
        ev.RunEnded(t=5.0, outcome=ev.Outcome.STOPPED, exit_code=0, reason="stopped"),
    )
    listed = texts_of(row_of(run))
    assert (listed["state"], listed["verdict"], listed["name"]) == ("stopped", "cuda_oom→-", "")
    assert listed["note"] == r"wider\x1b]0;x\x07 batch"
    assert texts_of(row_of(run, (2.0, "earlier")))["note"] == r"wider\x1b]0;x\x07 batch", "the newest one"
    assert (
        texts_of(row_of(run, (9.0, "later")))["note"]
        == facts_of(row_of(run, (9.0, "later")))["note"]
        == "later"
    )


def journal(root: Path, *facts: ev.Event) -> RunPaths:
    run = RunPaths(root)
    run.node().root.mkdir(parents=True)
    writer = JournalWriter(run.node().journal)
    for fact in (ev.RunStarted(t=1.0, run_id=root.name, name="x", mode="launched", host="box"), *facts):
        writer.append(fact)
    writer.close()
    return run


def test_a_held_run_is_held_and_an_attempt_has_its_own_verdict(tmp_path: Path) -> None:
    first = ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason="first launch")
    failed = ev.Diagnosed(t=2.0, attempt=1, verdict=OUT_OF_MEMORY)
    held = journal(tmp_path / "held", first, failed, ev.Held(t=3.0, attempt=1, reason="ask"))
    again = ev.LaunchIntended(t=3.0, attempt=2, argv=(), reason="again")
    runs = journal(tmp_path / "runs", first, failed, again)
    locks = [KeeperLock(run.node().lock, start_time=1.0) for run in (held, runs)]
    try:
        waiting = texts_of(row_of(held))
        assert waiting["state"] == "failed, waiting"
        assert waiting["verdict"] == "cuda_oom"
        assert (texts_of(row_of(runs))["state"], texts_of(row_of(runs))["verdict"]) == ("live", "cuda_oom→-")
    finally:
        for lock in locks:
            lock.release()
    assert texts_of(row_of(held))["state"] == "no keeper"
    stopped = ev.RunEnded(t=4.0, outcome=ev.Outcome.STOPPED, exit_code=5, reason="stopped by ada")
    assert (
        texts_of(row_of(journal(tmp_path / "stopped", first, failed, stopped)))["state"] == "failed, stopped"
    )


def test_a_watched_log_that_nobody_writes_is_not_live(tmp_path: Path) -> None:
    watched = ev.RunStarted(t=1.5, run_id="log", name="dead.log", mode="observed", host="box")
    first = ev.LaunchIntended(t=2.0, attempt=1, argv=(), reason="watched")
    run = journal(tmp_path / "log", watched, first, ev.LogQuiet(t=3.0, attempt=1, since_t=1.0))
    lock = KeeperLock(run.node().lock, start_time=1.0)
    try:
        assert texts_of(row_of(run))["state"] == "quiet"
    finally:
        lock.release()


def test_one_object_a_run(tmp_path: Path, call: Call) -> None:
    first = ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason="first launch")
    lost = ev.LossNotFinite(t=4.0, attempt=1, value="nan", step=7, rank=0, last=2.0)
    again = ev.LossFinite(t=6.0, attempt=1, loss=2.5, step=9)
    journal(tmp_path / "runs" / "20261121-1412-brave-otter", first, lost, again)
    (line,) = call("runs --json --runs-dir", tmp_path / "runs").out.splitlines()
    found = json.loads(line)
    assert found["run"] == "20261121-1412-brave-otter"
    assert (found["state"], found["attempts"], found["verdict"]) == ("no keeper", 1, None)
    assert (found["script"], found["recovered_from"], found["started"]) == (None, [], 1.0)
    assert found["folder"] == str(tmp_path / "runs" / "20261121-1412-brave-otter")
    expected = {"value": "nan", "step": 7, "rank": 0, "since": 4.0, "until_step": 9, "until": 6.0}
    assert found["loss_not_finite"] == expected


def test_the_list_has_the_command_to_paste_of_a_run_that_lacked_a_declaration(
    tmp_path: Path, call: Call
) -> None:
    facts = (
        ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason="first launch"),
        ev.AttemptEnded(t=2.0, attempt=1, exit_code=1),
        ev.Diagnosed(t=3.0, attempt=1, verdict=OUT_OF_MEMORY),
        ev.RunEnded(t=4.0, outcome=ev.Outcome.FAILED, exit_code=1, reason="out of memory"),
    )
    token = "hf_" + "abcdEFGH" * 4
    for name, told in (("20261121-1412-brave-otter", facts), ("20261122-1412-able-ant", facts[:1])):
        run = journal(tmp_path / "runs" / name, *told)
        write_run_file(run.run_json, job_of(tmp_path, "python", "train.py", "--token", token))
    missing = "--batch-knob NAME --accumulation-knob NAME --resume-knob FLAG=PATH"
    command = f"stoker run {missing} -- python train.py --token "
    said = call("runs --runs-dir", tmp_path / "runs")
    assert command not in said.out, "a line a run in a pipe"
    assert command in said.err
    assert "brave-otter" in said.err
    listed = call("runs --json --runs-dir", tmp_path / "runs").out
    again = {found["run"]: found["start_again"] for found in map(json.loads, listed.splitlines())}
    assert again["20261122-1412-able-ant"] is None
    assert again["20261121-1412-brave-otter"].startswith(command)
    assert token not in said.err + listed


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--theme mauve", "choose dark, light, safe"),
        ("--theme=light --ascii", "needs a terminal: `stoker runs` prints it"),
        ("--theme light --colour", "unknown argument '--colour'"),
    ],
)
def test_looks_may_be_asked_for_without_a_verb(line: str, said: str, call: Call) -> None:
    code, _, err = call(line)
    assert (code, said in err) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        "attach --no-ui",
        "stop",
        "continue",
        "replay",
        "export --gpu-csv",
        "export --chart",
        "policy explain",
        "profile",
        "runs --scaling",
    ],
)
def test_a_folder_that_is_given_is_the_only_one_that_is_looked_into(
    words: str, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = recorded.failed(tmp_path / "runs" / "20261121-1412-brave-otter")
    register(run, "lr3", os.environ)
    monkeypatch.chdir(tmp_path)
    code, _, err = call(f"{words} {run.run_id} --runs-dir other")
    assert (code, "no run named" in err) == (2, True)
