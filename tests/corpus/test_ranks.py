"""Whose line it is in logs of several nodes: the global rank where the log shows it, else the node and the local rank."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.cli.diagnose import to_wire
from supervisor.sources.signature_files import Engine
from tests.corpus.scoring import DATA, records, verdict_on

ROWS = records(DATA / "ranks.jsonl")
GIVEN = records()
EACH = pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])


@EACH
def test_a_rank_is_named_where_the_log_shows_it_and_the_local_rank_otherwise(
    row: dict[str, Any], engine: Engine
) -> None:
    verdict = verdict_on(row["text"], engine)
    assert verdict.failure.value in (row["cls"], *row.get("accept", ()))
    assert (verdict.rank, verdict.local_rank, verdict.node) == (row["rank"], row["local_rank"], row["node"])
    wire = to_wire("log", None, verdict)
    assert [wire[key] for key in ("rank", "local_rank", "node")] == [
        row[key] for key in ("rank", "local_rank", "node")
    ]
    if row["local_rank"] is not None:
        assert f"ocal rank {row['local_rank']}" in verdict.title
        assert " on local rank" not in verdict.plain_title


def test_a_consequence_names_no_rank_that_the_log_does_not(engine: Engine) -> None:
    """Local rank 1 of two nodes: rank 1 waited, and rank 5 is nowhere in the log."""
    lines = [f"[default{local}]:step {step} loss 3.0" for step in (1, 2, 3) for local in range(4)]
    lines += [
        "[default3]:[rank7]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "E1014 02:16:23.118000 51377 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 3 (pid: 51904) of binary: python",
        "  host      : n042",
        "  rank      : 7 (local_rank: 3)",
        "  exitcode  : 1 (pid: 51904)",
        "[default1]:[rank1]:[E1014 02:16:24.551 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.",
        "[default1]:ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    ]
    verdict = verdict_on("\n".join(lines) + "\n", engine)
    assert verdict.rank == 7
    assert {item.rank for item in verdict.consequences} <= {1, None}


def prefixes(draw: st.DrawFn) -> list[str]:
    """How the ranks of a job begin their lines, by rank."""
    nodes, per_node = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    form = draw(st.sampled_from(("[rank{rank}]: ", "[default{local}]:", "{node}: [default{local}]:", "n{node}/g{local} | ", "{rank}: ", "gpu-0{node}: [rank{rank}]: ")))  # fmt: skip
    return [
        form.format(rank=node * per_node + local, node=node, local=local)
        for node in range(nodes)
        for local in range(per_node)
    ]


@st.composite
def logs(draw: st.DrawFn) -> str:
    """A log in which ranks step, one or more fail, and any of them complain."""
    lines = prefixes(draw)
    said = [f"{prefix}step {step} loss {3 / step:.3f}" for step in range(1, 6) for prefix in lines]
    endings = (
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "Fatal Python error: Segmentation fault",
        "[rank{n}]:[E1128 10:00:00.1 ProcessGroupNCCL.cpp:632] [Rank {n}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:911, unhandled system error, NCCL version 2.7.8",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:54264",
        "E1128 10:00:05.100000 771 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: {n} (pid: 802) of binary: python",
    )
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(lines) - 1))
        said.append(lines[at] + draw(st.sampled_from(endings)).format(n=at))
    return "\n".join(said) + "\n"


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=logs())
def test_no_rank_is_among_its_own_consequences(text: str, engine: Engine) -> None:
    verdict = verdict_on(text, engine)
    own = {verdict.rank, *verdict.ranks} - {None}
    assert own.isdisjoint(item.rank for item in verdict.consequences)


def test_no_rank_of_the_corpus_is_among_its_own_consequences(engine: Engine) -> None:
    for record in (*ROWS, *GIVEN):
        verdict = verdict_on(record["text"], engine)
        own = {verdict.rank, *verdict.ranks} - {None}
        assert own.isdisjoint(item.rank for item in verdict.consequences), record["id"]
