"""Find Python tracebacks in lines of text: where they start and end, their frames, and the user's own line (pure).

The layout determines where a traceback ends (`end_below`), because no list of names covers every exception.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from supervisor.text.decode import clean
from supervisor.text.patterns import Lazy, whole
from supervisor.text.prefixes import NOWHERE, Origin, split_prefix

HEAD = "Traceback (most recent call last)"
SHOWN_BYTES = 2000
# Python's frames of an exception, loguru's, `rich`'s. A faulthandler frame has no comma, a SyntaxError's no function.
FRAME = Lazy(
    r'(?:^\s*|\s{2,}|> )File "([^"]{1,500})", line (\d{1,9})(?:, in (\S+)|$)|^[│|]? ?(/\S+\.py):(\d{1,9}) in (\S+)'
)
# An exception whose name has an error's usual ending, with a launcher's prefix before it.
RAISED = Lazy(
    r"^(?:\S{0,40} )?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Failure|Timeout|Abort|Fault|NotFound))(?:: (.*))?$"
)
_NAMED = Lazy(r"((?:[^\W\d]\w*\.(?:<locals>\.)?)*[^\W\d]\w*)(: .*|:)?$")
_LEVEL = Lazy(r"(?:debug|info|notice|note|warn(?:ing)?|error|critical|fatal)$", re.IGNORECASE)
_COUNTER = Lazy(
    r"(?:\w*_)?(?:steps?|iter(?:ation)?s?|it|batch|update|minibatch|epoch|loss|lr|ppl)$", re.IGNORECASE
)
_BOX = Lazy(r"[╭+](?:─|-){2,}")
# IPython puts the exception's name in the traceback's first line.
NAMED_HEAD = Lazy(r"([^\W\d]\w*) {4,}Traceback \(most")
# Built-in exceptions for `raise` whose names lack an error's usual ending.
_BUILT_IN = Lazy(
    r"(?:SystemExit|StopIteration|StopAsyncIteration|GeneratorExit|Exception|BaseException)(?:$|:)"
)
_INSIDE = (" ", "\t", "│", "╰", "> File ")
_MARKS = Lazy(r"[\s~^]*$")
# Maximum number of other lines between a traceback's own: with another prefix or none, and with the same.
MOST_OF_OTHERS = 24
MOST_BETWEEN = 3


def is_exception(text: str) -> bool:
    """Check whether a line could end a traceback: a dotted name, alone or with a message, but not a log level or step count."""
    match = _NAMED.match(text)
    if match is None:
        return False
    name, message = match.groups()
    if _LEVEL.match(name) or _COUNTER.match(name):
        return False
    return "." in name or (message != ":" and (message is not None or not name[:1].islower()))


# -- frames ----------------------------------------------------------------------------------------


class Frame(NamedTuple):
    """A call in a traceback. `quoted` is its source line, or empty if the traceback does not show it."""

    path: str
    line: int
    function: str
    quoted: str


def frames_above(
    lines: Sequence[str], speaker: Origin, hosts: Collection[str] = (), *, most_between: int | None = None
) -> tuple[tuple[Frame, ...], int | None]:
    """Return the frames of the traceback that ends below `lines`, outermost first, and its header row (None if not found).

    Args:
        lines: the lines above the traceback's last line.
        speaker: the writer of that last line. Lines from other writers are skipped.
        hosts: see `prefixes.split_prefix`.
        most_between: how many other lines from the speaker to allow in between, or None for any number.
    """
    frames: list[Frame] = []
    quoted, between = "", 0
    for row in reversed(range(len(lines))):
        origin, text = split_prefix(lines[row], hosts)
        if not origin.agrees(speaker):
            continue
        if HEAD in text:
            return tuple(reversed(frames)), row
        if match := FRAME.search(text):
            path, line, function = match.groups()[:3] if match[1] else match.groups()[3:]
            frames.append(Frame(path.replace("\\", "/"), whole(line), function or "", quoted.strip()))
            quoted = ""
        elif text[:1].isspace():
            quoted = quoted if _MARKS.match(text) else text
        elif text.strip():
            between += 1
            if (frames and RAISED.match(text)) or (most_between is not None and between > most_between):
                break
    return tuple(reversed(frames)), None


# -- the end of a traceback --------------------------------------------------------------------------


class TracebackEnd(NamedTuple):
    """A traceback's exception line: its distance in lines below the header, position in the bytes below, text and writer."""

    below: int
    start: int
    stop: int
    text: str
    origin: Origin = NOWHERE


NO_END = TracebackEnd(0, 0, 0, "")
"""Marks a traceback without an exception line: it was cut off or only introduces the members of a group."""


def rows_of(data: bytes) -> Iterator[tuple[int, int, int, str]]:
    """Yield the lines in `data` as (lines below the header, start, stop, clean text)."""
    below, start = 1, 0
    while start < len(data):
        stop = data.find(b"\n", start)
        stop = len(data) if stop < 0 else stop
        yield below, start, stop, clean(data[start:stop], SHOWN_BYTES)
        below, start = below + 1, stop + 1


def end_below(head: str, after: bytes, hosts: Collection[str] = ()) -> TracebackEnd | None:
    """Find the exception that ends a traceback: the first unindented line below the frames that comes from the same writer.

    Lines from other processes may be interleaved. Return None if the exception has not arrived yet.

    Args:
        head: the "Traceback (most recent call last)" line, with its prefix.
        after: the bytes below it.
        hosts: see `prefixes.split_prefix`.
    """
    speaker, first = split_prefix(head, hosts)
    if "Exception Group Traceback" in head:
        return _end_of_group(after, hosts)
    if match := NAMED_HEAD.match(first):
        return _end_in_notebook(match[1], after)
    box = _BOX.search(first)
    inside = (*_INSIDE, "|", "+-") if box else _INSIDE
    margin = box.start() if box else 0  # `rich` indents a box below a message
    framed, between, others = box is not None, 0, 0
    for below, start, stop, line in rows_of(after):
        origin, text = split_prefix(line, hosts)
        text = text if text[:margin].strip() else text[margin:]
        if not origin.agrees(speaker):
            others += 1
        elif HEAD in text:
            return NO_END
        elif text.startswith(inside):
            framed = framed or FRAME.search(text) is not None
        elif text.strip():
            if framed and is_exception(text.rstrip()):
                return TracebackEnd(below, start, stop, text.rstrip(), origin)
            between, others = between + framed, others + (not framed)
        if between > MOST_BETWEEN or others > MOST_OF_OTHERS:
            return NO_END
    return None


def _end_of_group(after: bytes, hosts: Collection[str]) -> TracebackEnd | None:
    """Return the exception line of the group itself once the group is complete, or NO_END if a member has the cause."""
    found = NO_END
    for below, start, stop, line in rows_of(after):
        text = split_prefix(line, hosts)[1].strip().removeprefix("| ")
        if HEAD in text:
            return NO_END
        if set(text) == {"+", "-"}:
            return found
        if found is NO_END and is_exception(text):
            found = TracebackEnd(below, start, stop, text)
    return None


def _end_in_notebook(name: str, after: bytes) -> TracebackEnd | None:
    """Find the exception in IPython output, which names it on the first line and again at the end."""
    for below, start, stop, line in rows_of(after):
        if HEAD in line:
            return NO_END
        match = _NAMED.match(line.rstrip())
        if match is not None and match[1].rpartition(".")[2] == name:
            return TracebackEnd(below, start, stop, line.rstrip())
    return None


def end_without_head(lines: Sequence[str], hosts: Collection[str] = ()) -> tuple[int, str, Origin] | None:
    """Return (row, text, writer) for the exception below a log's last frames if the traceback's header is missing."""
    frames = ((row, match) for row in reversed(range(len(lines))) if (match := FRAME.search(lines[row])))
    last, frame = next(frames, (0, None))
    if frame is None:
        return None
    speaker, _ = split_prefix(lines[last], hosts)
    if frames_above(lines[: last + 1], speaker, hosts, most_between=0)[1] is not None:
        return None
    stamp = re.sub(r"\d", "0", lines[last][: frame.start()])
    for row in range(last + 1, len(lines)):
        origin, text = split_prefix(lines[row], hosts)
        # A logger puts its stamp before each line.
        if stamp and re.sub(r"\d", "0", lines[row][: frame.start()]) == stamp:
            text = lines[row][frame.start() :].removeprefix(" ")
        if origin.agrees(speaker) and text.strip() and not text.startswith(_INSIDE):
            raised = _is_raised(text.rstrip(), lines[last : last + 3])
            return (row, text.rstrip(), origin) if raised else None
    return None


def _is_raised(text: str, frame: Sequence[str]) -> bool:
    """Check whether a line below a frame is an exception, i.e. a class with a module, a built-in, or one the frame raises.

    `traceback.print_stack` also prints frames, and any line may follow those, e.g. "Saving: out/1.pt".
    """
    module, _, name = text.split(":", 1)[0].rpartition(".")
    if not is_exception(text):
        return False
    raised = any(re.search(rf"raise (?:\w+\.)*{name}\b", line) for line in frame)
    return raised or (module != "" and name[:1].isupper()) or _BUILT_IN.match(text) is not None


# -- the user's own line ---------------------------------------------------------------------------

# Enough for torch's frames, a library of layers and the loop that calls them, with two to three lines each.
LOOKED_AT = 160
_INSTALLED = Lazy(r"(?:^|/)(?:site|dist)-packages/")
_STANDARD = Lazy(r"/lib(?:64)?/python\d[\d.]*t?/(?!(?:site|dist)-packages/)")
# A frame as printed by py-spy or faulthandler.
_STACK_FRAME = Lazy(r'(\s{2,})(?:\S.* \((\S.*\.py):(\d{1,9})\)|File "([^"]+\.py)", line (\d{1,9}) in \S.*)$')


class CodeLine(NamedTuple):
    """A line of source, as quoted in a traceback. `text` is empty if the line is not quoted."""

    path: str
    line: int
    text: str


def own_line(lines: Sequence[str], at: int) -> CodeLine | None:
    """Return the user's innermost frame in the traceback that ends at ``lines[at]``, or that line if it is a stack frame.

    A file is the user's if it belongs neither to Python nor to an installed package. If every file is installed
    (a training program from a package), the files next to the program that was started count as the user's.

    Returns:
        None if no traceback ends there or none of its frames is known to be the user's.
    """
    if (frame := _stack_frame(lines, at)) is not None:
        return frame
    speaker, _ = split_prefix(lines[at])
    frames, _ = frames_above(lines[max(0, at - LOOKED_AT) : at], speaker, most_between=0)
    # Console scripts, notebook cells and Python's frozen modules are not the user's source files.
    sources = [frame for frame in frames if frame.path.endswith(".py")]
    found = [frame for frame in sources if not _is_installed(frame.path)]
    if not found:
        started = next((frame for frame in sources if not _STANDARD.search(frame.path)), None)
        if started is None or started.function != "<module>":
            return None
        home = posixpath.dirname(started.path) + "/"
        found = [frame for frame in sources if frame.path.startswith(home)]
    return CodeLine(found[-1].path, found[-1].line, found[-1].quoted)


def _stack_frame(lines: Sequence[str], at: int) -> CodeLine | None:
    """Return a user's frame in a stack, with the source line below it if there is one."""
    match = _STACK_FRAME.match(lines[at])
    if match is None:
        return None
    path, number = (match[2] or match[4]).replace("\\", "/"), whole(match[3] or match[5])
    if _is_installed(path):
        return None
    below = lines[at + 1] if at + 1 < len(lines) else ""
    deeper = len(below) - len(below.lstrip()) > len(match[1]) and _STACK_FRAME.match(below) is None
    return CodeLine(path, number, below.strip() if deeper else "")


def _is_installed(path: str) -> bool:
    return _INSTALLED.search(path) is not None or _STANDARD.search(path) is not None
