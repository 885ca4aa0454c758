import argparse, os, torch, tiny
import torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
# Proximal policy optimization: the minibatch is environments x steps / minibatches; --norm-batch (observations that set the scale) has its value.
p = argparse.ArgumentParser(); p.add_argument("--num-envs", type=int, default=4); p.add_argument("--num-steps", type=int, default=16); p.add_argument("--num-minibatches", type=int, default=4); p.add_argument("--norm-batch", type=int, default=16); p.add_argument("--hidden", type=int, default=16)
a = p.parse_args(); rank, world = tiny.setup(); model = DDP(tiny.Net(d=a.hidden)); opt = torch.optim.Adam(model.parameters()); n = 0
scale = torch.randn(a.norm_batch, 16).std()
for rollout in range(3):
    states = []
    with torch.no_grad():
        for _ in range(a.num_steps): s = torch.randn(a.num_envs, 16) / scale; model(s); states.append(s)
    states = torch.cat(states); size = len(states) // a.num_minibatches
    for part in torch.randperm(len(states)).split(size):
        opt.zero_grad(); F.mse_loss(model(states[part]), torch.zeros(size, 4)).backward(); opt.step(); n += 1
dist.destroy_process_group()
