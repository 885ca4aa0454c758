"""The spelling of what a source gives: files and settings of other versions hold these words."""

from __future__ import annotations

from tests.spelling import words_of_kinds

WORDS = {
    "GpuNoteCode": "gpu_absent gpu_lost gpu_back gpu_xid gpu_ecc nvml_failed",
    "NoteCode": "truncated rotated gone unreadable failed",
    "StackSource": "py-spy faulthandler proc none",
    "TelemetryKind": "phase step checkpoint_committed warning exit",
}  # fmt: skip


def test_the_words_of_every_kind_keep_their_spelling() -> None:
    assert words_of_kinds("supervisor.sources") == WORDS
