"""The terminal's other screen, while the app is still being loaded.

The app and its library take ten times as long to load as Python itself. So what is known is put where the app will put
it, on the terminal's other screen; its first frame paints over it.
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
from supervisor.views.splash.picture import Look, Said, Scene, paint
from supervisor.views.tui.dashboard.layout import Needs

TAIL_BYTES = 1 << 16
HEAD_BYTES = 512
SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# The other screen, an invisible cursor, nothing beyond the edge; and all of it back.
_ENTER = "\x1b[?1049h\x1b[?25l"
_READY = "\x1b[0m\x1b[?7h\x1b[H"
_CLEAR = "\x1b[?7l\x1b[2J"
_LEAVE = b"\x1b[0m\x1b[?7h\x1b[?1049l\x1b[?25h"


class Glimpse:
    """A context in which the other screen may show a picture; whatever ends it, the terminal is given back.

    Args:
        out: the terminal's descriptor.
    """

    def __init__(self, out: int = 1) -> None:
        self._out = out
        self.shown = False

    def show(self, scene: Scene, look: Look, env: Mapping[str, str]) -> None:
        """Show what is known, in place of what was shown before. Without a terminal nothing is.

        Args:
            scene: what to show.
            look: how.
            env: TERM tells whether this is a terminal with another screen.
        """
        if env.get("TERM", "dumb") == "dumb":
            return
        try:
            width, height = os.get_terminal_size(self._out)
            painted = paint(scene, look, width, height)
            if not painted:
                return
            for number in SIGNALS:
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, self._end)
            enter = "\x1b[?7l" if self.shown else _ENTER + look.ground() + _CLEAR
            self.shown = True
            self._write(look.encode(enter + painted + _READY))
        except (OSError, ValueError):  # no terminal, or not in the main thread: the app comes without
            return

    def show_log(self, path: str, look: Look, env: Mapping[str, str], *, name: str | None = None) -> None:
        """Show a log's last lines. A log that cannot be read as it lies (packed, binary, absent) is not shown.

        Args:
            path: the log.
            look: how.
            env: see `show`.
            name: what stands above it; None: the log's own name.
        """
        with contextlib.suppress(OSError, ValueError):
            lines = last_lines(path, os.get_terminal_size(self._out).lines)
            if lines:
                text = Said(f" {clean(os.fsencode(name or os.path.basename(path)))}")
                scene = Scene(header=((), (text,)), lines=lines, needs=Needs(devices=0, ranks=0))
                self.show(scene, look, env)

    def hand_over(self) -> bool:
        """The app takes the terminal, and gives it back; whether its other screen is shown already."""
        shown, self.shown = self.shown, False
        return shown

    def leave(self) -> None:
        """Back to the usual screen: something is to be said there."""
        if self.shown:
            self.shown = False
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
