"""Results of scanning a log: matched lines, the traceback around each, and training output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from supervisor.diagnosis.scan.signature_tables import Role, Signature, Trait
from supervisor.run.records import FailureClass, Reason
from supervisor.text import tracebacks
from supervisor.text.decode import clean
from supervisor.text.patterns import Lazy, whole
from supervisor.text.prefixes import Origin, split_prefix
from supervisor.text.tracebacks import HEAD, NAMED_HEAD, Frame, end_below, rows_of

SHOWN_BYTES = 2000


class Hit(NamedTuple):
    """A line that matches a signature. `line` is 1-based. `before` and `after` are the surrounding raw bytes.

    `hosts` contains the prefixes that are host names in this log (see `text.prefixes.learn_hosts`).
    """

    signature: Signature
    source: int
    line: int
    text: str
    origin: Origin
    before: bytes = b""
    after: bytes = b""
    hosts: frozenset[str] = frozenset()

    @property
    def rank(self) -> int | None:
        """The global rank, if the line has it in its own prefix."""
        return self.origin.rank

    def has(self, trait: Trait) -> bool:
        """Check whether the hit's signature has a trait."""
        return trait in self.signature.traits

    def lines_before(self, count: int = 60) -> list[str]:
        """Return cleaned lines before the hit, oldest first."""
        return [clean(raw, SHOWN_BYTES) for raw in self.before.split(b"\n")[-count - 1 : -1]]

    def lines_after(self, count: int = 60) -> list[str]:
        """Return cleaned lines after the hit."""
        return [clean(raw, SHOWN_BYTES) for raw in self.after.split(b"\n")[:count]]


class SourceScan(NamedTuple):
    """The scan of a log. `head` and `tail` are cleaned lines. `tail_line` is the line number at which the tail starts.

    `lines` is the number of the last line, and `first_line` that of the first, in case the log is only part of a file.
    `drew_bars` is true if the kept lines contain a progress bar with a count, even one that was later erased. `steps`
    contains the line numbers of training output (`is_progress`) in the kept lines, computed once because many rules
    need them.
    """

    path: str
    origin: Origin
    hits: tuple[Hit, ...]
    lines: int
    bytes_read: int
    head: tuple[str, ...]
    tail: tuple[str, ...]
    tail_line: int
    hosts: frozenset[str] = frozenset()
    first_line: int = 1
    drew_bars: bool = False
    steps: tuple[int, ...] = ()

    def edges(self) -> tuple[str, ...]:
        """Return the kept lines: the head plus the tail, or only the tail if it includes the head."""
        return self.tail if self.tail_line <= self.first_line else (*self.head, *self.tail)

    def numbered_tail(self) -> Iterable[tuple[int, str]]:
        """Return the tail's lines along with their line numbers."""
        return enumerate(self.tail, start=self.tail_line)

    def tail_steps(self) -> list[tuple[int, str]]:
        """Return the training output in the tail, with line numbers."""
        first = self.tail_line
        return [(number, self.tail[number - first]) for number in self.steps if number >= first]

    def step_lines(self) -> list[str]:
        """Return the training output in the head and tail, in order."""
        head = [self.head[number - self.first_line] for number in self.steps if number < self.tail_line]
        return [*head, *(text for _, text in self.tail_steps())]


class Candidate(NamedTuple):
    """A hit that may be the root cause, with its final class (see `candidates`).

    `order` is its position in the job's timeline, or NaN if no time is known. `line` and `text` may belong to an
    exception that the hit merely wraps. If `soft` is true, the line is only a warning.
    """

    failure: FailureClass
    reason: Reason | None
    strength: int
    is_cause: bool
    hit: Hit
    line: int
    text: str
    order: float
    soft: bool

    @property
    def signature(self) -> Signature:
        """The signature that matched."""
        return self.hit.signature

    @property
    def rank(self) -> int | None:
        """The global rank, if the line has it in its own prefix."""
        return self.hit.origin.rank

    @property
    def source(self) -> int:
        """The index of the log that contains the candidate."""
        return self.hit.source

    def has(self, trait: Trait) -> bool:
        """Check whether the candidate's signature has a trait."""
        return trait in self.hit.signature.traits

    def lines_until(self, line: int) -> list[str]:
        """Return the kept lines between the candidate and a later line in the same log."""
        return self.hit.lines_after()[: max(line - self.line - 1, 0)]


_SOFT = Lazy(
    r"(?:^|[\s\[|:(])(?:W\d{3,4} |[WI] (?:tensorflow|external|xla|tsl)/|WARN(?:ING)?\b|Warning:|INFO\b|DEBUG\b|NOTICE\b)|\[W(?:\d{3,4})? |\wWarning: |\bretry(?:ing)?\b|\b[Uu]sing (?:a |an |the )?(?:random|default|previous|next|another|replacement|dummy|empty|local|cached|latest cached)\b|[Ff]alling back|sending [45]\d\d\b|✅|[Ss]kipping|[Ii]gnor(?:ed|ing)(?!\)$)|Exception ignored in|attempt \d+"
)
# A line's own statement counts more than the error that it quotes: "Warning: could not read x. Error: …".
_CALLED_WARNING = Lazy(r"^\W{0,4}(?:WARN(?:ING)?|[Ww]arning)\W?(?::|\]|\s-)")
_NOT_SOFT = Lazy(
    r"NCCL WARN|remainder of ranks|ERROR|CRITICAL|FATAL|Error:|slurmstepd(?:-\S+)?: error|death signal"
)
_LAUNCHER_WORDS = Lazy(
    r"ChildFailedError|CalledProcessError|ProcessRaisedException|ProcessExitedException|SignalException|RayTaskError|"
    r"ray\.exceptions\.\w+|TaskFailedError|SystemExit|RemoteTraceback|torchelastic|Command '\['?.{0,40}(?:python|torchrun)"
)
# A line that raises an exception and ends in PyTorch's own advice.
_RAISED_WITH_ADVICE = Lazy(
    r"^(?:CUDA|HIP) error: .{1,400}?(?:CUDA|HIP) kernel errors|(?:^|[\s\]|:])(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): ?.{0,400}?(?:\b(?:HINT|Hint|hint|TIP|Tip)S?: |CUDA_LAUNCH|CUDA kernel errors|HIP kernel errors)"
)


# The argument of `sys.exit`: its status, or a message, which means status 1.
_EXITED = Lazy(r"SystemExit(?:: (.*))?$")
_HINT = Lazy(r"\b(?:HINT|Hint|hint|TIP|Tip)S?: ")


def before_hint(text: str) -> str:
    """Strip a trailing suggestion from a line."""
    found = _HINT.search(text)
    return text[: found.start()] if found else text


def best_match(hits: Iterable[Hit]) -> Hit | None:
    """Return the best of a line's hits, both for live use and for the verdict.

    Returns None if advice masks the line. A specific signature beats one that matches any exception.
    """
    matches: list[Hit] = []
    hinting = False
    for hit in hits:
        role = hit.signature.role
        if role is Role.ADVICE:
            if hit.has(Trait.ENDS_MESSAGES) and _RAISED_WITH_ADVICE.search(hit.text):
                hinting = True
                continue
            return None
        if role in (Role.CAUSE, Role.CONSEQUENCE):
            matches.append(hit)
    if hinting:
        # An exception's closing suggestion is not its cause.
        matches = [hit for hit in matches if re.search(hit.signature.regex, before_hint(hit.text))]
    specific = [hit for hit in matches if not hit.has(Trait.GENERIC)]
    return max(specific or matches, key=lambda hit: hit.signature.strength, default=None)


def is_echo(hit: Hit) -> bool:
    """Check whether a plain exception is merely a launcher's report of another exception."""
    if hit.has(Trait.ENDS_TRACEBACK) and (exited := _EXITED.match(hit.text)):
        return exited.group(1) in {None, "0", "None"}
    return hit.has(Trait.GENERIC) and _LAUNCHER_WORDS.search(hit.text) is not None


def is_logged_as_warning(text: str) -> bool:
    """Check whether a line states its own log level as warning or lower."""
    is_soft = _SOFT.search(text) is not None and _NOT_SOFT.search(text) is None
    return is_soft or _CALLED_WARNING.match(text) is not None


# -- training's own lines ---------------------------------------------------------------------------

_NOT_TRAINING = ("slurmstepd", "srun:", "Traceback", "Error: ", "Namespace(")  # SLURM numbers its steps too
# Two alternating bars with unchanged lines prove as much as one new line for each of this many changes.
ALTERNATING: Final = 4
# For lower-case text. With IGNORECASE this pattern took 4 ms to compile, half of Python's own start.
_PROGRESS = Lazy(
    r"""\{['"]loss['"]: ?[-\d.]+
    |\b(?:global_?)?(?:steps?|iter(?:ation)?s?|it|batch|num_updates|update|minibatch|epoch)\b["']?\s{0,3}[=:\[\s/(#]{1,4}\s{0,8}["']?\d
    |\d%\|.{0,60}\|\s*\d+/\d+\s\[
    |\b\d+/\d+\s\[\d+:\d\d
    |\b(?:loss|ppl|grad_norm|wps|tokens/s|samples/s|lr)["']?\s?[=:]\s?["']?[-+\d.]+e?[-+\d]*
    |\b\d{1,12}(?:\.\d{0,12})?\s?(?:it/s|s/it|samples/s|tok/s|tokens/s|img/s)\b
    |\bit\s\d+\s(?:ok|done)\b
    |\bepoch\s?[\[(:]?\s?\d
    |\beta:?\s(?:\d+\sdays?\b|\d+:\d\d)
    |\bep\s\d+\strain""",
    re.VERBOSE,
)


def is_progress(text: str) -> bool:
    """Check whether a line is training output (step, epoch or bar), not a line from a scheduler, tracker or traceback."""
    if _PROGRESS.search(text.lower()) is None or "wandb: " in text[:40]:
        return False
    is_settings = (
        text.lstrip(" [{(").lower().startswith(("config", "args", "arguments", "hparams", "hyperparam"))
    )
    return not is_settings and not any(word in text for word in _NOT_TRAINING)


def went_on(after: Sequence[str], need: int = 3) -> bool:
    """Check whether training output follows: at least `need` distinct lines, or progress bars that keep alternating."""
    seen: set[str] = set()
    changes, last = 0, ""
    for line in after:
        if is_progress(line):
            seen.add(line[:400])
            changes, last = changes + (line != last), line
            if len(seen) >= need or changes >= ALTERNATING * need:
                return True
    return False


# -- the traceback around a line ---------------------------------------------------------------------

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
# Printed above a traceback by `logging.Handler.handleError` and IPython's `EventManager.trigger`. The program continues.
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
# The files of supervisor/instrument, most with the file name set by its `UnseenLoader`.
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
    confirm=False,
    traits=frozenset((Trait.GENERIC, Trait.OPEN_TYPE, Trait.ENDS_TRACEBACK)),
)
"""The signature for a traceback's last line when no table matches it."""


class Frames(NamedTuple):
    """The traceback above an exception line, outermost frame first.

    `spawn_rank` is torch.multiprocessing's process number, `announced` the rank a logger printed just above, and
    `quoted_rank` the rank of a traceback quoted in a distributed checkpoint's report. If `logged`, the program logged it as
    a notice or in a warning, or Python ignored it (`ignored`). If `in_passing`, a message could not be logged or a
    notebook callback failed. If `caught`, a logger printed it at some level, so the exception was caught.
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
    """Return the traceback that ends at this line or, if it is IPython's header with the exception, starts here."""
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
    # torch.multiprocessing prints its process number above a traceback.
    texts = (split_prefix(line, hit.hosts)[1] for line in lines[max(head - 6, 0) : head])
    process = next((match for text in texts if (match := _PROCESS.search(text))), None)
    spawn_rank = None if process is None else whole(process[1]) if process[1] else whole(process[2]) - 1
    return Frames(
        True,
        frames,
        spawn_rank,
        _announced(lines[max(head - 2, 0) : head]),
        whole(quoted[1]) if quoted else None,
        logged=ignored or bool(_LOGGED.search(lines[head]) or _WARNED.search(above)),
        caught=any(_CAUGHT.search(line[:200]) and not is_progress(line) for line in heads),
        ignored=ignored,
        in_passing=_IN_PASSING.search(above) is not None,
    )


def _announced(lines: Sequence[str]) -> int | None:
    """Return the rank that a logger or torch_xla prints above a traceback, as in ``[rank 1] ERROR uncaught``."""
    alarms = (line for line in reversed(lines) if _ALARM.search(line))
    match = next((match for line in alarms if (match := _RANK.search(line))), None)
    return whole(next(group for group in match.groups() if group)) if match is not None else None


def was_handled(hit: Hit) -> bool:
    """Check whether another exception was raised from this traceback's exception or while it was being handled."""
    return next(_chain(hit), None) is not None


def end_of_chain(hit: Hit) -> int | None:
    """Return the line of the last exception raised from this one or while handling it, or None if there is none."""
    end = None
    for below, stop, head in _chain(hit):
        found = end_below(head, hit.after[stop + 1 :], hit.hosts)
        end = hit.line + below + found.below if found is not None and found.below else None
    return end


def _chain(hit: Hit) -> Iterator[tuple[int, int, str]]:
    """Yield headers of later tracebacks that an exception led to, as (lines below, stop, text)."""
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
    """Return the exception line that ends the traceback quoted below a line, as (lines below, text)."""
    for below, _, stop, line in rows_of(hit.after):
        if HEAD in line and split_prefix(line, hit.hosts)[0].agrees(hit.origin):
            end = end_below(line, hit.after[stop + 1 :], hit.hosts)
            if end is not None and end.below:
                return below + end.below, end.text
    return None


def in_helper(hit: Hit) -> bool:
    """Check whether the exception is from a thread that only logs or passes data, so the program survives its death.

    Such threads die together and interleave their lines, so the lines above are searched as a whole.
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
    """Check whether a line is source code quoted in a traceback rather than text the program printed."""
    # IPython (core/ultratb.py) numbers the lines that it quotes: ``----> 5     raise …``, ``      4 model = …``.
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
    """Check whether a line is the source line belonging to the frame above it."""
    if not hit.text.startswith("    ") or not hit.before:
        return False
    above = split_prefix(hit.lines_before(1)[-1], hit.hosts)[1]
    return above.startswith("  File ") and ", line " in above


def raised_by_instrument(frames: Frames, text: str) -> bool:
    """Check whether stoker's instrumentation raised the exception. It wraps user code, so only the innermost frame counts.

    An OSError is excluded because it comes from what the observed code asked the system to do.
    """
    inner = frames.frames[-1:]
    return any(_OF_INSTRUMENT.search(frame.path) for frame in inner) and "[Errno" not in text


# -- classes ---------------------------------------------------------------------------------------


# By frame, as "path:function".
_BY_FRAME = (
    (FailureClass.CHECKPOINT_LOAD, Lazy(
        r"torch/serialization\.py:(?:load|_load|_legacy_load|find_class|persistent_load|_get_restore_location)$|safetensors/"
        r"|:(?:load_state_dict|load_checkpoint|_load_state_dict|_load_zero_checkpoint|load_pretrained_weights)$"
    )),
    (FailureClass.COMPILE_ERROR, Lazy(r"/_inductor/|/_dynamo/|triton/(?:compiler|backends)|cpp_extension\.py")),
    (FailureClass.RENDEZVOUS, Lazy(r"torch/distributed/(?:elastic/rendezvous/|rendezvous\.py)")),
)  # fmt: skip
# Only if this very frame raised, because the program runs below such frames: torchrun's agent, and argument parsers.
_BY_INNERMOST_FRAME = (
    (FailureClass.RENDEZVOUS, Lazy(r"torch/distributed/(?:launcher|elastic/agent)/")),
    (FailureClass.USAGE_ERROR, Lazy(r"/argparse\.py|hydra/_internal")),
)


def class_by_frames(frames: Frames) -> FailureClass | None:
    """Infer a plain exception's class from the code that raised it, using the innermost frame that has a rule."""
    # A wrapper around functions that are not to be compiled, or are already. It raises no exception itself.
    known = [frame for frame in frames.frames if not frame.path.endswith("torch/_dynamo/eval_frame.py")]
    for place, frame in enumerate(reversed(known)):
        for failure, pattern in _BY_FRAME if place else (*_BY_FRAME, *_BY_INNERMOST_FRAME):
            if pattern.search(f"{frame.path}:{frame.function}"):
                return failure
    return None
