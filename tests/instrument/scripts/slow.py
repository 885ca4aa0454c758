"""Two ranks, of which the second sleeps 50 ms in each forward. Argument: how gradients are averaged."""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Slow(torch.nn.Module):
    def __init__(self, buffers):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.rest = torch.nn.BatchNorm1d(8) if buffers else torch.nn.Identity()

    def forward(self, inputs):
        if dist.get_rank() == 1:
            time.sleep(0.05)
        return self.rest(self.linear(inputs))


def main():
    way = sys.argv[1]
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Slow(buffers=way == "buffers")
    if way in ("ddp", "buffers", "accumulated"):
        model = DistributedDataParallel(model)
    elif way == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(30):
        if way == "accumulated":
            with model.no_sync():
                model(torch.randn(4, 8)).sum().backward()
        model(torch.randn(4, 8)).sum().backward()
        if way == "by_hand":
            works = [dist.all_reduce(model.linear.bias.grad, async_op=True)]
            dist.all_reduce(model.linear.weight.grad)
            works[0].wait()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
