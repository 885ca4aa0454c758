"""The verdict: which failure ended an attempt, on which rank, by which line, and its consequences.

The steps: scan the logs, turn the matched lines into candidates, drop recovered errors, decide by the table
of rules (`rules`), and put it in words.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from supervisor.diagnosis.advice import action_for, advice_for, node_named
from supervisor.diagnosis.attempt_facts import Facts, Root
from supervisor.diagnosis.candidates import (
    candidates_of,
    in_order,
    steps_seen,
    without_recovered,
    without_swallowed,
)
from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.hang_verdict import (
    advice_by_recorder,
    advice_by_stacks,
    recorder_behind,
    stacks_behind,
    title_of_absent,
    waited,
)
from supervisor.diagnosis.launcher_reports import Ranks, read_launch, with_known_exits
from supervisor.diagnosis.log_jobs import job_starts, parts_of
from supervisor.diagnosis.root_cause import fingerprint, with_local_rank
from supervisor.diagnosis.root_rules import Decision, decide
from supervisor.diagnosis.scan.matched_lines import Candidate, Hit, SourceScan
from supervisor.diagnosis.scan.scanner import scan_source
from supervisor.diagnosis.scan.signature_tables import OWN, Signatures, Trait
from supervisor.diagnosis.scan.windows import Matcher
from supervisor.diagnosis.titles import is_bare_kill, is_sent_kill, title_of, title_of_end
from supervisor.run.failures import Action, FailureClass, Reason
from supervisor.run.records import Cause, Consequence, Verdict
from supervisor.text.decode import strip_escapes
from supervisor.text.redact import redact_text

MOST_CONSEQUENCES = 24
# DDP's message names its parameters some 800 bytes below its first line.
BELOW_BYTES = 3000
# The kind of a stop signal, by the reason why stoker ended the attempt.
_OUR_SIGNALS = {
    "hang": "ended by stoker after the hang",
    # torchrun signals the remaining ranks; stoker kills those that do not exit.
    "rank_died": "ended with the others after the failure",
    "request": "ended by stoker as requested",
    "restart": "ended by stoker as requested",
    "signal": "ended by stoker, which was instructed to stop",
    "requeue": "ended by stoker, which was instructed to stop",
}

NOT_RESUMED_SURE = 0.9
"""Of an attempt that began below its checkpoint: steps that are counted from 0 at each start look alike."""
LOADS_NOTHING = "Check which folder and flag the script loads its checkpoint from. The attempt's plan.json has the command."
OVERRIDDEN = "Something overrides the setting. Name the one that makes the batch: --batch-knob NAME."
# Maximum characters of log text in a verdict; names and paths in advice come from it too.
MOST_CAUSE = 600
MOST_ADVICE = 800


class EarlierJob(NamedTuple):
    """An earlier job in the same file as the one being judged: its lines, from 1, and its own verdict."""

    first_line: int
    last_line: int
    verdict: Verdict


class Examination(NamedTuple):
    """A verdict with its derivation, for `stoker diagnose --explain`.

    `facts`: all findings. `decision`: the rules that fired. `earlier`: the jobs before the last one in the file.
    """

    verdict: Verdict
    facts: Facts
    decision: Decision
    earlier: tuple[EarlierJob, ...] = ()


def diagnose(job: JobEvidence, signatures: Signatures, matcher: Matcher) -> Verdict:
    """Judge one attempt. Reads each log once, or a file with several jobs twice; memory does not grow with log size."""
    return examine(job, signatures, matcher).verdict


def examine(job: JobEvidence, signatures: Signatures, matcher: Matcher) -> Examination:
    """Like `diagnose`, with the derivation. In a log with several jobs, the last one is judged."""
    logs = job.logs
    if job.machine.kernel_log:
        logs = (*logs, LogSource("kernel log", (job.machine.kernel_log.encode("utf-8", "replace"),)))
    scans = tuple(
        scan_source(log.path, log.origin, log.chunks, signatures, matcher, index)
        for index, log in enumerate(logs)
    )
    facts = _facts(job, scans, signatures)
    is_one_process = not facts.launch.distributed and len(facts.ranks.seen) <= 1
    if len(scans) != 1 or not (starts := job_starts(scans[0], one_process=is_one_process)):
        return _examined(facts)
    *before, last = parts_of(scans[0], starts)
    # Facts from outside the log are about the last job.
    found = [_examined(_facts(JobEvidence(()), (part,), signatures)) for part in before]
    found.append(_examined(_facts(job, (last,), signatures)))
    shown = _last_that_shows(found)
    earlier = (
        EarlierJob(one.facts.scans[0].first_line, one.facts.scans[0].lines, one.verdict)
        for one in found[:shown]
    )
    return found[shown]._replace(earlier=tuple(earlier))


def with_metric_rows(found: Examination, rows: int) -> Examination:
    """The same job judged again, with the number of metric rows at the end of its logs."""
    job = found.facts.job._replace(metric_rows=rows)
    return _examined(replace(found.facts, job=job))._replace(earlier=found.earlier)


def _examined(facts: Facts) -> Examination:
    decision = decide(facts)
    title = facts.job.not_resumed or facts.job.plan_differs
    if not title:
        return Examination(_verdict(facts, with_local_rank(decision.root, facts)), facts, decision)
    # We caused the end that the log reports.
    failure, advice = FailureClass.CHECKPOINT_LOAD, LOADS_NOTHING
    if facts.job.plan_differs:
        failure, advice = FailureClass.USAGE_ERROR, OVERRIDDEN
    verdict = _verdict(facts, Root(failure, confidence=NOT_RESUMED_SURE))
    said = replace(verdict, title=title, advice=(advice,), consequences=(), action=Action.HOLD)
    return Examination(said, facts, decision)


def _last_that_shows(found: list[Examination]) -> int:
    """The index of the last job with content: an old launcher prints its banner and its kills only at its end."""
    for place in reversed(range(1, len(found))):
        one = found[place]
        killed = any(hit.has(Trait.SIGNALS_PEERS) for hit in one.facts.scans[0].hits)
        if not one.decision.rule.is_fallback or not killed:
            return place
    return 0


def _facts(job: JobEvidence, scans: tuple[SourceScan, ...], signatures: Signatures) -> Facts:
    """Gather the findings of the scans."""
    launch = with_known_exits(read_launch(scans, job.world_size, job.ranks_per_node), job.exit_codes)
    died = bool(job.launcher_exit) or any(item.code != 0 for item in launch.exits)
    stepped = steps_seen(scans)
    candidates = [item for item in candidates_of(scans) if as_expected(item, scans)]
    candidates = without_swallowed(candidates, job.raised)
    found = without_recovered(candidates, scans, died=died, stepped=stepped)
    return Facts(job, scans, launch, Ranks(scans, launch), tuple(in_order(found)), signatures)


def _verdict(facts: Facts, root: Root) -> Verdict:
    """The root in words, with its consequences."""
    job = facts.job
    sent_kill = is_sent_kill(root, job)
    killed = is_bare_kill(root) or sent_kill
    advice = advice_for(root.failure, root.reason, _message(root), job, bare_kill=killed)
    if root.chosen is not None and root.chosen.signature.title:
        advice = ()  # the user named it, so the remedy is theirs to know
    consequences = _consequences(facts, root)
    title = title_of_end(facts, root) or title_of(root, is_sent_kill=sent_kill)
    if (seen := stacks_behind(job, root)) is not None:
        advice, consequences = advice_by_stacks(seen, advice), (*waited(seen), *consequences)
        title = title_of_absent(seen.ranks, root.failure) or title_of(root)
    elif (shown := recorder_behind(job, root)) is not None:
        advice = advice_by_recorder(shown, advice)
        title = title_of_absent(shown.ranks, root.failure) or title_of(root)
    return Verdict(
        failure=root.failure,
        reason=root.reason,
        confidence=round(root.confidence, 2),
        rank=root.rank,
        ranks=root.ranks,
        node=root.node or node_named(root.failure, root.reason, root.text),
        title=title,
        cause=Cause(root.path, root.line or None, redact_text(root.text.strip())[:MOST_CAUSE])
        if root.line > 0 or root.text
        else None,
        consequences=tuple(
            item for item in consequences if item.rank not in {root.rank, *root.ranks} - {None}
        ),
        advice=tuple(line if len(line) <= MOST_ADVICE else line[: MOST_ADVICE - 1] + "…" for line in advice),
        action=action_for(root.failure, root.reason, root.text, job),
        fingerprint=fingerprint(root.failure, root.reason, root.text) if _has_failed(root) else "",
        signature=_own_signature(root),
        local_rank=None if root.ranks else root.local_rank,
    )


def _own_signature(root: Root) -> str:
    """The id of the user's own signature behind a root."""
    own = root.chosen is not None and root.chosen.has(Trait.OWN)
    return root.chosen.signature.id.removeprefix(OWN) if root.chosen is not None and own else ""


def _has_failed(root: Root) -> bool:
    """Whether there is a failure that could recur; a person's stop does not count."""
    stopped = root.failure is FailureClass.TERMINATED and root.reason is Reason.USER
    return root.failure is not FailureClass.HEALTHY and not stopped


def as_expected(item: Hit | Candidate, scans: tuple[SourceScan, ...]) -> bool:
    """Whether a user's signature matched at the expected time: before or after the first step."""
    if not item.signature.start:
        return True
    own = scans[item.source].steps
    stepped = own[0] < item.line if own else any(scan.steps for scan in scans)
    return stepped == (item.signature.start == "after_first_step")


def _message(root: Root) -> str:
    """The root's line and, if it starts a message of several lines, the lines below it."""
    if root.chosen is None:
        return root.text
    below = root.chosen.hit.after[:BELOW_BYTES].decode("utf-8", "replace")
    return f"{root.text}\n{strip_escapes(below)}"


def _consequences(facts: Facts, root: Root) -> tuple[Consequence, ...]:
    """The other candidates, one per class and rank."""
    if root.failure in (FailureClass.HEALTHY, FailureClass.UNKNOWN):
        return ()
    seen: set[tuple[FailureClass, int | None]] = {(root.failure, root.rank)}
    found: list[Consequence] = []
    for item in facts.candidates:
        rank = facts.ranks.of_prefix(item.hit, failed=False)
        key = (item.failure, rank)
        path = facts.scans[item.source].path
        if key in seen or (path, item.line) == (root.path, root.line) or len(found) >= MOST_CONSEQUENCES:
            continue
        seen.add(key)
        words = _what_it_was(item, facts.job)
        found.append(
            Consequence(item.failure, rank, path, item.line, redact_text(item.text.strip())[:200], words)
        )
    return tuple(found)


def _what_it_was(item: Candidate, job: JobEvidence) -> str:
    """A few words for a consequence; empty if its class says enough."""
    if item.has(Trait.STOP_SIGNAL):
        return _OUR_SIGNALS.get(job.ended_for or job.stop_reason or "", "")
    if item.has(Trait.LOST_CONNECTION) and item.failure is FailureClass.NCCL_ERROR:
        # The class implies the remedy; none of these need come from NCCL.
        return f"lost the connection to {item.signature.lost}"
    return ""
