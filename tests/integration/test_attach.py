"""`stoker attach` to what stoker did not start: real torchrun processes, pipes, folders of logs, a log that grows; and bad input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.main import main
from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.series import HOST, METRICS, RANKS, SeriesReader
from supervisor.sources.processes import descendants, identify, read_environ
from tests.conftest import not_none, wait_until
from tests.integration.harness import JOB, ROOT, STOKER, environment, facts, kept_run, state_of
from tests.tiers import first

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@contextmanager
def torchrun(*args: str, cwd: Path, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A torchrun that knows nothing of stoker, once both ranks run."""
    env = environment({"PYTHONUNBUFFERED": "1"})
    process = subprocess.Popen([*TORCHRUN, *args], cwd=cwd, env=env, start_new_session=True, **streams)
    try:
        assert wait_until(lambda: len(ranks_of(process.pid)) == 2, 90), "no ranks"
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)


def ranks_of(pid: int) -> list[int]:
    root = identify(pid)
    found = descendants(root) if root is not None else []
    return [int(rank) for one in found if (rank := read_environ(one).get("RANK", "")).isdigit()]


@contextmanager
def attached(*target: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """`stoker attach TARGET --no-ui --json --keep`, once it watches."""
    watcher = subprocess.Popen(
        [*STOKER, "attach", *target, "--no-ui", "--json", "--keep"],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield watcher
    finally:
        if watcher.poll() is None:
            watcher.kill()
        watcher.communicate(timeout=30)


def has_rank_samples(wanted: set[str]) -> bool:
    kept = list(Path(os.environ["XDG_STATE_HOME"]).glob("stoker/kept/*"))
    if not kept:
        return False
    samples = SeriesReader(RunPaths(kept[0]).node().series, HOST).read()
    return wanted <= {sample.k for sample in samples if sample.v.get("rss_bytes")}


def test_a_torchrun_of_somebody_elses_that_writes_to_a_file(tmp_path: Path) -> None:
    log, gate = tmp_path / "train.log", tmp_path / "gate"
    words = (JOB, "--mode", "exception", "--gate", str(gate))
    with (
        log.open("wb") as out,
        torchrun(*words, cwd=tmp_path, stdout=out, stderr=out) as job,
        attached(str(job.pid), cwd=tmp_path) as watcher,
    ):
        assert wait_until(lambda: has_rank_samples({"0", "1"}), 60), "the ranks are its children"
        gate.touch()
        job.wait(60)
        out_text, err = watcher.communicate(timeout=60)
    assert watcher.returncode == 1, err
    (verdict,) = [f.verdict for f in facts(kept_run()) if isinstance(f, ev.Diagnosed) and not f.provisional]
    assert str(verdict.failure) == "code_error"
    assert verdict.rank == 1
    assert "KeyError" in (verdict.cause.text if verdict.cause else "")
    losses = [(s.v["step"], s.v["loss"]) for s in SeriesReader(kept_run().node().series, METRICS).read()]
    assert losses == [(n, 4.0 / n if n != 3 else 1.3333) for n in range(1, 5)]
    assert all(json.loads(line) for line in out_text.splitlines())


@pytest.mark.e2e
def test_a_torchrun_with_a_log_folder_of_its_own(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    words = ("-r", "3", "--log-dir", "logs", JOB, "--mode", "sigkill", "--gate", str(gate))
    with (
        (tmp_path / "agent.log").open("wb") as out,
        torchrun(*words, cwd=tmp_path, stdout=out, stderr=out) as job,
        attached(str(job.pid), cwd=tmp_path) as watcher,
    ):
        assert wait_until(lambda: has_rank_samples({"0", "1"}), 60)
        gate.touch()
        job.wait(60)
        _, err = watcher.communicate(timeout=60)
    assert watcher.returncode == 1, err
    attempt = not_none(state_of(kept_run()).attempt)
    names = {rank.rank: Path(rank.stdout or "").name for rank in attempt.ranks.values()}
    assert names == {0: "stdout.log", 1: "stdout.log"}
    assert (attempt.last_step, not_none(attempt.verdict).rank) == (4, 1)


def test_a_process_that_prints_into_a_pipe_is_said_to_be_unseen(tmp_path: Path) -> None:
    words = (sys.executable, "-c", "import sys; sys.stdin.read()")
    with (
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job,
        attached(str(job.pid), cwd=tmp_path) as watcher,
    ):
        kept = Path(os.environ["XDG_STATE_HOME"]) / "stoker" / "kept"
        assert wait_until(lambda: list(kept.glob("*/nodes/0/events.jsonl")), 60)
        assert job.stdin is not None
        job.stdin.close()
        job.wait(60)
        _, err = watcher.communicate(timeout=60)
    assert "its output goes to a terminal or a pipe and cannot be seen" in err
    state = state_of(kept_run())
    assert any(advisory.code == "unseen" for advisory in state.advisories)


def test_leaving_a_pipe_does_not_end_its_writer(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    with (
        os.fdopen(write_end, "wb", buffering=0) as writer,
        subprocess.Popen(
            [*STOKER, "attach", "-", "--no-ui"],
            cwd=tmp_path,
            env=environment(),
            stdin=read_end,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as watcher,
    ):
        os.close(read_end)
        assert watcher.stdout is not None
        assert watcher.stderr is not None
        writer.write(b"step 1 loss 2.0\n")
        assert "stdin" in watcher.stdout.readline()
        watcher.send_signal(signal.SIGINT)
        assert "is not ended" in watcher.stderr.readline()
        # More than a pipe holds: somebody reads it, so that the writer neither waits nor gets SIGPIPE.
        for number in range(200):
            writer.write(b"step %d loss 2.0 %s\n" % (number, b"." * 2000))
        assert watcher.poll() is None
        writer.close()
        said = watcher.communicate(timeout=30)
        # 6: the pipe ended while it left, and there was no time for a verdict on a busy machine.
        assert watcher.returncode in {0, 6}, said


def one_line(text: str, *words: str) -> None:
    assert len(text.strip().splitlines()) == 1, text
    assert text.startswith("stoker attach: ")
    for word in words:
        assert word in text


# Root may read everything: what it loads it loads first, then it becomes nobody.
AS_NOBODY = """
import contextlib, io, os, sys
from supervisor.cli.main import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    main(["attach", "--no-ui", sys.argv[1]])
    main(["attach", "--no-ui", "4194304"])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.exit(main(["attach", "--no-ui", sys.argv[2]]))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")
@pytest.mark.parametrize("what", first(1, ["file", "pid"]))
def test_what_another_user_may_not_read(what: str) -> None:
    place = Path(tempfile.mkdtemp(prefix="stoker-nobody-"))
    try:
        place.chmod(0o777)
        for name, mode in (("fine.log", 0o644), ("secret.log", 0o600)):
            (place / name).write_text("step 1 loss 2.0\n", encoding="utf-8")
            (place / name).chmod(mode)
            os.utime(place / name, (0.0, 0.0))  # nobody waits for more of it
        target = str(place / "secret.log") if what == "file" else str(os.getpid())
        state = place / "state" / "stoker" / "observed"
        state.mkdir(parents=True)
        for folder in (place / "state", place / "state" / "stoker", state):
            folder.chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(place / "fine.log"), target],
            cwd=place,
            env=environment({"XDG_STATE_HOME": str(place / "state")}),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        one_line(done.stderr, "Permission denied" if what == "file" else "another user's process")
    finally:
        shutil.rmtree(place)


FAILURE = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 41, in <module>\n'
    "    main()\n"
    '  File "train.py", line 30, in main\n'
    "    label = labels['missing']\n"
    "KeyError: 'missing'\n"
)
VICTIM = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] "
    "Connection closed by peer [10.0.0.1]:22334\n"
)


def steps(rank: int, prefix: str = "") -> str:
    return "".join(f"{prefix}step {n}/100 loss {4.0 / n + rank:.4f} lr 1.0e-03\n" for n in range(1, 11))


def torchrun_tree(folder: Path) -> None:
    """``torchrun --log-dir logs -r 3``: <run-id>_<random>/attempt_<n>/<local rank>/{stdout,stderr}.log."""
    for rank in (0, 1):
        place = folder / "none_ab12cd34" / "attempt_0" / str(rank)
        place.mkdir(parents=True)
        (place / "stdout.log").write_text(steps(rank), encoding="utf-8")
        (place / "stderr.log").write_text(FAILURE if rank == 1 else "", encoding="utf-8")


def file_a_rank(folder: Path) -> None:
    """``python train.py > rank_$RANK.log``."""
    for rank in (0, 1):
        text = steps(rank) + (FAILURE if rank == 1 else VICTIM)
        (folder / f"rank_{rank}.log").write_text(text, encoding="utf-8")


def file_a_node(folder: Path) -> None:
    """``torchrun --tee 3 > node$NODE.log`` on two nodes of two ranks: lines bear the local rank."""
    for node in (0, 1):
        text = steps(2 * node, f"[rank{2 * node}]: ") + steps(2 * node + 1, f"[rank{2 * node + 1}]: ")
        if node == 1:
            text += "".join(f"[rank3]: {line}\n" for line in FAILURE.splitlines())
        (folder / f"node{node}.log").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("layout", "failed", "ranks"),
    [
        (torchrun_tree, 1, 2),
        (file_a_rank, 1, 2),
        (file_a_node, 3, 4),
    ],
)
def test_a_folder_opens_as_one_run(
    layout: Callable[[Path], None],
    failed: int,
    ranks: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    layout(folder)
    assert main(["attach", "--no-ui", "--keep", str(folder)]) == 1, capsys.readouterr()
    run = kept_run()
    state = state_of(run)
    assert state.attempt is not None
    verdict = not_none(state.attempt.verdict)
    assert (str(verdict.failure), verdict.rank) == ("code_error", failed)
    assert "KeyError: 'missing'" in not_none(verdict.cause).text
    assert (state.attempt.last_step, state.total_steps) == (10, 100)
    job = [(s.v["step"], s.v["loss"]) for s in SeriesReader(run.node().series, METRICS).read()]
    assert job == [(n, round(4.0 / n, 4)) for n in range(1, 11)], "rank 0 speaks for the job"
    found = SeriesReader(run.node().series, RANKS).read()
    for rank in range(ranks):
        losses = [s.v["loss"] for s in found if s.k == str(rank)]
        assert losses == [round(4.0 / n + rank, 4) for n in range(1, 11)], rank


@pytest.mark.e2e
@pytest.mark.fault("logs and load", "a log of hundreds of MB is followed", "memory stays bounded")
def test_memory_is_bounded_while_a_log_is_followed(tmp_path: Path) -> None:
    kept = tmp_path / "follow.json"
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "bench" / "follow.py"),
            *("--minutes", "0.55", "--rotate-mib", "7", "--bound-mib", "8", "--keep", str(kept)),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    found = json.loads(kept.read_text(encoding="utf-8"))
    assert done.returncode == 0, found
    assert found["lines"] >= 330_000
    assert found["rotations"] >= 3
    assert found["growth_mib"] <= 8, "between the second and the last fifth of the time"
    assert found["last_step_seen"] == found["last_step_written"]
