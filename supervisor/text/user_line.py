"""The user's own line of a traceback or of a stack: where one would put the cursor first (pure)."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import NamedTuple

from supervisor.text.numbers import whole
from supervisor.text.patterns import Lazy
from supervisor.text.prefixes import split_prefix

# The frames of torch, a library of layers and the loop that calls them, with two to three lines each.
LOOKED_AT = 160
_HEADER = "Traceback (most recent call last)"
_FRAME = Lazy(r'\s{2,}File "([^"]+)", line (\d{1,9})(?:, in (.+))?$')
_MARKS = Lazy(r"[\s~^]*$")
_INSTALLED = Lazy(r"(?:^|/)(?:site|dist)-packages/")
_STANDARD = Lazy(r"/lib(?:64)?/python\d[\d.]*t?/(?!(?:site|dist)-packages/)")
# A frame as py-spy and as faulthandler print it.
_STACK_FRAME = Lazy(r'(\s{2,})(?:\S.* \((\S.*\.py):(\d{1,9})\)|File "([^"]+\.py)", line (\d{1,9}) in \S.*)$')


class CodeLine(NamedTuple):
    """A line of a source file, as a traceback quotes it; `text` is empty where it quotes none."""

    path: str
    line: int
    text: str


class _Frame(NamedTuple):
    code: CodeLine
    where: str  # the function


def own_line(lines: Sequence[str], at: int) -> CodeLine | None:
    """The innermost frame of the user's files in the traceback that ends in ``lines[at]``, or the frame of a stack that it is.

    A file is the user's if it is neither Python's own nor an installed package's. Where all are installed (a training program
    that came as a package) those beside the program that was started count.

    Returns:
        None where no traceback ends there, or none of its frames is known to be the user's.
    """
    if (frame := _stack_frame(lines, at)) is not None:
        return frame
    frames = _frames_above(lines, at)
    own = [frame for frame in frames if _is_source(frame.code.path) and not _is_installed(frame.code.path)]
    if own:
        return own[0].code
    started = next(
        (f for f in reversed(frames) if _is_source(f.code.path) and not _is_standard(f.code.path)), None
    )
    if started is None or started.where != "<module>":
        return None
    home = posixpath.dirname(started.code.path) + "/"
    return next(frame.code for frame in frames if frame.code.path.startswith(home))


def _stack_frame(lines: Sequence[str], at: int) -> CodeLine | None:
    """A frame of the user's in a stack, with the source that stands below it where it was put there."""
    match = _STACK_FRAME.match(lines[at])
    if match is None:
        return None
    path, number = (match[2] or match[4]).replace("\\", "/"), whole(match[3] or match[5])
    if _is_installed(path):
        return None
    below = lines[at + 1] if at + 1 < len(lines) else ""
    deeper = len(below) - len(below.lstrip()) > len(match[1]) and _STACK_FRAME.match(below) is None
    return CodeLine(path, number, below.strip() if deeper else "")


def _frames_above(lines: Sequence[str], at: int) -> list[_Frame]:
    """The frames of the traceback, innermost first; lines of other ranks between them are passed over."""
    speaker, _ = split_prefix(lines[at])
    frames: list[_Frame] = []
    quoted = ""
    for raw in reversed(lines[max(0, at - LOOKED_AT) : at]):
        origin, text = split_prefix(raw)
        if origin != speaker:
            continue
        if match := _FRAME.match(text):
            path, number, where = match.groups()
            frames.append(_Frame(CodeLine(path.replace("\\", "/"), int(number), quoted.strip()), where or ""))
            quoted = ""
        elif text[:1].isspace():
            quoted = quoted if _MARKS.match(text) else text
        elif _HEADER in text or frames or text.strip():
            break  # the traceback's first line, or something that is no part of one
    return frames


def _is_source(path: str) -> bool:
    """A console script, a notebook's cell and Python's frozen modules are not source files of the user."""
    return path.endswith(".py")


def _is_standard(path: str) -> bool:
    return _STANDARD.search(path) is not None


def _is_installed(path: str) -> bool:
    return _INSTALLED.search(path) is not None or _is_standard(path)
