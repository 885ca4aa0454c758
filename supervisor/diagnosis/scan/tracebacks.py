"""Python tracebacks put back together from what stands around a line, as far as prefixes allow.

Where one ends shows in its layout (`end_below`): no list of names holds the exceptions that programs define themselves.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from supervisor.diagnosis.scan.log_timeline import is_progress
from supervisor.diagnosis.scan.matched_lines import SHOWN_BYTES, Hit
from supervisor.diagnosis.scan.signature_tables import Role, Signature, Trait
from supervisor.run.failures import FailureClass
from supervisor.text.decode import clean
from supervisor.text.numbers import whole
from supervisor.text.patterns import Lazy
from supervisor.text.prefixes import NOWHERE, Origin, split_prefix

_HELPERS = (
    "/tensorboard",
    "/wandb/",
    "/tqdm/",
    "/comet_ml/",
    "/mlflow/",
    "/neptune/",
    "/swanlab/",
    "multiprocessing/queues.py",
    "torch/utils/data/_utils/pin_memory.py",
)
_CAUGHT = Lazy(
    r"(?:\d\d:\d\d:\d\d|^)[^\r]{0,80}\b(?:ERROR|CRITICAL|EXCEPTION|WARN(?:ING)?|INFO|DEBUG)\b|^\s*(?:ERROR|CRITICAL|WARNING):"
)
_LOGGED = Lazy(r"\b(?:INFO|WARN(?:ING)?|DEBUG|NOTICE)\b[^\r]{0,60}Traceback \(most recent")
# A warning about a failure, whose exception stands below it.
_WARNED = Lazy(
    r"\bWARN(?:ING)?\b[^\r]{0,200}\b(?:[Cc]ould ?n[o']t|[Cc]an(?:not|'t)|[Uu]nable|[Ff]ail\w*|[Ee]rror|[Ee]xception|[Ss]kipp\w*|[Ii]gnor\w*|[Rr]etry\w*)"
)
_IGNORED = Lazy(r"Exception ignored in|Error in atexit")
# What `logging.Handler.handleError` and IPython's `EventManager.trigger` print above a traceback: the program continues.
_IN_PASSING = Lazy(r"--- Logging error ---|Error in callback <")

HEAD = "Traceback (most recent call last)"
UNCAUGHT = Signature(
    place=-1,
    id="traceback-end",
    failure=FailureClass.CODE_ERROR,
    role=Role.CAUSE,
    reason=None,
    strength=50,
    regex="",
    traits=frozenset((Trait.GENERIC, Trait.OPEN_TYPE, Trait.ENDS_TRACEBACK)),
)
"""What a traceback's last line is taken for where no table knows it."""

# Python's and loguru's frames; the borders of `rich`, drawn or in ASCII; IPython's head, which names the exception.
_FRAME = Lazy(r'(?:  |> )File "[^"]{1,500}", line \d')
_BORDER = Lazy(r"[╭+](?:─|-){2,}")
_IN_BOX = ("│", "|", "╰", "+-")
_NAMED_HEAD = Lazy(r"([^\W\d]\w*) {4,}Traceback \(most")
_EXCEPTION_LINE = Lazy(r"((?:[^\W\d]\w*\.(?:<locals>\.)?)*[^\W\d]\w*)(: .*|:)?$")
# A frame as Python prints it of an exception; a faulthandler's has no comma.
FRAME = Lazy(r'(?:  |> )File "[^"]{1,500}", line \d{1,9}, in ')
# What `raise` is given where no class ends as errors' names do.
_BUILT_IN = Lazy(
    r"(?:SystemExit|StopIteration|StopAsyncIteration|GeneratorExit|Exception|BaseException)(?:$|:)"
)
_INDENTED = Lazy(r"\s|$")
_LEVELS = Lazy(r"(?:debug|info|notice|note|warn(?:ing)?|error|critical|fatal)$", re.IGNORECASE)
_HANDLED = ("During handling of the above exception", "The above exception was the direct cause")
# Lines that may stand among a traceback's own: with another prefix or none, and with the same.
MOST_OF_OTHERS = 24
MOST_BETWEEN = 3


class TracebackEnd(NamedTuple):
    """The line that says what was raised: how many lines below the head, where in the bytes below it, its text, whose it is."""

    below: int
    start: int
    stop: int
    text: str
    origin: Origin = NOWHERE


NO_END = TracebackEnd(0, 0, 0, "")
"""A traceback that names no exception: it is broken off, or it only heads the members of a group."""


class Frames(NamedTuple):
    """The traceback above an exception line: `File` frames as (path, function), outermost first.

    Ranks: `spawn_rank` is torch.multiprocessing's process number, `announced` what a logger named right above,
    `quoted_rank` whose traceback a distributed checkpoint's report quotes. `logged`: the program logged the traceback
    as a notice or in a warning, or Python ignored it (`ignored`). `in_passing`: a message could not be logged, or a notebook's callback failed. `caught`: a logger printed it, at whatever level, so that something
    caught the exception.
    """

    found: bool
    frames: tuple[tuple[str, str], ...]
    spawn_rank: int | None
    announced: int | None = None
    quoted_rank: int | None = None
    logged: bool = False
    caught: bool = False
    ignored: bool = False
    in_passing: bool = False


@cache
def _patterns() -> dict[str, Lazy]:
    return {
        "frame": Lazy(r'File "([^"]+)", line \d+, in (\S+)|^[│|]? ?(/\S+\.py):\d+ in (\S+)'),
        "exception": Lazy(
            r"^(?:\S{0,40} )?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Failure|Timeout|Abort|Fault|NotFound))(?:: (.*))?$"
        ),
        "quoted": Lazy(
            r"""^\s*(?:raise|assert|print|return|log(?:ger|ging)?\.\w+|warnings\.warn|if|elif|else|for|while|with|try|except|from|import|def|class|self\.|f?["'].*["'],?\)?$|[\w.\[\]]+\s?[+*/-]?=\s|[\w.]+\(.*\)?$|\#)
            |^\s*[│|]\s+(?:❱\s*)?\d+\s+[│|]
            |^\s*[\^~]+\s*$""",
            re.VERBOSE,
        ),
        "indent": Lazy(r"^(?: {4,}|\t+)\S"),
    }


def frames_above(hit: Hit) -> Frames:
    """The traceback that ends in this line, or that it heads where IPython names the exception there."""
    patterns = _patterns()
    frames: list[tuple[str, str]] = []
    found = False
    spawn_rank: int | None = None
    announced: int | None = None
    quoted_rank: int | None = None
    logged = caught = ignored = in_passing = False
    lines = hit.lines_before(90) + [hit.text] * bool(_NAMED_HEAD.match(hit.text))
    row = len(lines) - 1
    while row >= 0:
        origin, text = split_prefix(lines[row], hit.hosts)
        row -= 1
        if origin != split_prefix("")[0] and not _compatible(origin, hit.origin):
            continue
        if "Traceback (most recent call last)" in text:
            found = True
            above = _above(lines[: row + 1])
            ignored, in_passing = _IGNORED.search(above) is not None, _IN_PASSING.search(above) is not None
            logged = ignored or bool(_LOGGED.search(lines[row + 1]) or _WARNED.search(above))
            heads = lines[max(row, 0) : row + 2]
            caught = any(_CAUGHT.search(line[:200]) and not is_progress(line) for line in heads)
            if match := re.search(r"\(RANK (\d+)\)", text):
                quoted_rank = whole(match.group(1))
            announced = _announced(lines[max(row - 1, 0) : row + 1])
            spawn_rank = _spawn_rank(lines[max(row - 5, 0) : row + 1], hit.hosts)
            break
        if match := patterns["frame"].search(text):
            groups = match.groups()
            frames.append((groups[0] or groups[2] or "", groups[1] or groups[3] or ""))
        elif patterns["exception"].match(text) and len(frames) > 0:
            break
    return Frames(
        found,
        tuple(reversed(frames)),
        spawn_rank,
        announced,
        quoted_rank,
        logged,
        caught,
        ignored,
        in_passing,
    )


def _above(lines: Sequence[str]) -> str:
    """The last line with words: IPython rules a line above its tracebacks."""
    return next((line for line in reversed(lines) if line.strip(" -")), "")


def end_below(head: str, after: bytes, hosts: Collection[str] = ()) -> TracebackEnd | None:
    """The exception that ends a traceback, by layout alone: the first line below its frames that is not indented.

    Lines of other processes may stand between. None: it has not come yet.

    Args:
        head: the line with "Traceback (most recent call last)", with its prefix.
        after: the bytes below it.
        hosts: see `Hit`.
    """
    if "Exception Group Traceback" in head:
        return NO_END
    rows = _rows(after)
    if match := _NAMED_HEAD.match(split_prefix(head, hosts)[1]):
        return _end_in_notebook(match.group(1), rows)
    if border := _BORDER.search(head):
        return _end_below_box(head, border.start(), rows)
    form: tuple[Origin, str] | None = None
    width = between = others = 0
    for below, start, stop, line in rows:
        origin = split_prefix(line, hosts)[0]
        if form is None and (frame := _FRAME.search(line)):
            width = frame.start()
            form = origin, _masked(line[:width])
        elif form == (origin, _masked(line[:width])):
            text = line[width:].rstrip()
            if HEAD in text:
                return NO_END
            if text and not text.startswith((" ", "\t", "> File ")):
                if is_exception(text):
                    return TracebackEnd(below, start, stop, text, origin)
                between += 1
        elif line.strip():
            others += 1
        if between > MOST_BETWEEN or others > MOST_OF_OTHERS:
            return NO_END
    return None


def end_without_head(lines: Sequence[str], hosts: Collection[str] = ()) -> tuple[int, str, Origin] | None:
    """The exception below the last frames of a log, where the traceback's head is missing: (row, text, whose it is)."""
    found = ((row, frame) for row in reversed(range(len(lines))) if (frame := FRAME.search(lines[row])))
    last, frame = next(found, (0, None))
    if frame is None:
        return None
    width = frame.start()
    form = _masked(lines[last][:width])
    block = [(row, line[width:]) for row, line in enumerate(lines) if _masked(line[:width]) == form]
    at = next(place for place, (row, _) in enumerate(block) if row == last)
    above = (text for _, text in reversed(block[:at]) if not text.startswith(" "))
    if "(most recent call " in next(above, ""):
        return None
    row, text = next((place for place in block[at + 1 :] if not _INDENTED.match(place[1])), (0, ""))
    if not _is_raised(text.rstrip(), [quoted for _, quoted in block[at : at + 3]]):
        return None
    return row, text.rstrip(), split_prefix(lines[row], hosts)[0]


def _is_raised(text: str, frame: Sequence[str]) -> bool:
    """Whether a line below a frame is an exception: a class of a module, one of Python's own, or the one that the frame raises.

    `traceback.print_stack` prints frames too, and any line may follow: "Saving: out/1.pt".
    """
    module, _, name = text.split(":", 1)[0].rpartition(".")
    if not is_exception(text):
        return False
    raised = any(re.search(rf"raise (?:\w+\.)*{name}\b", line) for line in frame)
    return raised or (module != "" and name[:1].isupper()) or _BUILT_IN.match(text) is not None


def _rows(after: bytes) -> Iterator[tuple[int, int, int, str]]:
    """The lines below a place: (lines below, start, stop, clean text)."""
    below, start = 1, 0
    while start < len(after):
        stop = after.find(b"\n", start)
        stop = len(after) if stop < 0 else stop
        yield below, start, stop, clean(after[start:stop], SHOWN_BYTES)
        below, start = below + 1, stop + 1


def _masked(prefix: str) -> str:
    return re.sub(r"\d", "0", prefix)


def _end_in_notebook(name: str, rows: Iterator[tuple[int, int, int, str]]) -> TracebackEnd | None:
    """IPython names the exception in the head, and again where it ends."""
    for below, start, stop, line in rows:
        if HEAD in line:
            return NO_END
        match = _EXCEPTION_LINE.match(line.rstrip())
        if match is not None and match.group(1).rpartition(".")[2] == name:
            return TracebackEnd(below, start, stop, line.rstrip())
    return None


def _end_below_box(head: str, width: int, rows: Iterator[tuple[int, int, int, str]]) -> TracebackEnd | None:
    """The exception below the box that `rich` draws around the frames."""
    form, closed = _masked(head[:width]), False
    for below, start, stop, line in rows:
        prefix, text = _masked(line[:width]), line[width:].rstrip()
        if prefix.strip() and prefix != form:
            continue
        if closed and text:
            return TracebackEnd(below, start, stop, text) if is_exception(text) else NO_END
        if not closed and not text.startswith(_IN_BOX):
            return NO_END
        closed = closed or text.startswith(("╰", "+-"))
    return None


def is_exception(text: str) -> bool:
    """Whether a line could end a traceback: a dotted name, alone or with a message; not a level, nor a count of steps."""
    match = _EXCEPTION_LINE.match(text)
    if match is None:
        return False
    name, message = match.groups()
    if _LEVELS.match(name) or is_progress(f"{name}: 1"):
        return False
    return "." in name or (message != ":" and (message is not None or not name[:1].islower()))


def was_handled(hit: Hit) -> bool:
    """Whether another exception was raised from, or while handling, the one that ends this traceback."""
    return next(_chain(hit), None) is not None


def end_of_chain(hit: Hit) -> int | None:
    """The number of the line with the exception that was raised last from this one, or while it was handled; None: nothing was."""
    end = None
    for below, stop, head in _chain(hit):
        found = end_below(head, hit.after[stop + 1 :], hit.hosts)
        end = hit.line + below + found.below if found is not None and found.below else None
    return end


def _chain(hit: Hit) -> Iterator[tuple[int, int, str]]:
    """The heads of the tracebacks that Python puts below an exception as its consequences: (lines below, stop, text)."""
    handled = False
    for below, _, stop, line in _rows(hit.after) if b" above exception" in hit.after else ():
        if HEAD not in line:
            handled = handled or any(words in line for words in _HANDLED)
        elif _compatible(split_prefix(line, hit.hosts)[0], hit.origin):
            if not handled:
                return
            handled = False
            yield below, stop, line


def in_helper(hit: Hit) -> bool:
    """Whether a thread raised that only keeps records or hands on data: it ends alone, and the program continues.

    Such threads end together and mix their lines, so that what stands above is looked at as a whole.
    """
    seen = False
    for line in reversed(hit.lines_before(60)):
        if "Exception in thread" in line:
            return seen
        if ", in <module>" in line:
            return False
        seen = seen or any(part in line.replace("\\", "/") for part in _HELPERS)
    return False


def _spawn_rank(lines: list[str], hosts: Collection[str]) -> int | None:
    """The process of torch.multiprocessing that is named above its traceback."""
    found: int | None = None
    for line in reversed(lines):
        message = split_prefix(line, hosts)[1]
        if match := re.search(r"-- Process (\d+) terminated with the following error", message):
            found = whole(match.group(1))
        if match := re.search(r"^Process (?:Spawn|Fork|ForkServer)?Process-(\d+)", message):
            found = whole(match.group(1)) - 1
    return found


def _announced(lines: list[str]) -> int | None:
    """The rank that a logger or torch_xla names right above a traceback: ``[rank 1] ERROR uncaught``."""
    for line in reversed(lines):
        if re.search(r"ERROR|CRITICAL|[Uu]ncaught|[Ee]xception|FATAL", line) and (
            match := re.search(r"\b[Rr]ank[ =:]{1,2}(\d+)\b|\[rank(\d+)\]|in device=TPU:(\d+):", line)
        ):
            return whole(next(group for group in match.groups() if group))
    return None


def _compatible(one: Origin, other: Origin) -> bool:
    return all(
        mine is None or theirs is None or mine == theirs
        for mine, theirs in (
            (one.rank, other.rank),
            (one.local_rank, other.local_rank),
            (one.task, other.task),
            (one.pid, other.pid),
        )
    )


def is_quoted_code(text: str) -> bool:
    """Whether a line is source code that a traceback quotes: its words stand in a file, nobody printed them."""
    if re.match(r"\s*raise \w", text):
        return True
    if match := re.match(r"(?:-+> ?)?\d{1,6}(?= {3,}\S)", text):
        text = text[match.end() :]  # IPython numbers the lines that it quotes
    if not text.startswith((" ", "\t", "│", "|", "❱")):
        return False
    if '"message":' in text or text.lstrip().startswith(
        ("size mismatch", "Missing key", "Unexpected key", "what():", "reason:")
    ):
        return False
    patterns = _patterns()
    return patterns["quoted"].match(text) is not None and patterns["exception"].match(text.strip()) is None


def below_its_frame(hit: Hit) -> bool:
    """Whether a line is the source of the frame that stands above it."""
    if not hit.text.startswith("    "):
        return False
    above = split_prefix(hit.lines_before(1)[-1], hit.hosts)[1] if hit.lines_before(1) else ""
    return above.startswith("  File ") and ", line " in above


def last_exception_after(hit: Hit) -> tuple[int, str] | None:
    """The exception line that ends the traceback quoted below a line, or begun in it: (lines below, text)."""
    exception = _patterns()["exception"]
    inside = hit.text.endswith(": Traceback (most recent call last):")
    for below, raw in enumerate(hit.lines_after(120), start=1):
        origin, text = split_prefix(raw, hit.hosts)
        if not _compatible(origin, hit.origin):
            continue
        if "Traceback (most recent call last)" in text:
            if inside and "Original" not in text:
                return None
            inside = True
        elif (inside and exception.match(text.strip()) and not text.startswith((" ", "\t"))) or (
            inside and re.match(r"^[\w.]+(?:Error|Exception|Interrupt)\b", text)
        ):
            return below, text
    return None


def _at_import(paths: list[tuple[str, str]]) -> bool:
    """Whether an installed package raised while it was being imported: nothing but module bodies stand above."""
    return (
        len(paths) >= 2
        and ("site-packages/" in paths[-1][0] or "dist-packages/" in paths[-1][0])
        and all(name == "<module>" or path.startswith("<frozen importlib") for path, name in paths)
    )


# The files of supervisor/instrument, most of them under the name that `UnseenLoader` gives them there.
_OF_INSTRUMENT = Lazy(
    r"<frozen importlib\._bootstrap> of stoker: |/supervisor/instrument/(?:on_path/)?\w+\.py$"
)


def raised_by_instrument(frames: Frames, text: str) -> bool:
    """Whether stoker's own measurements raised this. They call what they observe, so only the innermost frame shows it.

    An OSError is the system's answer to what they call.
    """
    paths = [path.replace("\\", "/") for path, _ in frames.frames]
    return bool(paths) and _OF_INSTRUMENT.search(paths[-1]) is not None and "[Errno" not in text


class _FrameRule(NamedTuple):
    """What a frame shows: `paths` are parts of its file's path, `names` its function; empty: any.

    Where the exception has `unless` in its text, or lacks `only_with`, the frame shows nothing, and no other frame is tried.
    `innermost`: only where this very frame raised, since the program runs below such frames.
    """

    failure: FailureClass
    paths: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    unless: str = ""
    only_with: str = ""
    innermost: bool = False

    def matches(self, path: str, name: str) -> bool:
        return (not self.paths or any(part in path for part in self.paths)) and (
            not self.names or name in self.names
        )


_FRAME_RULES = (
    _FrameRule(
        FailureClass.CHECKPOINT_LOAD,
        paths=("torch/serialization.py",),
        names=frozenset(("load", "_load", "_legacy_load", "find_class", "persistent_load", "_get_restore_location")),
        unless="No such file",
    ),
    _FrameRule(FailureClass.CHECKPOINT_LOAD, paths=("safetensors/",), unless="No such file"),
    _FrameRule(
        FailureClass.CHECKPOINT_LOAD,
        names=frozenset(("load_state_dict", "load_checkpoint", "_load_state_dict", "_load_zero_checkpoint", "load_pretrained_weights")),
        unless="No such file",
    ),
    _FrameRule(
        FailureClass.DISK_FULL,
        paths=("torch/serialization.py",),
        names=frozenset(("save", "_save", "__exit__")),
        only_with="No space",
    ),
    _FrameRule(
        FailureClass.COMPILE_ERROR,
        paths=("/_inductor/", "/_dynamo/", "triton/compiler", "triton/backends", "cpp_extension.py"),
    ),
    _FrameRule(
        FailureClass.RENDEZVOUS,
        paths=("torch/distributed/elastic/rendezvous/", "torch/distributed/rendezvous.py"),
    ),
    # torchrun's agent alone runs here: without a result (its rendezvous was closed), with one that the other agents do not share.
    _FrameRule(
        FailureClass.RENDEZVOUS,
        paths=("torch/distributed/launcher/", "torch/distributed/elastic/agent/"),
        innermost=True,
    ),
    _FrameRule(FailureClass.USAGE_ERROR, paths=("/argparse.py", "hydra/_internal"), innermost=True),
)  # fmt: skip


def class_by_frames(frames: Frames, text: str) -> FailureClass | None:
    """What the code that raised shows beyond a plain exception's type: the innermost frame that a rule knows."""
    paths = [(path.replace("\\", "/"), name) for path, name in frames.frames]
    # A wrapper around any function that is not to be compiled, or is compiled already: it raises nothing of its own.
    paths = [frame for frame in paths if not frame[0].endswith("torch/_dynamo/eval_frame.py")]
    if _at_import(paths):
        return FailureClass.IMPORT_ERROR
    for place, (path, name) in enumerate(reversed(paths)):
        for rule in _FRAME_RULES:
            if rule.matches(path, name) and not (rule.innermost and place):
                blocked = (rule.unless and rule.unless in text) or rule.only_with not in text
                return None if blocked else rule.failure
    return None
