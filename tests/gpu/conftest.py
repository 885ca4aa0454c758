"""All tests here want a CUDA device; elsewhere they are skipped with that reason."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what lies in this folder."""
    missing = not torch.cuda.is_available()
    for item in items:
        if "tests/gpu/" in item.nodeid:
            item.add_marker(pytest.mark.gpu)
            if missing:
                item.add_marker(
                    pytest.mark.skip(reason="no CUDA device is visible (make venv-gpu, make gpu)")
                )
