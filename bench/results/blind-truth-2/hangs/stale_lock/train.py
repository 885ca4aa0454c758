"""Two ranks; before its second part rank 1 waits for a lock that nobody will ever release."""

import os
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DDP(nn.Linear(16, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
STEPS = 500


def monitor():
    while True:
        time.sleep(2)
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
        print(
            f"[monitor] {time.strftime('%H:%M:%S')} host memory free {free:.1f} GiB, load {os.getloadavg()[0]:.2f}",
            flush=True,
        )


def next_part(step):
    if step == 25 and rank == 1:
        open("part-0002.lock", "w").close()  # left behind by a run that was killed
        while os.path.exists("part-0002.lock"):
            time.sleep(0.5)


if rank == 0:
    threading.Thread(target=monitor, daemon=True).start()
for step in range(1, STEPS + 1):
    next_part(step)
    time.sleep(0.2)
    x = torch.randn(8, 16)
    loss = (model(x) - x.mean(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(f"iter {step}/{STEPS} loss {loss.item():.4f} time 0.20", flush=True)
dist.destroy_process_group()
