"""What the instrumentation says of checkpoints, from processes that really write and read them."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.instrument.child import PACKAGE, PYTHON, SCRIPTS, Ended, read, run


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    done = run([SCRIPTS / "checkpoints.py"], tmp_path_factory.mktemp("checkpoints"))
    assert done.code == 0, done.err
    return done


def relative(ended: Ended, kind: str) -> list[dict[str, Any]]:
    """The records of a kind, with paths below the folder in which the script ran."""
    folder = ended.of("saved")[0]["path"].partition("/kept/")[0] + "/"
    assert all(record["path"].startswith(folder) for record in ended.of(kind))
    return [{**record, "path": record["path"].removeprefix(folder)} for record in ended.of(kind)]


def saved(ended: Ended, path: str) -> dict[str, Any]:
    """The last record of a save at `path`."""
    return [record for record in relative(ended, "saved") if record["path"] == path][-1]


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("kept/by_path.pt", 1),
        ("kept/by_file.pt", 2),
        ("kept/last.pt", 3),
        ("best.pt", 3),
        ("runs/checkpoint-3", 3),
        ("often.pt", 33),
        ("distributed", 33),
        ("distributed2", 33),
        ("later", 33),
    ],
)
def test_a_save_is_recorded_with_its_last_name_and_the_step_of_its_state(
    ended: Ended, path: str, step: int
) -> None:
    assert saved(ended, path)["step"] == step


def test_many_saves_at_one_path_write_few_records(ended: Ended) -> None:
    often = [record for record in relative(ended, "saved") if record["path"] == "often.pt"]
    seconds = often[-1]["t_mono"] - often[0]["t_mono"]
    assert len(often) <= seconds + 2


def test_streams_and_buffers_are_no_checkpoints(ended: Ended) -> None:
    paths = {record["path"] for record in relative(ended, "saved")}
    assert not [path for path in paths if "distcp" in path or "metadata" in path]
    assert paths == {
        "kept/by_path.pt",
        "kept/by_file.pt",
        "kept/tmp",
        "kept/last.pt",
        "best.pt",
        "runs/checkpoint-1/parts/model.pt",
        "runs/checkpoint-3",
        "snapshot.pt",
        "often.pt",
        "distributed",
        "distributed2",
        "later",
    } | ({"model.safetensors", "tensors.safetensors"} if "no safetensors" not in ended.out else set())


def test_loads_and_the_optimizer_state_that_came_back(ended: Ended) -> None:
    loaded = relative(ended, "loaded")
    paths = [record["path"] for record in loaded if not record.get("optimizer_state")]
    assert paths[:2] == ["distributed", "kept/by_path.pt"]
    if "no safetensors" not in ended.out:
        assert paths[2:] == ["model.safetensors", "tensors.safetensors"]
    (state,) = [record for record in loaded if record.get("optimizer_state")]
    assert (state["path"], state["optimizer_step"]) == ("kept/by_path.pt", 1)


def test_only_what_was_looked_for_and_is_saved_later_is_told(ended: Ended) -> None:
    sought = [(record["path"], record["by"]) for record in relative(ended, "sought")]
    assert sorted(sought) == [
        ("best.pt", "is_file"),
        ("kept/last.pt", "exists"),
        ("runs", "scandir"),
        ("snapshot.pt", "load"),
    ]


def test_nothing_of_the_instrumentation_failed(ended: Ended) -> None:
    assert ended.of("note") == []


@pytest.mark.parametrize(
    ("mode", "known", "unsaved"), [("resumes", "loaded", "first.pt"), ("-", "step", "after0.pt")]
)
def test_a_save_waits_until_the_attempt_is_confirmed(
    mode: str, known: str, unsaved: str, tmp_path: Path
) -> None:
    """What the keeper judges by is written before: what was loaded, if the script saves before its first step; else the step."""
    import torch

    torch.save({}, tmp_path / "before.pt")
    telemetry = tmp_path / "telemetry"
    environment = {
        **os.environ,
        "STOKER_TELEMETRY_DIR": str(telemetry),
        "STOKER_CONFIRM": "1",
        "PYTHONPATH": str(PACKAGE / "on_path"),
    }
    child = subprocess.Popen(
        [PYTHON, SCRIPTS / "waiting.py", mode],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not (seen := [record for record in read(telemetry) if record["kind"] == known]):
            assert time.monotonic() < deadline, f"{known} is told while the save waits"
            time.sleep(0.02)
        assert [record.get("micro_steps", 1) for record in seen] == [1]
        time.sleep(0.2)  # a save that does not wait is written by then
        assert not (tmp_path / unsaved).exists(), "no byte is written before"
        (telemetry / "confirmed").touch()
        out, _ = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0
    first, *others = [float(line.split()[1]) for line in out.splitlines()]
    assert 0.1 < first < 10
    assert max(others) < 1, "once confirmed, nothing waits"
    assert [record for record in read(telemetry) if record["kind"] == "note"] == []


def test_a_save_that_nobody_confirms_goes_on_and_says_so(tmp_path: Path) -> None:
    done = run(["-c", SHORT_WAIT, "-"], tmp_path, STOKER_CONFIRM="1")
    assert done.code == 0, done.err
    times = [float(line.split()[1]) for line in done.out.splitlines()]
    assert 0.3 <= sum(times) < 2, "all saves together wait this long"
    assert [(record["code"], record["where"]) for record in done.of("note")] == [
        ("unconfirmed_save", "step 1")
    ]
    assert len(done.of("saved")) == 2


def test_nothing_waits_in_an_attempt_without_a_plan(tmp_path: Path) -> None:
    done = run([SCRIPTS / "waiting.py", "-"], tmp_path)
    assert max(float(line.split()[1]) for line in done.out.splitlines()) < 1
    assert done.of("note") == []


SHORT_WAIT = f"""
import sys, runpy
import torch
sys.modules["_stoker_instrument.checkpoints"].CONFIRM_S = 0.4
runpy.run_path({str(SCRIPTS / "waiting.py")!r})
"""
