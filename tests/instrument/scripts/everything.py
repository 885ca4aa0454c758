"""One process that trains in many ways and prints all that must be the same with and without the instrumentation.

Its memory goes to the file ``rss``: that alone may differ, by a little. It ends with an exception that nobody catches.
"""

import argparse
import glob
import inspect
import json
import os
import pathlib
import pickle
import shutil
import sys
import traceback
import warnings
from os.path import exists
from os.path import isfile as early_isfile

import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((8,), float(index) / 24), index % 2


class Broken(Numbers):
    def __getitem__(self, index):
        raise LookupError("sample %d" % index)


class OwnLoader(DataLoader):
    def __init__(self, dataset, batch_size=3, **more):
        super().__init__(dataset, batch_size, **more)


class OwnOptimizer(torch.optim.SGD):
    def load_state_dict(self, state_dict, strict=True):
        print("own load", strict, sorted(state_dict))
        return super().load_state_dict(state_dict)

    def step(self, closure=None):
        return super().step(closure)


class OwnParser(argparse.ArgumentParser):
    def error(self, message):
        print("own error:", message)
        raise SystemExit(2)


class Checkpointed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)

    def forward(self, inputs):
        return self.two(checkpoint(self.one, inputs, use_reentrant=False))


def network():
    return torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 2)
    )


def train(name, model, loader, optimizer=None, autocast=False, scaler=None, accumulate=1):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for number, (inputs, labels) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = torch.nn.functional.cross_entropy(model(inputs).float(), labels)
        (loss if scaler is None else scaler.scale(loss)).backward()
        losses.append(loss.item().hex())
        if (number + 1) % accumulate == 0:
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
    print(name, losses, hash(tuple(p.sum().item() for p in model.parameters())))
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "{}.pt".format(name))
    return optimizer


def other_optimizers():
    model = network()
    lbfgs = torch.optim.LBFGS(model.parameters())
    inputs = torch.randn(4, 8)

    def closure():
        lbfgs.zero_grad()
        loss = model(inputs).square().sum()
        loss.backward()
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.8's own LBFGS warns
        print("lbfgs", [lbfgs.step(closure).item().hex() for _ in range(3)])
    one, two = network(), network()
    first, second = torch.optim.Adam(one.parameters()), OwnOptimizer(two.parameters(), lr=0.1)
    for _ in range(6):
        for model, optimizer in ((one, first), (two, second)):
            optimizer.zero_grad()
            loss = model(inputs).square().sum()
            loss.backward()
            optimizer.step()
    print("gan", loss.item().hex())
    second.load_state_dict(second.state_dict(), strict=False)
    copy = pickle.loads(pickle.dumps(first))
    print("optimizer", type(copy).__name__, copy.state_dict().keys())


PATCHED = {
    "torch.save": torch.save,
    "torch.load": torch.load,
    "torch.serialization.save": torch.serialization.save,
    "torch.compile": torch.compile,
    "torch.autograd.backward": torch.autograd.backward,
    "torch.distributed.init_process_group": torch.distributed.init_process_group,
    "os.rename": os.rename,
    "os.replace": os.replace,
    "os.link": os.link,
    "os.listdir": os.listdir,
    "os.scandir": os.scandir,
    "os.path.exists": os.path.exists,
    "exists": exists,
    "early_isfile": early_isfile,
    "os.path.isdir": os.path.isdir,
    "shutil.copyfile": shutil.copyfile,
    "glob.glob": glob.glob,
    "json.loads": json.loads,
}
METHODS = [
    (DataLoader, "__init__"),
    (DataLoader, "_get_iterator"),
    (DataLoader, "__len__"),
    (torch.utils.data.dataloader._BaseDataLoaderIter, "__next__"),
    (torch.optim.Optimizer, "load_state_dict"),
    (torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler, "step"),
    (torch.nn.Module, "compile"),
    (argparse.ArgumentParser, "parse_known_args"),
    (pathlib.Path, "exists"),
    (pathlib.Path, "iterdir"),
]


def contracts():
    for name, function in PATCHED.items():
        print(name, inspect.signature(function), function.__name__, inspect.getdoc(function)[:20])
        if name != "torch.compile":
            again = pickle.loads(pickle.dumps(function))
            print(name, again is function or again is getattr(function, "__wrapped__", None))
    for owner, name in METHODS:
        print(
            owner.__name__, name, inspect.signature(getattr(owner, name)), getattr(owner, name).__qualname__
        )
    print(
        os.listdir in os.supports_fd,
        os.scandir in os.supports_fd,
        os.rename in os.supports_dir_fd,
        shutil.rmtree.avoids_symlink_attacks,
    )
    loader = OwnLoader(Numbers(), shuffle=False)
    copy = pickle.loads(pickle.dumps(loader))
    print(
        len(copy), copy.batch_size, sorted(copy.__dict__) == sorted(loader.__dict__), sorted(loader.__dict__)
    )
    print(sorted(torch.optim.SGD(network().parameters(), lr=1.0).__dict__))
    print(pickle.loads(pickle.dumps(Numbers()))[3])
    parser = OwnParser()
    parser.add_argument("--batch-size", type=int, default=4)
    print(parser.parse_args(["--batch-size", "7"]), parser.parse_known_args(["--other"]))
    try:
        parser.parse_args(["--batch-size", "seven"])
    except SystemExit as stop:
        print("code", stop.code)


def failures():
    """Errors in what is patched arrive as they were."""

    def attempt(function):
        try:
            function()
        except Exception:
            traceback.print_exc()

    attempt(lambda: torch.load("nothing.pt"))
    attempt(lambda: torch.load(__file__))
    attempt(lambda: torch.save({"f": lambda: 0}, "unpicklable.pt"))
    attempt(lambda: torch.save({}, "no/such/folder.pt"))
    attempt(lambda: torch.save())
    attempt(lambda: DataLoader(Numbers(), batch_size=0))
    attempt(lambda: next(iter(DataLoader(Broken(), batch_size=2))))
    attempt(lambda: next(iter(DataLoader(Broken(), batch_size=2, num_workers=1))))
    attempt(lambda: network()(torch.zeros(2, 3)))
    attempt(lambda: torch.ones(2, requires_grad=True).backward())
    attempt(
        lambda: torch.optim.SGD(network().parameters(), lr=1.0).load_state_dict(
            {"state": {}, "param_groups": []}
        )
    )
    attempt(lambda: os.replace("nothing", "else"))
    attempt(lambda: os.listdir("nothing"))
    attempt(lambda: os.path.exists())
    attempt(lambda: list(pathlib.Path("nothing").iterdir()))


def rss_kb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def main():
    torch.manual_seed(0)
    contracts()
    optimizer = train("plain", network(), DataLoader(Numbers(), batch_size=4, shuffle=True))
    loaded = torch.load("plain.pt")
    optimizer.load_state_dict(state_dict=loaded["optimizer"])
    train(
        "forked",
        network(),
        DataLoader(Numbers(), 4, True, num_workers=2, multiprocessing_context="fork"),
        accumulate=2,
    )
    train("spawned", network(), OwnLoader(Numbers(), 4, num_workers=1, multiprocessing_context="spawn"))
    train("bf16", network(), OwnLoader(Numbers()), autocast=True)
    scaler = torch.amp.GradScaler("cpu") if hasattr(torch.amp, "GradScaler") else None
    train("scaled", network(), OwnLoader(Numbers()), scaler=scaler)
    train("checkpointed", Checkpointed(), OwnLoader(Numbers()))
    other_optimizers()
    failures()
    print(float(torch.rand(()).item()).hex(), "of the random state")
    with open("rss", "w") as file:
        file.write(str(rss_kb()))
    sys.stdout.flush()
    raise KeyError("the end")


if __name__ == "__main__":
    main()
