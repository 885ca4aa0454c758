"""Split a file that contains several jobs in a row. Only the last launcher or program start counts.

Users append to the same file: `nohup … >> train.log`, a batch script that starts a program again, a launcher
that restarts its processes. How an earlier job ended says nothing about the last one.

A job begins at a line that shells, schedulers and launchers print on startup (trait `job_start`), or at a
launcher's restart followed by training steps, provided a process had exited since the last start. For a single
process, a job also begins between two uncaught exceptions or usage errors that each ended a program.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from supervisor.diagnosis.root_cause import plain_form
from supervisor.diagnosis.scan.log_timeline import bar_went_on
from supervisor.diagnosis.scan.matched_lines import Hit, SourceScan
from supervisor.diagnosis.scan.signature_tables import Trait
from supervisor.text.patterns import Lazy

# Two starts this close are one, because a batch script prints several lines at its start.
SAME_START_LINES = 5
# One step may be printed before a rank notices that another one failed.
STEPS_AGAIN = 2
MOST_JOBS = 12
_ENDED = frozenset(
    (Trait.SCHEDULER_REPORT, Trait.TASK_EXIT, Trait.BAD_END, Trait.LAUNCHER_END, Trait.GOOD_END)
)
_APPENDS = "nohup: ignoring input"
# This many programs that ended on their own are consecutive runs, even if the log has only their errors.
ENDS_OF_A_SWEEP = 3
BEFORE_LINES = 80
_MAIN = Lazy(r", in (?:<module>|_run_module_as_main)$")  # the outermost frame of a script, and of `python -m`
# A chained or logged exception ended no program.
_NO_END = Lazy(
    r"During handling of the above|direct cause of the following|\b(?:INFO|WARN(?:ING)?|DEBUG|ERROR|CRITICAL)\b|Exception ignored in"
)
_OF_A_CHILD = Lazy(
    r"ChildFailedError|CalledProcessError|SignalException|RayTaskError|ProcessRaisedException|ProcessExitedException"
)
# Output that belongs to an end and does not begin a program.
_NO_START = Lazy(
    r"^\s|^\W*$|Traceback|KeyboardInterrupt|[Ee]rror|ERROR|FATAL|[Ff]ail|[Kk]ill|[Aa]bort|CANCEL|exit|signal|SIG[A-Z]{3}|srun|slurmstepd"
    r"|torch[/.]distributed|\[rank\d|^wandb: |^swanlab: "
)


def job_starts(scan: SourceScan, *, one_process: bool) -> list[int]:
    """Return the line numbers at which later jobs begin, in order.

    In a single-process job, a traceback ends the job. With several, one process may print a traceback while another starts.
    """
    ending = _ENDED | {Trait.TRACEBACK} if one_process else _ENDED
    ends = [hit.line for hit in scan.hits if not ending.isdisjoint(hit.signature.traits)]
    starts, since = [scan.first_line], scan.first_line
    for hit in scan.hits:
        restarts = hit.has(Trait.ATTEMPT_RESTART)
        if restarts:
            since = hit.line  # earlier ends belong to an attempt of the same launcher
        if not (restarts or hit.has(Trait.JOB_START)) or hit.line - starts[-1] < SAME_START_LINES:
            continue
        if restarts:
            begins = sum(step > hit.line for step in scan.steps) >= STEPS_AGAIN
        else:
            begins = hit.text.startswith(_APPENDS) or any(since <= end <= hit.line for end in ends)
        if begins:
            starts.append(hit.line)
            since = hit.line
    if one_process:
        starts = sorted({*starts, *_starts_between_ends(scan)})
    return starts[1:][-(MOST_JOBS - 1) :]


def _starts_between_ends(scan: SourceScan) -> Iterator[int]:
    """Yield the first line of each program that exited on its own after an earlier one had done so.

    With two exits, the second program is new if it repeats lines that the first one printed, or if one exit is
    argparse's. argparse's `error` prints the usage and exits with code 2, so that program cannot also raise an exception.
    With three or more exits (a sweep's stderr), any output in between or a different exception is enough.
    """
    ends = [end for hit in scan.hits if (end := _end_of_program(hit)) is not None]
    for one, other in pairwise(ends):
        if other.hit.line <= one.last:
            continue
        below = enumerate(one.hit.lines_after(400), start=one.hit.line + 1)
        own = [(n, line) for n, line in below if one.last < n < other.hit.line and not _NO_START.search(line)]
        if len(ends) >= ENDS_OF_A_SWEEP:
            if own or one.raised != other.raised:
                yield own[0][0] if own else other.hit.line
            continue
        above = (*scan.head[:BEFORE_LINES], *one.hit.lines_before(BEFORE_LINES))
        is_usage = one.hit.has(Trait.USAGE_EXIT) or other.hit.has(Trait.USAGE_EXIT)
        if is_usage or {plain_form(line) for _, line in own} & {plain_form(line) for line in above}:
            yield own[0][0] if own else other.hit.line


class _End(NamedTuple):
    """A program's exit: where its report begins and ends, and the exception in plain form."""

    hit: Hit
    last: int
    raised: str


def _end_of_program(hit: Hit) -> _End | None:
    """Return the exit shown by a main thread's uncaught exception or an argument parser's final error message."""
    if hit.has(Trait.USAGE_EXIT):
        return _End(hit, hit.line, plain_form(hit.text))
    if not hit.text.startswith("Traceback") or bar_went_on(hit.before, hit.after):
        return None
    above = next((line for line in reversed(hit.lines_before(4)) if line.strip()), "")
    below = hit.lines_after(200)
    if not below or not _MAIN.search(below[0]) or _NO_END.search(above):
        return None
    rows = ((n, line) for n, line in enumerate(below) if line.strip() and not line.startswith((" ", "\t")))
    row, raised = next(rows, (0, ""))
    return (
        _End(hit, hit.line + 1 + row, plain_form(raised))
        if raised and not _OF_A_CHILD.search(raised)
        else None
    )


def parts_of(scan: SourceScan, starts: list[int]) -> list[SourceScan]:
    """Split a log's scan into one scan per job."""
    return [
        _part(scan, first, last)
        for first, last in zip(
            [scan.first_line, *starts], [*(start - 1 for start in starts), scan.lines], strict=True
        )
    ]


def _part(scan: SourceScan, first: int, last: int) -> SourceScan:
    """Return the scan restricted to these lines."""

    def without_earlier(hit: Hit) -> Hit:
        lines = hit.before.split(b"\n")
        return hit._replace(before=b"\n".join(lines[-(hit.line - first + 1) :]))

    head = scan.head[max(first - scan.first_line, 0) : max(last + 1 - scan.first_line, 0)]
    tail = scan.tail[max(first - scan.tail_line, 0) : max(last + 1 - scan.tail_line, 0)]
    steps = tuple(step for step in scan.steps if first <= step <= last)
    return scan._replace(
        hits=tuple(without_earlier(hit) for hit in scan.hits if first <= hit.line <= last),
        lines=last,
        head=head,
        tail=tail or head,
        tail_line=max(first, scan.tail_line) if tail else first,
        first_line=first,
        drew_bars=scan.drew_bars and bool(steps),
        steps=steps,
    )
