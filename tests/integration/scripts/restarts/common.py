"""What the trainings of this folder share: a model, a checkpoint, a memory that is too small, and a record of what was really trained.

``fed.<rank>.jsonl`` gets a line at the start, for each optimizer step (its number, the samples of each pass, the ranks) and for each save.
"""

import hashlib
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

STEPS, SAVES_EVERY = 10, 4
MESSAGE = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 15.00 GiB of which 1.00 GiB is free."


class Points(Dataset):
    """4096 points of 16 numbers, in four classes."""

    def __len__(self):
        return 4096

    def __getitem__(self, at):
        return torch.full((16,), at % 97 / 97), at % 4


class Training:
    """A training on the ranks there are. `limit`: samples of a pass that rank 1 can hold from step `fails_at` on."""

    def __init__(self, limit=8, heads=4, width=16, optimizer=torch.optim.Adam, prints=True, fails_at=6):
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.limit, self.prints, self.step, self.samples = limit, prints, 0, []
        self.fails_at = fails_at
        self.net = nn.Sequential(nn.Linear(16, width * heads), nn.Tanh(), nn.Linear(width * heads, 4))
        self.net.register_forward_pre_hook(lambda _, given: self.hold(given[0]))
        self.model = DistributedDataParallel(self.net)
        self.optimizer = optimizer(self.model.parameters(), lr=1e-3)
        self.write()

    @property
    def goes_on(self):
        return self.step < STEPS

    def load(self, path):
        held = torch.load(path)
        self.net.load_state_dict(held["model"])
        self.optimizer.load_state_dict(held["optimizer"])
        self.step = held["step"]

    def feed(self, x, y, share=1.0):
        """One pass, forward and backward."""
        self.samples.append(len(x))
        (nn.functional.cross_entropy(self.model(x), y) * share).backward()

    def hold(self, x):
        """The model runs out of memory in its forward."""
        if self.rank == 1 and self.step + 1 >= self.fails_at and len(x) > self.limit:
            raise torch.OutOfMemoryError(MESSAGE)

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.write(step=self.step, samples=self.samples, world=self.world)
        self.samples = []
        if self.rank == 0 and self.prints:
            print(f"step {self.step}/{STEPS} loss: {3.0 / self.step:.4f}", flush=True)

    def save(self, path):
        if self.step % SAVES_EVERY or self.rank:
            return
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        model, optimizer = self.net.state_dict(), self.optimizer.state_dict()
        held = {"model": model, "optimizer": optimizer, "step": self.step}
        torch.save(held, path + ".part")
        os.replace(path + ".part", path)
        self.write(saved=self.step, sha256=hashlib.sha256(Path(path).read_bytes()).hexdigest())

    def write(self, **line):
        with open(f"fed.{self.rank}.jsonl", "a", encoding="utf-8") as file:
            print(json.dumps({"launch": os.getppid(), **line}), file=file)

    def train(self, loader, passes, path):
        """To the end, with `passes` batches a step; its checkpoints are one file. The loader is made where its batch size is known."""
        batches = forever(loader)
        while self.goes_on:
            for _ in range(passes):
                self.feed(*next(batches), share=1 / passes)
            self.update()
            self.save(path)
        self.end()

    def end(self):
        dist.barrier()
        dist.destroy_process_group()


def forever(loader):
    """Its batches, epoch after epoch."""
    while True:
        yield from loader
