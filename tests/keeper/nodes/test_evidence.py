"""The node in a verdict on several nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.keeper.planning.attempt_evidence import CUT_OFF, NodeAttempt, with_node
from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.records import FailureClass
from supervisor.run.state import AttemptState, RankState, RunState
from tests.keeper.fakes import verdict_of


def attempts_of(folder: Path, nodes: int, *cut_off: int) -> list[NodeAttempt]:
    """Attempt 1 on so many nodes of a rank each, of which some did not reach node 0 after its failure."""
    found = ev.Advisory(t=0.0, attempt=1, code=f"{CUT_OFF}_1", text="")
    return [
        NodeAttempt(
            node,
            RunPaths(folder).node(node),
            RunState(host=f"gpu{node}", advisories=(found,) if node in cut_off else ()),
            AttemptState(number=1, planned_t=0.0, ranks={0: RankState(local_rank=0, rank=node)}),
        )
        for node in range(nodes)
    ]


def test_the_node_is_that_of_the_rank_wherever_the_line_stands(tmp_path: Path) -> None:
    """A peer's line names rank 1 as the one that is gone: it stands in node 0's log."""
    attempts = attempts_of(tmp_path, 2)
    verdict = replace(verdict_of(), rank=1, node="node0")
    assert with_node(verdict, attempts).node == "1 (gpu1)"
    assert with_node(replace(verdict, rank=None), attempts).node == "0 (gpu0)"
    assert with_node(replace(verdict, rank=7), attempts).node == "0 (gpu0)", "no node has that rank"


@pytest.mark.parametrize(
    ("nodes", "cut_off", "failure", "rank", "shown"),
    [
        (4, (2,), FailureClass.NCCL_TIMEOUT, None, "2 (gpu2)"),
        (3, (2,), FailureClass.NCCL_TIMEOUT, None, "2 (gpu2)"),
        (4, (1, 2, 3), FailureClass.NCCL_TIMEOUT, None, "0 (gpu0)"),  # none reaches node 0
        (4, (2,), FailureClass.NCCL_TIMEOUT, 1, "1 (gpu1)"),  # the logs name a rank
        (4, (2,), FailureClass.CODE_ERROR, None, "3 (gpu3)"),
        (
            2,
            (1,),
            FailureClass.NCCL_TIMEOUT,
            None,
            "0 (gpu0)",
        ),  # either may be the one: where the line stands
    ],
)
def test_a_node_that_was_cut_off_is_named_where_all_ranks_timed_out(
    tmp_path: Path, nodes: int, cut_off: tuple[int, ...], failure: FailureClass, rank: int | None, shown: str
) -> None:
    line_on = {2: 0, 3: 1, 4: 3}[nodes]
    verdict = replace(verdict_of(failure), rank=rank, node=f"node{line_on}")
    found = with_node(verdict, attempts_of(tmp_path, nodes, *cut_off))
    assert found.node == shown
    names = ", ".join(f"{node} (gpu{node})" for node in cut_off)
    named = any(line.endswith(f"after the failure: {names}.") for line in found.advice)
    assert named == (failure is not FailureClass.CODE_ERROR)
