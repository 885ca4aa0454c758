"""Rounds that kill a two-rank training of the bundled trainer, without stoker, and resume it from its newest checkpoint.

Each kill is SIGKILL to the whole process tree: torchrun, ranks, their children. The moments are drawn from the seed: while a
checkpoint is being written, at any time in the steps, during the start, and just after a commit. After each kill every
checkpoint with a marker must be whole, and the next start must resume from the newest of these. At the target step, losses and
final tensors must equal those of an uninterrupted run, which all rounds share.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch

from bench.rounds import Broken, Tally
from tests.trainer.runs import command, environment, flags
from trainer.checkpoint import storage

STEPS, KILLS_A_ROUND = 200, 4
# 1.9 million parameters: a checkpoint of 22 MB takes some tens of milliseconds to write.
SETTINGS: Mapping[str, Any] = {
    "depth": 2,
    "model_dim": 256,
    "device_batch_size": 2,
    "max_seq_len": 64,
    "warmup_steps": 5,
    "seq_len_schedule": "0:32,50:64",
    "save_every": 4,
    "num_iterations": STEPS,
}
SHARES = {"in a save": 9, "in the steps": 7, "in the start": 2, "after a commit": 2}
LIFE_S = 600.0


class TrainerKills:
    """A training that is killed and resumed until it has reached its last step."""

    def __init__(self, seed: int, number: int, folder: Path, tally: Tally) -> None:
        self.number, self.folder, self.tally, self.last_hit = number, folder, tally, ""
        self.unbroken = folder.parent / "unbroken"
        self.dice = random.Random(f"{seed}/{number}")
        self.moments = self.dice.choices(list(SHARES), list(SHARES.values()), k=KILLS_A_ROUND)

    def play(self) -> None:
        """Play the whole round. Raises Broken."""
        if not self.unbroken.exists():
            self.unbroken.mkdir()
            self._finish(_launched(self.unbroken), self.unbroken)
        moments = list(self.moments)
        while True:
            newest = self._newest()
            process = _launched(self.folder)
            try:
                is_killed = bool(moments) and self._killed(process, moments[0])
                if not is_killed:
                    self._finish(process, self.folder)
            finally:
                _kill_tree(process)
            self._check_start(newest)
            if not is_killed:
                break
            self.last_hit = moments.pop(0)
            self.tally.note(self.number, "trainer", self.last_hit, ["all"])
            folders = set((self.folder / "ck").glob("step_*"))
            is_half = bool(folders - set(storage.committed(self.folder / "ck")))
            self.tally.done["half checkpoints left"] += is_half
        self._compare()

    @staticmethod
    def _finish(process: subprocess.Popen[bytes], folder: Path) -> None:
        if process.wait(LIFE_S) != 0:
            raise Broken(f"the training failed: {(folder / 'out.log').read_text()[-2000:]}")

    def _killed(self, process: subprocess.Popen[bytes], moment: str) -> bool:
        """Wait for the moment and kill. False if the training has ended before."""
        share = self.dice.random()
        if moment == "in the start":
            time.sleep(8 * share)
        else:
            steps, commits = (
                self._count("step"),
                self._count("checkpoint_committed") + self.dice.randint(0, 2),
            )
            waits = [lambda: self._count("step") > steps]
            if moment == "in a save":
                waits.append(lambda: self._count("checkpoint_committed") >= commits)
                waits.append(lambda: any((self.folder / "ck").glob("*.tmp")))
            elif moment == "after a commit":
                waits.append(lambda: self._count("checkpoint_committed") > commits)
            if not all(_waited(process, condition) for condition in waits):
                return False
            time.sleep({"in the steps": 3.0, "in a save": 0.04}.get(moment, 0.0) * share)
        is_alive = process.poll() is None
        _kill_tree(process)
        return is_alive

    def _count(self, kind: str) -> int:
        try:
            data = (self.folder / "tel" / "rank0.jsonl").read_bytes()
        except OSError:
            return 0
        return data.count(f'"kind":"{kind}"'.encode())

    def _newest(self) -> int:
        """Return the newest committed step (0: none), after a check of all committed checkpoints."""
        found = storage.committed(self.folder / "ck")
        for path in found:
            storage.verify(path)  # raises where a marked checkpoint is not whole
        return storage.step_of(found[0]) if found else 0

    def _check_start(self, newest: int) -> None:
        text = (self.folder / "out.log").read_text()
        match = re.search(r"resumed from \S+: step (\d+)", text)
        began = int(match[1]) if match else 0 if "starting at step 0" in text else None
        if began not in {newest, None}:
            raise Broken(f"resumed at {began}, but the newest whole checkpoint is {newest}")

    def _compare(self) -> None:
        expected, found = _losses(self.unbroken), _losses(self.folder)
        if not expected.keys() == found.keys() == set(range(1, STEPS + 1)):
            raise Broken(f"steps are missing: {len(found)} of {STEPS}")
        if (worst := max(abs(found[step] - expected[step]) for step in expected)) > 1e-4:
            raise Broken(f"a loss differs by {worst}")
        self.tally.done["losses equal to the bit"] += worst == 0.0
        one, other = (_tensors_at_the_end(folder) for folder in (self.unbroken, self.folder))
        if one.keys() != other.keys() or not all(torch.equal(one[name], other[name]) for name in one):
            raise Broken("the final tensors differ")


def _launched(folder: Path) -> subprocess.Popen[bytes]:
    places = flags(**SETTINGS, telemetry_dir="tel", checkpoint_dir="ck", resume_from="auto")
    with (folder / "out.log").open("w") as out:
        return subprocess.Popen(
            command(2, *places),
            cwd=folder,
            env=environment(),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill the agent and all processes below it, and wait until they are gone."""
    if process.poll() is not None:
        return
    parent = psutil.Process(process.pid)
    below = parent.children(recursive=True)
    for one in (parent, *below):
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait(60)
    psutil.wait_procs(below, timeout=60)


def _waited(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> bool:
    """Wait for a condition. False if the training has ended before."""
    end = time.monotonic() + LIFE_S
    while not condition():
        if process.poll() is not None:
            return False
        if time.monotonic() > end:
            raise Broken("a start took too long")
        time.sleep(0.001)
    return True


def _losses(folder: Path) -> dict[int, float]:
    """Return losses by step. Of a step done twice the later one counts."""
    found = {}
    for line in (folder / "tel" / "rank0.jsonl").read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # torn by a kill
            continue
        if record["kind"] == "step" and "loss" in record:
            found[record["step"]] = record["loss"]
    return found


def _tensors_at_the_end(folder: Path) -> dict[str, torch.Tensor]:
    return _tensors(storage.load(storage.folder_of(folder / "ck", STEPS)).state, "")


def _tensors(held: Any, name: str) -> dict[str, torch.Tensor]:
    if isinstance(held, torch.Tensor):
        return {name: held}
    inner = held.items() if isinstance(held, Mapping) else ()
    return {path: t for key, value in inner for path, t in _tensors(value, f"{name}/{key}").items()}
