"""The node in a verdict on several nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from supervisor.keeper.nodes.evidence import NodeAttempt, with_node
from supervisor.run.paths import RunPaths
from supervisor.run.state import AttemptState, RankState, RunState
from tests.keeper.fakes import verdict_of


def test_the_node_is_that_of_the_rank_wherever_the_line_stands(tmp_path: Path) -> None:
    """A peer's line names rank 1 as the one that is gone: it stands in node 0's log."""
    run = RunPaths(tmp_path)
    attempts = [
        NodeAttempt(
            node,
            run.node(node),
            RunState(host=f"gpu{node}"),
            AttemptState(number=1, planned_t=0.0, ranks={0: RankState(local_rank=0, rank=node)}),
        )
        for node in (0, 1)
    ]
    verdict = replace(verdict_of(), rank=1, node="node0")
    assert with_node(verdict, attempts).node == "1 (gpu1)"
    assert with_node(replace(verdict, rank=None), attempts).node == "0 (gpu0)"
    assert with_node(replace(verdict, rank=7), attempts).node == "0 (gpu0)", "no node has that rank"
