"""The result of scanning a log: lines that match a signature, the scan of a whole log, and the meaning of a line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from supervisor.diagnosis.scan.signature_tables import Role, Signature, Trait
from supervisor.run.failures import FailureClass, Reason
from supervisor.text.decode import clean
from supervisor.text.patterns import Lazy
from supervisor.text.prefixes import Origin

SHOWN_BYTES = 2000


class Hit(NamedTuple):
    """A line that a signature matches. `line` counts from 1; `before` and `after` are the raw bytes around it.

    `hosts`: the prefixes that are hosts in this log (see `text.prefixes.learn_hosts`).
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
        """The global rank, if the line's own prefix names it."""
        return self.origin.rank

    def has(self, trait: Trait) -> bool:
        """Whether its signature has a trait."""
        return trait in self.signature.traits

    def lines_before(self, count: int = 60) -> list[str]:
        """Clean lines before the hit, oldest first."""
        return [clean(raw, SHOWN_BYTES) for raw in self.before.split(b"\n")[-count - 1 : -1]]

    def lines_after(self, count: int = 60) -> list[str]:
        """Clean lines after the hit."""
        return [clean(raw, SHOWN_BYTES) for raw in self.after.split(b"\n")[:count]]


class SourceScan(NamedTuple):
    """The scan of one log. `head` and `tail` are clean lines; `tail_line` is the number of the tail's first line.

    `lines` is the number of the last line, and `first_line` that of the first, if the log is a part of a file. `drew_bars`: whether a bar
    with a count was drawn in the kept lines, even if it was wiped again. `steps`: the numbers of training's own lines among the kept ones
    (`is_progress`), computed once because many rules need them.
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
        """The kept lines: the head, and the tail if it does not contain the head."""
        return self.tail if self.tail_line <= self.first_line else (*self.head, *self.tail)

    def numbered_tail(self) -> Iterable[tuple[int, str]]:
        """The tail's lines with their numbers."""
        return enumerate(self.tail, start=self.tail_line)

    def tail_steps(self) -> list[tuple[int, str]]:
        """Training's own lines in the tail, with their numbers."""
        first = self.tail_line
        return [(number, self.tail[number - first]) for number in self.steps if number >= first]

    def step_lines(self) -> list[str]:
        """Training's own lines in the head and the tail, in order."""
        head = [self.head[number - self.first_line] for number in self.steps if number < self.tail_line]
        return [*head, *(text for _, text in self.tail_steps())]


class Candidate(NamedTuple):
    """A hit that may be the root, with its final class (see `candidates`).

    `order` is its position in the job's time, nan if no time is known; `line` and `text` may be those of an
    exception that the hit only wraps. `soft`: it is only a warning.
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
        """The global rank, if the line's own prefix names it."""
        return self.hit.origin.rank

    @property
    def source(self) -> int:
        """The index of its log."""
        return self.hit.source

    def has(self, trait: Trait) -> bool:
        """Whether its signature has a trait."""
        return trait in self.hit.signature.traits

    def lines_until(self, line: int) -> list[str]:
        """The kept lines between it and a later line of the same log."""
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
    """A line without the suggestion at its end."""
    found = _HINT.search(text)
    return text[: found.start()] if found else text


def best_match(hits: Iterable[Hit]) -> Hit | None:
    """The best of the hits in one line, used live and in the verdict.

    None where advice masks the line; a specific signature comes before one of any exception.
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
    """Whether a plain exception is only a launcher's report of another's."""
    if hit.has(Trait.ENDS_TRACEBACK) and (exited := _EXITED.match(hit.text)):
        return exited.group(1) in {None, "0", "None"}
    return hit.has(Trait.GENERIC) and _LAUNCHER_WORDS.search(hit.text) is not None


def is_logged_as_warning(text: str) -> bool:
    """Whether a line names its own level, warning or lower."""
    is_soft = _SOFT.search(text) is not None and _NOT_SOFT.search(text) is None
    return is_soft or _CALLED_WARNING.match(text) is not None
