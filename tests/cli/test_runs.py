"""The list of runs on a terminal and in a pipe; flags without a verb; what is said after the screen was left."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from supervisor.cli.runs import COLUMNS, facts_of, full_lines, table_of, texts_of
from supervisor.job.batch import BatchSpec
from supervisor.run import events as ev
from supervisor.run.index import register
from supervisor.run.journal import JournalWriter
from supervisor.run.ownership import KeeperLock
from supervisor.run.paths import RunPaths
from supervisor.run.records import FailureClass
from supervisor.run.runfile import write_run_file
from supervisor.views.model.run_list import RunRow, RunsReader
from tests.cli.conftest import Answer, Call
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
    run = "20261121-1412-brave-otter          "
    where = "/data/runs/20261121-1412-brave-otter"
    assert full_lines([OTTER, FULL]) == [
        f"{run}live       attempt 2   step 1840/6000    cuda_oom             {where}",
        f"{run}failed     attempt 2   step 1840/6000    code_error           {where}  wide-batch  note: wider batch",
    ]


def test_a_terminal_gets_what_fits_in_columns() -> None:
    long = OTTER | {"name": "n" * 300}
    for width in range(20, 260):
        head, *lines = table_of([FULL, ANT, long], width)
        assert all(len(line) <= width for line in (head, *lines))
        assert {line.index(word) for line, word in zip(lines, ("fail", "succ", "live"), strict=True)} == {
            head.index("STATE")
        }
    assert table_of([], 80) == []


WIDE = """\
RUN                       STATE     ENDED            ATTEMPT    STEP           VERDICT                                       NAME       NOTE        BATCH LR   FOLDER                               COMMAND
20261121-1412-brave-otter failed    2026-11-20 14:31 attempt 2  step 1840/6000 ValueError: label 1001 out of range [0, 1000) wide-batch wider batch 64    3e-4 /data/runs/20261121-1412-brave-otter train.py --lr 3e-4 --epochs 3 --data corpus
20261120-0900-able-ant    succeeded                  attempt 12 step 900/1000  -                                                                               /data/runs/20261120-0900-able-ant
"""


@pytest.mark.parametrize(("width", "table"), [
    (250, WIDE),
    (150, """\
RUN                       STATE     ENDED            ATTEMPT    STEP           VERDICT                               NAME       NOTE        BATCH LR
20261121-1412-brave-otter failed    2026-11-20 14:31 attempt 2  step 1840/6000 ValueError: label 1001 out of range … wide-batch wider batch 64    3e-4
20261120-0900-able-ant    succeeded                  attempt 12 step 900/1000  -
"""),
    (86, """\
RUN         STATE     ENDED            STEP           VERDICT               NAME
brave-otter failed    2026-11-20 14:31 step 1840/6000 ValueError: label 10… wide-batch
able-ant    succeeded                  step 900/1000  -
"""),
    (69, """\
RUN         STATE     ENDED            STEP      VERDICT
brave-otter failed    2026-11-20 14:31 step 1840 ValueError: label 1…
able-ant    succeeded                  step 900  -
"""),
    (52, """\
RUN         STATE     STEP      VERDICT
brave-otter failed    step 1840 ValueError: label 1…
able-ant    succeeded step 900  -
"""),
])  # fmt: skip
def test_a_narrow_terminal_keeps_the_run_its_state_and_why_it_failed(width: int, table: str) -> None:
    assert table_of([FULL, ANT], width) == table.splitlines()


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
    first = ev.LaunchIntended(
        t=1.0,
        attempt=1,
        argv=(),
        reason="first launch",
        batch=BatchSpec(micro_batch_per_rank=8, accumulation_steps=2, world_size=2),
    )
    slow = ev.Progress(
        t=3.0, attempt=1, step=7, total_steps=90, loss=2.0, samples_per_sec=5.0, step_time_s=0.5
    )
    lost = ev.LossNotFinite(t=4.0, attempt=1, value="nan", step=7, rank=0, last=2.0)
    again = ev.LossFinite(t=6.0, attempt=1, loss=2.5, step=9)
    failed = ev.Diagnosed(t=7.0, attempt=1, verdict=OUT_OF_MEMORY)
    over = ev.RunEnded(t=8.0, outcome=ev.Outcome.GAVE_UP, exit_code=4, reason="too often")
    root = tmp_path / "runs" / "20261121-1412-brave-otter"
    run = journal(root, first, slow, lost, again, failed, over)
    write_run_file(run.run_json, job_of(tmp_path, "python", "train.py", "--lr", "3e-4"))
    register(run, "otto", os.environ)
    (line,) = call("runs --json --runs-dir", tmp_path / "runs").out.splitlines()
    assert json.loads(line) == {
        "run": "20261121-1412-brave-otter", "name": "otto", "note": None, "state": "gave_up", "script": "python",
        "arguments": ["train.py", "--lr", "3e-4"], "attempts": 1, "step": 7, "total_steps": 90, "verdict": "cuda_oom",
        "reason": "it broke", "recovered_from": [], "micro_batch": 8, "accumulation": 2,
        "global_batch": 32, "measured": None, "samples_per_sec": 5.0, "tokens_per_sec": None, "step_time_s": 0.5,
        "data_wait_s": None, "memory_peak_bytes": None, "learning_rate": "3e-4", "best_loss": 2.0,
        "loss_not_finite": {"value": "nan", "step": 7, "rank": 0, "since": 4.0, "until_step": 9, "until": 6.0},
        "start_again": "stoker run --batch-knob NAME --accumulation-knob NAME --resume-knob FLAG=PATH -- python train.py --lr 3e-4",
        "elapsed_s": 7.0, "started": 1.0, "ended": 8.0, "folder": str(root),
    }  # fmt: skip


def test_which_runs_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    monkeypatch.chdir(tmp_path)
    here = [journal(tmp_path / "runs" / f"20261121-141{minute}-brave-otter") for minute in range(3)]
    there = journal(tmp_path / "x" / "20261122-1412-able-ant")
    for run in (*here, there):
        register(run, "", os.environ)

    def listed(line: str) -> tuple[list[str], str]:
        code, out, err = call(line)
        assert code == 0
        return [word.split()[0] for word in out.splitlines()], err

    ids = [run.run_id for run in reversed(here)]
    elsewhere = "1 in other folders: `stoker runs --all`\n"
    assert listed("runs") == (ids, elsewhere)
    assert listed("runs -n 2") == (ids[:2], elsewhere)
    assert listed("runs -n -1") == ([], elsewhere)
    assert listed("runs --all") == ([there.run_id, *ids], "")
    assert listed("runs --runs-dir runs") == (ids, "")
    assert listed("runs --runs-dir none") == (
        [],
        f"no run under {tmp_path}/none: start one with `stoker run`\n",
    )
    Path("file").touch()
    assert call("runs --runs-dir file") == Answer(2, "", f"stoker runs: {tmp_path}/file: not a folder\n")
    csv = "--csv prints the table of --scaling RUN...: --json prints the list"
    assert call("runs --csv") == Answer(2, "", f"stoker runs: {csv}\n")


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
