import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Utterances(Dataset):
    def __init__(self, size=20000):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        frames = 40 + index % 25
        g = torch.Generator().manual_seed(index)
        return torch.randn(frames, 40, generator=g), torch.randint(0, 32, (frames,), generator=g)


def collate(samples):
    feats, labels = zip(*samples)
    time.sleep(0.15)  # the resampler is an external program
    return pad_sequence(feats, batch_first=True), pad_sequence(labels, batch_first=True, padding_value=-100)


class Acoustic(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Conv1d(40, 64, 5, padding=2)
        self.rnn = nn.GRU(64, 64, batch_first=True, bidirectional=True)
        self.proj = nn.Linear(128, 32)

    def forward(self, x):
        h = torch.relu(self.front(x.transpose(1, 2))).transpose(1, 2)
        return self.proj(self.rnn(h)[0])


class Trainer:
    def __init__(self, opts):
        self.opts = opts
        self.rank = dist.get_rank()
        self.model = DistributedDataParallel(Acoustic())
        self.optim = torch.optim.Adam(self.model.parameters(), lr=opts.lr)
        self.sched = torch.optim.lr_scheduler.LinearLR(self.optim, 0.1, total_iters=50)
        self.criterion = nn.CrossEntropyLoss(ignore_index=-100)
        ds = Utterances()
        self.loader = DataLoader(ds, batch_size=opts.bs, sampler=DistributedSampler(ds), num_workers=2, collate_fn=collate)
        self.updates = 0

    def fit(self):
        acc = self.opts.accumulate
        running = 0.0
        for i, (x, y) in enumerate(self.loader):
            sync = (i + 1) % acc == 0
            if sync:
                running += self.micro(x, y, acc)
                self.optim.step()
                self.sched.step()
                self.optim.zero_grad(set_to_none=True)
                self.updates += 1
                if self.updates % 10 == 0:
                    if self.rank == 0:
                        print("| update %5d | loss %.4f | lr %.2e" % (self.updates, running / 10, self.sched.get_last_lr()[0]), flush=True)
                    running = 0.0
                if self.updates == self.opts.max_updates:
                    return
            else:
                with self.model.no_sync():
                    running += self.micro(x, y, acc)

    def micro(self, x, y, acc):
        loss = self.criterion(self.model(x).flatten(0, 1), y.flatten()) / acc
        loss.backward()
        return loss.item()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--bs", type=int, default=8)
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--max-updates", type=int, default=85)
    p.add_argument("--lr", type=float, default=2e-3)
    o = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    Trainer(o).fit()
    dist.barrier()
    dist.destroy_process_group()
