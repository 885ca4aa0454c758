"""nanoGPT: variables of the script that an executed file sets from the command line, and batches without a loader."""

import torch
from common import Training

init_from = "scratch"
batch_size = 12
gradient_accumulation_steps = 40
n_head = 4
out_dir = "out"
exec(open("configurator.py").read())  # noqa: SIM115
training = Training(heads=n_head)
assert gradient_accumulation_steps % training.world == 0
gradient_accumulation_steps //= training.world
if init_from == "resume":
    training.load(f"{out_dir}/ckpt.pt")
while training.goes_on:
    for _ in range(gradient_accumulation_steps):
        x, y = torch.randn(batch_size, 16), torch.randint(0, 4, (batch_size,))
        training.feed(x, y, share=1 / gradient_accumulation_steps)
    training.update()
    training.save(f"{out_dir}/ckpt.pt")
training.end()
