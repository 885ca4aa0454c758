"""What the first picture shows: of a run as its journal has it, of one that is being started, of the list of runs.

Only what the app will show in the same place, so that nothing moves when it comes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain

from supervisor.run import series
from supervisor.run.events import Outcome
from supervisor.run.paths import RunPaths
from supervisor.run.records import Finding, FindingLevel
from supervisor.run.state import Backoff, DiagnosedAs, Finished, HeldOpen, RunState
from supervisor.text.decode import clean
from supervisor.views import format as fm
from supervisor.views.logs.sources import logs_of
from supervisor.views.splash.glimpse import last_lines
from supervisor.views.splash.picture import Said, Scene
from supervisor.views.tui.dashboard.layout import Needs
from supervisor.views.wording.translate import Tr

TAIL_BYTES = 1 << 14
MOST_LINES = 300
_KEY = re.compile(rb'"k":"(\d+)"')
_MARKS: Mapping[FindingLevel, str] = {
    FindingLevel.OK: "✓",
    FindingLevel.INFO: "·",
    FindingLevel.WARNING: "!",
    FindingLevel.REFUSE: "x",
}


def run_scene(run: RunPaths, state: RunState, tr: Tr, *, log_more: int = 0, side_more: int = 0) -> Scene:
    """A run whose journal was read.

    Args:
        run: the run directory.
        state: what its journal says.
        tr: tells sentences in the person's language.
        log_more: rows that a person gave the log beyond its share.
        side_more: cells that a person gave the right column beyond its share.
    """
    first = [Said(" stoker  ", "dim"), Said(_shown(fm.short_id(state.run_id)), "strong", bold=True)]
    attempt = state.attempt
    observed = state.mode == "observed"
    if attempt is not None and not observed:
        first.append(Said(tr(f" · attempt {attempt.number}")))
    if observed:
        first.append(Said(tr(" · observed"), "dim"))
    log = newest_log(run, state)
    ranks = len(attempt.ranks) if attempt is not None else 1
    needs = Needs(
        devices=0 if observed else _gpus(run) or 1 + ranks,
        ranks=0 if observed else ranks,
        log_more=log_more,
        side_more=side_more,
    )
    return Scene(
        header=(first, (Said(f" {_shown(state.name)}"),)),
        lines=_lines(log),
        # A card takes as many rows as its words need, and the panes stand around it.
        needs=None if _failed(state) else needs,
    )


def start_scene(
    name: str,
    command: str,
    findings: Iterable[Finding],
    tr: Tr,
    *,
    log_more: int = 0,
    side_more: int = 0,
) -> Scene:
    """A run that is being started: what is known of it so far.

    Args:
        name: the run's.
        command: what was asked for, on one line.
        findings: what pre-flight has found.
        tr: tells sentences in the person's language.
        log_more: rows that a person gave the log beyond its share.
        side_more: cells that a person gave the right column beyond its share.
    """
    found = (f" {_MARKS[each.level]} {tr(each.check)}: {tr(each.what)}" for each in findings)
    return Scene(
        header=(
            (Said(" stoker  ", "dim"), Said("…", "strong", bold=True), Said(" · "), Said(tr("○ starting"))),
            (Said(f" {_shown(name)}"),),
        ),
        lines=[_shown(line) for line in chain((f" $ {command}",), found)],
        indent=0,
        needs=Needs(devices=1, ranks=0, log_more=log_more, side_more=side_more),
    )


def runs_scene(tr: Tr) -> Scene:
    """The list of runs, before any is read."""
    return Scene(alone=tr("runs"))


def newest_log(run: RunPaths, state: RunState) -> str | None:
    """The log of the newest attempt that was written last; None while none has anything."""
    found = []
    for ref in logs_of(state, run.node(), state.attempts[-1:]):
        with suppress(OSError):
            info = ref.path.stat()
            found += [(info.st_mtime, str(ref.path))] if info.st_size else []
    return max(found)[1] if found else None


def _lines(log: str | None) -> list[str]:
    with suppress(OSError):
        return last_lines(log, MOST_LINES) if log is not None else []
    return []


def _failed(state: RunState) -> bool:
    """Whether the app may show a card of a failure."""
    match state.condition:
        case DiagnosedAs() | Backoff() | HeldOpen():
            return True
        case Finished(outcome=outcome):
            return outcome is not Outcome.SUCCEEDED
        case _:
            return False


def _gpus(run: RunPaths) -> int:
    """How many GPUs the newest samples are of."""
    path = run.node().series / f"{series.GPU}.jsonl"
    with suppress(OSError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - TAIL_BYTES, 0))
        return len(set(_KEY.findall(file.read(TAIL_BYTES))))
    return 0


def _shown(text: str) -> str:
    return clean(os.fsencode(text))
