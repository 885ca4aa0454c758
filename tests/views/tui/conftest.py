"""What every screen test needs: one time zone, no terminal settings of the machine."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from supervisor.views.tui.widgets.panel import Panel
from supervisor.views.wording.translate import english


@pytest.fixture(autouse=True)
def _fixed_surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day are shown in UTC; NO_COLOR and the like of the machine do not reach the app."""
    for name in ("NO_COLOR", "COLORTERM", "TEXTUAL_THEME", "TEXTUAL_ANIMATIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def no_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels ask their app for the language: here there is none."""
    monkeypatch.setattr(Panel, "tr", english)
