"""Two ranks: DDP, DDP compiled, FSDP2, with a batch each; prints losses, and saves with torch and with distributed checkpoints."""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def train(name, model):
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(48, 8))
    losses = []
    for (inputs,) in DataLoader(data, batch_size=4, sampler=DistributedSampler(data)):
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    sys.stdout.write(
        "%s %d %s\n" % (name, dist.get_rank(), losses)
    )  # in one piece: the other rank writes to the same pipe
    sys.stdout.flush()
    return optimizer


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(network())
    optimizer = train("ddp", model)
    if dist.get_rank() == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, "ddp.pt")
    compiled = DistributedDataParallel(network())
    train("ddp compiled", torch.compile(compiled, backend="aot_eager"))
    model = network()
    mesh = init_device_mesh("cpu", (2,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = train("fsdp2", model)
    state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": state, "optimizer": optimizer_state}, checkpoint_id="sharded")
    fresh = {"model": state, "optimizer": optimizer_state}
    dcp.load(fresh, checkpoint_id="sharded")
    set_state_dict(model, optimizer, model_state_dict=fresh["model"], optim_state_dict=fresh["optimizer"])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
