"""A file that holds several jobs, one after the other: where each begins.

People append to one file: `nohup … >> train.log`, a batch script that starts a program again, steps of one allocation. The last job is
the one that they ask about; what ended an earlier one explains nothing of it.

A job begins where one of these is seen, and something had ended since the last beginning:

- a line that shells, schedulers and launchers print as a job begins (trait `job_start`);
- the lines that open the file, once more;
- other output after a scheduler's or launcher's report that a job's processes had ended;
- what stands between two ends that one program cannot have: two uncaught exceptions, two closing reports of torchrun on one host.

An attempt of a launcher that restarts its own processes is no job (see `log_attempts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

from supervisor.diagnosis.case import Case
from supervisor.diagnosis.cause.fingerprint import plain_form
from supervisor.diagnosis.scan.hit import Hit, SourceScan
from supervisor.diagnosis.scan.log_timeline import bar_went_on, is_progress, when
from supervisor.diagnosis.scan.signature_tables import Role, Trait
from supervisor.text.decode import plain_chunks
from supervisor.text.patterns import Lazy

# A repeat of at least this many consecutive lines from the top of a log is taken for a restart of the program.
OPENING_LINES = 2
OPENING_WITHIN = 20
# After a report of an end, so much other output without a word of trouble is the next job's: peers that die print tracebacks.
NEXT_JOB_LINES = 20
# So many programs that ended by themselves are runs one after the other, though only their errors were kept: a sweep's stderr.
ENDS_OF_A_SWEEP = 3
# Of more jobs in one file, the first ones are taken together.
MOST_JOBS = 12
# Two starts this close are one: a batch script prints several lines as it begins.
SAME_START_LINES = 5
_NO_OPENING = Lazy(r"^\s|^\[rank\d|Traceback|[Ww]arn|WARN|Error|^\W*$|^(?:\S+\s*){1,2}$")
_WORD = Lazy(r"[A-Za-z_]{6,}")
_APPENDS = "nohup: ignoring input"
# The launcher's or the scheduler's word that processes ended. A traceback ends a job of one process; of several, one rank may print
# it while another still starts.
_REPORTED = frozenset((Trait.SCHEDULER_REPORT, Trait.TASK_EXIT, Trait.BAD_END, Trait.LAUNCHER_END))
_ENDED = _REPORTED | {Trait.GOOD_END}
_MAIN = Lazy(r", in (?:<module>|_run_module_as_main)$")  # the outermost frame of a script, and of `python -m`
_CHAINED = Lazy(r"During handling of the above|direct cause of the following")
_LOGGED = Lazy(r"\b(?:INFO|WARN(?:ING)?|DEBUG|ERROR|CRITICAL)\b|Exception ignored in")
_OF_A_CHILD = Lazy(
    r"ChildFailedError|CalledProcessError|SignalException|RayTaskError|ProcessRaisedException|ProcessExitedException"
)
_RANK = Lazy(r"  rank +: (\d+)")
_HOST = Lazy(r"  host +: (\S+)")
BEFORE_LINES = 80
MESSAGE_LINES = 4
_NO_START = Lazy(r"^\s|^$")
_TROUBLE = Lazy(
    r"Traceback|KeyboardInterrupt|[Ee]rror|ERROR|FATAL|[Ff]ail|[Kk]ill|[Aa]bort|CANCEL|exit|signal|SIG[A-Z]{3}|srun|slurmstepd|torch/distributed|torch\.distributed|\[rank\d|^\W*$|^wandb: |^swanlab: |Root Cause|time +: |host +: |rank +: |^ {2,}File "
)


def job_starts(case: Case) -> list[int]:
    """The numbers of the lines at which a later job begins, in order; none where the case is one job, or has several logs."""
    if len(case.scans) != 1:
        return []
    scan = case.scans[0]
    marks = {hit.line: when(hit.text) for hit in scan.hits if hit.has(Trait.JOB_START)}
    marks |= {line: when(scan.tail[line - scan.tail_line]) for line in _openings(scan, case)}
    marks |= dict.fromkeys(_after_ends(scan, one_process=_is_one_process(case)))
    ending = _ENDED | {Trait.TRACEBACK} if _is_one_process(case) else _ENDED
    ends = [hit for hit in scan.hits if not ending.isdisjoint(hit.signature.traits)]
    restarts = [hit.line for hit in scan.hits if hit.has(Trait.ATTEMPT_RESTART)]
    certain = {hit.line for hit in scan.hits if hit.text.startswith(_APPENDS)}
    certain = _apart(certain, scan.first_line) | set(_between_ends(scan, one_process=_is_one_process(case)))
    starts = [scan.first_line]
    for line in sorted({*marks, *certain}):
        ended = [
            hit for hit in ends if starts[-1] <= hit.line < line and line - starts[-1] >= SAME_START_LINES
        ]
        if line in certain or (ended and _is_new_job(line, marks[line], ended, restarts)):
            starts.append(line)
    return starts[1:][-(MOST_JOBS - 1) :]


def _apart(lines: set[int], first: int) -> set[int]:
    """The lines without those that follow another closely, or the log's first line."""
    ordered = [first, *sorted(lines)]
    return {line for before, line in pairwise(ordered) if line - before >= SAME_START_LINES}


def _is_new_job(line: int, start_t: float | None, ended: Sequence[Hit], restarts: Sequence[int]) -> bool:
    """Whether a job and no attempt begins below the ends of processes.

    A start that bears an earlier time than an end above it is of a log of another node, put below the first.
    """
    times = [at for hit in ended if (at := when(hit.text)) is not None]
    is_earlier = start_t is not None and bool(times) and start_t < max(times)
    return not is_earlier and not any(ended[-1].line <= at <= line for at in restarts)


def by_job(chunks: Iterable[bytes], starts: Sequence[int]) -> Iterator[tuple[int, Iterator[bytes]]]:
    """A log's bytes job by job, each with the number of its first line. Each part is to be read before the next is asked for."""
    lines = (1, *starts)
    for place, parts in groupby(_parts(plain_chunks(chunks), lines), key=itemgetter(0)):
        yield lines[place], (data for _, data in parts)


def _parts(chunks: Iterable[bytes], starts: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """The chunks, cut where a job begins, each with the place of its job."""
    place, line = 0, 1
    for chunk in chunks:
        rest = chunk
        while place + 1 < len(starts) and line + rest.count(b"\n") >= starts[place + 1]:
            cut = _after_lines(rest, starts[place + 1] - line)
            yield place, rest[:cut]
            rest, line, place = rest[cut:], starts[place + 1], place + 1
        line += rest.count(b"\n")
        yield place, rest


def _after_lines(data: bytes, count: int) -> int:
    at = 0
    for _ in range(count):
        at = data.index(b"\n", at) + 1
    return at


def _is_one_process(case: Case) -> bool:
    return not case.launch.distributed and len(case.ranks.seen) <= 1


def _after_ends(scan: SourceScan, *, one_process: bool) -> Iterator[int]:
    """Where other output begins after a report that processes ended, or Ctrl-C's traceback, and continues for long without a word of trouble."""
    for hit in scan.hits:
        interrupted = one_process and hit.text.startswith("KeyboardInterrupt")
        reported = not _REPORTED.isdisjoint(hit.signature.traits) and not hit.has(Trait.SHELL_EXIT)
        if not (interrupted or reported):
            continue
        below = [(n, line) for n, line in enumerate(hit.lines_after(), start=hit.line + 1) if line.strip()]
        first = next((at for at, (_, line) in enumerate(below) if not _TROUBLE.search(line)), None)
        if first is None:
            continue
        output = below[first : first + NEXT_JOB_LINES]
        # A job that continues beside a task that ended prints steps at once; one that begins does not.
        goes_on = any(is_progress(line) for _, line in output[:3])
        if (
            len(output) == NEXT_JOB_LINES
            and not goes_on
            and not any(_TROUBLE.search(text) for _, text in output)
        ):
            yield output[0][0]


class _End(NamedTuple):
    """The end of a program: the lines that report it, and the host and rank where they are named."""

    first: int
    last: int
    hit: Hit
    host: str = ""
    raised: str = ""  # the exception, in its plain form


def _between_ends(scan: SourceScan, *, one_process: bool) -> Iterator[int]:
    """Where a program begins that ends by itself below the end of another one."""
    ends = [
        end for hit in scan.hits if (end := _end_of_program(hit) if one_process else _end_of_launcher(hit))
    ]
    sweep = one_process and len(ends) >= ENDS_OF_A_SWEEP
    for one, other in pairwise(ends):
        if one.host != other.host or other.first <= one.last:
            continue
        if one.host or one.hit.has(Trait.USAGE_EXIT):
            yield one.last + 1
            continue
        own = _output_below(one, other.first, scan)
        if sweep and (own or one.raised != other.raised):
            yield own[0][0] if own else other.first
            continue
        above = (*scan.head[:BEFORE_LINES], *one.hit.lines_before(BEFORE_LINES))
        if {plain_form(line) for _, line in own} & {plain_form(line) for line in above}:
            yield own[0][0]


def _output_below(end: _End, until: int, scan: SourceScan) -> list[tuple[int, str]]:
    """What a program printed below the end of another one. Of an exception's message the rest stands below its first line."""
    causes = {
        hit.line for hit in scan.hits if hit.signature.role is Role.CAUSE and end.last < hit.line < until
    }
    message = max((line for line in causes if line <= end.last + MESSAGE_LINES), default=end.last)
    below = enumerate(end.hit.lines_after(400), start=end.hit.line + 1)
    return [(n, line) for n, line in below if message < n < until and not _is_no_start(line)]


def _is_no_start(line: str) -> bool:
    return _NO_START.search(line) is not None or _TROUBLE.search(line) is not None


def _end_of_program(hit: Hit) -> _End | None:
    """An uncaught exception of a program's main thread, or an argument parser's last words."""
    if hit.has(Trait.USAGE_EXIT):
        return _End(hit.line, hit.line, hit)
    if (
        not hit.has(Trait.TRACEBACK)
        or not hit.text.startswith("Traceback")
        or bar_went_on(hit.before, hit.after)
    ):
        return None
    above = next((line for line in reversed(hit.lines_before(4)) if line.strip()), "")
    below = hit.lines_after(200)
    if not below or not _MAIN.search(below[0]) or _CHAINED.search(above) or _LOGGED.search(above):
        return None
    raised = next(
        (n for n, line in enumerate(below) if line.strip() and not line.startswith((" ", "\t"))), None
    )
    if raised is None or _OF_A_CHILD.search(below[raised]):
        return None
    return _End(hit.line, hit.line + 1 + raised, hit, raised=plain_form(below[raised]))


def _end_of_launcher(hit: Hit) -> _End | None:
    """torchrun's closing report, which it prints once, after its restarts too (torch/distributed/elastic/multiprocessing/errors)."""
    if not hit.has(Trait.LAUNCHER_END) or "ChildFailedError" not in hit.text:
        return None
    below = list(enumerate(hit.lines_after(80), start=hit.line + 1))
    host = next(((n, match.group(1)) for n, line in below if (match := _HOST.match(line))), None)
    if host is None:
        return None
    closing = next((n for n, line in below if n > host[0] and line.startswith("=====")), host[0])
    # Two agents of one job on a host (one a container) report ranks of their own.
    rank = next((match.group(1) for _, line in below if (match := _RANK.match(line))), "")
    return _End(hit.line, closing, hit, f"{host[1]}, rank {rank}")


def _openings(scan: SourceScan, case: Case) -> Iterator[int]:
    """Where the lines that open the log come again in its tail. Of several ranks each opens its output alike."""
    one_process = _is_one_process(case)
    launchers_ended = [item.hit.line for item in case.launch.exits]
    launchers_ended += [hit.line for hit in scan.hits if hit.has(Trait.LAUNCHER_END)]
    opening, forms = _opening(scan.head[:OPENING_WITHIN])
    word = _WORD.search(scan.head[opening]) if forms else None
    if word is None:
        return
    for row in range(len(scan.tail) - len(forms) + 1):
        start = scan.tail_line + row
        if (
            word.group() in scan.tail[row]
            and start > scan.first_line + opening
            and [plain_form(line) for line in scan.tail[row : row + len(forms)]] == forms
            and (one_process or any(at < start for at in launchers_ended))
        ):
            yield start


def _opening(head: Sequence[str]) -> tuple[int, list[str]]:
    """The row of the first lines of a log that tell one program's start from another's, and their plain forms; none: ``(0, [])``."""
    rows: list[int] = []
    for row, line in enumerate(head):
        if _NO_OPENING.search(line) or is_progress(line) or not _WORD.search(line):
            rows.clear()
            continue
        rows.append(row)
        if len(rows) == OPENING_LINES:
            return rows[0], [plain_form(head[at]) for at in rows]
    return 0, []
