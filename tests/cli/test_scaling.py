"""``stoker runs --scaling RUN…``: speed, efficiency and memory of several runs in one table."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.cli.scaling import Scaled, read_scaled
from supervisor.job.batch import BatchSpec
from supervisor.run import events as ev
from supervisor.run.journal import JournalWriter
from supervisor.run.paths import RunPaths, make_private
from supervisor.run.series import GPU, JOB_KEY, METRICS, SeriesWriter
from tests.cli.conftest import Call

T = 1_800_000_000.0
GIB = 2**30


def recorded(
    folder: Path,
    name: str,
    nodes: int,
    ranks: int,
    values: dict[str, float],
    *,
    batch: BatchSpec | None = None,
) -> str:
    """A run of one attempt whose first reading is slow; its steps are a second apart."""
    run = RunPaths(folder / name)
    for node in range(nodes):
        make_private(run.node(node).root)
        journal = JournalWriter(run.node(node).journal)
        journal.append(ev.RunStarted(t=T, run_id=name, name="job", mode="launched", host=f"h{node}"))
        journal.append(ev.LaunchIntended(t=T, attempt=1, argv=(), reason="first launch", batch=batch))
        for rank in range(ranks // nodes):
            journal.append(ev.RankStarted(t=T, attempt=1, local_rank=rank, rank=node * ranks // nodes + rank))
        journal.close()
        series = SeriesWriter(run.node(node).series)
        series.append(GPU, T, "0", 1, {"memory_used_bytes": (10.0 + node) * GIB})
        for step in range(20 if node == 0 else 0):
            now = {name: value / (10 if step == 0 else 1) for name, value in values.items()}
            series.append(METRICS, T + step, JOB_KEY, 1, {"step": float(step), **now})
        series.close()
    return str(run.root)


def test_efficiency_is_held_against_the_fewest_ranks(tmp_path: Path, call: Call) -> None:
    many = recorded(tmp_path, "many", 2, 8, {"samples_per_sec": 600.0, "tokens_per_sec": 1.0})
    one = recorded(tmp_path, "one", 1, 1, {"samples_per_sec": 100.0})
    assert call("runs --scaling", many, one).out.splitlines() == [
        "run   nodes  ranks  samples/s  per rank  speedup  efficiency     memory",
        "one       1      1        100       100   1.00 ×        100%  10.00 GiB",
        "many      2      8        600        75   6.00 ×         75%  11.00 GiB",
    ]
    assert call("runs --csv --scaling", one, many).out.splitlines() == [
        "run,nodes,ranks,speed,per_rank,speedup,efficiency,memory_gib",
        "one,1,1,100,100,1.000,1.000,10.00",
        "many,2,8,600,75,6.000,0.750,11.00",
    ]


def test_the_attempt_with_the_most_readings_speaks_and_two_readings_are_none(
    tmp_path: Path, call: Call
) -> None:
    root = recorded(tmp_path, "a", 1, 1, {"tokens_per_sec": 100.0})
    run = RunPaths(Path(root))
    series = SeriesWriter(run.node().series)
    for step in range(19):
        rest = {"samples_per_sec": 4.0} if step < 2 else {}
        series.append(
            METRICS, T + 30 + step, JOB_KEY, 2, {"step": float(step), "tokens_per_sec": 900.0, **rest}
        )
    series.close()
    assert read_scaled(run) == Scaled("a", 1, 1, {"tokens/s": 100.0}, 10.0 * GIB)
    series = SeriesWriter(run.node().series)
    series.append(METRICS, T + 60, JOB_KEY, 2, {"step": 20.0, "tokens_per_sec": 900.0})
    series.close()
    assert read_scaled(run) == Scaled("a", 1, 1, {"tokens/s": 900.0}, None), "of two alike the later"
    assert call("runs --scaling", root).out.splitlines()[1] == (
        "a        1      1       900       900   1.00 ×        100%       –"
    )


@pytest.mark.parametrize(("values", "text"), [
    ({}, "b: it has logged no speed (samples/s or tokens/s)"),
    ({"tokens_per_sec": 5.0}, "there is no speed that all of them logged: a: samples/s; b: tokens/s"),
])  # fmt: skip
def test_what_cannot_be_compared_is_said(
    tmp_path: Path, call: Call, values: dict[str, float], text: str
) -> None:
    first = recorded(tmp_path, "a", 1, 1, {"samples_per_sec": 1.0})
    second = recorded(tmp_path, "b", 1, 1, values)
    assert call("runs --scaling", first, second) == (2, "", f"stoker runs: {text}\n")
