"""Which runs of the list a typed filter means, and what is wrong with one (pure but for the local zone)."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Sequence
from datetime import date, timedelta

from supervisor.run.events import Outcome, Phase
from supervisor.run.failures import FailureClass
from supervisor.views.filter_words import BadQueryError, Word, words_of
from supervisor.views.model.run_list import RunRow, recovered_from
from supervisor.views.wording.translate import Tr, english

_NUMBERS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
NUMBERS = frozenset(["step", "total", "loss", "duration", "attempts"])
# What a filter's term may begin with.
FIELDS = (
    *("state", "id", "name", "note", "failure", "host", "started"),
    *("step", "total", "loss", "duration", "attempts"),
)
# What `RunRow.word` and the column of states may have, the ones that people look for first; "live" is added to those of a live run.
STATES = (
    *("running", "stepping", "stalled", "held", "backoff", "failed", "succeeded", "stopped", "lost"),
    *(
        "gave_up",
        "live",
        "no_keeper",
        "no_supervisor",
        "waits_for_you",
        "refused",
        "hang",
        "failing",
        "quiet",
        "reading",
        "not_watched",
    ),
    *("unwatched", "end_unknown", "unknown", "preflight", "launching", "stopping", "ended", "diagnosed"),
    *("restarted", "done", *(str(phase) for phase in Phase if phase is not Phase.STEPPING)),
)
_LIKE_A_FIELD = re.compile(r"[a-z_]\w*(<=|>=|!=|[:=<>]).*")
# Days that have a name, by how many days they are back.
NAMED_DAYS = {"today": 0, "yesterday": 1}


def filtered(
    rows: Sequence[RunRow], typed: str, now: float, shown: Callable[[RunRow], Sequence[str]] = lambda _: ()
) -> list[RunRow]:
    """The rows that all words accept: texts and expressions (in id, name, state, failures, note, command), days, and fields.

    ``:`` and ``=`` compare words (``:`` a part of one); an unknown value is never below or above anything. A day (``today``,
    ``yesterday``, ``2026-11-26``) is that of the start. `shown`: what a screen calls the state of a run, beside `RunRow.word`.
    """
    try:
        words = list(words_of(typed, FIELDS))
    except BadQueryError:
        return []
    return [row for row in rows if all(_accepts(row, word, now, shown(row)) for word in words)]


def filter_trouble(typed: str, tr: Tr = english) -> str:
    """What is wrong with a filter, in one line: no number where one is compared, no known state or failure. Empty: nothing is.

    `tr`: states are known by their names in the person's language too.
    """
    try:
        troubles = (_trouble(word, tr) for word in words_of(typed, FIELDS) if word.field and word.value)
        return next(filter(None, troubles), "")
    except BadQueryError as error:
        return str(error)


def _trouble(word: Word, tr: Tr) -> str:
    text, name, sign, value = word.text, word.field, word.sign, word.value.lower()
    if name in {"state", "failure"} and sign not in _NUMBERS:
        classes = tuple(map(str, FailureClass))
        known = STATES if name == "state" else classes
        # A list shows states in the person's language, and failures among them.
        shown = (*classes, *(_one_word(tr(each.replace("_", " "))) for each in STATES))
        accepted = (*known, *shown) if name == "state" else known
        if any(_same(each, value, part=sign == ":") for each in accepted):
            return ""
        near = ", ".join(difflib.get_close_matches(value, known, n=3, cutoff=0.3) or known[:3])
        if name == "state":
            return f"{text}: no such state; near: {near}; docs/guide.md lists all"
        return f"{text}: no such class of failure; near: {near}; docs/failures.md lists all"
    if sign not in _NUMBERS:
        return ""
    if name not in NUMBERS:
        return f"{text}: {name} is no number: use : or = with it, as in {name}:{value}"
    return "" if _is_number(value) else f"{text}: {value} is no number: write one, as in {name}{sign}2.5"


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def unknown_field(typed: str) -> str:
    """What to report where nothing matches a filter with a field that there is none of: ``nme:x``. Empty: nothing.

    Only then: ``file:line`` may be a word of a note or of a command.
    """
    for word in words_of(typed, FIELDS):
        if word.is_plain and not word.field and _LIKE_A_FIELD.fullmatch(word.text.lower()):
            return f"{word.text}: no such field, and no run has it in its words; fields: {', '.join(FIELDS)}"
    return ""


def _one_word(state: str) -> str:
    return state.lower().replace(" ", "_")


def _accepts(row: RunRow, word: Word, now: float, shown: Sequence[str]) -> bool:
    failed = () if row.state.failed_for is None else (str(Outcome.FAILED),)
    states = (row.word, *failed, *map(_one_word, shown))
    if not word.field:
        texts = (row.run.run_id, *_names(row), *states, row.history, row.reason, row.note, *row.command)
        is_found = any(word.term.find(text, text.lower()) for text in texts)
        return (is_found or _started(row) == _day(word.term.text, now)) != word.is_left_out
    if not word.value:
        return True  # it is still being typed
    if word.sign in _NUMBERS:
        value = _field(row, word.field, now)
        is_known = isinstance(value, int | float) and _is_number(word.value)
        return is_known and _NUMBERS[word.sign](value, float(word.value))  # type: ignore[arg-type]
    live = ("live",) if row.live and not row.state.is_over else ()
    several = {
        "state": (*states, *live),
        "name": _names(row),
        "failure": (row.failure, *recovered_from(row.state)),
    }
    values = several.get(word.field) or (_field(row, word.field, now),)
    wanted = _day(word.value.lower(), now) if word.field == "started" else word.value.lower()
    same = any(_same(value, wanted, part=word.sign == ":") for value in values)
    return not same if word.sign == "!=" else same


def _names(row: RunRow) -> tuple[str, ...]:
    return tuple(filter(None, (row.given, row.state.name)))


def _day(word: str, now: float) -> str:
    """The date of a day that has a name, local time; anything else as it is."""
    back = NAMED_DAYS.get(word)
    return word if back is None else str(date.fromtimestamp(now) - timedelta(days=back))  # noqa: DTZ012 - what a person types is local time


def _started(row: RunRow) -> str:
    """The day of its start, local time; "unknown" where it is."""
    start = row.state.began_t or row.state.started_t
    return str(date.fromtimestamp(start)) if start is not None else "unknown"  # noqa: DTZ012


def _same(value: float | str | None, wanted: str, *, part: bool) -> bool:
    if isinstance(value, str):
        return wanted in value.lower() if part else wanted == value.lower()
    try:
        return value is not None and value == float(wanted)
    except ValueError:
        return False


def _field(row: RunRow, field: str, now: float) -> float | str | None:
    state = row.state
    values: dict[str, float | str | None] = {
        "id": row.run.run_id,
        "note": row.note,
        "host": state.host,
        "started": _started(row),
        "step": row.step,
        "total": state.planned_steps,
        "loss": state.best_loss,
        "duration": row.duration_s(now),
        "attempts": len(state.attempts),
    }
    return values.get(field)
