"""Reading keys from the terminal: Esc with a key right behind it, and no key more than the app wants."""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from codecs import getincrementaldecoder
from collections.abc import Iterable

from textual import events
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

ESC = "\x1b"
# What stands behind Esc in a key's own sequence: of arrows and function keys, Alt-Backspace, and on some terminals Shift-Tab.
PART_OF_A_KEY = "[O\x7f\t"
# Keys that may leave the app: what was typed behind one is not read before it is known whether it does.
MAY_LEAVE = frozenset({"q", "d", "ctrl+c", "ctrl+q"})
LEAVING_S = 0.5
LOOK_S = 0.1


class EscapeThen(events.Key):
    """Esc and a character in one piece. A terminal writes the same for Alt and that key and for the two keys typed quickly.

    Args:
        character: what stood behind Esc.
        word: a key that a text field has for it: Alt-b goes a word back.
    """

    def __init__(self, character: str, word: str = "") -> None:
        super().__init__(f"escape+{character}", character)
        self.word = word

    def two_keys(self) -> list[events.Key]:
        """The two keys that it stands for where Alt means nothing."""
        behind = [key for key in XTermParser().feed(self.character or "") if isinstance(key, events.Key)]
        return [events.Key("escape", ESC), *behind]


class KeyParser(XTermParser):
    """Textual's own, which takes Esc and a character for Alt and that key, for which nothing is bound: both were lost."""

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[events.Key]:
        keys = super()._sequence_to_key_events(sequence, alt)
        if len(sequence) != 2 or sequence[0] != ESC or sequence[1] in PART_OF_A_KEY:
            return keys
        words = [key.key for key in keys if key.character is None]
        return [EscapeThen(sequence[1], words[0] if words else "")]


class Reached(Message):
    """Follows a key through the app: the keys before it are done once it is reached."""

    def __init__(self) -> None:
        super().__init__()
        self.done = threading.Event()


class KeyReader(LinuxDriver):
    """Textual's own driver, which reads all there is and throws away what was typed behind the key that leaves: that is the shell's."""

    def run_input_thread(self) -> None:
        """Hand on keys until the app is left, a byte at a time: what was read cannot be given back."""
        parser = KeyParser(self._debug)
        decode = getincrementaldecoder("utf-8")(errors="replace").decode
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set() and not self._is_left():
                if selector.select(LOOK_S):
                    read = os.read(self.fileno, 1)
                    if not read:
                        break
                    self._hand_on(parser.feed(text) if (text := decode(read)) else ())
                else:  # an arrow's bytes come one by one: Esc is a key of its own only once nothing follows
                    self._hand_on(parser.tick())
        if self._is_left():  # no report of these must reach the shell
            self._disable_mouse_support()
            self.write("\x1b[?1004l")
            self.flush()

    def disable_input(self) -> None:
        """End the thread; what is not read stays."""
        if not self.exit_event.is_set():
            signal.signal(signal.SIGWINCH, signal.SIG_DFL)
            self._disable_mouse_support()
            self.exit_event.set()
            if self._key_thread is not None:
                self._key_thread.join()
            self.exit_event.clear()

    def _is_left(self) -> bool:
        return bool(getattr(self._app, "is_left", False))

    def _hand_on(self, found: Iterable[Message]) -> None:
        for event in found:
            self.process_message(event)
            if isinstance(event, events.Key) and MAY_LEAVE & {event.key, event.character}:
                self._wait_for_app()

    def _wait_for_app(self) -> None:
        """Until the keys so far are done, or the app is left."""
        reached = Reached()
        self.process_message(reached)
        end = time.monotonic() + LEAVING_S
        while not reached.done.wait(0.005) and not self._is_left() and time.monotonic() < end:
            if self.exit_event.is_set():
                return
