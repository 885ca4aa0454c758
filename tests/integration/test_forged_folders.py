"""Folders that somebody forged, copied or moved: whatever verb meets them, nothing is started, signalled or written.

One real run trains all the while, and a process of the test's own stands for a stranger's: both are untouched at the end.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisor.cli.main import main
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run.journal import JournalWriter, read_state
from supervisor.run.paths import RunPaths, make_private
from supervisor.run.records import Decision, DecisionKind, SpecChange
from supervisor.run.runfile import KeeperSettings, RunFile, write_run_file
from supervisor.sources.processes import ProcessId, boot_id, identify, is_alive
from supervisor.views.model.replay import record_of
from tests.conftest import not_none, wait_until
from tests.integration.harness import STOKER, environment, facts, state_of
from tests.keeper.fakes import verdict_of

pytestmark = pytest.mark.timeout(300)
T = 1_795_000_000.0
NOBODY = 65_534
STEPS = 'i=0; while :; do i=$((i+1)); echo "step $i loss: 1.0"; sleep 0.1; done'
AGAIN = Decision(DecisionKind.RESTART, "again", change=SpecChange())
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")


@dataclass(frozen=True)
class Scene:
    """What a forger finds: a real run that trains, a process that is none of it, and a place to write to."""

    live: RunPaths
    stranger: ProcessId
    place: Path


Forge = Callable[[Scene], Path]


@dataclass(frozen=True)
class Kind:
    """A folder, and what is said where it is to be acted on.

    `continues`: None where it would be asked about; "" for the words of `adopt`.
    """

    make: Forge
    adopt: str
    continues: str | None = ""
    stop: str = "has no keeper"
    stop_code: int = 3
    code: int = 3


@pytest.fixture(scope="module")
def trains(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunPaths]:
    """A real run, detached."""
    place = tmp_path_factory.mktemp("live")
    env = environment({"XDG_STATE_HOME": str(place / "state")})
    command = [*STOKER, "run", "--detach", "--python", sys.executable, "--", "sh", "-c", STEPS]
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=True)
    run = RunPaths(place / "runs" / done.stdout.strip())
    assert wait_until(lambda: _step(run) >= 2, 90)
    kept = state_of(run)
    yield run
    state, reached = state_of(run), _step(run)
    assert (len(state.attempts), state.keeper_pid) == (1, kept.keeper_pid), "the run that trains was touched"
    assert wait_until(lambda: _step(run) > reached, 60), "the run that trains was touched"
    assert not any(isinstance(fact, ev.StopIntended) for fact in facts(run))
    subprocess.run([*STOKER, "stop", "--now", str(run.root)], env=env, check=True)


@pytest.fixture
def scene(trains: RunPaths, tmp_path: Path) -> Iterator[Scene]:
    """The run, a stranger, and a folder of runs; both live on when the test is over."""
    with subprocess.Popen(["sleep", "600"]) as process:
        stranger = not_none(identify(process.pid))
        place = tmp_path / "runs"
        place.mkdir()
        try:
            yield Scene(trains, stranger, place)
            assert is_alive(stranger), "a stranger was signalled"
        finally:
            process.kill()


def _step(run: RunPaths) -> int:
    attempt = state_of(run).attempt
    return (attempt.last_step or 0) if attempt is not None else 0


# -- how folders are forged ------------------------------------------------------------------------------


def record_at(folder: Path, **changes: Any) -> RunFile:
    """A run.json that says all the right things, and runs `touch pwned`."""
    pwned = ("touch", str(folder.parent / "pwned"))
    job = JobSpec(
        name="evil",
        entry_kind=EntryKind.COMMAND,
        entry=pwned[0],
        entry_args=pwned[1:],
        cwd=str(folder.parent),
    )
    record = RunFile(
        run_id=folder.name,
        job=job,
        interpreter=sys.executable,
        settings=KeeperSettings(interactive=True),
        created_t=T,
        host=socket.gethostname(),
        user="eve",
        stoker_version="0",
        path=str(folder),
        uid=os.geteuid(),
    )
    return msgspec.structs.replace(record, **changes)


def facts_at(
    folder: Path, *more: ev.Event, host: str | None = None, boot: str | None = None, mode: str = "launched"
) -> tuple[ev.Event, ...]:
    """The beginning of a journal of this host and boot, and what follows."""
    begun = ev.RunStarted(t=T, run_id=folder.name, name="evil", mode=mode, host=host or socket.gethostname())
    kept = ev.KeeperStarted(t=T, pid=1, start_time=1.0, version="0", boot_id=boot or boot_id())
    return (begun, kept, *more)


def launched(process: ProcessId) -> tuple[ev.Event, ...]:
    return (
        ev.LaunchIntended(t=T, attempt=1, argv=("touch", "pwned"), reason="first launch"),
        ev.AttemptStarted(t=T, attempt=1, pid=process.pid, start_time=process.start_time),
    )


GONE = launched(ProcessId(99_999_999, 1.0))
ENDED = (
    *GONE,
    ev.AttemptEnded(t=T, attempt=1, exit_code=1),
    ev.Diagnosed(t=T, attempt=1, verdict=verdict_of()),
    ev.Decided(t=T, attempt=1, decision=AGAIN),
)


def forged(scene: Scene, *facts: ev.Event, record: RunFile | None = None, **beginning: Any) -> Path:
    """A folder as a run of ours would leave it, but for what it holds."""
    folder = scene.place / "20261121-1412-brave-otter"
    run = RunPaths(folder)
    for path in (run.node().attempt(1).root, run.control, run.artifacts):
        make_private(path)
    write_run_file(run.run_json, record or record_at(folder))
    writer = JournalWriter(run.node().journal)
    for fact in facts_at(folder, *facts, **beginning):
        writer.append(fact)
    writer.close()
    return folder


def pid_file(folder: Path, process: ProcessId) -> None:
    ticks = round(process.start_time * os.sysconf("SC_CLK_TCK"))
    said = {"pid": process.pid, "start_ticks": ticks, "boot_id": boot_id()}
    path = folder / "pid"
    path.write_text(json.dumps(said), encoding="utf-8")
    path.chmod(0o600)


def names_stranger(scene: Scene) -> Path:
    folder = forged(scene, *GONE)
    pid_file(RunPaths(folder).node().attempt(1).root, scene.stranger)
    return folder


def journals_stranger(scene: Scene) -> Path:
    rank = ev.RankStarted(
        t=T, attempt=1, local_rank=0, rank=0, pid=scene.stranger.pid, start_time=scene.stranger.start_time
    )
    return forged(scene, *launched(scene.stranger), rank)


def copied(scene: Scene, how: str) -> Path:
    folder = scene.place / scene.live.run_id
    # What is written at that moment may be missing from the copy, as from any.
    subprocess.run(["cp", how, scene.live.root, folder], check=False, capture_output=True)
    return folder


def moved(scene: Scene) -> Path:
    folder = forged(scene, *ENDED)
    return folder.rename(folder.with_name("elsewhere"))


def given_away(scene: Scene, *parts: str) -> Path:
    folder = forged(scene, *ENDED)
    for part in parts:
        os.chown(folder / part, NOBODY, NOBODY)
    return folder


def all_given_away(scene: Scene) -> Path:
    folder = forged(scene, *ENDED)
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", folder], check=True)
    return folder


def writable(scene: Scene, part: str, mode: int) -> Path:
    folder = forged(scene, *GONE)
    pid_file(RunPaths(folder).node().attempt(1).root, ProcessId(99_999_999, 1.0))
    (folder / part).chmod(mode)
    return folder


def behind_a_link(scene: Scene, part: str) -> Path:
    folder = forged(scene, *ENDED)
    real = (folder / part).rename(scene.place.parent / "real")
    (folder / part).symlink_to(real)
    return folder


def control_of_another(scene: Scene) -> Path:
    """Lock and requests of the run that trains: a stop of this folder would end that one."""
    folder = forged(scene, *GONE)
    run = RunPaths(folder)
    run.control.rmdir()
    run.control.symlink_to(scene.live.control)
    run.node().lock.symlink_to(scene.live.node().lock)
    return folder


def with_record(scene: Scene, facts: tuple[ev.Event, ...] = ENDED, **changes: Any) -> Path:
    at = scene.place / "20261121-1412-brave-otter"
    return forged(scene, *facts, record=record_at(at, **changes))


def forged_lock(scene: Scene) -> Path:
    folder = forged(scene, *ENDED, ev.BackoffStarted(t=T, attempt=1, until=T, delay_s=0.0))
    lock = RunPaths(folder).node().lock
    said = {"pid": scene.stranger.pid, "start_time": scene.stranger.start_time, "host": socket.gethostname()}
    lock.write_text(json.dumps(said), encoding="utf-8")
    lock.chmod(0o600)
    return folder


def with_a_request(scene: Scene) -> Path:
    """It lies there already, for a keeper that should run it."""
    folder = forged(scene, *ENDED, ev.Held(t=T, attempt=1, reason="you decide", until=4e9))
    args = control.RequestArgs(argv=("-c", "touch pwned"))
    control.send(RunPaths(folder).control, ev.RequestKind.RESTART_WITH, args=args)
    return folder


def without_record(scene: Scene) -> Path:
    folder = forged(scene, *GONE)
    (folder / "run.json").unlink()
    return folder


def pipe_for(scene: Scene, part: str) -> Path:
    folder = forged(scene, *GONE)
    (folder / part).unlink(missing_ok=True)
    os.mkfifo(folder / part, 0o600)
    return folder


def open_parent(scene: Scene) -> Path:
    folder = forged(scene, *GONE)
    folder.parent.chmod(0o777)
    return folder


NOTHING = "nothing of it lives"
FILES = "only its files say"
PERSON = "only a person can answer"
OTHERS = "may be written by others than you"
UID = f"belongs to uid {NOBODY}"
COPY = "this folder is a copy: the run itself lies in"
JOURNAL, PID, ATTEMPT = "nodes/0/events.jsonl", "nodes/0/attempts/1/pid", "nodes/0/attempts/1"
FAILED = ev.RunEnded(t=T, outcome=ev.Outcome.FAILED, exit_code=1, reason="it broke")
SUCCEEDED = ev.RunEnded(t=T, outcome=ev.Outcome.SUCCEEDED, exit_code=0, reason="finished")
BACKOFF = ev.BackoffStarted(t=T, attempt=1, until=T, delay_s=0.0)
HELD = ev.Held(t=T, attempt=1, reason="you decide", until=4e9)

KINDS = {
    "a copy of a live run": Kind(lambda scene: copied(scene, "-a"), COPY, COPY, COPY),
    "a copy of hard links, which shares the lock": Kind(lambda scene: copied(scene, "-al"), COPY, COPY, COPY),
    "moved": Kind(
        moved,
        "this folder was moved or copied from",
        "this folder was moved or copied from",
        "this folder was moved or copied from",
    ),
    "says that it is the live run": Kind(
        lambda scene: with_record(scene, path=str(scene.live.root)), COPY, COPY, COPY
    ),
    "another's run.json": Kind(lambda scene: given_away(scene, "run.json"), UID),
    "another's folder": Kind(all_given_away, UID),
    "started by another": Kind(lambda scene: with_record(scene, uid=NOBODY), f"uid {NOBODY} started it"),
    "group writes run.json": Kind(lambda scene: writable(scene, "run.json", 0o620), OTHERS),
    "group writes the pid file": Kind(lambda scene: writable(scene, PID, 0o660), OTHERS),
    "all write the requests": Kind(lambda scene: writable(scene, "control", 0o703), OTHERS),
    "run.json is a link": Kind(lambda scene: behind_a_link(scene, "run.json"), "is a symbolic link"),
    "an attempt is a link": Kind(lambda scene: behind_a_link(scene, ATTEMPT), "is a symbolic link"),
    "the pid file names a stranger": Kind(names_stranger, FILES, PERSON),
    "the journal names a stranger": Kind(journals_stranger, FILES, PERSON),
    "another host": Kind(
        lambda scene: forged(scene, *GONE, host="another-box"), "there it can be adopted", PERSON, "ran on"
    ),
    "another boot": Kind(lambda scene: forged(scene, *GONE, boot="another"), "was booted since", None),
    "evil while running": Kind(lambda scene: forged(scene, *GONE), NOTHING, None),
    "evil and held": Kind(lambda scene: forged(scene, *ENDED, HELD), NOTHING, None),
    "a request to restart lies there": Kind(with_a_request, NOTHING, None),
    "the lock names a stranger": Kind(forged_lock, NOTHING, None),
    "said to have succeeded": Kind(
        lambda scene: forged(scene, *ENDED, SUCCEEDED),
        "the run is over (succeeded)",
        "it succeeded: finished",
        "",
        0,
    ),
    "without run.json": Kind(without_record, "No such file"),
    "of a newer stoker": Kind(lambda scene: with_record(scene, schema=2), "a newer stoker wrote this run"),
    "only observed": Kind(lambda scene: forged(scene, *GONE, mode="observed"), "it only watches"),
    "run.json is a pipe": Kind(lambda scene: pipe_for(scene, "run.json"), "no regular file"),
    "everybody may exchange it": Kind(open_parent, "everybody may exchange"),
}
FOR_ROOT = {name for name in KINDS if name.startswith("another's")}


# -- what is looked at afterwards ---------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, tuple[object, ...]]:
    """All of a folder: bytes, modes, owners, times."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        info = path.lstat()
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path)] = (info.st_mode, info.st_uid, info.st_ino, info.st_mtime_ns, info.st_ctime_ns, data)
    return found


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is started by what runs here."""

    def refuse(*words: object, **_: object) -> None:
        raise AssertionError(f"a process was started: {words}")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr(os, "posix_spawn", refuse)
    monkeypatch.setattr(os, "fork", refuse)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=as_root) if name in FOR_ROOT else name for name in KINDS]
)
@pytest.mark.fault(
    "secrets and access",
    "a foreign folder: forged, copied, moved, linked, writable by others (26 kinds)",
    "it opens; nothing in it is started, signaled or requested",
)
def test_nothing_is_done_to_or_for_it(
    scene: Scene,
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    kind = KINDS[name]
    folder = kind.make(scene)
    continues = kind.adopt if kind.continues == "" else kind.continues
    request.getfixturevalue("no_child")
    monkeypatch.setattr("supervisor.keeper.process.takeover.WATCH_S", 0.05)
    monkeypatch.setattr("supervisor.keeper.process.takeover.LOOK_S", 0.01)
    # Hard links share what the live run's keeper writes all the time: of those only names are compared.
    shared = "hard links" in name
    before = contents(folder)
    target = str(folder)

    def unchanged(verb: str) -> None:
        now = contents(folder)
        assert now.keys() == before.keys(), verb
        assert shared or now == before, verb
        assert not (scene.place / "pwned").exists(), verb

    for words in (
        ["attach", "--no-ui", target],
        ["attach", "--no-ui", "--json", target],
        ["diagnose", target],
        ["replay", target],
        ["runs", "--runs-dir", str(scene.place)],
        ["runs", "--all", "--runs-dir", str(scene.place)],
        ["export", "--chart", target],
        ["policy", "explain", target],
    ):
        main(words)
        unchanged(" ".join(words))
    record_of(RunPaths(folder))
    unchanged("record_of")
    capsys.readouterr()
    for words, said, code in (
        (["attach", "--adopt", target], kind.adopt, kind.code),
        (["continue", target], "say --yes" if continues in {None, PERSON} else continues, kind.code),
        (["continue", "--yes", target], continues, kind.code),
        (["stop", target], kind.stop, kind.stop_code),
        (["stop", "--now", target], kind.stop, kind.stop_code),
    ):
        if said is None:
            continue  # all that can be known of it is in order: it is for a person to say yes
        got = main(words)
        out = capsys.readouterr()
        assert (got, said in out.err + out.out) == (code, True), (words, out)
        assert "Traceback" not in out.err
        unchanged(" ".join(words))
    attempt = not_none(read_state(scene.live.node().journal).attempt)
    assert attempt.pid is not None
    assert attempt.start_time is not None
    assert is_alive(ProcessId(attempt.pid, attempt.start_time)), "the run that trains was touched"


@pytest.mark.fault(
    "secrets and access", "a link in a folder points to another run", "a stop does not follow it"
)
def test_a_stop_never_goes_through_a_link_to_another_run(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its lock is that of the run that trains, by a hard link: only where the request would go is left to check."""
    folder = control_of_another(scene)
    lock = RunPaths(folder).node().lock
    lock.unlink()
    os.link(scene.live.node().lock, lock)
    for now in ([], ["--now"]):
        assert main(["stop", *now, str(folder)]) == 1
        assert "control" in capsys.readouterr().err
    assert not list(scene.live.control.iterdir())
    reached = _step(scene.live)
    assert wait_until(lambda: _step(scene.live) > reached, 30)


@as_root
@pytest.mark.fault("secrets and access", "another user's process has the run's mark", "it is not taken over")
def test_a_process_of_another_user_that_bears_our_mark_is_not_taken_over(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anybody may set STOKER_RUN_DIR, and root reads everybody's environment."""
    folder = forged(scene, *GONE)
    marked = {"STOKER_RUN_DIR": str(folder), "PATH": os.environ["PATH"]}
    with subprocess.Popen(["sleep", "600"], env=marked, user=NOBODY, group=NOBODY) as process:
        try:
            before = contents(folder)
            assert main(["attach", "--adopt", str(folder)]) == 3
            assert "nothing of it lives" in capsys.readouterr().err
            assert contents(folder) == before
            assert process.poll() is None
        finally:
            process.kill()


def test_the_folder_of_a_link_to_the_run_itself_is_the_run(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    link = scene.place / "link"
    link.symlink_to(scene.live.root)
    assert main(["attach", "--adopt", str(link)]) == 0
    assert "it has a keeper" in capsys.readouterr().out
    assert main(["continue", "--yes", str(link)]) == 3
    assert "a supervisor process looks after it (pid" in capsys.readouterr().err
