"""A guess from words alone, where no signature knew a line that could be the cause: better than nothing, and marked as such."""

from __future__ import annotations

from supervisor.diagnosis.case import Case, Root
from supervisor.diagnosis.cause.vocabulary import class_by_words
from supervisor.diagnosis.scan.hit import Hit, SourceScan
from supervisor.diagnosis.scan.signature_tables import Role, Trait
from supervisor.diagnosis.scan.tracebacks import is_quoted_code
from supervisor.run.failures import FailureClass
from supervisor.text.patterns import Lazy
from supervisor.text.prefixes import split_prefix

# Of the guesses that the blind rounds made with signatures held out, 7 of 10 were right.
GUESS = 0.6
# One word more than a plain exception needs: these lines have not even an exception's type.
ENOUGH = 4
LAST_LINES = 400
# A printed configuration or text has all words in it.
LONGEST_COMPLAINT = 1200
# A line below the last step, in a log that else would be healthy, must be of a kind that ends a process at once.
_AT_ONCE = frozenset(
    (FailureClass.WORKER_CRASH, FailureClass.HOST_OOM, FailureClass.CUDA_ERROR, FailureClass.GPU_FAULT, FailureClass.TERMINATED)
)  # fmt: skip
_COMPLAINT = Lazy(
    r"(?i)error|fail|fatal|exception|abort|kill|cannot|can't|could ?n[o']t|unable|refused|denied|\blost\b|stopp(?:ed|ing)|not found|core dumped|\bfault\b|assert|invalid|exceeded|cancelled|timed? ?out|insufficient|corrupt|not in\b"
)
_NO_COMPLAINT = Lazy(
    r"(?<!NCCL )\bWARN(?:ING)?\b|Warning: |\bINFO\b|\bDEBUG\b|(?:^|\s)[WI]\d{4} |\[[WI]\d* |: [WI] (?:tensorflow|external|xla|tsl)/|retry|will be|consider|try setting|[Cc]orrected|[\s:=]0$|DataLoader worker \(pid"
)
_NOT_BY_THE_PROGRAM = frozenset((Trait.LAUNCHER_REPORT, Trait.TRACEBACK, Trait.TASK_EXIT, Trait.GOOD_END))


def guess(case: Case, root: Root, *, ended_at_once: bool = False) -> Root:
    """The class that the words of a complaint lead to; the root as it is where none do.

    `ended_at_once`: only complaints below the last step, of classes that end a process at once.
    """
    best: tuple[int, Root] | None = None
    for scan in case.scans:
        known = {hit.line for hit in scan.hits if _is_known(hit, ended_at_once)}
        for row in _complaints(scan, below_steps=ended_at_once):
            line = scan.tail_line + row
            if line in known:
                continue
            # Whoever prints a line, it may be about anything.
            found = class_by_words(scan.tail[row].removeprefix("wandb: "), enough=ENOUGH)
            if found is None or (ended_at_once and found[0] not in _AT_ONCE):
                continue
            if best is None or found[1] > best[0]:
                origin, text = split_prefix(scan.tail[row], scan.hosts)
                rank = origin.rank if origin.rank is not None else root.rank
                ranks = (rank,) if rank is not None else ()
                best = found[1], Root(found[0], None, rank, ranks, None, scan.path, line, text, GUESS)
    return best[1] if best is not None else root


def _is_known(hit: Hit, ended_at_once: bool) -> bool:
    """Whether a signature knows the line, and it was weighed already."""
    role = hit.signature.role
    return (
        role in (Role.ADVICE, Role.CONSEQUENCE)
        or not _NOT_BY_THE_PROGRAM.isdisjoint(hit.signature.traits)
        or (ended_at_once and role is Role.CAUSE)
    )


def _complaints(scan: SourceScan, *, below_steps: bool) -> list[int]:
    first = max(len(scan.tail) - LAST_LINES, 0)
    steps = frozenset(scan.steps)
    rows: list[int] = []
    for row in range(first, len(scan.tail)):
        line = scan.tail[row]
        if scan.tail_line + row in steps and "(core dumped)" not in line:
            if below_steps:
                rows.clear()
        elif (
            len(line) <= LONGEST_COMPLAINT
            and _COMPLAINT.search(line)
            and not _NO_COMPLAINT.search(line)
            and not is_quoted_code(line)
        ):
            rows.append(row)
    return rows
