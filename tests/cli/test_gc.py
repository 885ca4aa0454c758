"""Deleting old runs: what goes and why, what never goes, and that nothing outside of the folder of runs is touched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from supervisor.cli.gc import limits_of
from supervisor.cli.main import main
from supervisor.job.errors import JobError
from supervisor.run import events as ev
from supervisor.run.index import known_runs
from supervisor.run.journal import JournalWriter
from supervisor.run.ownership import KeeperLock
from supervisor.run.paths import THROWN, RunPaths
from supervisor.run.runfile import write_run_file
from supervisor.run.trash import KEPT_S, TRASH, bring_back, empty
from tests.disks import small_disk
from tests.keeper.fakes import job_of

DAY_S = 86_400.0
NOW = time.time()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of runs, with no settings of anybody's around it."""
    tmp_path.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("STOKER_RUNS_DIR", raising=False)
    folder = tmp_path / "runs"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def gc(place: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Calls the verb; returns its exit code and what it printed."""

    def call(*words: str) -> tuple[int, str]:
        code = main(["gc", "--runs-dir", str(place), *words])
        said = capsys.readouterr()
        return code, said.out + said.err

    return call


def run_in(
    place: Path,
    name: str,
    *,
    days: float,
    resume: str | None = None,
    argv: tuple[str, ...] = ("train.py",),
    over: bool = True,
    size: int = 0,
) -> RunPaths:
    """A run that ended so many days ago. `resume`: what its attempt resumed from; `size`: bytes of its log."""
    t = NOW - days * DAY_S
    run = RunPaths(place / f"{time.strftime('%Y%m%d-%H%M', time.localtime(t))}-{name}")
    run.node().root.mkdir(parents=True, mode=0o700)
    run.root.chmod(0o700)
    record = job_of(place.parent, *argv)
    write_run_file(
        run.run_json, replace(record, run_id=run.run_id, path=str(run.root.resolve()), uid=os.geteuid())
    )
    os.utime(run.run_json, (t, t))
    journal = JournalWriter(run.node().journal)
    journal.append(ev.RunStarted(t=t - 9, run_id=run.run_id, name=name, mode="launched", host="h"))
    journal.append(ev.LaunchIntended(t=t - 8, attempt=1, reason="first start", argv=argv, resume=resume))
    if over:
        journal.append(ev.RunEnded(t=t, outcome=ev.Outcome.SUCCEEDED, exit_code=0, reason="done"))
    journal.close()
    run.node().log.write_bytes(b"keeper\n" * (size // 7))
    return run


def names(place: Path) -> set[str]:
    return {path.name.rpartition("-")[2] for path in place.iterdir() if path.name[0].isdigit()}


def saved(run: RunPaths) -> Path:
    file = run.root / "checkpoints" / "step_100" / "model.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights")
    return file.parent


@pytest.mark.parametrize(
    ("limits", "stay", "reason"),
    [
        ("90d", {"new", "month"}, "200 days old"),
        ("2w", {"new"}, "30 days old"),
        ("24h", {"new"}, "30 days old"),
        ("1", {"new"}, "not of the newest 1"),
        ("0", set(), "not of the newest 0"),
        ("1.5MB", {"new"}, "the newest take 1 MiB"),
        ("90d, 1", {"new"}, "not of the newest 1"),
        ("1000d 10 1TB", {"new", "month", "old"}, ""),
    ],
)
def test_what_is_kept_is_an_age_a_number_and_a_size(
    limits: str, stay: set[str], reason: str, place: Path, gc: Callable[..., tuple[int, str]]
) -> None:
    for name, days in (("new", 0.1), ("month", 30), ("old", 200)):
        run_in(place, name, days=days, size=1_000_000)
    code, said = gc("--keep", limits)
    assert (code, names(place)) == (0, {"new", "month", "old"}), "without a yes it only lists"
    assert reason in said
    assert f"{3 - len(stay)} of 3 runs go, {3 - len(stay)}" in said or not reason
    assert gc("--keep", limits, "--yes")[0] == 0
    assert names(place) == stay
    assert gc("--keep", limits, "--yes")[1].startswith(f"0 of {len(stay)} runs go"), (
        "once more: nothing is left to do"
    )


def test_a_run_that_is_needed_stays_and_the_list_says_why(
    place: Path, gc: Callable[..., tuple[int, str]]
) -> None:
    live, lost = run_in(place, "live", days=400), run_in(place, "lost", days=400, over=False)
    holds, foreign = run_in(place, "holds", days=300), run_in(place, "hidden", days=300)
    saved(holds)
    (foreign.artifacts / "out").mkdir(parents=True)
    (foreign.artifacts / "out" / "last.ckpt").write_bytes(b"weights")
    moved = run_in(place, "moved", days=300)
    moved.root.rename(place / "20200101-0000-elsewhere")
    lock = KeeperLock(live.node().lock, start_time=1.0)
    try:
        code, said = gc("--keep", "90d", "--yes")
    finally:
        lock.release()
    assert code == 0
    assert names(place) == {"live", "lost", "holds", "hidden", "elsewhere"}
    reasons = {line.split()[0].rpartition("-")[2]: line for line in said.splitlines() if " stays, " in line}
    assert "live supervisor process" in reasons["live"]
    assert "ranks may live" in reasons["lost"]
    weights = "checkpoints/step_100/model.safetensors"
    assert f"it holds {weights}, which is no record of stoker's: --with-checkpoints" in reasons["holds"]
    assert "it holds artifacts/out/last.ckpt, " in reasons["hidden"]
    assert "this folder was moved or copied from" in reasons["elsewhere"]
    assert "0 of 5 runs go" in said
    assert gc("--keep", "90d", "--yes", "--with-checkpoints")[0] == 0
    assert names(place) == {"lost", "elsewhere"}, "without a keeper the first one was over"
    assert lost.root.is_dir()


ARCHIVE = b"PK\x03\x04" + bytes(20) + b"archive/data.pkl"
NUMPY = b"\x93NUMPY\x01\0"
SAFETENSORS = (2).to_bytes(8, "little") + b"{}"


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        *(
            (name, b"mine\n", "which is no record of stoker's")
            for name in (
                "artifacts/report.md",
                "artifacts/thesis.json",
                "artifacts/stacks-1-1795989797.txt/model.txt",
                "artifacts/trace-of-my-own.json",
                "control/model.json",
                "nodes/0/events.jsonl.bak",
                "nodes/0/series/weights.jsonl",
                "nodes/0/attempts/1/telemetry/best.jsonl",
                "nodes/0/attempts/1/torchrun/a/attempt_0/0/my.log",
                ".hidden/run.json",
                "thesis.tex",
            )
        ),
        ("artifacts/stacks-1-1795989797.txt", ARCHIVE, "which is binary by its first bytes"),
        ("artifacts/console-20250101-000000.log", SAFETENSORS, "which is binary by its first bytes"),
        ("nodes/0/attempts/7/agent.log", NUMPY, "which is binary by its first bytes"),
        ("nodes/0/attempts/1/telemetry/rank0.jsonl", b"\x1f\x8b\x08", "which is binary by its first bytes"),
    ],
)
def test_a_run_with_a_file_that_stoker_did_not_write_stays(
    name: str, data: bytes, why: str, place: Path, gc: Callable[..., tuple[int, str]]
) -> None:
    run = run_in(place, "old", days=300)
    file = run.root / name
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.write_bytes(data)
    code, said = gc("--keep", "1d", "--yes", "--now")
    assert (code, file.read_bytes()) == (0, data)
    assert f"it holds {name}, {why}: --with-checkpoints" in said
    assert gc("--keep", "1d", "--yes", "--with-checkpoints")[0] == 0
    assert not run.root.exists()


RECORDS = (
    "control/18eca48c0123456789abcdef.json",
    "control/viewer-17@host",
    "artifacts/stacks-1-1795989797.txt",
    "artifacts/stacks-1-1795989797-2.txt",
    "artifacts/trace-step00000004-rank0.json",
    "artifacts/console-20250101-000000-node1.log",
    "nodes/0/.state.json.17.part",
    "nodes/0/orders/3.json",
    "nodes/0/orders/.4.json.0a1b2c3d",
    "nodes/0/series/gpu.1m.0.jsonl",
    "nodes/1/heartbeat",
    "nodes/0/probes/2/agent.log",
    "nodes/0/probes/2/events.jsonl",
    "nodes/0/probes/2/series/host.1m.jsonl",
    "nodes/0/probes/2/attempts/1/agent.log",
    "nodes/0/attempts/2/exit.part",
    "nodes/0/attempts/2/telemetry/measured0.jsonl.1",
    "nodes/0/attempts/2/telemetry/confirmed",
    "nodes/0/attempts/2/stacks/17.txt",
    "nodes/0/attempts/2/torchrun/none_ab_c/attempt_0/11/stderr.log",
    "nodes/0/attempts/2/torchrun/none_ab_c/attempt_0/11/error.json",
    "nodes/0/attempts/1/0-train.log",
)


def test_a_run_of_records_alone_goes_as_stoker_leaves_it(
    place: Path, gc: Callable[..., tuple[int, str]]
) -> None:
    command = ("-m", "supervisor", "run", "--no-ui", "--", "sh", "-c", "echo step 1 loss 2; sleep 1; exit 3")
    done = subprocess.run(
        [sys.executable, *command], cwd=place.parent, capture_output=True, text=True, timeout=60
    )
    (run,) = known_runs(place, os.environ)
    assert run.node().attempt(1).arrivals.is_file(), done.stderr
    for name in RECORDS:
        (run.root / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        (run.root / name).write_text("{}\n")
    code, said = gc("--keep", "0", "--yes")
    assert (code, run.root.exists()) == (0, False), said


def test_what_changed_while_it_asked_stays(
    place: Path, gc: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    gains, replaced, again, needed = (
        run_in(place, name, days=300) for name in ("gains", "replaced", "again", "needed")
    )
    run_in(place, "plain", days=300)

    def answer(question: str) -> bool:
        assert "5 runs" in question
        gains.artifacts.mkdir(mode=0o700)
        (gains.artifacts / "model.safetensors").write_bytes(SAFETENSORS)
        replaced.root.rename(place.parent / "moved")
        replaced.root.mkdir()
        (replaced.root / "thesis.tex").write_text("mine")
        journal = JournalWriter(again.node().journal)
        journal.append(ev.LaunchIntended(t=time.time(), attempt=2, reason="continued", argv=("train.py",)))
        journal.close()
        run_in(place, "newer", days=0.1, resume=f"{needed.root}/checkpoints/step_100")
        return True

    monkeypatch.setattr("supervisor.cli.gc.says_yes", answer)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    code, said = gc("--keep", "90d", "--now")
    assert code == 0
    assert names(place) == {"gains", "replaced", "again", "needed", "newer"}
    stays = {line.split()[0].rpartition("-")[2]: line for line in said.splitlines() if " stays: " in line}
    assert stays.keys() == {"gains", "replaced", "again", "needed"}
    assert "it holds artifacts/model.safetensors, " in stays["gains"]
    assert "no longer" in stays["replaced"]
    assert "resumed from it" in stays["needed"]


@pytest.mark.parametrize("way", ["resume", "argument", "relative", "link"])
def test_a_run_that_a_kept_one_resumed_from_never_goes_nor_what_that_one_resumed_from(
    way: str, place: Path, gc: Callable[..., tuple[int, str]]
) -> None:
    first = run_in(place, "first", days=300)
    second = run_in(place, "second", days=200, resume=str(saved(first)))
    path = saved(second)
    link = place.parent / "best"
    link.symlink_to(path)
    words: dict[str, tuple[str, ...]] = {
        "argument": ("train.py", f"--init={path}"),
        "relative": ("train.py", "--init", f"runs/{second.run_id}/checkpoints/step_100"),
        "link": ("train.py", "--init", "best"),
    }
    run_in(
        place,
        "third",
        days=1,
        argv=words.get(way, ("train.py",)),
        resume=str(path) if way == "resume" else None,
    )
    run_in(place, "other", days=250)
    code, said = gc("--keep", "90d", "--yes", "--with-checkpoints")
    assert code == 0
    assert names(place) == {"first", "second", "third"}
    assert said.count("resumed from it") == 2


def test_nothing_is_followed_out_of_the_folder_and_only_runs_by_their_own_record_go(
    place: Path, gc: Callable[..., tuple[int, str]]
) -> None:
    outside = place.parent / "outside"
    outside.mkdir(mode=0o700)
    theirs = run_in(outside, "outside", days=300)
    (place / "20200101-0000-link").symlink_to(theirs.root)
    inside = run_in(place, "inside", days=300)
    inside.artifacts.mkdir(mode=0o700)
    (inside.artifacts / "console-20250101-000000.log").symlink_to(outside)
    redirected = run_in(place, "redirected", days=300)
    redirected.artifacts.symlink_to(outside)
    notes = place / "20200101-0000-notes"
    notes.mkdir()
    (notes / "notes.txt").write_text("mine")
    forged = run_in(place, "forged", days=300)
    forged.run_json.write_text("{}")
    assert gc("--keep", "0", "--yes", "--now")[0] == 0
    assert {path.name for path in outside.iterdir()} == {theirs.run_id}
    assert theirs.node().journal.is_file()
    assert names(place) == {"link", "notes", "forged", "redirected"}
    (place / TRASH).rename(place.parent / "bin")
    (place / TRASH).symlink_to(outside)
    gone = run_in(place, "gone", days=300)
    code, said = gc("--keep", "0", "--yes", "--now")
    assert (code, gone.root.is_dir()) == (1, True), "a trash that is a link is none"
    assert "Traceback" not in said
    (theirs.root / THROWN).touch()
    assert empty(place, NOW + 2 * KEPT_S) == 0
    assert theirs.root.is_dir()


def test_what_went_can_be_brought_back_for_a_week_or_is_deleted_at_once(
    place: Path, gc: Callable[..., tuple[int, str]]
) -> None:
    run = run_in(place, "old", days=300)
    code, said = gc("--keep", "90d", "--yes")
    assert (code, f"{place / TRASH} for a week" in said) == (0, True)
    assert bring_back(RunPaths(place / TRASH / run.run_id)) == run
    assert gc("--keep", "90d", "--yes", "--now")[0] == 0
    assert not list((place / TRASH).iterdir())


def test_the_setting_says_what_is_kept_the_flag_before_it(
    place: Path, gc: Callable[..., tuple[int, str]]
) -> None:
    run_in(place, "old", days=300)
    code, said = gc("--yes")
    assert code == 2
    assert "nothing says what to keep" in said
    config = place.parent / "config" / "stoker" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[runs]\nkeep = "90d"\n')
    assert "1 of 1 runs go" in gc()[1]
    assert "0 of 1 runs go" in gc("--keep", "5")[1]
    (place.parent / "stoker.toml").write_text('[runs]\nkeep = "400d"\n')
    assert "0 of 1 runs go" in gc()[1], "the project's own before the user's"
    config.write_text("[runs]\nkep = '9d'\n")
    code, said = gc()
    assert code == 2
    assert "did you mean" in said or "keep" in said


@pytest.mark.parametrize("text", ["", " , ", "soon", "90 days", "-5", "5m", "1e9"])
def test_what_is_no_limit_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(JobError) as refused:
        limits_of(text)
    assert "\n" not in refused.value.message
    assert "90d" in refused.value.message


def fill(disk: Path) -> None:
    """Make files until there is room for no other one."""
    for number in range(60):
        (disk / f"filler-{number}").touch()


def test_a_disk_without_inodes_is_freed_in_place_with_now_alone(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(place.parent / "disk", "4m,nr_inodes=60,mode=700") as disk:
        old = [run_in(disk, name, days=300) for name in ("first", "second")]
        kept = run_in(disk, "new", days=0.1)
        with pytest.raises(OSError, match="No space left"):
            fill(disk)
        words = ["gc", "--runs-dir", str(disk), "--keep", "90d", "--yes"]
        assert main(words) == 1
        assert all(run.run_json.is_file() for run in old), "to the trash they cannot go"
        assert main([*words, "--now"]) == 0, capsys.readouterr().err
        assert names(disk) == {"new"}
        assert kept.node().journal.is_file()
        assert not list((disk / TRASH).glob("*"))
