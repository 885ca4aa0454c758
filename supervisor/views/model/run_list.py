"""The list of live and past runs, read from their journals, filtered and sorted.

Unchanged journals are not read again.
"""

from __future__ import annotations

import math
import operator
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from supervisor.job.arguments.command_line import settings_of
from supervisor.job.batch import BatchSpec
from supervisor.job.spec import JobSpec
from supervisor.run.events import Outcome
from supervisor.run.index import listed_names, listed_notes, those_under
from supervisor.run.journal import StateReader
from supervisor.run.next_job import NextJob
from supervisor.run.ownership import has_keeper
from supervisor.run.paths import RunPaths
from supervisor.run.records import PLAIN_ERRORS, FailureClass, Verdict
from supervisor.run.regular import mark_of
from supervisor.run.state import DiagnosedAs, Finished, RunState
from supervisor.run.summaries import RunIndex, Summary, summary_of
from supervisor.text.redact import redact_argv, redact_text
from supervisor.views.format import short_id
from supervisor.views.logs.query import BadQueryError, Word, words_of

# A list of hundreds of runs loads in slices of this length, so that closing it never waits for all runs.
SLICE_S = 0.2
# How often to list the folder of runs and check the keepers' locks.
LOOK_S = 2.0
READ_S = 1.0  # how often the journals of live runs are read
# Headlines with an exception (``ValueError: label 1001 out of range``) or a signal (``Rank 0 crashed (SIGSEGV: …)``).
_NAMED = re.compile(r"[A-Za-z_]\w*(?::|$)")
_SIGNAL = re.compile(r"\((SIG[A-Z]+)\b")
# The fields that a filter of runs compares: numbers, texts, and days as days before today.
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
NUMBERS = frozenset(["step", "total", "loss", "duration", "attempts"])
FIELDS = NUMBERS | {"state", "id", "name", "note", "failure", "host", "started"}
NAMED_DAYS = {"today": 0, "yesterday": 1}
_RATE = re.compile(r"-{0,2}(?:[\w.]+\.)?(?:lr|learning[-_]rate)(?:=(.+))?", re.IGNORECASE)


def own_arguments(job: JobSpec | None, state: RunState) -> tuple[str, ...] | None:
    """Return the latest attempt's script arguments, redacted and without resume or run directory paths, or None if unknown."""
    if job is None:
        return None
    argv = state.attempt.argv if state.attempt is not None else ()
    after = argv.index(job.entry) + 1 if job.entry in argv else None
    words = list(redact_argv((job.entry, *(job.entry_args if after is None else argv[after:])))[1:])
    is_resumed = NextJob(job).resumes
    for setting in reversed(settings_of(words)):
        is_own = bool(state.run_id) and state.run_id in (setting.value or "")
        if is_own or is_resumed(setting.name):
            del words[setting.at : setting.at + (1 if setting.joined or setting.value is None else 2)]
    return tuple(words)


def rate_of(command: Sequence[str]) -> str:
    """Return the learning rate that a command sets with a flag or ``key=value``, as written, or "" if none is set."""
    found = ""
    for at, word in enumerate(command):
        match = _RATE.fullmatch(word)
        value = match and (match[1] or (word.startswith("-") and "".join(command[at + 1 : at + 2])))
        try:
            found = value if value and math.isfinite(float(value)) else found
        except ValueError:
            continue
    return found


def newest_rate(state: RunState, command: Sequence[str]) -> str:
    """Return the latest attempt's learning rate. After a restart, it may differ from the one in the command."""
    return rate_of(state.attempt.argv if state.attempt is not None and state.attempt.argv else command)


def batch_of(batch: BatchSpec | None) -> str:
    """Format an attempt's global batch, or the batch per rank (``8 a rank``) if the rank count is unknown, or "" if none."""
    if batch is None:
        return ""
    return str(batch.global_batch) if batch.ranks_known else f"{batch.global_batch} a rank"


def note_of(state: RunState, listed: tuple[float, str] = (0.0, "")) -> str:
    """Return the user's latest note on a run (added with the m key), with secrets hidden, or "" if there is none.

    `listed` is the time and text of the note stored in the index once the run is over.
    """
    notes = (moment for moment in reversed(state.timeline) if moment.kind == "note_added")
    newest = next(notes, None)
    text = listed[1] if newest is None or newest.t < listed[0] else str(newest.values.get("text", ""))
    return redact_text(text)


def watched_word(state: RunState, *, live: bool) -> str:
    """Return a watched job's state from its log: live, quiet, unknown (exit not seen), unwatched, or "" if none applies."""
    condition, attempt = state.condition, state.attempt
    if state.mode != "observed" or attempt is None:
        return ""
    if isinstance(condition, Finished):
        if condition.outcome is Outcome.STOPPED and not attempt.ended_on_request:
            return "unwatched"
        return "unknown" if condition.outcome is Outcome.LOST and state.is_end_unseen else ""
    if not live:
        return ""
    if isinstance(condition, DiagnosedAs):
        return "unknown" if state.is_end_unseen else ""
    return "live" if attempt.quiet_since is None else "quiet"


def short_reason(verdict: Verdict) -> str:
    """Return a failure reason short enough for a column: the error (named, usage or the user's own), a signal, or the class."""
    title = verdict.plain_title
    if verdict.signature or (verdict.failure in PLAIN_ERRORS and _NAMED.match(title)):
        return title
    if verdict.failure is FailureClass.USAGE_ERROR and (refused := title.partition(": ")[2]):
        return refused
    if signal := _SIGNAL.search(title):
        return f"{signal[1]} (host memory?)" if verdict.failure is FailureClass.HOST_OOM else signal[1]
    return str(verdict.failure)


def recovered_from(state: RunState) -> list[str]:
    """Return the classes of failures that a later attempt recovered from, oldest first."""
    return [str(attempt.failure) for attempt in state.attempts[:-1] if attempt.failure is not None]


@dataclass(frozen=True)
class RunRow:
    """A listed run, built from `summary`. `live` means that a keeper holds its lock; `note` is its latest note.

    `command` is its script and arguments, with secrets hidden. `given` is the name set by the user, if any.
    """

    run: RunPaths
    state: RunState
    live: bool
    command: tuple[str, ...] = ()
    given: str = ""
    note: str = ""
    summary: Summary | None = None

    @cached_property
    def history(self) -> str:
        """Each failure class once, followed by the latest verdict (``cuda_oom→healthy``), even if the run was stopped later."""
        return self._after_earlier(self.failure)

    @cached_property
    def reason(self) -> str:
        """The history with the latest attempt's reason instead of its class: ``ValueError: label 1001 out of range``."""
        verdict = self.state.attempt.verdict if self.state.attempt is not None else None
        return self._after_earlier(short_reason(verdict) if verdict is not None and self.failure else "")

    def _after_earlier(self, newest: str) -> str:
        earlier = [each for each in dict.fromkeys(recovered_from(self.state)) if each != self.failure]
        return "→".join([*earlier, newest or "-"]) if earlier else newest

    @property
    def keeper_alive(self) -> bool:
        """Whether a keeper is alive. A snapshot uses the same name."""
        return self.live

    @property
    def word(self) -> str:
        """The state in a single word: the outcome, the current activity, or "no_keeper" if the keeper is gone."""
        condition = self.state.condition
        if word := watched_word(self.state, live=self.live):
            return word
        if isinstance(condition, Finished):
            return str(condition.outcome)
        return type(condition).__struct_config__.tag if self.live else "no_keeper"  # type: ignore[return-value]  # our tags are strings

    @cached_property
    def failure(self) -> str:
        """The failure class of the latest verdict, or "" if there is none or the user stopped the attempt.

        Failures that the run recovered from are not shown. A run whose log was not seen to finish is not shown as healthy.
        """
        attempt = self.state.attempt
        if attempt is None or attempt.verdict is None or attempt.ended_on_request:
            return ""
        if attempt.verdict.failure is FailureClass.HEALTHY and self.state.is_end_unseen:
            return ""
        return str(attempt.verdict.failure)

    @property
    def step(self) -> int | None:
        """The last step of the latest attempt that made any steps."""
        return self.state.last_step

    @property
    def is_cut(self) -> bool:
        """Whether the latest attempt's logs were only partly read. If so, the attempt went beyond the last step that was read."""
        return self.state.attempt is not None and self.state.attempt.has_unread

    def duration_s(self, now: float) -> float | None:
        """Return the total duration of the run's attempts in seconds, as shown in the header."""
        return self.state.elapsed_s(self.state.now(now), has_keeper=self.live)


class SortKey(StrEnum):
    """What the list is sorted by."""

    NEWEST = "newest"
    STATE = "state"
    NAME = "name"
    STEP = "step"
    VERDICT = "verdict"
    LOSS = "best loss"
    DURATION = "duration"
    SEEN = "seen"


# Keys with the greatest value first, unless reversed.
GREATEST_FIRST = frozenset([SortKey.NEWEST, SortKey.STEP, SortKey.DURATION])


@dataclass(slots=True)
class Scope:
    """Which runs to list: those in the directory `place`, or all that this user started (`everywhere`).

    If `place` is None, all runs are in the same directory. The TUI's thread sets the scope; the reader thread reads it.
    """

    place: Path | None = None
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class RunList:
    """Runs, latest first. If `complete`, all journals were read. `elsewhere` counts runs in other directories, listed or not."""

    revision: int
    rows: tuple[RunRow, ...]
    complete: bool
    elsewhere: int = 0


class RunsReader:
    """Reads the run list in time slices: finished runs from summaries, all others from their journals.

    Args:
        known: returns the runs, latest first; called in the reader thread.
        scope: which runs to list; call `look_again` after changing it.
        names, notes: return the names and notes in the index, keyed by folder; called in the reader thread.
        monotonic: clock for time slices and intervals.
    """

    def __init__(
        self,
        known: Callable[[], list[RunPaths]],
        scope: Scope | None = None,
        *,
        names: Callable[[], Mapping[str, str]] = dict,
        notes: Callable[[], Mapping[str, tuple[float, str]]] = dict,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._known, self._names, self._notes = known, names, notes
        self._listed: tuple[Mapping[str, str], Mapping[str, tuple[float, str]]] = ({}, {})
        self._scope = scope or Scope()
        self._elsewhere = 0
        self._monotonic = monotonic
        self._runs: list[RunPaths] = []
        self._live: set[RunPaths] = set()
        self._open: list[RunPaths] = []  # runs whose journals may have unread lines
        self._readers: dict[RunPaths, StateReader] = {}
        self._summaries: dict[RunPaths, Summary] = {}
        self._rows: dict[RunPaths, RunRow] = {}
        self._index = RunIndex()
        self._due = self._next = -math.inf
        # Opening a run and returning within one slice starts a new thread before the old thread has ended.
        self._lock = threading.Lock()
        self._last = RunList(0, (), complete=False)

    def refresh(self) -> RunList:
        """Return the list as read so far. Its revision stays the same while nothing changes."""
        with self._lock:
            return self._refresh()

    def look_again(self) -> None:
        """List the directory again on the next refresh, because a run has been moved there."""
        with self._lock:
            self._due = -math.inf

    def _refresh(self) -> RunList:
        start = self._monotonic()
        if start < min(self._due, self._next):
            return self._last
        if start >= self._due:
            self._look()
            start = self._monotonic()
            self._due = start + LOOK_S
        waiting, self._open = self._open, []
        while waiting and self._monotonic() - start <= SLICE_S:
            self._read(waiting.pop())
        self._next = start if waiting else start + READ_S
        self._open += waiting
        self._index.save()
        rows = tuple(self._row(run) for run in self._runs if run in self._summaries)
        last = self._last
        if (found := (rows, not waiting, self._elsewhere)) != (last.rows, last.complete, last.elsewhere):
            self._last = RunList(self._last.revision + 1, *found)
        return self._last

    def _row(self, run: RunPaths) -> RunRow:
        if run not in self._rows:
            found, folder, (names, notes) = self._summaries[run], str(run.root), self._listed
            given = name if (name := names.get(folder)) and name != found.state.name else found.given
            note = note_of(found.state, notes.get(folder, (0.0, "")))
            command = () if found.script is None else (os.path.basename(found.script), *found.arguments)
            self._rows[run] = RunRow(run, found.state, run in self._live, command, given, note, found)
        return self._rows[run]

    def _in_scope(self, known: list[RunPaths]) -> list[RunPaths]:
        place = self._scope.place
        if place is None:
            return known
        here = those_under(known, place)
        self._elsewhere = len(known) - len(here)
        return known if self._scope.everywhere else here

    def _look(self) -> None:
        """List the runs and check which journals changed and which keepers are alive."""
        self._runs, listed = self._in_scope(self._known()), (dict(self._names()), dict(self._notes()))
        if listed != self._listed:
            self._listed, self._rows = listed, {}
        self._open = []
        for run in reversed(self._runs):  # the newest is read first
            mark, found = mark_of(run.node().journal), self._summaries.get(run)
            if run in self._readers:
                found = None
            elif (found is None or found.mark != mark) and (found := self._index.find(run, mark)):
                self._keep(run, found)
            live = not (found is not None and found.state.is_over) and has_keeper(run)
            if live != (run in self._live):
                self._live ^= {run}
                self._rows.pop(run, None)
            if live or found is None:
                self._open.append(run)

    def _keep(self, run: RunPaths, summary: Summary) -> None:
        self._summaries[run] = summary
        self._rows.pop(run, None)

    def _read(self, run: RunPaths) -> None:
        """Fold new journal lines into the run's row, and cache a summary if no keeper is alive."""
        journal = run.node().journal
        mark, found = mark_of(journal), self._summaries.get(run)
        if mark is None:
            self._summaries.pop(run, None)
            return
        if found is None or found.mark != mark:
            reader = self._readers[run] = self._readers.get(run) or StateReader(journal)
            while reader.refresh() and reader.offset != mark[1]:
                pass
            found = summary_of(run, mark, reader.state)
            self._keep(run, found)
        if run in self._live:
            self._open.append(run)
        elif self._readers.pop(run, None) is not None:
            self._keep(run, self._index.add(run, found))


def rows_of(runs: list[RunPaths], env: Mapping[str, str]) -> tuple[RunRow, ...]:
    """Return the rows for these runs, read in one go without a time limit."""
    names, notes = partial(listed_names, env), partial(listed_notes, env)
    return RunsReader(lambda: runs, names=names, notes=notes, monotonic=lambda: 0.0).refresh().rows


def ordered(
    rows: Sequence[RunRow],
    key: SortKey,
    now: float,
    *,
    reverse: bool = False,
    name: Callable[[RunRow], str] = lambda row: row.given or row.state.name,
    state: Callable[[RunRow], str] = lambda row: row.word,
) -> list[RunRow]:
    """Sort the rows by `key`, with unknown values last and ties latest first. Equal names are sorted by ID.

    `reverse` inverts the key's usual order. `name` and `state` return what is displayed, because a list
    sorted by hidden values looks unsorted.
    """
    if key is SortKey.NEWEST:
        return list(reversed(rows)) if reverse else list(rows)
    values: dict[SortKey, Callable[[RunRow], Any]] = {
        SortKey.STATE: lambda row: (not row.live, state(row)),
        SortKey.NAME: lambda row: (name(row).lower(), short_id(row.run.run_id)),
        SortKey.STEP: lambda row: row.step,
        SortKey.VERDICT: lambda row: row.reason or None,
        SortKey.LOSS: lambda row: row.state.best_loss,
        SortKey.DURATION: lambda row: row.duration_s(now),
        SortKey.SEEN: lambda row: None if row.state.last_t is None else row.state.now(now) - row.state.last_t,
    }
    found = [(values[key](row), row) for row in rows]
    known = [each for each in found if each[0] is not None]
    known.sort(key=lambda each: each[0], reverse=(key in GREATEST_FIRST) != reverse)
    return [row for _, row in known] + [row for value, row in found if value is None]


# -- a typed filter ----------------------------------------------------------------------------------------


def filtered(
    rows: Sequence[RunRow], typed: str, now: float, shown: Callable[[RunRow], Sequence[str]] = lambda _: ()
) -> list[RunRow]:
    """Return the rows that match every term: text, regexes, comparisons, days (``today``, ``yesterday``, ``2026-11-26``).

    Text and regexes search ID, name, state, failures, note and command. ``:`` and ``=`` compare strings; ``:`` also
    matches within words. Unknown values match no ``<`` or ``>``. Days are local start dates. See `RunRow.word` for `shown`.
    """
    try:
        words = list(words_of(typed, FIELDS))
    except BadQueryError:
        return []
    return [row for row in rows if all(_accepts(row, word, now, shown(row)) for word in words)]


def filter_trouble(typed: str) -> str:
    """Return what is wrong with a filter (a bad expression, a comparison without a number) as one line, or "" if valid."""
    try:
        for word in words_of(typed, FIELDS):
            name, sign, value = word.field, word.sign, word.value.lower()
            if sign not in _COMPARISONS or not value:
                continue
            if name not in NUMBERS:
                return f"{word.text}: {name} is no number: use : or = with it, as in {name}:{value}"
            if _number(value) is None:
                return f"{word.text}: {value} is no number: write one, as in {name}{sign}2.5"
    except BadQueryError as error:
        return str(error)
    return ""


def _accepts(row: RunRow, word: Word, now: float, shown: Sequence[str]) -> bool:
    state = row.state
    names = tuple(filter(None, (row.given, state.name)))
    failed = () if state.failed_for is None else (str(Outcome.FAILED),)
    states = (row.word, *failed, *(each.lower().replace(" ", "_") for each in shown))
    start = state.began_t or state.started_t
    started = str(date.fromtimestamp(start)) if start is not None else "unknown"  # noqa: DTZ012 - users type local time
    wanted = word.value.lower() if word.field else word.term.text
    if (back := NAMED_DAYS.get(wanted)) is not None and word.field in {"", "started"}:
        wanted = str(date.fromtimestamp(now) - timedelta(days=back))  # noqa: DTZ012
    if not word.field:
        texts = (row.run.run_id, *names, *states, row.history, row.reason, row.note, *row.command)
        is_found = any(word.term.find(text, text.lower()) for text in texts)
        return (is_found or started == wanted) != word.is_left_out
    if not word.value:
        return True  # the filter is still being typed
    live = ("live",) if row.live and not state.is_over else ()
    values: dict[str, tuple[float | str | None, ...]] = {
        "state": (*states, *live),
        "name": names,
        "failure": (row.failure, *recovered_from(state)),
        "id": (row.run.run_id,),
        "note": (row.note,),
        "host": (state.host,),
        "started": (started,),
        "step": (row.step,),
        "total": (state.planned_steps,),
        "loss": (state.best_loss,),
        "duration": (row.duration_s(now),),
        "attempts": (len(state.attempts),),
    }
    number, compare = _number(wanted), _COMPARISONS.get(word.sign)
    for value in values[word.field]:
        if isinstance(value, str):
            is_same = wanted in value.lower() if word.sign == ":" else wanted == value.lower()
            is_same = is_same and compare is None
        elif value is None or number is None:
            is_same = False
        else:
            is_same = value == number if compare is None else compare(value, number)
        if is_same:
            return word.sign != "!="
    return word.sign == "!="


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
