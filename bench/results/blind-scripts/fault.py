"""Run a script that runs out of memory in its first attempt, and write down what its model was given: python fault.py SCRIPT [ARGS].

Parser, loader class and loop are the script's. Two global hooks of torch are set before it starts: one before each forward pass, one
after each optimizer step. In attempt 1 the last rank raises torch's own error in the first training forward after `STEPS` steps of one
optimizer. Each step is a line of `BLIND_FED/<attempt>.<pid>.jsonl`: what went through the outermost modules with parameters, in training
mode and with gradients, since the step before.
"""

import json
import os
import runpy
import sys
import threading
from collections import Counter

import torch
from torch.nn.modules import module as modules
from torch.optim.optimizer import register_optimizer_step_post_hook

STEPS, MOST = 4, 60
MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.10 GiB is free. "
    "Including non-PyTorch memory, this process has 6.90 GiB memory in use. Of the allocated memory 6.10 GiB is allocated by PyTorch, "
    "and 320.00 MiB is reserved by PyTorch but unallocated."
)
attempt = int(os.environ.get("STOKER_ATTEMPT", "0"))
steps, forwards, within = Counter(), [], threading.local()


def rank():
    """The number of this rank, and how many there are: `torch.distributed`'s, since not every launcher sets variables."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def sizes(value):
    """Shapes of the tensors in an input, however deep they lie; at most four."""
    if isinstance(value, torch.Tensor):
        return [list(value.shape)]
    held = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [shape for one in held for shape in sizes(one)][:4]


def before(module, inputs):
    """Count the depth; of an outermost training forward, note its shapes, and end it in the first attempt."""
    if torch.compiler.is_compiling():
        return
    within.depth = getattr(within, "depth", 0) + 1
    if within.depth > 1 or not (module.training and torch.is_grad_enabled()):
        return
    if next(module.parameters(), None) is None or torch.utils.data.get_worker_info() is not None:
        return
    number, world = rank()
    if attempt == 1 and number == world - 1 and max(steps.values(), default=0) >= STEPS:
        raise torch.OutOfMemoryError(MESSAGE)
    if len(forwards) < 1000:
        forwards.append([type(module).__name__, sizes(inputs)])


def after(module, inputs, output):
    if not torch.compiler.is_compiling():
        within.depth = max(getattr(within, "depth", 0) - 1, 0)


def stepped(optimizer, args, kwargs):
    steps[id(optimizer)] += 1
    if sum(steps.values()) <= MOST and "BLIND_FED" in os.environ:
        with open(f"{os.environ['BLIND_FED']}/{attempt}.{os.getpid()}.jsonl", "a") as file:
            line = {"rank": rank()[0], "optimizer": list(steps).index(id(optimizer)), "forwards": forwards}
            file.write(json.dumps(line) + "\n")
    forwards.clear()


modules.register_module_forward_pre_hook(before)
modules.register_module_forward_hook(after, always_call=True)
register_optimizer_step_post_hook(stepped)
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
