"""Read a run directory's journals for ``stoker diagnose``. This module is imported only if there are some."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.diagnosis.journal_facts import with_journal_facts
from supervisor.job.errors import JobError
from supervisor.preflight.network import free_port
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import BadRunFile, read_run_file
from supervisor.run.series import HOST, SeriesReader

if TYPE_CHECKING:
    from supervisor.diagnosis.evidence import JobEvidence, LogSource
    from supervisor.run.records import Verdict
    from supervisor.run.state import AttemptState, RunState


def with_run_facts(job: JobEvidence, path: str, attempt: int) -> JobEvidence:
    """Add an attempt's events from the nodes' journals and the run file. Of a damaged file, use the intact part."""
    run = RunPaths(Path(path))
    pairs: list[tuple[RunState, AttemptState]] = []
    kills = 0
    for number in run.nodes():
        state = read_state(run.node(number).journal)
        if (view := state.find(attempt)) is not None:
            pairs.append((state, view))
            job = job._replace(logs=tuple(_of_rank(log, path, number, view) for log in job.logs))
        kills += _memory_kills(run.node(number).series, attempt)
    record = None
    with contextlib.suppress(BadRunFile):  # an observed run has no run file
        record = read_run_file(run.run_json)
    job = with_journal_facts(job, pairs, spec=record.job if record is not None else None, run_root=path)
    if record is not None and record.host == socket.gethostname():
        with contextlib.suppress(JobError):
            job = job._replace(run_values=job.run_values._replace(free_port=free_port()))
    if not kills or job.machine.cgroup_oom_kills is not None:
        # A count that the keeper kept to the end is in the journal and may be "none". Samples can only show "some".
        return job
    return job._replace(machine=job.machine._replace(cgroup_oom_kills=kills))


def _of_rank(log: LogSource, path: str, node: int, view: AttemptState) -> LogSource:
    """Return a rank's own log with the global rank from its node's journal. Any other log stays unchanged."""
    known = view.ranks.get(log.origin.local_rank) if log.origin.local_rank is not None else None
    if known is None or not log.path.startswith(os.path.join(path, "nodes", str(node), "")):
        return log
    return log._replace(origin=log.origin._replace(rank=known.rank))


def seen_before(path: str, attempt: int, verdict: Verdict) -> list[str]:
    """Return one line about the other attempts of this run with the same failure, or no line."""
    same = read_state(RunPaths(Path(path)).node().journal).same_failure(verdict, attempt)
    many = "s" if len(same) > 1 else ""
    return [f"the same failure as attempt{many} {', '.join(map(str, same))}"] if same else []


def _memory_kills(folder: Path, attempt: int) -> int:
    """Return the kernel kills counted in the attempt's samples. A death between two samples also leaves 0."""
    reader = SeriesReader(folder, HOST)
    first = last = None
    while samples := reader.read():
        for sample in samples:
            count = sample.v.get("cgroup_oom_kills") if sample.a == attempt else None
            if count is not None:
                first = count if first is None else first
                last = count
    return int(last - first) if first is not None and last is not None else 0
