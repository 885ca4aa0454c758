"""Python tracebacks in lines of text: where one begins and ends, its frames, the user's own line in it (pure).

Where one ends shows in its layout (`end_below`): no list of names holds the exceptions that programs define themselves.
Views fold equal tracebacks of several ranks as wholes (`block_at`). torchrun's own traceback (`torch.distributed.elastic`: SignalException,
ChildFailedError) repeats what its table and the ranks' lines say; views show it as one line until somebody opens it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from supervisor.text.decode import clean
from supervisor.text.patterns import Lazy, whole
from supervisor.text.prefixes import NOWHERE, Origin, split_prefix

HEAD = "Traceback (most recent call last)"
SHOWN_BYTES = 2000
# Python's frames of an exception, loguru's, `rich`'s; a faulthandler's has no comma. A SyntaxError's has no function.
FRAME = Lazy(
    r'(?:^\s*|\s{2,}|> )File "([^"]{1,500})", line (\d{1,9})(?:, in (\S+)|$)|^[│|]? ?(/\S+\.py):(\d{1,9}) in (\S+)'
)
# An exception whose name ends as errors' names do, with what a launcher put before it.
RAISED = Lazy(
    r"^(?:\S{0,40} )?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Failure|Timeout|Abort|Fault|NotFound))(?:: (.*))?$"
)
_NAMED = Lazy(r"((?:[^\W\d]\w*\.(?:<locals>\.)?)*[^\W\d]\w*)(: .*|:)?$")
_LEVEL = Lazy(r"(?:debug|info|notice|note|warn(?:ing)?|error|critical|fatal)$", re.IGNORECASE)
_COUNTER = Lazy(
    r"(?:\w*_)?(?:steps?|iter(?:ation)?s?|it|batch|update|minibatch|epoch|loss|lr|ppl)$", re.IGNORECASE
)
_BOX = Lazy(r"[╭+](?:─|-){2,}")
# IPython names the exception in its head.
NAMED_HEAD = Lazy(r"([^\W\d]\w*) {4,}Traceback \(most")
# What `raise` is given where no class ends as errors' names do.
_BUILT_IN = Lazy(
    r"(?:SystemExit|StopIteration|StopAsyncIteration|GeneratorExit|Exception|BaseException)(?:$|:)"
)
_INSIDE = (" ", "\t", "│", "╰", "> File ")
_MARKS = Lazy(r"[\s~^]*$")
# Lines that may stand among a traceback's own: with another prefix or none, and with the same.
MOST_OF_OTHERS = 24
MOST_BETWEEN = 3


def is_exception(text: str) -> bool:
    """Whether a line could end a traceback: a dotted name, alone or with a message; not a level, nor a count of steps."""
    match = _NAMED.match(text)
    if match is None:
        return False
    name, message = match.groups()
    if _LEVEL.match(name) or _COUNTER.match(name):
        return False
    return "." in name or (message != ":" and (message is not None or not name[:1].islower()))


# -- frames ----------------------------------------------------------------------------------------


class Frame(NamedTuple):
    """A call in a traceback; `quoted` is its source, empty where the traceback quotes none."""

    path: str
    line: int
    function: str
    quoted: str = ""


def frames_above(
    lines: Sequence[str], speaker: Origin, hosts: Collection[str] = (), *, most_between: int | None = None
) -> tuple[tuple[Frame, ...], int | None]:
    """The frames of the traceback that ends below some lines, outermost first, and the row of its head (None: out of view).

    Args:
        lines: what stands above its last line.
        speaker: whose that line is: lines of others are passed over.
        hosts: see `prefixes.split_prefix`.
        most_between: how many other lines of the speaker may stand among them; None: any number.
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


# -- where one ends --------------------------------------------------------------------------------


class TracebackEnd(NamedTuple):
    """The line that says what was raised: how many lines below the head, where in the bytes below it, its text, whose it is."""

    below: int
    start: int
    stop: int
    text: str
    origin: Origin = NOWHERE


NO_END = TracebackEnd(0, 0, 0, "")
"""A traceback that names no exception: it is broken off, or it only heads the members of a group."""


def rows_of(data: bytes) -> Iterator[tuple[int, int, int, str]]:
    """The lines below a place: (lines below, start, stop, clean text)."""
    below, start = 1, 0
    while start < len(data):
        stop = data.find(b"\n", start)
        stop = len(data) if stop < 0 else stop
        yield below, start, stop, clean(data[start:stop], SHOWN_BYTES)
        below, start = below + 1, stop + 1


def end_below(head: str, after: bytes, hosts: Collection[str] = ()) -> TracebackEnd | None:
    """The exception that ends a traceback: the first line of its writer below its frames that is not indented.

    Lines of other processes may stand between. None: it has not come yet.

    Args:
        head: the line with "Traceback (most recent call last)", with its prefix.
        after: the bytes below it.
        hosts: see `prefixes.split_prefix`.
    """
    speaker, first = split_prefix(head, hosts)
    if "Exception Group Traceback" in head:
        return NO_END
    if match := NAMED_HEAD.match(first):
        return _end_in_notebook(match[1], after)
    box = _BOX.search(first)
    inside = (*_INSIDE, "|", "+-") if box else _INSIDE
    margin = box.start() if box else 0  # `rich` indents a box that stands below a message
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


def _end_in_notebook(name: str, after: bytes) -> TracebackEnd | None:
    """IPython names the exception in the head, and again where it ends."""
    for below, start, stop, line in rows_of(after):
        if HEAD in line:
            return NO_END
        match = _NAMED.match(line.rstrip())
        if match is not None and match[1].rpartition(".")[2] == name:
            return TracebackEnd(below, start, stop, line.rstrip())
    return None


def end_without_head(lines: Sequence[str], hosts: Collection[str] = ()) -> tuple[int, str, Origin] | None:
    """The exception below the last frames of a log, where the traceback's head is missing: (row, text, whose it is)."""
    last = next((row for row in reversed(range(len(lines))) if FRAME.search(lines[row])), None)
    if last is None:
        return None
    speaker, _ = split_prefix(lines[last], hosts)
    if frames_above(lines[: last + 1], speaker, hosts, most_between=0)[1] is not None:
        return None
    for row in range(last + 1, len(lines)):
        origin, text = split_prefix(lines[row], hosts)
        if origin.agrees(speaker) and text.strip() and not text.startswith(_INSIDE):
            raised = _is_raised(text.rstrip(), lines[last : last + 3])
            return (row, text.rstrip(), origin) if raised else None
    return None


def _is_raised(text: str, frame: Sequence[str]) -> bool:
    """Whether a line below a frame is an exception: a class of a module, one of Python's own, or the one that the frame raises.

    `traceback.print_stack` prints frames too, and any line may follow: "Saving: out/1.pt".
    """
    module, _, name = text.split(":", 1)[0].rpartition(".")
    if not is_exception(text):
        return False
    raised = any(re.search(rf"raise (?:\w+\.)*{name}\b", line) for line in frame)
    return raised or (module != "" and name[:1].isupper()) or _BUILT_IN.match(text) is not None


# -- the user's own line ---------------------------------------------------------------------------

# The frames of torch, a library of layers and the loop that calls them, with two to three lines each.
LOOKED_AT = 160
_INSTALLED = Lazy(r"(?:^|/)(?:site|dist)-packages/")
_STANDARD = Lazy(r"/lib(?:64)?/python\d[\d.]*t?/(?!(?:site|dist)-packages/)")
# A frame as py-spy and as faulthandler print it.
_STACK_FRAME = Lazy(r'(\s{2,})(?:\S.* \((\S.*\.py):(\d{1,9})\)|File "([^"]+\.py)", line (\d{1,9}) in \S.*)$')


class CodeLine(NamedTuple):
    """A line of a source file, as a traceback quotes it; `text` is empty where it quotes none."""

    path: str
    line: int
    text: str


def own_line(lines: Sequence[str], at: int) -> CodeLine | None:
    """The innermost frame of the user's files in the traceback that ends in ``lines[at]``, or the frame of a stack that it is.

    A file is the user's if it is neither Python's own nor an installed package's. Where all are installed (a training program
    that came as a package) those beside the program that was started count.

    Returns:
        None where no traceback ends there, or none of its frames is known to be the user's.
    """
    if (frame := _stack_frame(lines, at)) is not None:
        return frame
    speaker, _ = split_prefix(lines[at])
    frames, _ = frames_above(lines[max(0, at - LOOKED_AT) : at], speaker, most_between=0)
    # A console script, a notebook's cell and Python's frozen modules are not source files of the user.
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


def _is_installed(path: str) -> bool:
    return _INSTALLED.search(path) is not None or _STANDARD.search(path) is not None


# -- blocks ----------------------------------------------------------------------------------------

# What every first line of a traceback holds ("most recent call last"): Python's own, rich's, faulthandler's.
MARK = "(most"
# A deep stack with its causes; what is longer is two blocks.
MOST_LINES = 400
# torchrun's table has 7 lines a failed rank: some hundred ranks.
MOST_REPORT_LINES = 1200
# Blank lines within a message.
BLANK_LINES = 5

_HEAD = re.compile(
    r"Traceback \(most recent call last\):?\s*$"
    r"|╭.*Traceback \(most recent call last\)"
    r"|(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):"
)
# A DataLoader worker's own traceback, within the message of the exception that it led to.
_ORIGINAL = re.compile(r"Original Traceback \(most recent call last\):\s*$")
# Lines of messages of PyTorch that are not indented.
_MORE = re.compile(
    r"CUDA kernel errors might be|For debugging consider passing CUDA|Compile with `TORCH_USE_CUDA_DSA|Exception raised from "
    r"|frame #\d+:|Last error:|\(Triggered internally at"
)
_JOINT = re.compile(
    r"During handling of the above exception, another|The above exception was the direct cause"
)
_LAUNCHER = re.compile(
    r"torch\.distributed\.elastic\.[\w.]*\b(?P<name>SignalException|ChildFailedError)\b:? ?(?P<message>.*)"
)
_RULE = re.compile(r"=+$")
_TABLE = re.compile(r"[=-]+$|\[\d+\]:$|Failures:$|Root Cause |.* FAILED$")
_WHO = re.compile(r"\s+(rank|exitcode)\s+: (-?\d+)")

At = Callable[[int], str | None]
IsHooks = Callable[[int], bool]


class Block(NamedTuple):
    """How many lines belong together. `message`: the line that names the exception; `is_report`: torchrun's own traceback, as a whole."""

    lines: int
    message: str = ""
    is_report: bool = False


def is_head(text: str) -> bool:
    """Whether a traceback begins with this line."""
    return MARK in text and _HEAD.match(text) is not None


def block_at(at: At, is_hooks: IsHooks = lambda _: False) -> Block | None:
    """The traceback that begins with line 0, with what it was caused by or led to; None: none begins there.

    Args:
        at: the text of a line from there on; None: there is none (yet), or another rank wrote it.
        is_hooks: whether PyTorch's hook for exceptions wrote a line: it marks every line of a traceback, so that a message may
            have any lines.
    """
    if not is_head(at(0) or ""):
        return None
    if is_hooks(0):
        return Block(_marked(at, is_hooks))
    n: int | None = 0
    block = Block(1)
    while n is not None and n < MOST_LINES:
        block = _one(at, n)
        n = _joined(at, block.lines)
    match = _LAUNCHER.match(block.message)
    if match is None:
        return block
    return _with_table(at, block) if match["name"] == "ChildFailedError" else block._replace(is_report=True)


def _marked(at: At, is_hooks: IsHooks) -> int:
    """How many lines the hook wrote, one after the other; it leaves blank lines without its mark."""
    n = 1
    while n < MOST_LINES:
        below = next((i for i in range(n, n + BLANK_LINES) if at(i) is None or (at(i) or "").strip()), n)
        if not is_hooks(below):
            return n
        n = below + 1
    return n


def _one(at: At, head: int) -> Block:
    """One traceback: its frames, the line that names the exception, what more there is of the message."""
    first, n, most = at(head) or "", head + 1, head + MOST_LINES
    while n < most and (text := at(n)) is not None and (not text or text[0].isspace() or text[0] in "│╰"):
        n += 1
    message = at(n)
    if message is None or is_head(message) or not first.startswith(("Traceback", "Original", "╭")):
        return Block(n)  # a stack ends with no message
    n += 1
    while n < most and (text := at(n)) is not None:
        if not (text[:1].isspace() and text.strip()) and not _MORE.match(text):
            break
        n += 1
    return Block(n, message)


def _joined(at: At, n: int) -> int | None:
    """Where the next traceback of the chain begins, if the lines from `n` on join it to the one before."""
    if _ORIGINAL.match(at(n) or ""):
        return n
    seen = False
    for i in range(n, n + 4):
        text = at(i)
        if text is None:
            return None
        if seen and is_head(text):
            return i
        if _JOINT.match(text):
            seen = True
        elif text.strip():
            return None
    return None


def _with_table(at: At, block: Block) -> Block:
    """With the table that torchrun prints below; without it the report is not whole yet."""
    n = block.lines
    if not _RULE.match(at(n) or ""):
        return block
    for i in range(n + 1, n + MOST_REPORT_LINES):
        if (text := at(i)) is None:
            return block._replace(lines=i)
        if _RULE.match(text):
            return block._replace(lines=i + 1, is_report=True)
    return block


def may_be_inside(text: str, before: str) -> bool:
    """Whether a line may stand within a block, judged by it and the one before alone."""
    if not text or text[0].isspace() or text[0] in "│╰" or before[:1].isspace() or before[:1] == "╰":
        return True
    within = (_JOINT, _ORIGINAL, _TABLE)
    return (
        is_head(before)
        or _MORE.match(text) is not None
        or any(each.match(line) is not None for each in within for line in (text, before))
    )


def summary(texts: Sequence[str], block: Block) -> str:
    """torchrun's report in one line."""
    match = _LAUNCHER.match(block.message)
    if match is None:
        return block.message
    if match["name"] != "ChildFailedError":
        return f"launcher: {match['name']}: {match['message']}"
    table = texts[next((n for n, text in enumerate(texts) if _RULE.match(text)), len(texts)) :]
    what = next((text for text in table if text.endswith(" FAILED")), "")
    cause = table[next((n for n, text in enumerate(table) if text.startswith("Root Cause")), len(table)) :]
    who = " ".join(f"{found[1]} {found[2]}" for text in cause if (found := _WHO.match(text)))
    return f"launcher: {match['name']}: {', '.join(part for part in (what, who) if part)}"
