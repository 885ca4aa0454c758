"""Reads the traceback around a matched line: its frames, its rank, whether it was caught, and the class its code suggests."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from supervisor.diagnosis.scan.log_timeline import is_progress
from supervisor.diagnosis.scan.matched_lines import Hit
from supervisor.diagnosis.scan.signature_tables import Role, Signature, Trait
from supervisor.run.failures import FailureClass
from supervisor.text import tracebacks
from supervisor.text.patterns import Lazy, whole
from supervisor.text.prefixes import split_prefix
from supervisor.text.tracebacks import HEAD, NAMED_HEAD, Frame, end_below, rows_of

_HELPERS = (
    "/tensorboard", "/wandb/", "/tqdm/", "/comet_ml/", "/mlflow/", "/neptune/", "/swanlab/", "multiprocessing/queues.py",
    "torch/utils/data/_utils/pin_memory.py",
)  # fmt: skip
_CAUGHT = Lazy(
    r"(?:\d\d:\d\d:\d\d|^)[^\r]{0,80}\b(?:ERROR|CRITICAL|EXCEPTION|WARN(?:ING)?|INFO|DEBUG)\b|^\s*(?:ERROR|CRITICAL|WARNING):"
)
_LOGGED = Lazy(r"\b(?:INFO|WARN(?:ING)?|DEBUG|NOTICE)\b[^\r]{0,60}Traceback \(most recent")
# A warning about a failure, with its exception below.
_WARNED = Lazy(
    r"\bWARN(?:ING)?\b[^\r]{0,200}\b(?:[Cc]ould ?n[o']t|[Cc]an(?:not|'t)|[Uu]nable|[Ff]ail\w*|[Ee]rror|[Ee]xception|[Ss]kipp\w*|[Ii]gnor\w*|[Rr]etry\w*)"
)
_IGNORED = Lazy(r"Exception ignored in|Error in atexit")
# Printed by `logging.Handler.handleError` and IPython's `EventManager.trigger` above a traceback: the program continues.
_IN_PASSING = Lazy(r"--- Logging error ---|Error in callback <")
_HANDLED = ("During handling of the above exception", "The above exception was the direct cause")
_QUOTED = Lazy(
    r"""^\s*(?:raise|assert|print|return|log(?:ger|ging)?\.\w+|warnings\.warn|if|elif|else|for|while|with|try|except|from|import|def|class|self\.|f?["'].*["'],?\)?$|[\w.\[\]]+\s?[+*/-]?=\s|[\w.]+\(.*\)?$|\#)
    |^\s*[│|]\s+(?:❱\s*)?\d+\s+[│|]
    |^\s*[\^~]+\s*$""",
    re.VERBOSE,
)
_PROCESS = Lazy(
    r"-- Process (\d+) terminated with the following error|^Process (?:Spawn|Fork|ForkServer)?Process-(\d+)"
)
_ALARM = Lazy(r"ERROR|CRITICAL|[Uu]ncaught|[Ee]xception|FATAL")
_RANK = Lazy(r"\b[Rr]ank[ =:]{1,2}(\d+)\b|\[rank(\d+)\]|in device=TPU:(\d+):")
# The files of supervisor/instrument, most of them with the name that `UnseenLoader` gives them there.
_OF_INSTRUMENT = Lazy(
    r"<frozen importlib\._bootstrap> of stoker: |/supervisor/instrument/(?:on_path/)?\w+\.py$"
)

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


class Frames(NamedTuple):
    """The traceback above an exception line, outermost frame first.

    Ranks: `spawn_rank` is torch.multiprocessing's process number, `announced` the one a logger named right above,
    `quoted_rank` the rank of a traceback quoted in a distributed checkpoint's report. `logged`: the program logged the
    traceback as a notice or in a warning, or Python ignored it (`ignored`). `in_passing`: a message could not be logged,
    or a notebook's callback failed. `caught`: a logger printed it at some level, so the exception was caught.
    """

    found: bool
    frames: tuple[Frame, ...]
    spawn_rank: int | None = None
    announced: int | None = None
    quoted_rank: int | None = None
    logged: bool = False
    caught: bool = False
    ignored: bool = False
    in_passing: bool = False


def frames_above(hit: Hit) -> Frames:
    """The traceback that ends in this line, or starts with it if IPython names the exception there."""
    lines = hit.lines_before(90)
    if NAMED_HEAD.match(hit.text):
        lines.append(hit.text)
    frames, head = tracebacks.frames_above(lines, hit.origin, hit.hosts)
    if head is None:
        return Frames(False, frames)
    # IPython draws a line above its tracebacks.
    above = next((line for line in reversed(lines[:head]) if line.strip(" -")), "")
    ignored = _IGNORED.search(above) is not None
    quoted = re.search(r"\(RANK (\d+)\)", lines[head])
    heads = lines[max(head - 1, 0) : head + 1]
    return Frames(
        True,
        frames,
        _spawn_rank(lines[max(head - 6, 0) : head], hit.hosts),
        _announced(lines[max(head - 2, 0) : head]),
        whole(quoted[1]) if quoted else None,
        logged=ignored or bool(_LOGGED.search(lines[head]) or _WARNED.search(above)),
        caught=any(_CAUGHT.search(line[:200]) and not is_progress(line) for line in heads),
        ignored=ignored,
        in_passing=_IN_PASSING.search(above) is not None,
    )


def _spawn_rank(lines: Sequence[str], hosts: Collection[str]) -> int | None:
    """The torch.multiprocessing process named above its traceback."""
    texts = (split_prefix(line, hosts)[1] for line in lines)
    match = next((match for text in texts if (match := _PROCESS.search(text))), None)
    return None if match is None else whole(match[1]) if match[1] else whole(match[2]) - 1


def _announced(lines: Sequence[str]) -> int | None:
    """The rank that a logger or torch_xla names right above a traceback: ``[rank 1] ERROR uncaught``."""
    alarms = (line for line in reversed(lines) if _ALARM.search(line))
    match = next((match for line in alarms if (match := _RANK.search(line))), None)
    return whole(next(group for group in match.groups() if group)) if match is not None else None


def was_handled(hit: Hit) -> bool:
    """Whether another exception was raised from, or while handling, the one that ends this traceback."""
    return next(_chain(hit), None) is not None


def end_of_chain(hit: Hit) -> int | None:
    """The line number of the exception raised last from this one, or while handling it; None if there is none."""
    end = None
    for below, stop, head in _chain(hit):
        found = end_below(head, hit.after[stop + 1 :], hit.hosts)
        end = hit.line + below + found.below if found is not None and found.below else None
    return end


def _chain(hit: Hit) -> Iterator[tuple[int, int, str]]:
    """The heads of the tracebacks below an exception that are its consequences: (lines below, stop, text)."""
    handled = False
    for below, _, stop, line in rows_of(hit.after) if b" above exception" in hit.after else ():
        if HEAD not in line:
            handled = handled or any(words in line for words in _HANDLED)
        elif split_prefix(line, hit.hosts)[0].agrees(hit.origin):
            if not handled:
                return
            handled = False
            yield below, stop, line


def last_exception_after(hit: Hit) -> tuple[int, str] | None:
    """The exception line that ends the traceback quoted below a line: (lines below, text)."""
    for below, _, stop, line in rows_of(hit.after):
        if HEAD in line and split_prefix(line, hit.hosts)[0].agrees(hit.origin):
            end = end_below(line, hit.after[stop + 1 :], hit.hosts)
            if end is not None and end.below:
                return below + end.below, end.text
    return None


def in_helper(hit: Hit) -> bool:
    """Whether the exception is from a thread that only logs or passes data: it ends alone, and the program continues.

    Such threads end together and mix their lines, so the lines above are examined as a whole.
    """
    seen = False
    for line in reversed(hit.lines_before(60)):
        if "Exception in thread" in line:
            return seen
        if ", in <module>" in line:
            return False
        seen = seen or any(part in line.replace("\\", "/") for part in _HELPERS)
    return False


def is_quoted_code(text: str) -> bool:
    """Whether a line is source code quoted in a traceback: its words are in a file, nobody printed them."""
    # IPython numbers the lines that it quotes: ``----> 5     raise …``, ``      4 model = …``.
    if match := re.match(r"(?:-+> ?| {1,6})\d{1,6}(?= )|\d{1,6}(?= {3,}\S)", text):
        text = text[match.end() :]
    if re.match(r"\s*raise \w", text):
        return True
    if not text.startswith((" ", "\t", "│", "|", "❱")):
        return False
    if '"message":' in text or text.lstrip().startswith(
        ("size mismatch", "Missing key", "Unexpected key", "what():", "reason:")
    ):
        return False
    return _QUOTED.match(text) is not None


def below_its_frame(hit: Hit) -> bool:
    """Whether a line is the source of the frame above it."""
    if not hit.text.startswith("    ") or not hit.before:
        return False
    above = split_prefix(hit.lines_before(1)[-1], hit.hosts)[1]
    return above.startswith("  File ") and ", line " in above


def raised_by_instrument(frames: Frames, text: str) -> bool:
    """Whether stoker's own measurements raised this. They call the observed code, so only the innermost frame shows it.

    An OSError is the system's answer to the observed code.
    """
    inner = frames.frames[-1:]
    return any(_OF_INSTRUMENT.search(frame.path) for frame in inner) and "[Errno" not in text


# -- classes ---------------------------------------------------------------------------------------


class _FrameRule(NamedTuple):
    """The class of a frame: `paths` are parts of its file's path, `names` its function; empty: any.

    `innermost`: only if this very frame raised, because the program runs below such frames.
    """

    failure: FailureClass
    paths: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    innermost: bool = False

    def matches(self, frame: Frame) -> bool:
        fits = not self.paths or any(part in frame.path for part in self.paths)
        return fits and (not self.names or frame.function in self.names)


_FRAME_RULES = (
    _FrameRule(
        FailureClass.CHECKPOINT_LOAD,
        paths=("torch/serialization.py",),
        names=frozenset(("load", "_load", "_legacy_load", "find_class", "persistent_load", "_get_restore_location")),
    ),
    _FrameRule(FailureClass.CHECKPOINT_LOAD, paths=("safetensors/",)),
    _FrameRule(
        FailureClass.CHECKPOINT_LOAD,
        names=frozenset(("load_state_dict", "load_checkpoint", "_load_state_dict", "_load_zero_checkpoint", "load_pretrained_weights")),
    ),
    _FrameRule(
        FailureClass.COMPILE_ERROR,
        paths=("/_inductor/", "/_dynamo/", "triton/compiler", "triton/backends", "cpp_extension.py"),
    ),
    _FrameRule(
        FailureClass.RENDEZVOUS,
        paths=("torch/distributed/elastic/rendezvous/", "torch/distributed/rendezvous.py"),
    ),
    # Only torchrun's agent runs here: without a result (its rendezvous was closed), or with one of its own.
    _FrameRule(
        FailureClass.RENDEZVOUS,
        paths=("torch/distributed/launcher/", "torch/distributed/elastic/agent/"),
        innermost=True,
    ),
    _FrameRule(FailureClass.USAGE_ERROR, paths=("/argparse.py", "hydra/_internal"), innermost=True),
)  # fmt: skip


def class_by_frames(frames: Frames) -> FailureClass | None:
    """The class from the code that raised, beyond a plain exception's type: the innermost frame with a rule."""
    # A wrapper around any function that is not to be compiled, or is already: it raises nothing itself.
    known = [frame for frame in frames.frames if not frame.path.endswith("torch/_dynamo/eval_frame.py")]
    for place, frame in enumerate(reversed(known)):
        for rule in _FRAME_RULES:
            if rule.matches(frame) and not (rule.innermost and place):
                return rule.failure
    return None
