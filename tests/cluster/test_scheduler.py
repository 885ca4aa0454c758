"""What a process learns of its place from its environment, and what SLURM says of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.cluster.scheduler import Place, Scheduler, scheduler_asked, scheduler_of

BATCH = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_NODEID": "0",
}
STEP = {
    **BATCH,
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_NTASKS": "2",
    "SLURM_NODEID": "1",
}


def test_a_task_of_srun_knows_its_place() -> None:
    slurm = scheduler_of(STEP)
    why = "node 1 of 2 in step 0 of SLURM job 4711"
    assert slurm.place == Place(1, 2, ("n1", "n2"), 1, started_on_each=True, step="0", why=why)
    assert (slurm.place.master, slurm.place.name) == ("n1", "n2")
    warning = "this is a SLURM job: its step's end kills a detached keeper; use --no-ui in the batch script"
    assert (slurm.name, slurm.job, slurm.detach_warning) == ("SLURM", "4711", warning)
    assert (slurm.final_code, slurm.starts, slurm.time_left_s(0.0)) == (93, 0, None)


def test_the_batch_script_and_a_shell_run_once() -> None:
    once = Place(0, 2, ("n1", "n2"), why="SLURM job 4711, once for its 2 nodes")
    assert scheduler_of(BATCH).place == once
    assert scheduler_of({**BATCH, "SLURM_NODEID": "1", "SLURM_NTASKS": "8"}).place == once
    lacking = {"SLURM_JOB_ID": "4711", "SLURM_NNODES": "2(x3)"}
    assert scheduler_of(lacking).place == Place(0, 2, why="SLURM job 4711, once for its 2 nodes")
    lists = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_STEP_ID": "2"}
    place = scheduler_of(lists).place
    assert place is not None
    assert (place.nodes, place.node_rank, place.tasks_here, place.step) == (3, 0, 1, "2")


def test_several_tasks_on_a_node_and_a_step_on_a_part_of_the_job() -> None:
    for tasks, here in (("8", 4), ("3", 2), ("2", 1)):
        place = scheduler_of({**STEP, "SLURM_STEP_NUM_TASKS": tasks, "SLURM_NTASKS": "9"}).place
        assert place is not None
        assert place.tasks_here == here
    part = scheduler_of(
        {**STEP, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n2", "SLURM_NODEID": "0"}
    )
    assert part.place is not None
    assert (part.place.nodes, part.place.master) == (1, "n2")
    assert Place(2, 3, ("n1", "n2")).name is None


def test_what_is_no_number_is_not_believed() -> None:
    odd = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "x", "SLURM_STEP_ID": "0", "SLURM_NODEID": "?"}
    scheduler = scheduler_of({**odd, "SLURM_JOB_END_TIME": "soon", "SLURM_RESTART_COUNT": "-1"})
    assert scheduler.place is not None
    assert (scheduler.place.nodes, scheduler.place.node_rank, scheduler.starts) == (1, 0, 0)
    assert scheduler.time_left_s(0.0) is None


def test_limits_and_codes() -> None:
    slurm = scheduler_of({**BATCH, "SLURM_JOB_END_TIME": "1060", "SLURM_RESTART_COUNT": "2"})
    assert (slurm.time_left_s(1000.0), slurm.starts, slurm.job) == (60.0, 2, "4711")
    assert slurm.final_code == 93


def test_without_a_scheduler() -> None:
    none = scheduler_of({"SLURM_CONF": "/etc/slurm.conf"})
    assert none == Scheduler()
    assert (none.job, none.place, none.time_left_s(0.0)) == (None, None, None)
    assert (none.detach_warning, none.final_code) == (None, 1)
    assert none.end_of("1") == ""
    assert Place(0, 1).master is None


@pytest.mark.parametrize(
    ("job", "code", "said", "state"),
    [
        ("77", 0, "RUNNING", "RUNNING"),
        ("77_1", 0, "PENDING", "PENDING"),
        ("77", 1, "RUNNING", ""),
        ("77; rm", 0, "RUNNING", ""),
    ],
)
def test_what_slurm_says_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, code: int, said: str, state: str
) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\n[ \"$*\" = '-h -j {job} -o %T' ] && echo '{said}'\nexit {code}\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert scheduler_asked(job) == state
    assert scheduler_of(BATCH).end_of(job) == ""
    monkeypatch.setenv("PATH", "/nowhere")
    assert scheduler_asked(job) == ""


def test_why_slurm_is_ending_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text('#!/bin/sh\n[ "$*" = "-h -j 77 -o %r" ] && echo TimeLimit\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert (scheduler_of(BATCH).end_of("77"), scheduler_of(BATCH).end_of("78")) == ("TIMEOUT", "")
