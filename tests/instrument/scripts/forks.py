"""Forks a child for each thing that may happen, so that torch is imported once; a child's telemetry is in a folder of its name.

Each child prints nothing itself: its losses, its exit code and whether it raised go to ``<name>.json`` beside it.
``raise:NAME`` makes a function of the instrumentation fail at each call, as a bug in it would.
"""

import gc
import json
import os
import re
import sys

FAILING = [""]


def sabotage():
    """Put a function that can be made to fail before each one of the instrumentation's: before torch is there to be patched."""
    ours = [
        sys.modules["_stoker_instrument." + name]
        for name in ("wire", "training", "checkpoints")
        if load(name)
    ]
    names = []
    for module in ours:
        owners = [module] + [
            held
            for held in vars(module).values()
            if isinstance(held, type) and held.__module__ == module.__name__
        ]
        for owner in owners:
            for name, function in list(vars(owner).items()):
                own = getattr(function, "__module__", None) == module.__name__ and hasattr(
                    function, "__code__"
                )
                if own and name not in HARNESS:
                    label = "{}.{}".format(getattr(owner, "__qualname__", owner.__name__), name)
                    either = failing(label, function)
                    for holder in [owner, *ours]:  # `from .wire import …` binds it there, too
                        if vars(holder).get(name) is function:
                            setattr(holder, name, either)
                    names.append(label)
    return names


# They install the patches and run before any child is forked; `quietly` is what catches.
HARNESS = ("quietly", "__enter__", "__exit__", "watch", "begin", "_end", "__init__")
AT_EXIT = re.compile("ended|flush|record|_write|place|note")


def load(name):
    __import__("_stoker_instrument." + name)
    return True


def failing(label, function):
    def either(*args, **kwargs):
        if FAILING[0] == label or (FAILING[0] == "install" and "watch_" in label):
            raise ZeroDivisionError("on purpose in " + label)
        return function(*args, **kwargs)

    either.__name__ = function.__name__
    return either


def train(torch, result):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.arange(24.0).reshape(6, 4))
    os.path.exists("last.pt")
    os.listdir(".")
    if hasattr(torch.amp, "GradScaler"):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    else:  # torch 2.1 scales nothing on a CPU
        scaler = torch.cuda.amp.GradScaler(enabled=False)
    for number, (inputs,) in enumerate(list(torch.utils.data.DataLoader(data, batch_size=1)) * 2):
        loss = model(inputs).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        result["losses"].append(loss.item().hex())
        if number == 3:
            torch.save({"optimizer": optimizer.state_dict()}, "tmp%d" % os.getpid())
            os.replace("tmp%d" % os.getpid(), "last.pt")
            optimizer.load_state_dict(torch.load("last.pt")["optimizer"])


def close_all():
    sys.stdin.close()
    os.closerange(3, 256)


def act(kind, torch, result):
    if kind == "closes":
        close_all()
    train(torch, result)
    if kind == "exits":
        sys.exit(3)
    if kind == "raises":
        raise LookupError("the end")
    if kind == "swallows":
        try:
            raise LookupError
        except LookupError:
            pass
    if kind == "forks":
        child = os.fork()
        train(torch, result)
        if child == 0:
            sys.exit(0)
        os.waitpid(child, 0)


def main():
    kinds = sys.argv[1].split(",")
    measured = "_stoker_instrument" in sys.modules
    names = sabotage() if measured else []
    FAILING[0] = sys.argv[2]
    import torch
    import torch._dynamo  # which the first optimizer imports: once here, not in each child
    import torch.distributed.checkpoint

    if measured:
        wire = sys.modules["_stoker_instrument.wire"].wire
    torch.set_num_threads(1)
    gc.freeze()
    kinds += ["raise:" + name for name in names if sys.argv[2] == "each" and "watch_" not in name]
    for kind in kinds:
        child = os.fork()
        if child == 0:
            if measured:
                wire.folder = os.path.join("a_file" if kind == "unwritable" else wire.folder, kind)
            if kind == "full":
                os.makedirs(wire.folder if measured else kind)
                os.symlink("/dev/full", os.path.join(wire.folder if measured else kind, "measured0.jsonl"))
            if kind.startswith("raise:"):
                FAILING[0] = kind.partition(":")[2]
            result = {"losses": []}
            try:
                act(kind, torch, result)
            finally:
                with open(kind + ".json", "w") as file:
                    json.dump(result, file)
            if kind.startswith("raise:") and not AT_EXIT.search(kind):
                os._exit(0)  # to take torch down takes longer than the rest
            return
        status = os.waitpid(child, 0)[1]
        print(kind, os.WIFEXITED(status) and os.WEXITSTATUS(status), flush=True)


main()
