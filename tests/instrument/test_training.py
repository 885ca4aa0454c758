"""What counts as an optimizer step, from processes that really step."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.job.knobs.measured import MeasuredBatch, measured_batch
from supervisor.job.knobs.resume_settings import knob_name
from supervisor.job.knobs.written_facts import Facts
from tests.instrument.child import Ended, run
from tests.tiers import first

STEPS = """
import torch
models = [torch.nn.Linear(4, 4) for _ in range(2)]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
for letter in %r:
    which = "ab".index(letter)
    models[which](torch.randn(2, 4)).sum().backward()
    optimizers[which].step()
"""


@pytest.mark.parametrize(
    ("order", "micro_steps"),
    first(
        1,
        [
            ("aabaab", [1, 1, 1, 1]),  # a GAN whose critic steps twice a round
            ("ababab", [1, 1, 1]),
            ("aaabbb", [1, 1, 1, 1, 1]),  # another optimizer goes on: one step is lost, and no more
        ],
    ),
)
def test_a_step_is_counted_when_an_optimizer_steps_again(
    order: str, micro_steps: list[int], tmp_path: Path
) -> None:
    done = run(["-c", STEPS % order], tmp_path)
    assert (done.code, done.of("note")) == (0, []), done.err
    one_by_one = [record["micro_steps"] for record in done.of("step")]
    assert one_by_one == micro_steps
    assert [record["step"] for record in done.of("step")] == list(range(1, len(micro_steps) + 1))


@pytest.mark.thorough
def test_batches_that_a_thread_draws_ahead_belong_to_no_step(tmp_path: Path) -> None:
    script = """
import queue, threading, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 4); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ready = queue.Queue(1)
def draw():
    for batch in DataLoader(TensorDataset(torch.randn(30, 4)), batch_size=5): ready.put(batch)
drawing = threading.Thread(target=draw); drawing.start()
for _ in range(6):
    model(*ready.get()).sum().backward(); optimizer.step()
drawing.join()
"""
    done = run(["-c", script], tmp_path)
    found = derived(done)
    assert (found.micro.number, found.accumulated.number) == (5, 1)
    assert {record["batches"] for record in done.of("step")} == {0}


@pytest.mark.e2e
def test_a_script_that_first_asks_whether_torch_is_installed_is_measured(tmp_path: Path) -> None:
    """As datasets does, before anything else has imported torch."""
    script = """
import importlib.machinery, importlib.util
for name in ("torch", "torch", "argparse", "nothing_of_that_name"):
    found = importlib.util.find_spec(name)
importlib.machinery.PathFinder.find_spec("torch")
importlib.util.module_from_spec(importlib.util.find_spec("torch"))
import argparse, torch
parser = argparse.ArgumentParser(); parser.add_argument("--batch_size", type=int, default=3)
size = parser.parse_args().batch_size
model = torch.nn.Linear(4, 4); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(torch.randn(9, 4), batch_size=size):
    model(batch).sum().backward(); optimizer.step()
"""
    done = run(["-c", script], tmp_path)
    assert (done.code, done.of("note")) == (0, []), done.err
    assert [(one["name"], one["value"]) for one in done.of("setting")] == [("batch_size", 3)]
    assert [one["batch_size"] for one in done.of("loader")] == [3]
    assert [one["batches"] for one in done.of("step")] == [1, 1, 1], "each hook is installed once"


@pytest.mark.thorough
def test_a_compiled_function_of_an_optimizer_hides_no_forward(tmp_path: Path) -> None:
    """Muon and others decorate a function where they are imported, long before the first forward."""
    script = """
import torch
@torch.compile(backend="eager")
def scaled(grad):
    return grad * 0.1
@torch.compile(backend="eager")
def looked_at(model, batch):
    return model(batch).sum()
model = torch.nn.Linear(4, 4); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    model(torch.randn(2, 4)).sum().backward()
    for parameter in model.parameters():
        parameter.grad = scaled(parameter.grad)
    optimizer.step(); optimizer.zero_grad()
print(looked_at(model, torch.ones(2, 4)).shape)
"""
    done = run(["-W", "error", "-c", script], tmp_path, TORCH_LOGS="recompiles,graph_breaks")
    plain = run(["-W", "error", "-c", script], tmp_path, measured=False, TORCH_LOGS="recompiles,graph_breaks")
    assert (done.code, plain.code, done.of("note")) == (0, 0, []), done.err
    assert done.err.count("Recompiling") == plain.err.count("Recompiling")
    assert done.of("shape")[0]["shapes"] == [[2, 4]]
    assert [one["micro_steps"] for one in done.of("step")][:2] == [1, 1]


HOLDS = """
import gc, threading, weakref
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DDP(torch.nn.Linear(4, 4)); optimizer = torch.optim.AdamW(model.parameters())
in_place = torch.nn.Linear(4, 4); in_place.compile(backend="eager")
loader = torch.utils.data.DataLoader(torch.randn(24, 4), batch_size=4)
iterator = iter(loader)
for batch in iterator:
    loss = in_place(model(batch)).sum(); loss.backward(); optimizer.step(); optimizer.zero_grad()
torch.save({"optimizer": optimizer.state_dict()}, "last.pt"); optimizer.load_state_dict(torch.load("last.pt")["optimizer"])
group = dist.group.WORLD
dist.destroy_process_group()
names = ["model", "optimizer", "in_place", "loader", "iterator", "batch", "loss", "group"]
held = {name: weakref.ref(globals().pop(name)) for name in names}
gc.collect()
print([name for name in names if held[name]() is not None], [thread.name for thread in threading.enumerate()])
"""


@pytest.mark.e2e
def test_at_the_end_nothing_of_the_script_is_held_and_no_thread_runs(tmp_path: Path) -> None:
    """What is left when the interpreter ends decides whether torch's own threads end well."""
    done = run(["-c", HOLDS], tmp_path)
    plain = run(["-c", HOLDS], tmp_path, measured=False)
    assert (done.code, plain.code, done.of("note")) == (0, 0, []), done.err
    last = done.out.splitlines()[-1]  # gloo may print lines before
    assert last == plain.out.splitlines()[-1]
    assert "model" not in last
    assert last.endswith("['MainThread']")


def derived(done: Ended) -> MeasuredBatch:
    """What the records of a process come to, which must have ended well and measured without an error."""
    assert (done.code, done.of("note")) == (0, []), done.err
    facts = Facts()
    for record in done.records:
        facts.add(record)
    return measured_batch(facts, local_world_size=1)


PLAY = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=6); parser.add_argument("--num_envs", type=int, default=3)
given = parser.parse_args()
class Net(torch.nn.Module):
    def __init__(self, out):
        super().__init__()
        self.body, self.head = torch.nn.Linear(6, 6), torch.nn.Linear(6, out)
    def forward(self, state):
        return self.head(self.body(state).repeat(2, 1))[: len(state)]
actor, critic = Net(2), Net(1)
make = lambda parameters: torch.optim.Adam(parameters)
of_actor, of_critic = make(actor.parameters()), make(critic.parameters())
def learn(optimizer, loss):
    optimizer.zero_grad(); loss.backward(); optimizer.step()
rows = given.batch_size
for step in range(8):
"""
TD3 = """
    actor(torch.randn(1, 6)).detach()
    learn(of_critic, critic(torch.randn(rows, 6)).mean())
    if step % 2: learn(of_actor, actor(torch.randn(rows, 6)).mean())
"""
PPO = """
    for _ in range(4): actor(torch.randn(given.num_envs, 6)).detach()
    learn(of_actor, actor(torch.randn(rows, 6)).mean())
"""
TWO_LOSSES = """
    critic(torch.randn(rows, 6)).mean().backward(); critic(torch.randn(rows, 6)).mean().backward(); of_critic.step()
    learn(of_actor, critic(actor(torch.randn(rows, 6)).repeat(1, 3)).mean())
"""
ACTOR_ACCUMULATES = """
    learn(of_critic, critic(torch.randn(rows, 6)).mean())
    actor(torch.randn(rows, 6)).mean().backward()
    if step % 3 == 2: of_actor.step(); of_actor.zero_grad()
"""


@pytest.mark.parametrize(
    ("loop", "batch"),
    first(1, [(TD3, (6, 1)), (PPO, (6, 1)), (TWO_LOSSES, (6, None)), (ACTOR_ACCUMULATES, (6, None))]),
    ids=["td3", "ppo", "two losses", "one accumulates"],
)
def test_a_batch_from_no_loader_is_that_of_the_forward_which_a_backward_pass_follows(
    loop: str, batch: tuple[int, int | None], tmp_path: Path
) -> None:
    """Rollouts of one sample or of all environments come first; each of several optimizers has passes of its own."""
    found = derived(run(["-c", PLAY + loop], tmp_path))
    assert (found.micro.number, found.accumulated.number) == batch, found
    assert found.set_by.setting is not None
    assert found.set_by.setting.name == "batch_size"


GLOBALS = """
import sys, torch
from ast import literal_eval
batch_size, gradient_accumulation_steps, max_iters = 12, 5, 100
%s
model = torch.nn.Linear(4, 4); optimizer = torch.optim.AdamW(model.parameters())
for _ in range(max_iters):
    for _ in range(gradient_accumulation_steps): model(torch.randn(batch_size, 4)).sum().backward()
    optimizer.step(); optimizer.zero_grad()
"""
CONFIGURATOR = """
for word in sys.argv[1:]:
    if word.startswith("--"):
        name, value = word[2:].split("=")
        assert name in globals()
        globals()[name] = literal_eval(value)
    else:
        exec(open(word).read())
"""
PARSER = """
import argparse
parser = argparse.ArgumentParser(); parser.add_argument("--max_iters", type=int)
max_iters = parser.parse_known_args()[0].max_iters
exec(open("small.py").read())
"""


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("reads", "words", "setting", "accumulation"),
    [
        (CONFIGURATOR, ["small.py", "--max_iters=6"], "--batch_size", "--gradient_accumulation_steps"),
        pytest.param(PARSER, ["--max_iters=6"], None, None, marks=pytest.mark.thorough),  # a parser takes what it knows alone
    ],
    ids=["executed file", "parser"],
)  # fmt: skip
def test_variables_that_words_set_are_settings(
    reads: str, words: list[str], setting: str | None, accumulation: str | None, tmp_path: Path
) -> None:
    (tmp_path / "small.py").write_text("batch_size = 3\ngradient_accumulation_steps = 2\nmax_iters = 6\n")
    (tmp_path / "train.py").write_text(GLOBALS % reads)
    found = derived(run(["train.py", *words], tmp_path))
    assert (found.micro.number, found.accumulated.number) == (3, 2), (
        "the passes are confirmed by the variable"
    )
    knob = found.accumulated_by.setting
    names = [knob_name(one) if one is not None else None for one in (found.set_by.setting, knob)]
    assert names == [setting, accumulation]
