"""What the instrumentation says of checkpoints, from processes that really write and read them."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.instrument.child import PACKAGE, PYTHON, SCRIPTS, read, run
from tests.tiers import first

LAST_STEPS = {
    "kept/by_path.pt": 1, "kept/by_file.pt": 2, "kept/last.pt": 3, "best.pt": 3, "runs/checkpoint-3": 3,
    "often.pt": 33, "distributed": 33, "distributed2": 33, "later": 33,
}  # fmt: skip
OTHERS = {"kept/tmp", "runs/checkpoint-1/parts/model.pt", "snapshot.pt"}


def test_saves_loads_and_what_was_looked_for(tmp_path: Path) -> None:
    ended = run([SCRIPTS / "checkpoints.py"], tmp_path)
    assert (ended.code, ended.of("note")) == (0, []), ended.err

    def relative(kind: str) -> list[dict[str, Any]]:
        return [{**record, "path": record["path"].removeprefix(f"{tmp_path}/")} for record in ended.of(kind)]

    saved = relative("saved")
    # Each with its last name and the step of its state; streams and buffers are none.
    safe = {"model.safetensors", "tensors.safetensors"} if "no safetensors" not in ended.out else set()
    steps = {record["path"]: record["step"] for record in saved}
    assert steps.keys() == LAST_STEPS.keys() | OTHERS | safe
    assert LAST_STEPS.items() <= steps.items()
    often = [record for record in saved if record["path"] == "often.pt"]
    assert len(often) <= often[-1]["t_mono"] - often[0]["t_mono"] + 2, "many saves write few records"

    loaded = relative("loaded")
    (state,) = [record for record in loaded if record.get("optimizer_state")]
    assert (state["path"], state["optimizer_step"]) == ("kept/by_path.pt", 1)
    paths = [record["path"] for record in loaded if record is not state]
    assert paths == ["distributed", "kept/by_path.pt", *sorted(safe)]
    # Only what was looked for and is saved later.
    assert sorted((record["path"], record["by"]) for record in relative("sought")) == [
        ("best.pt", "is_file"),
        ("kept/last.pt", "exists"),
        ("runs", "scandir"),
        ("snapshot.pt", "load"),
    ]


@pytest.mark.parametrize(
    ("mode", "known", "unsaved"), first(1, [("-", "step", "after0.pt"), ("resumes", "loaded", "first.pt")])
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
    waited, *others = [float(line.split()[1]) for line in out.splitlines()]
    assert 0.1 < waited < 10
    assert max(others) < 1, "once confirmed, nothing waits"
    assert [record for record in read(telemetry) if record["kind"] == "note"] == []


@pytest.mark.e2e
def test_a_save_that_nobody_confirms_goes_on_and_says_so(tmp_path: Path) -> None:
    done = run(["-c", SHORT_WAIT, "-"], tmp_path, STOKER_CONFIRM="1")
    assert done.code == 0, done.err
    times = [float(line.split()[1]) for line in done.out.splitlines()]
    assert 0.3 <= sum(times) < 2, "all saves together wait this long"
    assert [(record["code"], record["where"]) for record in done.of("note")] == [
        ("unconfirmed_save", "step 1")
    ]
    assert len(done.of("saved")) == 2


SHORT_WAIT = f"""
import sys, runpy
import torch
sys.modules["_stoker_instrument.checkpoints"].CONFIRM_S = 0.4
runpy.run_path({str(SCRIPTS / "waiting.py")!r})
"""
