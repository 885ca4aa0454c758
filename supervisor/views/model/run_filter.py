"""Applies a typed filter to the list of runs, and explains its errors (pure but for the local zone)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from datetime import date, timedelta

from supervisor.run.events import Outcome
from supervisor.views.logs.query import BadQueryError, Word, words_of
from supervisor.views.model.run_list import RunRow, recovered_from

_NUMBERS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
NUMBERS = frozenset(["step", "total", "loss", "duration", "attempts"])
# The prefixes of a filter's term.
FIELDS = (
    *("state", "id", "name", "note", "failure", "host", "started"),
    *("step", "total", "loss", "duration", "attempts"),
)
# Days with names, by how many days ago they were.
NAMED_DAYS = {"today": 0, "yesterday": 1}


def filtered(
    rows: Sequence[RunRow], typed: str, now: float, shown: Callable[[RunRow], Sequence[str]] = lambda _: ()
) -> list[RunRow]:
    """The rows that all words accept: texts and expressions (in id, name, state, failures, note, command), days, and fields.

    ``:`` and ``=`` compare words (``:`` a part of one); an unknown value is never less or greater. A
    day (``today``, ``yesterday``, ``2026-11-26``) is that of the start. `shown`: see `RunRow.word`.
    """
    try:
        words = list(words_of(typed, FIELDS))
    except BadQueryError:
        return []
    return [row for row in rows if all(_accepts(row, word, now, shown(row)) for word in words)]


def filter_trouble(typed: str) -> str:
    """The error in a filter, in one line: a comparison without a number, a bad expression. Empty if there is none."""
    try:
        for word in words_of(typed, FIELDS):
            name, sign, value = word.field, word.sign, word.value.lower()
            if sign not in _NUMBERS or not value:
                continue
            if name not in NUMBERS:
                return f"{word.text}: {name} is no number: use : or = with it, as in {name}:{value}"
            if not _is_number(value):
                return f"{word.text}: {value} is no number: write one, as in {name}{sign}2.5"
    except BadQueryError as error:
        return str(error)
    return ""


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


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
    """The date of a named day, local time; any other text unchanged."""
    back = NAMED_DAYS.get(word)
    return word if back is None else str(date.fromtimestamp(now) - timedelta(days=back))  # noqa: DTZ012 - what a person types is local time


def _started(row: RunRow) -> str:
    """The day of its start, local time, or "unknown"."""
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
