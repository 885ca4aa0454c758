import argparse, os, torch, tiny
import torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
# Person re-identification: each batch has P identities with K pictures; --test-batch has the product's value.
p = argparse.ArgumentParser(); p.add_argument("-P", "--ids", type=int, default=4); p.add_argument("-K", "--instances", type=int, default=4); p.add_argument("--test-batch", type=int, default=16); p.add_argument("--dim", type=int, default=16)
a = p.parse_args(); rank, world = tiny.setup(); model = DDP(tiny.Net(d=a.dim)); opt = torch.optim.SGD(model.parameters(), .1); ds = tiny.Vec()
class PK(torch.utils.data.Sampler):
    def __len__(s): return 40
    def __iter__(s):
        for i in range(40): yield [(i * 31 + j * 4 + k * 64 + rank) % 4096 for j in range(a.ids) for k in range(a.instances)]
for i, (x, y) in enumerate(DataLoader(ds, batch_sampler=PK())):
    opt.zero_grad(); F.cross_entropy(model(x), y).backward(); opt.step()
    if i >= 7: break
dist.destroy_process_group()
