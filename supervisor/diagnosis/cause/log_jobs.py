"""A file that holds several jobs, one below the other: the last start of a launcher or program decides.

People append to one file: `nohup … >> train.log`, a batch script that starts a program again, a launcher that restarts its
processes. What ended an earlier job explains nothing of the last one.

A job begins at a line that shells, schedulers and launchers print as they start one (trait `job_start`), or at a launcher's
restart after which training made steps, if something had ended since the last beginning.
"""

from __future__ import annotations

from supervisor.diagnosis.scan.hit import Hit, SourceScan
from supervisor.diagnosis.scan.signature_tables import Trait

# Two starts this close are one: a batch script prints several lines as it begins.
SAME_START_LINES = 5
# One step may be printed before a rank reads that another one failed.
STEPS_AGAIN = 2
MOST_JOBS = 12
_ENDED = frozenset(
    (Trait.SCHEDULER_REPORT, Trait.TASK_EXIT, Trait.BAD_END, Trait.LAUNCHER_END, Trait.GOOD_END)
)
_APPENDS = "nohup: ignoring input"


def job_starts(scan: SourceScan, *, one_process: bool) -> list[int]:
    """The numbers of the lines at which a later job begins, in order.

    A traceback ends a job of one process. Of several, one rank may print it while another still starts.
    """
    ending = _ENDED | {Trait.TRACEBACK} if one_process else _ENDED
    ends = [hit.line for hit in scan.hits if not ending.isdisjoint(hit.signature.traits)]
    starts, since = [scan.first_line], scan.first_line
    for hit in scan.hits:
        restarts = hit.has(Trait.ATTEMPT_RESTART)
        if restarts:
            since = hit.line  # what ended before it ended an attempt of the same launcher
        if not (restarts or hit.has(Trait.JOB_START)) or hit.line - starts[-1] < SAME_START_LINES:
            continue
        if restarts:
            begins = sum(step > hit.line for step in scan.steps) >= STEPS_AGAIN
        else:
            begins = hit.text.startswith(_APPENDS) or any(since <= end <= hit.line for end in ends)
        if begins:
            starts.append(hit.line)
            since = hit.line
    return starts[1:][-(MOST_JOBS - 1) :]


def parts_of(scan: SourceScan, starts: list[int]) -> list[SourceScan]:
    """The scan of each job of a log."""
    return [
        _part(scan, first, last)
        for first, last in zip(
            [scan.first_line, *starts], [*(start - 1 for start in starts), scan.lines], strict=True
        )
    ]


def _part(scan: SourceScan, first: int, last: int) -> SourceScan:
    """The same scan as if the log held these lines alone."""
    head = scan.head[max(first - scan.first_line, 0) : max(last + 1 - scan.first_line, 0)]
    tail = scan.tail[max(first - scan.tail_line, 0) : max(last + 1 - scan.tail_line, 0)]
    steps = tuple(step for step in scan.steps if first <= step <= last)
    return scan._replace(
        hits=tuple(_below(hit, first) for hit in scan.hits if first <= hit.line <= last),
        lines=last,
        head=head,
        tail=tail or head,
        tail_line=max(first, scan.tail_line) if tail else first,
        first_line=first,
        drew_bars=scan.drew_bars and bool(steps),
        steps=steps,
    )


def _below(hit: Hit, first: int) -> Hit:
    """The same hit without the lines above the first one of its job."""
    lines = hit.before.split(b"\n")
    return hit._replace(before=b"\n".join(lines[-(hit.line - first + 1) :]))
