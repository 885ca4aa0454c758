import argparse, os, torch, tiny
import torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
# A JSON file whose keys say "batch" one level above the number.
import json
p = argparse.ArgumentParser(); p.add_argument("--config", default="h06.json"); cfg = json.load(open(p.parse_args().config))
rank, world = tiny.setup(); t = cfg["training"]["batch"]; model = DDP(tiny.Net(heads=cfg["model"]["heads"])); opt = torch.optim.Adam(model.parameters()); ds = tiny.Vec()
it = iter(DataLoader(ds, batch_size=t["size"], sampler=DistributedSampler(ds), num_workers=0))
for s in range(8):
    for _ in range(t["accumulate"]): x, y = next(it); (F.cross_entropy(model(x), y) / t["accumulate"]).backward()
    opt.step(); opt.zero_grad()
dist.destroy_process_group()
