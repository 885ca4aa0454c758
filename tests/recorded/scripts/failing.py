"""A data-parallel training on gloo that ends in one of many ways; it knows nothing of stoker. ``failing.py HOW [--at STEP] [--rank RANK]``."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    """Rows of random numbers; `dies_at`: the row whose reader is killed."""

    def __init__(self, count: int, dies_at: int = -1) -> None:
        self.count, self.dies_at = count, dies_at

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> torch.Tensor:
        if row == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.randn(8)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=sorted(WAYS))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--step-time", type=float, default=0.1)
    parser.add_argument("--at", type=int, default=20)
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args()
    WAYS[args.how](args)


def train(args: argparse.Namespace, *, timeout_s: float = 60.0) -> None:
    """Steps, and at one of them, on one rank, what `args.how` says."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    dies_at = 4 * args.at if args.how == "worker" and rank == args.rank else -1
    data = DataLoader(Samples(4 * args.steps, dies_at), batch_size=4, num_workers=int(args.how == "worker"))
    for step, rows in enumerate(data, start=1):
        if step == args.at and rank == args.rank:
            HAPPENS.get(args.how, nothing)()
        loss = model(rows).square().mean()
        if args.how == "nan" and step >= args.at:
            loss = loss * float("nan")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step}/{args.steps} loss {loss.item():.4f} lr 1.00e-02", flush=True)
        time.sleep(args.step_time)
    dist.destroy_process_group()


def nothing() -> None:
    pass


def exception() -> None:
    weights: dict[str, torch.Tensor] = {}
    weights["blocks.3.attn"].mul_(2)


def segfault() -> None:
    ctypes.string_at(0)


def full_disk() -> None:
    torch.save({"weights": torch.ones(1 << 16)}, "/home/me/small/model.pt")  # a file system of 64 KiB


def no_memory() -> None:
    torch.empty(1 << 50)


def slow() -> None:
    time.sleep(30)


HAPPENS = {
    "exception": exception,
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sigsegv": segfault,
    "exit3": lambda: os._exit(3),
    "disk": full_disk,
    "memory": no_memory,
    "timeout": slow,
}


def import_error(_: argparse.Namespace) -> None:
    import flash_attention_of_ours  # noqa: F401


def missing_file(_: argparse.Namespace) -> None:
    with open("data/train.bin", "rb") as file:
        file.read(16)


def port(args: argparse.Namespace) -> None:
    """Every rank of its own binds a port that somebody else has."""
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", args.port))


def silent(args: argparse.Namespace) -> None:
    """Trains and prints nothing at all."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    train(args)


WAYS = {
    "import": import_error,
    "missing": missing_file,
    "port": port,
    "silent": silent,
    "timeout": lambda args: train(args, timeout_s=4.0),
    **dict.fromkeys(
        ("none", "exception", "sigkill", "sigsegv", "exit3", "disk", "memory", "worker", "nan"), train
    ),
}


if __name__ == "__main__":
    main()
