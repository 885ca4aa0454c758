"""Picks the root cause from everything that was found. An ordered table: the first rule that matches decides.

The idea behind the order: the earliest cause on the rank that failed first. Peers' complaints, the launcher's own
signals and aborts are consequences, and are the root cause only if nothing else was found. If in doubt: `unknown`.
`stoker diagnose --explain` prints the rule that fired and those below it that matched too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from supervisor.diagnosis.attribution.exits import Exit
from supervisor.diagnosis.attribution.waiting import HangPlace, different_rendezvous, lagging_rank
from supervisor.diagnosis.case import Case, Root
from supervisor.diagnosis.cause.confidence import Chosen, Limit, limits_of
from supervisor.diagnosis.cause.facts import STOP_SIGNALS, Facts
from supervisor.diagnosis.cause.roots import (
    from_candidate,
    from_complaint,
    from_exit,
    own_complaint,
)
from supervisor.diagnosis.scan.hit import Candidate
from supervisor.diagnosis.scan.signature_tables import Strength
from supervisor.run.failures import FailureClass, Reason

METRIC_ROWS = 5
# Above it, a shell's 128 + signal.
MOST_EXIT_CODE = 127


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """One way to a root.

    `when` finds what the rule rests on, None where it does not match; `then` makes the root of that. `why` is one
    sentence for people. `confidence`: how sure the root is; None: by the strength of its line. `is_fallback`: it only
    says that no line can be pointed at.
    """

    name: str
    when: Callable[[Facts], T | None]
    then: Callable[[Facts, T], Root]
    why: str
    confidence: float | None = None
    is_fallback: bool = False

    def root(self, facts: Facts) -> Root | None:
        """The root that this rule gives; None where it does not match."""
        found = self.when(facts)
        if found is None:
            return None
        root = self.then(facts, found)
        return root if self.confidence is None else root._replace(confidence=self.confidence)


# -- stacks, causes, stops -------------------------------------------------------------------------


def _stack_dump(facts: Facts) -> HangPlace | None:
    root = facts.best_cause
    return facts.dumped_stack if root is None or root.strength < Strength.DECISIVE else None


def _hang_at(facts: Facts, place: HangPlace) -> Root:
    case, rank = facts.case, place.rank
    if rank is None and facts.consequences:
        rank = lagging_rank(case.candidates, case.launch, case.ranks)
    path = case.scans[place.source].path
    return Root(FailureClass.HANG, rank=rank, path=path, line=place.line, text=place.text)


def _of_cause(facts: Facts, item: Candidate) -> Root:
    return from_candidate(item, facts.causes, facts.case)


def _of_stop(facts: Facts, item: Candidate) -> Root:
    root = from_candidate(item, facts.stops, facts.case)
    interrupted = next((one for one in facts.case.launch.exits if one.code == -2), None)
    if root.rank is None and interrupted is not None:
        rank = facts.case.ranks.of_exit(interrupted)
        root = root._replace(rank=rank, ranks=(rank,) if rank is not None else ())
    return root


# -- exits -----------------------------------------------------------------------------------------


def _killed(facts: Facts) -> Exit | None:
    found = facts.unexplained_signal
    return found if found is not None and found.code == -9 else None


def _stopped_alone(facts: Facts) -> Exit | None:
    found = facts.silent_exit
    return found if found is not None and found.code in STOP_SIGNALS else None


def _of_signalled(facts: Facts, item: Exit) -> Root:
    return from_exit(item, facts.case, FailureClass.TERMINATED, Reason.OUTSIDE)


def _of_exit(facts: Facts, item: Exit) -> Root:
    reason = Reason.EXIT_CODE if item.code > 0 else None
    return from_exit(item, facts.case, reason=reason)


def _all_signalled(facts: Facts) -> Exit | None:
    # Where another ended by itself, the launcher sent the signal.
    if any(item.code > 0 or item.code == -6 for item in facts.bad_exits):
        return None
    return next((item for item in facts.bad_exits if item.code in STOP_SIGNALS), None)


def _exit_code(facts: Facts) -> Exit | None:
    usual = {1, *STOP_SIGNALS}
    return next(
        (item for item in facts.bad_exits if item.code not in usual and item.code <= MOST_EXIT_CODE), None
    )


# -- silences, complaints --------------------------------------------------------------------------


def _silence(facts: Facts) -> str | None:
    stop = facts.stop_before_complaints
    by_somebody = (Reason.TIME_LIMIT, Reason.USER, Reason.OUTSIDE)
    return facts.silent_log if stop is not None and facts.stops[0].reason in by_somebody else None


def _of_silence(_facts: Facts, path: str) -> Root:
    return Root(FailureClass.HANG, path=path)


def _of_nan(facts: Facts, found: tuple[int, int]) -> Root:
    source, row = found
    scan = facts.case.scans[source]
    rank = scan.origin.rank
    if rank is None:
        rank = facts.case.ranks.from_local(scan.origin.local_rank or 0, scan.origin.node)
    return Root(
        FailureClass.NAN_LOSS,
        rank=rank,
        ranks=(rank,) if rank is not None else (),
        path=scan.path,
        line=scan.tail_line + row,
        text=scan.tail[row],
    )


def _other_rendezvous(facts: Facts) -> tuple[int, int, str] | None:
    if facts.complaint is None or facts.complaint.failure is not FailureClass.RENDEZVOUS:
        return None
    return different_rendezvous(facts.case.scans)


def _of_rendezvous(facts: Facts, found: tuple[int, int, str]) -> Root:
    source, line, text = found
    assert facts.complaint is not None
    chosen = own_complaint(facts.complaint, facts.consequences)
    path = facts.case.scans[source].path
    return Root(FailureClass.RENDEZVOUS, path=path, line=line, text=text, chosen=chosen)


def _of_complaint(facts: Facts, item: Candidate) -> Root:
    return from_complaint(own_complaint(item, facts.consequences), facts.case)


# -- no line to point at ---------------------------------------------------------------------------


def _when(fact: Callable[[Facts], bool]) -> Callable[[Facts], bool | None]:
    return lambda facts: fact(facts) or None


def _unknown(_facts: Facts, _found: object) -> Root:
    return Root(FailureClass.UNKNOWN)


def _unknown_of_blamed(facts: Facts, _found: object) -> Root:
    reported = any(item.code != 0 for item in facts.case.launch.exits)
    blamed = facts.case.ranks.blamed() if reported else None
    return Root(FailureClass.UNKNOWN, rank=blamed, ranks=(blamed,) if blamed is not None else ())


def _healthy(_facts: Facts, _found: object) -> Root:
    return Root(FailureClass.HEALTHY)


RULES: tuple[Rule[Any], ...] = (
    Rule(
        "stack_dump",
        when=_stack_dump,
        then=_hang_at,
        why="Somebody dumped stacks into the log, and no strong cause stands in it: the run hung where a process waits outside of a collective.",
        confidence=0.86,
    ),
    Rule(
        "earliest_cause",
        when=lambda facts: facts.cause_before_stop,
        then=_of_cause,
        why="The earliest line that names a cause, and that no stop before it explains, is what the run failed of.",
    ),
    Rule(
        "scheduler_stop",
        when=lambda facts: facts.scheduler_stop,
        then=_of_stop,
        why="A node failed or the scheduler pre-empted the job, and nothing had failed before.",
    ),
    Rule(
        "killed",
        when=_killed,
        then=_of_exit,
        why="A process was killed (SIGKILL) and nobody here sent that; most often the kernel did, for want of memory.",
        confidence=0.7,
    ),
    Rule(
        "fatal_signal",
        when=lambda facts: facts.unexplained_signal,
        then=_of_exit,
        why="A process died by a signal that it raised itself, and printed no cause.",
        confidence=0.9,
    ),
    Rule(
        "stopped_alone",
        when=_stopped_alone,
        then=_of_signalled,
        why="One process was stopped by a signal while its peers only lost the connection to it.",
        confidence=0.8,
    ),
    Rule(
        "silent_exit",
        when=lambda facts: facts.silent_exit,
        then=_of_exit,
        why="A process left with an unusual exit code and printed nothing, while its peers only lost the connection to it.",
        confidence=0.8,
    ),
    Rule(
        "silence_before_stop",
        when=_silence,
        then=_of_silence,
        why="Long before the stop no step was printed any more: the run hung, and the stop ended that.",
        confidence=0.78,
    ),
    Rule(
        "stop",
        when=lambda facts: facts.stop_before_complaints,
        then=_of_stop,
        why="The run was stopped from outside, and no peer had complained before.",
    ),
    Rule(
        "nan_to_the_end",
        when=lambda facts: facts.nan_row,
        then=_of_nan,
        why="The loss was nan to the last line that printed one.",
        confidence=0.88,
    ),
    Rule(
        "different_rendezvous",
        when=_other_rendezvous,
        then=_of_rendezvous,
        why="Nodes were started with different rendezvous ids, so that they never meet.",
        confidence=0.93,
    ),
    Rule(
        "complaint",
        when=lambda facts: facts.complaint,
        then=_of_complaint,
        why="Only complaints of peers are known (a timeout, a lost connection), and no rank reports that it failed first.",
    ),
    Rule(
        "all_signalled",
        when=_all_signalled,
        then=_of_signalled,
        why="All processes that ended badly were ended by signals from outside.",
        confidence=0.75,
    ),
    Rule(
        "exit_code",
        when=_exit_code,
        then=_of_exit,
        why="A process aborted or exited with an unusual code, and nothing else is known.",
        confidence=0.75,
    ),
    Rule(
        "unexplained_end",
        when=_when(lambda facts: facts.died),
        then=_unknown_of_blamed,
        why="A process ended badly, and nothing in view says why.",
        confidence=0.5,
        is_fallback=True,
    ),
    Rule(
        "cut_off",
        when=_when(lambda facts: facts.breaks_off),
        then=_unknown,
        why="A log ends within a traceback: the line that says what was raised is missing.",
        confidence=0.5,
        is_fallback=True,
    ),
    Rule(
        "good_end",
        when=_when(lambda facts: facts.good_end),
        then=_healthy,
        why="The log reports the end of training, and no failure.",
        confidence=0.97,
        is_fallback=True,
    ),
    Rule(
        "still_training",
        when=_when(lambda facts: facts.any_progress or facts.case.job.launcher_exit == 0),
        then=_healthy,
        why="Training printed steps, or the launcher ended with 0, and no failure is reported.",
        confidence=0.94,
        is_fallback=True,
    ),
    Rule(
        "metrics_printed",
        when=_when(lambda facts: facts.case.job.metric_rows >= METRIC_ROWS),
        then=_healthy,
        why="Rows of metrics or of numbers are printed to the end, and no failure is reported.",
        confidence=0.8,
        is_fallback=True,
    ),
    Rule(
        "nothing_known",
        when=_when(lambda _facts: True),
        then=_unknown,
        why="The logs show neither steps nor a failure.",
        confidence=0.4,
        is_fallback=True,
    ),
)  # fmt: skip


class Choice(NamedTuple):
    """A root with the rule that gave it, and the facts that it was decided on."""

    root: Root
    rule: Rule[Any]
    facts: Facts

    def also_matched(self) -> list[Rule[Any]]:
        """The rules below the one that fired that match too; fallbacks are left out."""
        later = RULES[RULES.index(self.rule) + 1 :]
        return [rule for rule in later if not rule.is_fallback and rule.when(self.facts) is not None]

    def limits(self) -> list[Limit]:
        """What holds the confidence in the chosen line down, the weakest evidence first."""
        item = self.root.chosen
        if item is None or not item.is_cause:
            return []
        stopped = item.failure is FailureClass.TERMINATED
        peers = self.facts.stops if stopped else self.facts.causes
        return limits_of(Chosen(item, peers, self.facts.case))


def choose(case: Case) -> Choice:
    """Find the root cause of a failure: the first rule of the table that matches gives it."""
    facts = Facts(case)
    for rule in RULES:
        root = rule.root(facts)
        if root is not None:
            return Choice(root, rule, facts)
    raise AssertionError("the last rule always matches")
