"""nanoGPT's own train.py, unedited, on CPU ranks: under torchrun it takes `cuda:RANK` whatever --device says, and that is the CPU here.

Put on PYTHONPATH of its ranks alone. Its model's forward pass runs out of memory as in memory.py.
"""

import os
import sys

if "LOCAL_RANK" in os.environ and any(word.endswith("train.py") for word in sys.orig_argv):
    import contextlib
    import time

    import torch
    import torch.nn.parallel

    def on_cpu(place):
        return "cpu" if str(place).startswith("cuda") else place

    def moving(method):
        def to(self, *args, **kwargs):
            return method(self, *map(on_cpu, args), **kwargs)

        return to

    class Ddp(torch.nn.parallel.DistributedDataParallel):
        def __init__(self, module, device_ids=None, **kwargs):
            super().__init__(module, **kwargs)

    load, forward = torch.load, torch.nn.parallel.DistributedDataParallel.forward
    torch.cuda.set_device = lambda device: None
    torch.amp.autocast = lambda *args, **kwargs: contextlib.nullcontext()
    torch.Tensor.pin_memory = lambda self: self
    torch.Tensor.to, torch.nn.Module.to = moving(torch.Tensor.to), moving(torch.nn.Module.to)
    torch.load = lambda file, map_location=None, **kwargs: load(file, map_location="cpu", **kwargs)
    torch.nn.parallel.DistributedDataParallel = Ddp

    def counted(self, x, *args):
        if self.training:
            from memory import train_on

            train_on(sys.modules["__main__"].iter_num, len(x))
            time.sleep(0.05)
        return forward(self, x, *args)

    Ddp.forward = counted
