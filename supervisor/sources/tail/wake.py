"""Interrupts a wait for logs when a file grows or another thread requests it.

watchdog reads inotify on its own thread and only wakes us; we then check for changes. This module uses the class
underneath watchdog's Observer, because an Observer needs one thread per folder and 30 µs per event, and does not
report queue overflows.

Handling an event per write is too expensive: 60,000 writes per second overflow the queue. A path that has changed
is therefore polled, not watched, until it goes quiet. Events are never relied on, because network filesystems do
not report writes by other hosts. Every wait has a timeout, after which the caller checks everything.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watchdog.observers.inotify_c import InotifyEvent, InotifyFD, WatchDescriptor

BUSY_POLL_S = 0.05
# Watch a path again after it has not grown for this long.
QUIET_S = 0.3

log = logging.getLogger("stoker.tail")


class Waker:
    """Waits for changes to files and folders, or for a poke from another thread. Only one thread may wait.

    Args:
        watch: if False, never watch anything. Used to test polling on its own.
    """

    def __init__(self, *, watch: bool = True) -> None:
        self._poke_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller = select.poll()
        self._poller.register(self._poke_fd, select.POLLIN)
        self._can_watch = watch
        self._inotify: InotifyFD | None = None
        self._watches: dict[str, _Watch] = {}
        self._busy_until: dict[str, float] = {}
        # Filled by watchdog's thread and emptied by ours.
        self._changed: set[str] = set()
        self._overflowed = False

    def watch(self, path: str) -> bool:
        """Wake on changes to this file or in this folder. Return False if it cannot be watched right now."""
        if self.is_watched(path):
            return True
        if not self._can_watch:
            return False
        try:
            self._watches[path] = self._begin(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (ImportError, OSError, RuntimeError) as error:
            # The user's inotify watches or instances, or threads, are used up. Retrying would not help.
            self._can_watch = False
            log.info("no file events (%s): log files are polled", error)
            return False
        return True

    def is_watched(self, path: str) -> bool:
        """Check whether changes to the path wake us, possibly by polling while it is busy."""
        return path in self._watches or path in self._busy_until

    def unwatch(self, path: str) -> None:
        """Stop waking on changes to `path`, which is no longer followed or was replaced by another file."""
        self._busy_until.pop(path, None)
        self._end_watch(path)

    def keep_polling(self, paths: Iterable[str]) -> None:
        """Keep polling the busy files among `paths`, because they have grown again."""
        until = time.monotonic() + QUIET_S
        for path in paths:
            if path in self._busy_until:
                self._busy_until[path] = until

    def wait(self, timeout_s: float) -> set[str] | None:
        """Wait, then return the paths that changed or are busy. None means that events were lost, so check everything."""
        if self._busy_until:
            timeout_s = min(timeout_s, BUSY_POLL_S)
        if self._poller.poll(max(0, math.ceil(timeout_s * 1000))):
            os.eventfd_read(self._poke_fd)
        changed = self._take_changed()
        if self._overflowed:
            self._overflowed = False
            return None
        return changed

    def poke(self) -> None:
        """Interrupt the wait now. Any thread may call this."""
        os.eventfd_write(self._poke_fd, 1)

    def close(self) -> None:
        """Stop watchdog's thread."""
        if self._inotify is not None:
            self._inotify.stop()
            self._inotify.join()
        os.close(self._poke_fd)

    def _take_changed(self) -> set[str]:
        now = time.monotonic()
        changed: set[str] = set()
        while self._changed:
            changed.add(self._changed.pop())
        changed = {path for path in changed if self.is_watched(path)}  # drop late events of an ended watch
        for path in changed:
            is_lost = path in self._watches and self._watches[path].is_lost
            self._end_watch(path)
            if not is_lost:
                self._busy_until[path] = now + QUIET_S
        changed.update(self._busy_until)
        for path in [path for path, until in self._busy_until.items() if until < now]:
            del self._busy_until[path]
            # The next check finds anything written before the watch began.
            self.watch(path)
        return changed

    def _begin(self, path: str) -> _Watch:
        from watchdog.observers.inotify_c import CallbackId, InotifyConstants, InotifyFD, Mask

        if self._inotify is None:
            self._inotify = InotifyFD()
            self._inotify.name = "stoker-watchdog"
            self._inotify.start()
        watch = _Watch(self, path)
        # Growth and new entries in a folder wake us. A removal may wait for the next check.
        kinds = InotifyConstants.IN_MODIFY | InotifyConstants.IN_CREATE | InotifyConstants.IN_MOVED_TO
        watch.descriptor = self._inotify.add_callback(
            os.fsencode(path), Mask(kinds), watch, CallbackId(id(watch))
        )
        return watch

    def _end_watch(self, path: str) -> None:
        watch = self._watches.pop(path, None)
        if watch is None or watch.is_lost or self._inotify is None:
            return
        from watchdog.observers.inotify_c import CallbackId

        with contextlib.suppress(OSError):
            self._inotify.remove_callbacks([(watch.descriptor, CallbackId(id(watch)))])

    def note_change(self, path: str) -> None:
        """Request a check of this path. Called from watchdog's thread. Does not poke again while a poke is pending."""
        if path not in self._changed:
            self._changed.add(path)
            self.poke()

    def note_overflow(self) -> None:
        """Record that events were lost. Called from watchdog's thread."""
        self._overflowed = True
        self.poke()


class _Watch:
    """watchdog callbacks for a single path, called on watchdog's thread."""

    def __init__(self, waker: Waker, path: str) -> None:
        self._waker = waker
        self._path = path
        self.descriptor: WatchDescriptor
        self.is_lost = False

    def on_event(self, _event: InotifyEvent) -> None:
        """Handle a change to the file."""
        self._waker.note_change(self._path)

    def on_watch_deleted(self, _wd: WatchDescriptor) -> None:
        """Handle the file's removal."""
        self.is_lost = True
        self._waker.note_change(self._path)

    def on_queue_overflow(self) -> None:
        """Handle lost events."""
        self._waker.note_overflow()
