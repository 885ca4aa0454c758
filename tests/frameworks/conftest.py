"""All tests here want the environment that `make frameworks` builds; elsewhere they are skipped with that reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Read before the tests' own environment is stripped of what begins with STOKER_.
PYTHON = os.environ.get("FRAMEWORKS_PYTHON", "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what lies in this folder."""
    missing = not PYTHON or not Path(PYTHON).exists()
    for item in items:
        if "tests/frameworks/" in item.nodeid:
            item.add_marker(pytest.mark.frameworks)
            if missing:
                item.add_marker(
                    pytest.mark.skip(reason="no environment with the frameworks (make frameworks)")
                )


@pytest.fixture
def python() -> str:
    """The interpreter that has the frameworks."""
    return PYTHON
