"""The end of a log on the terminal, while the app is still being loaded.

The app and its library take ten times as long to load as Python itself. So the last lines of a log that was asked for
are put where the app will put them, on the terminal's other screen; its first frame paints over them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from collections.abc import Mapping
from types import FrameType
from typing import Self

from supervisor.text.decode import clean, is_packed
from supervisor.views.tui.layout import Needs, plan

TAIL_BYTES = 1 << 16
HEAD_BYTES = 512
# Rows of the header above the panes, and of the lines below them; the frame of a pane and who said a line.
HEADER_ROWS = 2
LEGS_ROWS = 2
FRAME = 1
WHO_CELLS = 10
SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# The other screen, an invisible cursor, nothing beyond the edge; and all of it back.
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J\x1b[?7l"
_READY = "\x1b[?7h\x1b[H"
_LEAVE = b"\x1b[?7h\x1b[?1049l\x1b[?25h"


class Glimpse:
    """A context in which the other screen may show a log; whatever ends it, the terminal is given back.

    Args:
        out: the terminal's descriptor.
    """

    def __init__(self, out: int = 1) -> None:
        self._out = out
        self._shown = False

    def show(
        self, path: str, env: Mapping[str, str], *, name: str | None = None, plain_ascii: bool = False
    ) -> None:
        """Show a log's last lines. A log that cannot be read as it lies (packed, binary, absent) is not shown.

        Args:
            path: the log.
            env: TERM tells whether this is a terminal with another screen.
            name: what stands above it; None: the log's own name.
            plain_ascii: no glyph beyond ASCII.
        """
        if env.get("TERM", "dumb") == "dumb":
            return
        try:
            width, height = os.get_terminal_size(self._out)
            painted = paint(name or os.path.basename(path), last_lines(path, height), width, height)
            for number in SIGNALS:
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, self._end)
            self._shown = bool(painted)
            if painted:
                text = _ENTER + painted + _READY
                self._write(text.encode("ascii" if plain_ascii else "utf-8", "replace"))
        except (OSError, ValueError):  # no terminal, or not in the main thread: the app comes without
            return

    def hand_over(self) -> None:
        """The app takes the terminal, and gives it back."""
        self._shown = False

    def leave(self) -> None:
        """Back to the usual screen: something is to be said there."""
        if self._shown:
            self._shown = False
            with contextlib.suppress(OSError):
                self._write(_LEAVE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def _end(self, number: int, _frame: FrameType | None) -> None:
        """Die of a signal as without all this, on the usual screen."""
        self.leave()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._out, data) :]


def last_lines(path: str, most: int) -> list[str]:
    """The last lines of a text file, safe to show; none of what must be unpacked or is no text.

    Raises:
        OSError: it cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return []
        head = os.pread(fd, HEAD_BYTES, 0)
        if b"\0" in head or is_packed(head):
            return []
        start = max(info.st_size - TAIL_BYTES, 0)
        data = os.pread(fd, TAIL_BYTES, start)
    finally:
        os.close(fd)
    raw = data.split(b"\n")
    if not raw[-1]:
        raw.pop()
    return [clean(line) for line in (raw[1:] if start and len(raw) > 1 else raw)[-most:]]


def paint(name: str, lines: list[str], width: int, height: int) -> str:
    """The lines where the app's log pane will have them, and the log's name; nothing where there is no room."""
    layout = plan(width, height, Needs(devices=0, ranks=0))
    middle = layout.middle_height or 0
    top = HEADER_ROWS + middle + len(layout.shown & {"attempts", "tiles"}) + FRAME
    rows = height - top - FRAME - LEGS_ROWS
    room = width - layout.timeline_width - 2 * FRAME - WHO_CELLS
    if rows < 1 or room < 1 or not lines:
        return ""
    parts = [f"\x1b[{HEADER_ROWS};1H {clean(os.fsencode(name))}"]
    left = FRAME + WHO_CELLS + 1
    for row, line in enumerate(lines[-rows:], start=top + 1):
        parts.append(f"\x1b[{row};{left}H{line.expandtabs(4)[:room]}")
    return "".join(parts)
