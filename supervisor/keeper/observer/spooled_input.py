"""Plain copies of what cannot be read in place: a pipe, a packed log. Views read files of the run directory only."""

from __future__ import annotations

import logging
import os
import select
import shutil
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from supervisor.run.paths import private
from supervisor.run.regular import open_regular
from supervisor.text.decode import plain_chunks

TICK_S = 0.1
PIPE_BYTES = 1 << 18
# A copy leaves this much of the disk free; it says so in its last line where that ends it early.
FREE_BYTES = 1 << 30
LOOK_BYTES = 1 << 26

log = logging.getLogger("stoker.keeper")


class Spooling(ABC):
    """Writes what is read into a file of the run directory, in a thread. `torn`: it could not be written to its end."""

    def __init__(self, path: Path, stop: threading.Event, name: str) -> None:
        self.path = path
        self.ended = self.torn = False
        self._stop = stop
        self._thread = threading.Thread(target=self._copy, name=name)

    def start(self) -> None:
        """Begin to write."""
        self.path.touch(mode=0o600)
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the input or of the observer."""
        self._thread.join()

    @abstractmethod
    def _copy(self) -> None:
        """In the thread: read it to its end."""


class PipeCopy(Spooling):
    """Copies a pipe: views read files, and a verdict reads it again."""

    def __init__(self, fd: int, path: Path, stop: threading.Event) -> None:
        super().__init__(path, stop, "stoker-pipe")
        self._fd = fd

    def _copy(self) -> None:
        try:
            with open(self.path, "ab", buffering=0, opener=private) as file:
                while not self._stop.is_set():
                    if not select.select([self._fd], [], [], TICK_S)[0]:
                        continue
                    data = os.read(self._fd, PIPE_BYTES)
                    if not data:
                        break
                    file.write(data)
        except OSError as error:
            self.torn = True
            log.error("%s: %s: what the pipe says is no longer seen", self.path, error.strerror)
        finally:
            self.ended = True


class Unpacking(Spooling):
    """Unpacks a gzip or UTF-16 log; the log itself is not touched."""

    def __init__(
        self, source: str, path: Path, stop: threading.Event, *, free_bytes: int = FREE_BYTES
    ) -> None:
        super().__init__(path, stop, "stoker-unpack")
        self._source = source
        self._free_bytes = free_bytes

    def _copy(self) -> None:
        written = due = 0
        try:
            with open(self.path, "ab", buffering=0, opener=private) as file:
                for data in plain_chunks(self._chunks(), self._tear):
                    if written >= due:
                        due = written + LOOK_BYTES
                        if shutil.disk_usage(self.path.parent).free < self._free_bytes + LOOK_BYTES:
                            self.torn = True
                            file.write(
                                b"\n[stoker] not unpacked further: the disk of the state folder is nearly full\n"
                            )
                            return
                    file.write(data)
                    written += len(data)
        except (OSError, EOFError, zlib.error) as error:
            self.torn = True
            log.error("%s: %s: not unpacked further", self._source, error)
        finally:
            self.ended = True

    def _tear(self) -> None:
        self.torn = True

    def _chunks(self) -> Iterator[bytes]:
        with open_regular(self._source) as file:
            while data := file.read(PIPE_BYTES):
                if self._stop.is_set():
                    self.torn = True
                    return
                yield data
