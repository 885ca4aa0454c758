"""The kernel's log: only kills of our processes, only since they began."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.sources.kernel_memory import about, oom_kills

OOM = b"3,900,5000000,-;Out of memory: Killed process 4711 (python3) total-vm:9kB, anon-rss:8kB\n SUBSYSTEM=mm\n"
CGROUP = b"3,901,6000000,-;Memory cgroup out of memory: Killed process 4711 (python3)\n"


@pytest.mark.parametrize(
    ("record", "pids", "since_s", "told"),
    [
        (OOM, {4711}, 1.0, True),
        (CGROUP, {4711}, 1.0, True),
        (OOM, {4712}, 1.0, False),
        (OOM, {4711}, 5.1, False),
        (b"6,902,7000000,-;python3 invoked oom-killer: gfp_mask=0x100cca\n", {4711}, 1.0, False),
        (b"half a record", {4711}, 0.0, False),
        (b"3,x,y,-;Killed process 4711", {4711}, 0.0, False),
    ],
)
def test_a_record_counts_only_if_it_is_about_us_now(
    record: bytes, pids: set[int], since_s: float, told: bool
) -> None:
    assert (about(record, pids, since_s) is not None) is told


def test_where_it_cannot_be_read_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert oom_kills({1}, since_s=0.0, path=str(tmp_path / "absent")) == ""
    assert isinstance(oom_kills({1}, since_s=0.0), str)
