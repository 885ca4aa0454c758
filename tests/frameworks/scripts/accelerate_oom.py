"""accelerate as in its and diffusers' examples: folders checkpoint-N, --resume_from_checkpoint latest; out of memory on rank 1 (memory.py)."""

import argparse
import math
import os
import time

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration, set_seed
from memory import train_on
from tqdm.auto import tqdm


def parse_args():
    parser = argparse.ArgumentParser(description="Simple example of a training script.")
    parser.add_argument("--output_dir", type=str, default="out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--train_batch_size",
        type=int,
        default=16,
        help="Batch size (per device) for the training dataloader.",
    )
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--max_train_steps", type=int, default=40)
    parser.add_argument("--checkpointing_steps", type=int, default=500)
    parser.add_argument(
        "--resume_from_checkpoint",
        type=str,
        default=None,
        help='Use a path saved by `--checkpointing_steps`, or "latest" to select the last available checkpoint.',
    )
    parser.add_argument("--learning_rate", type=float, default=1e-2)
    return parser.parse_args()


def main():
    args = parse_args()
    accelerator = Accelerator(
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),  # the same order after a resume
        cpu=True,
    )
    set_seed(args.seed)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    x = torch.randn(640, 32)
    dataset = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    train_dataloader = torch.utils.data.DataLoader(dataset, shuffle=True, batch_size=args.train_batch_size)
    model, optimizer, train_dataloader = accelerator.prepare(model, optimizer, train_dataloader)
    steps_per_epoch = math.ceil(len(train_dataloader) / args.gradient_accumulation_steps)

    global_step = 0
    if args.resume_from_checkpoint:
        if args.resume_from_checkpoint != "latest":
            path = os.path.basename(args.resume_from_checkpoint)
        else:
            dirs = [d for d in os.listdir(args.output_dir) if d.startswith("checkpoint")]
            path = max(dirs, key=lambda name: int(name.split("-")[1]))
        accelerator.print(f"Resuming from checkpoint {path}")
        accelerator.load_state(os.path.join(args.output_dir, path))
        global_step = int(path.split("-")[1])
    first_epoch = global_step // steps_per_epoch
    skipped = (global_step % steps_per_epoch) * args.gradient_accumulation_steps

    progress_bar = tqdm(
        range(args.max_train_steps),
        initial=global_step,
        desc="Steps",
        disable=not accelerator.is_local_main_process,
    )
    for epoch in range(first_epoch, math.ceil(args.max_train_steps / steps_per_epoch)):
        train_dataloader.set_epoch(epoch)
        batches = train_dataloader
        if epoch == first_epoch and skipped:
            batches = skip_first_batches(train_dataloader, skipped)
        train_loss = 0.0
        for inputs, wanted in batches:
            with accelerator.accumulate(model):
                train_on(global_step, len(inputs))
                time.sleep(0.05)
                loss = torch.nn.functional.mse_loss(model(inputs), wanted)
                train_loss += accelerator.gather(loss).mean().item() / args.gradient_accumulation_steps
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                progress_bar.update(1)
                global_step += 1
                progress_bar.set_postfix(step_loss=train_loss, lr=optimizer.param_groups[0]["lr"])
                train_loss = 0.0
                if global_step % args.checkpointing_steps == 0:
                    accelerator.save_state(os.path.join(args.output_dir, f"checkpoint-{global_step}"))
            if global_step >= args.max_train_steps:
                break
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
