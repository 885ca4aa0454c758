"""Pages that must keep up with the code of several packages: facts, values, and the way to each page."""

from __future__ import annotations

from pathlib import Path

from supervisor.keeper.monitoring.collector import gpu_values, machine_values, own_values
from supervisor.run import events as ev
from supervisor.sources.gpu import GpuDevice, GpuSample
from supervisor.sources.machine import HostReader, ProcessSample
from supervisor.sources.processes import ProcessId

ROOT = Path(__file__).parents[2]


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    assert [name for name in pages if f"](docs/{name})" not in readme] == []


def test_every_fact_of_a_journal_is_told() -> None:
    page = (ROOT / "docs" / "run-directory.md").read_text(encoding="utf-8")
    kinds = [kind.__struct_config__.tag for kind in ev.KINDS]
    assert [kind for kind in kinds if f"`{kind}`" not in page] == []


def test_every_value_of_gpus_ranks_and_machine_is_told() -> None:
    page = (ROOT / "docs" / "run-directory.md").read_text(encoding="utf-8")
    values = {
        *gpu_values(GpuSample(0.0, GpuDevice(0, None, None, None))),
        *machine_values(HostReader(disks=()).read()),
        *(sample := ProcessSample(0.0, "0", ProcessId(1, 0.0), alive=True)).values(),
        *own_values(sample),
    }
    assert sorted(name for name in values if name not in page) == []
