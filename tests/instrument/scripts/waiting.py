"""Saves once before its first step and twice after it, and says how long each save took."""

import sys
import time

import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if sys.argv[1] == "resumes":
    torch.load("before.pt")


def save(path):
    began = time.monotonic()
    torch.save(model.state_dict(), path)
    print("{} {:.3f}".format(path, time.monotonic() - began), flush=True)


if sys.argv[1] == "resumes":
    save("first.pt")
for number in range(2):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    save("after%d.pt" % number)
