"""The trainer as a process: by its path, under torchrun, asked to stop, and failing on request."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import wait_until
from tests.tiers import first
from tests.trainer.runs import MAIN, command, environment, flags, losses, records, run, train_here
from trainer.faults import parse

FOREIGN = "raise SystemExit('a foreign trainer.py won')\n"


def test_two_ranks_by_path_beside_a_foreign_trainer_equal_one_rank(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text(FOREIGN)
    (tmp_path / "model.py").write_text(FOREIGN)
    done = run(
        2, *flags(telemetry_dir="tel", checkpoint_dir="ck", eval_every=3, eval_samples=5), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "batch: 4 × accumulation 1 × 2 ranks = 8 samples a step" in done.stdout
    assert "Warning" not in done.stderr
    assert done.stdout.count("step 6/6 | loss") == 1
    train_here(tmp_path / "one", eval_every=3, eval_samples=5)
    one, two = losses(tmp_path / "one"), losses(tmp_path)
    assert all(abs(one[k] - two[k]) < 1e-4 for k in one)
    values = [
        [r["val_loss"] for r in records(folder, kind="step") if "val_loss" in r]
        for folder in (tmp_path, tmp_path / "one")
    ]
    assert values[0] == pytest.approx(values[1], abs=1e-4)
    assert records(tmp_path, rank=1)[-1]["reason"] == "done"
    assert not records(tmp_path, rank=1, kind="checkpoint_committed")


@pytest.mark.parametrize("how", first(1, [signal.SIGTERM, signal.SIGUSR1]))
def test_a_signal_ends_in_a_checkpoint_and_75(how: signal.Signals, tmp_path: Path) -> None:
    settings = flags(num_iterations=100_000, telemetry_dir="tel", checkpoint_dir="ck")
    with subprocess.Popen(
        command(1, *settings),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        telemetry = tmp_path / "tel" / "rank0.jsonl"
        assert wait_until(lambda: telemetry.exists() and '"step"' in telemetry.read_text(), 60)
        assert wait_until(lambda: '"kind":"step"' in telemetry.read_text(), 60)
        process.send_signal(how)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert f"({how.name})" in out
    assert "Traceback" not in err
    last = records(tmp_path, kind="checkpoint_committed")[-1]
    assert last["final"]
    assert last["step"] == records(tmp_path)[-1]["step"]


def test_ranks_without_a_place_to_meet_do_not_wait(tmp_path: Path) -> None:
    done = run(1, *flags(), cwd=tmp_path, RANK="0", WORLD_SIZE="2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "but not MASTER_ADDR and MASTER_PORT" in done.stderr


@pytest.mark.parametrize("rank", ["0", "1"])
def test_bad_input_is_one_line_of_rank_0_before_ranks_meet(rank: str, tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(66_000, 66_200, 5000, dtype=np.uint32)
    tokens.tofile(tmp_path / "t.bin")
    # Nobody answers at port 1: a rank that wanted to meet the other would end with another error.
    world = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }
    given = flags(train_data_path="t.bin", vocab_size=256, init_timeout_s=5)
    done = run(1, *given, cwd=tmp_path, **world)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    said = done.stderr.splitlines()
    assert len(said) == (rank == "0"), said
    assert all("t.bin: read as uint16" in line and "data_dtype uint32" in line for line in said)


def test_help_and_usage_do_not_wait_for_torch(tmp_path: Path) -> None:
    code = f"import sys, runpy; sys.argv = ['x', '--help']\ntry:\n runpy.run_path({str(MAIN)!r}, run_name='__main__')\nfinally:\n assert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "--device_batch_size" in done.stdout


def test_a_fault_names_its_rank_and_spares_the_second_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.faults import Faults, InjectedError

    planned = parse("exception@3:1, nan@4, exception@5*")
    Faults(planned, 0).before_step(3)
    with pytest.raises(InjectedError, match="step 3 on rank 1"):
        Faults(planned, 1).before_step(3)
    assert Faults(planned, 0).spoils_loss(4)
    monkeypatch.setenv("STOKER_ATTEMPT", "2")
    Faults(planned, 1).before_step(3)
    with pytest.raises(InjectedError):
        Faults(planned, 1).before_step(5)


@pytest.mark.e2e
@pytest.mark.parametrize("how", first(1, ["SIGTERM to torchrun", "stop file"]))
def test_all_ranks_agree_to_stop_whoever_was_asked(how: str, tmp_path: Path) -> None:
    settings = flags(num_iterations=100_000, telemetry_dir="tel", checkpoint_dir="ck")
    stop = tmp_path / "stop"
    with subprocess.Popen(
        command(2, *settings),
        cwd=tmp_path,
        env=environment(STOKER_STOP_FILE=str(stop)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        paths = [tmp_path / "tel" / f"rank{rank}.jsonl" for rank in (0, 1)]
        assert wait_until(lambda: all(p.exists() and '"kind":"step"' in p.read_text() for p in paths), 60)
        if how == "stop file":
            stop.touch()
        else:
            process.terminate()
        process.communicate(timeout=60)
    ends = [records(tmp_path, rank=rank)[-1] for rank in (0, 1)]
    assert [(end["kind"], end["exit_code"], end["reason"]) for end in ends] == [("exit", 75, "stopped")] * 2
    assert ends[0]["step"] == ends[1]["step"] == records(tmp_path, kind="checkpoint_committed")[-1]["step"]
