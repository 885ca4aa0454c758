# Click prediction with embeddings. Percentiles of all losses so far decide which samples count as hard.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

USERS, ITEMS, DIM = 5000, 8000, 32
BATCH_SIZE = 512
MAX_STEPS = 460
PRINT_EVERY = 10


class Clicks(Dataset):
    def __init__(self, n=600_000):
        g = torch.Generator().manual_seed(0)
        self.user = torch.randint(0, USERS, (n,), generator=g)
        self.item = torch.randint(0, ITEMS, (n,), generator=g)
        self.label = ((self.user * 7 + self.item) % 3 == 0).float()

    def __len__(self):
        return len(self.user)

    def __getitems__(self, idx):
        idx = torch.as_tensor(idx)
        return self.user[idx], self.item[idx], self.label[idx]


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.u, self.i = nn.Embedding(USERS, DIM), nn.Embedding(ITEMS, DIM)
        self.top = nn.Sequential(nn.Linear(2 * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, u, i):
        return self.top(torch.cat([self.u(u), self.i(i)], -1)).squeeze(-1)


def hard_threshold(history):
    mean = sum(history) / len(history)
    deviation = (sum((h - mean) ** 2 for h in history) / len(history)) ** 0.5
    above = [h for h in history if h > mean + deviation]
    return min(above) if above else mean


def run():
    rank = dist.get_rank()
    torch.manual_seed(1)
    data = Clicks()
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=BATCH_SIZE, sampler=sampler, collate_fn=lambda b: b)
    model = DDP(TwoTower())
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    bce = nn.BCEWithLogitsLoss(reduction="none")
    history = []
    for step, (u, i, label) in enumerate(loader, start=1):
        losses = bce(model(u, i), label)
        history.extend(losses.tolist())
        threshold = hard_threshold(history)
        weight = 1 + (losses.detach() > threshold).float()
        loss = (losses * weight).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % PRINT_EVERY == 0 and rank == 0:
            print("step=%d loss=%.4f hard>%.3f" % (step, loss.item(), threshold), flush=True)
        if step == MAX_STEPS:
            break


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        run()
    finally:
        dist.destroy_process_group()
