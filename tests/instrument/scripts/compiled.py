"""Trains compiled models and prints losses and what dynamo counted. Arguments: the backend, and whether two more forms are compiled."""

import sys

import torch
import torch._dynamo.utils
from torch.utils.checkpoint import checkpoint


class Checkpointed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)

    def forward(self, inputs):
        return self.two(checkpoint(self.one, inputs, use_reentrant=False))


def train(name, model, call, steps=7):
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for number in range(steps):
        inputs = torch.randn(
            4 if number < 5 else 6, 8
        )  # another size after the forward hook is gone: one recompilation
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "bf16"):
            loss = call(inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    print(name, losses)


def main():
    backend = sys.argv[1]
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 2))
    train("eager before", model, model)
    train("compiled", model, torch.compile(model, backend=backend))
    other = Checkpointed()
    other.compile(backend=backend)
    train("in place", other, other)
    if sys.argv[2] == "more":
        model = torch.nn.Linear(8, 2)
        train("bf16", model, torch.compile(model, backend=backend))
        whole = torch.nn.Linear(8, 2)
        optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)

        @torch.compile(backend=backend)
        def step(inputs):
            loss = whole(inputs).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        print("whole step", [step(torch.randn(4, 8)).item().hex() for _ in range(6)])
    counters = torch._dynamo.utils.counters
    print("graphs", dict(counters["stats"]))
    print("breaks", sorted(counters["graph_break"].values()), sorted(counters["recompiles"].items()))


if __name__ == "__main__":
    main()
