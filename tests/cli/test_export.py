"""``stoker export RUN --gpu-csv``: what a run recorded of its GPUs, as nvidia-smi writes it."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.run.events import GpuFound
from supervisor.run.paths import RunPaths
from supervisor.run.series import GPU, SeriesWriter
from tests.cli.conftest import Call
from tests.fakes.nvml import GIB
from tests.keeper.fakes import run_in

ROOT = Path(__file__).parents[2]
T = 1_800_000_000.25


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunPaths]:
    """Two GPUs: one that grew busy, one that was lost midway."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    card = GpuFound(t=T, index=0, uuid="GPU-a", name="NVIDIA H100", memory_total_bytes=80 * GIB)
    run = run_in(tmp_path / "runs", card)
    series = SeriesWriter(run.node().series)
    for second, (util, used) in enumerate([(0.0, 10), (0.5, 20), (1.0, 30)]):
        whole = {
            "util_ratio": util,
            "memory_util_ratio": util / 2,
            "memory_used_bytes": used * GIB,
            "power_w": 300.126,
        }
        series.append(
            GPU,
            T + second,
            "0",
            1,
            {**whole, "memory_total_bytes": 80 * GIB, "temperature_c": 61.0, "sm_clock_mhz": 1980.0},
        )
        series.append(
            GPU, T + second, "1", 1, {"util_ratio": None if second else 0.25, "lost": float(second > 0)}
        )
    series.close()
    yield run
    monkeypatch.delenv("TZ")
    time.tzset()


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(text.splitlines(), skipinitialspace=True))


def test_samples_stand_in_nvidia_smis_columns(recorded: RunPaths, call: Call) -> None:
    code, said, _ = call("export --gpu-csv", recorded.root)
    assert code == 0
    head, first, second, *_ = said.splitlines()
    assert head.startswith(
        "timestamp, name, utilization.gpu [%], utilization.memory [%], memory.used [MiB], memory.total [MiB], "
    )
    assert first.startswith(
        "2027/01/15 08:00:00.250, NVIDIA H100, 0 %, 0 %, 10240 MiB, 81920 MiB, 61, 300.13 W, [N/A], 1980 MHz, 0, GPU-a"
    )
    assert rows(second)[0][1:4] == ["[N/A]", "25 %", "[N/A]"], (
        "a card that the journal does not name, a value that it does not report"
    )
    assert len(said.splitlines()) == 7
    third = next(row for row in rows(said) if row[0].endswith("01.250") and row[-2] == "1")
    assert third[2] == "[N/A]", "it is lost"


def test_averages_of_each_gpu_and_of_all(recorded: RunPaths, call: Call) -> None:
    head, first, second, total = rows(call("export --gpu-csv --averages --nounits", recorded.root).out)
    assert head[:3] == ["index", "name", "utilization.gpu [%]"]
    assert first[:5] == ["0", "NVIDIA H100", "50", "25", "20480"]
    assert first[-2:] == ["3", "GPU-a"]
    assert second[:3] == ["1", "[N/A]", "25"], "the mean of what was reported"
    assert total[:3] == ["all", "[N/A]", "44"]


def test_without_a_gpu_it_is_one_line(tmp_path: Path, call: Call) -> None:
    run = run_in(tmp_path / "runs")
    said = f"stoker export: {run.run_id}: it has no samples of a GPU\n"
    assert call("export --gpu-csv", run.root) == (2, "", said)
