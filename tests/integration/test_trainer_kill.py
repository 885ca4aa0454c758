"""Two ranks killed at three chosen moments: the resumed run is the unbroken one (random moments: `bench/fault_run.py --job trainer`)."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import wait_until
from tests.tiers import first
from tests.trainer.runs import command, environment, flags, losses, run, train_here
from trainer.checkpoint import storage

pytestmark = pytest.mark.e2e
# A checkpoint of 12 MB: its write lasts some tens of milliseconds.
SETTINGS: dict[str, Any] = {
    "num_iterations": 40,
    "save_every": 5,
    "depth": 2,
    "model_dim": 192,
    "head_dim": 32,
}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    folder = tmp_path_factory.mktemp("whole")
    train_here(folder, None, **SETTINGS)
    return losses(folder)


def kill_tree(pid: int) -> None:
    """SIGKILL to torchrun and all ranks: each is a session leader of its own."""
    parent = psutil.Process(pid)
    tree = [*parent.children(recursive=True), parent]
    for process in tree:
        process.kill()
    psutil.wait_procs(tree, timeout=30)


@pytest.mark.parametrize("moment", first(1, ["in a save", "in a step", "soon after a commit"]))
def test_sigkill_at_any_moment_resumes_to_the_same_losses(
    moment: str, tmp_path: Path, unbroken: dict[int, float]
) -> None:
    telemetry, folder = tmp_path / "tel" / "rank0.jsonl", tmp_path / "ck"
    args = flags(**SETTINGS, telemetry_dir="tel", checkpoint_dir="ck")

    def reached() -> bool:
        seen = telemetry.read_text() if telemetry.exists() else ""
        match moment:
            case "in a step":
                return '"rank":0,"step":23,"total' in seen
            case "in a save":
                return any(folder.glob("step_0000002*.tmp")) if folder.exists() else False
            case _:
                return '"kind":"checkpoint_committed","rank":0,"step":20' in seen

    with subprocess.Popen(
        command(2, *args),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert wait_until(reached, 120, poll_s=0.0005)
        kill_tree(process.pid)
    newest, passed_over = storage.newest(folder)
    assert passed_over == []
    assert newest is not None
    if moment == "in a save":
        assert storage.step_of(newest) < 25
    done = run(2, *args, "--resume_from=auto", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"resumed from {newest}: step" in done.stdout
    assert not list(folder.glob("*.tmp"))
    resumed = losses(tmp_path)
    assert unbroken.keys() == resumed.keys()
    assert all(abs(unbroken[k] - resumed[k]) <= 1e-4 for k in unbroken)
