"""Something to wait on that ends the wait when a followed file changes.

inotify(7) is read in the waiting thread itself: no thread more, and some 0.05 ms from write to wake-up where
watchdog's Observer, with its three threads in between, takes 0.4 ms. Where there is no inotify, the Observer wakes. Neither is trusted alone: network filesystems send no events for other
hosts' writes, so every wait has an end and the caller then looks for itself.
"""

from __future__ import annotations

import logging
import math
import os
import select
import struct
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

_EVENT = struct.Struct("iIII")
_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
# Some hundred events; what is more stays queued and ends the next wait at once.
_EVENTS_BYTES = 1 << 13
_OVERFLOW, _IGNORED = 0x4000, 0x8000
# So many different events are known by their bytes: some files more than a run has logs.
_KNOWN = 4096
_NO_PIPES: frozenset[int] = frozenset()
_MASK = _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
# An Observer starts a thread for every folder; beyond this many the poll has to do.
_OBSERVER_FOLDERS = 32

log = logging.getLogger("stoker.tail")


class FolderEvents(Protocol):
    """A source of change events of folders."""

    def fileno(self) -> int | None:
        """What to poll, or None when the source calls back by itself."""

    def watch(self, folder: str) -> bool:
        """Begin to watch a folder; False when that cannot be had now."""

    def take(self) -> AbstractSet[str] | None:
        """Paths that changed since the last call; None: events were lost, anything may have."""

    def close(self) -> None:
        """Let go of everything."""


class Waker:
    """Waits for folder events, readable pipes, or a poke from another thread. One waiting thread."""

    def __init__(self, events: Callable[[Callable[[], None]], FolderEvents | None]) -> None:
        self._poke_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller = select.poll()
        self._poller.register(self._poke_fd, select.POLLIN)
        self._pipes: set[int] = set()
        self._events = events(self.poke)
        self._events_fd = self._events.fileno() if self._events is not None else None
        if self._events_fd is not None:
            self._poller.register(self._events_fd, select.POLLIN)

    def watch(self, folder: str) -> bool:
        """Wake on changes in this folder; False when the poll alone must do."""
        return self._events is not None and self._events.watch(folder)

    def add_pipe(self, fd: int) -> None:
        """Wake when `fd` is readable or closed."""
        self._pipes.add(fd)
        self._poller.register(fd, select.POLLIN)

    def drop_pipe(self, fd: int) -> None:
        """No longer wake for `fd`."""
        if fd in self._pipes:
            self._pipes.discard(fd)
            self._poller.unregister(fd)

    def wait(self, timeout_s: float) -> tuple[AbstractSet[str] | None, AbstractSet[int]]:
        """Wait; returns the changed paths (None: look at all) and the pipes that can be read."""
        found = self._poller.poll(max(0, math.ceil(timeout_s * 1000)))
        if self._events is not None and len(found) == 1 and found[0][0] == self._events_fd:
            return self._events.take(), _NO_PIPES
        ready = {fd for fd, _ in found}
        if self._poke_fd in ready:
            os.eventfd_read(self._poke_fd)
        paths: AbstractSet[str] | None = set()
        if self._events is not None and (self._events_fd is None or self._events_fd in ready):
            paths = self._events.take()
        return paths, ready & self._pipes

    def poke(self) -> None:
        """End the wait now (from any thread)."""
        os.eventfd_write(self._poke_fd, 1)

    def close(self) -> None:
        """Let go of everything; the pipes stay open."""
        if self._events is not None:
            self._events.close()
        os.close(self._poke_fd)


def folder_events(poke: Callable[[], None]) -> FolderEvents | None:
    """The best source of events to be had here; None where only polling is left."""
    try:
        return InotifyEvents()
    except (ImportError, AttributeError, OSError):
        pass
    try:
        return ObserverEvents(poke)
    except (ImportError, OSError) as error:
        log.info("no file events (%s): log files are polled", error)
        return None


class InotifyEvents:
    """inotify of the C library, read by whoever waits; watchdog's binding is the same with 1 MiB around it.

    Raises:
        AttributeError: no inotify here.
        OSError: the user's inotify instances are used up.
    """

    def __init__(self) -> None:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        self._add = libc.inotify_add_watch
        self._add.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
        self._fd: int = libc.inotify_init1(os.O_CLOEXEC)
        if self._fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._folders: dict[int, bytes] = {}
        # A file that grows sends the very same bytes each time.
        self._known: dict[bytes, frozenset[str]] = {}

    def fileno(self) -> int:
        """The inotify descriptor."""
        return self._fd

    def watch(self, folder: str) -> bool:
        """Add the folder; again after it was removed and made anew."""
        name = os.fsencode(folder)
        watch = self._add(self._fd, name, _MASK)
        if watch < 0:
            return False
        place = name.rstrip(b"/") + b"/"
        if self._folders.get(watch) != place:
            self._folders[watch] = place
            self._known.clear()
        return True

    def take(self) -> AbstractSet[str] | None:
        """Read what is queued. Called only when the descriptor is readable."""
        raw = os.read(self._fd, _EVENTS_BYTES)
        known = self._known.get(raw)
        if known is not None:
            return known
        paths: set[str] = set()
        place = 0
        lost = False
        while place < len(raw):
            watch, mask, _cookie, size = _EVENT.unpack_from(raw, place)
            place += _EVENT.size
            name = raw[place : place + size].rstrip(b"\0")
            place += size
            if mask & _OVERFLOW:
                lost = True
            elif mask & _IGNORED:
                self._folders.pop(watch, None)
                self._known.clear()
                lost = True
            elif watch in self._folders:
                paths.add(os.fsdecode(self._folders[watch] + name))
        if lost:
            return None
        if len(paths) == 1 and len(self._known) < _KNOWN:
            self._known[raw] = frozenset(paths)
        return paths

    def close(self) -> None:
        """Close the descriptor, and with it every watch."""
        os.close(self._fd)


class ObserverEvents:
    """watchdog's Observer: threads of its own, which poke the waiting one."""

    def __init__(self, poke: Callable[[], None]) -> None:
        from watchdog.events import FileSystemEvent, FileSystemEventHandler
        from watchdog.observers import Observer

        changed: set[str] = set()

        class Handler(FileSystemEventHandler):
            def dispatch(self, event: FileSystemEvent) -> None:
                if event.event_type in {"opened", "closed_no_write"}:
                    return
                for path in (event.src_path, event.dest_path):
                    if path:
                        changed.add(os.fsdecode(path))
                poke()

        self._changed = changed
        self._handler = Handler()
        self._folders: set[str] = set()
        self._observer: Any = Observer()
        self._observer.name = "stoker-watchdog"
        self._observer.start()

    def fileno(self) -> None:
        """Nothing to poll: the handler pokes."""
        return

    def watch(self, folder: str) -> bool:
        """Schedule the folder."""
        if folder in self._folders:
            return True
        if len(self._folders) >= _OBSERVER_FOLDERS:
            return False
        try:
            self._observer.schedule(self._handler, folder)
        except OSError:
            return False
        self._folders.add(folder)
        return True

    def take(self) -> set[str] | None:
        """Paths that the handler has seen."""
        paths: set[str] = set()
        while self._changed:
            paths.add(self._changed.pop())
        return paths

    def close(self) -> None:
        """Stop the Observer's threads."""
        self._observer.stop()
        self._observer.join(5)
