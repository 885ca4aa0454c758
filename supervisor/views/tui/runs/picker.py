"""The list of runs over the dashboard, to choose the runs to compare with the open one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Label

from supervisor.run.index import known_runs, listed_names, listed_notes
from supervisor.run.paths import RunPaths
from supervisor.views.model.run_list import RunList, RunsReader, Scope
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.dialogs.help import HelpScreen, lines_of
from supervisor.views.tui.dialogs.prompts import key_line
from supervisor.views.tui.runs.table import RunsPanel
from supervisor.views.tui.shell.feeder import Feeder
from supervisor.views.tui.shell.screen_base import OverScreen
from supervisor.views.tui.widgets.panel import tr_of

KEYS = (
    ("Space", "mark"),
    ("Enter", "compare"),
    ("/", "filter"),
    ("a", "all folders"),
    ("?", "help"),
    ("Esc", "close"),
)


class RunPicker(OverScreen[Sequence[RunPaths] | None]):
    """Lets a person mark any number of runs; returns them in the order of marking, or None if the dialog is closed.

    Args:
        run: the open run, which is not listed.
        marked: the runs already being compared.
        clock: wall time.
        feeder: the reading thread.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "mark", "mark", tooltip="mark runs to compare, as many as you like"),
        Binding("enter", "done", "compare", tooltip="draw the marked runs' series beside this one's"),
        Binding(
            "slash", "filter", "filter", tooltip="filter: words, state:failed, failure:cuda_oom, loss<2.5"
        ),
        Binding("a", "widen", "all folders", tooltip="show or hide your runs in other folders"),
        Binding("question_mark,f1", "help", "help", key_display="?", tooltip="this help"),
        Binding("escape,q,ctrl+c", "cancel", "close", tooltip="close; the comparison stays as it was"),
    ]

    def __init__(
        self,
        run: RunPaths,
        marked: Sequence[RunPaths],
        clock: Callable[[], float],
        feeder: Feeder[Snapshot],
    ) -> None:
        super().__init__()
        self._own = run.root.resolve()
        self._feeder = feeder
        place = self._own.parent
        scope = Scope(place)
        names, notes = partial(listed_names, os.environ), partial(listed_notes, os.environ)
        self._reader = RunsReader(partial(known_runs, place, os.environ), scope, names=names, notes=notes)
        self.panel = RunsPanel(clock, scope, id="picked")
        self.panel.marked = list(marked)

    def compose(self) -> ComposeResult:
        """The table, and the keys."""
        yield self.panel
        with Horizontal(classes="bar"):
            yield Label(Content.assemble(" ", key_line(tr_of(self), *KEYS)))

    def on_mount(self) -> None:
        """Read the list."""
        self.panel.focus()
        self._feeder.submit(self._read)

    def _read(self) -> None:
        """Read in the reading thread, one time slice at a time."""
        self.app.call_later(self._take, self._reader.refresh())

    def _take(self, runs: RunList) -> None:
        if not self.is_running:
            return
        others = tuple(row for row in runs.rows if row.run.root.resolve() != self._own)
        self.panel.list = replace(runs, rows=others)
        self.panel.renew()
        if not runs.complete:
            self._feeder.submit(self._read)

    def on_runs_panel_opened(self, message: RunsPanel.Opened) -> None:
        """A click on the selected run marks it."""
        message.stop()
        self.panel.mark(message.run)

    def action_mark(self) -> None:
        """Compare with the run under the cursor, or stop comparing."""
        if self.panel.chosen is not None:
            self.panel.mark(self.panel.chosen)

    def action_help(self) -> None:
        """The keys of this list."""
        lines = lines_of(self, "the list of runs", self.BINDINGS)
        self.app.push_screen(HelpScreen([*lines, *lines_of(self.panel, "move", RunsPanel.BINDINGS)]))

    def action_done(self) -> None:
        """Compare with the marked runs, or with none."""
        self.dismiss(self.panel.marked)

    def action_filter(self) -> None:
        """Filter while typing."""
        self.panel.open_filter(lambda: None)

    def action_widen(self) -> None:
        """List the runs of all folders, or only of this one."""
        self.panel.scope.everywhere = not self.panel.scope.everywhere
        self._reader.look_again()
        self._feeder.submit(self._read)

    def action_cancel(self) -> None:
        """Close without a change."""
        self.dismiss(None)
