"""Build the verdict: which failure ended an attempt, on which rank and line, and with what consequences.

The steps are to scan the logs, turn matched lines into candidates, drop errors the job recovered from, apply
the rule table (`root_rules`), and put the result into words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from supervisor.diagnosis.advice import action_for, advice_for, is_mount_error, node_named
from supervisor.diagnosis.attempt_facts import Facts, Root
from supervisor.diagnosis.candidates import (
    candidates_of,
    in_order,
    steps_seen,
    without_recovered,
    without_swallowed,
)
from supervisor.diagnosis.class_words import class_texts
from supervisor.diagnosis.evidence import JobEvidence, SeenHang, SeenRecorder
from supervisor.diagnosis.exit_zero import planned_end
from supervisor.diagnosis.hang_verdict import (
    advice_by_recorder,
    advice_by_stacks,
    title_of_absent,
    waited,
)
from supervisor.diagnosis.launcher_reports import Ranks, inline_rank, read_launch, signal_of, with_known_exits
from supervisor.diagnosis.log_jobs import SAME_START_LINES, job_starts, parts_of
from supervisor.diagnosis.root_cause import fingerprint, with_local_rank
from supervisor.diagnosis.root_rules import Decision, by_launchers_signal, decide
from supervisor.diagnosis.scan.matched_lines import Candidate, SourceScan
from supervisor.diagnosis.scan.scanner import scan_source
from supervisor.diagnosis.scan.signature_tables import OWN, Signatures, Trait
from supervisor.diagnosis.scan.windows import Matcher
from supervisor.run.records import (
    PLAIN_ERRORS,
    SURE_ENOUGH,
    Action,
    Cause,
    Consequence,
    FailureClass,
    Reason,
    UsedBatch,
    Verdict,
)
from supervisor.text.decode import strip_escapes
from supervisor.text.patterns import Lazy
from supervisor.text.prefixes import split_prefix
from supervisor.text.redact import redact_text

MOST_CONSEQUENCES = 24
# DDP's message lists its parameters some 800 bytes below its first line.
BELOW_BYTES = 3000
_BEGIN = frozenset((Trait.JOB_START, Trait.ATTEMPT_RESTART))
# The description of a stop signal, by stoker's reason for ending the attempt.
_OUR_SIGNALS = {
    "hang": "ended by stoker after the hang",
    # torchrun signals the remaining ranks. stoker kills those that do not exit.
    "rank_died": "ended with the others after the failure",
    "request": "ended by stoker as requested",
    "restart": "ended by stoker as requested",
    "signal": "ended by stoker, which was instructed to stop",
    "requeue": "ended by stoker, which was instructed to stop",
}

NOT_RESUMED_SURE = 0.9
"""Confidence that an attempt started before its checkpoint's step. Step counts that always restart at 0 look the same."""
LOADS_NOTHING = "Check which folder and flag the script loads its checkpoint from. The attempt's plan.json has the command."
OVERRIDDEN = "Something overrides the setting. Name the one that makes the batch: --batch-knob NAME."
MOST_RANKS = 4
"""A verdict on several ranks, such as a hang, has the batches of this many."""
# Maximum characters of log text in a verdict. Names and paths in advice come from it too.
MOST_CAUSE = 600
MOST_ADVICE = 800


class EarlierJob(NamedTuple):
    """An earlier job in the same file as the diagnosed one: its line range (1-based) and its own verdict."""

    first_line: int
    last_line: int
    verdict: Verdict


class Examination(NamedTuple):
    """A verdict and its derivation, for `stoker diagnose --explain`.

    `facts` contains all results, `decision` the rules that fired, and `earlier` the file's jobs before the last one.
    """

    verdict: Verdict
    facts: Facts
    decision: Decision
    earlier: tuple[EarlierJob, ...] = ()


def diagnose(job: JobEvidence, signatures: Signatures, matcher: Matcher) -> Verdict:
    """Diagnose an attempt. Each log is read once, or twice if it has several jobs. Memory does not grow with log size."""
    return examine(job, signatures, matcher).verdict


def examine(job: JobEvidence, signatures: Signatures, matcher: Matcher) -> Examination:
    """Diagnose like `diagnose` but keep the derivation. If a log has several jobs, diagnose the last one."""
    scans = tuple(
        scan_source(log.path, log.origin, log.chunks, signatures, matcher, index)
        for index, log in enumerate(job.logs)
    )
    facts = _facts(job, scans, signatures)
    is_one_process = not facts.launch.distributed and len(facts.ranks.seen) <= 1
    begin = (hit for scan in scans for hit in scan.hits if not _BEGIN.isdisjoint(hit.signature.traits))
    may_be_several = is_one_process or any(hit.line > SAME_START_LINES for hit in begin)
    starts = job_starts(scans[0], one_process=is_one_process) if may_be_several and len(scans) == 1 else []
    if not starts:
        return _examined(facts)
    *before, last = parts_of(scans[0], starts)
    # Evidence from outside the log is about the last job.
    found = [_examined(_facts(JobEvidence(()), (part,), signatures)) for part in before]
    found.append(_examined(_facts(job, (last,), signatures)))
    shown = _last_that_shows(found)
    earlier = (
        EarlierJob(one.facts.scans[0].first_line, one.facts.scans[0].lines, one.verdict)
        for one in found[:shown]
    )
    return found[shown]._replace(earlier=tuple(earlier))


def with_metric_rows(found: Examination) -> Examination:
    """Diagnose the same job again, given that its logs end in rows of metrics."""
    job = found.facts.job._replace(prints_metrics=True)
    return _examined(replace(found.facts, job=job))._replace(earlier=found.earlier)


def _examined(facts: Facts) -> Examination:
    decision = decide(facts)
    title = facts.job.not_resumed or facts.job.plan_differs
    if not title:
        root = decision.root if decision.root.ranks else with_local_rank(decision.root, facts)
        return Examination(_verdict(facts, root), facts, decision)
    # stoker caused the end that the log reports.
    failure, advice = FailureClass.CHECKPOINT_LOAD, LOADS_NOTHING
    if facts.job.plan_differs:
        failure, advice = FailureClass.USAGE_ERROR, OVERRIDDEN
    verdict = _verdict(facts, Root(failure, confidence=NOT_RESUMED_SURE))
    said = replace(verdict, title=title, advice=(advice,), consequences=(), action=Action.HOLD)
    return Examination(said, facts, decision)


def _last_that_shows(found: list[Examination]) -> int:
    """Return the index of the last job that shows anything. Old launchers print their banner and kill messages only on exit."""
    for place in reversed(range(1, len(found))):
        one = found[place]
        killed = any(hit.has(Trait.SIGNALS_PEERS) for hit in one.facts.scans[0].hits)
        if not one.decision.rule.is_fallback or not killed:
            return place
    return 0


def _facts(job: JobEvidence, scans: tuple[SourceScan, ...], signatures: Signatures) -> Facts:
    """Derive the facts from the scans."""
    launch = read_launch(scans, job.world_size, job.ranks_per_node)
    if job.exit_codes:
        launch = with_known_exits(launch, job.exit_codes)
    died = bool(job.launcher_exit) or any(item.code != 0 for item in launch.exits)
    stepped = steps_seen(scans)
    candidates = [
        item for item in candidates_of(scans) if not item.signature.start or _as_expected(item, scans)
    ]
    if job.raised:
        candidates = without_swallowed(candidates, job.raised)
    found = without_recovered(candidates, scans, died=died, stepped=stepped)
    return Facts(job, scans, launch, Ranks(scans, launch), tuple(in_order(found)), signatures)


def _batches(root: Root, job: JobEvidence) -> tuple[UsedBatch, ...]:
    """Return the batches that the failed ranks were working on. A job that ended well or was stopped has no failed batch."""
    if root.failure in {FailureClass.HEALTHY, FailureClass.TERMINATED}:
        return ()
    found = job.run_values.batches(root.failure is FailureClass.NAN_LOSS)
    ranks = [root.rank] if root.rank is not None else root.ranks or sorted(found)
    return tuple(batch for rank in ranks[:MOST_RANKS] for batch in found.get(rank, ()))


def _verdict(facts: Facts, root: Root) -> Verdict:
    """Put the root cause and its consequences into words."""
    job = facts.job
    sent_kill = _is_sent_kill(root, job)
    killed = _is_bare_kill(root) or sent_kill
    advice = advice_for(root.failure, root.reason, _message(root), job, bare_kill=killed)
    signature = root.chosen.signature if root.chosen is not None else None
    if signature is not None and signature.title:
        advice = ()  # the user defined the signature, so they know the remedy
    consequences = _consequences(facts, root)
    told = root if is_rank_told(facts, root) else root._replace(rank=None)
    title = title_of_end(facts, root) or title_of(told, is_sent_kill=sent_kill)
    terminated = root.failure is FailureClass.TERMINATED
    # A failure that could recur. A person's stop does not count.
    failed = root.failure is not FailureClass.HEALTHY and not (terminated and root.reason is Reason.USER)
    if root.shown_by is not None:
        title, advice, consequences = _with_hang(root, root.shown_by, title, advice, consequences)
    return Verdict(
        failure=root.failure,
        reason=root.reason,
        confidence=round(root.confidence, 2),
        rank=root.rank,
        ranks=root.ranks,
        node=root.node or (node_named(root.text) if terminated and root.reason is Reason.NODE_FAIL else None),
        title=title,
        cause=_cause(root),
        consequences=tuple(
            item for item in consequences if item.rank not in {root.rank, *root.ranks} - {None}
        ),
        advice=tuple(_shortened(line, MOST_ADVICE) for line in advice),
        action=action_for(root.failure, root.reason, root.text, job),
        fingerprint=fingerprint(root.failure, root.reason, root.text) if failed else "",
        signature=signature.id.removeprefix(OWN) if signature and Trait.OWN in signature.traits else "",
        local_rank=None if root.ranks else root.local_rank,
        batches=_batches(root, job),
    )


def _with_hang(
    root: Root,
    seen: SeenHang | SeenRecorder,
    title: str,
    advice: tuple[str, ...],
    consequences: tuple[Consequence, ...],
) -> tuple[str, tuple[str, ...], tuple[Consequence, ...]]:
    """Return a verdict's title, advice and consequences. For a hang, add details from the stacks or dumps."""
    if root.failure not in (FailureClass.NCCL_TIMEOUT, FailureClass.HANG):
        return title, advice, consequences
    title = title_of_absent(seen.ranks, root.failure) or title_of(root)
    if isinstance(seen, SeenHang):
        return title, advice_by_stacks(seen, advice), (*waited(seen), *consequences)
    return title, advice_by_recorder(seen, advice), consequences


def is_rank_told(facts: Facts, root: Root) -> bool:
    """Check whether the job, a launcher, a path or a line states the root cause's rank. If not, there may be just one process."""
    if root.rank != 0 or facts.job.world_size or facts.launch.distributed or facts.launch.exits:
        return True
    is_in_a_path = any(scan.origin.rank is not None for scan in facts.scans)
    return is_in_a_path or facts.ranks.any_told or inline_rank(root.text) is not None


def _cause(root: Root) -> Cause | None:
    """Return the line that shows the root cause, if any."""
    if root.line <= 0 and not root.text:
        return None
    return Cause(root.path, root.line or None, redact_text(root.text.strip())[:MOST_CAUSE])


def _message(root: Root) -> str:
    """Return the root cause's line and, if it starts a multi-line message, the lines below it."""
    if root.chosen is None:
        return root.text
    below = root.chosen.hit.after[:BELOW_BYTES].decode("utf-8", "replace")
    return f"{root.text}\n{strip_escapes(below)}"


def _as_expected(item: Candidate, scans: tuple[SourceScan, ...]) -> bool:
    """Check whether a user's signature matched when it was supposed to: before or after the first step."""
    own = scans[item.source].steps
    stepped = own[0] < item.line if own else any(scan.steps for scan in scans)
    return stepped == (item.signature.start == "after_first_step")


def _consequences(facts: Facts, root: Root) -> tuple[Consequence, ...]:
    """Return the other candidates, one per class and rank."""
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
    """Describe a consequence in a few words. Return "" if its class is clear enough."""
    if item.has(Trait.STOP_SIGNAL):
        return _OUR_SIGNALS.get(job.ended_for or job.stop_reason or "", "")
    if item.has(Trait.LOST_CONNECTION) and item.failure is FailureClass.NCCL_ERROR:
        # The class implies the remedy. None of these lines must come from NCCL.
        return f"lost the connection to {item.signature.lost}"
    return ""


# -- the headline: it states what is known, and marks what is only likely ------------------------------

# Maximum length of a message in a headline, in characters. The cause shows more.
MOST_MESSAGE = 160
# The last line of a traceback: ValueError: label 1001 out of range; torch.cuda.Error.
_EXCEPTION = Lazy(r"(?:[A-Za-z_]\w*\.)*(_?[A-Z]\w*)(?:: +(\S.*))?$")
# The end of argparse's output: train.py: error: unrecognized arguments: --foo
_REFUSED = Lazy(r"\S+:\serror:\s+(\S.*)$")
_STOPS = {
    Reason.USER: "Stopped on request",
    Reason.TIME_LIMIT: "The time limit ended the job",
    Reason.PREEMPTED: "The scheduler pre-empted the job",
    Reason.NODE_FAIL: "A node failed",
}
# The meanings of signals, for readers who do not know the numbers: signal(7).
_MEANING = {
    "SIGSEGV": "invalid memory access",
    "SIGABRT": "its native code called abort()",
    "SIGBUS": "memory behind a mapping was missing, for example because /dev/shm is full",
    "SIGILL": "it used an instruction that this CPU does not support",
    "SIGFPE": "an arithmetic error, as a division of whole numbers by zero",
    "SIGKILL": "somebody or the kernel killed it",
}

MOUNT_FAILED = "A filesystem does not answer"


def title_of_end(facts: Facts, root: Root) -> str | None:
    """Return a headline for an exit that no line explains: an early exit, a hang, a killed launcher, no steps or empty logs."""
    job = facts.job
    if job.stop_reason is not None and root.reason is Reason.USER and (seen := job.hang) is not None:
        if seen.silent_s is None:
            return f"Stopped on request, before a step: {seen.text}"
        return f"Stopped on request, {seen.silent_s:.0f} s after the last step: {seen.text}"
    if root.reason is Reason.ENDED_EARLY and (end := planned_end(facts)) is not None:
        return f"Ended with exit code 0 at {end.unit} {end.done} of {end.total}, for no stated reason"
    if (number := job.launcher_signal) is not None and root == by_launchers_signal(number):
        return f"The launcher was ended by {signal_of(f'signal {number}') or f'signal {number}'}"
    if root.reason is Reason.NO_STEP and job.earlier_step is not None:
        attempt, step = job.earlier_step
        return f"Ended without a step: attempt {attempt} had reached step {step} of {job.total_steps}"
    return _title_of_empty(facts.scans) if root.failure is FailureClass.UNKNOWN else None


def _title_of_empty(scans: Sequence[SourceScan]) -> str | None:
    if scans and all(scan.bytes_read == 0 for scan in scans):
        one = len(scans) == 1
        return (
            "The log is empty: there is nothing to judge"
            if one
            else "All logs are empty: there is nothing to judge"
        )
    shown = "".join(line for scan in scans for line in scan.head[:40])
    has_text = any(char.isalnum() and char != "\ufffd" for char in shown)
    return None if has_text else "There is no text in it: a binary file, not a log"


def _is_bare_kill(root: Root) -> bool:
    """Check whether a SIGKILL is the only evidence, so that host memory exhaustion is merely the most likely cause."""
    return root.failure is FailureClass.HOST_OOM and root.reason is Reason.KERNEL_KILL and root.chosen is None


def _is_sent_kill(root: Root, job: JobEvidence) -> bool:
    """Check whether a crash was due to SIGKILL, which no handler in the process can see."""
    if root.failure is not FailureClass.WORKER_CRASH or root.reason is not Reason.SIGNAL:
        return False
    named = signal_of(root.text)
    if named is not None:
        return named == "SIGKILL"
    return root.rank is not None and job.exit_codes.get(root.rank) == -9


def title_of(root: Root, *, is_sent_kill: bool = False) -> str:
    """Return a one-line title with the rank or ranks, if known. If `is_sent_kill` is true, the signal was SIGKILL."""
    if _is_bare_kill(root):
        return f"{_who(root)} was killed (SIGKILL); most often memory ran out on the host"
    if is_sent_kill:
        return f"{_who(root)} was killed (SIGKILL)"
    if root.failure is FailureClass.WORKER_CRASH and root.reason is Reason.AT_EXIT:
        return f"{_who(root)} aborted at exit, after training had finished"
    signal = signal_of(root.text) if root.reason in (Reason.SIGNAL, Reason.SEGFAULT) else None
    crash = "crashed" if signal is None else f"crashed ({signal}: {_MEANING[signal]})"
    if root.failure is FailureClass.WORKER_CRASH:
        return f"{_who(root)} {crash}"
    if signal is not None:
        return f"A data worker {crash}{_where(root)}"
    if root.failure is FailureClass.TERMINATED and root.reason in _STOPS:
        title = _STOPS[root.reason]
    elif root.chosen is not None and root.chosen.signature.title:
        title = root.chosen.signature.title + _where(root)
    elif root.failure is FailureClass.DISK_FULL and is_mount_error(root.text):
        title = MOUNT_FAILED + _where(root)
    elif _is_named_by_others(root):
        title = f"A collective timed out: rank {root.rank} never joined it"
    else:
        own = _named_by_itself(root) if root.failure in PLAIN_ERRORS else ""
        title = own or class_texts()[root.failure].title + _where(root)
    if root.failure in (FailureClass.HEALTHY, FailureClass.UNKNOWN) or root.confidence >= SURE_ENOUGH:
        return title
    return f"{title} (likely, not certain)"


def _named_by_itself(root: Root) -> str:
    """Return an ordinary error's headline, made of its exception, rank and message, or "" if there is none."""
    text = redact_text(split_prefix(root.text)[1].strip())
    if root.failure is FailureClass.USAGE_ERROR:
        refused = _REFUSED.match(text)
        head = class_texts()[root.failure].title
        return f"{head}{_where(root)}: {_shortened(refused[1], MOST_MESSAGE)}" if refused else ""
    if (match := _EXCEPTION.match(text)) is None:
        return ""
    name, message = match.groups()
    return f"{name}{_where(root)}" + (f": {_shortened(message, MOST_MESSAGE)}" if message else "")


def _shortened(message: str, most: int) -> str:
    return message if len(message) <= most else f"{message[: most - 1].rstrip()}…"


def _is_named_by_others(root: Root) -> bool:
    """Check whether ranks waiting in a collective blamed this rank, which did not fail itself."""
    if root.failure is not FailureClass.NCCL_TIMEOUT or root.rank is None or root.chosen is None:
        return False
    own = root.chosen.rank if root.chosen.rank is not None else inline_rank(root.text)
    return not root.chosen.is_cause and own is not None and own != root.rank


def _who(root: Root) -> str:
    if root.rank is not None:
        return f"Rank {root.rank}"
    if root.local_rank is not None:
        return f"L{_local(root)[1:]}"
    return "More than one rank" if len(root.ranks) > 1 else "A rank"


def _where(root: Root) -> str:
    if root.rank is not None:
        return f" on rank {root.rank}"
    if len(root.ranks) < 2:
        return f" on {_local(root)}" if root.local_rank is not None else ""
    return f" on ranks {', '.join(map(str, root.ranks[:8]))}" + (" …" if len(root.ranks) > 8 else "")


def _local(root: Root) -> str:
    """Return the local rank in words, such as ``local rank 2 of node 1``."""
    return f"local rank {root.local_rank}" + (f" of node {root.node}" if root.node is not None else "")
