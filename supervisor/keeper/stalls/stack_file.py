"""The text of a round of stacks, as it lies in artifacts/: each rank's threads, and under the user's own frames what stands there.

The lines of source are read when the stacks are taken: what a verdict quotes later is then the code that ran.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.diagnosis.hang.stack_text import Frame, main_thread, parse_stack
from supervisor.run.paths import private
from supervisor.run.regular import open_regular
from supervisor.sources.stacks.python_stacks import Stack
from supervisor.text.redact import redact_text

# Two rounds, one for a person and one for the watch, may end within a second, and so may some more.
MOST_A_SECOND = 9
SOURCE_LIMIT_BYTES = 4 << 20
SHOWN_CHARS = 200
MOST_FILES = 64

log = logging.getLogger("stoker.keeper")


@dataclass(frozen=True, slots=True)
class StackFile:
    """Where a round lies.

    `name`: below the run directory; None where it could not be written. `lines`: by rank, 1-based, where the user's innermost
    frame stands, or else the innermost of all.
    """

    name: str | None
    lines: Mapping[int, int]


def write_stacks(
    artifacts: Path, attempt: int, wall: float, head: str, stacks: Mapping[int, Stack], extra: list[str]
) -> StackFile:
    """Write a round: `head` is its first line, `stacks` are by rank, `extra` follows them."""
    source = _SourceLines()
    parts = [head, ""]
    lines: dict[int, int] = {}
    for rank, stack in stacks.items():
        note = f" ({stack.note})" if stack.note else ""
        parts.append(f"== rank {rank}, pid {stack.process.pid}, by {stack.source}{note}")
        shown, own = _with_source(stack, source)
        lines[rank] = len(parts) + own
        parts += [*shown, ""]
    parts += extra
    stem = f"stacks-{attempt}-{int(wall)}"
    names = (f"{stem}.txt", *(f"{stem}-{number}.txt" for number in range(2, MOST_A_SECOND + 1)))
    name = next((name for name in names if not (artifacts / name).exists()), names[-1])
    try:
        with open(artifacts / name, "w", encoding="utf-8", opener=private) as file:
            file.write("\n".join(map(redact_text, parts)))
    except OSError as error:
        log.error("artifacts/%s: %s", name, error.strerror)
        return StackFile(None, lines)
    return StackFile(f"artifacts/{name}", lines)


def _with_source(stack: Stack, source: _SourceLines) -> tuple[list[str], int]:
    """The stack's lines with source below the main thread's own frames, and which of them is the one to look at, from 1."""
    thread = main_thread(parse_stack(stack.lines))
    if thread is None:
        return list(stack.lines), 1
    frames = dict(zip(thread.at, thread.frames, strict=True))
    folder = f"/proc/{stack.process.pid}/cwd"
    shown: list[str] = []
    own: int | None = None
    inner: int | None = None
    for index, line in enumerate(stack.lines):
        shown.append(line)
        frame = frames.get(index)
        if frame is None:
            continue
        inner = inner or len(shown)
        if frame.is_library:
            continue
        own = own or len(shown)
        quoted = source.of(frame, folder)
        if quoted:
            indent = len(line) - len(line.lstrip())
            shown.append(" " * (indent + 4) + quoted)
    return shown, own or inner or 1


class _SourceLines:
    """Lines of source files, each file read once."""

    def __init__(self) -> None:
        self._files: dict[str, list[bytes]] = {}

    def of(self, frame: Frame, folder: str) -> str:
        """What stands where a frame points; empty where that cannot be read. Relative paths begin in `folder`."""
        if frame.line is None or frame.line < 1 or not frame.file.endswith(".py"):
            return ""
        path = os.path.join(folder, frame.file)
        rows = self._files.get(path)
        if rows is None:
            if len(self._files) >= MOST_FILES:
                return ""
            rows = self._files[path] = _rows(path)
        if frame.line > len(rows):
            return ""
        text = rows[frame.line - 1].decode("utf-8", "replace").strip()
        return "".join(char for char in redact_text(text)[:SHOWN_CHARS] if char.isprintable())


def _rows(path: str) -> list[bytes]:
    try:
        if not os.path.isfile(path):
            return []
        with open_regular(path) as file:
            return file.read(SOURCE_LIMIT_BYTES).split(b"\n")
    except OSError:
        return []
