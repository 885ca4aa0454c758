"""Follows many growing logs on one thread.

watchdog wakes the thread (see `wake`). The thread also checks every quarter second, which covers
filesystems without events, lost events, files that do not exist yet, and files that were replaced.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from supervisor.sources.tail.follow import Batch, FollowedFile, NoteCode, TailNote
from supervisor.sources.tail.wake import Waker

__all__ = ["Backlog", "Batch", "Drain", "NoteCode", "TailNote", "Tailer"]

POLL_S = 0.25
READ_BYTES = 1 << 18

log = logging.getLogger("stoker.tail")


class Backlog(NamedTuple):
    """How far the followed files have been read, in bytes."""

    read_bytes: int
    size_bytes: int

    @property
    def unread_bytes(self) -> int:
        """The number of unread bytes."""
        return self.size_bytes - self.read_bytes


@dataclass(slots=True)
class Drain:
    """A request to read all logs to their ends. `then` is called on the tail thread afterward.

    `complete` is true if everything present at the start was read, and false if reading was aborted or failed.
    """

    then: Callable[[], None] = lambda: None
    done: threading.Event = field(default_factory=threading.Event)
    complete: bool = False


class Tailer:
    """Follows logs and delivers their new content in batches, on its own thread.

    Args:
        stop: stops the thread within `poll_s`. Everything read until then is delivered.
        on_batch: receives every `Batch`. Batches from one log arrive in order.
        on_note: receives events on the logs themselves (rotation, loss). By default, they are logged.
        poll_s: seconds between the thread's own checks.
        read_bytes: how much to read from one log before moving on to the next.
        watch: whether watchdog wakes the thread. Otherwise, the thread polls.
    """

    def __init__(
        self,
        stop: threading.Event,
        on_batch: Callable[[Batch], None],
        *,
        on_note: Callable[[TailNote], None] | None = None,
        poll_s: float = POLL_S,
        read_bytes: int = READ_BYTES,
        watch: bool = True,
    ) -> None:
        self._stop = stop
        self._on_batch = on_batch
        self._on_note = on_note or (lambda note: log.info("%s: %s", note.key, note.text))
        self._poll_s = poll_s
        self._read_bytes = read_bytes
        self._waker = Waker(watch=watch)
        self._lock = threading.Lock()
        self._pending: list[FollowedFile] = []
        self._dropped: list[str] = []
        self._drain_asked: Drain | None = None
        self._closing = self._closed = False
        self._files: dict[str, list[FollowedFile]] = {}
        self._unfinished: set[FollowedFile] = set()
        self._thread = threading.Thread(target=self._run, name="stoker-tail", daemon=True)

    def start(self) -> None:
        """Start following."""
        self._thread.start()

    def add(self, path: str | os.PathLike[str], key: str, *, offset: int = 0, number: int = 1) -> None:
        """Follow a file, which need not exist yet. Any thread may call this.

        Args:
            path: the file.
            key: identifies the log in batches and notes.
            offset: the first byte to read. If it is past the end of the file, the file counts as truncated.
            number: the 1-based number of the line at `offset`.
        """
        file = FollowedFile(os.path.abspath(path), key, offset=offset, number=number, on_note=self._on_note)
        with self._lock:
            self._pending.append(file)
        self._waker.poke()

    def remove(self, key: str) -> None:
        """Stop following a log. Any thread may call this."""
        with self._lock:
            self._dropped.append(key)
        self._waker.poke()

    def ask_drain(self, then: Callable[[], None] = lambda: None) -> Drain:
        """Request that every log be read to its current end, including partial last lines, as the writers are gone or quiet.

        Returns immediately; the result's `done` is set when the drain is finished. Call this before the stop event is set.
        """
        drain = Drain(then)
        with self._lock:
            self._drain_asked = drain
        self._waker.poke()
        return drain

    def backlog(self) -> Backlog:
        """Return how far the logs have been read. Any thread may call this, even after `close`."""
        with self._lock:
            files = self._all()
        found = [file.backlog() for file in files]
        return Backlog(sum(read for read, _ in found), sum(size for _, size in found))

    @property
    def alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def close(self, timeout_s: float = 5.0) -> bool:
        """Stop the thread and close the files. Return False if the thread did not exit in time."""
        if self._closed:
            return True
        self._closing = True
        self._waker.poke()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return False
        self._take_over()
        for file in self._all():
            file.close()
        self._waker.close()
        self._closed = True
        return True

    def _run(self) -> None:
        next_look = 0.0
        while not self._is_ending():
            timeout_s = 0.0 if self._unfinished else next_look - time.monotonic()
            changed = self._waker.wait(timeout_s)
            self._take_over()
            if changed is None or time.monotonic() >= next_look:
                next_look = time.monotonic() + self._poll_s
                self._look_at(self._files)
                self._watch_files()
            else:
                self._look_at(changed.union(file.path for file in self._unfinished))
            with self._lock:
                drain, self._drain_asked = self._drain_asked, None
            if drain is not None:
                self._drain(drain)

    def _take_over(self) -> None:
        """Apply requests made by other threads."""
        with self._lock:
            fresh, self._pending = self._pending, []
            dropped, self._dropped = self._dropped, []
            for file in fresh:
                self._files.setdefault(file.path, []).append(file)
                self._unfinished.add(file)
            for file in [file for file in self._all() if file.feed.key in dropped] if dropped else []:
                file.close()
                self._unfinished.discard(file)
                self._files[file.path].remove(file)
                if not self._files[file.path]:
                    del self._files[file.path]
                    self._waker.unwatch(file.path)

    def _look_at(self, paths: Iterable[str]) -> None:
        """Read the files that have grown."""
        grown = []
        for path in paths:
            for file in self._files.get(path, ()):
                if file not in self._unfinished and file.is_idle():
                    continue
                generation, offset = file.feed.generation, file.feed.offset
                self._read(file)
                if file.feed.generation != generation:
                    self._waker.unwatch(path)  # the path may now be another file
                elif file.feed.offset != offset:
                    grown.append(path)
                if self._stop.is_set():
                    return
        self._waker.keep_polling(grown)

    def _watch_files(self) -> None:
        """Watch existing files so that changes wake the thread. Writes made just before a watch starts produce no event."""
        begun = [
            path
            for path, files in self._files.items()
            if any(file.is_open for file in files)
            and not self._waker.is_watched(path)
            and self._waker.watch(path)
        ]
        self._look_at(begun)

    def _all(self) -> list[FollowedFile]:
        return [file for files in self._files.values() for file in files]

    def _read(self, file: FollowedFile, *, final: bool = False) -> bool:
        """Read the next part of a file. Return whether more is waiting."""
        batches, more = file.read(self._read_bytes, final=final)
        for batch in batches:
            self._hand_over(batch)
        if more:
            self._unfinished.add(file)
        else:
            self._unfinished.discard(file)
        return more

    def _drain(self, drain: Drain) -> None:
        self._take_over()
        ends = {file: file.end() for file in self._all()}
        left = list(ends)
        while left and not self._is_ending():
            left = [
                file
                for file in left
                if self._read(file, final=True) and not file.is_past(ends[file], sure=True)
            ]
        whole = [file for file, end in ends.items() if file.is_past(end)]
        for batch in [batch for file in whole for batch in file.finish()]:
            self._hand_over(batch)
        drain.complete = len(whole) == len(ends)
        try:
            drain.then()
        except Exception:
            # Even if the consumer fails, callers that wait for the drain must learn that it has finished.
            log.exception("after the last of the logs")
        drain.done.set()

    def _is_ending(self) -> bool:
        return self._stop.is_set() or self._closing

    def _hand_over(self, batch: Batch) -> None:
        try:
            self._on_batch(batch)
        except Exception as error:
            # Report the error and keep following the other logs.
            log.exception("a reader of %s failed", batch.key)
            self._on_note(TailNote(batch.key, NoteCode.FAILED, f"its reader failed: {type(error).__name__}"))
