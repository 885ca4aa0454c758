"""Textual's driver on a terminal that shows its other screen already."""

from __future__ import annotations

from textual.drivers.linux_driver import LinuxDriver

ENTER = "\x1b[?1049h"


class BegunDriver(LinuxDriver):
    """Does not enter the other screen a second time: terminals clear it then, and a picture stands there."""

    _is_begun = True

    def write(self, data: str) -> None:
        """Textual's own, without the first entrance; after a suspension it is entered as ever."""
        if self._is_begun and data == ENTER:
            self._is_begun = False
            return
        super().write(data)
