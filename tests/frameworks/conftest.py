"""All tests here want the environment that `make frameworks` builds; elsewhere they are skipped with that reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Read before the tests' own environment is stripped of what begins with STOKER_.
PYTHON = os.environ.get("FRAMEWORKS_PYTHON", "")
# transformers 4.57.1, which takes the micro-batch from the checkpoint that it resumes from.
OLD_PYTHON = os.environ.get("FRAMEWORKS_OLD_PYTHON", "")
# A checkout of karpathy/nanoGPT; it is not part of this repository.
NANOGPT_TREE = os.environ.get("FRAMEWORKS_NANOGPT", "")


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


@pytest.fixture(params=["newest", "4.57.1"])
def transformers_python(request: pytest.FixtureRequest) -> str:
    """Interpreters with two versions of transformers, one after the other."""
    found = PYTHON if request.param == "newest" else OLD_PYTHON
    if not Path(found).is_file():
        pytest.skip("no environment with transformers 4.57.1 (make frameworks)")
    return found


@pytest.fixture
def python() -> str:
    """The interpreter that has the frameworks."""
    return PYTHON
