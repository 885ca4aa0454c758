"""A training that deadlocks at each launch, in the ways that its arguments name; every rank has a heartbeat thread.

It makes a few steps before. The launches are counted in `launch.txt`; the one after the last deadlock ends well. A heartbeat every 0.5 s is what trackers and
watchdogs print: it has the step, changing numbers, and the same words while the training moves and while it hangs.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import socket
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

STEPS = 12
seen = 0


def beat(rank: int) -> None:
    count = 0
    while True:
        count += 1
        now = time.strftime("%H:%M:%S")
        print(f"{now} INFO alive rank={rank} step={seen} beat={count} gpu=97%", flush=True)
        time.sleep(0.5)


def lock() -> None:
    held = threading.Lock()
    held.acquire()
    held.acquire()


def mismatched_collective() -> None:
    dist.recv(torch.ones(1), src=0)


def missing_in_barrier() -> None:
    queue.SimpleQueue().get()  # its own error handling waits for a message that nobody sends


def sleep() -> None:
    time.sleep(100_000)


def loop() -> None:
    number = 0
    while True:
        number = (number * 7 + 1) % 1000
        if number < 0:
            break


def blocked_read() -> None:
    ours, _theirs = socket.socketpair()
    ours.recv(1)


def dead_loader() -> None:
    batches = multiprocessing.Queue()
    worker = multiprocessing.Process(target=time.sleep, args=(100_000,), daemon=True)
    worker.start()  # alive, and it puts nothing
    batches.get()


WAYS = {
    way.__name__: way
    for way in (lock, mismatched_collective, missing_in_barrier, sleep, loop, blocked_read, dead_loader)
}


def main() -> None:
    global seen
    rank = int(os.environ["RANK"])
    counted = Path("launch.txt")
    launch = int(counted.read_text()) if counted.exists() else 0
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    dist.barrier()
    if rank == 0:
        counted.write_text(str(launch + 1))
    threading.Thread(target=beat, args=(rank,), daemon=True).start()
    first = launch * STEPS
    way = sys.argv[1 + launch] if launch + 1 < len(sys.argv) else ""
    for step in range(first + 1, first + STEPS + 1):
        if step == first + STEPS and way and rank == 1:
            WAYS[way]()
        if step == first + STEPS and way == "missing_in_barrier":
            dist.barrier()
        time.sleep(0.1)
        dist.all_reduce(torch.ones(1))
        seen = step
        if rank == 0:
            print(f"step {step} loss {5 / step:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
