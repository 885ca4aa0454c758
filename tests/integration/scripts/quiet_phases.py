"""A healthy training that makes no step for a while in many ways, behind a heartbeat; each phase is written to `phases.jsonl` with its times."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

STEP_S = 0.15
STEPS = 6
"""Between two phases: a pace is known after five."""
LONG_S = 7.0
"""Longer than the limit that the test gives."""
WORDS = ("pond", "lamp", "rock", "snow", "page", "plum", "gate", "lens", "yard", "note", "coin", "dusk")


def beat(rank: int) -> None:
    count = 0
    while True:
        count += 1
        print(f"{time.strftime('%H:%M:%S')} INFO heartbeat rank={rank} seq={count} gpu_util=100%", flush=True)
        time.sleep(0.5)


def pause() -> None:
    time.sleep(3)


def prose() -> None:
    for number in range(12):
        one, other = WORDS[number], WORDS[(7 * number + 3) % 12]
        print(f"The {one} lay by the {other}, and the {WORDS[(5 * number + 1) % 12]} was gone.", flush=True)
        time.sleep(LONG_S / 12)


def counted() -> None:
    for number in range(1, 25):
        print(f"[{number}/24] accuracy {0.5 + number / 100:.2f}", flush=True)
        time.sleep(LONG_S / 24)


def drawn() -> None:
    for number in range(1, 25):
        text = f"\rValidating: {100 * number // 24:3}%|##  | {number}/24 [00:05<00:05,  2.0it/s]"
        print(text, end="", flush=True)
        time.sleep(LONG_S / 24)
    print(flush=True)


def evaluate() -> None:
    time.sleep(LONG_S)


def announced() -> None:
    print("Running validation on 500 batches", flush=True)
    time.sleep(LONG_S)


def save_checkpoint() -> None:
    time.sleep(LONG_S)


def compiles() -> None:
    print("Recompiling the model for sequence length 4096", flush=True)
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        sum(range(100_000))


def upload() -> None:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    def receive() -> None:
        while theirs.recv(4096):
            time.sleep(0.02)

    threading.Thread(target=receive, daemon=True).start()
    end = time.monotonic() + 4
    while time.monotonic() < end:
        ours.sendall(bytes(16_384))


def slow_data() -> None:
    time.sleep(2)


PHASES: tuple[Callable[[], None], ...] = (
    pause, prose, counted, drawn, evaluate, announced, save_checkpoint, compiles, upload, slow_data,
)  # fmt: skip


def main() -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    dist.barrier()
    threading.Thread(target=beat, args=(rank,), daemon=True).start()
    for step in range(1, STEPS * (len(PHASES) + 1) + 1):
        time.sleep(STEP_S)
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            print(f"step {step} loss {5 / step:.4f}", flush=True)
        phase = PHASES[step // STEPS - 1] if step % STEPS == 0 and step // STEPS <= len(PHASES) else None
        if phase is not None and rank == 0:
            began = time.time()
            phase()
            with open("phases.jsonl", "a", encoding="utf-8") as file:
                print(json.dumps([phase.__name__, began, time.time()]), file=file)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
