"""A guess from words alone, where no signature knew a line that could be the cause: better than nothing, and said so."""

from __future__ import annotations

from supervisor.diagnosis.attribution.log_timeline import is_progress
from supervisor.diagnosis.cause.root import Case, Root
from supervisor.diagnosis.cause.vocabulary import class_by_words
from supervisor.diagnosis.scan.scanner import SourceScan
from supervisor.diagnosis.scan.signature_tables import Role
from supervisor.diagnosis.scan.tracebacks import is_quoted_code
from supervisor.run.failures import FailureClass, Reason
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
    r"(?i)error|fail|fatal|exception|abort|kill|cannot|can't|could ?n[o']t|unable|refused|denied|\blost\b|stopp(?:ed|ing)|not found|core dumped|fault\b|assert|invalid|exceeded|cancelled|timed? ?out|insufficient|corrupt|not in\b"
)
_NO_COMPLAINT = Lazy(
    r"(?<!NCCL )\bWARN(?:ING)?\b|Warning: |\bINFO\b|\bDEBUG\b|(?:^|\s)[WI]\d{4} |\[[WI]\d* |: [WI] (?:tensorflow|external|xla|tsl)/|retry|will be|consider|try setting|[Cc]orrected|[\s:=]0$"
)
_BY_LAUNCHER = ("launch-", "traceback-", "silent-death", "end-")


def with_guess(case: Case, root: Root) -> Root:
    """The root, or a class guessed from the words of a complaint where the root is unknown."""
    open_exit = (
        root.chosen is None and root.reason is Reason.EXIT_CODE and root.failure is FailureClass.WORKER_CRASH
    )
    if root.failure is FailureClass.HEALTHY and not root.path and root.confidence < 0.9:
        return _best(case, root, only=_AT_ONCE)
    return _best(case, root) if root.failure is FailureClass.UNKNOWN or open_exit else root


def _best(case: Case, root: Root, only: frozenset[FailureClass] | None = None) -> Root:
    best: tuple[int, Root] | None = None
    for scan in case.scans:
        known = {
            hit.line for hit in scan.hits
            if hit.signature.role in (Role.ADVICE, Role.CONSEQUENCE) or hit.signature.id.startswith(_BY_LAUNCHER)
            or (only is not None and hit.signature.role is Role.CAUSE)  # known, and survived
        }  # fmt: skip
        for row in _complaints(scan, below_steps=only is not None):
            line = scan.tail_line + row
            said = scan.tail[row].removeprefix("wandb: ")  # whoever prints a line, it may be about anything
            found = class_by_words(said, enough=ENOUGH) if line not in known else None
            if found is None or (only is not None and found[0] not in only):
                continue
            if best is None or found[1] > best[0]:
                origin, text = split_prefix(scan.tail[row], scan.hosts)
                rank = origin.over(scan.origin).rank if origin.rank is not None else root.rank
                ranks = (rank,) if rank is not None else ()
                best = found[1], Root(found[0], None, rank, ranks, None, scan.path, line, text, GUESS)
    return best[1] if best is not None else root


def _complaints(scan: SourceScan, *, below_steps: bool) -> list[int]:
    first = max(len(scan.tail) - LAST_LINES, 0)
    rows: list[int] = []
    for row in range(first, len(scan.tail)):
        line = scan.tail[row]
        if is_progress(line) and "(core dumped)" not in line:
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
