"""A verdict's headline: it states the known facts, and marks what is only likely."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.diagnosis.advice import is_mount_error
from supervisor.diagnosis.attempt_facts import Facts, Root
from supervisor.diagnosis.class_texts import class_texts
from supervisor.diagnosis.evidence import JobEvidence
from supervisor.diagnosis.exit_zero import planned_end
from supervisor.diagnosis.launcher_reports import inline_rank, signal_of
from supervisor.diagnosis.root_rules import by_launchers_signal
from supervisor.diagnosis.scan.matched_lines import SourceScan
from supervisor.run.failures import PLAIN_ERRORS, SURE_ENOUGH, FailureClass, Reason
from supervisor.text.patterns import Lazy
from supervisor.text.prefixes import split_prefix
from supervisor.text.redact import redact_text

# Maximum length of a message in a headline, in characters; the cause shows more.
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
    """The headline of an end that no line explains: early, hung, of a killed launcher, without a step, or of logs without text."""
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


def is_bare_kill(root: Root) -> bool:
    """Whether nothing but a SIGKILL is known: running out of host memory is then only the most likely cause."""
    return root.failure is FailureClass.HOST_OOM and root.reason is Reason.KERNEL_KILL and root.chosen is None


def is_sent_kill(root: Root, job: JobEvidence) -> bool:
    """Whether a rank crashed by a SIGKILL, which no handler in it can see."""
    if root.failure is not FailureClass.WORKER_CRASH or root.reason is not Reason.SIGNAL:
        return False
    named = _signal(root)
    if named is not None:
        return named[0] == "SIGKILL"
    return root.rank is not None and job.exit_codes.get(root.rank) == -9


def title_of(root: Root, *, is_sent_kill: bool = False) -> str:
    """One line that names the rank or ranks, if known. `is_sent_kill`: see there."""
    if is_bare_kill(root):
        return f"{_who(root)} was killed (SIGKILL); most often memory ran out on the host"
    if is_sent_kill:
        return f"{_who(root)} was killed (SIGKILL)"
    if root.failure is FailureClass.WORKER_CRASH and root.reason is Reason.AT_EXIT:
        return f"{_who(root)} aborted at exit, after training had finished"
    signal = _signal(root)
    if root.failure is FailureClass.WORKER_CRASH:
        return (
            f"{_who(root)} crashed" if signal is None else f"{_who(root)} crashed ({signal[0]}: {signal[1]})"
        )
    if signal is not None:
        title = f"A data worker crashed ({signal[0]}: {signal[1]})"
        return title + _where(root)
    if root.failure is FailureClass.TERMINATED and root.reason in _STOPS:
        title = _STOPS[root.reason]
    elif root.chosen is not None and root.chosen.signature.title:
        title = root.chosen.signature.title + _where(root)
    elif root.failure is FailureClass.DISK_FULL and is_mount_error(root.text):
        title = MOUNT_FAILED + _where(root)
    elif _is_named_by_others(root):
        title = f"A collective timed out: rank {root.rank} never joined it"
    else:
        title = _named_by_itself(root) or class_texts()[root.failure].title + _where(root)
    if root.failure in (FailureClass.HEALTHY, FailureClass.UNKNOWN) or root.confidence >= SURE_ENOUGH:
        return title
    return f"{title} (likely, not certain)"


def _named_by_itself(root: Root) -> str:
    """An ordinary error's headline: its exception, the rank, its message; empty if its line has none."""
    if root.failure not in PLAIN_ERRORS:
        return ""
    text = redact_text(split_prefix(root.text)[1].strip())
    if root.failure is FailureClass.USAGE_ERROR:
        refused = _REFUSED.match(text)
        head = class_texts()[root.failure].title
        return f"{head}{_where(root)}: {_shortened(refused[1])}" if refused else ""
    if (match := _EXCEPTION.match(text)) is None:
        return ""
    name, message = match.groups()
    return f"{name}{_where(root)}" + (f": {_shortened(message)}" if message else "")


def _shortened(message: str) -> str:
    return message if len(message) <= MOST_MESSAGE else f"{message[: MOST_MESSAGE - 1].rstrip()}…"


def _signal(root: Root) -> tuple[str, str] | None:
    """The signal that ended a process, and its meaning, if the root's line names it."""
    if root.reason not in (Reason.SIGNAL, Reason.SEGFAULT):
        return None
    name = signal_of(root.text)
    return (name, _MEANING[name]) if name is not None else None


def _is_named_by_others(root: Root) -> bool:
    """Whether the ranks that waited in a collective named this one: nothing failed on the rank itself."""
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
    """``local rank 2 of node 1``."""
    return f"local rank {root.local_rank}" + (f" of node {root.node}" if root.node is not None else "")
