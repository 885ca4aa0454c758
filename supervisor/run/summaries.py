"""Per-run summaries for run lists, cached in ``.index`` next to the runs so that a finished run is folded only once.

An entry is valid only while its stored mark matches the run's journal. A keeper adds its run's entry
when it exits, and a reader adds missing ones. Each write appends whole lines, so several processes may
write at once. A damaged entry is skipped and its run is folded again. A file owned by another user is ignored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

import msgspec
from msgspec.structs import replace

from supervisor.job.spec import JobSpec
from supervisor.run.journal import folded_by
from supervisor.run.jsonl import append_line, decoded
from supervisor.run.next_job import declared_again
from supervisor.run.paths import NodePaths, RunPaths
from supervisor.run.regular import Mark, mark_of, open_regular
from supervisor.run.runfile import BadRunFile, read_run_file
from supervisor.run.state import AttemptState, RunState
from supervisor.text.redact import redact_argv

INDEX = ".index"
FORMAT = 1
"""Bumped when lists start to show something new that is derived from the same state."""
FEW_LINES = 64


class Summary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What lists show about a run.

    `mark` is its journal's mark, taken before the journal was read. `script` (None if run.json cannot be read) and
    `arguments` are as given, with secrets hidden. `given` is the name the user gave it at the start. `again` is the command
    that reruns it with the options it lacked; see `declared_again`.
    """

    run_id: str
    mark: Mark
    state: RunState
    script: str | None = None
    arguments: tuple[str, ...] = ()
    given: str = ""
    again: str = ""
    format: str = ""


def _format() -> str:
    return f"{FORMAT} {folded_by()}"


def name_given(job: JobSpec | None) -> str:
    """Return the name that the user gave a job, or "" if it is the script's name."""
    named = job.sources("run.name") if job is not None else []
    return named[-1][0] if named and named[-1][1] != "default" else ""


def summary_of(run: RunPaths, mark: Mark, state: RunState) -> Summary:
    """Summarize a run from its folded journal and its run.json."""
    found = Summary(run_id=run.run_id, mark=mark, state=state, format=_format())
    try:
        job = read_run_file(run.run_json).job
    except BadRunFile:
        return found
    words = redact_argv((job.entry, *job.entry_args))
    again = declared_again(state, job)
    return replace(found, script=job.entry, arguments=words[1:], given=name_given(job), again=again)


def _listed(whole: Summary) -> Summary:
    """Return the summary with only the latest note, and without ever-growing data that no list shows."""
    notes = [moment for moment in whole.state.timeline if moment.kind == "note_added"]
    bare: dict[str, object] = dict.fromkeys(("findings", "checkpoints", "kept", "advisories"), ())
    attempts = tuple(map(_listed_attempt, whole.state.attempts))
    state = replace(whole.state, **bare, answered={}, nodes={}, timeline=tuple(notes[-1:]), attempts=attempts)
    return replace(whole, state=state)


def _listed_attempt(attempt: AttemptState) -> AttemptState:
    verdict = attempt.verdict and dataclasses.replace(attempt.verdict, cause=None, consequences=(), advice=())
    long: dict[str, object] = {
        "ranks": {},
        "checkpoint_steps": (),
        "stacks": None,
        "left": (),
        "decision": None,
    }
    return replace(attempt, **long, verdict=verdict)


class RunIndex:
    """Cached summaries, read once per folder. Summaries that cannot be read or written are left out."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Summary]] = {}  # by folder and run
        self._new: dict[str, list[Summary]] = {}

    def find(self, run: RunPaths, mark: Mark | None) -> Summary | None:
        """Return a run's cached summary if its journal has not changed since."""
        folder = os.path.dirname(run.root)
        if folder not in self._kept:
            self._kept[folder] = {}
            with contextlib.suppress(OSError), open_regular(os.path.join(folder, INDEX)) as file:
                if os.fstat(file.fileno()).st_uid == os.geteuid():
                    self._take(folder, file.read())
        kept = self._kept[folder].get(run.run_id)
        return kept if kept is not None and kept.mark == mark else None

    def _take(self, folder: str, data: bytes) -> None:
        lines = decoded(msgspec.json.Decoder(Summary), data)
        kept = self._kept[folder] = {line.run_id: line for line in lines if line.format == _format()}
        there = set(os.listdir(folder))
        if data.count(b"\n{") > FEW_LINES + 2 * len(there):  # most lines are stale
            os.unlink(os.path.join(folder, INDEX))
            self._new[folder] = [kept[run_id] for run_id in kept.keys() & there]

    def add(self, run: RunPaths, summary: Summary) -> Summary:
        """Cache the summary of a run without a keeper, to be written by the next `save`. Return the summary as cached."""
        kept = _listed(summary)
        self._new.setdefault(os.path.dirname(run.root), []).append(kept)
        return kept

    def save(self) -> None:
        """Write the new summaries."""
        while self._new:
            folder, lines = self._new.popitem()
            append_line(Path(folder, INDEX), *lines)


def remember(node: NodePaths, state: RunState) -> None:
    """Cache a finished run's summary with this state, unless the run was only watched."""
    run, mark = RunPaths(node.root.parent.parent), mark_of(node.journal)
    if node == run.node() and mark is not None and state.is_over and state.mode == "launched":
        append_line(run.root.parent / INDEX, _listed(summary_of(run, mark, state)))
