"""Which batch a process was working on when it died, from processes that really die."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.run.records import UsedBatch
from supervisor.sources.measured_files import used_batches
from tests.instrument.child import Ended, run
from tests.tiers import first

LOOP = """
import os, signal, sys, torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(96, 4), torch.arange(96))
loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=WORKERS, persistent_workers=WORKERS > 0)
model = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = 0
def ahead(batches):
    "As accelerate does: it must know which batch is the last."
    batches = iter(batches); held = next(batches)
    for batch in batches:
        yield held
        held = batch
    yield held
def end(indices):
    print(indices.tolist(), flush=True)
    END
for epoch in range(3):
    for features, indices in WRAP(loader):
        out = model(features).sum()
        if steps == 20: end(indices)
        out.backward(); optimizer.step(); steps += 1
        if epoch == 0 and steps == 5: break
"""
ENDS = {
    "raised": "raise torch.OutOfMemoryError('CUDA out of memory')",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
}


def died(folder: Path, *, end: str, workers: int = 0, wrap: str = "") -> Ended:
    script = LOOP.replace("WORKERS", str(workers)).replace("WRAP", wrap).replace("END", ENDS[end])
    return run(["-c", script], folder)


def used(folder: Path) -> tuple[UsedBatch, ...]:
    return used_batches([folder / "telemetry"])[0]


@pytest.mark.parametrize(
    ("end", "workers", "wrap"),
    first(2, [("killed", 2, ""), ("raised", 0, "ahead"), ("raised", 0, ""), ("killed", 0, "ahead")]),
)
def test_the_failed_batch_is_known_by_its_indices(end: str, workers: int, wrap: str, tmp_path: Path) -> None:
    done = died(tmp_path, end=end, workers=workers, wrap=wrap)
    (batch,) = used(tmp_path)
    assert str(list(batch.indices or ())) == done.out.strip()
    assert (batch.epoch, batch.index, batch.size) == (2, 3, 8)
    assert batch.step == (19 if wrap else 20), "when it was drawn"
    assert (batch.shapes, batch.dtypes) == (((8, 4), (8,)), ("float32", "int64"))
    assert (batch.at, batch.times_usual) == ("<string>:5", 1.0)
    assert done.of("note") == []


@pytest.mark.thorough
def test_of_batches_drawn_together_any_may_have_been_in_use_when_the_process_was_killed(
    tmp_path: Path,
) -> None:
    """As transformers draws all micro-batches of a step before the first forward pass."""
    script = LOOP.replace("WORKERS", "0").replace("WRAP", "").replace("END", ENDS["killed"])
    script = script.replace(
        "for features, indices in (loader):", "for features, indices in fours(loader):"
    ).replace(
        "def end",
        "def fours(batches):\n    drawn = iter(batches)\n    while four := [batch for _, batch in zip(range(4), drawn)]: yield from four\ndef end",
    )
    done = run(["-c", script], tmp_path)
    batches = used(tmp_path)
    assert done.out.strip() in {str(list(batch.indices or ())) for batch in batches}
    assert 1 < len(batches) <= 4, batches


def test_an_evaluation_that_fails_names_its_own_batch(tmp_path: Path) -> None:
    script = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(torch.randn(24, 4), batch_size=4):
    model(batch).sum().backward(); optimizer.step()
model.eval()
for place, batch in enumerate(DataLoader(torch.randn(60, 4), batch_size=12)):
    if place == 3: raise torch.OutOfMemoryError("CUDA out of memory")
"""
    run(["-c", script], tmp_path)
    (batch,) = used(tmp_path)
    assert (batch.epoch, batch.index, batch.shapes) == (0, 3, ((12, 4),))
    assert (batch.indices or ())[0] == 36


@pytest.mark.parametrize(
    ("dataset", "indices"),
    [
        ("class Data(torch.utils.data.IterableDataset):\n    def __iter__(self): return iter(torch.randn(24, 4))", None),
        ("class Data(torch.utils.data.Dataset):\n    def __len__(self): return 24\n    def __getitem__(self, at): return torch.randn(4)", (12, 13, 14, 15)),
    ],
)  # fmt: skip
def test_a_dataset_without_indices_has_none(
    dataset: str, indices: tuple[int, ...] | None, tmp_path: Path
) -> None:
    script = f"""
import torch
{dataset}
model = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for place, batch in enumerate(torch.utils.data.DataLoader(Data(), batch_size=4)):
    loss = model(batch).sum()
    if place == 3: raise ValueError("the fourth")
    loss.backward(); optimizer.step()
"""
    run(["-c", script], tmp_path)
    (batch,) = used(tmp_path)
    assert (batch.index, batch.indices) == (3, indices)


def test_a_script_that_closes_our_file_keeps_its_own_whole(tmp_path: Path) -> None:
    """A daemon closes every descriptor that it did not open. The next file that it opens gets the number of ours."""
    script = """
import os, torch
model = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    for batch in torch.utils.data.DataLoader(torch.randn(24, 4), batch_size=4):
        model(batch).sum().backward(); optimizer.step()
train()
os.closerange(3, 256)
held = [open("own%d" % number, "w+") for number in range(40)]
train()
for file in held: file.write("mine")
"""
    done = run(["-c", script], tmp_path)
    assert done.code == 0, done.err
    assert {(tmp_path / f"own{number}").read_text() for number in range(40)} == {"mine"}
    assert used(tmp_path)[0].index == 5


def test_a_sample_that_cannot_be_made_is_the_failed_batch(tmp_path: Path) -> None:
    script = """
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 60
    def __getitem__(self, at):
        if at == 30: raise OSError("corrupt")
        return torch.randn(4)
model = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(Data(), batch_size=4):
    model(batch).sum().backward(); optimizer.step()
"""
    run(["-c", script], tmp_path)
    (batch,) = used(tmp_path)
    assert (batch.index, batch.indices) == (7, (28, 29, 30, 31))


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_or_a_pipe_in_place_of_the_ring_is_left_alone(kind: str, tmp_path: Path) -> None:
    (tmp_path / "telemetry").mkdir()
    theirs, place = tmp_path / "theirs", tmp_path / "telemetry" / "batches0.jsonl"
    theirs.write_text("mine")
    place.symlink_to(theirs) if kind == "link" else os.mkfifo(place)
    script = """
import torch
model = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(torch.randn(24, 4), batch_size=4):
    model(batch).sum().backward(); optimizer.step()
"""
    done = run(["-c", script], tmp_path, timeout_s=60)
    assert (done.code, theirs.read_text()) == (0, "mine")
    assert done.of("step")


def test_a_thread_that_draws_ahead_leaves_nothing_behind(tmp_path: Path) -> None:
    script = """
import sys, threading, torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(2, 4)).sum().backward(); optimizer.step()
batches = iter(DataLoader(torch.randn(400, 4), batch_size=4))
def draw():
    for _ in range(90): next(batches)
thread = threading.Thread(target=draw); thread.start(); thread.join()
training = next(one.__self__ for one in sys.modules["_stoker_instrument.wire"].wire.writers if hasattr(one.__self__, "recent"))
print({iterator: len(waiting) for iterator, waiting in training.recent.indices.items()}[batches])
"""
    assert run(["-c", script], tmp_path).out.strip() == "0"


def test_a_compiled_model_may_switch_a_part_to_evaluation(tmp_path: Path) -> None:
    script = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.teacher = torch.nn.Linear(4, 4); self.layer = torch.nn.Linear(4, 4)
    def forward(self, x):
        self.teacher.eval()
        return self.layer(x) + self.teacher(x)
print(torch.compile(Model(), backend="eager", fullgraph=True)(torch.randn(2, 4)).shape)
"""
    done = run(["-c", script], tmp_path)
    assert (done.code, done.out.strip()) == (0, "torch.Size([2, 4])"), done.err
