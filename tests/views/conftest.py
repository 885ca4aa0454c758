"""Fixtures of several tests of views."""

from __future__ import annotations

import pytest

from supervisor.views.model.replay import Recording, record_of
from tests.views.tui import recorded


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return record_of(recorded.succeeded(tmp_path_factory.mktemp("runs") / "20261121-1412-brave-otter"))
