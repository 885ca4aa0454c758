"""What the lines before say about the next one: headers of tables, tracebacks, blocks of settings, headings."""

from __future__ import annotations

import re
from typing import NamedTuple

from supervisor.sources.metrics.grammar import parse_line
from supervisor.sources.metrics.names import LOSS, VAL_LOSS
from supervisor.sources.metrics.readings import NOTHING, Parsed
from supervisor.sources.metrics.tables import (
    Header,
    find_header,
    is_rule,
    is_section_row,
    read_pair_row,
    read_row,
)

MAX_HEADING = 120
_TRACE = "Traceback (most recent call last)"
_BLOCK = re.compile(
    r"^\s*(?:[-*=# ]*(?:[\w .-]*(?:config\w*|arguments?|args|hyper-?parameters?|options|settings|parameters)\b[\w .]*)[:\s=*-]*|[\w.-]+:)\s*$",
    re.IGNORECASE,
)
# "Test Error:" with its values on the lines below.
_EVALUATION = re.compile(
    r"(?:test|val|valid|validation|eval|evaluation|dev)\s+\w[ \w]{0,22}:\s*$", re.IGNORECASE
)
_BEST = re.compile(r"best (?:iteration|epoch|step|model|result)\w* (?:is|was)?\s*:\s*$", re.IGNORECASE)
# In a block that looks like settings a number of so many digits was computed, not chosen.
_MEASURED = re.compile(r":\s*-?\d+\.\d{7,}(?:e-?\d+)?\s*$")


class State(NamedTuple):
    """What the lines before say about the next one."""

    header: Header | None = None
    in_trace: bool = False
    in_record: bool = False
    in_settings: bool = False
    in_section: bool = False
    skip_next: bool = False
    in_evaluation: bool = False
    after_val_loss: bool = False


def parse(text: str, state: State) -> tuple[Parsed, State, bool]:
    """What a line says in a state, the state after it, and whether it was a row of a table."""
    stripped = text.strip()
    if not stripped:
        return NOTHING, state._replace(in_settings=False), False
    indented = text[:1] in " \t"
    if state.skip_next:
        return NOTHING, state._replace(skip_next=False), False
    if state.in_trace:
        if indented or stripped.startswith(("During handling", "The above exception", _TRACE)):
            return NOTHING, state, False
        return NOTHING, state._replace(in_trace=False), False
    if _TRACE in text:
        return NOTHING, state._replace(in_trace=True), False
    if _BEST.search(text):
        return NOTHING, state._replace(skip_next=True), False
    parsed, after = _from_table(text, state)
    if parsed is not None:
        return parsed, after, True
    if not indented:
        after = after._replace(in_record=False, in_evaluation=False)
    if len(text) <= MAX_HEADING and _BLOCK.match(text):
        return NOTHING, after._replace(in_settings=True), False
    if _EVALUATION.match(text):
        return NOTHING, after._replace(in_evaluation=True), False
    if after.in_settings and indented and not _MEASURED.search(text):
        return NOTHING, after, False
    after, of_val = after._replace(after_val_loss=False), after.after_val_loss
    parsed = parse_line(
        text, in_record=after.in_record or (after.in_settings and indented), evaluates=after.in_evaluation
    )
    if of_val and _is_breakdown(parsed):
        parsed = parse_line(text, evaluates=True)
    after = after._replace(after_val_loss=[r.field for r in parsed.readings] == [VAL_LOSS])
    if not indented:
        after = after._replace(in_settings=parsed.settings and not parsed.readings)
    return parsed, after._replace(in_record=after.in_record or parsed.heading), False


def _is_breakdown(parsed: Parsed) -> bool:
    """Whether a line names a loss beside its parts, and no step: below "Val loss: 0.41" that is the same loss again."""
    fields = [reading.field for reading in parsed.readings]
    return LOSS in fields and len(fields) > 1 and set(fields) <= {LOSS, ""}


def _from_table(text: str, state: State) -> tuple[Parsed | None, State]:
    if is_rule(text):
        return NOTHING, state
    if is_section_row(text):
        return NOTHING, state._replace(in_section=True)
    row = read_pair_row(text, in_section=state.in_section)
    if row is not None:
        return row, state
    state = state._replace(in_section=False)
    if state.header is not None:
        row = read_row(state.header, text)
        if row is not None:
            return row, state
    header = find_header(text)
    if header is not None:
        return NOTHING, state._replace(header=header)
    return None, state
