"""``stoker slurm`` against programs that answer as SLURM's do, and ``stoker run`` in the environment of a task of srun."""

from __future__ import annotations

import os
import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisor.cli import continuing, in_allocation, slurm
from supervisor.cli.in_allocation import placed, requeued
from supervisor.cli.job_inputs import parse_words
from supervisor.cluster.slurm.script import Batch, batch_script
from supervisor.job.errors import JobError
from supervisor.job.spec import Timing
from supervisor.run import events as ev
from tests.cli.conftest import Answer, Call
from tests.cluster.test_scheduler import BATCH, STEP
from tests.keeper.fakes import job_of, own_run_in
from tests.keeper.runs import SAVED, STARTED, T

RECORD = "JobId=7 JobName=train JobState={} Reason={} NodeList=n[1-2] ExitCode={} Restarts=0 StdOut={}\n"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs; nothing else is on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def put(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{body}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


def test_the_script_is_bash_with_what_was_asked_for(tools: Path, call: Call) -> None:
    flags = "--nodes 2 --gpus 8 --time 1-12:00:00 --partition gpu --exclude n[3-4] --sbatch=--qos=high"
    job = "--setup 'module load cuda' --nproc-per-node 8 train.py --note 'a b'"
    code, text, _ = call(f"slurm script {flags} {job}")
    assert code == 0
    for option in ("nodes=2", "gpus-per-node=8", "time=1-12:00:00", "partition=gpu", "exclude=n3,n4", "qos=high",
                   "ntasks-per-node=1", "signal=B:USR1@120", "requeue", "job-name=train", "open-mode=append"):  # fmt: skip
        assert f"#SBATCH --{option}\n" in text
    assert "run --no-ui --nproc-per-node 8 train.py --note 'a b' &\n" in text
    assert "module load cuda\n" in text
    assert subprocess.run(["/bin/bash", "-n"], input=text.encode(), check=False).returncode == 0


def test_submitted_and_refused(tools: Path, call: Call) -> None:
    put(tools, "sbatch", 'cat > script.sh; echo "4711;loop"')
    code, out, _ = call("slurm submit --nodes 2 train.py")
    assert (code, "job 4711: log logs/train-4711.out" in out) == (0, True)
    assert Path("logs/latest").readlink() == Path("train-4711.out")
    assert "srun" in Path("script.sh").read_text(encoding="utf-8")
    put(tools, "sbatch", "echo 'sbatch: error: invalid partition specified: nope' >&2; exit 1")
    refused = call("slurm submit --partition nope train.py")
    assert (refused.code, refused.err) == (2, "stoker slurm: sbatch: invalid partition specified: nope\n")


@pytest.mark.parametrize(
    ("state", "exit_code", "code", "said"),
    [
        ("COMPLETED", "0:0", 0, "COMPLETED"),
        ("TIMEOUT", "0:15", 1, "terminated (time_limit): no checkpoint"),
        ("OUT_OF_MEMORY", "0:125", 1, "host_oom (slurm)"),
        ("PREEMPTED", "0:15", 1, "terminated (preempted)"),
        ("NODE_FAIL", "0:0", 1, "node failed: n2; submit again with --exclude"),
        ("FAILED", "93:0", 1, "it would fail again, and was not requeued"),
        ("FAILED", "7:0", 1, "the job ended early with exit code 0 and was not requeued"),
    ],
)
def test_a_watched_job_ends(
    tools: Path, call: Call, state: str, exit_code: str, code: int, said: str
) -> None:
    put(tools, "squeue", "exit 0")
    put(tools, "scontrol", f"echo '{RECORD.format(state, 'None', exit_code, 'x').strip()}'")
    put(tools, "sinfo", "echo 'n1 idle'; echo 'n2 down*'")
    found = call("slurm watch 7")
    assert (found.code, said in found.out) == (code, True)


def test_a_node_that_fails_is_named_and_kept_off(
    tools: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("supervisor.cli.slurm.time.sleep", waits.append)
    rows = ["7|RUNNING|None|N/A|59:00|n[1-2]|2|train"] * 3 + ["7|PENDING|BeginTime|soon|1:00||2|train"]
    for number, row in enumerate(rows):
        Path(f"row{number}").write_text(f"{row}\n", encoding="utf-8")
    put(tools, "squeue", "n=$(cat n 2>/dev/null || echo 0); echo $((n+1)) > n; cat row$n 2>/dev/null; exit 0")
    record = RECORD.format("COMPLETED", "None", "0:0", "x").strip()
    put(tools, "scontrol", f'[ "$1" = update ] && echo "$@" > updated || echo \'{record}\'')
    put(tools, "sinfo", "echo 'n1 idle'; echo 'n2 down*'")
    found = call("slurm watch --exclude-failed 7")
    assert (found.code, "NODE_FAIL: n2 is down" in found.out) == (0, True)
    assert Path("updated").read_text(encoding="utf-8") == "update JobId=7 ExcNodeList=n2\n"
    assert [each for each in waits if each >= 1] == [10.0, 15.0, 22.5, 10.0], (
        "slower while nothing changes, never below 10 s"
    )


def test_cancel_asks(tools: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tools, "scontrol", f"echo '{RECORD.format('RUNNING', 'None', '0:0', 'x').strip()}'")
    put(tools, "scancel", "echo $1 > cancelled")
    monkeypatch.setattr(slurm, "says_yes", lambda _question: False)
    assert call("slurm cancel 7").code == 3
    assert not Path("cancelled").exists()
    found = call("slurm cancel --yes 7")
    assert (found.code, "7: cancelled" in found.out) == (0, True)
    assert Path("cancelled").read_text(encoding="utf-8") == "7\n"


def test_what_slurm_does_not_know_is_said(tools: Path, call: Call) -> None:
    put(tools, "squeue", "exit 0")
    put(tools, "scontrol", "exit 1")
    put(tools, "sacct", "exit 1")
    assert call("slurm watch") == Answer(0, "no job of yours waits or runs\n", "")
    for line, said in (
        ("watch 7", "SLURM knows no job 7 (of yours)"),
        ("cancel 7", "SLURM knows no job 7"),
        ("logs 7", "SLURM knows no log of job 7 any more: look in its folder of logs"),
    ):
        assert call(f"slurm {line}") == Answer(2, "", f"stoker slurm: {said}\n")
    put(tools, "scontrol", f"echo '{RECORD.format('COMPLETED', 'None', '0:0', 'x').strip()}'")
    code, out, err = call("slurm cancel 7")
    assert (code, err) == (0, "")
    assert out.endswith(": it has ended already\n")
    Path("file").touch()
    assert call("slurm submit --log-dir file/logs train.py") == Answer(
        2, "", "stoker slurm: file/logs: Not a directory: choose another folder with --log-dir\n"
    )


def test_logs_of_all_nodes(tools: Path, tmp_path: Path, call: Call) -> None:
    log = tmp_path / "train-7.out"
    log.write_text("srun: error\n", encoding="utf-8")
    for node in (0, 1, 10):
        (tmp_path / f"train-7_{node}.out").write_text(f"first\nstep {node}\n", encoding="utf-8")
    put(tools, "scontrol", f"echo '{RECORD.format('RUNNING', 'None', '0:0', log).strip()}'")
    assert call("slurm logs -n 1 7").out.splitlines() == [
        "batch: srun: error", "node 0: step 0", "node 1: step 1", "node 10: step 10"
    ]  # fmt: skip


# -- stoker run as a task of srun -------------------------------------------------------------------------------


def test_a_task_of_srun_gets_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    found = placed(parse_words(["--runs-dir", "/r", "t.py"], STEP), STEP)
    assert dict(found.torchrun) == {"nnodes": "2", "node_rank": "1", "master_addr": "n1"}
    assert found.flag("run_dir") == "/r/slurm-4711"
    assert "node 1 of 2 in step 0 of SLURM job 4711: --nnodes 2" in capsys.readouterr().err
    own = placed(
        parse_words(["--node-rank", "0", "--master-addr", "a", "--run-dir", "/x", "t.py"], STEP), STEP
    )
    assert (own.launcher("node_rank"), own.launcher("master_addr"), own.flag("run_dir")) == ("0", "a", "/x")


def test_the_same_job_is_not_started_several_times() -> None:
    tasks = {**STEP, "SLURM_STEP_NUM_TASKS": "8"}
    with pytest.raises(JobError, match="4 tasks were started on this node"):
        placed(parse_words(["t.py"], tasks), tasks)
    with pytest.raises(JobError, match="--nnodes 3, and node 1 of 2"):
        placed(parse_words(["--nnodes", "3", "t.py"], STEP), STEP)


@pytest.mark.parametrize("words", [["--nnodes", "1", "t.py"], ["--", "python", "t.py"]])
def test_who_starts_single_jobs_on_purpose_may(words: list[str]) -> None:
    tasks = {**STEP, "SLURM_STEP_NUM_TASKS": "8"}
    parsed = parse_words(words, tasks)
    assert placed(parsed, tasks) == parsed


def test_a_batch_script_without_srun_is_one_node() -> None:
    parsed = parse_words(["t.py"], BATCH)
    assert placed(parsed, BATCH) == parsed
    assert placed(parsed, {}) == parsed


@pytest.mark.parametrize(
    ("code", "state", "requeued"),
    [(75, "RUNNING", True), (75, "COMPLETING", False), (75, "PREEMPTED", False), (1, "RUNNING", False)],
)
def test_the_batch_script_requeues_what_saved_and_was_not_cancelled(
    tmp_path: Path, code: int, state: str, requeued: bool
) -> None:
    programs = {
        "srun": f"exit {code}",
        "squeue": f"echo {state}",
        "scontrol": 'echo "$@" > asked',
        "sleep": "",
    }
    for name, body in programs.items():
        put(tmp_path, name, body)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "4711"}
    script = batch_script(Batch(words=("train.py",)))
    done = subprocess.run(["/bin/bash"], input=script, env=env, cwd=tmp_path, text=True, check=False)
    assert done.returncode == code
    asked = tmp_path / "asked"
    assert asked.exists() is requeued
    assert not requeued or asked.read_text(encoding="utf-8") == "requeue 4711\n"


# -- stoker run in a job that SLURM started again ---------------------------------------------------------------

AGAIN = {**BATCH, "SLURM_RESTART_COUNT": "1"}
OURS = ev.KeeperStarted(t=T, pid=1, start_time=1.0, version="0", slurm_job="4711")
LATER = ev.KeeperStarted(t=T, pid=1, start_time=1.0, version="0")


@pytest.fixture
def continued(monkeypatch: pytest.MonkeyPatch) -> list[Namespace]:
    """What `stoker continue` was called with."""
    found: list[Namespace] = []

    def run(args: Namespace) -> int:
        found.append(args)
        return 75

    monkeypatch.setattr(continuing, "run", run)
    return found


def restarted(tmp_path: Path, *words: str, env: dict[str, str] = AGAIN, **spec: Any) -> int | None:
    parsed = parse_words(["--runs-dir", str(tmp_path), "--no-ui", *words, "t.py"], env)
    return requeued(parsed, job_of(tmp_path, **spec).job, env)


def test_a_requeued_job_continues_its_newest_run(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str], continued: list[Namespace]
) -> None:
    for at, (name, job) in enumerate((("old", "4711"), ("run", "4711"), ("another", "9"))):
        started = msgspec.structs.replace(OURS, slurm_job=job)
        run = own_run_in(tmp_path / "x", job_of(tmp_path), STARTED, started, LATER)
        os.utime(run.root.rename(tmp_path / name), (T + at, T + at))
    (tmp_path / "link").symlink_to(tmp_path / "another")
    (tmp_path / "zz").mkdir()
    broken = own_run_in(tmp_path / "x", job_of(tmp_path), STARTED, OURS).root.rename(tmp_path / "broken")
    (broken / "run.json").write_text("{", encoding="utf-8")
    assert restarted(tmp_path, "--json") == 75
    said = capsys.readouterr().err
    assert said == f"stoker run: SLURM started job 4711 again: {tmp_path}/run continues\n"
    assert vars(continued[0]) == {
        "run": f"{tmp_path}/run", "yes": True, "restart_from_scratch": False, "no_ui": True, "json": True,
        "detach": False, "runs_dir": None, "theme": None, "ascii": False, "lang": None,
    }  # fmt: skip
    assert restarted(tmp_path, "--run-dir", f"{tmp_path}/old") == 75
    assert continued[1].run == f"{tmp_path}/old"
    assert not continued[1].json


@pytest.mark.parametrize("words", [("--dry-run",), ("--run-dir", "none")])
def test_what_continues_nothing_is_a_new_run(
    tmp_path: Path, words: tuple[str, ...], continued: list[Namespace]
) -> None:
    own_run_in(tmp_path, job_of(tmp_path), STARTED, OURS)
    assert restarted(tmp_path, *words) is None
    assert restarted(tmp_path, env=BATCH) is None, "SLURM starts the job for the first time"
    assert restarted(tmp_path, env={**AGAIN, "SLURM_JOB_ID": "9"}) is None
    assert restarted(tmp_path / "none") is None
    screen = parse_words(["--runs-dir", str(tmp_path), "t.py"], AGAIN)
    assert requeued(screen, job_of(tmp_path).job, AGAIN) is None
    assert continued == []


@pytest.mark.parametrize(
    ("facts", "words", "code", "said"),
    [
        ([OURS] * 3, (), 75, None),
        ([OURS] * 4, (), 93, "started 4 times without a new checkpoint (--max-requeues 3): not started again"),
        ([OURS] * 4, ("--max-requeues", "4"), 75, None),
        ([OURS, OURS, SAVED, OURS, OURS], ("--max-requeues", "2"), 75, None),
        ([OURS, SAVED, OURS], ("--max-requeues", "0"), 93, "started 1 times without a new checkpoint (--max-requeues 0): not started again"),
        ([OURS, ev.RunEnded(t=T, outcome=ev.Outcome.FAILED, exit_code=7, reason="it ended early")], (), 7, "it ended early: not started again"),
        ([OURS, ev.RunEnded(t=T, outcome=ev.Outcome.FAILED, exit_code=1, reason="it broke")], (), 75, None),
    ],
)  # fmt: skip
def test_a_job_without_progress_is_not_started_for_ever(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    continued: list[Namespace],
    facts: list[ev.Event],
    words: tuple[str, ...],
    code: int,
    said: str | None,
) -> None:
    run = own_run_in(tmp_path, job_of(tmp_path), STARTED, *facts)
    assert restarted(tmp_path, *words) == code
    said = said or f"SLURM started job 4711 again: {run.root} continues"
    assert capsys.readouterr().err.removeprefix("stoker run: ").removeprefix("run-1: ") == f"{said}\n"


def test_a_follower_waits_for_node_0_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, continued: list[Namespace]
) -> None:
    run = own_run_in(tmp_path, job_of(tmp_path), STARTED, OURS)
    follower: dict[str, Any] = {"node_rank": 1, "timing": Timing(node_timeout_s=0.0)}
    with pytest.raises(JobError, match="node 0 does not continue with it after 0 s") as refused:
        restarted(tmp_path, **follower)
    assert refused.value.exit_code == 5
    monkeypatch.setattr(in_allocation, "beats", lambda *given: given == (run, 0, 0.0))
    assert restarted(tmp_path, **follower) is None
    assert continued == []
