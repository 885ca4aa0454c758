"""What the other nodes left of an attempt, beside what the leader's own node did: one verdict is made from all of it.

It is read from the nodes' folders of the run directory: also that of a node whose keeper has died.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from supervisor.run.journal import read_state
from supervisor.run.paths import NodePaths, RunPaths
from supervisor.run.records import FailureClass, Verdict
from supervisor.run.state import AttemptState, RunState

CUT_OFF: Final = "cut_off"
"""What a follower journals where node 0's machine did not answer it after an attempt had failed."""
_OF_THE_NETWORK: Final = frozenset(
    {FailureClass.NCCL_TIMEOUT, FailureClass.NCCL_ERROR, FailureClass.RENDEZVOUS}
)
_LABEL = re.compile(r"node(\d+)")


@dataclass(frozen=True, slots=True)
class NodeAttempt:
    """An attempt on one node: its folder, and what its journal says."""

    number: int
    node: NodePaths
    state: RunState
    view: AttemptState


def others_of(run: RunPaths, others: Sequence[int], number: int) -> list[NodeAttempt]:
    """Attempt `number` on each other node that began it."""
    found = []
    for other in others:
        state = read_state(run.node(other).journal)
        view = state.find(number)
        if view is not None:
            found.append(NodeAttempt(other, run.node(other), state, view))
    return found


def with_node(verdict: Verdict, attempts: Sequence[NodeAttempt]) -> Verdict:
    """The verdict with the node of its rank, as people are shown it: ``1 (gpu07)``."""
    named = _LABEL.fullmatch(verdict.node or "")
    number = int(named[1]) if named is not None else None
    # A line of a peer names the node that it was written on, not that of the rank which failed.
    of_rank = (one for one in attempts if any(r.rank == verdict.rank for r in one.view.ranks.values()))
    of_name = (one for one in attempts if one.number == number)
    one = next((of_rank if verdict.rank is not None else of_name), None) or next(of_name, None)
    if verdict.failure in _OF_THE_NETWORK and (cut := _cut_off(attempts)):
        names = ", ".join(map(_name, cut))
        advice = f"Check the network of these nodes, which did not reach node 0 after the failure: {names}."
        verdict = replace(verdict, advice=(advice, *verdict.advice))
        followers = attempts[1:]
        # A collective that times out does so on all ranks: no line tells which node is the one that was cut off.
        if verdict.rank is None and len(followers) > 1:
            one = attempts[0] if len(cut) == len(followers) else cut[0]
    return replace(verdict, node=_name(one)) if one is not None else verdict


def _cut_off(attempts: Sequence[NodeAttempt]) -> list[NodeAttempt]:
    """The nodes that did not reach node 0 once the attempt had failed there."""
    return [
        one
        for one in attempts
        if any(advisory.code == f"{CUT_OFF}_{one.view.number}" for advisory in one.state.advisories)
    ]


def _name(one: NodeAttempt) -> str:
    return f"{one.number} ({one.state.host})" if one.state.host else str(one.number)
