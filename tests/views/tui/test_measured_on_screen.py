"""What the processes of a script that prints nothing were measured to do, on the dashboard and its pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from textual.pilot import Pilot

from supervisor.job.batch import BatchSpec
from supervisor.job.spec import Knobs
from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import RunFile
from supervisor.run.series import METRICS, RANKS
from supervisor.views.tui.app import StokerApp
from tests.views.tui.driving import pane, plays, shown, until
from tests.views.tui.recording import GIB, Recording

MEASURED = ev.BatchMeasured(
    t=0.0,
    attempt=1,
    micro_batch=16,
    accumulation=2,
    world_size=2,
    global_batch=64,
    sequence_length=32,
    sample_shape=(32,),
    planned_steps=400,
    counts_steps=True,
    setting="--alpha",
    scope="per_rank",
    accumulation_setting="--accum",
)


class Undeclared(Recording):
    """A job of which nothing is declared, so no batch is planned."""

    @property
    def batch(self) -> BatchSpec:
        return None  # type: ignore[return-value]

    def _record(self) -> RunFile:
        record = super()._record()
        job = replace(record.job, entry_args=("--alpha", "16", "--accum", "2"), knobs=Knobs())
        return msgspec.structs.replace(record, job=job)


def silent(root: Path, measured: ev.BatchMeasured = MEASURED) -> RunPaths:
    """40 steps of half a second were counted, and nothing was printed."""
    rec = Undeclared(root, gpus=0, total_steps=None)
    rec.launch("first launch")
    rec.fact(ev.PhaseChanged(t=rec.t, attempt=1, phase=ev.Phase.STEPPING))
    rec.fact(msgspec.structs.replace(measured, t=rec.t))
    for step in range(1, 41):
        rec.t += 0.5
        rates: dict[str, Any] = {
            "samples_per_sec": 128.0,
            "tokens_per_sec": 4096.0,
            "step_time_s": 0.5,
            "data_wait_s": 0.2,
        }
        values = {"step": step, **rates, "memory_peak_bytes": 5 * GIB}
        rec.series.append(METRICS, rec.t, "job", 1, values)
        for rank in range(2):
            own = {"compute_s": 0.1 + 0.25 * rank, "memory_peak_bytes": (5 + rank) * GIB}
            rec.series.append(RANKS, rec.t, str(rank), 1, {**values, **own})
        rec.fact(msgspec.convert({"t": rec.t, "attempt": 1, "step": step, **rates}, ev.Progress))
    return rec.close()


@plays(silent, size=(120, 40))
async def test_the_header_has_batch_step_and_time_left(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    header = pane(app, "header")
    assert "micro-batch 16, accumulation 2, global batch 64" in header
    assert " 40 / 400 " in header
    assert "ETA 00:03:00" in header, "360 steps of half a second"
    assert all(text in shown(app) for text in ("tok/s", "data wait", "500 ms"))


@plays(silent, size=(170, 44))
async def test_the_ranks_table_and_the_charts_have_compute_time_and_memory_peak(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    await pilot.press("3", "z")
    await until(pilot, lambda: "compute" in pane(app, "ranks"), "the zoomed table")
    first, second = [line.split() for line in pane(app, "ranks").splitlines() if "stepping" in line]
    assert {"40", "500", "100", "5.0G"} <= set(first)
    assert {"40", "500", "350", "6.0G"} <= set(second)
    await pilot.press("z", "M")
    await until(pilot, lambda: "memory_peak_bytes" in shown(app), "the charts")
    for name in ("samples_per_sec", "tokens_per_sec", "step_time_s", "data_wait_s"):
        assert name in shown(app)
