"""How sure a chosen line is: its strength, and what else stands in the logs. One table, measured on whole public logs.

A log's last word is seldom misread. What was wrong at first reading was a line that was not the end: a failure of
another class stood below it, or the log continued for long (docs/generalisation.md, "What a verdict states").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from supervisor.diagnosis.case import Case
from supervisor.diagnosis.cause.recovered_errors import is_notice
from supervisor.diagnosis.cause.vocabulary import class_by_words
from supervisor.diagnosis.scan.hit import Candidate
from supervisor.diagnosis.scan.signature_tables import Strength, Trait
from supervisor.run.failures import FailureClass
from supervisor.text.patterns import Lazy

# By the strength of a line that is its log's last word: 57 of 59 firm ones and 28 of 28 plain ones were right.
_BY_STRENGTH = (
    (Strength.CLEAR, 0.96),
    (Strength.PLAIN, 0.93),
    (Strength.SUGGESTIVE, 0.85),
)
WEAK = 0.66
# A line with more below it than this was not the end of its program, unless something reports that it ended.
MOST_LINES_BELOW = 200
# A line this far above another one is not part of the same message.
FAR_BELOW_LINES = 15
_TOLD = frozenset((Trait.BAD_END, Trait.SCHEDULER_REPORT, Trait.TASK_EXIT, Trait.LAUNCHER_END))
_RAISED = frozenset((Trait.TRACEBACK, Trait.CRASH_REPORT))
# Classes without words of their own: silences, and whatever the program raises.
_WITHOUT_WORDS = frozenset((FailureClass.HANG, FailureClass.CODE_ERROR))
_VAGUE = Lazy(
    r"\b(?:ValueError|AssertionError|RuntimeError|OSError|Exception|NotImplementedError|MisconfigurationException|ZeroDivisionError)\b|'NoneType' object"
)


class Ended(StrEnum):
    """What shows that a program ended badly."""

    TOLD = "told"  # an exit code, or the word of a launcher, scheduler or shell
    RAISED = "raised"  # an exception's traceback, a crash report
    NOT_SHOWN = "not_shown"


def ended_by(case: Case) -> Ended:
    """What in all logs and records shows that a program ended badly, the firmest kind of it."""
    traits = frozenset(trait for scan in case.scans for hit in scan.hits for trait in hit.signature.traits)
    codes = (
        case.job.launcher_exit or 0,
        *case.job.exit_codes.values(),
        *(item.code for item in case.launch.exits),
    )
    if any(code != 0 for code in codes) or not _TOLD.isdisjoint(traits):
        return Ended.TOLD
    return Ended.NOT_SHOWN if _RAISED.isdisjoint(traits) else Ended.RAISED


class Chosen(NamedTuple):
    """The line that was chosen, among the causes (or stops) of its case."""

    item: Candidate
    peers: Sequence[Candidate]
    case: Case

    def rivals(self) -> list[Candidate]:
        """Firm causes of other classes."""
        return [
            other
            for other in self.peers
            if other.failure is not self.item.failure
            and not other.soft
            and other.strength >= Strength.SUGGESTIVE
        ]


class Limit(NamedTuple):
    """A kind of evidence, and how sure a verdict on it is at most. `why` is one sentence for people."""

    name: str
    applies: Callable[[Chosen], bool]
    at_most: float
    why: str


def far_below(one: Candidate, other: Candidate) -> bool:
    """Whether a line stands well below another, or in another log."""
    return other.source != one.source or other.line - one.line > FAR_BELOW_LINES


def _is_vague(chosen: Chosen) -> bool:
    return chosen.item.has(Trait.GENERIC) and _VAGUE.search(chosen.item.text) is not None


def _in_unknown_words(chosen: Chosen) -> bool:
    item = chosen.item
    # Python names the module of a class, but for the script's own (traceback.TracebackException).
    is_scripts_own = item.has(Trait.ENDS_TRACEBACK) and "." not in item.text.split(":", 1)[0]
    return item.has(Trait.OPEN_TYPE) and item.failure is FailureClass.CODE_ERROR and not is_scripts_own


def _words_lead_elsewhere(chosen: Chosen) -> bool:
    if chosen.item.failure in _WITHOUT_WORDS:
        return False
    leader = class_by_words(chosen.item.text)
    return leader is not None and leader[0] is not chosen.item.failure


def _only_a_warning(chosen: Chosen) -> bool:
    alike = (other for other in chosen.peers if other.failure is chosen.item.failure)
    return chosen.item.soft and all(other.soft for other in alike)


def _end_not_shown(chosen: Chosen) -> bool:
    if chosen.item.failure is FailureClass.TERMINATED or chosen.item.hit.has(Trait.USAGE_EXIT):
        return False
    return ended_by(chosen.case) is Ended.NOT_SHOWN


def _log_continues(chosen: Chosen) -> bool:
    below = chosen.case.scans[chosen.item.source].lines - chosen.item.line
    return below > MOST_LINES_BELOW


LIMITS = (
    Limit(
        "another_cause_below",
        lambda chosen: any(far_below(chosen.item, other) for other in chosen.rivals()),
        0.65,  # 2 of 8
        "A failure of another class stands well below the line, or in another log: that one may be the end.",
    ),
    Limit(
        "unknown_words",
        _in_unknown_words,
        0.66,  # 8 of 17 in the blind rounds
        "The exception is of a kind that libraries raise for their own troubles, in words that no table knows.",
    ),
    Limit(
        "log_continues",
        lambda chosen: _log_continues(chosen) and ended_by(chosen.case) is not Ended.TOLD,
        0.65,  # 0 of 2
        "The log continues for long below the line, and nothing reports that the program ended.",
    ),
    Limit(
        "only_a_warning",
        _only_a_warning,
        0.78,
        "The line is only a warning, and no other line of its class is more.",
    ),
    Limit(
        "ended_later",
        _log_continues,
        0.8,  # 4 of 6
        "The program ended, but the log continues for long below the line.",
    ),
    Limit(
        "vague_type",
        _is_vague,
        0.86,
        "The exception is raised for anything: arguments, files, versions. Its message does not name more.",
    ),
    Limit(
        # With the very signature of a line held out, most of what was wrong and sure of itself was of this kind: an
        # uncorrectable ECC error is a "CUDA error" too, a full /dev/shm also says "No space left on device".
        "words_of_another_class",
        _words_lead_elsewhere,
        0.86,
        "The words of the line lead to another class.",
    ),
    Limit(
        "as_strong_rival",
        lambda chosen: any(other.strength >= chosen.item.strength for other in chosen.rivals()),
        0.86,
        "Another class has a cause that is as strong.",
    ),
    Limit(
        "notice_alone",
        lambda chosen: is_notice(chosen.item) and _end_not_shown(chosen),
        0.65,
        "The line only mentions a failure that normally raises an exception, and nothing shows that a program ended.",
    ),
    Limit(
        "notice",
        lambda chosen: is_notice(chosen.item),
        0.88,
        "Failures of this class are raised as exceptions, and this line only mentions one.",
    ),
    Limit(
        "end_not_shown",
        _end_not_shown,
        0.88,  # 5 of 7
        "The line names a failure, and nothing shows that a program ended.",
    ),
)  # fmt: skip


def level(strength: int, levels: Sequence[tuple[Strength, float]], otherwise: float) -> float:
    """The value of the highest level that a strength reaches."""
    return next((value for at_least, value in levels if strength >= at_least), otherwise)


def confidence_of(chosen: Chosen) -> float:
    """How sure a chosen line is."""
    value = level(chosen.item.strength, _BY_STRENGTH, WEAK)
    return min([value, *(limit.at_most for limit in limits_of(chosen))])


def limits_of(chosen: Chosen) -> list[Limit]:
    """The kinds of evidence that apply, the weakest first."""
    return [limit for limit in sorted(LIMITS, key=lambda one: one.at_most) if limit.applies(chosen)]
