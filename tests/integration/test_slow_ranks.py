"""A rank that is late before the gradients meet, under real torchrun: all ranks wait in the same all-reduce, and rank 0 alone prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.run import events as ev
from tests.conftest import wait_until
from tests.integration.harness import background, facts, stoker, wait_for_run
from tests.tiers import first

TRAINING = """
import sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.01)

def late(where):
    if rank == 1 and sys.argv[1] == where:
        time.sleep(0.3)

def load():
    late("loading")
    return torch.randn(8, 64)

def forward(batch):
    late("forward")
    return model(batch).pow(2).mean()

for step in range(100_000):
    loss = forward(load())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
"""


@pytest.mark.e2e
@pytest.mark.parametrize("where", first(1, ["forward", "loading"]))
def test_a_rank_that_is_late_before_the_exchange_is_named(tmp_path: Path, where: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING, encoding="utf-8")
    with background("run", "--no-ui", "--nproc-per-node", "2", str(script), where, cwd=tmp_path):
        run = wait_for_run(tmp_path)

        def found() -> list[ev.SlowRankFound]:
            return [
                fact for fact in facts(run) if isinstance(fact, ev.SlowRankFound) and fact.rank is not None
            ]

        assert wait_until(lambda: bool(found()), 240)
        assert found()[0].rank == 1
        advice = [
            fact.text for fact in facts(run) if isinstance(fact, ev.Advisory) and fact.code == "straggler"
        ]
        assert "on its own work, as measured in the ranks" in advice[0]
        assert stoker("stop", run.run_id, cwd=tmp_path).code == 0
