"""Whether the logs of a folder belong to one job: what their names tell apart, and which of them are a training's.

Names decide first: ranks, nodes, tasks, streams, attempts and words such as ``train`` or ``console`` tell no jobs apart.
Of names that do, two must be logs of trainings: a run's own folder may also hold a list of packages or a profile.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from itertools import combinations

from supervisor.keeper.observer.observer import span_of_logs
from supervisor.keeper.observer.target import ObservedLog
from supervisor.run.regular import open_regular
from supervisor.text.decode import clean

# Bytes of a log's beginning and end that are read to see whether it is a training's, and of them so many lines.
LOOKED_AT_BYTES = 1 << 16
LOOKED_AT_LINES = 200
# Ranks and nodes of one job start within this time of one another.
TOGETHER_S = 600.0
# So many names stand in the line about a folder.
NAMED = 3
_WORD = re.compile(r"[a-z]+|\d+")
_ENDING = re.compile(r"(?:\.(?:log|txt|out|err|stdout|stderr|jsonl?|gz|\d{1,3}))+$")
_SCHEDULERS = re.compile(r"(?:^|/)(?:slurm|pbs|lsf)\b|\.[oe]\d+$")
# Words for a part of a job. What stands before a number says that it counts parts, not jobs.
_PARTS = re.compile(
    r"(?:rank|node|worker|gpu)s?|local|global|host|pod|proc|process|task|machine|replica|attempt"
)
_ROLES = re.compile(
    rf"{_PARTS.pattern}|logs?|outputs?|out|errors?|err|stdout|stderr|console|nohup|all|concat|combined"
    r"|train(?:ing|er)?|pretrain|finetune|eval|evaluate|val|valid|validation|test|metrics|debug|info|warnings"
    r"|launcher|agent|torchrun|main|slurm"
)


def several_jobs(folder: str, logs: Sequence[ObservedLog]) -> str:
    """One line on a folder whose logs are of several jobs, with how to attach to one; empty: they may be of one."""
    names = {log.path: os.path.relpath(log.path, os.path.realpath(folder)) for log in logs}
    groups: dict[tuple[str, ...], list[ObservedLog]] = {}
    for log in logs:
        groups.setdefault(_job_of(names[log.path].lower(), log), []).append(log)
    groups.pop((), None)
    if len(groups) < 2:
        return ""
    trainings: list[tuple[str, ...]] = []
    for job, mine in groups.items():
        if not any(map(_is_training, mine)):
            continue
        if any(_are_apart((job, mine), (other, groups[other])) for other in trainings):
            break
        trainings.append(job)
    else:
        return ""
    paths = sorted((log.path for mine in groups.values() for log in mine), key=lambda path: names[path])
    newest = max(paths, key=lambda path: os.stat(path).st_mtime if os.path.exists(path) else 0.0)
    rest = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
    listed = ", ".join(names[path] for path in paths[:NAMED])
    one = shlex.quote(os.path.normpath(os.path.join(folder, names[newest])))
    return f"{folder}: logs of several jobs ({listed}{rest}): attach to one, such as the newest: stoker attach {one}"


def _job_of(name: str, log: ObservedLog) -> tuple[str, ...]:
    """What of a log's name tells its job from others; empty: nothing."""
    origin = log.origin
    if origin.local_rank is not None:
        return ()  # torchrun's own tree
    if origin.node is not None:
        name = name.replace(origin.node.lower(), " ")
    words = _WORD.findall(_ENDING.sub("", name))
    has_place = _has_place(log)
    return tuple(
        word
        for before, word in zip(["", *words], words, strict=False)
        if not _ROLES.fullmatch(word) and not (word.isdigit() and (has_place or _PARTS.fullmatch(before)))
    )


def _has_place(log: ObservedLog) -> bool:
    return any(number is not None for number in (log.origin.rank, log.origin.node, log.origin.task))


def _are_apart(
    one: tuple[tuple[str, ...], Sequence[ObservedLog]], other: tuple[tuple[str, ...], Sequence[ObservedLog]]
) -> bool:
    """Whether two groups of logs are of two jobs."""
    (job, logs), (other_job, others) = one, other
    if all(map(_has_place, [*logs, *others])):  # hosts' names before their ranks: no rank comes twice
        return bool({log.origin for log in logs} & {log.origin for log in others})
    if [w for w in job if not w.isdigit()] != [w for w in other_job if not w.isdigit()]:
        return True
    if any(_SCHEDULERS.search(log.path.lower()) for log in logs):
        return True
    spans = [span_of_logs((log.path, log.path) for log in each) for each in (logs, others)]
    starts = [span.began_t for span in spans if span is not None]
    return len(starts) < 2 or any(abs(a - b) > TOGETHER_S for a, b in combinations(starts, 2))


def _is_training(log: ObservedLog) -> bool:
    """Whether a log's beginning or end reports progress, or ends in a traceback; a packed one is taken to."""
    from supervisor.sources.metrics import MetricReader

    if log.packed:
        return True
    try:
        with open_regular(log.path) as file:
            size = os.fstat(file.fileno()).st_size
            head = os.pread(file.fileno(), LOOKED_AT_BYTES, 0)
            tail = os.pread(file.fileno(), LOOKED_AT_BYTES, max(size - LOOKED_AT_BYTES, 0))
    except OSError:
        return False
    if b"Traceback (most recent call last)" in tail:
        return True
    reader = MetricReader()
    lines = [*head.splitlines()[:LOOKED_AT_LINES], *tail.splitlines()[-LOOKED_AT_LINES:]]
    return any(reader.feed(clean(line)) is not None for line in lines)
