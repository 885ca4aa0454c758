"""Signals outside the TUI: terminal title, bell, desktop notification. Each has a setting in ``[ui]``.

Each signal is one line without control characters or secrets, because run names and log text are untrusted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from supervisor.run import state as st
from supervisor.run.events import Outcome
from supervisor.text.redact import redact_text
from supervisor.views.appearance import Appearance, NoticeKind
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.panels.state_words import listed_span
from supervisor.views.tui.widgets.paint import plain
from supervisor.views.wording.translate import Tr

# Longer texts are cut off where they are shown. A tab has about 30 characters, a notification about 200.
TITLE_CHARACTERS = 100
NOTICE_CHARACTERS = 200
# xterm's stack of titles (CSI 22 t, CSI 23 t). Terminals without the stack keep the empty title sent before.
KEEP_TITLE, RESTORE_TITLE = "\x1b[22;2t", "\x1b]2;\x1b\\\x1b[23;2t"
# The Linux console prints the unknown parts of a sequence, and older consoles print a whole title.
NO_SEQUENCES = frozenset(["linux", "dumb"])


class TerminalSigns:
    """Sets the terminal title and alerts the user once when an attempt fails and once when the run finishes.

    Args:
        appearance: the settings.
        env: the environment; ``TERM``, ``TMUX`` and ``STY`` reveal what sits between stoker and the terminal.
        write: writes to the terminal.
        tr: translates into the user's language.
        calls: whether alerts are allowed; false when a recording is being replayed.
    """

    def __init__(
        self,
        appearance: Appearance,
        env: Mapping[str, str],
        write: Callable[[str], object],
        tr: Tr,
        *,
        calls: bool,
    ) -> None:
        known = env.get("TERM", "") not in NO_SEQUENCES
        self._titled = appearance.title and known
        notice = appearance.notice if calls and known else NoticeKind.OFF
        # tmux and screen do not pass on a notification, but they mark the window after a bell.
        between = bool(env.get("TMUX") or env.get("STY"))
        self._notice = NoticeKind.OFF if between else notice
        self._bell = calls and (appearance.bell or (between and notice is not NoticeKind.OFF))
        self._ascii, self._write, self._tr = appearance.ascii, write, tr
        self._title = ""
        self._run = ""
        self._last: object = None

    def take(self, snapshot: Snapshot | None, now: float, *, recorded: bool = False) -> None:
        """Process a snapshot of the open run, or None while the run list is open. Old or `recorded` events trigger no alert."""
        self._entitle("stoker" if snapshot is None else title_of(snapshot, now, self._tr))
        if snapshot is None:
            self._run = ""
            return
        news = worth_a_call(snapshot.state)
        before, self._last = self._last, news
        is_new = snapshot.state.run_id == self._run and news is not None and news != before
        self._run = snapshot.state.run_id
        if is_new and not recorded:
            self._call(f"{title_of(snapshot, now, self._tr)}{_why(snapshot.state, self._tr)}")

    def close(self) -> None:
        """Restore the title."""
        if self._title:
            self._write(RESTORE_TITLE)
            self._title = ""

    def _entitle(self, text: str) -> None:
        text = self._one_line(text, TITLE_CHARACTERS)
        if not self._titled or text == self._title:
            return
        self._write(f"{'' if self._title else KEEP_TITLE}\x1b]2;{text}\x1b\\")
        self._title = text

    def _call(self, text: str) -> None:
        text = self._one_line(text, NOTICE_CHARACTERS)
        if self._notice is NoticeKind.OSC9:
            self._write(f"\x1b]9;stoker: {text}\x1b\\")
        elif self._notice is NoticeKind.OSC777:
            self._write(f"\x1b]777;notify;stoker;{text.replace(';', ',')}\x1b\\")
        if self._bell:
            self._write("\a")

    def _one_line(self, text: str, most: int) -> str:
        line = plain(redact_text(text)).strip()
        if self._ascii:
            from supervisor.views.tui.widgets import filters

            line = filters.ascii_of(line)
        return line if len(line) <= most else line[:most].rstrip()


def title_of(snapshot: Snapshot, now: float, tr: Tr) -> str:
    """Return a run's state and name on one line, without numbers that would change every second."""
    word = listed_span(snapshot, now).text
    if word.startswith("○ quiet"):
        word = "○ quiet"
    return f"{tr(word)} · {snapshot.state.run_id}"


def worth_a_call(state: st.RunState) -> object:
    """Return why the user should be alerted, or None.

    The user is alerted when an attempt fails, and when a run finishes without a failure or a stop request.
    """
    attempt, condition = state.attempt, state.condition
    if attempt is not None and attempt.failure is not None and not attempt.verdict_provisional:
        return attempt.number
    if isinstance(condition, st.Finished):
        return None if condition.outcome is Outcome.STOPPED else condition.outcome
    return None


def _why(state: st.RunState, tr: Tr) -> str:
    attempt = state.attempt
    if attempt is None or attempt.failure is None or attempt.verdict is None:
        return ""
    return f": {tr(attempt.verdict.title)}"
