import argparse, os, torch, tiny
import torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
# Two batch flags of one value: training takes --mini_batch_size, --batch_size sizes the clustering. The helper's argument has the other's name.
p = argparse.ArgumentParser(); p.add_argument("--batch_size", type=int, default=8); p.add_argument("--mini_batch_size", type=int, default=8); p.add_argument("--k", type=int, default=4)
a = p.parse_args(); rank, world = tiny.setup(); model = DDP(tiny.Net(out=a.k)); opt = torch.optim.Adam(model.parameters()); ds = tiny.Vec()
def make(dataset, batch_size): return DataLoader(dataset, batch_size=batch_size, sampler=DistributedSampler(dataset))
clusters = torch.randn(a.batch_size, 16).mean(0)
for i, (x, y) in enumerate(make(ds, a.mini_batch_size)):
    opt.zero_grad(); F.cross_entropy(model(x - clusters), y).backward(); opt.step()
    if i >= 7: break
dist.destroy_process_group()
