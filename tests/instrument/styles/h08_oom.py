import argparse, os, torch, tiny
import torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
# Out of memory in the first forward: no step was made, so nothing says how often gradients are summed up.
p = argparse.ArgumentParser(); p.add_argument("--batch-size", type=int, default=16); p.add_argument("--grad-accum", type=int, default=2); p.add_argument("--hidden", type=int, default=16)
a = p.parse_args(); rank, world = tiny.setup(); ds = tiny.Vec()
class Large(tiny.Net):
    def forward(self, x): raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
model = DDP(Large(d=a.hidden)); opt = torch.optim.Adam(model.parameters())
for i, (x, y) in enumerate(DataLoader(ds, batch_size=a.batch_size, sampler=DistributedSampler(ds))):
    (F.cross_entropy(model(x), y) / a.grad_accum).backward()
    if (i + 1) % a.grad_accum == 0: opt.step(); opt.zero_grad()
    if i >= 15: break
