"""Short phrases: a line's location (``rank 1 stderr.log:418``), and the batch question and its answer. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from itertools import groupby

from supervisor.job.batch import describe
from supervisor.job.spec import BatchAnswer, BatchQuestion
from supervisor.run.events import BatchAnswered
from supervisor.run.records import UsedBatch
from supervisor.run.state import AttemptState, RankState
from supervisor.run.timeline import answer_values, question_values
from supervisor.views.format import short_path
from supervisor.views.wording.translate import Tr, Words, english

# The folder of an attempt below its run (run/paths.py). The node number does not matter here.
_ATTEMPTS = "nodes/0/attempts"


def place_of(attempt: AttemptState, path: str, line: int | None, tr: Tr = english) -> str:
    """Return a verdict's file and line, with the rank's name if possible, or else the path in the run or the file name.

    Args:
        attempt: the verdict's attempt. Relative paths are relative to its directory.
        path: the path given in the verdict.
        line: line number, from 1.
        tr: translates into the user's language.
    """
    number = f":{line}" if line is not None else ""
    rank = _writer(attempt.ranks.values(), path)
    # A watched log is elsewhere and may have no rank in its name.
    if rank is not None and (rank.rank is not None or not posixpath.isabs(path)):
        name = tr(f"rank {rank.rank if rank.rank is not None else rank.local_rank}")
        return f"{name} {posixpath.basename(path)}{number}"
    return f"{below_run(attempt.number, path)}{number}"


def is_stacks(path: str | None) -> bool:
    """Check whether a verdict's path points to a stack dump instead of a log."""
    folder, _, name = (path or "").rpartition("/")
    return name.startswith("stacks-") and folder.rpartition("/")[2] == "artifacts"


def below_run(attempt: int, path: str) -> str:
    """Make a path relative to the attempt or run directory, or keep only its last two components."""
    home = f"{_ATTEMPTS}/{attempt}"
    if posixpath.isabs(path):
        _, inside, rest = path.partition("/nodes/")
        _, kept, artifact = path.partition("/artifacts/")
        if inside:
            return below_run(attempt, posixpath.relpath(f"nodes/{rest}", home))
        return f"artifacts/{artifact}" if kept else short_path(path)
    found = posixpath.normpath(posixpath.join(home, path))
    if found.startswith("../"):
        return short_path(found.rpartition("../")[2])
    return found.removeprefix(f"{home}/")


def of_project(path: str, folder: str | None) -> str:
    """Shorten a source path: make it relative to the job's directory if inside it, or keep ``…/`` and two components."""
    if folder and posixpath.isabs(path) and path.startswith(folder.rstrip("/") + "/"):
        return path[len(folder.rstrip("/")) + 1 :]
    if not posixpath.isabs(path):
        return posixpath.normpath(path) if path else path
    return path if path.count("/") < 3 else f"…/{short_path(path)}"


def _writer(ranks: Iterable[RankState], path: str) -> RankState | None:
    """Return the rank that writes to a file, or None if there is no such rank or more than one."""
    found = [r for r in ranks for name in (r.stdout, r.stderr) if name and _is_same(path, name)]
    return found[0] if len(found) == 1 else None


def _is_same(path: str, name: str) -> bool:
    """Check whether a verdict's path refers to a rank's file, regardless of how the path of the run directory is written."""
    if posixpath.isabs(name):
        return path == name
    return path == name or path.endswith(f"/{name}")


def question_text(question: BatchQuestion, tr: Words) -> str:
    """Return the question's text, such as ``what does --bs 24 count?``."""
    return tr.sentence("batch", "question", question_values(question))


def answer_text(question: BatchQuestion, value: str, tr: Words) -> str:
    """Return the answer's text, such as ``24 is per rank``."""
    return tr.sentence("batch", "answer", answer_values(question, value))


def given_text(given: BatchAnswered, tr: Words) -> str:
    """Return the timeline's text for an answer, such as ``you answered on 2026-11-22: 24 is per rank``."""
    kind = "batch_remembered" if given.day else "batch_answered"
    values = answer_values(given.question, given.value)
    return tr.sentence("moment", kind, {**values, "day": given.day, "by": given.by, "trial": given.trial})


def effect_text(answer: BatchAnswer, tr: Words) -> str:
    """Describe the effect of an answer, e.g. ``12 × accumulation 2 × 2 ranks = global batch 48``."""
    change = answer.change
    if change is None:
        return tr(answer.refusal)
    before, after = change.before.global_batch, change.after.global_batch
    shrinks = tr(f"no longer {before}") if after < before else ""
    return ", ".join(filter(None, (tr(describe(change.after)), shrinks)))


LARGE = 1.25
"""A batch with this many times the usual number of elements is called large."""


def used_batch_lines(batches: Sequence[UsedBatch], tr: Words = english) -> list[str]:
    """Return a line for each rank that says which batch it was working on. Epochs and batches count from 0."""
    lines = []
    for rank, group in groupby(batches, key=lambda batch: batch.rank):
        *_, last = own = list(group)
        shapes = ", ".join(
            f"{' × '.join(map(str, shape))} {dtype}"
            for shape, dtype in zip(last.shapes, last.dtypes, strict=False)
        )
        usual = last.times_usual if (last.times_usual or 0.0) >= LARGE else None
        place = {"rank": rank, "epoch": last.epoch, "at": of_project(last.at, None) if last.at else ""}
        values = {**place, "shapes": shapes, "index": last.index, "usual": usual}
        if len(own) > 1:
            several = {**place, "shapes": shapes, "first": own[0].index, "last": last.index}
            lines.append(tr.sentence("used_batch", "several", several))
        else:
            lines.append(tr.sentence("used_batch", "one", values))
    return lines


def flags_text(question: BatchQuestion, answer: BatchAnswer) -> str:
    """Return the flags that answer the question up front, so a restart does not have to wait for the user."""
    change = answer.change
    shrinks = change is not None and change.after.global_batch < change.before.global_batch
    return question.flag(answer.value) + (" --allow-smaller-global" if shrinks else "")
