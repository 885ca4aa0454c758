"""The wheel beside PyPI's `supervisor` and Coqui's `trainer`, which have the names that a checkout has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.run.events import Outcome
from supervisor.run.ownership import keeper_is_alive
from supervisor.run.state import Finished, RunState
from tests.conftest import wait_until
from tests.integration.harness import ROOT, end_of, only_run, state_of
from tests.tools.wheel import build, environment, pip
from tests.trainer.runs import TINY

THEIRS = ("supervisor", "trainer")
VERSION = (ROOT / "supervisor" / "__init__.py").read_text().split('__version__ = "')[1].split('"')[0]

# Stdin: the wheel's modules. Each is imported; then each file of the named distributions is what its wheel held.
LOOK = """
import base64, hashlib, importlib, json, sys
from importlib import metadata
for name in json.load(sys.stdin):
    importlib.import_module(name)
short = [name for name in sys.modules if name.partition(".")[0] in {"supervisor", "trainer"}]
changed = []
for dist in map(metadata.distribution, sys.argv[1:]):
    for file in dist.files:
        if file.hash and file.locate().suffix != ".pyc" and ".." not in file.parts:
            digest = hashlib.new(file.hash.mode, file.locate().read_bytes()).digest()
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
                changed.append(str(file))
print(json.dumps([short, changed]))
"""

# A user's own modules of these names lie beside it; these are what it must get.
TOY = """
import time
import torch.distributed as dist
import model, supervisor, trainer
assert (model.WHOSE, supervisor.WHOSE, trainer.WHOSE) == ("mine",) * 3
dist.init_process_group("gloo")
for step in range(1, 6):
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"step {step}/5 loss {1 / step:.3f}", flush=True)
    time.sleep(0.05)
dist.destroy_process_group()
"""
# Out of memory on rank 1 at 16, not at 8, as in tests/integration/test_trainer.py.
OOM = {
    **TINY, "depth": 2, "model_dim": 128, "head_dim": 32, "device_batch_size": 16, "total_batch_size": 8192, "max_seq_len": 256,
    "seq_len_schedule": "0:64,4:256", "num_iterations": 10, "memory_cap_step": 1, "memory_cap_mib": "400,95", "save_every": 2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment with the wheel, and a user's folder to work in."""

    python: Path
    modules: tuple[str, ...]
    folder: Path

    def run(self, *words: str | Path, stdin: str = "", code: int = 0) -> str:
        """Run a command of the environment in the user's folder, with nothing of the checkout in reach; what it prints."""
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        program = self.python.with_name(str(words[0]))
        done = subprocess.run(
            [program, *words[1:]], cwd=self.folder, env=env, input=stdin, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def check(self, *theirs: str) -> None:
        """All modules import, as themselves; files of all three distributions are untouched; commands answer."""
        short, changed = json.loads(
            self.run("python", "-P", "-c", LOOK, "stoker", *theirs, stdin=json.dumps(self.modules))
        )
        assert (short, changed) == ([], [])
        assert self.run("stoker", "--version") == f"stoker {VERSION}\n"
        assert self.run("python", "-m", "stoker.supervisor", "--version") == f"stoker {VERSION}\n"
        assert "usage: stoker VERB" in self.run("stoker", "--help")
        log = ROOT / "tests/corpus/data/real/host_oom_allocator/concat.log"
        verdict = json.loads(self.run("stoker", "diagnose", "--json", log, code=10))
        assert (verdict["failure"], verdict["reason"]) == ("host_oom", "allocator")
        assert "python -m stoker.trainer.data prepare" in self.run(
            "python", "-m", "stoker.trainer", "data", "prepare", "--help"
        )
        if "supervisor" in theirs:
            assert self.run("supervisord", "--version").strip()[0].isdigit()

    def ended(self) -> RunState:
        """The one run's state, once its keeper has left; its folder is moved away for the next."""
        run = only_run(self.folder)
        assert wait_until(lambda: isinstance(state_of(run).condition, Finished), 120, 0.1)
        assert wait_until(lambda: not keeper_is_alive(run.node().lock), 30)
        state = state_of(run)
        (self.folder / "runs").rename(self.folder / f"runs of {run.run_id}")
        assert end_of(state).outcome is Outcome.SUCCEEDED
        return state


@pytest.fixture(name="theirs")
def _theirs(tmp_path: Path) -> tuple[Path, ...]:
    """The wheels of the packages whose names are in question."""
    try:
        pip("download", "--no-deps", "--only-binary", ":all:", "--dest", str(tmp_path / "theirs"), *THEIRS)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no package index in reach: {error.stderr.strip().splitlines()[-1]}")
    return tuple(sorted((tmp_path / "theirs").iterdir()))


@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_the_installed_program_and_packages_of_the_same_names_leave_each_other_alone(
    tmp_path: Path, theirs: tuple[Path, ...]
) -> None:
    wheel = build(tmp_path / "wheel")
    python = environment(tmp_path / "env")
    held = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in held} == {"stoker", f"stoker-{VERSION}.dist-info"}
    sources = sum(len(list((ROOT / name).rglob("*.py"))) for name in THEIRS)
    # A folder on a job's PYTHONPATH and the presets are no modules.
    files = [name for name in held if name.endswith(".py") and "/configs/" not in name]
    assert len(files) == sources + 1
    modules = tuple(
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in files
        if "/on_path/" not in name
    )
    folder = tmp_path / "user"
    folder.mkdir()
    for name in ("trainer.py", "supervisor.py", "model.py"):
        (folder / name).write_text("WHOSE = 'mine'\n")
    (folder / "toy.py").write_text(TOY)
    here = Installed(python, modules, folder)

    pip("install", "--no-deps", "--no-index", *map(str, theirs), python=python)
    pip("install", "--no-deps", "--no-index", str(wheel), python=python)
    here.check(*THEIRS)
    # The keeper is a child of its own, and torchrun's ranks get what lies beside their script.
    here.run("stoker", "run", "--detach", "--nproc-per-node", "2", "--python", str(python), "toy.py")
    assert here.ended().attempts[-1].last_step == 5

    pip("uninstall", "--yes", *THEIRS, python=python)
    here.check()
    # The bundled trainer, by its path, under another interpreter than ours.
    given = [f"--{name}={value}" for name, value in OOM.items()]
    here.run("stoker", "run", "--no-ui", "--python", sys.executable, "--config", "demo/demo", *given)
    first, second = here.ended().attempts
    assert first.verdict is not None
    assert (first.verdict.failure.value, first.verdict.rank) == ("host_oom", 1)
    assert first.batch is not None
    assert second.batch is not None
    assert (first.batch.micro_batch_per_rank, second.batch.micro_batch_per_rank) == (16, 8)
    assert second.batch.global_batch == first.batch.global_batch
    assert second.resumed_step == max(first.checkpoint_steps)
    assert second.last_step == 10

    pip("install", "--no-deps", "--no-index", *map(str, theirs), python=python)
    here.check(*THEIRS)
    # With a spawned data loading process a rank, which imports the trainer again: by its name, and by its path.
    given = ["--num_workers=1", *(f"--{name}={value}" for name, value in TINY.items())]
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "stoker.trainer")
    assert "step 6/6 | loss" in here.run("python", *launcher, *given)
    (main,) = (tmp_path / "env").glob("lib/python*/site-packages/stoker/trainer/__main__.py")
    assert "step 6/6 | loss" in here.run("python", "-I", main, *given)
