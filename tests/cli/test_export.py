"""``stoker export RUN --gpu-csv``: what a run recorded of its GPUs, as nvidia-smi writes it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.run.events import GpuFound
from supervisor.run.paths import RunPaths
from supervisor.run.series import GPU, SeriesWriter
from tests.cli.conftest import Answer, Call
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


HEAD = (
    "utilization.gpu [%], utilization.memory [%], memory.used [MiB], memory.total [MiB], "
    "temperature.gpu, power.draw [W], power.limit [W], clocks.current.sm [MHz]"
)
NONE = ", ".join(["[N/A]"] * 7)


def test_samples_stand_in_nvidia_smis_columns(recorded: RunPaths, call: Call) -> None:
    """A card that the journal does not name, values that it does not report, and then it is lost."""
    card, rest = "NVIDIA H100", "81920 MiB, 61, 300.13 W, [N/A], 1980 MHz, 0, GPU-a"
    times = [f"2027/01/15 08:00:0{second}.250" for second in range(3)]
    assert call("export --gpu-csv", recorded.root) == Answer(0, f"""\
timestamp, name, {HEAD}, index, uuid
{times[0]}, {card}, 0 %, 0 %, 10240 MiB, {rest}
{times[0]}, [N/A], 25 %, {NONE}, 1, [N/A]
{times[1]}, {card}, 50 %, 25 %, 20480 MiB, {rest}
{times[1]}, [N/A], [N/A], {NONE}, 1, [N/A]
{times[2]}, {card}, 100 %, 50 %, 30720 MiB, {rest}
{times[2]}, [N/A], [N/A], {NONE}, 1, [N/A]
""", "")  # fmt: skip


def test_averages_of_each_gpu_and_of_all(recorded: RunPaths, call: Call) -> None:
    assert call("export --gpu-csv --averages --nounits", recorded.root) == Answer(0, f"""\
index, name, {HEAD}, samples, uuid
0, NVIDIA H100, 50, 25, 20480, 81920, 61, 300.13, [N/A], 1980, 3, GPU-a
1, [N/A], 25, {NONE}, 3, [N/A]
all, [N/A], 44, 25, 20480, 81920, 61, 300.13, [N/A], 1980, 6, [N/A]
""", "")  # fmt: skip
    total = call("export --gpu-csv --averages", recorded.root).out.splitlines()[-1]
    assert total == "all, [N/A], 44 %, 25 %, 20480 MiB, 81920 MiB, 61, 300.13 W, [N/A], 1980 MHz, 6, [N/A]"


def test_without_a_gpu_it_is_one_line(tmp_path: Path, call: Call) -> None:
    run = run_in(tmp_path / "runs")
    said = f"stoker export: {run.run_id}: it has no samples of a GPU\n"
    assert call("export --gpu-csv", run.root) == (2, "", said)
