"""Which pages there are. A page is imported and made when it is first opened: the start need not wait for any."""

from __future__ import annotations

from typing import Final

from supervisor.views.tui.widgets.panel import Panel

PAGES: Final = ("failure", "metrics", "advisories", "processes", "preflight", "settings")


def new_page(name: str) -> Panel:
    """The page of this name, which is its id too.

    Raises:
        ValueError: there is none.
    """
    match name:
        case "failure":
            from supervisor.views.tui.pages.failure import FailurePage

            return FailurePage(id=name)
        case "metrics":
            from supervisor.views.tui.pages.metrics import MetricsPage

            return MetricsPage(id=name)
        case "advisories":
            from supervisor.views.tui.pages.advisories import AdvisoriesPage

            return AdvisoriesPage(id=name)
        case "processes":
            from supervisor.views.tui.pages.processes import ProcessesPage

            return ProcessesPage(id=name)
        case "preflight":
            from supervisor.views.tui.pages.settings import PreflightPage

            return PreflightPage(id=name)
        case "settings":
            from supervisor.views.tui.pages.settings import SettingsPage

            return SettingsPage(id=name)
        case _:
            raise ValueError(f"no page is called {name!r}")
