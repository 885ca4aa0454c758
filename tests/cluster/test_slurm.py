"""SLURM's programs: what is asked of them and what their answers come to, and the batch script that is handed to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.cluster.slurm import programs
from supervisor.cluster.slurm.programs import QueuedJob, SlurmError
from supervisor.cluster.slurm.script import BadBatch, Batch, batch_script, job_name

RECORD = (
    "JobId=7 JobName=train JobState=PENDING Reason=Priority StartTime=2026-01-02T03:04:05 NodeList={} "
    "ExitCode=1:0 Restarts=2 StdOut=/logs/7.out"
)
LINES = {
    "7 train · PENDING · Priority · expected to start soon · restarts 2":
        QueuedJob("7", "PENDING", "Priority", "soon", "1:00", (), "train", "0:0", 2),
    "7 · PENDING": QueuedJob("7", "PENDING", "None", "N/A", exit_code="0:0"),
    "7 t · RUNNING · 59:00 left · n1,n2": QueuedJob("7", "RUNNING", "None", "soon", "59:00", ("n1", "n2"), "t", "0:0"),
    "7 · COMPLETED · n1 · exit 0:0": QueuedJob("7", "COMPLETED", "", "soon", "1:00", ("n1",), exit_code="0:0"),
    "7 · FAILED": QueuedJob("7", "FAILED"),
}  # fmt: skip


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[], str]]:
    """Put a program on PATH, where nothing else is; what it gives tells with which words it was called."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def put(name: str, *lines: str, says: str = "", code: int = 0) -> Callable[[], str]:
        asked = tmp_path / f"{name}.asked"
        body = "".join(f"echo '{line}'\n" for line in lines) + (f"echo '{says}' >&2\n" if says else "")
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$@" > {asked}\n{body}exit {code}\n')
        (tmp_path / name).chmod(0o755)
        return lambda: asked.read_text().rstrip("\n")

    return put


@pytest.mark.parametrize("line", LINES)
def test_a_job_is_one_line(line: str) -> None:
    assert LINES[line].line() == line


def test_the_queue_is_read_in_one_call(put: Callable[..., Callable[[], str]]) -> None:
    asked = put(
        "squeue",
        "7|RUNNING|None|N/A|59:00|n[1-2]|2|a|b",
        "8_1|PENDING | Priority|2026-01-02T03:04:05|1:00||2|c",
        "slurm_load_jobs: warning",
    )
    assert programs.queue() == {
        "7": QueuedJob("7", "RUNNING", "None", "N/A", "59:00", ("n1", "n2"), "a|b"),
        "8_1": QueuedJob("8_1", "PENDING", "Priority", "2026-01-02T03:04:05", "1:00", (), "c"),
    }
    assert asked() == "--me -h -o %i|%T|%r|%S|%L|%N|%D|%j"


def test_the_record_of_a_job_is_asked_of_the_controller_and_then_of_the_accounts(
    put: Callable[..., Callable[[], str]],
) -> None:
    assert programs.job_record("7") is None
    asked = put("sacct", "warning", "7|CANCELLED by 0|n[1-2]|0:15|train")
    known = QueuedJob("7", "CANCELLED", nodes=("n1", "n2"), exit_code="0:15", name="train")
    assert programs.job_record("7") == known
    assert asked() == "-X -n -P -j 7 --format=JobID,State,NodeList,ExitCode,JobName"
    put("scontrol", says="slurm_load_jobs error: Invalid job id specified", code=1)
    assert programs.job_record("7") == known
    put("scontrol", "")
    put("sacct", "7||None assigned|0:0|train")
    assert programs.job_record("7") == QueuedJob("7", "", exit_code="0:0", name="train")
    put("sacct")
    assert programs.job_record("7") is None
    asked = put("scontrol", RECORD.format("n[1-2]"), "another line")
    found = QueuedJob(
        "7", "PENDING", "Priority", "2026-01-02T03:04:05", "", ("n1", "n2"), "train", "1:0", 2, "/logs/7.out"
    )
    assert programs.job_record("7") == found
    assert asked() == "show job -o 7"
    put("scontrol", RECORD.format("(null)"))
    assert programs.job_record("7") == replace(found, nodes=())
    put("scontrol", "JobId=7 Restarts=x")
    assert programs.job_record("7") == QueuedJob("7", "")


def test_nodes_that_are_down_are_kept_off_and_jobs_canceled(put: Callable[..., Callable[[], str]]) -> None:
    assert programs.nodes_down(()) == ()
    asked = put(
        "sinfo", "n1 idle", "n2 down*", "n2 down*", "n3 drained", "n4 failing", "n5", "n6 allocated down"
    )
    assert programs.nodes_down(("n1", "n2")) == ("n2", "n3", "n4")
    assert asked() == "-h -N -n n1,n2 -o %N %T"
    asked = put("scontrol")
    programs.exclude("7", ("n2", "n3"))
    assert asked() == "update JobId=7 ExcNodeList=n2,n3"
    asked = put("scancel")
    programs.cancel("7")
    assert asked() == "7"


def test_a_script_is_submitted(put: Callable[..., Callable[[], str]]) -> None:
    asked = put("sbatch", "4711;loop")
    assert programs.submit("#!/bin/bash\n") == "4711"
    assert asked() == "--parsable"
    put("sbatch", "Submitted batch job 4711")
    with pytest.raises(SlurmError) as refused:
        programs.submit("")
    assert str(refused.value) == "sbatch: no job number in its answer 'Submitted batch job 4711'"


@pytest.mark.parametrize(
    ("says", "code", "told"),
    [
        ("squeue: error: one\n\nsqueue: two\nthree\nfour", 1, "squeue: one; two; three"),
        ("", 3, "squeue: exit 3"),
    ],
)
def test_what_slurm_refuses_is_one_line(
    put: Callable[..., Callable[[], str]], says: str, code: int, told: str
) -> None:
    put("squeue", says=says, code=code)
    with pytest.raises(SlurmError) as refused:
        programs.ask(["squeue"])
    assert str(refused.value) == told


def test_slurm_that_is_not_there_or_does_not_answer_is_said(
    tmp_path: Path, put: Callable[..., object]
) -> None:
    with pytest.raises(SlurmError) as missing:
        programs.ask(["squeue"])
    assert (
        str(missing.value) == "squeue is not on PATH: this is no SLURM machine, or its module is not loaded"
    )
    put("squeue")
    (tmp_path / "squeue").write_text("#!/bin/sh\nexec /bin/sleep 30\n")
    with pytest.raises(SlurmError) as silent:
        programs.ask(["squeue"], bound_s=0.2)
    assert str(silent.value) == "squeue does not answer within 0 s: the controller is down or busy"
    (tmp_path / "squeue").write_bytes(b"\x7fELF")
    with pytest.raises(SlurmError) as broken:
        programs.ask(["squeue"])
    assert str(broken.value) == "squeue: Exec format error"


# -- the batch script --------------------------------------------------------------------------------------

ALL = Batch(
    words=("train.py", "--note", "a b"), stoker=("/opt/stoker",), name="my job!", nodes=2, gpus=8, cpus=16, mem="64G",
    time="1-12", partition="gpu", account="lab", array="0-3", exclude=("n3", "n4"), warn_s=60, requeue=False, logs="out",
    more=("--qos=high", "--exclusive"), setup=("module load cuda",),
)  # fmt: skip
HEAD = """\
#!/bin/bash
#SBATCH --job-name=my-job
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --time=1-12
#SBATCH --partition=gpu
#SBATCH --account=lab
#SBATCH --array=0-3
#SBATCH --exclude=n3,n4
#SBATCH --signal=B:USR1@60
#SBATCH --output=out/%x-%A_%a.out
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --qos=high
#SBATCH --exclusive
"""
PLAIN = """\
#!/bin/bash
#SBATCH --job-name=stoker
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --signal=B:USR1@120
#SBATCH --output=logs/%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
"""


@pytest.mark.parametrize(("batch", "head"), [(ALL, HEAD), (Batch(("train.py",)), PLAIN)])
def test_the_head_of_the_script_asks_for_what_was_given_and_nothing_else(batch: Batch, head: str) -> None:
    assert batch_script(batch).partition("\n\n")[0] + "\n" == head


def test_the_script_starts_stoker_on_each_node_and_hands_signals_on() -> None:
    lines = [line for line in batch_script(ALL).split("\n") if not line.startswith("#")]
    assert lines == [
        "",
        "module load cuda",
        "srun --kill-on-bad-exit=0 --open-mode=append --output=out/%x-%j_%n.out \\",
        "  /opt/stoker run --no-ui train.py --note 'a b' &",
        "srun=$!",
        "",
        "trap 'kill -USR1 $srun 2>/dev/null' USR1",
        "trap 'kill -TERM $srun 2>/dev/null' TERM",
        "wait $srun; code=$?",
        "while kill -0 $srun 2>/dev/null; do wait $srun; code=$?; done",
        "exit $code",
        "",
    ]


SPACE = "a space or a line break in it would end the option"
OPTION = "an option of sbatch is meant, --qos=high"
MISREAD: list[tuple[dict[str, Any], str]] = [
    ({"time": "soon"}, "--time soon: SLURM takes minutes, MM:SS, HH:MM:SS or D-HH[:MM[:SS]]"),
    ({"words": ()}, "nothing to start: after the flags give what follows `stoker run`"),
    ({"mem": "64 G"}, f"--mem '64 G': {SPACE}"),
    ({"partition": "g\n"}, rf"--partition 'g\n': {SPACE}"),
    ({"more": ("qos",)}, f"--sbatch 'qos': {OPTION}"),
    ({"more": ("--a=b c",)}, f"--sbatch '--a=b c': {OPTION}"),
    ({"setup": ("a\nb",)}, r"--setup 'a\nb': a line of the shell is meant, without control characters"),
]


@pytest.mark.parametrize(("changes", "why"), MISREAD)
def test_what_slurm_would_misread_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(BadBatch) as refused:
        batch_script(replace(ALL, **changes))
    assert str(refused.value) == why


@pytest.mark.parametrize("time", ["90", "1:30", "12:00:00", "1-12", "1-12:30", "1-12:30:00"])
def test_times_are_taken_as_sbatch_takes_them(time: str) -> None:
    assert f"#SBATCH --time={time}\n" in batch_script(replace(ALL, time=time))


def test_a_job_has_a_name_that_a_file_may_have() -> None:
    assert [job_name(name) for name in ("a/b c.py", "--", "x" * 70)] == ["a-b-c.py", "stoker", "x" * 60]
