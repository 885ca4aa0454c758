"""What the tests of following share: what a tailer handed over."""

from __future__ import annotations

from supervisor.sources.tail.tailer import Batch, NoteCode, Tailer, TailNote


class Received:
    """What a tailer handed over."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.notes: list[TailNote] = []

    def lines(self, key: str = "a") -> list[str]:
        return [line.text for batch in self.batches if batch.key == key for line in batch.lines]

    def data(self, key: str = "a") -> bytes:
        return b"".join(batch.data for batch in self.batches if batch.key == key)

    def drawn(self, key: str = "a") -> list[str]:
        return [state.text for batch in self.batches if batch.key == key for state in batch.drawn]

    def codes(self) -> list[NoteCode]:
        return [note.code for note in self.notes]

    def has_lines(self, count: int) -> bool:
        return len(self.lines()) >= count


def drained(tailer: Tailer, timeout_s: float) -> bool:
    """Whether every log was read to its end within this time."""
    drain = tailer.ask_drain()
    if not tailer.alive:  # it was never started: its work is done here
        tailer._take_over()
        tailer._drain(drain)
    drain.done.wait(timeout_s)
    return drain.complete
