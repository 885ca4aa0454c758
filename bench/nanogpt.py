"""The trainer's GPT-2 against nanoGPT's own, unmodified train.py: losses at the same data, CPU time a step.

Losses: nanoGPT trains on bytes of the standard library's source, on a CPU, without dropout, in float32; its weights before
the first step, its batches in their order and its losses are noted. The trainer's own loop then trains from these weights on
these batches, with its own optimizer, clipping and learning rate. Both are given the same settings, none by default.
Time: CPU seconds. Both run at the same time, each reads its own batches and prints a line a step, and each in turn does a
few steps while the other waits, so that what else the machine does hits both. The ratio is that of a round of such turns.

    OMP_NUM_THREADS=1 python bench/nanogpt.py CHECKOUT-OF-NANOGPT [--keep bench/results/nanogpt.json]
"""

from __future__ import annotations

import os
import pickle
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, in_turn, interval, surroundings, tell
from trainer import build
from trainer.config import Config
from trainer.data.corpus import embedded
from trainer.data.loading import Feed, MicroBatch, Request
from trainer.loop import Hook, StepReport, TrainState, train

# The settings that nanoGPT's README gives for a CPU, with biases as GPT-2 has them and a warm-up.
LAYERS, HEADS, WIDTH, LENGTH, BATCH, WORDS = 4, 4, 128, 64, 12, 256
WARMUP, RATE, LEAST = 20, 1e-3, 0.1
STEPS = 200
A_TURN, TURNS = 4, 10  # steps; turns of a round
SEEN = "seen.pt"


def theirs(steps: int, talk: tuple[int, int] | None) -> None:
    """Runs train.py of the working folder. With nobody to talk to it notes weights, batches and losses in `SEEN`."""
    sys.path.insert(0, os.getcwd())
    import model  # type: ignore[import-not-found]  # nanoGPT's own

    seen: dict[str, Any] = {"batches": [], "losses": []}
    forward = model.GPT.forward

    def noted(self: Any, idx: Tensor, targets: Tensor | None = None) -> Any:
        if self.training and not seen["batches"]:
            seen["weights"] = {name: held.clone() for name, held in self.state_dict().items()}
        output = forward(self, idx, targets)
        if self.training:
            seen["batches"].append((idx, targets))
            seen["losses"].append(output[1].item())
        return output

    if talk is None:
        model.GPT.forward = noted
    else:
        take_turns(*talk)
    sys.argv = [
        "train.py", "--device=cpu", "--dtype=float32", "--compile=False", "--dataset=own", "--eval_iters=1",
        f"--max_iters={steps - 1}", f"--n_layer={LAYERS}", f"--n_head={HEADS}", f"--n_embd={WIDTH}", "--bias=True",
        f"--block_size={LENGTH}", f"--batch_size={BATCH}", "--gradient_accumulation_steps=1", "--dropout=0.0",
        f"--learning_rate={RATE}", f"--min_lr={RATE * LEAST}",
        f"--warmup_iters={WARMUP - 1}",  # it divides by one more

        f"--lr_decay_iters={STEPS}", "--eval_interval=1000000", "--always_save_checkpoint=False",
    ]  # fmt: skip
    runpy.run_path("train.py", run_name="__main__")
    torch.save(seen, SEEN)


class Noted(Feed):
    """Hands out noted batches in their order."""

    def __init__(self, batches: list[MicroBatch]) -> None:
        self._left = iter(batches)

    def bring(self, requests: Iterable[Request]) -> Iterator[MicroBatch]:
        for _ in requests:
            yield next(self._left)

    def take_wait(self) -> float:
        return 0.0

    def close(self) -> None:
        pass


class Losses(Hook):
    """Keeps every step's loss."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def after_step(self, _state: TrainState, report: StepReport, /) -> None:
        self.found.append(report.loss)


def ours(steps: int, talk: tuple[int, int] | None) -> None:
    """Trains here; with nobody to talk to on the noted batches, and notes the losses in `SEEN`."""
    config = Config(
        arch="gpt2", depth=LAYERS, model_dim=WIDTH, head_dim=WIDTH // HEADS, vocab_size=WORDS, max_seq_len=LENGTH,
        device_batch_size=BATCH, num_iterations=steps, warmup_steps=WARMUP, learning_rate=RATE, min_lr_ratio=LEAST,
        weight_decay=0.1, beta1=0.9, beta2=0.95, gradient_clip_val=1.0, log_interval=1, device="cpu", compile="off",
        train_data_path="data/own/train.bin", valid_data_path="data/own/val.bin", data_dtype="uint16",
        init_from="weights.safetensors", checkpoint_dir="ck",
    )  # fmt: skip
    run = build.build_run(build.settle(build.open_session(config, {})))
    losses = Losses()
    if talk is None:
        run.feed = Noted(torch.load("noted.pt", weights_only=True))
        run.hooks.append(losses)
    else:
        take_turns(*talk)
    train(run)
    torch.save({"losses": losses.found}, SEEN)


def take_turns(told: int, tell: int) -> None:
    """After every `A_TURN` optimizer steps: says the CPU seconds that they took, and waits to be told to continue."""
    done, since = 0, time.process_time()

    def after_step(*_: object) -> None:
        nonlocal done, since
        done += 1
        if done % A_TURN == 0:
            os.write(tell, b"%r\n" % (time.process_time() - since))
            if not os.read(told, 1):
                os._exit(0)
            since = time.process_time()

    register_optimizer_step_post_hook(after_step)


def as_published(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """nanoGPT's weights as transformers writes them: products' matrices turned, the head not twice."""
    turned = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    return {
        name: (held.T if name.endswith(turned) else held).contiguous()
        for name, held in weights.items()
        if name != "lm_head.weight"
    }


def started(folder: Path, who: str, steps: int, pipes: tuple[int, ...]) -> subprocess.Popen[str]:
    """One training in a process of its own."""
    words = [sys.executable, str(Path(__file__).resolve()), "--child", who, str(steps), *map(str, pipes)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        words,
        cwd=folder,
        env=env,
        pass_fds=pipes,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def noted(folder: Path, who: str) -> dict[str, Any]:
    """All that a training notes.

    Raises:
        RuntimeError: it failed.
    """
    process = started(folder, who, STEPS, ())
    _, said = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{who}: {said}")
    found: dict[str, Any] = torch.load(folder / SEEN, weights_only=True)
    return found


class Turns:
    """A training that does `A_TURN` steps when it is told to."""

    def __init__(self, folder: Path, who: str) -> None:
        told, self._tell = os.pipe()
        answers, tell = os.pipe()
        self._process = started(folder, who, 1_000_000, (told, tell))
        os.close(told)
        os.close(tell)
        self._answers = os.fdopen(answers)
        self._answers.readline()  # the first steps warm up

    def cpu_s(self) -> float:
        """CPU seconds of the next steps."""
        os.write(self._tell, b".")
        return float(self._answers.readline())

    def close(self) -> None:
        os.close(self._tell)
        self._process.communicate()
        self._answers.close()


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        who, steps, *pipes = sys.argv[2:]
        way = theirs if who == "theirs" else ours
        way(int(steps), (int(pipes[0]), int(pipes[1])) if pipes else None)
        return 0
    parser = command_line(__doc__)
    parser.add_argument("tree", type=Path, help="a checkout of karpathy/nanoGPT")
    parser.add_argument("--rounds", type=int, default=10)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in ("train.py", "model.py", "configurator.py"):
            (folder / file).symlink_to(chosen.tree.resolve() / file)
        data = folder / "data" / "own"
        data.mkdir(parents=True)
        tokens = np.asarray(embedded(4 << 20)).astype(np.uint16)
        tokens[: len(tokens) * 9 // 10].tofile(data / "train.bin")
        tokens[len(tokens) * 9 // 10 :].tofile(data / "val.bin")
        (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": WORDS}))
        first = noted(folder, "theirs")
        save_file(as_published(first["weights"]), folder / "weights.safetensors")
        torch.save(first["batches"], folder / "noted.pt")
        known, found = first["losses"], noted(folder, "ours")["losses"]
        assert len(known) == len(found) == STEPS
        tenth = [step for step in range(STEPS) if step == 0 or (step + 1) % 10 == 0]
        both = {who: Turns(folder, who) for who in ("ours", "theirs")}
        times = in_turn({who: one.cpu_s for who, one in both.items()}, chosen.rounds * TURNS)
        for one in both.values():
            one.close()
    rounds = [slice(at, at + TURNS) for at in range(0, chosen.rounds * TURNS, TURNS)]
    ratios = [sum(times["ours"][each]) / sum(times["theirs"][each]) for each in rounds]
    low, high = interval(ratios, statistics.median)
    result = {
        "losses of nanoGPT and of the trainer": {
            str(step + 1): [round(known[step], 5), round(found[step], 5)] for step in tenth
        },
        "largest difference at every tenth step": max(abs(found[s] / known[s] - 1) for s in tenth),
        "largest difference at any step": max(abs(a / b - 1) for a, b in zip(found, known, strict=True)),
        "CPU ms a step": {
            who: round(statistics.median(each) / A_TURN * 1e3, 2) for who, each in times.items()
        },
        "CPU time a step, the trainer / nanoGPT": {
            "median": round(statistics.median(ratios), 4),
            "low": round(low, 4),
            "high": round(high, 4),
            "rounds": [round(each, 4) for each in ratios],
        },
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **surroundings(),
    }
    tell(result, chosen.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
