"""Who started a rank and where it stands; what --debug and --profile say; presets."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.job.config.files import parse_config
from tests.tiers import first
from tests.trainer.runs import MAIN, TINY, flags, records, run, train_here
from trainer.config import Config, UsageError
from trainer.distributed.place import detect, slurm_master
from trainer.settings import read


@pytest.mark.parametrize(
    ("env", "expected", "says"),
    [
        ({}, (0, 0, 1), "single process"),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "x"},
            (3, 1, 4),
            "torchrun",
        ),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, None, 2), "RANK and WORLD_SIZE"),
        (
            {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0"},
            (5, 1, 8),
            "SLURM",
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (0, 0, 1), "single process"),
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"},
            (1, 1, 2),
            "RANK",
        ),
    ],
)
def test_the_launcher_is_found_and_named(
    env: dict[str, str], expected: tuple[int, int | None, int], says: str
) -> None:
    place = detect(env, Config())
    assert (place.rank, place.told_local_rank, place.world_size) == expected
    assert says in place.reason


def test_what_a_launcher_left_half_done_is_refused() -> None:
    with pytest.raises(UsageError, match="only one is set"):
        detect({"RANK": "1"}, Config())
    with pytest.raises(UsageError, match="is not a number"):
        detect({"RANK": "x", "WORLD_SIZE": "2"}, Config())
    with pytest.raises(UsageError, match="put srun before the command"):
        detect({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, Config())
    shell = {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}  # salloc's own, with the job's count
    with pytest.raises(UsageError, match="put srun before the command"):
        detect({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", **shell}, Config())
    for rank, world in (("2", "2"), ("0", "0")):
        with pytest.raises(UsageError, match="ranks count from 0"):
            detect({"RANK": rank, "WORLD_SIZE": world}, Config())
    with pytest.raises(UsageError, match="--single_gpu"):
        detect({"RANK": "0", "WORLD_SIZE": "2"}, Config(single_gpu=True))
    assert detect({"RANK": "1", "WORLD_SIZE": "2"}, Config(local_rank=1)).told_local_rank == 1


def test_slurm_tasks_meet_at_the_first_node() -> None:
    env = {"SLURM_JOB_NODELIST": "gpu[007-009,012]", "SLURM_JOB_ID": "123456"}
    assert slurm_master(env) == ("gpu007", "23456")
    assert slurm_master({"SLURM_JOB_NODELIST": "a1,a2"})[0] == "a1"
    assert slurm_master({"SLURM_JOB_NODELIST": "r[1-2]n[03,05]-ib,x9"})[0] == "r1n03-ib"


@pytest.mark.e2e
def test_its_own_spawn(tmp_path: Path) -> None:
    args = flags(telemetry_dir="tel", checkpoint_dir="ck", distributed=True, world_size=2)
    done = run(1, *args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2" in done.stdout
    assert records(tmp_path, rank=1)[-1]["reason"] == "done"
    failed = run(1, *args, "--fault=exit:7@2:1", cwd=tmp_path)
    assert failed.returncode in {1, 7}  # rank 0 may notice before its parent does


def test_debug_names_what_gets_no_gradient(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_here(tmp_path, debug=True, fault="unused_parameter@0", num_iterations=1) == 0
    assert "no gradient for: spare" in capsys.readouterr().err


@pytest.mark.parametrize(
    "path", first(3, sorted((MAIN.parents[1] / "configs").glob("*/*.*"))), ids=lambda p: p.name
)
def test_presets_load_as_stoker_hands_them_on_and_run_shortened(path: Path, tmp_path: Path) -> None:
    values = parse_config(path.name, path.read_bytes())
    given = [f"--{key}={value}" for key, value in values.items() if not isinstance(value, dict)]
    config = read(given).config
    assert config != Config()
    short = {
        name: value
        for name, value in values.items()
        if not isinstance(value, dict) and name in Config.__dataclass_fields__
    }
    sizes = {"num_iterations": 2, "eval_every": 1, "save_every": 1, "num_workers": 0, "seq_len_schedule": ""}
    short.pop("memory_cap_mib", None)
    assert train_here(tmp_path, None, **{**short, **TINY, **sizes}) == 0
