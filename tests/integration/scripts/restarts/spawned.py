"""It starts its own ranks: two processes of `torch.multiprocessing`. It goes on from its snapshot."""

import argparse
import os

import torch.distributed as dist
import torch.multiprocessing as mp
from common import Points, Training
from torch.utils.data import DataLoader, DistributedSampler


def work(rank, args):
    dist.init_process_group("gloo", init_method="file://" + args.store, rank=rank, world_size=args.gpus)
    training = Training(prints=False)
    if os.path.isfile("out/snapshot.pt"):
        training.load("out/snapshot.pt")
    points = Points()
    loader = DataLoader(points, batch_size=args.batch_size, sampler=DistributedSampler(points))
    training.train(loader, args.accum, "out/snapshot.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=2)
    args = parser.parse_args()
    args.store = os.path.abspath(f"store.{os.getpid()}")
    mp.spawn(work, args=(args,), nprocs=args.gpus)
