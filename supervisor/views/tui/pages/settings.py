"""What runs and why it runs so: each setting with its origin; and what was found before the launch."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from supervisor.job.batch import describe
from supervisor.job.spec import KnobScope
from supervisor.run.records import Finding, FindingLevel
from supervisor.run.runfile import RunFile
from supervisor.views import format as fm
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.dashboard.actions import again_text
from supervisor.views.tui.dashboard.header import sample_text
from supervisor.views.tui.pages.page import Page, labelled, section
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, fit, row
from supervisor.views.tui.widgets.panel import View
from supervisor.views.wording.kinds import counter_text
from supervisor.views.wording.translate import Tr

NAME_CELLS = 28
VALUE_LEAST = 16


class SettingsPage(Page):
    """The job as it was resolved: command, environment, batch, and where each value came from."""

    heading = "settings"

    def rows(self, view: View, width: int) -> Sequence[Row]:
        """The page."""
        snapshot = view.snapshot
        record = snapshot.run_file
        if record is None:
            if snapshot.state.mode == "observed":
                text = "stoker only watches this run: what it was started with is not known"
            else:
                text = "run.json cannot be read: what this run was started with is not known"
            return [row(Span(view.tr(text), TextStyle.DIM))]
        tr = view.tr
        return [
            *_command(snapshot, width, tr),
            *_again(snapshot, width, tr),
            *_job(record, snapshot, width, tr),
            *_origins(record, width, tr),
        ]


class PreflightPage(Page):
    """What was looked at before the first launch, and what to do about it."""

    heading = "pre-flight"

    def rows(self, view: View, width: int) -> Sequence[Row]:
        """The page."""
        findings = view.snapshot.state.findings
        if not findings:
            return [row(Span(view.tr("nothing was written down before the launch"), TextStyle.DIM))]
        rows: list[Row] = []
        for level in (FindingLevel.REFUSE, FindingLevel.WARNING, FindingLevel.INFO, FindingLevel.OK):
            for finding in findings:
                if finding.level is level:
                    rows += _finding(finding, width, view.tr)
        return rows


GLYPHS = {
    FindingLevel.REFUSE: ("✗", TextStyle.BAD),
    FindingLevel.WARNING: ("⚠", TextStyle.WARN),
    FindingLevel.INFO: ("·", TextStyle.PLAIN),
    FindingLevel.OK: ("✓", TextStyle.LIVE),
}


def _finding(finding: Finding, width: int, tr: Tr) -> list[Row]:
    glyph, style = GLYPHS[finding.level]
    name = f"{glyph} {tr(finding.check.replace('_', ' '))}"
    rows = labelled(name, tr(finding.what), width, label_cells=22, most=4)
    first = rows[0]
    rows[0] = (Span(first[0].text, style), *first[1:])
    if finding.fix:
        rows += labelled("", f"→ {tr(finding.fix)}", width, TextStyle.DIM, label_cells=22, most=4)
    return rows


def _command(snapshot: Snapshot, width: int, tr: Tr) -> list[Row]:
    attempt = snapshot.state.attempt
    if attempt is None or not attempt.argv:
        return [
            row(Span(tr("command"), TextStyle.STRONG)),
            row(Span(tr("nothing was launched yet"), TextStyle.DIM)),
        ]
    head = row(
        Span(tr("command"), TextStyle.STRONG), Span(tr(f"  of attempt {attempt.number}"), TextStyle.DIM)
    )
    rows: list[Row] = [head]
    rows += labelled("", shlex.join(attempt.argv), width, most=12, label_cells=0)
    if attempt.resume:
        rows += labelled(tr("resumes by"), attempt.resume, width)
    return rows


def _again(snapshot: Snapshot, width: int, tr: Tr) -> list[Row]:
    """The whole command that starts a run that is over once more, for a selection and the clipboard."""
    command = again_text(snapshot) if snapshot.state.is_over else ""
    if not command:
        return []
    return [*section(tr, "again"), *labelled("", command, width, most=12, label_cells=0)]


def _job(record: RunFile, snapshot: Snapshot, width: int, tr: Tr) -> list[Row]:
    job = record.job
    knobs = snapshot.state.answered_job(job).knobs
    batch = snapshot.state.attempt.shown_batch if snapshot.state.attempt else job.batch
    torch = f"torch {record.torch_version}" if record.torch_version else tr("torch not seen")
    seen = snapshot.state.attempt.measured if snapshot.state.attempt else None
    facts = [
        ("directory", job.cwd),
        ("python", f"{record.interpreter}  {record.python_version or ''}  {torch}"),
        ("code", f"commit {record.git_commit}" if record.git_commit else ""),
        ("started by", f"{record.user}@{record.host}, stoker {record.stoker_version}"),
        ("config", job.config_path or ""),
        (
            "batch",
            f"micro-batch {describe(batch)}" if batch is not None else "not known: nothing will change it",
        ),
        (
            "batch knob",
            _knob_text(knobs.batch, knobs.batch_scope) if knobs.batch else "not known",
        ),
        ("sample", sample_text(snapshot.state)),
        ("step", counter_text(seen) if seen is not None else ""),
        ("accumulation", knobs.accumulation or knobs.global_batch or "not known"),
        ("resume", _resume(record, snapshot)),
        ("run folder", str(record.run_id)),
    ]
    rows = section(tr, "job")
    for name, text in facts:
        if text:
            rows += labelled(tr(name), tr(text), width, most=3, label_cells=15)
    for note in job.notes:
        rows += labelled(tr("note"), tr(note), width, most=3, label_cells=15)
    if job.env:
        rows += section(tr, "environment", "what this job adds")
        for name, value in job.env:
            rows += labelled(name, value, width, most=2, label_cells=NAME_CELLS)
    return rows


def _knob_text(name: str, scope: KnobScope) -> str:
    """The batch setting, and what its number counts."""
    if scope is KnobScope.UNKNOWN:
        return f"{name} (not known whether per rank or in all)"
    return f"{name} ({scope.value.replace('_', ' ')})"


def _resume(record: RunFile, snapshot: Snapshot) -> str:
    """How a restart continues: as it is planned at each launch; of arguments that a person typed again, what they name."""
    from supervisor.job.knobs.resume_settings import given_start
    from supervisor.job.oom_plan import resume_plan, resume_words
    from supervisor.run.history.changes import next_job

    now = next_job(record.job, snapshot.state)
    if now.start_typed_after is not None and (given := given_start(now.job.entry_args, now.job.knobs.starts)):
        return f"with {given}, as given"
    return resume_words(resume_plan(now.job.knobs))


def _origins(record: RunFile, width: int, tr: Tr) -> list[Row]:
    origins = record.job.effective
    if not origins:
        return []
    origin_cells = min(max(len(origin) for _, _, origin in origins), max(width // 3, 8))
    value_cells = max(width - NAME_CELLS - origin_cells - 2, VALUE_LEAST)
    rows = section(tr, "settings", "each with where it came from")
    for name, value, origin in origins:
        style = TextStyle.DIM if origin == "default" else TextStyle.PLAIN
        rows.append(
            row(
                Span(fit(name, NAME_CELLS), style),
                Span(fit(value or fm.DASH, value_cells) + "  ", style),
                Span(fit(tr(origin), origin_cells), TextStyle.DIM),
            )
        )
    return [*rows, EMPTY]
