"""The app: one screen on one run directory, and the thread that reads it.

Leaving never ends anything: the app only reads, and what it asks goes through a keeper.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, ClassVar

import msgspec
from textual import events
from textual.binding import Binding, BindingType
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message
from textual.screen import Screen

from supervisor.run.access.control import RequestArgs
from supervisor.run.access.viewers import Presence
from supervisor.run.events import RequestKind
from supervisor.run.index import give_name, give_note, listed_names, listed_notes
from supervisor.run.paths import RunPaths
from supervisor.views.appearance import USUAL, Appearance, ThemeName
from supervisor.views.model.reader import SnapshotReader
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.dashboard.screen import Dashboard
from supervisor.views.tui.feeder import Feeder
from supervisor.views.tui.garbage import settle, sweep
from supervisor.views.tui.key_order import KeyOrder, Passed
from supervisor.views.tui.request_client import Adopter, Answer, RequestClient
from supervisor.views.tui.saved_layout import Kept, load, save
from supervisor.views.tui.terminal_input import KeyReader, Reached
from supervisor.views.tui.terminal_output import surviving
from supervisor.views.tui.terminal_signs import TerminalSigns
from supervisor.views.tui.theme.textual_theme import THEMES, ThemedApp
from supervisor.views.tui.widgets.paint import TextStyle
from supervisor.views.wording.translate import words_in

if TYPE_CHECKING:
    from rich.console import RenderableType
    from textual.command import Provider
    from textual.driver import Driver

    from supervisor.run.journal import StateReader
    from supervisor.views.model.replay import Recording, ReplayClock
    from supervisor.views.model.run_list import RunList, RunsReader, Scope
    from supervisor.views.tui.runs.browser import BrowserScreen
from supervisor.views.tui.runs.table import RunsPanel

SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# What a key does is painted before what was read: news wait for so long after a key, but no longer in all than that.
KEY_FIRST_S = 0.06
NEWS_LATEST_S = 0.15
FIRST_PAINT_LATEST_S = 0.15
# How much later a screen that is still being mounted gets what was read.
MOUNTED_S = 0.005
# Garbage is looked for once all is painted, and then at times, when nobody has typed for a while.
SETTLE_S = 1.0
SWEEP_S = 60.0
NOBODY_TYPES_S = 1.0
KEYS = (events.Key, events.Paste, events.MouseDown, events.MouseScrollUp, events.MouseScrollDown)


class StokerApp(ThemedApp):
    """The dashboard of one run, or the list of runs and the dashboard of the one that is opened.

    Args:
        run: the run directory; None: the list of runs.
        read_only: no requests can be sent.
        known: the runs of the list, newest first; called in the reading thread.
        scope: which of them are listed at first.
        adopter: takes over a run whose keeper died.
        continuer: starts the next attempt of a run that is over.
        clock: wall time, for ages and times on the screen.
        appearance: how it looks.
        keep: the file that remembers choices; None: they are forgotten.
        signals: SIGTERM and SIGHUP leave as `q` does, so that the terminal is given back whole.
        painted: called once a run's first moment is on the screen.
        journal: the run's, where it was read.
    """

    CSS_PATH = "stoker.tcss"
    TITLE = "stoker"
    ENABLE_COMMAND_PALETTE = False  # the dashboard opens it, with its own commands alone
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = set()
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q,ctrl+c", "leave", "leave", show=False, priority=False),
    ]

    class Read(Message):
        """The reading thread has a new moment of the run."""

        def __init__(self, dashboard: Dashboard, snapshot: Snapshot) -> None:
            super().__init__()
            self.dashboard = dashboard
            self.snapshot = snapshot
            self.read_t = time.monotonic()

    class Listed(Message):
        """The reading thread has a new list of runs."""

        def __init__(self, runs: RunList) -> None:
            super().__init__()
            self.runs = runs

    class Trouble(Message):
        """The reading thread failed at something."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

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
        keep: Path | None = None,
        signals: bool = False,
        replay: tuple[Recording, ReplayClock] | None = None,
        painted: Callable[[], object] | None = None,
        journal: StateReader | None = None,
    ) -> None:
        self._journal = journal
        self.kept = load(keep)
        super().__init__(appearance, self.kept.theme)
        self._painted = painted
        self._signals = SIGNALS if signals else ()
        self._continuing: Continuing | None = None
        self._leaving = False
        self._typed_t = float("-inf")
        self._keys = KeyOrder(self, self._handle_key, self._is_early)
        self.tr = words_in(appearance.spoken)
        self._not_spoken = appearance.spoken is not appearance.lang
        self._signs = TerminalSigns(appearance, os.environ, self._write_out, self.tr, calls=replay is None)
        self.run_paths = run
        self._keep = keep
        self._clock, self._read_only, self._adopter = clock, read_only, adopter
        self._continuer = continuer
        self._feeders: list[Feeder[Snapshot] | Feeder[RunList]] = []
        self._reader: RunsReader | None = None
        self.browser: BrowserScreen | None = None
        if run is None:
            from supervisor.views.model.run_list import RunsReader, Scope
            from supervisor.views.tui.runs.browser import BrowserScreen

            scope = scope or Scope()
            names, notes = partial(listed_names, os.environ), partial(listed_notes, os.environ)
            self._reader = RunsReader(known or list, scope, names=names, notes=notes)
            self.browser = BrowserScreen(clock, scope, continues=continuer is not None)
        self._replay = replay
        self._dashboard: Dashboard | None = None

    @property
    def dashboard(self) -> Dashboard:
        """The dashboard that is open.

        Raises:
            LookupError: the list of runs is open.
        """
        if self._dashboard is None:
            raise LookupError("no run is open")
        return self._dashboard

    def get_driver_class(self) -> type[Driver]:
        """Textual's own, which continues taking what is written when the terminal is gone, and reads no key too many."""
        driver = super().get_driver_class()
        return surviving(KeyReader if driver is LinuxDriver else driver)

    def remember(self, kept: Kept) -> None:
        """Keep other choices for the next time."""
        self.kept = kept
        save(self._keep, kept)

    def action_wear(self, name: str) -> None:
        """The theme of a name, remembered and named."""
        self.theme = THEMES[ThemeName(name)].name
        self.remember(msgspec.structs.replace(self.kept, theme=self.theme))
        if self._dashboard is not None and self.screen is self._dashboard:
            self._dashboard.tell(Answer(f"theme {name}", None))
        elif self.browser is not None and self.screen is self.browser:
            self.browser.tell(f"theme {name}", TextStyle.PLAIN)
        else:
            self.notify(self.tr(f"theme {name}"), markup=False)

    def action_next_theme(self) -> None:
        """The next theme, remembered."""
        names = list(THEMES)
        now = next(name for name in names if THEMES[name].name == self.theme)
        self.action_wear(names[(names.index(now) + 1) % len(names)])

    async def on_mount(self) -> None:
        """Open the first screen."""
        if self._not_spoken:
            self.notify(
                "Chinese cannot be written in plain ASCII: with --ascii stoker speaks English", markup=False
            )
        self.call_after_refresh(self._sign)
        for number in self._signals:
            asyncio.get_running_loop().add_signal_handler(number, self.exit)
        if self._signals:
            self.set_timer(SETTLE_S, settle)
            self.set_interval(SWEEP_S, self._sweep)
            loop = asyncio.get_running_loop()
            self._continuing = Continuing(lambda: loop.call_soon_threadsafe(self.refresh))

    def get_default_screen(self) -> Screen[None]:
        """The first screen itself: an empty one below it would be made, laid out and painted too."""
        if self._replay is not None:
            return self._open_replay(*self._replay)
        if self.run_paths is not None:
            return self._open(self.run_paths)
        assert self.browser is not None, "without a run there is the list of runs"
        self._list(wait_s=FIRST_PAINT_LATEST_S)
        return self.browser

    def _sweep(self) -> None:
        if time.monotonic() - self._typed_t > NOBODY_TYPES_S:
            sweep()

    def _write_out(self, text: str) -> None:
        """To the terminal itself, as Textual does for its clipboard and its bell."""
        if self._driver is not None:
            self._driver.write(text)

    def _sign(self) -> None:
        """Title, bell and notice follow the run that is open."""
        snapshot = self._dashboard.snapshot if self._dashboard is not None else None
        if snapshot is not None or self._dashboard is None:
            now = snapshot.state.now(self._clock()) if snapshot is not None else 0.0
            recorded = self._dashboard is not None and self._dashboard.is_recorded
            self._signs.take(snapshot, now, recorded=recorded)

    def on_unmount(self) -> None:
        """End the reading threads."""
        self._signs.close()
        for number in self._signals:
            asyncio.get_running_loop().remove_signal_handler(number)
        if self._continuing is not None:
            self._continuing.close()
        for feeder in self._feeders:
            feeder.stop()

    def exit(self, result: None = None, return_code: int = 0, message: RenderableType | None = None) -> None:
        """Leave; keys that were typed ahead are for the shell, not for what is being closed."""
        self._leaving = True
        super().exit(result, return_code, message)

    async def on_event(self, event: events.Event) -> None:
        """Textual's own, without input once the app is being left; a key's own paint comes first."""
        if isinstance(event, KEYS):
            self._typed_t = time.monotonic()
        if self._leaving and isinstance(event, events.InputEvent):
            return
        if isinstance(event, (events.Key, events.Paste)) and not event.is_forwarded:
            await self._keys.take(event)
        else:
            await super().on_event(event)

    async def _handle_key(self, event: events.Event) -> None:
        """What was reported in the list before a key is old with it."""
        if self.browser is not None and self.screen is self.browser:
            self.browser.notice.drop_older()
        await super().on_event(event)

    def _is_early(self, event: events.Event) -> bool:
        """Whether a key has to wait for what is about to be on the screen."""
        if not self.screen_stack:
            return not self._leaving
        if self.screen is self._dashboard:
            return self._dashboard.is_early(event)
        return self.screen is self.browser and self.browser is not None and self.browser.is_early(event)

    @property
    def is_left(self) -> bool:
        """Whether it is being closed: keys are the shell's from then on. The reading thread asks."""
        return self._leaving

    async def on_reached(self, message: Reached) -> None:
        """The reading thread waits until the keys before this are done."""
        await self._keys.take(message)

    async def on_passed(self, message: Passed) -> None:
        """A key is done: the next one."""
        await self._keys.passed(message)

    def on_stoker_app_read(self, message: Read) -> None:
        """Show it, then let the thread read on. Just after a key neither is done: the key's own paint comes first."""
        if not self.is_running:  # being closed: the dashboard may have lost its widgets already
            return
        wait_s = min(self._typed_t + KEY_FIRST_S, message.read_t + NEWS_LATEST_S) - time.monotonic()
        if not message.dashboard.is_mounted:
            wait_s = max(wait_s, MOUNTED_S)
        if wait_s > 0:
            self.set_timer(wait_s, partial(self.post_message, message))
        elif message.dashboard is self._dashboard:
            self._dashboard.take(message.snapshot)
            self._sign()
            self._feeders[-1].taken()
            if self._painted is not None:
                self.call_after_refresh(self._painted)
                self._painted = None

    def on_stoker_app_listed(self, message: Listed) -> None:
        """Show it, then let the thread read on."""
        if not self.is_running:
            return
        if self.browser is not None and not self.browser.is_mounted:
            self.set_timer(MOUNTED_S, partial(self.post_message, message))
        elif self.browser is not None and self._dashboard is None:
            self.browser.take(message.runs)
            self._feeders[-1].taken()

    def on_stoker_app_trouble(self, message: Trouble) -> None:
        """Say it."""
        if not self.is_running:
            return
        if self._dashboard is not None:
            self._dashboard.tell(Answer(message.text, False))
        else:
            self.notify(self.tr(message.text), severity="error", markup=False)

    async def on_runs_panel_opened(self, message: RunsPanel.Opened) -> None:
        """Open a run of the list."""
        if message.replay:
            self._play(message.run)
        elif self._dashboard is None:
            await self.push_screen(self._open(message.run))
            if message.beside:
                self.dashboard.open_beside(message.beside)
            elif message.named:
                self.dashboard.compare_for(message.named)

    def _play(self, run: RunPaths) -> None:
        """Read a run's recording, then play it."""
        browser = self.browser
        if browser is None or self._dashboard is not None:
            return

        def read() -> None:
            from supervisor.views.model.replay import NothingRecorded, record_of

            try:
                self.call_later(self._play_recorded, record_of(run))
            except NothingRecorded:
                self.call_later(browser.tell, f"{run.run_id}: nothing was recorded here")

        browser.tell(f"reading the recording of {run.run_id}…")
        self._feeders[-1].submit(read)

    async def _play_recorded(self, recording: Recording) -> None:
        from supervisor.views.model.replay import ReplayClock

        if self.browser is not None and self.screen is self.browser:  # nothing else was opened meanwhile
            self.browser.notice.withdraw(self.browser.notice.says)
            clock = ReplayClock(recording.start_t, recording.end_t, waits=True)
            await self.push_screen(self._open_replay(recording, clock, back=self._back))

    def on_runs_panel_stopped(self, message: RunsPanel.Stopped) -> None:
        """Ask the run's keeper to stop it, in the reading thread."""
        browser, row = self.browser, message.row
        if browser is None or self._dashboard is not None:
            return
        attempt = row.state.attempt
        send = RequestClient(row.run).sender(
            RequestKind.STOP,
            attempt.number if attempt is not None else None,
            None,
            self._clock(),
            lambda answer: self.call_later(browser.tell_of_stop, row.run, answer),
        )
        self._feeders[-1].submit(send)

    def on_runs_panel_continued(self, message: RunsPanel.Continued) -> None:
        """Say what the run's next attempt would be, and ask."""
        browser, reader, continuer = self.browser, self._reader, self._continuer
        if browser is None or reader is None or continuer is None or self._dashboard is not None:
            return
        from supervisor.views.tui.dialogs.prompts import CONTINUE, offer_first

        def tell(answer: Answer) -> None:
            browser.tell(answer.text, TextStyle.PLAIN if answer.good is None else TextStyle.WARN)

        def start(run: RunPaths) -> None:
            continuer.adopt(run)
            reader.look_again()

        next_attempt = Adopter(continuer.examine, start)
        offer_first(browser, self._feeders[-1].submit, next_attempt, message.row.run, CONTINUE, tell)

    def on_runs_panel_named(self, message: RunsPanel.Named) -> None:
        """Call a run by another name, in the reading thread."""
        run = message.row.run
        self._change(lambda: f"{run.run_id}: named {give_name(run, message.text, os.environ)}")

    def on_runs_panel_noted(self, message: RunsPanel.Noted) -> None:
        """Put a note on a run, in the reading thread: its keeper writes it down, else it is kept in the index."""
        browser, row = self.browser, message.row
        if not row.live or row.state.is_over:
            self._change(lambda: f"noted: {give_note(row.run, message.text, os.environ)}")
        elif browser is not None and self._dashboard is None:
            send = RequestClient(row.run).sender(
                RequestKind.NOTE,
                None,
                RequestArgs(text=message.text),
                self._clock(),
                lambda answer: self.call_later(browser.tell, answer.text),
            )
            self._feeders[-1].submit(send)

    def _change(self, change: Callable[[], str]) -> None:
        """Change something of a run, in the reading thread; report what `change` returns, or what stands against it."""
        browser, reader = self.browser, self._reader
        if browser is None or reader is None or self._dashboard is not None:
            return

        def act() -> None:
            try:
                text = change()
            except (ValueError, OSError) as error:
                text = str(error)
            reader.look_again()
            self.call_later(browser.tell, text)

        self._feeders[-1].submit(act)

    def on_runs_panel_widened(self, _message: RunsPanel.Widened) -> None:
        """List the runs of other folders too, or no longer."""
        if self._reader is not None and self._dashboard is None:
            self._feeders[-1].submit(self._reader.look_again)

    def on_runs_panel_thrown(self, message: RunsPanel.Thrown) -> None:
        """Delete a run, or bring the last one back, in the reading thread."""
        from supervisor.run.trash import bring_back, throw_away

        run, thrown = message.run, self.browser.thrown if self.browser is not None else []

        def act() -> str:
            if run is None:
                return f"{bring_back(thrown.pop()).run_id} is back"
            thrown.append(throw_away(run))
            return f"{run.run_id} is deleted; u brings it back"

        self._change(act)

    def _open_replay(
        self, recording: Recording, clock: ReplayClock, back: Callable[[], None] | None = None
    ) -> Dashboard:
        from supervisor.views.model.replay import ReplayReader  # the usual start need not wait for it
        from supervisor.views.tui.runs.replay_screen import ReplayScreen

        feeder: Feeder[Snapshot] = Feeder(
            ReplayReader(recording, clock.now),
            deliver=lambda snapshot: self.post_message(self.Read(screen, snapshot)),
            trouble=lambda text: self.post_message(self.Trouble(text)),
        )
        screen = self._dashboard = ReplayScreen(recording, clock, feeder, back)
        self._read_with(feeder)
        return screen

    def _list(self, *, wait_s: float = 0.0) -> None:
        """Read the list, and show what is read within `wait_s` at once."""
        if self._reader is None or self.browser is None:
            return
        feeder: Feeder[RunList] = Feeder(
            self._reader,
            deliver=lambda runs: self.post_message(self.Listed(runs)),
            trouble=lambda text: self.post_message(self.Trouble(text)),
        )
        self._end_reading()
        self._feeders.append(feeder)
        first = feeder.start_with_first(wait_s)
        if first is not None:
            show = self.browser.take if self.browser.is_mounted else self.browser.begin_with
            show(first)
            feeder.taken()

    def _open(self, run: RunPaths) -> Dashboard:
        journal, self._journal = self._journal, None
        presence = None if self._read_only else Presence(run.control)
        feeder: Feeder[Snapshot] = Feeder(
            SnapshotReader(run, journal=journal, presence=presence),
            deliver=lambda snapshot: self.post_message(self.Read(dashboard, snapshot)),
            trouble=lambda text: self.post_message(self.Trouble(text)),
        )
        dashboard = Dashboard(
            RequestClient(run),
            feeder,
            self._clock,
            read_only=self._read_only,
            presence=presence,
            adopter=self._adopter,
            continuer=self._continuer,
            back=None if self.browser is None else self._back,
            name=listed_names(os.environ).get(str(run.root), ""),
        )
        self._dashboard = dashboard
        # Read before the screen is made, so that it is laid out and painted once, with what was read.
        self._end_reading()
        self._feeders.append(feeder)
        first = feeder.start_with_first(FIRST_PAINT_LATEST_S)
        if first is not None:
            dashboard.begin_with(first)
            feeder.taken()
            if self._painted is not None:
                dashboard.call_after_refresh(self._painted)
                self._painted = None
        return dashboard

    def _back(self) -> None:
        """To the list of runs."""
        self._dashboard = None
        self.pop_screen()
        self._sign()
        self._list()

    def _read_with(self, feeder: Feeder[Snapshot] | Feeder[RunList]) -> None:
        """One thread reads at a time: the one before ends by itself, and is joined when the app ends."""
        self._end_reading()
        self._feeders.append(feeder)
        feeder.start()

    def _end_reading(self) -> None:
        if self._feeders:
            self._feeders[-1].ask_to_stop()

    def action_leave(self) -> None:
        """Leave; training continues."""
        self.exit()


class Continuing:
    """Passes SIGCONT on to Textual only when SIGTSTP came before it, not after a debugger's or `kill -STOP`'s freeze.

    Textual (8.x, drivers/linux_driver.py) answers every SIGCONT by entering its screen again: a second thread reads the
    keys, leaving waits for the first one for ever, and the terminal's own settings are forgotten.
    Must be made in the main thread, after Textual's own handlers were set.

    Args:
        back: called, in a signal handler, when the process continues as it was: the screen may be another's.
    """

    def __init__(self, back: Callable[[], object]) -> None:
        self._back = back
        self._left = False
        self._stop = signal.getsignal(signal.SIGTSTP)
        self._go_on = signal.getsignal(signal.SIGCONT)
        signal.signal(signal.SIGTSTP, self._stopped)
        signal.signal(signal.SIGCONT, self._continued)

    def close(self) -> None:
        """Give the signals back."""
        signal.signal(signal.SIGTSTP, self._stop)
        signal.signal(signal.SIGCONT, self._go_on)

    def _stopped(self, number: int, frame: FrameType | None) -> None:
        self._left = True
        if callable(self._stop):
            self._stop(number, frame)

    def _continued(self, number: int, frame: FrameType | None) -> None:
        if not self._left:
            self._back()
            return
        # `bg` continues too, and Textual then stops again: `fg` is still to come.
        self._left = not _in_front()
        if callable(self._go_on):
            self._go_on(number, frame)


def _in_front() -> bool:
    try:
        return os.tcgetpgrp(sys.__stdin__.fileno()) == os.getpgrp() if sys.__stdin__ else True
    except OSError:
        return True
