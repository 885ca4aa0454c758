import argparse, os, torch, tiny
import torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
# A loop that cuts the loader's batch into pieces, one backward each.
p = argparse.ArgumentParser(); p.add_argument("--batch_size", type=int, default=16); p.add_argument("--micro_batch_size", type=int, default=4); p.add_argument("--heads", type=int, default=8)
a = p.parse_args(); rank, world = tiny.setup(); model = DDP(tiny.Net(heads=a.heads)); opt = torch.optim.AdamW(model.parameters()); ds = tiny.Vec()
pieces = a.batch_size // a.micro_batch_size
for i, (x, y) in enumerate(DataLoader(ds, batch_size=a.batch_size, sampler=DistributedSampler(ds))):
    for px, py in zip(x.split(a.micro_batch_size), y.split(a.micro_batch_size)): (F.cross_entropy(model(px), py) / pieces).backward()
    opt.step(); opt.zero_grad()
    if i >= 7: break
dist.destroy_process_group()
