"""An image classifier under plain DDP: no language model, and not a word of stoker.

    stoker run --nproc-per-node 2 trainer/examples/images.py --batch-size 64 --resume auto
    python trainer/examples/images.py --steps 50

Images are 3 × 32 × 32 in ten classes, as in CIFAR-10: drawn here (a class is a pattern under noise), or read from
``--data FILE.npz`` with `images` (uint8, [n, 3, 32, 32]) and `labels` ([n]).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name everyone knows
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CLASSES = 10


def drawn(count: int, seed: int) -> TensorDataset:
    """Noisy pictures of ten fixed patterns: [count, 3, 32, 32] and their classes."""
    patterns = torch.randn(CLASSES, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    return TensorDataset(patterns[labels] + 2 * torch.randn(count, 3, 32, 32, generator=generator), labels)


def read(path: Path) -> TensorDataset:
    """Pictures from an .npz file; objects in it are refused."""
    with np.load(path, allow_pickle=False) as held:
        images = torch.from_numpy(held["images"]).float() / 127.5 - 1
        return TensorDataset(images, torch.from_numpy(held["labels"]).long())


def network() -> nn.Sequential:
    """Three convolutions and a head."""
    parts: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        parts += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(8, after), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES))


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Writes a checkpoint whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, temporary)
    os.replace(temporary, path)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Classify small images.")
    parser.add_argument("--batch-size", type=int, default=32, help="images a rank takes at once")
    parser.add_argument("--accumulation-steps", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--data", type=Path, help="an .npz file; default: drawn pictures")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoints/images.pt"))
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument(
        "--resume", default="", choices=["", "auto"], help="auto: from --checkpoint, if it is there"
    )
    return parser.parse_args()


def main() -> None:
    """Trains, alone or as one rank of many."""
    chosen = options()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    cuda = torch.cuda.is_available() and torch.cuda.device_count() >= world
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if world > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    bare = network().to(device)
    optimizer = torch.optim.AdamW(bare.parameters(), lr=chosen.lr)
    step = 0
    if chosen.resume and chosen.checkpoint.exists():
        held = torch.load(chosen.checkpoint, map_location=device, weights_only=True)
        bare.load_state_dict(held["model"])
        optimizer.load_state_dict(held["optimizer"])
        step = held["step"]
    model: nn.Module = DistributedDataParallel(bare) if world > 1 else bare
    pictures = read(chosen.data) if chosen.data else drawn(4096, seed=1)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(pictures, world, rank, seed=0)
    loader = DataLoader(pictures, chosen.batch_size, sampler=sampler, drop_last=True)
    if not len(loader):
        raise SystemExit(f"--batch-size {chosen.batch_size} is more than a rank's {len(sampler)} images")
    micro, right, seen = step * chosen.accumulation_steps, 0.0, 0
    while step < chosen.steps:
        sampler.set_epoch(micro // len(loader))
        for images, labels in loader:
            scores = model(images.to(device))
            loss = F.cross_entropy(scores, labels.to(device)) / chosen.accumulation_steps
            loss.backward()
            micro += 1
            right += float((scores.argmax(1).cpu() == labels).sum())
            seen += len(labels)
            if micro % chosen.accumulation_steps:
                continue
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if rank == 0 and step % 10 == 0:
                value = float(loss.detach()) * chosen.accumulation_steps
                print(
                    f"step {step}/{chosen.steps} loss: {value:.4f} accuracy: {right / seen:.3f}", flush=True
                )
                right, seen = 0.0, 0
            if rank == 0 and (step % chosen.save_every == 0 or step == chosen.steps):
                save(chosen.checkpoint, step, bare, optimizer)
            if step == chosen.steps:
                break
    if world > 1:
        del loss, scores
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
