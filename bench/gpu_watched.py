"""What watching costs a training on a GPU: nanoGPT's own train.py, alone and under `stoker run --no-ui`, in turn.

    python bench/gpu_watched.py CHECKOUT-OF-NANOGPT [--rounds 3] [--iterations 400] [--keep bench/results/gpu_watched.json]

The checkout is copied and given random tokens as its data. Each round trains the same small GPT (6 layers of 384, 64 x 256 tokens)
with a line a step, whose own milliseconds are read; the first 100 are left out. The ratio is that of the rounds' medians. Without a
CUDA device it says so and writes nothing.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, in_turn, interval, surroundings, tell

GOAL = 1.01
_TIME = re.compile(r"^iter \d+: loss [\d.]+, time ([\d.]+)ms", re.MULTILINE)
_SETTINGS = (
    "--dataset=numbers --compile=False --n_layer=6 --n_head=6 --n_embd=384 --block_size=256 --batch_size=64 --dropout=0.0"
    " --gradient_accumulation_steps=1 --log_interval=1 --eval_interval=100000 --eval_iters=1"
)


def prepared(checkout: Path, folder: Path) -> Path:
    """A copy of nanoGPT's two files beside a million random tokens."""
    data = folder / "data" / "numbers"
    data.mkdir(parents=True)
    for name in ("train.py", "model.py", "configurator.py"):
        shutil.copy(checkout / name, folder)
    tokens = np.random.default_rng(0).integers(0, 50_257, 1_000_000, dtype=np.uint16)
    for name in ("train.bin", "val.bin"):
        tokens.tofile(data / name)
    return folder


def step_ms(command: list[str], folder: Path) -> float:
    """The median of the milliseconds that train.py prints, without its first 100 steps."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    logs = "".join(
        path.read_text(errors="replace") for path in folder.glob("runs/*/nodes/0/attempts/1/**/*.log")
    )
    shutil.rmtree(folder / "runs", ignore_errors=True)
    times = [float(match) for match in _TIME.findall(logs or done.stdout)][100:]
    if done.returncode or not times:
        raise SystemExit(f"{command}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return statistics.median(times)


def main() -> int:
    """Measures, prints, keeps. Returns: 0, 1 if the goal is missed, 2 without a CUDA device."""
    parser = command_line(__doc__)
    parser.add_argument("checkout", type=Path, help="a checkout of karpathy/nanoGPT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=400)
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device is visible: nothing was measured, nothing is written", file=sys.stderr)
        return 2
    train = [sys.executable, "train.py", *_SETTINGS.split(), f"--max_iters={chosen.iterations}"]
    with tempfile.TemporaryDirectory() as name:
        folder = prepared(chosen.checkout, Path(name))
        stoker = [sys.executable, str(ROOT / "supervisor" / "__main__.py"), "run", "--no-ui", "--"]
        found = in_turn(
            {
                "alone": lambda: step_ms(train, folder),
                "watched": lambda: step_ms([*stoker, *train], folder),
            },
            chosen.rounds,
        )
    ratios = [watched / alone for watched, alone in zip(found["watched"], found["alone"], strict=True)]
    ratio = statistics.median(ratios)
    result = {
        "goal": f"a step under stoker takes at most {GOAL} times as long",
        "met": ratio <= GOAL,
        "ratio": ratio,
        "interval": interval(ratios, statistics.median),
        "step_ms": found,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        **surroundings(),
    }
    tell(result, chosen.keep)
    return 0 if result["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
