"""Pages about the run: advisories, processes and stacks, settings and where they came from, and pre-flight checks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from supervisor.job.batch import describe
from supervisor.job.spec import KnobScope
from supervisor.policy.health.slow_steps import LEAST_SHARE, LEAST_STEPS
from supervisor.run import state as st
from supervisor.run.events import StallFlagged
from supervisor.run.records import Finding, FindingLevel
from supervisor.run.runfile import RunFile
from supervisor.run.state import AttemptState
from supervisor.views import format as fm
from supervisor.views.logs.sources import rank_label
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.charts.live import not_finite
from supervisor.views.tui.pages.text_page import Page, resumed_rows, section
from supervisor.views.tui.panels.possible_actions import again_text, possible
from supervisor.views.tui.panels.state_words import rank_state, stall_text
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, fit, labelled, row, wrap
from supervisor.views.tui.widgets.panel import View
from supervisor.views.wording.kinds import counter_text
from supervisor.views.wording.translate import Tr

TIME_CELLS = 10
SHARE_CELLS = 7
_NOT_FINITE = (
    "it rarely recovers by itself: look at the data of these steps; a lower learning rate, a longer warm-up or gradient clipping helps, "
    "from a checkpoint before them"
)


class AdvisoriesPage(Page):
    """A page that lists advisories, which are not failures. Each one comes with a suggestion."""

    heading = "advisories"
    uses_clock = True

    def rows(self, view: View, width: int) -> Sequence[Row]:
        """Return the page's rows."""
        state = view.snapshot.state
        attempt = state.attempt
        rows: list[Row] = []
        if attempt is not None and attempt.stall is not None:
            rows += self._stall(attempt, attempt.stall, view.now, width)
        if lost := not_finite(view.snapshot):
            rows.append(row(Span(f"{self.tr('loss')}: {self.tr(lost)}", TextStyle.BAD)))
            rows += labelled("", self.tr(_NOT_FINITE), width, TextStyle.DIM, most=4, label_cells=0)
        rows += resumed_rows(state, width, self.tr)[0 if rows else 1 :]
        if not state.advisories and not rows:
            return [row(Span(self.tr("nothing to say: no sign of trouble was seen so far"), TextStyle.DIM))]
        if state.advisories:
            rows += section(self.tr, "newest first")[0 if rows else 1 :]
        for advisory in reversed(state.advisories):
            rows += labelled(
                fm.time_of_day(advisory.t), self.tr(advisory.text), width, most=4, label_cells=TIME_CELLS
            )
        return rows

    def _stall(self, attempt: AttemptState, stall: StallFlagged, now: float, width: int) -> list[Row]:
        """Describe a stall: when it began, the usual interval, what happens next, and where each rank is."""
        rows: list[Row] = [row(Span(self.tr(stall_text(stall, now)), TextStyle.WARN))]
        if stall.pace_s > 0:
            usual, is_gap = fm.seconds(stall.pace_s), stall.stage in {"step", "log"}
            text = f"normally every {usual}" if is_gap else f"normally takes {usual}"
            rows.append(row(Span(self.tr(text), TextStyle.DIM)))
        rows += labelled("", self.tr(_then(attempt, stall, now)), width, TextStyle.DIM, most=4, label_cells=0)
        if attempt.stacks is not None:
            rows += section(self.tr, "who stands where")
            rows += labelled("", self.tr(attempt.stacks.text), width, TextStyle.STRONG, most=6, label_cells=0)
            if attempt.stacks.collective:
                rows += labelled("", attempt.stacks.collective, width, TextStyle.DIM, most=4, label_cells=0)
        return rows


def _then(attempt: AttemptState, stall: StallFlagged, now: float) -> str:
    """Say what will happen if a stall continues."""
    flagged = attempt.only_flagged
    if attempt.kept is not None:
        return f"{attempt.kept.by} keeps waiting, so stoker won't end this stall"
    if attempt.countdown is not None:
        return f"ended as a hang in {fm.duration(max(0.0, attempt.countdown.until - now))}"
    if flagged is not None and flagged.until_s is None:
        return f"reported only, stoker won't end it: {flagged.why}; if it hangs, stop it with s"
    if stall.act_s is None:
        return "never ended by itself"
    after_s = max(stall.act_s, flagged.until_s or 0.0) if flagged is not None else stall.act_s
    return f"ended as a hang after {fm.duration(after_s)} at the earliest"


class ProcessesPage(Page):
    """A page that shows the supervisor, the launcher, and the latest stacks. Per-rank details are in the ranks table."""

    heading = "processes"
    uses_clock = True

    def inner_keys(self) -> Sequence[tuple[str, str, str]]:
        """Return the page's keys, including the one that captures new stacks while ranks are running."""
        can = bool(self.screen.check_action("ask", ("stacks",)))
        return [*([("K", "take stacks", "ask('stacks')")] if can else []), *super().inner_keys()]

    def rows(self, view: View, width: int) -> Sequence[Row]:
        """Return the page's rows."""
        snapshot, tr = view.snapshot, view.tr
        state, attempt = snapshot.state, snapshot.state.attempt
        if attempt is None:
            return [row(Span(tr("nothing was launched yet"), TextStyle.DIM))]
        word = "alive" if snapshot.keeper_alive else "ended" if state.is_over else "gone"
        values = snapshot.machine.values if snapshot.machine is not None and snapshot.keeper_alive else {}
        use = ""
        if values.get("stoker_rss_bytes") is not None:
            share = fm.percent(values.get("stoker_cpu_ratio"), digits=1)
            use = f"  {tr('cpu')} {share}  {tr('RAM')} {fm.memory(values['stoker_rss_bytes'])}"
        rows = labelled(
            tr("supervisor"), f"{tr('pid')} {state.keeper_pid or fm.DASH}  {tr(word)}{use}", width
        )
        if state.mode != "observed":
            word = "ended" if attempt.ended_t is not None or attempt.reads_on else "running"
            rows += labelled("torchrun", f"{tr('pid')} {attempt.pid or fm.DASH}  {tr(word)}", width)
        for _, rank in sorted(attempt.ranks.items()):
            word, style = rank_state(rank, state, is_live=snapshot.keeper_alive)
            name = f"rank {rank_label(rank)}"
            rows += labelled(name, f"{tr('pid')} {rank.pid or fm.DASH}  {tr(word)}", width, style)
        return [*rows, *_stacks(view, width)]


def _stacks(view: View, width: int) -> list[Row]:
    can_take = "stacks" in possible(view.snapshot)
    dump = view.snapshot.nearby.stacks
    if dump is None:
        shown = "none were taken yet: K takes those of all ranks now" if can_take else "none were taken"
        return [*section(view.tr, "stacks"), row(Span(view.tr(shown), TextStyle.DIM))]
    age = fm.age(max(0.0, view.now - dump.taken_t))
    note = f"{dump.name}, taken {age} ago · K takes new ones" if can_take else f"{dump.name}, taken {age} ago"
    rows = section(view.tr, "stacks", note)
    for text in dump.lines:
        if not text.strip():
            rows.append(EMPTY)
            continue
        style = (
            TextStyle.STRONG
            if text.startswith("==")
            else TextStyle.DIM
            if text.startswith((" ", "\t"))
            else TextStyle.PLAIN
        )
        rows.append(row(Span(fit(text, width).rstrip(), style)))
    return rows


NAME_CELLS = 28
VALUE_LEAST = 16


class SettingsPage(Page):
    """A page that shows the resolved job: command, environment, batch, and where each value came from."""

    heading = "settings"

    def rows(self, view: View, width: int) -> Sequence[Row]:
        """Return the page's rows."""
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
    """A page that lists the checks that ran before the first launch and explains how to address their warnings."""

    heading = "pre-flight"

    def rows(self, view: View, width: int) -> Sequence[Row]:
        """Return the page's rows."""
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
    """Return the full command that reruns a finished job, ready to copy."""
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
    """Return a batch setting's name and what its number counts."""
    if scope is KnobScope.UNKNOWN:
        return f"{name} (not known whether per rank or in all)"
    return f"{name} ({scope.value.replace('_', ' ')})"


def _resume(record: RunFile, snapshot: Snapshot) -> str:
    """Say how a restart resumes: as planned at each launch, or as the user's arguments specify."""
    from supervisor.job.knobs.resume_settings import given_start
    from supervisor.job.launch.oom_plan import resume_plan, resume_words
    from supervisor.run.next_job import next_job

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


def sample_text(state: st.RunState) -> str:
    """Return a model sample's shape, e.g. ``sequence 1024`` or ``sample 3 × 224 × 224``, or "" if it is unknown or varies."""
    seen = state.attempt.measured if state.attempt is not None else None
    if seen is None or not seen.sample_shape:
        return ""
    return f"{'sequence' if seen.sequence_length else 'sample'} {' × '.join(map(str, seen.sample_shape))}"


class TimesPage(Page):
    """A page that says where the time of a step goes, from what the ranks measured."""

    heading = "step times"

    def rows(self, view: View, width: int) -> Sequence[Row]:
        """Return the page's rows."""
        times, tr = view.snapshot.nearby.times, view.tr
        if times.steps < LEAST_STEPS:
            text = "too few steps were measured so far: docs/instrumentation.md says what is measured, and when nothing is"
            return [row(Span(line, TextStyle.DIM)) for line in wrap(tr(text), width, 4)]
        head = tr(f"{times.steps} steps of {times.each_s:.3g} s on {times.ranks} ranks")
        rows = [row(Span(head, TextStyle.STRONG))]
        if not times.found:
            nothing = tr(f"nothing found that costs {100 * LEAST_SHARE:.0f} % of the time or more")
            rows.append(row(Span(nothing, TextStyle.PLAIN)))
        for found in times.found:
            text = f"{tr(found.text)}{f': {found.setting}' if found.setting else ''}"
            share = f"{100 * found.share:.0f} %"
            rows += labelled(share, text, width, most=4, label_cells=SHARE_CELLS)
        return rows
