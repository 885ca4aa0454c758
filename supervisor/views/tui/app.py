"""The app: a screen showing one run directory, and the thread that reads it.

Quitting never stops a run. The app only reads data and sends requests to a keeper.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from supervisor.run.control import presence_of
from supervisor.run.index import listed_names, listed_notes
from supervisor.run.paths import RunPaths
from supervisor.views.appearance import USUAL, Appearance
from supervisor.views.model.reader import SnapshotReader
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.dashboard.run_screen import Dashboard
from supervisor.views.tui.shell.feeder import Adopter, Answer, Feeder, RequestClient, RunAccess
from supervisor.views.tui.terminal_signs import TerminalSigns
from supervisor.views.tui.widgets.textual_theme import THEMES, ThemedApp
from supervisor.views.wording.translate import words_in

if TYPE_CHECKING:
    from rich.console import RenderableType
    from textual.command import Provider

    from supervisor.run.journal import StateReader
    from supervisor.views.model.replay import Recording, ReplayClock, ReplayReader
    from supervisor.views.model.run_list import RunList, RunsReader, Scope
    from supervisor.views.tui.pages.runs_screen import BrowserScreen
from supervisor.views.tui.pages.runs_table import RunsPanel

SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# A list that is still being mounted gets its data this much later.
MOUNTED_S = 0.005
# If the terminal is gone, wait no longer than this, because the terminal may never accept Textual's output.
LEAVE_LATEST_S = 5
# The reading thread yields to a key within a millisecond. Python's default of 5 ms is noticeable under load.
SWITCH_S = 0.001
WAIT_S = 0.5
"""How long to wait, in seconds, for a key whose widget was removed before the key arrived."""
RETRY_S = 0.02
"""How long to wait, in seconds, before rechecking a key that came too early."""


class Passed(Message):
    """A message that follows a key through the same queues. When it reaches the app, the key has been handled."""


class KeyOrder:
    """A queue that holds keys back while another key is being handled, so that each key is finished before the next.

    Textual passes a key to the focused widget, and a binding acts only after the key has bubbled up to the app.
    Meanwhile, the widget inserts the next letter. In a burst of keys, e.g. over slow ssh, ``Backspace 0`` became
    ``0 Backspace``, and text typed right after the key that opens a dialog went to the screen below.

    Args:
        app: the app that gets the keys.
        handle: Textual's own handling of a key.
        early: whether a key came too early and must wait, along with later keys. Called until the key may pass.
    """

    def __init__(
        self,
        app: StokerApp,
        handle: Callable[[events.Event], Awaitable[None]],
        early: Callable[[events.Event], bool],
    ) -> None:
        self._app = app
        self._handle = handle
        self._early = early
        self._retrying = False
        self._held: deque[events.Event] = deque()
        self._under_way: Passed | None = None
        self._screen: object = None

    async def take(self, event: events.Event) -> None:
        """Handle a key or a paste, now or after those still pending."""
        self._held.append(event)
        if self._under_way is None:
            await self._next()

    async def passed(self, message: Passed) -> None:
        """Mark the current key as finished and handle the next one, once any screen it opened is ready."""
        if message is not self._under_way or not self._app.screen_stack:  # no screen is left at exit
            return
        if self._app.screen is not self._screen and self._follow():
            return
        self._under_way = None
        await self._next()

    async def _next(self) -> None:
        while self._held and self._under_way is None and not self._retrying:
            if self._early(self._held[0]):
                self._retrying = True
                asyncio.get_running_loop().call_later(RETRY_S, self._app.call_later, self._retry)
                return
            await self._handle(self._held.popleft())
            self._follow()

    async def _retry(self) -> None:
        self._retrying = False
        await self._next()

    def _follow(self) -> bool:
        """Post a message that follows the key. Return False if it cannot be delivered."""
        screen = self._screen = self._app.screen
        message = Passed()
        if not (self._app.focused or screen).post_message(message):
            self._under_way = None
            return False
        self._under_way = message
        asyncio.get_running_loop().call_later(WAIT_S, self._given_up, message)
        return True

    def _given_up(self, message: Passed) -> None:
        if message is self._under_way:
            self._app.post_message(message)


class StokerApp(ThemedApp):
    """The app, showing a run's dashboard, or the list of runs and the dashboard of whichever run is open.

    Args:
        run: the run directory, or None for the list of runs.
        read_only: if true, no requests can be sent.
        known: returns the runs to list, latest first; called in the reader thread.
        scope: which runs to list initially.
        adopter: adopts a run whose keeper died.
        continuer: starts the next attempt of a finished run.
        clock: returns wall time, for displayed ages and times.
        appearance: how the app looks.
        painted: called once the first screen has been painted.
        journal: the run's journal, if already read.
    """

    CSS_PATH = "stoker.tcss"
    TITLE = "stoker"
    ENABLE_COMMAND_PALETTE = False  # the dashboard opens the palette, with only its own commands
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = set()
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q,ctrl+c", "leave", "leave"),
    ]

    takes_signals = False
    """Whether SIGTERM and SIGHUP quit the way `q` does, leaving the terminal fully restored."""

    def __init__(
        self,
        run: RunPaths | None,
        *,
        known: Callable[[], list[RunPaths]] | None = None,
        scope: Scope | None = None,
        read_only: bool = False,
        adopter: Adopter | None = None,
        continuer: Adopter | None = None,
        clock: Callable[[], float] = time.time,
        appearance: Appearance = USUAL,
        replay: tuple[Recording, ReplayClock] | None = None,
        painted: Callable[[], object] | None = None,
        journal: StateReader | None = None,
    ) -> None:
        self._journal = journal
        super().__init__(appearance)
        self._painted = painted
        self._leaving = False
        self._keys = KeyOrder(self, super().on_event, self._is_early)
        self.tr = words_in(appearance.spoken)
        self._not_spoken = appearance.spoken is not appearance.lang
        self._signs = TerminalSigns(appearance, os.environ, self._write_out, self.tr, calls=replay is None)
        self.run_paths = run
        self._clock, self._read_only, self._adopter = clock, read_only, adopter
        self._continuer = continuer
        self._feeders: list[Feeder[Any]] = []
        self._reader: RunsReader | None = None
        self.browser: BrowserScreen | None = None
        if run is None:
            from supervisor.views.model.run_list import RunsReader, Scope
            from supervisor.views.tui.pages.runs_screen import BrowserScreen

            scope = scope or Scope()
            names, notes = partial(listed_names, os.environ), partial(listed_notes, os.environ)
            self._reader = RunsReader(known or list, scope, names=names, notes=notes)
            self.browser = BrowserScreen(clock, scope, self._submit, self._reader.look_again, continuer)
        self._replay = replay
        self._dashboard: Dashboard | None = None

    @property
    def dashboard(self) -> Dashboard:
        """The open dashboard."""
        assert self._dashboard is not None, "the list of runs is open"
        return self._dashboard

    def action_next_theme(self) -> None:
        """Switch to the next theme and show its name."""
        names = list(THEMES)
        now = next(name for name in names if THEMES[name].name == self.theme)
        name = names[(names.index(now) + 1) % len(names)]
        self.theme = THEMES[name].name
        self.notify(self.tr(f"theme {name}"), markup=False)

    async def on_mount(self) -> None:
        """Open the first screen."""
        if self._not_spoken:
            self.notify(
                "Chinese cannot be written in plain ASCII: with --ascii stoker speaks English", markup=False
            )
        self.call_after_refresh(self._sign)
        if self._painted is not None:
            self.call_after_refresh(self._painted)
        for number in SIGNALS if self.takes_signals else ():
            asyncio.get_running_loop().add_signal_handler(number, self._leave_soon)

    def get_default_screen(self) -> Screen[None]:
        """Return the first screen itself. A blank default screen beneath it would be laid out and painted too."""
        if self.run_paths is not None:
            return self._open(self.run_paths, self._replay)
        assert self.browser is not None, "without a run there is the list of runs"
        self._list()
        return self.browser

    def _leave_soon(self) -> None:
        """Quit on a signal. If the terminal is gone, Textual may wait forever for its writer thread, so set an alarm."""
        signal.alarm(LEAVE_LATEST_S)
        self.exit()

    def _write_out(self, text: str) -> None:
        """Write directly to the terminal. Textual draws on it through standard error."""
        if sys.__stderr__ is not None and not self.is_headless:
            sys.__stderr__.write(text)
            sys.__stderr__.flush()

    def _sign(self) -> None:
        """Update the terminal title, bell and notification for the open run."""
        snapshot = self._dashboard.snapshot if self._dashboard is not None else None
        if snapshot is not None or self._dashboard is None:
            now = snapshot.state.now(self._clock()) if snapshot is not None else 0.0
            recorded = self._dashboard is not None and self._dashboard.playback is not None
            self._signs.take(snapshot, now, recorded=recorded)

    def on_unmount(self) -> None:
        """Stop the reader threads."""
        self._signs.close()
        for number in SIGNALS if self.takes_signals else ():
            asyncio.get_running_loop().remove_signal_handler(number)
        for feeder in self._feeders:
            feeder.stop()

    def exit(self, result: None = None, return_code: int = 0, message: RenderableType | None = None) -> None:
        """Quit, discarding keys typed ahead so that the closing app never handles them."""
        self._leaving = True
        super().exit(result, return_code, message)

    async def on_event(self, event: events.Event) -> None:
        """Handle an event, finishing each key before the next. While quitting, input is ignored."""
        if self._leaving and isinstance(event, events.InputEvent):
            return
        if isinstance(event, (events.Key, events.Paste)) and not event.is_forwarded:
            await self._keys.take(event)
        else:
            await super().on_event(event)

    def _is_early(self, event: events.Event) -> bool:
        """Check whether a key has to wait for the next screen."""
        if not self.screen_stack:
            return not self._leaving
        if self.screen is self._dashboard:
            return self._dashboard.requests.is_early(event)
        return self.screen is self.browser and self.browser is not None and self.browser.is_early(event)

    async def on_passed(self, message: Passed) -> None:
        """Handle the next key once the current one is finished."""
        await self._keys.passed(message)

    def _show_moment(self, dashboard: Dashboard, snapshot: Snapshot) -> None:
        """Show a run's latest data, then let the reader thread continue."""
        if self.is_running and dashboard is self._dashboard:
            dashboard.take(snapshot)
            self._sign()
            self._feeders[-1].taken()

    def _show_list(self, runs: RunList) -> None:
        """Show the list of runs, then let the reader thread continue."""
        if not self.is_running or self._dashboard is not None:
            return
        assert self.browser is not None, "it lists the runs"
        if not self.browser.is_mounted:
            self.set_timer(MOUNTED_S, partial(self._show_list, runs))
            return
        self.browser.take(runs)
        self._feeders[-1].taken()

    def _report_trouble(self, text: str) -> None:
        """Show an error from the reader thread."""
        if self.is_running and self._dashboard is not None:
            self._dashboard.tell(Answer(text, False))
        elif self.is_running:
            self.notify(self.tr(text), severity="error", markup=False)

    async def on_runs_panel_opened(self, message: RunsPanel.Opened) -> None:
        """Open a run from the list, or load its recording and play it."""
        if self._dashboard is not None:
            return
        if not message.replay:
            await self.push_screen(self._open(message.run))
            if message.beside:
                self.dashboard.looking.open_beside(lambda: message.beside)
            return
        browser, run = self.browser, message.run
        assert browser is not None, "it lists the runs"

        def read() -> None:
            from supervisor.views.model.replay import NothingRecorded, record_of

            try:
                self.call_later(self._play_recorded, record_of(run))
            except NothingRecorded:
                self.call_later(browser.tell, f"{run.run_id}: nothing was recorded here")

        browser.tell(f"reading the recording of {run.run_id}…")
        self._submit(read)

    async def _play_recorded(self, recording: Recording) -> None:
        from supervisor.views.model.replay import ReplayClock

        if self.browser is not None and self.screen is self.browser:  # no other screen was opened meanwhile
            self.browser.notice.withdraw(self.browser.notice.says)
            clock = ReplayClock(recording.start_t, recording.end_t, waits=True)
            await self.push_screen(self._open(recording.run, (recording, clock)))

    # -- the one screen with a reading thread --------------------------------------------------------------

    def _submit(self, job: Callable[[], None]) -> None:
        """Run a job in the reader thread."""
        self._feeders[-1].submit(job)

    def _list(self) -> None:
        """Start reading the list of runs."""
        assert self._reader is not None, "it lists the runs"
        report = partial(self.call_later, self._report_trouble)
        self._read_with(Feeder(self._reader.refresh, partial(self.call_later, self._show_list), report))

    def _open(self, run: RunPaths, replay: tuple[Recording, ReplayClock] | None = None) -> Dashboard:
        """Open the dashboard for a run or its recording."""
        reader: SnapshotReader | ReplayReader
        clock, playback, is_live = self._clock, None, replay is None
        if replay is None:
            journal, self._journal = self._journal, None
            presence = None if self._read_only else presence_of(run.control)
            reader = SnapshotReader(run, journal=journal, presence=presence)
        else:
            # Imported only for a replay, so that the usual start is fast.
            from supervisor.views.model.replay import ReplayReader
            from supervisor.views.tui.dashboard.playback import Playback

            clock = replay[1].now
            reader, playback = ReplayReader(replay[0], clock), Playback(*replay)
        feeder: Feeder[Snapshot] = Feeder(
            reader.refresh,
            deliver=lambda snapshot: self.call_later(self._show_moment, dashboard, snapshot),
            trouble=partial(self.call_later, self._report_trouble),
            close=reader.close if isinstance(reader, SnapshotReader) else tuple,
        )
        access = RunAccess(
            RequestClient(run),
            feeder,
            read_only=self._read_only or not is_live,
            is_recorded=not is_live,
            adopter=self._adopter if is_live else None,
            continuer=self._continuer if is_live else None,
        )
        back = None if self.browser is None else self._back
        name = listed_names(os.environ).get(str(run.root), "")
        dashboard = self._dashboard = Dashboard(access, clock, back=back, name=name, playback=playback)
        self._read_with(feeder)
        return dashboard

    def _back(self) -> None:
        """Return to the list of runs."""
        self._dashboard = None
        self.pop_screen()
        self._sign()
        self._list()

    def _read_with(self, feeder: Feeder[Any]) -> None:
        """Start a new reader thread. The previous one exits on its own and is joined when the app exits."""
        if self._feeders:
            self._feeders[-1].ask_to_stop()
        self._feeders.append(feeder)
        feeder.start()

    def action_leave(self) -> None:
        """Quit without stopping the run."""
        self.exit()


def replay_app(
    recording: Recording, clock: ReplayClock | None = None, *, appearance: Appearance = USUAL
) -> StokerApp:
    """Return the app for a recording, at a speed that fits its length."""
    from supervisor.views.model.replay import ReplayClock

    clock = clock or ReplayClock(recording.start_t, recording.end_t, waits=True)
    replay = recording, clock
    return StokerApp(recording.run, clock=clock.now, read_only=True, appearance=appearance, replay=replay)


def run_tui(run: RunPaths | None, **choices: Any) -> None:
    """Show a run, or the list of runs if `run` is None. `choices` are keyword arguments to `StokerApp`."""
    run_app(StokerApp(run, **choices))


def run_app(app: StokerApp) -> None:
    """Show the app on this terminal until the user quits."""
    app.takes_signals = True
    sys.setswitchinterval(SWITCH_S)
    try:
        with terminal_on_stderr():
            app.run()
    finally:
        signal.alarm(0)  # the app quit in time


@contextmanager
def terminal_on_stderr() -> Iterator[None]:
    """Under `2>err.log`, point descriptor 2, which Textual draws on, at stdout's terminal. Logs still go to the file."""
    if os.isatty(2):
        yield
        return
    kept = os.fdopen(os.dup(2), "w", errors="backslashreplace")
    log = logging.StreamHandler(kept)
    logging.getLogger().addHandler(log)
    os.dup2(1, 2)
    try:
        yield
    finally:
        os.dup2(kept.fileno(), 2)
        logging.getLogger().removeHandler(log)
        kept.close()
