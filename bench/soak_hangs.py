"""Healthy trainings with silences of all kinds under the default thresholds: none may be ended as a hang.

One training of a foreign script that tells nothing (tests/integration/scripts/training.py) lasts all the while, with
evaluations, checkpoints and a stall of one rank's data of 90 s. Beside it two take turns: the bundled trainer, which tells
its phases, with evaluations and checkpoints; and the foreign script with other lengths. They are drawn from a seed.
Counted: acts (a false alarm), flags, advisories a run; of one training more than one advisory is too many.

    python bench/soak_hangs.py --minutes 30 --seed 1 [--keep bench/results/soak_hangs.json]
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, surroundings, tell
from supervisor.run import events as ev
from supervisor.run.journal import JournalReader
from supervisor.run.paths import RunPaths

STEP_S, EVAL_S, SAVE_S, STALL_S = 0.2, 6.0, 1.0, 90.0
FOREIGN = str(ROOT / "tests" / "integration" / "scripts" / "training.py")
STOKER = (
    sys.executable,
    "-m",
    "supervisor",
    "run",
    "--no-ui",
    "--python",
    sys.executable,
    "--nproc-per-node",
    "2",
)


def main() -> int:
    """Runs healthy trainings for the minutes asked for; 1 if any was ended as a hang, failed, or was advised of twice."""
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    end = time.monotonic() + 60 * args.minutes
    runs: list[dict[str, Any]] = []
    with ThreadPoolExecutor(1, "long") as beside:
        long = beside.submit(in_a_folder, throughout(args.minutes))
        while time.monotonic() < end:
            runs.append(in_a_folder(foreign(rng) if len(runs) % 2 == 0 else trainer(rng)))
        whole = long.result()
    runs.append(whole)
    result = {
        **surroundings(),
        "seed": args.seed,
        "minutes": args.minutes,
        "runs": len(runs),
        "steps": sum(run["steps"] or 0 for run in runs),
        "acts": sum(run["acts"] for run in runs),
        "failed": sum(run["code"] != 0 for run in runs),
        "flags": sum(run["flags"] for run in runs),
        "most_advisories_a_run": max((run["advisories"] for run in runs), default=0),
        "advisory_codes": dict(sum((Counter(run["codes"]) for run in runs), Counter())),
        "longest_silence_s": max((run["longest_s"] for run in runs), default=0.0),
        "throughout": {
            name: whole[name] for name in ("seconds", "steps", "acts", "flags", "codes", "longest_s")
        },
    }
    tell(result, args.keep)
    return 1 if result["acts"] or result["failed"] or result["most_advisories_a_run"] > 1 else 0


def in_a_folder(command: list[str]) -> dict[str, Any]:
    """One run in a folder of its own; its result is printed too."""
    with tempfile.TemporaryDirectory(prefix="stoker-soak-") as folder:
        found = one_run(Path(folder), command)
    print(json.dumps(found), flush=True)
    return found


def throughout(minutes: float) -> list[str]:
    """One training of so many minutes: steps of 0.2 s, an evaluation of 6 s every 100, a checkpoint of 1 s every 50."""
    rounds = max(1, round((60 * minutes - STALL_S) / (100 * STEP_S + EVAL_S + 2 * SAVE_S)))
    return [
        FOREIGN, "--steps", str(100 * rounds), "--step-time", str(STEP_S), "--eval-every", "100", "--eval-s", str(EVAL_S),
        "--save-every", "50", "--save-s", str(SAVE_S), "--stall-at", str(50 * rounds), "--stall-s", str(STALL_S),
    ]  # fmt: skip


def foreign(rng: random.Random) -> list[str]:
    """Silent evaluations, checkpoints and one stall of the data."""
    steps = rng.randint(250, 400)
    return [
        FOREIGN, "--steps", str(steps), "--step-time", f"{rng.uniform(0.05, 0.4):.2f}",
        "--eval-every", str(rng.randint(40, 90)), "--eval-s", f"{rng.uniform(1, 12):.1f}",
        "--save-every", str(rng.randint(20, 60)), "--save-s", f"{rng.uniform(0.2, 4):.1f}",
        "--stall-at", str(rng.randint(30, steps)), "--stall-s", f"{rng.uniform(3, 100):.1f}",
    ]  # fmt: skip


def trainer(rng: random.Random) -> list[str]:
    """The bundled trainer with its phases; `slow` makes steps of a fifth of a second on one rank."""
    keys = {
        "num_iterations": rng.randint(300, 500),
        "eval_every": rng.randint(30, 80),
        "eval_samples": rng.choice((64, 256, 1024)),
        "save_every": rng.randint(20, 60),
        "depth": 2,
        "model_dim": 64,
        "max_seq_len": 64,
        "device_batch_size": 4,
        "fault": f"slow:{rng.uniform(0.05, 0.3):.2f}@0:1",
    }
    return ["--config", "demo", *(f"--{key}={value}" for key, value in keys.items())]


def one_run(cwd: Path, command: list[str]) -> dict[str, Any]:
    """One supervised run to its end, and what the journal says of it."""
    if "--config" in command:
        (cwd / "job.toml").write_text("nproc_per_node = 2\n", encoding="utf-8")
        command = ["job.toml" if word == "demo" else word for word in command]
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_STATE_HOME": str(cwd / "state"),
        "OMP_NUM_THREADS": "1",
    }
    began = time.monotonic()
    done = subprocess.run(
        [*STOKER, *command], cwd=cwd, env=env, capture_output=True, text=True, timeout=7200, check=False
    )
    took_s = time.monotonic() - began
    folders = [path for path in (cwd / "runs").iterdir() if not path.is_symlink()]
    facts = JournalReader(RunPaths(folders[0]).node().journal).read()
    ended = [fact.stalled_s for fact in facts if isinstance(fact, ev.StallEnded)]
    advice = [fact.code for fact in facts if isinstance(fact, ev.Advisory)]
    steps = [fact.step for fact in facts if isinstance(fact, ev.Progress) and fact.step is not None]
    return {
        "kind": "trainer" if "--config" in command else "foreign",
        "code": done.returncode,
        "seconds": round(took_s),
        "steps": max(steps, default=None),
        "acts": sum(isinstance(fact, ev.HangFound) for fact in facts),
        "flags": sum(isinstance(fact, ev.StallFlagged) for fact in facts),
        "longest_s": round(max(ended, default=0.0), 1),
        "advisories": len(advice),
        "codes": advice,
    }


if __name__ == "__main__":
    sys.exit(main())
