"""What a person half remembers: a folder that is gone, things that are no logs and no runs, a verb without its run."""

from __future__ import annotations

import gzip
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.cli.main import VERBS, main
from supervisor.run.index import listed_names, register
from supervisor.run.paths import RunPaths
from tests.cli.test_stop import OVER, STARTED, run_of
from tests.integration.harness import STOKER, environment

FIRST_LINE_S = 20.0
"""2 s are promised on a machine that does nothing else; several tests share one."""
MOST_RESIDENT_KB = 400_000

# Each verb as it would be typed; those that need no folder answer as ever.
TYPED: dict[str, list[str]] = {
    "run": ["train.py"],
    "init": ["train.py"],
    "attach": ["train.log"],
    "stop": [],
    "profile": [],
    "continue": ["--yes", "brave-otter"],
    "runs": [],
    "diagnose": ["train.log"],
    "metrics": ["train.log"],
    "policy": ["explain"],
    "gc": ["--keep", "90d"],
    "replay": [],
    "export": ["--gpu-csv"],
    "config": ["explain", "optim.lr"],
    "check": [],
}
NEEDS_NO_FOLDER = {"troubleshoot", "slurm", "nodes"}


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """The exit code of `stoker ARGV` in this process, and the one line on stderr."""
    try:
        code = main(list(argv))
    except SystemExit as left:
        code = int(str(left.code))
    said = capsys.readouterr()
    assert said.err.count("\n") == 1, said
    assert not said.out
    return code, said.err


@pytest.mark.fault(
    "hostile input", "the working directory was deleted: every verb", "one line with advice, exit 2"
)
def test_a_deleted_working_directory_is_named_by_every_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert TYPED.keys() | NEEDS_NO_FOLDER == VERBS.keys()
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for verb, words in TYPED.items():
        told = f"stoker {verb}: the working directory was deleted: `cd` to a folder that exists, and repeat the command\n"
        assert answer(capsys, verb, *words) == (2, told)
    log = tmp_path / "train.log"
    log.write_text("step 1 loss 2.5\n", encoding="utf-8")
    assert main(["metrics", str(log)]) == 0, "a path from the root needs no folder"


def bomb(path: Path) -> None:
    path.write_bytes(gzip.compress(bytes(64 << 20)) * 400)


def sparse(path: Path) -> None:
    path.write_bytes(b"step 1 loss 2.5\n")
    try:
        os.truncate(path, 1 << 40)
    except OSError as error:
        pytest.skip(f"no file of a terabyte here: {error.strerror}")


@pytest.mark.parametrize("make", [os.mkfifo, sparse, bomb], ids=["pipe", "sparse terabyte", "gzip bomb"])
@pytest.mark.parametrize("verb", ["diagnose", "metrics"])
@pytest.mark.fault(
    "hostile input",
    "a pipe without a writer, a sparse terabyte or a gzip bomb as a log",
    "a line at once, then progress; memory is bounded, Ctrl-C quits",
)
def test_what_takes_long_to_read_says_so(make: Callable[[Path], None], verb: str, tmp_path: Path) -> None:
    make(tmp_path / "train.log")
    with subprocess.Popen(
        [*STOKER, verb, "train.log"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        try:
            assert select.select([process.stderr], [], [], FIRST_LINE_S)[0], "nothing was said"
            first = process.stderr.readline().decode()
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
            process.send_signal(signal.SIGINT)
            assert process.wait(FIRST_LINE_S) == 130
        finally:
            process.kill()
    assert first.startswith(f"stoker {verb}: train.log: ")
    assert "GB read so far: Ctrl-C leaves" in first
    peak_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak_kb < MOST_RESIDENT_KB


@pytest.mark.fault(
    "hostile input",
    "a pipe, a socket, a device, a loop of links to attach to",
    "one line with advice, exit 2",
)
def test_what_is_no_log_is_not_attached_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.symlink("loop", "loop")
    os.symlink("nowhere", "dangling")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind("socket")
    for name, why in {
        "pipe": "a named pipe, which can be read once: `stoker attach - < pipe`",
        "socket": "give a log, a folder of logs, or -",
        "/dev/zero": "no regular file; give a log, a folder of logs, or -",
        "loop": "Too many levels of symbolic links; give a log, a folder of logs, or -",
        "dangling": "No such file or directory; give a log, a folder of logs, or -",
    }.items():
        code, told = answer(capsys, "attach", "--no-ui", name)
        assert code == 2
        assert told.startswith(f"stoker attach: {name}: ")
        assert told.endswith(f"{why}\n")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two runs that are over; a third lies in another folder, and is newer."""
    monkeypatch.chdir(tmp_path)
    for name, folder in {
        "20261101-1000-brave-otter": tmp_path / "runs",
        "20261102-1000-calm-crane": tmp_path / "runs",
        "20261103-1000-bold-bison": tmp_path / "elsewhere" / "runs",
    }.items():
        run = run_of(folder, STARTED, OVER)
        run = RunPaths(run.root.rename(folder / name))
        register(run, "job", os.environ)
    return tmp_path


@pytest.mark.fault(
    "hostile input",
    "`attach --adopt` and `profile` without a run",
    "only the newest of this folder",
)
def test_what_acts_without_a_name_takes_a_run_of_this_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attach", "--adopt"]) == 3
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"the newest run in {here / 'runs'}: 20261102-1000-calm-crane"
    assert second.startswith("stoker attach: 20261102-1000-calm-crane: not adopted: ")
    assert main(["profile"]) == 3
    assert "20261102-1000-calm-crane has no keeper" in capsys.readouterr().err
    (here / "empty").mkdir()
    monkeypatch.chdir(here / "empty")
    for verb, words in {"adopt": ("attach", "--adopt"), "profile": ("profile",), "stop": ("stop",)}.items():
        code, told = answer(capsys, *words)
        assert code == 2
        far = here / "elsewhere" / "runs" / "20261103-1000-bold-bison"
        assert told.endswith(f"/empty/runs; the newest elsewhere is {far}: name it to {verb} it\n")


@pytest.mark.fault(
    "hostile input", "an empty name, as of an unset variable", "refused, instead of using the newest run"
)
@pytest.mark.parametrize(
    "words",
    [["stop"], ["attach", "--no-ui"], ["attach", "--adopt"], ["continue", "--yes"], ["export", "--chart"]],
)
@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_no_run(
    here: Path, words: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = answer(capsys, *words, name)
    assert code == 2
    assert told.endswith(": an empty name: say which run, `stoker runs` lists them\n")


@pytest.mark.fault(
    "hostile input",
    "part of a run or a folder of runs in place of a log",
    "one line that shows the run, exit 2",
)
@pytest.mark.parametrize("verb", [["diagnose"], ["metrics"], ["attach", "--no-ui"]], ids=lambda verb: verb[0])
def test_what_stoker_keeps_is_no_log(here: Path, verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run = RunPaths(here / "runs" / "20261101-1000-brave-otter")
    run.run_json.write_text("{}", encoding="utf-8")
    for path in (run.run_json, run.node().journal, run.node().root):
        code, told = answer(capsys, *verb, str(path))
        assert code == 2
        assert told.endswith(
            "a part of the run 20261101-1000-brave-otter, and no log of its job: give the run\n"
        )
    code, told = answer(capsys, *verb, "runs")
    assert code == 2
    assert told.endswith("runs: a folder of 2 runs: give one, such as 20261102-1000-calm-crane\n")
    log = run.node().attempt(1).agent_log
    log.parent.mkdir(parents=True)
    log.write_text("step 1 loss 2.5\n", encoding="utf-8")
    if verb != ["attach", "--no-ui"]:
        assert main([*verb, str(log)]) == 0, "what its job printed is a log"


@pytest.mark.fault("hostile input", "a log, a typo or an ambiguous id in place of a run", "one line, exit 2")
def test_what_is_no_run_is_not_acted_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "train.log").write_text("step 1\n", encoding="utf-8")
    assert answer(capsys, "attach", "--adopt", "train.log") == (
        2,
        "stoker attach: train.log: no run: `stoker runs` lists what --adopt may take over\n",
    )
    for verb in (["stop"], ["continue", "--yes"], ["profile"], ["attach", "--adopt"]):
        code, told = answer(capsys, *verb, "brave-oter")
        assert code == 2
        assert "did you mean 20261101-1000-brave-otter?" in told
        code, told = answer(capsys, *verb, "202611")
        assert code == 2
        assert "give more of the id" in told
        code, told = answer(capsys, *verb, "runs/20261101-1000-brave-otter/run.json")
        assert code == 2
        assert "did you mean 20261101-1000-brave-otter?" in told
    assert main(["diagnose", "brave-otter"]) == 2, "an attempt has no log here"
    assert "no log in this folder" in capsys.readouterr().err
    assert main(["stop", "brave-otter"]) == 0
    assert "has ended already" in capsys.readouterr().out


ACTS = (["stop"], ["continue", "--yes"], ["profile"], ["attach", "--adopt"])


@pytest.mark.parametrize("verb", ACTS, ids=lambda verb: verb[0])
def test_a_part_of_an_id_acts_in_its_own_folder_alone_and_from_three_characters_on(
    verb: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "two").mkdir()
    run = RunPaths(run_of(tmp_path, STARTED, OVER).root.rename(tmp_path / "20261129-2223-lively-duck"))
    one = run.root.parent
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    register(run, "lr 3e-4", os.environ)
    journal = run.node().journal.read_bytes()
    for folder, words in (
        (tmp_path / "two", ("-", "k", "duck", "lively-duck", "20261129")),
        (one, ("-", "k", "0", "uc")),
    ):
        monkeypatch.setenv("STOKER_RUNS_DIR", str(folder))
        for word in words[verb[0] == "attach" :]:  # to attach, a dash is a pipe
            code, said = answer(capsys, *verb, "--", word)
            assert code == 2, said
            assert f"{word!r} is only a part of {run.root}: to act on a run, give its whole id" in said
            assert f"under {folder} also 3 characters of the id" in said
    assert run.node().journal.read_bytes() == journal
    assert listed_names(os.environ) == {str(run.root): "lr 3e-4"}
    for folder, word in (
        (tmp_path / "two", run.run_id),
        (tmp_path / "two", "lr 3e-4"),
        (tmp_path / "two", str(run.root)),
        (one, "duck"),
    ):
        monkeypatch.setenv("STOKER_RUNS_DIR", str(folder))
        main([*verb, "--", word])
        said = "".join(capsys.readouterr())
        assert "only a part of" not in said
        assert "no run named" not in said
        assert run.run_id in said
