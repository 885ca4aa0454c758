"""What is kept of runs beside them: lists say the same with it as without, and it never wins over a run's own files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisor.cli.runs import facts_of, texts_of
from supervisor.keeper.base.ledger import Ledger
from supervisor.run import events as ev
from supervisor.run.journal import JournalWriter, read_state
from supervisor.run.ownership import KeeperLock
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import write_run_file
from supervisor.run.summaries import FEW_LINES, INDEX
from supervisor.views.model import run_list
from supervisor.views.model.run_list import READ_S, RunRow, RunsReader, SortKey, filtered, ordered, rows_of
from tests.keeper.fakes import job_of
from tests.views.tui import recorded

NOW = recorded.T0 + 9000
SECRET = "hf_abcdefghijklmnopqrstuvwxyz0123456789"
RECORDED: tuple[Callable[[Path], RunPaths], ...] = (
    recorded.succeeded,
    recorded.held,
    recorded.healthy,
    lambda root: recorded.observed(root, root.with_suffix(".log"), is_quiet=True),
)


def shown(row: RunRow) -> tuple[Any, ...]:
    """All that lists show of a run, sort it by and filter it by."""
    sorted_by = [ordered([row], key, NOW) for key in SortKey]
    found = [
        bool(filtered([row], query, NOW))
        for query in ("loss<2.9", "state:failed", "attempts>1", "lr", "today")
    ]
    return (
        texts_of(row),
        facts_of(row) | {"elapsed_s": 0},
        row.word,
        row.duration_s(NOW),
        len(sorted_by),
        found,
    )


def unread(_path: Path) -> Any:
    raise AssertionError("a journal was read")


def run_in(folder: Path, name: str, *, over: bool = True) -> RunPaths:
    """A short run, with a run.json whose arguments hold a secret."""
    run = RunPaths(folder / name)
    run.node().root.mkdir(parents=True)
    write_run_file(run.run_json, job_of(folder, "train.py", "--lr", "3e-4", "--hf-token", SECRET))
    journal = JournalWriter(run.node().journal)
    journal.append(ev.RunStarted(t=1.0, run_id=name, name="train", mode="launched", host="h"))
    journal.append(ev.LaunchIntended(t=2.0, attempt=1, reason="first start", argv=("x", "--lr", "3e-4")))
    journal.append(ev.Progress(t=3.0, attempt=1, step=7, loss=2.5))
    if over:
        journal.append(ev.RunEnded(t=4.0, outcome=ev.Outcome.FAILED, exit_code=1, reason="no"))
    journal.close()
    return run


def steps(*runs: RunPaths) -> list[int | None]:
    return [row.step for row in rows_of(list(runs), {})]


@pytest.mark.parametrize("make", RECORDED)
def test_a_list_says_the_same_of_a_run_that_it_does_not_read_again(
    make: Callable[[Path], RunPaths], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path / "20261121-1412-brave-otter")
    (first,) = rows_of([run], {})
    whole = RunRow(**{**vars_of(first), "state": read_state(run.node().journal)})
    assert shown(first) == shown(whole), "what is left out of the state is shown nowhere"
    monkeypatch.setattr(run_list, "StateReader", unread)
    (again,) = rows_of([run], {})
    assert shown(again) == shown(whole)
    assert (tmp_path / INDEX).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / INDEX).stat().st_size < 8192


def vars_of(row: RunRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in RunRow.__dataclass_fields__}


def test_a_journal_that_changed_is_read_whatever_is_kept_of_it(tmp_path: Path) -> None:
    runs = [run_in(tmp_path, f"20261121-1412-{name}") for name in ("longer", "same-size", "replaced", "gone")]
    assert steps(*runs) == [7, 7, 7, 7]
    longer, same, replaced, gone = (run.node().journal for run in runs)
    more = msgspec.json.encode(ev.Progress(t=5.0, attempt=1, step=8))
    longer.write_bytes(longer.read_bytes() + more + b"\n")
    same.write_bytes(same.read_bytes().replace(b'"step":7', b'"step":9'))
    times = replaced.stat()
    other = replaced.with_name("other")
    other.write_bytes(replaced.read_bytes().replace(b'"step":7', b'"step":6'))
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(replaced)
    gone.unlink()
    assert steps(*runs) == [8, 9, 6]
    assert steps(*runs) == [8, 9, 6]


@pytest.mark.parametrize(
    "spoil", ["torn", "noise", "another version", "a pipe", "a link", "read-only", "of another user"]
)
def test_what_is_kept_may_be_spoilt_in_any_way(
    spoil: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    one, two = run_in(runs, "20261121-1412-one"), run_in(runs, "20261121-1412-two")
    index, elsewhere = runs / INDEX, tmp_path / "elsewhere"
    assert steps(one) == [7]
    elsewhere.write_text("mine\n")
    kept = index.read_bytes()
    match spoil:
        case "torn":
            index.write_bytes(kept.rstrip()[:-20])
        case "noise":
            index.write_bytes(b"\0\xff{}\n[[[[\n" * 50 + kept)
        case "another version":
            index.write_bytes(
                kept.replace(b'"step":7', b'"step":1').replace(b'"format":"1 ', b'"format":"0 ')
            )
        case "a pipe":
            index.unlink()
            os.mkfifo(index)
        case "a link":
            index.unlink()
            index.symlink_to(elsewhere)
        case "read-only":
            index.unlink()
            index.mkdir()
        case "of another user":
            index.write_bytes(
                kept.replace(b'"step":7', b'"step":1').replace(b'"last_step":7', b'"last_step":1')
            )
            monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert steps(one, two) == [7, 7]
    assert steps(one, two) == [7, 7]
    assert elsewhere.read_text() == "mine\n", "nothing is written through a link"


def test_keepers_that_end_together_keep_all_of_their_runs_and_a_reader_sees_whole_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, each = 4, 6
    runs = [run_in(tmp_path, f"20261121-1412-r{number}") for number in range(count * each)]
    ends = (
        "import sys\nfrom pathlib import Path\nfrom supervisor.keeper.base.ledger import Ledger\n"
        "from supervisor.run.paths import RunPaths\nsys.stdin.read(1)\n"
        "for name in sys.argv[1:]:\n    Ledger(RunPaths(Path(name)).node()).close()\n"
    )
    keepers = [
        subprocess.Popen(
            [sys.executable, "-c", ends, *(str(run.root) for run in runs[at::count])], stdin=subprocess.PIPE
        )
        for at in range(count)
    ]
    for keeper in keepers:
        assert keeper.stdin is not None
        keeper.stdin.write(b"x")
        keeper.stdin.close()
    while any(keeper.poll() is None for keeper in keepers):
        assert set(steps(*runs[:3])) == {7}
    assert [keeper.wait() for keeper in keepers] == [0] * count
    monkeypatch.setattr(run_list, "StateReader", unread)
    assert steps(*runs) == [7] * len(runs)


def test_a_keeper_keeps_its_run_when_it_ends_and_never_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, going = (
        run_in(tmp_path, "20261121-1412-one", over=False),
        run_in(tmp_path, "20261121-1413-two", over=False),
    )
    ledger = Ledger(run.node())
    ledger.emit(ev.RunEnded(t=9.0, outcome=ev.Outcome.STOPPED, exit_code=5, reason="stopped"))
    ledger.close()
    Ledger(going.node()).close()
    kept = (tmp_path / INDEX).read_text()
    assert kept.count('"run_id":"20261121-1412-one","mark"') == 1
    assert "20261121-1413-two" not in kept, "its keeper left it, it is not over"
    assert SECRET not in kept
    monkeypatch.setattr(run_list, "StateReader", unread)
    (row,) = rows_of([run], {})
    assert (row.word, row.command) == ("stopped", ("train.py", "--lr", "3e-4", "--hf-token", "<redacted>"))


def test_of_runs_that_are_over_nothing_is_read_again_and_of_a_live_one_what_was_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = [run_in(tmp_path, f"20261121-1412-r{number}") for number in range(3)]
    live = run_in(tmp_path, "20261121-1500-live", over=False)
    clock = [0.0]
    reader = RunsReader(lambda: [live, *over], monotonic=lambda: clock[0])
    with held(live):
        first = reader.refresh()
        monkeypatch.setattr(run_list, "StateReader", unread)
        clock[0] = READ_S
        assert reader.refresh() is first
        with live.node().journal.open("ab") as journal:
            journal.write(msgspec.json.encode(ev.Progress(t=5.0, attempt=1, step=8)) + b"\n")
        clock[0] = 2 * READ_S
        second = reader.refresh()
        assert second.rows[0].step == 8
        assert all(a is b for a, b in zip(first.rows[1:], second.rows[1:], strict=True))
    clock[0] = 100.0
    reader.refresh()
    assert reader.refresh().rows[0].word == "no_keeper"


@contextmanager
def held(run: RunPaths) -> Iterator[None]:
    """A keeper holds the run's lock."""
    lock = KeeperLock(run.node().lock, start_time=1.0)
    try:
        yield
    finally:
        lock.release()


def test_what_is_kept_of_runs_that_are_gone_goes_too(tmp_path: Path) -> None:
    run = run_in(tmp_path, "20261121-1412-one")
    assert steps(run) == [7]
    line = (tmp_path / INDEX).read_bytes()
    with (tmp_path / INDEX).open("ab") as file:
        for number in range(FEW_LINES + 10):
            file.write(line.replace(b"20261121-1412-one", b"20261121-1412-%03d" % number))
    assert steps(run) == [7]
    assert (tmp_path / INDEX).read_bytes() == line
