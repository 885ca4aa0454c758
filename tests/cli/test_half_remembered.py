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
from tests.cli.conftest import Call
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
    "batch": [],
    "why-slow": [],
    "rehearse": ["train.py"],
    "replay": [],
    "export": ["--gpu-csv"],
    "config": ["explain", "optim.lr"],
    "check": [],
}
NEEDS_NO_FOLDER = {"troubleshoot", "slurm", "nodes"}


Refused = Callable[..., tuple[int, str]]


@pytest.fixture
def refused(call: Call) -> Refused:
    """Calls a verb that says no: its exit code, and the one line on stderr."""

    def refused(*argv: str) -> tuple[int, str]:
        said = call("", *argv)
        assert (said.err.count("\n"), said.out) == (1, ""), said
        return said.code, said.err

    return refused


@pytest.mark.fault(
    "hostile input", "the working directory was deleted: every verb", "one line with advice, exit 2"
)
def test_a_deleted_working_directory_is_named_by_every_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    assert TYPED.keys() | NEEDS_NO_FOLDER == VERBS.keys()
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for verb, words in TYPED.items():
        told = f"stoker {verb}: the working directory was deleted: `cd` to a folder that exists, and repeat the command\n"
        assert refused(verb, *words) == (2, told)
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
    "a pipe that nobody writes, a sparse terabyte, a gzip bomb as a log",
    "a line at once, then how far it is read; memory is bounded, Ctrl-C leaves",
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
    assert "MB read so far: Ctrl-C leaves" in first
    peak_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak_kb < MOST_RESIDENT_KB


@pytest.mark.fault(
    "hostile input",
    "a pipe, a socket, a device, a loop of links to attach to",
    "one line with advice, exit 2",
)
def test_what_is_no_log_is_not_attached_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
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
        code, told = refused("attach", "--no-ui", name)
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
    here: Path, monkeypatch: pytest.MonkeyPatch, call: Call, refused: Refused
) -> None:
    code, _, err = call("attach --adopt")
    first, second = err.splitlines()
    assert (code, first) == (3, f"the newest run in {here / 'runs'}: 20261102-1000-calm-crane")
    assert second.startswith("stoker attach: 20261102-1000-calm-crane: not adopted: ")
    code, _, err = call("profile")
    assert (code, "20261102-1000-calm-crane has no keeper" in err) == (3, True)
    (here / "empty").mkdir()
    monkeypatch.chdir(here / "empty")
    far = here / "elsewhere" / "runs" / "20261103-1000-bold-bison"
    for verb, words in {"adopt": ("attach", "--adopt"), "profile": ("profile",), "stop": ("stop",)}.items():
        code, told = refused(*words)
        assert code == 2
        assert told.endswith(f"/empty/runs; the newest elsewhere is {far}: name it to {verb} it\n")


@pytest.mark.fault(
    "hostile input", "an empty name, as of an unset variable", "refused: the newest is not meant"
)
@pytest.mark.parametrize(
    "words",
    [["stop"], ["attach", "--no-ui"], ["attach", "--adopt"], ["continue", "--yes"], ["export", "--chart"]],
)
@pytest.mark.parametrize("name", ["", " "])
@pytest.mark.usefixtures("here")
def test_an_empty_name_is_no_run(words: list[str], name: str, refused: Refused) -> None:
    code, told = refused(*words, name)
    assert code == 2
    assert told.endswith(": an empty name: say which run, `stoker runs` lists them\n")


@pytest.mark.fault(
    "hostile input",
    "a part of a run, a folder of runs, where a log is meant",
    "one line, exit 2, with the run",
)
@pytest.mark.parametrize("verb", [["diagnose"], ["metrics"], ["attach", "--no-ui"]], ids=lambda verb: verb[0])
def test_what_stoker_keeps_is_no_log(here: Path, verb: list[str], refused: Refused) -> None:
    run = RunPaths(here / "runs" / "20261101-1000-brave-otter")
    run.run_json.write_text("{}", encoding="utf-8")
    for path in (run.run_json, run.node().journal, run.node().root):
        code, told = refused(*verb, str(path))
        assert code == 2
        assert told.endswith(
            "a part of the run 20261101-1000-brave-otter, and no log of its job: give the run\n"
        )
    code, told = refused(*verb, "runs")
    assert code == 2
    assert told.endswith("runs: a folder of 2 runs: give one, such as 20261102-1000-calm-crane\n")
    log = run.node().attempt(1).agent_log
    log.parent.mkdir(parents=True)
    log.write_text("step 1 loss 2.5\n", encoding="utf-8")
    if verb != ["attach", "--no-ui"]:
        assert main([*verb, str(log)]) == 0, "what its job printed is a log"


@pytest.mark.fault(
    "hostile input", "a log, a typo, a part of two ids where a run is meant", "one line, exit 2"
)
def test_what_is_no_run_is_not_acted_on(here: Path, call: Call, refused: Refused) -> None:
    (here / "train.log").write_text("step 1\n", encoding="utf-8")
    told = "stoker attach: train.log: no run: `stoker runs` lists what --adopt may take over\n"
    assert refused("attach", "--adopt", "train.log") == (2, told)
    near = "did you mean 20261101-1000-brave-otter?"
    names = {
        "brave-oter": near,
        "202611": "give more of the id",
        "runs/20261101-1000-brave-otter/run.json": near,
    }
    for verb in (["stop"], ["continue", "--yes"], ["profile"], ["attach", "--adopt"]):
        for name, why in names.items():
            code, told = refused(*verb, name)
            assert (code, why in told) == (2, True), told
    found = call("diagnose brave-otter")
    assert (found.code, "no log in this folder" in found.err) == (2, True), "an attempt has no log here"
    found = call("stop brave-otter")
    assert (found.code, "has ended already" in found.out) == (0, True)


ACTS = (["stop"], ["continue", "--yes"], ["profile"], ["attach", "--adopt"])


@pytest.mark.parametrize("verb", ACTS, ids=lambda verb: verb[0])
def test_a_part_of_an_id_acts_in_its_own_folder_alone_and_from_three_characters_on(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, refused: Refused
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
            code, said = refused(*verb, "--", word)
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
        _, out, err = call("", *verb, "--", word)
        said = out + err
        assert "only a part of" not in said
        assert "no run named" not in said
        assert run.run_id in said
