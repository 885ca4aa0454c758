import argparse, os, torch, tiny
import torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
# An executed Python configuration, with overrides as nested key=value words.
import ast, runpy
p = argparse.ArgumentParser(); p.add_argument("config"); p.add_argument("--cfg-options", nargs="+", default=[])
a = p.parse_args(); cfg = {k: v for k, v in runpy.run_path(a.config).items() if not k.startswith("_")}
for word in a.cfg_options:
    key, value = word.split("=", 1); at = cfg
    for part in key.split(".")[:-1]: at = at[part]
    at[key.split(".")[-1]] = ast.literal_eval(value)
rank, world = tiny.setup(); model = DDP(tiny.Net(d=cfg["model"]["width"])); opt = torch.optim.SGD(model.parameters(), .1); ds = tiny.Vec()
for i, (x, y) in enumerate(DataLoader(ds, batch_size=cfg["train_dataloader"]["batch_size"], sampler=DistributedSampler(ds))):
    (F.cross_entropy(model(x), y) / cfg["optim_wrapper"]["accumulative_counts"]).backward()
    if (i + 1) % cfg["optim_wrapper"]["accumulative_counts"] == 0: opt.step(); opt.zero_grad()
    if i >= 15: break
dist.destroy_process_group()
