"""When processes end, at once: each is awaited by a pidfd, and its exit code read before its parent takes it away."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable

from supervisor.sources.processes import ProcessId, exit_code_of, is_alive


class ExitWatch:
    """A thread that waits for processes of anybody. Kernels before 5.3 have no pidfd: there it reports nothing.

    Args:
        ended: called in the thread with a process's name and its exit code (negative for a signal; None where its parent was
            faster: torchrun looks at its workers every 0.1 s).
    """

    def __init__(self, ended: Callable[[int, int | None], None]) -> None:
        self._ended = ended
        self._poller = select.poll()
        self._poke_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._poke_fd, select.POLLIN)
        self._lock = threading.Lock()
        self._watched: dict[int, tuple[int, ProcessId]] = {}  # by descriptor
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="stoker-exits", daemon=True)

    def watch(self, name: int, process: ProcessId) -> None:
        """Await the end of a process, any thread; one that is gone already is let be."""
        with self._lock:
            if self._closing or any(known == process for _, known in self._watched.values()):
                return
            try:
                fd = os.pidfd_open(process.pid)
            except OSError:
                return
            if not is_alive(process):  # between its end and its parent's look, or another process by now
                os.close(fd)
                return
            self._watched[fd] = name, process
            self._poller.register(fd, select.POLLIN)
            if self._thread.ident is None:
                self._thread.start()
        os.eventfd_write(self._poke_fd, 1)

    def close(self) -> None:
        """End the thread and close what is open."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        os.eventfd_write(self._poke_fd, 1)
        if self._thread.ident is not None:
            self._thread.join()
        for fd in (*self._watched, self._poke_fd):
            os.close(fd)

    def _run(self) -> None:
        while not self._closing:
            for fd, _ in self._poller.poll():
                if fd == self._poke_fd:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(fd)
                    continue
                name, process = self._watched[fd]
                code = exit_code_of(process)
                with self._lock:
                    self._poller.unregister(fd)
                    del self._watched[fd]
                os.close(fd)
                self._ended(name, code)
