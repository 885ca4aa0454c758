"""`stoker metrics` as a person runs it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from supervisor.cli.main import main
from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import write_run_file
from tests.cli.test_runs import journal
from tests.keeper.fakes import job_of


def run_verb(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command: in this process, or where it reads stdin as a person runs it."""
    if "-" in args:
        words = [sys.executable, "-m", "supervisor", "metrics", *args]
        return subprocess.run(words, input=stdin, capture_output=True, timeout=60, check=False)
    streams = [io.TextIOWrapper(io.BytesIO()) for _ in range(2)]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        code = main(["metrics", *args])
    out, err = (stream.buffer.getvalue() for stream in streams)
    return subprocess.CompletedProcess(args, code, out, err)


def test_the_verb_prints_one_object_a_metric_line(tmp_path: Path) -> None:
    log = tmp_path / "rank3.log"
    log.write_bytes(b"hello\nstep 5/10 loss nan max mem 2048MB\n\x1b[31mstep 6/10 loss 2.5\x1b[0m acc 0.5")
    done = run_verb(str(log), "--json")
    assert done.returncode == 0
    first, second = [json.loads(line) for line in done.stdout.splitlines()]
    assert first == {"line": 1, "rank": 3, "step": 5, "total_steps": 10, "loss": "NaN", "memory_gib": 2.0}
    assert second == {"line": 2, "rank": 3, "step": 6, "total_steps": 10, "loss": 2.5, "other": {"acc": 0.5}}
    assert run_verb("-", "--json", stdin=log.read_bytes()).stdout.count(b'"loss"') == 2


def test_each_drawn_state_of_a_bar_is_a_point_and_belongs_to_its_line(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    bars = [
        f"\rEpoch {epoch}:   0%|  | 0/10 [00:00<?, ?it/s, train_loss=9.0]"
        + "".join(
            f"\rEpoch {epoch}: {n}0%|██| {n}/10 [00:01<00:02, 9.50it/s, train_loss={epoch}.{n}]"
            for n in range(1, 10)
        )
        for epoch in (0, 1)
    ]
    # A bar without a loss, drawn a thousand times, is one line; the losses of a megabyte-long line are all there.
    download = "".join(f"\r{n}/1000 [00:01<00:02, 9.50it/s]" for n in range(1, 1001))
    log.write_text(
        "\n".join(["step 1 loss 7.0", *bars, download, "step 2 loss 6.0"]) + "\n", encoding="utf-8"
    )
    rows = [json.loads(line) for line in run_verb(str(log), "--json").stdout.splitlines()]
    expected = [
        (0, 7.0),
        *((line, float(f"{line - 1}.{n}")) for line in (1, 2) for n in range(1, 10)),
        (4, 6.0),
    ]
    assert [(row["line"], row["loss"]) for row in rows if "loss" in row] == expected
    assert len([row for row in rows if row["line"] == 3]) <= 1
    long = "".join(f"\r{n}/90000 [00:01<00:02, 9.50it/s, loss={n}.5]" for n in range(1, 90_001))
    assert run_verb("-", stdin=f"{long}\n".encode()).stdout.count(b"\n") == 90_000


def test_of_two_states_of_one_step_or_one_loss_the_later_one_is_right(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    bar = "\r{}/9 [00:01<00:02, 9.50it/s, loss={}.5]"
    # update, then set_postfix; and `for batch in bar`, where set_postfix comes first.
    by_hand = [(1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3)]
    iterated = [(1, 1), (1, 2), (2, 2), (2, 3), (3, 3)]
    for states in (by_hand, iterated):
        log.write_text("".join(bar.format(*state) for state in states) + "\n", encoding="utf-8")
        rows = [json.loads(line) for line in run_verb(str(log), "--json").stdout.splitlines()]
        assert [(row["step"], row["loss"]) for row in rows] == [(1, 1.5), (2, 2.5), (3, 3.5)], states


def test_the_verb_reads_folders_and_runs(tmp_path: Path) -> None:
    # torchrun's tree: one folder a rank.
    for rank in (0, 1):
        folder = tmp_path / "logs" / "job_x1y2" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(f"step 5 loss {rank}.5\n")
        (folder / "stderr.log").write_text("nothing\n")
    done = run_verb(str(tmp_path / "logs"), "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(f["file"].split("/")[-2:], f["rank"], f["loss"]) for f in found] == [
        (["0", "stdout.log"], 0, 0.5),
        (["1", "stdout.log"], 1, 1.5),
    ]
    # A run directory: the last attempt's logs, of all nodes.
    for attempt in (1, 2):
        folder = tmp_path / "runs" / "a-run" / "nodes" / "0" / "attempts" / str(attempt)
        folder.mkdir(parents=True)
        (folder / "agent.log").write_text(f"step {attempt} loss 2.5\n")
    (found_of_run,) = map(
        json.loads, run_verb(str(tmp_path / "runs" / "a-run"), "--json").stdout.splitlines()
    )
    assert found_of_run["step"] == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="this user reads everything")
def test_a_log_that_may_not_be_read_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("step 1 loss 2.5\n")
    path.chmod(0)
    done = run_verb(str(path))
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, b"", 1)
    assert path.name.encode() in done.stderr


def test_odd_numbers_and_names(tmp_path: Path) -> None:
    # Several shapes, NaN, a value that is none (0 steps a second), and other names alone.
    text = (
        "step 5/10 loss nan lr 1.5e-05\nstep 6/10 loss 2.5 acc 0.5\nacc 0.75\n"
        "step 7 loss 1,234.5 0.0 it/s\nstep 8 loss -inf mem 12345MB\nval_loss: 0.5\n"
    )
    (tmp_path / "a.log").write_text(text * 40)
    (tmp_path / "c.log").write_text(text)
    records = [json.loads(line) for line in run_verb(str(tmp_path), "--json").stdout.splitlines()]
    assert len(records) == 6 * 41
    assert {name for record in records for name in record.get("other", {})} == {"acc"}
    assert records[0] == {
        "file": "a.log",
        "line": 0,
        "rank": None,
        "step": 5,
        "total_steps": 10,
        "loss": "NaN",
        "lr": 1.5e-05,
    }
    assert records[4]["loss"] == "-Infinity"
    assert records[4]["memory_gib"] == 12.0556641


def test_a_pipe_is_answered_as_it_grows() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "supervisor", "metrics", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as verb:
        assert verb.stdin is not None
        assert verb.stdout is not None
        verb.stdin.write(b"step 5 loss 2.5\n")
        verb.stdin.flush()
        assert json.loads(verb.stdout.readline())["step"] == 5
        verb.stdin.close()
        assert verb.wait(60) == 0


def test_the_older_part_of_what_a_run_measured_is_read_too(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run")
    journal(run.root, ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason="first launch"))
    write_run_file(run.run_json, job_of(tmp_path))
    folder = run.node().attempt(1).telemetry
    folder.mkdir(parents=True)
    (folder.parent / "agent.log").write_text("it begins\n")
    for name, step in (("measured0.jsonl.1", 1), ("measured0.jsonl", 2), ("measured1.jsonl", 1)):
        record = {"v": 1, "kind": "step", "rank": int(name[8]), "step": step, "steps": 1, "step_time_s": 0.5}
        (folder / name).write_text(json.dumps(record) + "\n")
    done = run_verb(str(run.root), "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["file"].rpartition("/")[2], row["optimizer_step"]) for row in rows] == [
        ("measured0.jsonl.1", 1),
        ("measured0.jsonl", 2),
        ("measured1.jsonl", 1),
    ], done.stderr
