"""Folders of logs as jobs leave them: each opens as one run with its ranks, its curves and its verdict."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.cli.main import main
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.series import METRICS, RANKS, SeriesReader
from supervisor.run.state import RunState
from tests.conftest import not_none

FAILURE = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 41, in <module>\n'
    "    main()\n"
    '  File "train.py", line 30, in main\n'
    "    label = labels['missing']\n"
    "KeyError: 'missing'\n"
)
VICTIM = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] "
    "Connection closed by peer [10.0.0.1]:22334\n"
)


def steps(rank: int, prefix: str = "") -> str:
    return "".join(f"{prefix}step {n}/100 loss {4.0 / n + rank:.4f} lr 1.0e-03\n" for n in range(1, 11))


def torchrun_tree(folder: Path) -> None:
    """``torchrun --log-dir logs -r 3``: <run-id>_<random>/attempt_<n>/<local rank>/{stdout,stderr}.log."""
    for rank in (0, 1):
        place = folder / "none_ab12cd34" / "attempt_0" / str(rank)
        place.mkdir(parents=True)
        (place / "stdout.log").write_text(steps(rank), encoding="utf-8")
        (place / "stderr.log").write_text(FAILURE if rank == 1 else "", encoding="utf-8")


def file_a_rank(folder: Path) -> None:
    """``python train.py > rank_$RANK.log``."""
    for rank in (0, 1):
        text = steps(rank) + (FAILURE if rank == 1 else VICTIM)
        (folder / f"rank_{rank}.log").write_text(text, encoding="utf-8")


def file_a_node(folder: Path) -> None:
    """``torchrun --tee 3 > node$NODE.log`` on two nodes of two ranks: lines bear the local rank."""
    for node in (0, 1):
        text = steps(2 * node, f"[rank{2 * node}]: ") + steps(2 * node + 1, f"[rank{2 * node + 1}]: ")
        if node == 1:
            text += "".join(f"[rank3]: {line}\n" for line in FAILURE.splitlines())
        (folder / f"node{node}.log").write_text(text, encoding="utf-8")


def attach(folder: Path) -> tuple[int, RunPaths, RunState]:
    code = main(["attach", "--no-ui", "--keep", str(folder)])
    (kept,) = Path(os.environ["XDG_STATE_HOME"]).glob("stoker/kept/*")
    run = RunPaths(kept)
    return code, run, read_state(run.node().journal)


@pytest.mark.parametrize(
    ("layout", "failed", "ranks"),
    [
        (torchrun_tree, 1, 2),
        (file_a_rank, 1, 2),
        (file_a_node, 3, 4),
    ],
)
def test_a_folder_opens_as_one_run(
    layout: Callable[[Path], None],
    failed: int,
    ranks: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    layout(folder)
    code, run, state = attach(folder)
    assert code == 1, capsys.readouterr()
    assert state.attempt is not None
    verdict = not_none(state.attempt.verdict)
    assert (str(verdict.failure), verdict.rank) == ("code_error", failed)
    assert "KeyError: 'missing'" in not_none(verdict.cause).text
    assert (state.attempt.last_step, state.total_steps) == (10, 100)
    job = [(s.v["step"], s.v["loss"]) for s in SeriesReader(run.node().series, METRICS).read()]
    assert job == [(n, round(4.0 / n, 4)) for n in range(1, 11)], "rank 0 speaks for the job"
    found = SeriesReader(run.node().series, RANKS).read()
    for rank in range(ranks):
        losses = [s.v["loss"] for s in found if s.k == str(rank)]
        assert losses == [round(4.0 / n + rank, 4) for n in range(1, 11)], rank
