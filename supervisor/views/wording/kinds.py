"""Translations of the kinds and values in events and state (``[kind.…]`` in ``lang/*.toml``)."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

from supervisor.job.batch import describe_change
from supervisor.run.events import (
    AttemptEnded,
    BatchMeasured,
    CheckpointCommitted,
    Event,
    FailureSign,
    Progress,
    RankFailing,
    StopWhy,
)
from supervisor.run.records import SpecChange
from supervisor.run.state import AttemptState, RunState
from supervisor.text.lines import read_amounts, read_to
from supervisor.views import format as fm
from supervisor.views.appearance import Lang

# A part that is left out if one of its values is missing or empty.
SHORT_CHARS = 120
OPTIONAL = re.compile(r"\[([^\[\]]*)\]")


@cache
def sections(lang: Lang) -> dict[str, Any]:
    """Read a language file and return its sections unchanged."""
    import tomllib

    with (Path(__file__).parent / "lang" / f"{lang}.toml").open("rb") as file:
        return tomllib.load(file)


class Kinds(Formatter):
    """Formats kinds and values in a language. `translate` handles values that are English sentences."""

    def __init__(self, lang: Lang, translate: Callable[[str], str]) -> None:
        self._tables: Mapping[str, Mapping[str, str]] = sections(lang)["kind"]
        self._translate = translate

    def sentence(self, table: str, kind: str, values: Mapping[str, object]) -> str:
        """Return the sentence for a kind, filled with values."""
        return self.filled(self._tables[table][kind], values)

    def filled(self, text: str, values: Mapping[str, object]) -> str:
        """Fill a sentence with values. A part in ``[ ]`` is dropped if any of its values is missing or empty."""

        def kept(part: re.Match[str]) -> str:
            names = [name for _, name, _, _ in self.parse(part[1]) if name is not None]
            return part[1] if all(values.get(name, "") not in (None, "") for name in names) else ""

        return self.vformat(OPTIONAL.sub(kept, text), (), values)

    def format_field(self, value: Any, format_spec: str) -> str:
        """Format a value. ``t`` translates it, a table name looks it up in that table, and anything else is a Python format spec."""
        if format_spec == "t":
            return self._translate(str(value))
        if (table := self._tables.get(format_spec)) is not None:
            return table.get(str(value), str(value))
        return format(value, format_spec)


def end_of_request(attempt: AttemptState) -> str:
    """Return English text such as ``stopped by ada`` or ``restarted by ada``, or "" if no request ended the attempt."""
    if attempt.stop is None or not attempt.ended_on_request:
        return ""
    word = "restarted" if attempt.stop.why is StopWhy.RESTART else "stopped"
    return f"{word} by {attempt.stop.by}" if attempt.stop.by else word


def failing_text(attempt: AttemptState, failing: RankFailing) -> str:
    """Return English text such as ``rank 1 died`` or ``rank 1 is exiting``. If no ranks are known, it says ``the process``."""
    known = attempt.ranks.get(failing.local_rank)
    gone = failing.sign is FailureSign.GONE or (known is not None and known.exited)
    return f"{_who(failing) if attempt.ranks else 'the process'} {'died' if gone else 'is exiting'}"


def failing_line(event: RankFailing, who: str = "", launcher: str = "the launcher") -> str:
    """Return a line such as ``rank 1 died: CUDA out of memory; waiting for torchrun to end``. `who` replaces ``rank 1 died``."""
    who = who or f"{_who(event)} {'died' if event.sign is FailureSign.GONE else 'is exiting'}"
    why = _short(event.text)
    if not why and event.exit_code is not None:
        why = signal_name(event.exit_code) if event.exit_code < 0 else f"exit code {event.exit_code}"
    return f"{who}{f': {why}' if why else ''}; waiting for {launcher} to end"


def _who(failing: RankFailing) -> str:
    return f"rank {failing.rank if failing.rank is not None else failing.local_rank}"


def _short(text: str) -> str:
    """Return the first sentence of an error line."""
    first = text.split(". ", 1)[0].strip().removesuffix(".")
    return first if len(first) <= SHORT_CHARS else f"{first[: SHORT_CHARS - 1]}…"


def signal_name(code: int) -> str:
    """Return the name of the signal behind a negative exit code."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def values_of(event: Event) -> dict[str, object]:
    """Return an event's fields, to be filled into a sentence's placeholders."""
    return {name: getattr(event, name) for name in event.__struct_fields__}


def unread_text(of: AttemptState | AttemptEnded | Progress) -> str:
    """Return English text such as ``log read to 120 of 600 MB``, or "" if reading is complete or has caught up."""
    if not isinstance(of, Progress):
        return read_to(of.log_read_bytes, of.log_size_bytes)
    return read_to((of.log_bytes or 0) - of.lag_bytes, of.log_bytes) if of.lag_bytes else ""


def reading_ratio(state: RunState) -> float | None:
    """Return the fraction of a watched log's backlog that has been read, or None if reading is keeping up."""
    progress = state.progress
    if state.mode != "observed" or progress is None or not progress.lag_bytes or not progress.log_bytes:
        return None
    return min(max(1.0 - progress.lag_bytes / progress.log_bytes, 0.0), 1.0)


def is_unread(state: RunState) -> bool:
    """Check whether a watched log is still unread. It may be growing, or it may have gone quiet long ago."""
    attempt = state.attempt
    if state.mode != "observed" or attempt is None or attempt.log_checked or attempt.ended_t is not None:
        return False
    return attempt.verdict is None


def reading_text(state: RunState) -> str:
    """Return e.g. ``reading 231 MB, 37 %`` for a watched log or old journal, ``reading`` if it is unread, or "" if caught up."""
    if is_unread(state):
        return "reading"
    ratio, size_bytes = reading_ratio(state), state.progress.log_bytes if state.progress is not None else None
    if state.journal_read is not None:
        ratio, size_bytes = state.journal_read[0] / state.journal_read[1], state.journal_read[1]
    amounts = read_amounts(0, size_bytes)
    if ratio is None or amounts is None:
        return ""
    _, size, unit = amounts
    return f"reading {size} {unit}, {math.floor(100 * ratio)} %"


def place_of_end(state: RunState, step: int | None, attempt: AttemptState) -> str:
    """Return where an attempt ended, e.g. ``epoch 3.5`` or ``before its first step``, or "". The latest one ended at `step`."""
    if reading_ratio(state) is not None:
        return ""  # the reading position is not the end
    is_newest = state.attempt is not None and attempt.number == state.attempt.number
    ended = step if is_newest else attempt.last_step
    if ended is not None:
        return f"step {fm.whole(ended)}"
    epoch = epoch_text(state) if is_newest else ""
    return epoch or ("before its first step" if attempt.first_loss is None else "")


def checkpoint_place(saved: CheckpointCommitted) -> str:
    """Return English text such as ``at step 1 200``, or ``about step 1 200, by its time`` if the name has no step."""
    return step_place(fm.whole(saved.step), saved.step_by_time)


def resume_place(state: RunState, step: int) -> str:
    """Describe the checkpoint that an attempt was supposed to resume from, in the format of `checkpoint_place`."""
    steps = {saved.step_by_time for saved in state.checkpoints if saved.step == step}
    return step_place(str(step), steps == {True})


def step_place(step: str, by_time: bool) -> str:
    """Describe a checkpoint's step, which is exact if taken from its name and approximate if estimated from its time."""
    return f"about step {step}, by its time" if by_time else f"at step {step}"


def counter_text(seen: BatchMeasured) -> str:
    """Say how a script's printed step relates to optimizer steps, or return "" if it is the same or unknown."""
    steps = seen.logged_step or 1.0
    if steps < 1:
        return f"{1 / steps:.0f} steps of the script are 1 optimizer step"
    return f"1 step of the script is {steps:.0f} optimizer steps" if steps > 1 else ""


def epoch_text(state: RunState) -> str:
    """Return text such as ``epoch 3.5 / 10`` for a log without steps, or "" if it has no epochs either."""
    progress = state.progress
    if progress is None or progress.epoch is None:
        return ""
    text = f"epoch {_plain(progress.epoch)}"
    total = progress.total_epochs
    return f"{text} / {_plain(total)}" if total is not None and progress.epoch <= total else text


def _plain(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def changed_text(change: SpecChange) -> str:
    """Describe a change in one line of English, or return "" if nothing changes."""
    parts = describe_change(change.batch).split(", ") if change.batch is not None else []
    parts = [part for part in parts if not part.endswith(" unchanged")]
    parts += [f"{name}={value}" for name, value in change.env]
    parts += [f"{name} {value}".rstrip() for name, value in change.set_args]
    parts += ["other arguments"] if change.argv is not None else []
    return ", ".join(parts)
