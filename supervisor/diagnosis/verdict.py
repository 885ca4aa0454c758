"""The verdict: which failure ended an attempt, on which rank, by which line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.diagnosis.attribution.exits import read_launch, with_known_exits
from supervisor.diagnosis.attribution.machine import weigh
from supervisor.diagnosis.attribution.ranks import Ranks
from supervisor.diagnosis.attribution.recovered_errors import without_survived
from supervisor.diagnosis.cause.candidates import candidates_of, ordered, steps_seen
from supervisor.diagnosis.cause.outcome import compose
from supervisor.diagnosis.cause.root import Case
from supervisor.diagnosis.cause.rules import choose
from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.hang.hang_verdict import with_hang
from supervisor.diagnosis.scan.matcher import Matcher
from supervisor.diagnosis.scan.scanner import scan_source
from supervisor.diagnosis.scan.signature_tables import Signatures

if TYPE_CHECKING:
    from supervisor.diagnosis.judgement import Judgement
    from supervisor.run.records import Verdict


def diagnose(job: JobEvidence, signatures: Signatures, matcher: Matcher) -> Verdict:
    """Judge one attempt. Reads each of the job's logs once; memory does not grow with their size."""
    return judge(job, signatures, matcher).to_record()


def judge(job: JobEvidence, signatures: Signatures, matcher: Matcher) -> Judgement:
    """As `diagnose`, without the cost of loading the records (see `judgement`)."""
    case = read_case(job, signatures, matcher)
    root = weigh(case, choose(case), signatures)
    if root.chosen is None:
        from supervisor.diagnosis.cause.guess import with_guess

        root = with_guess(case, root)
    root = with_hang(case, root)
    return compose(case.job, case.scans, case.candidates, root)


def read_case(job: JobEvidence, signatures: Signatures, matcher: Matcher) -> Case:
    """Scan all logs of a job and gather what they say."""
    logs = job.logs
    if job.machine.kernel_log:
        logs = (*logs, LogSource("kernel log", (job.machine.kernel_log.encode("utf-8", "replace"),)))
    scans = tuple(
        scan_source(source.path, source.origin, source.chunks, signatures, matcher, index)
        for index, source in enumerate(logs)
    )
    launch = with_known_exits(
        read_launch(scans, job.world_size, job.ranks_per_node), job.exit_codes, job.first_dead_rank
    )
    died = bool(job.launcher_exit) or any(item.code != 0 for item in launch.exits)
    stepped = steps_seen(scans)
    found = without_survived(candidates_of(scans, stepped=stepped), scans, died=died, stepped=stepped)
    return Case(job, scans, launch, Ranks(scans, launch), tuple(ordered(found)))
