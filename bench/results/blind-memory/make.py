"""Write twelve made-up memory patterns and their truths (deterministic): python make.py [FOLDER].

Each pattern is a small model of CUDA's caching allocator, fed with shapes as real trainings have them. Nothing here was run on a GPU.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB, GIB = 1 << 20, 1 << 30
# What torch reports as a card's total memory, and what the driver's context takes of it outside the allocator
CARDS = {
    "24": (25_386_352_640, 452 * MIB),
    "40": (42_298_834_944, 498 * MIB),
    "80": (85_097_971_712, 534 * MIB),
}
NCCL = 310 * MIB  # channels and buffers, outside the allocator too
Batch = list[list[int]]


class OutOfMemoryError(Exception):
    """What torch.OutOfMemoryError stands for."""


def elements(shapes: Batch) -> int:
    return sum(math.prod(shape) for shape in shapes)


class Allocator:
    """Live bytes, their running maximum, the segments held, and the holes in them that no later request fits."""

    def __init__(self, card: str, ranks: int) -> None:
        self.limit, context = CARDS[card]
        self.usable = self.limit - context - (NCCL if ranks > 1 else 0)
        self.live = self.peak = self.reserved = 0
        self.holes = 0  # not returned by a flush: a live block stands in each of their segments

    def hold(self, size: float) -> None:
        self.live += round(size) // 512 * 512
        self._need(self.live, 0.004)

    def touch(self, size: float, waste: float) -> None:
        """One forward and backward pass: `size` bytes more than what is live, then freed again."""
        self._need(self.live + round(size) // 512 * 512, waste)

    def _need(self, top: int, waste: float) -> None:
        wanted = -(-round(top * (1 + waste) + self.holes) // (2 * MIB)) * 2 * MIB
        if (
            wanted > self.usable
        ):  # cudaMalloc failed: the allocator returns its free segments, then tries again
            wanted = -(-(top + self.holes) // (2 * MIB)) * 2 * MIB
            if wanted > self.usable:
                raise OutOfMemoryError
            self.reserved = 0
        self.reserved = max(self.reserved, wanted)
        self.peak = max(self.peak, top)

    def empty_cache(self, waste: float) -> None:
        self.reserved = -(-round(self.live * (1 + waste) + self.holes) // (2 * MIB)) * 2 * MIB


class Model:
    """Weights, gradients and optimizer state in bytes, and activations in bytes by the batch."""

    def __init__(
        self,
        parameters: float,
        weight: float,
        grad: float,
        state: float,
        activations: Callable[[Batch], float],
    ) -> None:
        self.weights, self.grads, self.state = parameters * weight, parameters * grad, parameters * state
        self.activations = activations


def tokens(
    layers: int, hidden: int, vocabulary: int, heads_without_flash: int = 0
) -> Callable[[Batch], float]:
    def size(shapes: Batch) -> float:
        batch, length = shapes[0]
        token = layers * hidden * 34 + vocabulary * 10 + layers * heads_without_flash * length * 5
        return batch * length * token

    return size


def pixels(per_pixel: float) -> Callable[[Batch], float]:
    return lambda shapes: math.prod(shapes[0]) / shapes[0][1] * per_pixel


class Pattern:
    """One training: what its ranks hold and are given."""

    def __init__(
        self,
        name: str,
        card: str,
        *,
        seed: int,
        steps: int,
        step_s: float,
        model: Model | list[Model],
        batch: Callable[[random.Random, int, int], Batch],
        argv: list[str],
        settings: list[tuple[str, str, Any, bool]],
        truth: dict[str, Any],
        dtypes: list[str],
        ranks: int = 1,
        accumulation: int = 1,
        noise: float = 0.003,
        waste: float = 0.018,
        workers: int = 4,
        extra: Callable[[Allocator, random.Random, int, int], float] | None = None,
        after: Callable[[Allocator, random.Random, int, int], None] | None = None,
        evaluate: Callable[[Allocator, random.Random, int], float] | None = None,
        scale: Callable[[int], float] | None = None,
    ) -> None:
        self.name, self.card, self.seed, self.steps, self.step_s = name, card, seed, steps, step_s
        self.models = model if isinstance(model, list) else [model] * ranks
        self.batch, self.argv, self.settings, self.truth, self.dtypes = batch, argv, settings, truth, dtypes
        self.ranks, self.accumulation, self.noise, self.waste, self.workers = (
            ranks,
            accumulation,
            noise,
            waste,
            workers,
        )
        self.extra, self.after, self.evaluate, self.scale = extra, after, evaluate, scale

    def run(self, folder: Path) -> dict[str, Any]:
        """Simulate all ranks in step, write their records, return what the truth needs to know."""
        draws = [random.Random(f"{self.seed}/{rank}") for rank in range(self.ranks)]
        memory = [Allocator(self.card, self.ranks) for _ in range(self.ranks)]
        clock = random.Random(f"{self.seed}/clock")
        lines: list[list[str]] = [[] for _ in range(self.ranks)]
        sums: list[dict[str, Any]] = [{} for _ in range(self.ranks)]
        now, wrote, ended, fatal = 1_000.0 + self.seed, 0.0, self.steps, None
        typical = 0.0
        seen: list[tuple[int, int, float]] = []  # step, elements, peak of rank 0's new maxima

        def put(rank: int, kind: str, **keys: Any) -> None:
            record = {
                "v": 1,
                "t_wall": round(1_795_000_000 + now, 3),
                "t_mono": round(now, 3),
                "kind": kind,
                "rank": rank,
            }
            lines[rank].append(json.dumps(record | keys, separators=(",", ":")))

        for rank in range(self.ranks):
            pid = 41_200 + 7 * rank + self.seed
            put(
                rank,
                "phase",
                phase="loading",
                pid=pid,
                world_size=self.ranks,
                local_world_size=self.ranks,
                argv=self.argv,
            )
            for by, name, value, given in self.settings:
                option = (
                    {"words": ["--" + name.replace("_", "-")], "given": given} if by == "argparse" else {}
                )
                put(rank, "setting", by=by, name=name, type=type(value).__name__, value=value, **option)
        now += 11
        for model, device in zip(self.models, memory, strict=True):
            device.hold(model.weights)
        for step in range(1, self.steps + 1):
            shapes_of = [
                [self.batch(draws[r], step, r) for _ in range(self.accumulation)] for r in range(self.ranks)
            ]
            evaluated = 0.0
            try:
                for rank, (model, device, draw) in enumerate(zip(self.models, memory, draws, strict=True)):
                    if self.evaluate:
                        fatal = rank
                        evaluated = self.evaluate(device, draw, step)
                    for shapes in shapes_of[rank]:
                        fatal = rank
                        size = model.activations(shapes) * (self.scale(step) if self.scale else 1)
                        size *= 1 + draw.gauss(0, self.noise)
                        grads = model.grads if step == 1 else 0  # kept until zero_grad, then in place
                        more = self.extra(device, draw, step, rank) if self.extra else 0
                        device.touch(size + grads + more, self.waste)
                    if step == 1:
                        device.hold(model.grads + model.state)
                    if self.after:
                        self.after(device, draw, step, rank)
            except OutOfMemoryError:
                ended = step - 1
                break
            fatal = None
            load = max(elements(s) for shapes in shapes_of for s in shapes)
            typical = typical or load
            took = self.step_s * (0.45 + 0.55 * load / typical) * (1 + abs(clock.gauss(0, 0.03)))
            took += evaluated + (4.1 if step == 1 else 0.0)
            now += took
            due = step <= 4 or now - wrote >= 1.0 or step == self.steps
            for rank, device in enumerate(memory):
                total, biggest = sums[rank], max(shapes_of[rank], key=elements)
                if step <= 4:
                    put(
                        rank, "shape", step=step - 1, loader=1, of="batch", shapes=biggest, dtypes=self.dtypes
                    )
                total["steps"] = total.get("steps", 0) + 1
                total["micro_steps"] = total["batches"] = total["steps"] * self.accumulation
                total["step_time_s"] = total.get("step_time_s", 0.0) + took
                total["data_wait_s"] = total.get("data_wait_s", 0.0) + 0.0004 * (1 + draws[rank].random())
                total["evaluation_s"] = total.get("evaluation_s", 0.0) + evaluated
                if took > total.get("slowest_s", 0.0):
                    total["slowest_s"], total["slowest_step"] = took, step
                if elements(biggest) > total.get("elements", 0):
                    total["elements"], total["shapes"] = elements(biggest), biggest
                if rank == 0 and (not seen or device.peak > seen[-1][2]):
                    seen.append((step, elements(biggest), device.peak))
                if due:
                    for key in ("step_time_s", "data_wait_s", "evaluation_s", "slowest_s"):
                        total[key] = round(total[key], 5)
                    if not total["evaluation_s"]:
                        del total["evaluation_s"]
                    if total["steps"] == 1:
                        del total["slowest_s"], total["slowest_step"]
                    if step == 1:
                        del total["step_time_s"]
                    total["memory_peak_bytes"] = device.peak
                    total["memory_now_bytes"] = device.live + elements(biggest) * 4 // 512 * 512
                    total["memory_reserved_bytes"] = device.reserved
                    total["memory_limit_bytes"] = device.limit
                    put(rank, "step", step=step, optimizer_step=step, **total)
                    sums[rank] = {}
            if due:
                wrote = now
        now += 0.7
        for rank in range(self.ranks):
            if fatal == rank:
                put(
                    rank,
                    "exit",
                    step=ended,
                    passes=ended * self.accumulation,
                    reason="exception",
                    exception="OutOfMemoryError",
                )
            elif fatal is None:
                put(rank, "exit", step=ended, passes=ended * self.accumulation, reason="done")
            (folder / self.name).mkdir(parents=True, exist_ok=True)
            (folder / self.name / f"rank{rank}.jsonl").write_text("\n".join(lines[rank]) + "\n")
        out = None if fatal is None else ended + 1
        shares = [round(device.peak / device.limit, 3) for device in memory]
        held = [round(device.reserved / device.limit, 3) for device in memory]
        meant: int | None = self.truth.get("rank", fatal)
        return {
            "pattern": self.name,
            "advisory": self.truth["kind"] != "none",
            "kind": self.truth["kind"],
            "also": self.truth.get("also", []),
            "rank": meant if self.truth["kind"] != "none" else None,
            "ranks_accepted": self.truth.get("ranks_accepted", [] if meant is None else [meant]),
            "runs_out_at": out,
            "warn_by": None if out is None else out - 50,
            "sensible_from": self.truth.get("sensible_from"),
            "steps_planned": self.steps,
            "steps_done": ended,
            "card_gib": int(self.card),
            "limit_bytes": memory[0].limit,
            "usable_bytes": memory[0].usable,
            "peak_share_at_end": shares,
            "reserved_share_at_end": held,
            "why": self.truth["why"],
        }


def patterns() -> list[Pattern]:
    found = []

    found.append(
        Pattern(
            "constant",
            "24",
            seed=11,
            steps=1200,
            step_s=0.22,
            dtypes=["float32", "int64"],
            model=Model(304e6, 4, 4, 8, pixels(24 * 1024 * 34 * 197 / 224**2)),
            batch=lambda _r, _s, _k: [[104, 3, 224, 224], [104]],
            argv=["python", "finetune_vit.py", "--batch-size", "104", "--lr", "3e-5"],
            settings=[
                ("argparse", "batch_size", 104, True),
                ("argparse", "img_size", 224, False),
                ("argparse", "epochs", 10, False),
            ],
            truth={
                "kind": "none",
                "why": "Every batch has the same shape and the peak has been flat since step 2, with room left.",
            },
        )
    )

    def ragged(draw: random.Random, _step: int, _rank: int) -> Batch:
        longest = max(draw.lognormvariate(6.3, 0.44) for _ in range(8))
        length = min(4096, -(-round(longest) // 8) * 8)
        return [[8, length], [8, length], [8, length]]

    found.append(
        Pattern(
            "ragged-sft",
            "80",
            seed=30,
            steps=1800,
            step_s=0.16,
            ranks=2,
            accumulation=2,
            dtypes=["int64", "int64", "int64"],
            model=Model(1.41e9, 6, 2, 8, tokens(24, 2048, 50304)),
            batch=ragged,
            argv=["train_sft.py", "--per-device-batch", "8", "--grad-accum", "2", "--max_seq_len", "4096"],
            settings=[
                ("argparse", "per_device_batch", 8, True),
                ("argparse", "grad_accum", 2, True),
                ("argparse", "max_seq_len", 4096, True),
            ],
            truth={
                "kind": "longer_batch",
                "ranks_accepted": [0, 1],
                "sensible_from": 5,
                "why": "Memory follows the padded length; max_seq_len allows 8 x 4096, which does not fit, and the tail of the lengths gets "
                "there. Either rank may draw it; `rank` is the one that did.",
            },
        )
    )

    def bucketed(draw: random.Random, step: int, _rank: int) -> Batch:
        weights = [20, 26, 20, 14, 9, 6, 4, 0 if step < 180 else 2.0]
        length = draw.choices(range(128, 1025, 128), weights)[0]
        return [[12, length], [12, length], [12]]

    found.append(
        Pattern(
            "bucketed-encoder",
            "40",
            seed=31,
            steps=1500,
            step_s=0.19,
            dtypes=["int64", "int64", "int64"],
            model=Model(280e6, 4, 4, 8, tokens(24, 1024, 0, 16)),
            batch=bucketed,
            argv=["python", "-m", "ranker.train", "conf/bucketed.yaml"],
            settings=[
                ("yaml", "batch_size", 12, True),
                ("yaml", "max_length", 1024, True),
                ("yaml", "bucket_width", 128, True),
            ],
            waste=0.012,
            truth={
                "kind": "none",
                "why": "Lengths come in buckets up to max_length; the largest bucket comes late, takes about 92 % and fits. Nothing longer can come.",
            },
        )
    )

    def curriculum(_draw: random.Random, step: int, _rank: int) -> Batch:
        length = min(2048, 256 + 64 * ((step - 1) // 50))
        return [[16, length], [16, length]]

    found.append(
        Pattern(
            "curriculum-gpt",
            "40",
            seed=43,
            steps=2000,
            step_s=0.11,
            ranks=2,
            dtypes=["int64", "int64"],
            model=Model(355e6, 6, 2, 8, tokens(24, 1024, 50257)),
            batch=curriculum,
            argv=[
                "pretrain.py",
                "--micro_bs",
                "16",
                "--seqlen_start",
                "256",
                "--seqlen_end",
                "2048",
                "--seqlen_ramp_steps",
                "1400",
            ],
            settings=[
                ("argparse", "micro_bs", 16, True),
                ("argparse", "seqlen_start", 256, True),
                ("argparse", "seqlen_end", 2048, True),
                ("argparse", "seqlen_ramp_steps", 1400, True),
            ],
            truth={
                "kind": "longer_batch",
                "also": ["climbs"],
                "ranks_accepted": [0, 1],
                "sensible_from": 51,
                "why": "The length grows by 64 each 50 steps and memory with it in a straight line; it ends far below seqlen_end. Both ranks are "
                "given the same length, so both are right; `rank` is the one whose noise was higher.",
            },
        )
    )

    def leak(device: Allocator, draw: random.Random, _step: int, _rank: int) -> None:
        device.hold(11.4 * MIB * (1 + draw.gauss(0, 0.05)))

    found.append(
        Pattern(
            "leak-unet",
            "24",
            seed=53,
            steps=1600,
            step_s=0.26,
            dtypes=["float32", "float32"],
            model=Model(118e6, 4, 4, 8, pixels(46_000)),
            batch=lambda _r, _s, _k: [[4, 3, 256, 256], [4, 1, 256, 256]],
            argv=["python", "segment/main.py", "--bs=4"],
            settings=[
                ("argparse", "bs", 4, True),
                ("argparse", "crop", 256, False),
                ("argparse", "epochs", 40, False),
            ],
            after=leak,
            truth={
                "kind": "climbs",
                "sensible_from": 40,
                "why": "What is allocated after a step grows by 11 MiB each step at one shape: the graph of each loss is kept.",
            },
        )
    )

    def resolutions(_draw: random.Random, step: int, _rank: int) -> Batch:
        side = 384 if (step - 1) % 120 >= 80 else 224
        return [[48, 3, side, side], [48]]

    found.append(
        Pattern(
            "two-resolutions",
            "40",
            seed=61,
            steps=960,
            step_s=0.2,
            ranks=2,
            dtypes=["float32", "int64"],
            model=Model(198e6, 4, 4, 12, pixels(4_050)),
            batch=resolutions,
            argv=["main_convnext.py", "--batch_size", "48", "--sizes", "224,384"],
            settings=[
                ("argparse", "batch_size", 48, True),
                ("argparse", "input_size", 224, False),
                ("argparse", "input_size_large", 384, False),
                ("argparse", "update_freq", 1, False),
            ],
            truth={
                "kind": "none",
                "why": "Blocks of two resolutions; the larger first comes at step 81 and fits with room. The jump at step 81 is a known size, no climb.",
            },
        )
    )

    def evaluate(device: Allocator, draw: random.Random, step: int) -> float:
        if step % 250 != 1 or step == 1:
            return 0.0
        top = {1: 0.915, 2: 0.948}.get(step // 250, 0.995) * device.limit
        device.touch(top * (1 + draw.gauss(0, 0.001)) - device.live, 0.006)
        return 9.0 + draw.random()

    def summaries(draw: random.Random, _step: int, _rank: int) -> Batch:
        length = draw.choice(range(416, 513, 8))
        return [[16, length], [16, length], [16, 128]]

    found.append(
        Pattern(
            "evaluation-t5",
            "24",
            seed=71,
            steps=1000,
            step_s=0.3,
            dtypes=["int64", "int64", "int64"],
            model=Model(248e6, 4, 4, 8, tokens(24, 768, 6000)),
            batch=summaries,
            argv=["run_summarization.py", "--train-bs", "16", "--eval-bs", "64", "--eval-every", "250"],
            settings=[
                ("argparse", "train_bs", 16, True),
                ("argparse", "eval_bs", 64, True),
                ("argparse", "eval_every", 250, True),
                ("argparse", "max_source_length", 512, False),
                ("argparse", "max_target_length", 128, False),
            ],
            evaluate=evaluate,
            truth={
                "kind": "evaluation",
                "rank": 0,
                "sensible_from": 251,
                "why": "Training batches (at most 16 x 512, seen) stay far below; the peak jumps in evaluations: 92 %, then 95 %, and the third, "
                "before step 751, does not fit (the generated texts get longer).",
            },
        )
    )

    def spikes(draw: random.Random, step: int, _rank: int) -> Batch:
        length = round(1365 * draw.uniform(0.95, 1.0))
        if step % 150 == 97:
            length = 3003
        return [[4, length], [4, length], [4, length]]

    found.append(
        Pattern(
            "sparse-spikes",
            "80",
            seed=83,
            steps=900,
            step_s=0.31,
            dtypes=["int64", "int64", "int64"],
            model=Model(6.9e9, 2, 0.02, 0.04, tokens(32, 4096, 32000)),
            batch=spikes,
            argv=["lora_7b.py", "--batch", "4", "--model_max_length", "4096"],
            settings=[
                ("argparse", "batch", 4, True),
                ("argparse", "model_max_length", 4096, True),
                ("argparse", "lora_r", 16, False),
            ],
            truth={
                "kind": "longer_batch",
                "rank": 0,
                "sensible_from": 97,
                "why": "One batch in 150 is 2.2 times as long and fits (84 %); model_max_length allows 3 times, about 108 %. No such batch comes in "
                "these 900 steps, so there is no latest step; before the first long batch lengths vary too little for more than a guess.",
            },
        )
    )

    def boxes(draw: random.Random, _step: int, _rank: int) -> Batch:
        short = draw.choice((640, 672, 704, 736, 768, 800))
        long = min(1333, round(short * draw.uniform(1.2, 1.75)))
        return [[6, 3, -(-short // 32) * 32, -(-long // 32) * 32]]

    def splinter(device: Allocator, draw: random.Random, step: int, _rank: int) -> None:
        if step > 20:
            device.holes += round(draw.expovariate(1 / (6.1 * MIB)))

    found.append(
        Pattern(
            "fragmented-detector",
            "24",
            seed=97,
            steps=1500,
            step_s=0.24,
            dtypes=["float32"],
            model=Model(44e6, 4, 4, 4, pixels(2_500)),
            batch=boxes,
            argv=["tools/train_net.py", "configs/rcnn_r101_fpn.yaml"],
            settings=[
                ("yaml", "ims_per_batch", 6, True),
                ("yaml", "max_size_train", 1333, True),
                ("yaml", "min_size_train", 800, True),
            ],
            after=splinter,
            waste=0.03,
            truth={
                "kind": "fragmented",
                "sensible_from": 350,
                "why": "The largest shape (800 x 1333, padded to 1344) came early and takes two thirds of the card; the allocator holds ever more, in "
                "holes that no request fits, until one fails with gigabytes reserved and not allocated. What is live after a step is flat.",
            },
        )
    )

    def recompute(device: Allocator, _draw: random.Random, step: int, _rank: int) -> None:
        if step == 99:  # gradient checkpointing is enabled before step 100, and the cache is emptied
            device.empty_cache(0.01)

    found.append(
        Pattern(
            "checkpointing-on",
            "80",
            seed=101,
            steps=300,
            step_s=1.05,
            dtypes=["int64", "int64"],
            model=Model(1.1e9, 6, 2, 8, tokens(22, 2048, 32000)),
            batch=lambda _r, _s, _k: [[15, 2048], [15, 2048]],
            argv=["python", "tinyllama.py"],
            settings=[
                ("yaml", "micro_batch_size", 15, True),
                ("yaml", "block_size", 2048, True),
                ("yaml", "ckpt_from_step", 100, True),
            ],
            scale=lambda step: 1.0 if step < 100 else 0.34,
            after=recompute,
            truth={
                "kind": "none",
                "why": "One shape, flat from step 2; at step 100 activation checkpointing comes on and the reserved memory falls (the peak is a "
                "running maximum and stays). There is nothing to do.",
            },
        )
    )

    def packed(_draw: random.Random, _step: int, _rank: int) -> Batch:
        return [[2, 4096], [2, 4096]]

    def last_stage(_device: Allocator, draw: random.Random, step: int, rank: int) -> float:
        # the last stage also holds logits, of which the loss keeps the rows with a label
        return 0.0 if rank < 3 or step == 1 else 120 * MIB * draw.expovariate(1.0)

    stages = [
        Model(1.95e9, 2, 2, 4, lambda _s: 9.4 * GIB),
        Model(1.82e9, 2, 2, 4, lambda _s: 8.8 * GIB),
        Model(1.82e9, 2, 2, 4, lambda _s: 8.1 * GIB),
        Model(2.05e9, 2, 2, 4, lambda _s: 22.12 * GIB),
    ]
    found.append(
        Pattern(
            "heavy-last-stage",
            "40",
            seed=115,
            steps=1400,
            step_s=0.2,
            ranks=4,
            accumulation=8,
            dtypes=["int64", "int64"],
            model=stages,
            batch=packed,
            argv=["train_pp.py", "--pp", "4", "--microbatches", "8", "--mbs", "2", "--seq", "4096"],
            settings=[
                ("argparse", "pp", 4, True),
                ("argparse", "microbatches", 8, True),
                ("argparse", "mbs", 2, True),
                ("argparse", "seq", 4096, True),
            ],
            noise=0.0006,
            waste=0.006,
            extra=last_stage,
            truth={
                "kind": "heavy_rank",
                "rank": 3,
                "sensible_from": 5,
                "why": "All batches have one shape; rank 3 (the last pipeline stage, with the logits) is near the limit while the others use about 60 %; "
                "its peak still rises a little now and then, until it does not fit.",
            },
        )
    )

    def autotune(_device: Allocator, draw: random.Random, step: int, _rank: int) -> float:
        return {1: 8.8, 2: 9.9, 3: 6.4}.get(step, 0.0) * GIB * (1 + draw.gauss(0, 0.01))

    found.append(
        Pattern(
            "compile-warmup",
            "24",
            seed=127,
            steps=1800,
            step_s=0.12,
            dtypes=["float32", "int64"],
            model=Model(86e6, 4, 4, 8, pixels(12 * 768 * 34 * 197 / 224**2 * 2.2)),
            batch=lambda _r, _s, _k: [[80, 3, 224, 224], [80]],
            argv=["python", "train.py", "--model", "deit_base", "--torchcompile", "max-autotune", "-b", "80"],
            settings=[
                ("argparse", "batch_size", 80, True),
                ("argparse", "img_size", 224, False),
                ("argparse", "workers", 8, True),
            ],
            extra=autotune,
            truth={
                "kind": "none",
                "why": "Autotuning in the first three steps takes the peak (a running maximum) to about 90 %; then the same batch needs much less. The "
                "cache keeps what it got. Nothing is to be done.",
            },
        )
    )
    return found


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent
    truths = [pattern.run(folder) for pattern in patterns()]
    (folder / "truth.json").write_text(json.dumps(truths, indent=1) + "\n")


if __name__ == "__main__":
    main()
