import argparse, os, torch, tiny
import torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
# A table of presets in the code: no setting holds the batch; two have its value.
PRESETS = {"small": dict(batch=8, width=16), "large": dict(batch=64, width=64)}
p = argparse.ArgumentParser(); p.add_argument("--preset", default="small"); p.add_argument("--chunk", type=int, default=8); p.add_argument("--eval-batch", type=int, default=8)
a = p.parse_args(); c = PRESETS[a.preset]; rank, world = tiny.setup(); model = DDP(tiny.Net(d=c["width"])); opt = torch.optim.Adam(model.parameters()); ds = tiny.Vec()
for i, (x, y) in enumerate(DataLoader(ds, batch_size=c["batch"], sampler=DistributedSampler(ds))):
    opt.zero_grad(); F.cross_entropy(model(x), y).backward(); opt.step()
    if i >= 7: break
dist.destroy_process_group()
