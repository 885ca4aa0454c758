"""Many lines a second, from real ranks: none is lost, the lag is shown while the keeper is behind, and it catches up. See bench/load.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.load import Load, carry, holds

pytestmark = [pytest.mark.e2e, pytest.mark.serial, pytest.mark.timeout(300)]


@pytest.mark.fault(
    "logs and load", "64 ranks of 200 lines/s", "no step is lost; progress at least every 10 s"
)
def test_64_files_of_200_lines_a_second_are_read_without_a_loss(tmp_path: Path) -> None:
    found = carry(Load(64, 200, 6), tmp_path)
    assert holds(found) == [], found


@pytest.mark.fault(
    "logs and load",
    "a rank of 50,000 lines/s, with the keeper stopped for a while",
    "the lag is shown, no step is lost, it catches up",
)
def test_a_flood_of_50_000_lines_a_second_is_caught_up_with_and_the_lag_is_shown(tmp_path: Path) -> None:
    """The keeper stands still for 8 s, then crawls, as where a machine swaps: header, console and JSON say how far it is behind."""
    found = carry(Load(1, 50_000, 16, frozen_s=8), tmp_path)
    assert holds(found) == [], found
