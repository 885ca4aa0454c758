"""A foreign training script for tests: it knows nothing of stoker. `--mode` says how it ends.

It prints what plain scripts print and imports torch only where the mode needs it, so that a test costs
torchrun's own start and little more.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import time


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="ok")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--step-time", type=float, default=0.01)
    parser.add_argument("--fail-rank", type=int, default=1)
    parser.add_argument("--gate", default="", help="wait at the middle step until this file exists")
    parser.add_argument("--code", type=int, default=0, help="leave with it before the last step")
    parser.add_argument("--batch_size", type=int, default=16)
    args = parser.parse_args()
    rank = int(os.environ.get("RANK", "0"))
    print(f"rank {rank} of {os.environ.get('WORLD_SIZE', '1')} up, batch size {args.batch_size}")
    if args.mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for step in range(1, args.steps + 1):
        if rank == 0:
            print(f"step {step}/{args.steps} loss: {4.0 / step:.4f} lr: 1.0e-03")
        if step == args.steps // 2:
            if args.gate:
                while not os.path.exists(args.gate):
                    time.sleep(0.02)
            if rank == args.fail_rank:
                fail(args.mode)
            elif args.mode not in {"ok", "stubborn"}:
                signal.pause()  # a peer that waits in a collective: only a signal ends it
        if args.code and step == args.steps - 1:
            sys.exit(args.code)
        time.sleep(args.step_time)
    print(f"rank {rank} done")


def fail(mode: str) -> None:
    if mode == "exception":
        labels: dict[str, int] = {}
        print(labels["missing"])
    elif mode == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif mode == "sigsegv":
        ctypes.string_at(0)
    elif mode == "exit3":
        sys.exit(3)
    elif mode == "alloc":
        import torch

        torch.empty(1 << 44)
    elif mode == "stubborn":
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
