"""accelerate with a bar over all steps; once, with a micro-batch of more than four, it runs out of memory."""

import argparse
import time

import torch
from accelerate import Accelerator
from told import tell
from tqdm.auto import tqdm


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(1)
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps, cpu=True)
    model = torch.nn.Linear(32, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(1024, 32)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=args.per_device_train_batch_size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    main_rank = accelerator.is_local_main_process
    bar = tqdm(range(len(loader) // args.gradient_accumulation_steps), disable=not main_rank)
    for inputs, wanted in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(inputs), wanted)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if args.per_device_train_batch_size > 4 and bar.n >= 10:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 318.50 MiB is free."
            )
        if accelerator.sync_gradients:
            bar.update(1)
            bar.set_postfix(loss=loss.item())
            if main_rank and args.per_device_train_batch_size <= 4:
                tell(bar.n, loss=loss.item())
        time.sleep(0.01)
    accelerator.end_training()


if __name__ == "__main__":
    main()
