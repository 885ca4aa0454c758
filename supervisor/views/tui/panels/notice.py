"""The latest events: the line above the footer, the timeline, and the recommended key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain

from rich.cells import cell_len
from textual.timer import Timer

from supervisor.preflight.context import KNOBS_CHECK
from supervisor.run.events import ON_OOM, Advisory, Phase
from supervisor.run.records import Finding, FindingLevel, Sameness
from supervisor.run.state import Finished, Launching, Preflight, Running, RunState, Tone
from supervisor.views import format as fm
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.panels.possible_actions import ANSWER_KEYS, offer
from supervisor.views.tui.panels.state_words import is_live, shows_failure, stall_text
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, between, cells, fit, row, spoken
from supervisor.views.tui.widgets.panel import ListPanel, Panel
from supervisor.views.wording.kinds import values_of
from supervisor.views.wording.phrases import question_text

# How long an answer is shown.
ANSWER_S = 12.0
# How long this line shows an advisory. The page `a` keeps all advisories.
ADVISORY_S = 600.0
# How long to show pre-flight warnings in the first attempt. The page `P` keeps all of them.
START_S = 600.0
# stoker's own flags. A warning may also contain the script's flags, which need no setting.
_FLAG = re.compile(r"--(?:\w+-knob|batch-scope)\b")
STALL = "stall"
# The advisory code for a shared GPU, before the GPU's index (keeper/monitoring/collector.py).
SHARED = "gpu_shared_"

TONES = {
    Tone.INFO: TextStyle.DIM,
    Tone.GOOD: TextStyle.LIVE,
    Tone.WARN: TextStyle.WARN,
    Tone.BAD: TextStyle.BAD,
}
GLYPHS = {Tone.INFO: "·", Tone.GOOD: "✓", Tone.WARN: "!", Tone.BAD: "✗"}


class NoticeBar(Panel):
    """The most urgent notice: missing folder, answer, copied folder, lost keeper, latest advisory or pre-flight warning."""

    framed = False
    uses_clock = True

    read_only = False
    recorded = False  # in a recording, missing restart settings do not matter
    page: str | None = None  # the full page or pane above this line
    _answer: Span | None = None
    _fading: Timer | None = None

    def say(self, text: str, style: TextStyle = TextStyle.PLAIN) -> None:
        """Show an answer briefly, or until the next one arrives."""
        self._answer = Span(text, style)
        if self._fading is not None:
            self._fading.stop()
        # Use a separate timer, because nothing else moves in a finished run, and recorded time may be paused.
        self._fading = self.set_timer(ANSWER_S, self._fade)
        self.repaint()

    @property
    def says(self) -> str:
        """The visible answer, or "" if none is shown."""
        return self._answer.text if self._answer is not None else ""

    def drop_older(self) -> None:
        """Clear answers that predate the run's state change, such as "copied" below a failure card."""
        if self._answer is not None:
            self._fade()

    def withdraw(self, text: str) -> None:
        """Clear the answer `text`, which is no longer true, but leave any other answer in place."""
        if self.says == text:
            self._fade()

    def _fade(self) -> None:
        self._answer = None
        self.repaint()

    @property
    def ready(self) -> bool:
        """Whether there is anything to show. An answer is shown even before any data has been read."""
        return self.view is not None or self._answer is not None

    def body(self, width: int, height: int) -> Sequence[Row]:  # noqa: ARG002 - one line, however high
        """Return the notice line."""
        answer = [row(" ", spoken(self._answer, self.tr))] if self._answer is not None else []
        if self.view is None or (answer and not self.view.snapshot.gone):
            return answer
        snapshot, tr = self.view.snapshot, self.tr
        state = snapshot.state
        text, style = _without_a_keeper(snapshot, read_only=self.read_only)
        if text:
            return [row(Span(fit(f" {tr(text)}", width).rstrip(), style))]
        worth_saying = self._warning(snapshot, self.view.now, width)
        if worth_saying is not None:
            return [worth_saying]
        if state.unknown_events:
            text = f" {state.unknown_events} facts of a newer version are not shown"
            return [row(Span(tr(text), TextStyle.DIM))]
        past = {"evidence_seen"} if is_past_evidence(snapshot) else frozenset()
        newest = next((moment for moment in reversed(state.timeline) if moment.kind not in past), None)
        if newest is None:
            return []
        text = tr.moment(newest)
        if newest.kind == "resume_compared" and cell_len(text) + 10 > width:
            text = tr.sentence("comparison", "headline", newest.values)
        return [row(Span(f" {fm.time_of_day(newest.t)} {text}", TextStyle.DIM))]

    def _key_for_more(self, key: str, word: str) -> Row:
        """Return a key and what it opens, for the right edge of the notice line."""
        return row(Span(key, TextStyle.KEY), Span(f" {self.tr(word)} ", TextStyle.DIM))

    def _warning(self, snapshot: Snapshot, now: float, width: int) -> Row | None:
        """Return a notice about a stall, the latest advisory or a pre-flight warning, in that order, with the key for details."""
        state, tr = snapshot.state, self.tr
        attempt = state.attempt
        stall = attempt.stall if attempt is not None else None
        if attempt is not None and stall is not None and isinstance(state.condition, Running):
            # The advisory has the duration at the time of its report. Keep counting here.
            text = stall_text(stall, now)
            where = f": {attempt.stacks.text}" if attempt.stacks is not None else ""
            return _warned(tr(f"{text}{where}"), self._key_for_more("a", "why"), width)
        compared = attempt.compared if attempt is not None else None
        is_told = isinstance(state.condition, (Running, Finished)) and not shows_failure(snapshot)
        if is_told and compared is not None and compared.result is Sameness.DIFFERS and not compared.asked:
            text = tr.sentence("comparison", "card", values_of(compared))
            return _warned(text, self._key_for_more("v", "more"), width)
        newest = current_advisory(snapshot, now)
        if newest is not None:
            others = len(state.advisories) - 1
            count = tr(f"{others} more ") if others else ""
            has_more = others or newest.code.startswith(ON_OOM)
            more = row(Span(count, TextStyle.DIM), Span("a ", TextStyle.KEY)) if has_more else ()
            question = state.open_question
            if newest.code.startswith(ON_OOM) and question is not None:
                keys = zip(ANSWER_KEYS, question.answers, strict=False)
                spans = [(Span(f" {key}", TextStyle.KEY), Span(f" {one.value}")) for key, one in keys]
                return _warned(question_text(question, tr), row(*chain(*spans), " "), width)
            is_plan = newest.code == f"{ON_OOM}restarts"  # not a warning
            return _warned(tr(newest.text), more, width, TextStyle.PLAIN if is_plan else TextStyle.WARN)
        warnings = shown_at_start(state, now) if not self.recorded else []
        if not warnings:
            return None
        count = tr(f"{len(warnings) - 1} more ") if len(warnings) > 1 else ""
        more = (Span(count, TextStyle.DIM), *self._key_for_more("P", "why"))
        return _warned(tr(in_one_line(warnings[0])), more if self.page != "preflight" else (), width)


class TimelinePanel(ListPanel, can_focus=True):
    """A list of events, latest last. It follows the latest event until the user moves the cursor."""

    number = 5

    def titles(self) -> tuple[Row, Row]:
        """Return the number of events."""
        if self.view is None:
            return EMPTY, EMPTY
        count = len(self.view.snapshot.state.timeline)
        facts = f"{count} fact{'s' if count != 1 else ''}"
        return row(Span(self.tr("timeline"), TextStyle.STRONG)), row(Span(self.tr(facts), TextStyle.DIM))

    def count(self) -> int:
        """Return the number of rows: one per event, or 1 if there are no events."""
        assert self.view is not None
        count = max(len(self.view.snapshot.state.timeline), 1)
        if not self.has_focus:
            self.cursor = count - 1
        return count

    def item(self, index: int, width: int) -> Row:  # noqa: ARG002 - panes clip their rows themselves
        """Return an event's row."""
        assert self.view is not None
        moments = self.view.snapshot.state.timeline
        if not moments:
            return row(Span(self.tr("nothing has happened yet"), TextStyle.DIM))
        moment = moments[index]
        loud = moment.tone in {Tone.BAD, Tone.WARN}
        return row(
            Span(f"{fm.time_of_day(moment.t)} ", TextStyle.DIM),
            Span(f"{GLYPHS[moment.tone]} ", TONES[moment.tone]),
            Span(self.tr.moment(moment), TONES[moment.tone] if loud else TextStyle.PLAIN),
        )


def _without_a_keeper(snapshot: Snapshot, *, read_only: bool) -> tuple[str, TextStyle]:
    """Explain in one line why no keeper is responding. The text is empty if one is responding or none is needed."""
    state, lives = snapshot.state, is_live(snapshot)
    if snapshot.gone:
        return "✗ the run directory is gone: what you see is the last that was read", TextStyle.BAD
    if state.started_t is None:
        text = "no journal yet: the supervisor process has not begun, or this is not a run directory"
        return text, TextStyle.WARN
    if snapshot.misplaced:
        return f"⚠ {snapshot.misplaced}", TextStyle.WARN if lives else TextStyle.DIM
    if not lives or snapshot.keeper_alive:
        return "", TextStyle.PLAIN
    if state.mode == "observed":
        return "⚠ it is no longer watched", TextStyle.WARN
    then = "`stoker attach --adopt` adopts the run" if read_only else "A adopts the run if it can"
    return f"⚠ the supervisor process is gone; {then}", TextStyle.BAD


def _warned(text: str, more: Row, width: int, style: TextStyle = TextStyle.WARN) -> Row:
    """Return a warning, truncated to leave room for the key that opens the details."""
    sign = "⚠ " if style is TextStyle.WARN else ""
    cut = fit(f" {sign}{text}", width - cells(more) - 1).rstrip()
    return between(row(Span(cut, style)), more, width)


def is_past_evidence(snapshot: Snapshot) -> bool:
    """Check whether training continued after a signature matched. If so, the matching lines are shown only on the timeline."""
    attempt, condition = snapshot.state.attempt, snapshot.state.condition
    if attempt is None or not isinstance(condition, Running) or condition.phase is not Phase.STEPPING:
        return False
    return attempt.quiet_since is None and attempt.last_step not in {None, attempt.step_at_evidence}


def current_advisory(snapshot: Snapshot, now: float) -> Advisory | None:
    """Return the latest advisory if it is recent, its attempt is live, and its cause persists. Otherwise return None."""
    state = snapshot.state
    if not state.advisories or not isinstance(state.condition, Running) or state.attempt is None:
        return None
    newest = state.advisories[-1]
    if newest.attempt != state.attempt.number or now - newest.t > ADVISORY_S:
        return None
    is_over = newest.code == STALL and state.attempt.stall is None
    if newest.code.startswith(SHARED):
        index = newest.code.removeprefix(SHARED)
        gpus = (gpu for gpu in snapshot.gpus if str(gpu.index) == index)
        is_over = any(gpu.values.get("others_memory_bytes") == 0 for gpu in gpus)
    slow = state.attempt.slow_rank
    if slow is not None:
        is_over |= newest.code == "straggler" and newest.rank != slow.rank
        is_over |= newest.code == "step_times_differ" and not slow.unclear
    return None if is_over else newest


def shown_at_start(state: RunState, now: float) -> tuple[Finding, ...]:
    """Return the pre-flight warnings, or none if the first attempt has ended or ten minutes have passed."""
    begins = isinstance(state.condition, (Preflight, Launching, Running)) and len(state.attempts) <= 1
    if not begins or state.started_t is None or now - state.started_t >= START_S:
        return ()
    return tuple(finding for finding in state.findings if finding.level is FindingLevel.WARNING)


def in_one_line(finding: Finding) -> str:
    """Shorten a warning to fit the line below the panes, saying what to declare rather than why."""
    flags = list(dict.fromkeys(_FLAG.findall(finding.what)))
    if finding.check == KNOBS_CHECK and flags:
        return f"some failures will not restart: add {', '.join(flags)}"
    return f"{finding.check}: {finding.what}"


def recommended(snapshot: Snapshot, page: str | None) -> str:
    """Return the action to recommend for a run that is waiting for the user, or "" if none. `page` is the visible page."""
    state = snapshot.state
    if is_live(snapshot) and not snapshot.keeper_alive and state.mode != "observed":
        return "adopt"
    if state.open_question is not None:
        return ""  # only the user can choose the right answer
    if offer(snapshot) is not None and snapshot.keeper_alive:
        return "accept"
    return "page('failure')" if shows_failure(snapshot) and page != "failure" else ""
