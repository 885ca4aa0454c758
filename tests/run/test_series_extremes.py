"""What an attempt's series say at a glance: the highest readings, and those at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.run import series
from supervisor.run.series import GPU, SeriesWriter, at_first, highest


def test_the_highest_and_the_first_are_found_without_reading_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SeriesWriter(tmp_path)
    for second in range(600):
        used = 9e9 if second == 100 else 1e9 + second
        writer.append(GPU, 60_000.0 + second, "0", 1, {"memory_used_bytes": used, "power_w": None})
    for second in range(10):
        writer.append(GPU, 60_600.0 + second, "0", 2, {"memory_used_bytes": 5e9 + second})
    monkeypatch.setattr(series, "NEWEST_BYTES", 2000)
    assert highest(tmp_path, GPU, 1) == {"0": {"memory_used_bytes": 9e9}}, "of a minute long past"
    assert at_first(tmp_path, GPU, 1, "memory_used_bytes") == {"0": 1e9}
    assert highest(tmp_path, GPU, 2) == {"0": {"memory_used_bytes": 5e9 + 9}}, "of a minute that is not over"
    assert at_first(tmp_path, GPU, 2, "memory_used_bytes") == {"0": 5e9}
    assert highest(tmp_path, GPU, 3) == {}
    writer.close()
    assert at_first(tmp_path, GPU, 2, "memory_used_bytes") == {"0": 5e9}
