"""Kills a two-rank training at random moments, resumes it, and compares the loss curve with an unbroken run's.

Each kill is SIGKILL to the whole process tree: torchrun, ranks, their children. The moments are drawn from a
seed: while a checkpoint is being written (beside the training, by the writer's thread), at any time in the steps, during
the start, and just after a commit. After each kill every checkpoint with a marker must be whole, and the next
life must resume from the newest of these. At the target, losses and final tensors are compared to the bit.

    python bench/soak_kill.py --kills 20 --seed 1 [--keep bench/results/soak_kill.json]
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import LAUNCH, TRAINER, command_line, keep, surroundings
from trainer.checkpoint import storage

# 1.9 million parameters: a checkpoint of 22 MB, whose write lasts some tens of milliseconds.
SETTINGS = (
    "--depth=2",
    "--model_dim=256",
    "--device_batch_size=2",
    "--max_seq_len=64",
    "--total_batch_size=256",
    "--warmup_steps=5",
    "--seq_len_schedule=0:32,50:64",
    "--save_every=4",
    "--corpus_mib=1",
    "--device=cpu",
)
SHARES = {"in a save": 9, "in the steps": 7, "in the start": 2, "after a commit": 2}
LIFE_S = 300.0


@dataclass(frozen=True)
class Kill:
    """One moment: `kind`, and how far into it, as a share of 1."""

    kind: str
    share: float
    saves: int


def drawn(number: int, seed: int) -> list[Kill]:
    """The moments of a seed, in the proportions of SHARES."""
    dice = random.Random(seed)
    bag = [kind for kind, count in SHARES.items() for _ in range(count)]
    kinds = [bag[k % len(bag)] for k in range(number)]
    dice.shuffle(kinds)
    return [Kill(kind, dice.random(), dice.randint(0, 2)) for kind in kinds]


def launched(folder: Path, steps: int) -> subprocess.Popen[str]:
    arguments = (
        f"--num_iterations={steps}",
        "--telemetry_dir=tel",
        "--checkpoint_dir=ck",
        "--resume_from=auto",
    )
    with open(folder / "out.log", "w") as out:
        return subprocess.Popen(
            [sys.executable, *LAUNCH, str(TRAINER), *SETTINGS, *arguments],
            env={**os.environ, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"},
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )


def kill_tree(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the agent and all below it; returns when they are gone."""
    parent = psutil.Process(process.pid)
    tree = [parent, *parent.children(recursive=True)]
    for one in tree:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait(60)
    psutil.wait_procs(tree[1:], timeout=60)


def waited(process: subprocess.Popen[str], condition: Callable[[], bool]) -> bool:
    """True once it holds, False when the run has ended before."""
    end = time.monotonic() + LIFE_S
    while not condition():
        if process.poll() is not None:
            return False
        if time.monotonic() > end:
            kill_tree(process)
            raise SystemExit("a life took too long")
        time.sleep(0.001)
    return True


def lines(folder: Path) -> list[dict[str, Any]]:
    try:
        found = (folder / "tel" / "rank0.jsonl").read_text().splitlines()
    except OSError:
        return []
    records = []
    for line in found:
        try:
            records.append(json.loads(line))
        except ValueError:  # torn by a kill
            continue
    return records


def count(folder: Path, kind: str) -> int:
    try:
        return (folder / "tel" / "rank0.jsonl").read_bytes().count(f'"kind":"{kind}"'.encode())
    except OSError:
        return 0


def killed(process: subprocess.Popen[str], folder: Path, kill: Kill) -> bool:
    """Waits for the moment and kills. False: the run was done before."""
    if kill.kind == "in the start":
        time.sleep(8 * kill.share)
    else:
        steps, commits = count(folder, "step"), count(folder, "checkpoint_committed")
        if not waited(process, lambda: count(folder, "step") > steps):
            return False
        match kill.kind:
            case "in the steps":
                time.sleep(3 * kill.share)
            case "in a save":
                ck = folder / "ck"
                late = waited(process, lambda: count(folder, "checkpoint_committed") >= commits + kill.saves)
                if not late or not waited(process, lambda: any(ck.glob("*.tmp"))):
                    return False
                time.sleep(0.04 * kill.share)
            case _:
                if not waited(process, lambda: count(folder, "checkpoint_committed") > commits + kill.saves):
                    return False
    if process.poll() is not None:
        return False
    kill_tree(process)
    return True


def left_behind(folder: Path) -> tuple[int, list[str]]:
    """The newest committed step (0: none), and the folders that a kill left half done."""
    found = storage.committed(folder / "ck")
    for path in found:
        storage.verify(path)  # raises: a marker on something that is not whole
    whole = set(found)
    half = [path.name for path in (folder / "ck").glob("step_*") if path not in whole]
    return (storage.step_of(found[0]) if found else 0), half


def resumed_at(folder: Path) -> int | None:
    """The step that this life says it started from; None if it did not come so far."""
    text = (folder / "out.log").read_text()
    if match := re.search(r"resumed from \S+: step (\d+)", text):
        return int(match[1])
    return 0 if "starting at step 0" in text else None


def losses(folder: Path) -> dict[int, float]:
    """By step; of a step done twice the later one."""
    return {r["step"]: r["loss"] for r in lines(folder) if r["kind"] == "step" and "loss" in r}


def tensors(held: Any, name: str = "") -> dict[str, torch.Tensor]:
    if isinstance(held, torch.Tensor):
        return {name: held}
    inner = held.items() if isinstance(held, Mapping) else ()
    return {path: t for key, value in inner for path, t in tensors(value, f"{name}/{key}").items()}


def same_tensors(one: Path, other: Path, step: int) -> bool:
    states = [tensors(storage.load(storage.folder_of(f / "ck", step)).state) for f in (one, other)]
    return states[0].keys() == states[1].keys() and all(
        torch.equal(t, states[1][k]) for k, t in states[0].items()
    )


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=400)
    chosen = parser.parse_args()
    started = time.monotonic()
    moments = drawn(chosen.kills, chosen.seed)
    done: list[dict[str, Any]] = []
    worst, equal, rounds = 0.0, True, 0
    with tempfile.TemporaryDirectory() as name:
        whole = Path(name) / "whole"
        whole.mkdir()
        assert launched(whole, chosen.steps).wait(1800) == 0, (whole / "out.log").read_text()[-2000:]
        expected = losses(whole)
        assert len(expected) == chosen.steps
        while len(done) < chosen.kills:
            rounds += 1
            folder = Path(name) / f"round{rounds}"
            folder.mkdir()
            while True:
                newest, half = left_behind(folder)
                process = launched(folder, chosen.steps)
                try:
                    dies = len(done) < chosen.kills and killed(process, folder, moments[len(done)])
                    code = -9 if dies else process.wait(1800)
                finally:
                    if process.poll() is None:
                        kill_tree(process)
                began = resumed_at(folder)
                assert began in {newest, None}, f"resumed at {began}, but the newest whole one is {newest}"
                if not dies:
                    assert code == 0, (folder / "out.log").read_text()[-2000:]
                    break
                at, half = left_behind(folder)
                record = {
                    "moment": moments[len(done)].kind,
                    "began_at": began,
                    "last_step": max(losses(folder), default=0),
                    "newest_whole": at,
                    "half_done": half,
                }
                done.append(record)
                print(json.dumps(record), flush=True)
            found = losses(folder)
            assert found.keys() == expected.keys(), "steps are missing"
            worst = max([worst, *(abs(found[k] - expected[k]) for k in expected)])
            equal = equal and same_tensors(whole, folder, chosen.steps)
    result = {
        "kills": len(done),
        "seed": chosen.seed,
        "ranks": 2,
        "steps": chosen.steps,
        "rounds": rounds,
        "largest_loss_difference": worst,
        "final_tensors_equal": equal,
        "kills_that_left_a_half_checkpoint": sum(bool(r["half_done"]) for r in done),
        "half_checkpoints_loaded": 0,  # asserted above, at each resume
        "points": done,
        "seconds": round(time.monotonic() - started),
        "torch": torch.__version__,
        **surroundings(),
    }
    print(json.dumps({k: v for k, v in result.items() if k != "points"}))
    keep(result, chosen.keep)
    return 0 if worst <= 1e-4 and equal else 1


if __name__ == "__main__":
    sys.exit(main())
