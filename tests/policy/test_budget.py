"""Which budget a restart comes from, said in a line: what --max-retries bounds and what it does not."""

from __future__ import annotations

from itertools import pairwise

from supervisor.job.batch import BatchSpec
from supervisor.job.spec import RetrySettings
from supervisor.policy import PolicyInput, budget_text, decide
from supervisor.run.records import DecisionKind, FailureClass
from supervisor.run.state import AttemptState
from tests.policy.cases import TRAINER, ended, restarted


def walk(failure: FailureClass, count: int, max_retries: int = 3) -> list[str | None]:
    """The budget lines of so many failures alike, without progress, until policy gives up."""
    past: list[AttemptState] = []
    lines: list[str | None] = []
    batch = BatchSpec(micro_batch_per_rank=16, accumulation_steps=1, world_size=2)
    for _ in range(count):
        newest = ended(failure, last=5, batch=batch)
        known = PolicyInput(
            attempts=(*past, newest), knobs=TRAINER, retry=RetrySettings(max_retries=max_retries)
        )
        decision = decide(known)
        lines.append(budget_text(known, decision))
        past.append(restarted(newest, decision))
        if decision.change is not None and decision.change.batch is not None:
            batch = decision.change.batch.after
        if decision.kind is not DecisionKind.RESTART:
            break
    return lines


def test_restarts_as_it_was_are_counted_by_max_retries() -> None:
    lines = walk(FailureClass.NCCL_TIMEOUT, 5, max_retries=2)
    assert lines[0] == "budget, without progress: 1 of 2 (--max-retries)"
    assert lines[1] == "budget, without progress: 2 of 2 (--max-retries)"
    assert lines[2] is None, "given up: no budget is taken from"


def test_smaller_batches_are_not_counted_by_max_retries() -> None:
    lines = walk(FailureClass.CUDA_OOM, 3, max_retries=1)
    assert [line is not None and "not counted by --max-retries" in line for line in lines] == [True] * 3
    numbers = [int(line.split(": ")[1].split(" of ")[0]) for line in lines if line is not None]
    assert all(later == earlier + 1 for earlier, later in pairwise(numbers))
