"""Turn a chosen line, exit or silence into a root cause with its rank, confidence and fingerprint.

The confidence is the line's strength, capped according to the rest of the logs. A single table holds the caps,
measured on public logs. A log's last line is seldom misread. The misreadings were of earlier lines: a failure
of another class came later, or the log went on for a long time (docs/generalisation.md, "What a verdict states").
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from supervisor.diagnosis.attempt_facts import Facts, Root, far_below
from supervisor.diagnosis.candidates import is_notice
from supervisor.diagnosis.class_words import class_by_words
from supervisor.diagnosis.hang_verdict import lagging_rank
from supervisor.diagnosis.launcher_reports import Exit, device_of
from supervisor.diagnosis.scan.matched_lines import Candidate, frames_above
from supervisor.diagnosis.scan.signature_tables import Strength, Trait
from supervisor.run.records import FailureClass, Reason
from supervisor.text.patterns import Lazy

# -- the same failure again? -----------------------------------------------------------------------


_VOLATILE = (
    (Lazy(r"^\W*(?:\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d\S*\s*)?(?:[\[(][^\])]{1,60}[\])]:?\s*)*"), ""),
    (Lazy(r"\b[IWEFD]\d{3,4} \d\d:\d\d:\d\d\.\d+ +(?:\d+ )?\S+\] ?"), ""),
    (Lazy(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b"), "#"),
    (Lazy(r"/(?:[\w.@+-]+/)+|[A-Z]:\\(?:[^\\\s]+\\)+"), "/"),
    (Lazy(r"(?:\d{1,3}\.){3}\d{1,3}|\d+(?:\.\d+)?"), "#"),
    (Lazy(r"\s+"), " "),
)


def plain_form(text: str) -> str:
    """Strip timestamps, ranks, addresses, paths and numbers from a message."""
    for pattern, to in _VOLATILE:
        text = pattern.sub(to, text)
    return text.strip()[:300]


def fingerprint(failure: FailureClass, reason: Reason | None, text: str) -> str:
    """Return 16 hex digits that stay the same for the same failure across attempts and runs."""
    # FNV-1a, 64 bits. Importing hashlib costs more than this loop over 300 bytes.
    value = 0xCBF29CE484222325
    for byte in f"{failure}|{reason or ''}|{plain_form(text)}".encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


# -- confidence of a line --------------------------------------------------------------------------

# By the strength of a line that ends its log: 57 of 59 firm ones and 28 of 28 plain ones were right.
_BY_STRENGTH = (
    (Strength.CLEAR, 0.96),
    (Strength.PLAIN, 0.93),
    (Strength.SUGGESTIVE, 0.85),
    (-100, 0.66),
)
# A line with more text below than this was not the end of its program, unless a report shows its end.
MOST_LINES_BELOW = 200
_TOLD = frozenset((Trait.BAD_END, Trait.SCHEDULER_REPORT, Trait.TASK_EXIT, Trait.LAUNCHER_END))
_RAISED = frozenset((Trait.TRACEBACK, Trait.CRASH_REPORT))
# Classes without their own words: silences, and exceptions raised by the program.
_WITHOUT_WORDS = frozenset((FailureClass.HANG, FailureClass.CODE_ERROR))
_VAGUE = Lazy(
    r"\b(?:ValueError|AssertionError|RuntimeError|OSError|Exception|NotImplementedError|MisconfigurationException|ZeroDivisionError)\b|'NoneType' object"
)


class Ended(StrEnum):
    """How the evidence shows that a program failed."""

    TOLD = "told"  # an exit code, or a report of a launcher, scheduler or shell
    RAISED = "raised"  # an exception's traceback, a crash report
    NOT_SHOWN = "not_shown"


def ended_by(facts: Facts) -> Ended:
    """Return the strongest kind of evidence, across all logs and records, that a program failed."""
    traits = frozenset(trait for scan in facts.scans for hit in scan.hits for trait in hit.signature.traits)
    codes = (
        facts.job.launcher_exit or 0,
        *facts.job.exit_codes.values(),
        *(item.code for item in facts.launch.exits),
    )
    if any(code != 0 for code in codes) or not _TOLD.isdisjoint(traits):
        return Ended.TOLD
    return Ended.NOT_SHOWN if _RAISED.isdisjoint(traits) else Ended.RAISED


class Limit(NamedTuple):
    """A kind of evidence and the maximum confidence of a verdict based on it. `why` explains the limit to the user."""

    name: str
    at_most: float
    why: str


LIMITS = (
    Limit("another_cause_below", 0.65,  # 2 of 8
          "A failure of another class stands well below the line, or in another log: that one may be the end."),
    Limit("log_continues", 0.65,  # 0 of 2
          "The log continues for long below the line, and nothing reports that the program ended."),
    Limit("notice_alone", 0.65,
          "The line only mentions a failure that normally raises an exception, and nothing shows that a program ended."),
    Limit("unknown_words", 0.66,  # 8 of 17 in the blind rounds
          "The exception is of a kind that libraries raise for their own troubles, in words that no table knows."),
    Limit("only_a_warning", 0.78, "The line is only a warning, and no other line of its class is more."),
    Limit("ended_later", 0.8,  # 4 of 6
          "The program ended, but the log continues for long below the line."),
    Limit("vague_type", 0.86,
          "The exception is raised for anything: arguments, files, versions. Its message does not name more."),
    # With a line's own signature held out, most confident errors were of this kind: an
    # uncorrectable ECC error is a "CUDA error" too, a full /dev/shm also reports "No space left on device".
    Limit("words_of_another_class", 0.86, "The words of the line lead to another class."),
    Limit("as_strong_rival", 0.86, "Another class has a cause that is as strong."),
    Limit("notice", 0.88, "Failures of this class are raised as exceptions, and this line only mentions one."),
    Limit("end_not_shown", 0.88,  # 5 of 7
          "The line names a failure, and nothing shows that a program ended."),
)  # fmt: skip


def _is_of_a_library(item: Candidate) -> bool:
    """Check whether an exception of unknown type is from a library. Python prints its module unless that is the script itself."""
    is_scripts_own = item.has(Trait.ENDS_TRACEBACK) and "." not in item.text.split(":", 1)[0]
    return item.has(Trait.OPEN_TYPE) and not is_scripts_own


def limits_of(item: Candidate, peers: Sequence[Candidate], facts: Facts) -> list[Limit]:
    """Return every confidence limit that applies to a line given its peers (other causes or stops), weakest first."""
    # Firm causes of other classes.
    rivals = [
        other
        for other in peers
        if other.failure is not item.failure and not other.soft and other.strength >= Strength.SUGGESTIVE
    ]
    ended = ended_by(facts)
    continues = facts.scans[item.source].lines - item.line > MOST_LINES_BELOW
    notice = is_notice(item)
    leader = class_by_words(item.text) if item.failure not in _WITHOUT_WORDS else None
    may_be_running = item.failure is not FailureClass.TERMINATED and not item.has(Trait.USAGE_EXIT)
    end_not_shown = may_be_running and ended is Ended.NOT_SHOWN
    applies = {
        "another_cause_below": any(far_below(item, other) for other in rivals),
        "log_continues": continues and ended is not Ended.TOLD,
        "notice_alone": notice and end_not_shown,
        "unknown_words": item.failure is FailureClass.CODE_ERROR and _is_of_a_library(item),
        "only_a_warning": all(one.soft for one in peers if one.failure is item.failure),
        "ended_later": continues,
        "vague_type": item.has(Trait.GENERIC) and _VAGUE.search(item.text) is not None,
        "words_of_another_class": leader is not None and leader[0] is not item.failure,
        "as_strong_rival": any(other.strength >= item.strength for other in rivals),
        "notice": notice,
        "end_not_shown": end_not_shown,
    }
    return [limit for limit in LIMITS if applies[limit.name]]


def _by_strength(item: Candidate, levels: Sequence[tuple[int, float]]) -> float:
    """Return the value for the highest level that a line's strength reaches."""
    return next(value for at_least, value in levels if item.strength >= at_least)


# For roots with peers' complaints only.
_COMPLAINT_BY_STRENGTH = ((Strength.DECISIVE, 0.9), (Strength.COMPLAINT, 0.8), (-100, 0.65))
WARNING_COSTS = 0.15  # the complaint is only a warning
# The outcome of the whole job, or a failure without a line.
_OF_NO_RANK = frozenset(
    (FailureClass.HEALTHY, FailureClass.UNKNOWN, FailureClass.TERMINATED, FailureClass.RENDEZVOUS)
)

# -- roots from lines ------------------------------------------------------------------------------


def from_candidate(item: Candidate, peers: Sequence[Candidate], facts: Facts) -> Root:
    """Build a root cause from a chosen line, with its rank or all the ranks that failed the same way."""
    item = _own_line(item, peers)
    alike = [other for other in peers if other.failure is item.failure]
    limits = limits_of(item, peers, facts)
    confidence = min([_by_strength(item, _BY_STRENGTH), *(limit.at_most for limit in limits)])
    ranks = _ranks_alike(alike, facts)
    rank: int | None = None
    if not ranks:
        rank = _rank_of(item, alike, facts)
        ranks = (rank,) if rank is not None else ()
    return Root(
        item.failure, item.reason, rank, ranks, facts.ranks.node_of(item.hit.origin),
        facts.scans[item.source].path, item.line, item.text, confidence, item,
    )  # fmt: skip


def _ranks_alike(alike: Sequence[Candidate], facts: Facts) -> tuple[int, ...]:
    """Return all ranks if they all failed the same way; empty if some did not or only one is known."""
    named = {rank for other in alike if (rank := other.rank) is not None}
    world = facts.job.world_size or facts.launch.world_size or (max(facts.ranks.seen, default=-1) + 1 or None)
    all_failed = named >= set(facts.launch.failed_ranks) and (world is None or len(named) >= world)
    return tuple(sorted(named)) if len(named) >= 2 and all_failed else ()


def _rank_of(item: Candidate, alike: Sequence[Candidate], facts: Facts) -> int | None:
    if item.failure is FailureClass.HANG:
        rank = lagging_rank(facts.candidates, facts.launch, facts.ranks)
    else:
        rank = facts.ranks.of(item.hit, item.failure)
    if rank is not None or item.hit.origin.local_rank is not None:
        return rank
    # The logs show no other process: no launcher, and no rank.
    is_one_process = not facts.launch.distributed and not facts.ranks.seen
    if item.failure is not FailureClass.TERMINATED or is_one_process:
        return _rank_otherwise(item, alike, facts)
    return None


def _own_line(item: Candidate, peers: Sequence[Candidate]) -> Candidate:
    """Return the rank's own log line with the same text, if this one is a launcher's summary or came a moment later."""
    origin = item.hit.origin
    of_ranks = [other for other in peers if other.hit.origin.local_rank is not None]
    if origin.local_rank is not None:
        earlier = (
            other
            for other in of_ranks
            if abs(other.order - item.order) <= 2
            and other.signature.id == item.signature.id
            and other.source < item.source
        )
        return next(earlier, item)
    if origin.rank is not None:
        return item
    alike = (other for other in of_ranks if other.failure is item.failure)
    return next((other for other in alike if plain_form(other.text) == plain_form(item.text)), item)


def _rank_otherwise(item: Candidate, alike: Sequence[Candidate], facts: Facts) -> int | None:
    """Find the rank for a line that names none, from its peers, the launcher, or the only rank that was silent."""
    if item.failure in (FailureClass.RENDEZVOUS, FailureClass.LIBUV):
        return facts.ranks.blamed()
    for other in alike:
        found = facts.ranks.of(other.hit, other.failure)
        if found is not None:
            return found
    if item.failure is FailureClass.GPU_FAULT:
        # The driver prints a bus address. The affected process prints its rank.
        felt = (other for other in facts.candidates if other.failure is FailureClass.CUDA_ERROR)
        named = (rank for other in felt if (rank := facts.ranks.of(other.hit, other.failure)) is not None)
        if (rank := next(named, None)) is not None:
            return rank
    if (blamed := facts.ranks.blamed()) is not None:
        return blamed
    if facts.launch.distributed and (silent := facts.ranks.only_silent()) is not None:
        return silent
    if item.failure is FailureClass.PORT_IN_USE or not facts.launch.distributed:
        return 0
    return None


def own_complaint(item: Candidate, consequences: Sequence[Candidate]) -> Candidate:
    """Return the line to show for a complaint: the rank's own or, for a rendezvous, the exception below any notices."""
    item = _own_line(item, consequences)
    if item.failure is not FailureClass.RENDEZVOUS or "Error" in item.text:
        return item
    raised = (
        other
        for other in consequences
        if other.signature.id == item.signature.id and "Error: " in other.text and far_below(item, other)
    )
    return next(raised, item)


def from_complaint(item: Candidate, facts: Facts) -> Root:
    """Build a root cause when peers' complaints are the only evidence."""
    rank = None
    if item.failure in (FailureClass.NCCL_TIMEOUT, FailureClass.HANG):
        rank = lagging_rank(facts.candidates, facts.launch, facts.ranks)
        rank = rank if rank is not None else frames_above(item.hit).spawn_rank
    elif item.failure is FailureClass.NCCL_ERROR:
        if item.has(Trait.LOST_CONNECTION):
            rank = lagging_rank(facts.candidates, facts.launch, facts.ranks)
        rank = rank if rank is not None else facts.ranks.of(item.hit, item.failure)
        rank = rank if rank is not None else facts.ranks.blamed()
    rank = rank if rank is not None else facts.ranks.only_speaker()
    confidence = _by_strength(item, _COMPLAINT_BY_STRENGTH) - (WARNING_COSTS if item.soft else 0)
    return Root(
        item.failure, item.reason, None, (), facts.ranks.node_of(item.hit.origin),
        facts.scans[item.source].path, item.line, item.text, confidence, item,
    ).of_rank(rank)  # fmt: skip


def with_local_rank(root: Root, facts: Facts) -> Root:
    """Add the node and local rank to the root cause, if a single process failed and its global rank is unknown."""
    if root.ranks or root.local_rank is not None or root.chosen is None or root.failure in _OF_NO_RANK:
        return root
    origin, blamed = root.chosen.hit.origin, facts.ranks.blamed_exit()
    local = origin.local_rank if origin.local_rank is not None else device_of(root.text)
    if local is not None:
        return root._replace(local_rank=local)
    node = facts.ranks.node_of(blamed.hit.origin) if blamed is not None else None
    if blamed is not None and root.node in {None, node}:
        return root._replace(local_rank=blamed.local_rank, node=node)
    return root


# -- roots from exits ------------------------------------------------------------------------------


def from_exit(
    item: Exit, facts: Facts, failure: FailureClass = FailureClass.WORKER_CRASH, reason: Reason | None = None
) -> Root:
    """Build a root cause from a process exit. If no reason is given, the exit code decides (SIGKILL or other)."""
    rank = facts.ranks.of_exit(item)
    if reason is None and failure is FailureClass.WORKER_CRASH:
        reason = Reason.SIGNAL
        if item.code == -9:
            failure, reason = FailureClass.HOST_OOM, Reason.KERNEL_KILL
    return Root(
        failure, reason, rank, (rank,) if rank is not None else (), item.node or facts.ranks.node_of(item.hit.origin),
        facts.scans[item.hit.source].path if item.hit.source >= 0 else "", item.hit.line, item.hit.text,
        local_rank=item.local_rank,
    )  # fmt: skip
