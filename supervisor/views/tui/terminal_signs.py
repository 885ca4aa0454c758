"""What a terminal says beside its screen: its title, its bell, a notice of the desktop. Each by a setting of ``[ui]``.

Whatever is written is one line without control characters and without secrets: names of runs and texts of logs are data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

from supervisor.run import state as st
from supervisor.run.events import Outcome
from supervisor.text.redact import redact_text
from supervisor.views.appearance import Appearance, NoticeKind
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.panels.state_words import listed_span
from supervisor.views.tui.widgets.paint import plain
from supervisor.views.wording.translate import Tr

# Longer ones are cut by what shows them: a tab has about 30 characters, a notice about 200.
TITLE_CHARACTERS = 100
NOTICE_CHARACTERS = 200
# xterm's stack of titles (CSI 22 t, CSI 23 t); where there is none, the empty title before it is what remains.
KEEP_TITLE, RESTORE_TITLE = "\x1b[22;2t", "\x1b]2;\x1b\\\x1b[23;2t"
# The Linux console prints what it does not know of a sequence, older ones a whole title.
NO_SEQUENCES = frozenset(["linux", "dumb"])


class TerminalSigns:
    """Keeps the title at what the run does, and calls a person once for a failure and once for the end.

    Args:
        appearance: what was asked for.
        env: where ``TERM``, ``TMUX`` and ``STY`` say what stands between here and the terminal.
        write: to the terminal.
        tr: the person's language.
        calls: whether something new is worth a call; not of recorded time.
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
        # tmux and screen keep a notice to themselves, and mark the window of a bell.
        between = bool(env.get("TMUX") or env.get("STY"))
        self._notice = NoticeKind.OFF if between else notice
        self._bell = calls and (appearance.bell or (between and notice is not NoticeKind.OFF))
        self._ascii, self._write, self._tr = appearance.ascii, write, tr
        self._title = ""
        self._run = ""
        self._last: object = None

    def take(self, snapshot: Snapshot | None, now: float, *, recorded: bool = False) -> None:
        """A moment of the run that is open; None: the list of runs is. What was so when it was opened, or is `recorded`, calls nobody."""
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
        """Give the title back."""
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
        match self._notice:
            case NoticeKind.OSC9:
                self._write(f"\x1b]9;stoker: {text}\x1b\\")
            case NoticeKind.OSC777:
                self._write(f"\x1b]777;notify;stoker;{text.replace(';', ',')}\x1b\\")
            case NoticeKind.OFF:
                pass
            case _ as unreachable:
                assert_never(unreachable)
        if self._bell:
            self._write("\a")

    def _one_line(self, text: str, most: int) -> str:
        line = plain(redact_text(text)).strip()
        if self._ascii:
            from supervisor.views.tui.widgets import filters

            line = filters.ascii_of(line)
        return line if len(line) <= most else line[:most].rstrip()


def title_of(snapshot: Snapshot, now: float, tr: Tr) -> str:
    """State and name of a run in one line, without a number that moves: a title is not rewritten every second."""
    word = listed_span(snapshot, now).text
    if word.startswith("○ quiet"):
        word = "○ quiet"
    return f"{tr(word)} · {snapshot.state.run_id}"


def worth_a_call(state: st.RunState) -> object:
    """What a person is called for: an attempt that failed, or the end of a run that nobody asked to stop; None: nothing.

    A run that ends with its failed attempt is the same news.
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
