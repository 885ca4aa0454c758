# Small CNN on image shards, two ranks, one shard file for each rank
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH = 16
STEPS = 110
LR = 0.05
IMAGE_BYTES = 3 * 32 * 32
# what a read from each mount takes: /scratch of the second machine is an old disk
READ_SECONDS = {0: 0.0, 1: 0.007}

torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK = dist.get_rank()


class Shard(Dataset):
    def __init__(self, path, latency, n=2000):
        self.path, self.latency, self.n = path, latency, n
        g = torch.Generator().manual_seed(RANK)
        with open(path, "wb") as f:
            f.write(torch.randint(0, 256, (n * IMAGE_BYTES,), dtype=torch.uint8, generator=g).numpy().tobytes())

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        with open(self.path, "rb") as f:
            f.seek(i * IMAGE_BYTES)
            raw = f.read(IMAGE_BYTES)
        time.sleep(self.latency)
        image = torch.frombuffer(bytearray(raw), dtype=torch.uint8).float().view(3, 32, 32) / 255
        return image, i % 10


def conv(i, o, s):
    return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())


net = nn.Sequential(conv(3, 16, 1), conv(16, 32, 2), conv(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
net = DistributedDataParallel(net)
opt = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9, nesterov=True)
loss_fn = nn.CrossEntropyLoss()

with tempfile.TemporaryDirectory() as folder:
    shard = Shard(f"{folder}/shard-{RANK:05d}.bin", READ_SECONDS[RANK % 2])
    loader = DataLoader(shard, batch_size=BATCH, shuffle=True, drop_last=True)
    start = time.perf_counter()
    step = 0
    for epoch in range(100):
        for images, labels in loader:
            loss = loss_fn(net(images), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 10 == 0 and RANK == 0:
                print("epoch %d iter %4d/%d loss %.3f elapsed %.1fs" % (epoch, step, STEPS, loss.item(), time.perf_counter() - start), flush=True)
            if step >= STEPS:
                break
        if step >= STEPS:
            break
dist.barrier()
dist.destroy_process_group()
