"""Decide from the logs whether an exit code of 0 means success.

Shell pipes, ``|| true``, srun and pdsh exit with 0 whatever their program did, and a program may swallow its own failure. Three
questions decide: do programs print this line routinely, did the program continue after it, and had it reached its planned end?
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from supervisor.diagnosis.attempt_facts import STOP_SIGNALS, Facts, Root
from supervisor.diagnosis.candidates import REPLACED
from supervisor.diagnosis.launcher_reports import Exit
from supervisor.diagnosis.scan.log_timeline import (
    FAILS,
    bar_went_on,
    form_of,
    is_bar,
    is_closing,
    is_evaluation,
    says_why_it_ends,
)
from supervisor.diagnosis.scan.matched_lines import (
    Candidate,
    Frames,
    Hit,
    SourceScan,
    frames_above,
    is_progress,
    went_on,
)
from supervisor.diagnosis.scan.signature_tables import Trait
from supervisor.run.records import FailureClass, Reason
from supervisor.text.patterns import Lazy

# A total that appears in this many lines of one counter is the total of the whole training.
LINES_OF_TOTAL = 3
# A shell's last words and the tracebacks of other ranks may follow a failure. With more lines, the program continued.
MOST_BELOW = 20
MOST_BELOW_SELDOM = 200
# If the head of a traceback is out of view, one this deep was not handled.
DEEP_FRAMES = 20
_SELDOM_PRINTED = frozenset(
    (
        FailureClass.CUDA_OOM, FailureClass.HOST_OOM, FailureClass.CUDA_ERROR, FailureClass.GPU_FAULT,
        FailureClass.NCCL_TIMEOUT, FailureClass.NCCL_ERROR, FailureClass.WORKER_CRASH,
    )
)  # fmt: skip
_BY_SIGNAL = frozenset((Reason.KILLED, Reason.SEGFAULT, Reason.SIGNAL))
# argparse's last words, and Python's own if it finds no program to run.
_REFUSED = Lazy(r"\S+\.py: error: |python[\d.]*: (?:can't open file|No module named) ")
_MEASURED = Lazy(
    r"(?i)\b(?:(?:\w+[_/ ])?loss|acc(?:uracy)?|top-?[15]|f1|bleu|rouge\w*|auc|map|m?iou|psnr|wer|perplexity|ppl|(?:\w+ )?score)\b\W{0,4}(?:(?:of|is|was|at)\W)?\d"
    r"|\b(?:saved|saving|wrote|written)\b.{0,60}(?:checkpoint|ckpt|weights|model|\.pth?\b|\.safetensors)"
)
# The end of a program that stated right below a traceback what it did instead.
_ENDS = Lazy(r"(?i)\b(?:done|finished|completed?|saved|wrote|written)\b")
_TRAINS = Lazy(r"(?i)\btrain\w*\.py\b|\b(?:training|loss|epochs?|optimi[sz]er|learning.rate|lr)\b")
_NAMED_STEP = Lazy(r"(?i)\b(?:step|iter(?:ation)?|update)s?\W{0,4}(\d{1,12})\b")


class PlannedEnd(NamedTuple):
    """Training progress: `done` of `total` steps or epochs. `is_reached` allows for one missing logging interval."""

    unit: str
    done: int
    total: int
    is_reached: bool


def planned_end(facts: Facts) -> PlannedEnd | None:
    """Return how far training got, or None if the planned end of the full training run is unknown."""
    job = facts.job
    if job.last_step is not None and job.total_steps:
        counter = rf"(?<![\d.:/])(\d{{1,12}})\s?(?:/|of)\s?{job.total_steps}(?![\d./])"
        counted = _counted(facts.scans, counter, declared=job.is_total_declared)
        if counted is not None:
            done = max(job.last_step, counted.highest)  # a watched job's steps are journaled a second late
            is_reached = job.final_checkpoint or done + counted.gap >= job.total_steps - 1
            return PlannedEnd("step", done, job.total_steps, is_reached)
    if job.epochs is not None:
        epoch, total = job.epochs
        counter = rf"(?i)\bep(?:och)?s?\W{{0,3}}(\d{{1,9}})\s?(?:/|of)\s?{total}(?![\d./])"
        counted = _counted(facts.scans, counter, declared=False)
        # The log shows only the start of the last epoch.
        if counted is not None and (done := max(epoch, counted.highest)) + counted.gap < total - 1:
            return PlannedEnd("epoch", done, total, job.final_checkpoint)
    return None


class _Counted(NamedTuple):
    """A counter's highest value and the largest gap between two of its values."""

    highest: int
    gap: int


def _counted(scans: Iterable[SourceScan], counter: str, *, declared: bool | None) -> _Counted | None:
    """Summarize a counter's values in the logs. Return None if its total may cover only part of the training run."""
    pattern = re.compile(counter)
    highest, gaps, is_counted, is_whole = 0, [1], False, False
    for scan in scans:
        counted = [(int(found[1]), text) for text in scan.step_lines() if (found := pattern.search(text))]
        plain = [count for count, text in counted if not is_bar(text)]
        if any(2 * after < before for before, after in pairwise(plain)):
            return None  # the counter restarts with each epoch
        is_counted = is_counted or bool(counted)
        is_whole = is_whole or len(set(plain)) >= LINES_OF_TOTAL
        named = pattern if counted else _NAMED_STEP
        states = sorted({int(found[1]) for _, text in scan.tail_steps() if (found := named.search(text))})
        gaps += [after - before for before, after in pairwise(states)]
        highest = max([highest, *states])
    is_reported = declared is None and not is_counted
    return _Counted(highest, max(gaps)) if declared or is_whole or is_reported else None


def reached_end(facts: Facts, root: Root) -> bool:
    """Check whether training reached its planned end, or an evaluation had results before a final, possibly handled traceback."""
    end = planned_end(facts)
    if end is not None or facts.job.last_step is not None:
        return end is not None and end.is_reached
    as_own = replace(facts, job=facts.job._replace(is_code_own=True))  # then a traceback counts as handled
    scans = (scan for scan in facts.scans if scan.path == root.path)
    above = [text for scan in scans for number, text in scan.numbered_tail() if number < root.line]
    steps = (text for text in above if _TRAINS.search(text) or is_progress(text))
    has_results = all(map(is_evaluation, steps)) and any(map(_MEASURED.search, above))
    return has_results and not standing(as_own, root)


def says_end(facts: Facts) -> bool:
    """Check whether the program reports finishing or being told to stop. In shell output, a word like *done* proves nothing."""
    if any(item.failure is FailureClass.TERMINATED for item in facts.candidates):
        return True
    merged = not facts.job.is_code_own
    return (not merged and facts.good_end) or any(
        says_why_it_ends(scan, merged=merged)
        or any(hit.has(Trait.GOOD_END) and not hit.has(Trait.CLOSING_LINE) for hit in scan.hits)
        for scan in facts.scans
    )


def standing(facts: Facts, root: Root) -> bool:
    """Check for evidence of a failure after which the program did not continue."""
    if standing_exit(facts) is not None:
        return True
    end = planned_end(facts)
    is_missed = end is not None and not end.is_reached
    for item in facts.candidates:
        if _is_evidence(item, facts, is_missed) and not _continued(facts, item.hit):
            return True
    # The machine's records have no line, and may concern another process.
    return root.line == 0 and root.chosen is None and is_missed


def standing_exit(facts: Facts) -> Exit | None:
    """Return a failed process's exit, from its code or a launcher or shell report, if nothing continued afterwards."""
    bad = (item for item in facts.launch.exits if item.code != 0 and item.code not in STOP_SIGNALS)
    return next((item for item in bad if item.hit.source < 0 or not _continued(facts, item.hit)), None)


def _is_evidence(item: Candidate, facts: Facts, is_missed: bool) -> bool:
    """Check whether a line shows a fatal error: programs do not print it routinely, and this program ended because of it."""
    above = frames_above(item.hit)
    in_thread = bool(above.frames) and above.frames[0].path.endswith("threading.py")
    if item.soft or above.ignored or in_thread or not (item.is_cause or item.failure in _SELDOM_PRINTED):
        return False
    if item.has(Trait.OWN) or item.failure in _SELDOM_PRINTED or item.reason in _BY_SIGNAL:
        return True
    if _REFUSED.search(item.text) is not None:
        return True
    if item.failure in (FailureClass.TERMINATED, FailureClass.HANG) or above.caught or above.logged:
        return False
    # Python itself exits with 1 after an unhandled exception.
    return (is_missed or not facts.job.is_code_own) and _begins_at_top(above)


def _begins_at_top(traceback: Frames) -> bool:
    """Check whether a traceback starts at the top level of a program, meaning no function handled the exception."""
    frames = [frame for frame in traceback.frames if "runpy" not in frame.path]
    if not traceback.found or not frames:
        return len(frames) >= DEEP_FRAMES
    is_child = frames[0].path == "<string>" and any("/multiprocessing/" in one.path for one in frames[1:2])
    return frames[0].function == "<module>" and not is_child


def _continued(facts: Facts, hit: Hit) -> bool:
    """Check whether a step, epoch, checkpoint, metric or (in the program's own stream) closing line follows."""
    scan = facts.scans[hit.source]
    below = [
        text
        for number, text in scan.numbered_tail()
        if number > hit.line and not is_bar(text) and not FAILS.search(text)
    ]
    forms = {form_of(text) for number, text in scan.tail_steps() if number < hit.line}
    most = MOST_BELOW_SELDOM if hit.signature.failure in _SELDOM_PRINTED else MOST_BELOW
    return (
        bar_went_on(hit.before, hit.after)
        or len(below) > most
        or any(form_of(text) in forms or _MEASURED.search(text) for text in below)
        or (not forms and went_on(below, need=2))
        or (facts.job.is_code_own and any(map(is_closing, below)))
        or (not forms and most == MOST_BELOW and _says_instead(scan, hit) and any(map(_ENDS.search, below)))
    )


def _says_instead(scan: SourceScan, hit: Hit) -> bool:
    """Check whether a program that does no training says, right after an exception, what it did instead."""
    above = (text for number, text in scan.numbered_tail() if number <= hit.line)
    return (
        scan.first_line == 1  # no other job was cut off above it in the file
        and any(REPLACED.search(text[-80:].lower()) for text in hit.lines_after(3))
        and len({other.line for other in scan.hits if other.text == hit.text}) == 1
        and not any(map(_TRAINS.search, above))
    )
