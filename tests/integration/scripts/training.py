"""A foreign training of real gloo collectives for tests: it knows nothing of stoker.

It prints one line a step and no phases. `--hang-at` makes one rank wait for ever before a collective, in the first launch only and in the
way that `--hang-how` says; evaluations, checkpoints and a stall of one rank's data are silent, as in most scripts.
"""

from __future__ import annotations

import argparse
import socket
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--step-time", type=float, default=0.2)
    parser.add_argument("--hang-at", type=int, default=-1)
    parser.add_argument("--hang-how", choices=sorted(WAYS), default="lock")
    parser.add_argument("--stall-at", type=int, default=-1)
    parser.add_argument("--stall-s", type=float, default=20.0)
    parser.add_argument("--bad-rank", type=int, default=1)
    parser.add_argument("--eval-every", type=int, default=0)
    parser.add_argument("--eval-s", type=float, default=4.0)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--save-s", type=float, default=0.0)
    parser.add_argument("--saved", default="saved.txt")
    parser.add_argument("--resume", default="")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    saved = Path(args.saved)
    first = int(saved.read_text()) if args.resume and saved.exists() else 0
    again = saved.with_suffix(".launched").exists()
    dist.barrier()
    if rank == 0:
        saved.with_suffix(".launched").touch()
        print(f"training from step {first}", flush=True)
    for step in range(first + 1, args.steps + 1):
        if rank == args.bad_rank and step == args.hang_at and not again:
            WAYS[args.hang_how]()
        fetch(args.stall_s if rank == args.bad_rank and step == args.stall_at else args.step_time)
        total = torch.ones(1)
        dist.all_reduce(total)
        if rank == 0:
            print(
                f"step {step}/{args.steps} loss: {3.0 / step + float(total) / 100:.4f} lr: 1.0e-03",
                flush=True,
            )
        if args.eval_every and step % args.eval_every == 0:
            evaluate(args.eval_s)
        if step % args.save_every == 0:
            save(saved, step, rank, args.save_s)
    dist.barrier()
    dist.destroy_process_group()


def wait_for_ever() -> None:
    threading.Event().wait()


def loop_for_ever() -> None:
    # On one line: of a loop over several no two stacks need be alike.
    while True: pass  # noqa: E701  # fmt: skip


def wait_for_a_socket() -> None:
    ours, _theirs = socket.socketpair()
    ours.recv(1)


def fetch(seconds: float) -> None:
    time.sleep(seconds)


def evaluate(seconds: float) -> None:
    time.sleep(seconds)
    dist.barrier()


def save(saved: Path, step: int, rank: int, seconds: float) -> None:
    if rank == 0:
        time.sleep(seconds)
        saved.write_text(str(step))
    dist.barrier()


WAYS = {"lock": wait_for_ever, "loop": loop_for_ever, "socket": wait_for_a_socket}

if __name__ == "__main__":
    main()
