"""How logs grew: the time of each byte, and what the keeper leaves of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.run.growth import MOST_POINTS, GrowthClock, read_growth, write_growth
from supervisor.run.paths import AttemptPaths


def test_a_file_that_grew_in_bursts_gives_each_byte_the_time_of_its_burst() -> None:
    clock = GrowthClock(0.0, 100, 50.0)
    clock.grew(200, 90.0, 100.0)
    assert [clock.time_of(at) for at in (0, 50, 100, 150, 200, 999)] == [0, 25, 50, 95, 100, 100]
    assert [clock.offset_of(t) for t in (-5, 25, 70, 95, 100, 999)] == [0, 50, 100, 150, 200, 200]
    clock.grew(150, 110.0, 120.0)
    assert clock.time_of(200) == 100, "a file that is shorter than it was has not grown"
    clock.grew(300, 80.0, 110.0)
    assert clock.time_of(250) == 105, "it cannot have had a size before the one known already"


def test_a_day_of_bursts_is_kept_in_a_page_of_memory_and_still_leads_back() -> None:
    clock = GrowthClock(0.0, 10, 1.0)
    for n in range(2, 3000):
        clock.grew(n * 10, n - 0.5, float(n))
    assert len(clock._points) <= MOST_POINTS
    assert clock.time_of(29990) == 2999
    assert clock.time_of(3000) == pytest.approx(300, abs=40)
    assert clock.time_of(15000) == pytest.approx(1500, abs=20)


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=40),
    gaps=st.lists(st.floats(0.01, 100), min_size=40, max_size=40),
)
def test_growth_gives_times_that_rise_and_lead_back(sizes: list[int], gaps: list[float]) -> None:
    clock = GrowthClock(0.0, 100, 50.0)
    size, t = 100, 50.0
    for more, gap in zip(sizes, gaps, strict=False):
        size, t = size + more, t + gap
        clock.grew(size, t - gap / 2, t)
    times = [clock.time_of(at) for at in range(0, size + 1, max(size // 50, 1))]
    assert times == sorted(times)
    assert clock.time_of(size) == pytest.approx(t)
    assert clock.offset_of(0.0) == 0
    assert clock.offset_of(t) == size


def test_what_was_seen_is_read_again(tmp_path: Path) -> None:
    attempt = AttemptPaths(tmp_path)
    clock = GrowthClock(0.0, 0, 0.0)
    for n in range(1, 1000):
        clock.grew(n * 10, n - 0.5, float(n))
    write_growth(attempt, {"0/stdout.log": clock})
    again = read_growth(attempt)[str(tmp_path / "0/stdout.log")]
    assert again.points == clock.points
    assert (again.estimated_bytes, again.watched_t) == (0, 0.0)
    assert attempt.growth.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text", ["", "[]", '{"0": 1}', '{"0": []}', '{"0": [[9, 1.0], [3, 2.0]]}', '{"0": [[1, 9.0], [2, 1.0]]}']
)
def test_what_cannot_be_is_not_taken(tmp_path: Path, text: str) -> None:
    attempt = AttemptPaths(tmp_path)
    assert read_growth(attempt) == {}
    attempt.growth.write_text(text)
    assert read_growth(attempt) == {}
