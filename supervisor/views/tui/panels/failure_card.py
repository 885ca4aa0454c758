"""The failure card: what failed, where, what followed, what happens next, and what each key does.

The wording comes from `diagnosis.verdict` and `diagnosis.advice`; `policy` gives the reason for the decision.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len

from supervisor.job.batch import describe_change
from supervisor.job.spec import OF_BATCH, EntryKind
from supervisor.run import state as st
from supervisor.run.events import RankFailing
from supervisor.run.records import Decision, DecisionKind, Sameness, SpecChange, Verdict
from supervisor.run.timeline import changed_arguments
from supervisor.text.tracebacks import CodeLine
from supervisor.views import format as fm
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.panels.possible_actions import (
    ANSWER_KEYS,
    FROM_FIRST_STEP,
    again_text,
    batch_copy,
    checkpoint_path,
    checkpoint_words,
    continue_text,
    next_start,
    possible,
    resume_text,
)
from supervisor.views.tui.panels.state_words import is_failing, is_held_unwatched
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, cells, fit, labelled, row, wrap
from supervisor.views.tui.widgets.panel import UNWRAPPED_CELLS, Panel, View
from supervisor.views.wording.kinds import (
    checkpoint_place,
    failing_line,
    failing_text,
    place_of_end,
    values_of,
)
from supervisor.views.wording.phrases import (
    answer_text,
    effect_text,
    given_text,
    is_stacks,
    of_project,
    place_of,
    question_text,
)
from supervisor.views.wording.translate import Tr

LABEL = 9
COUNT_CELLS = 10
UNSURE = 0.6
CODE_LEAST = 12
CAUSE_ROWS = 3
# A copy always contains the whole card.
COPIED_ROWS = 100


class FailureCard(Panel, can_focus=True):
    """A card that covers the charts when the latest attempt has failed and no new one is running."""

    number = 1
    uses_clock = True

    def needed_rows(self, view: View, width: int) -> int:
        """Return the rows that the whole card needs at this width, including its frame."""
        before, self.view = self.view, view
        rows = len(self.body(width - 2, COPIED_ROWS)) + 2
        self.view = before
        return rows

    def titles(self) -> tuple[Row, Row]:
        """Return two titles: which attempt failed and where, and the failure class with its confidence."""
        attempt = self.view.snapshot.state.attempt if self.view else None
        if self.view is None or attempt is None:
            return EMPTY, EMPTY
        snapshot, verdict, is_open = self.view.snapshot, attempt.verdict, is_failing(self.view.snapshot)
        if verdict is None and not is_open:
            return EMPTY, EMPTY
        what = f"✗ attempt {attempt.number} {'is failing' if is_open else 'failed'}"
        step = place_of_end(snapshot.state, snapshot.step, attempt)
        left = row(Span(self.tr(f"{what}, {step}" if step else what), TextStyle.BAD))
        if verdict is None:
            return left, row(Span(self.tr("so far"), TextStyle.WARN))
        reason = f" ({verdict.reason})" if verdict.reason else ""
        name = Span(f"{verdict.failure}{reason}", TextStyle.BAD)
        if is_open:
            return left, row(name, Span(f" · {self.tr('so far')}", TextStyle.WARN))
        sure = fm.sure(verdict)
        return left, row(name, Span(self.tr(f" · {sure}") if sure else "", TextStyle.DIM))

    def copied(self) -> str:
        """Return the whole card as plain, unwrapped lines, or "" if there is no card."""
        return self._copied_below_name(self.body(UNWRAPPED_CELLS, COPIED_ROWS))

    def body(self, width: int, height: int) -> Sequence[Row]:
        """Return the card, most important parts first. Whatever a short pane cuts off is on the failure page."""
        attempt = self.view.snapshot.state.attempt if self.view else None
        if self.view is None or attempt is None:
            return []
        told = FailureText(self.view.snapshot, attempt, width - 2, self.view.now, self.tr)
        if is_failing(told.snapshot) and attempt.failing is not None:
            blocks = [told.so_far(attempt.failing)]
        elif attempt.verdict is not None:
            blocks = [block for block in told.blocks(attempt.verdict) if block]
        else:
            return []
        gap = [EMPTY] if sum(map(len, blocks)) + len(blocks) - 1 <= height else []
        rows = [line for block in blocks for line in (*gap, *block)][len(gap) :]
        return [(Span(" "), *spans) for spans in rows[:height]]


def own_line_of(snapshot: Snapshot, attempt: st.AttemptState) -> CodeLine | None:
    """Return the line of the user's own code in an attempt's traceback, or None if there is none."""
    context = snapshot.nearby.contexts.get(attempt.number)
    return context.own if context is not None else None


class FailureText(NamedTuple):
    """Renders a failed attempt as rows of `width` cells, for the card and for the failure page."""

    snapshot: Snapshot
    attempt: st.AttemptState
    width: int
    now: float
    tr: Tr

    def part(self, label: str, text: str, style: TextStyle = TextStyle.PLAIN, *, most: int = 4) -> list[Row]:
        """Return labeled text, or no rows if the text is empty."""
        return labelled(self.tr(label), text, self.width, style, most=most, label_cells=LABEL) if text else []

    def warned(self, text: str, style: TextStyle = TextStyle.WARN, most: int = 2) -> list[Row]:
        """Wrap unlabeled text, in the warning style by default."""
        return [row(Span(line, style)) for line in wrap(text, self.width, most)]

    def blocks(self, verdict: Verdict) -> list[list[Row]]:
        """Return the sections of the card, most important first."""
        tr, compared = self.tr, self.attempt.compared
        head = self.warned(tr(verdict.title), TextStyle.STRONG) + self.unsure(verdict)
        if compared is not None and compared.result is Sameness.DIFFERS:
            head += self.warned(tr.sentence("comparison", "card", values_of(compared)))
        cause, own = self.cause(verdict), self.own_code()
        advice: list[Row] = []
        for text in verdict.advice[:3]:
            advice += self.part("" if advice else "advice", tr(text), most=2)
        followed = self.followed(verdict)
        return [
            [*head, *(own or cause)],
            self.next_rows(),
            self.why(),
            cause if own else [],
            followed,
            advice,
        ]

    def so_far(self, failing: RankFailing) -> list[Row]:
        """Return provisional rows that describe the failure while the launcher is still shutting down."""
        tr, verdict, watched = self.tr, self.attempt.verdict, self.snapshot.state.mode == "observed"
        job = self.snapshot.run_file.job if self.snapshot.run_file is not None else None
        launcher = "the command" if job is not None and job.entry_kind is EntryKind.COMMAND else "torchrun"
        what = failing_text(self.attempt, failing)
        text = tr(failing_line(failing, what, "the job" if watched else launcher))
        rows = self.warned(text, TextStyle.STRONG, 3)
        if verdict is not None:
            rows += self.part("so far", tr(verdict.title), most=2)
            rows += self.cause(verdict)[:3] + self.own_code()
        elif failing.path:
            where = place_of(self.attempt, failing.path, failing.line, tr)
            rows += self.part("cause", where, TextStyle.KEY, most=1) + self.part("", failing.text, most=2)
        after = "the verdict and what stoker does about it come with its end"
        after = "the verdict comes with its end" if watched else after
        return [*rows, *self.part("next", tr(after), TextStyle.DIM, most=1)]

    def unsure(self, verdict: Verdict) -> list[Row]:
        """Return a warning that the verdict may be wrong, or no rows if its confidence is high enough."""
        text = self.tr("not sure: read the evidence before you act")
        return [row(Span(text, TextStyle.WARN))] if verdict.confidence < UNSURE else []

    def cause(self, verdict: Verdict) -> list[Row]:
        """Return the location and text of the verdict's cause, omitting text that the headline already shows."""
        tr, cause = self.tr, verdict.cause
        if cause is None:
            return self.part("cause", tr("no line to point at"), TextStyle.DIM, most=1)
        of_stacks = is_stacks(cause.path)
        text = "" if verdict.title_says_cause else cause.text.strip()
        text = tr(text) if of_stacks else text  # either our own words about the stacks, or text from a log
        where = place_of(self.attempt, cause.path, cause.line, tr)
        (first,) = self.part("cause", where, TextStyle.KEY, most=1)
        leads = f"  {tr('L opens the stacks')}" if of_stacks else ""
        if cells(first) + cell_len(leads) <= self.width:
            first = (*first, Span(leads, TextStyle.DIM))
        return [first, *self.part("", text, most=CAUSE_ROWS)]

    def own_code(self) -> list[Row]:
        """Return the location and text of the traceback line in user code, if any."""
        own = own_line_of(self.snapshot, self.attempt)
        if own is None:
            return []
        folder = self.snapshot.run_file.job.cwd if self.snapshot.run_file is not None else None
        place = f"{of_project(own.path, folder)}:{own.line}"
        (where,) = self.part("code", place, TextStyle.KEY, most=1)
        room = self.width - cells(where) - 2
        code = fit(own.text, room).rstrip() if room >= CODE_LEAST else ""
        return [(*where, Span("  "), Span(code, TextStyle.STRONG))]

    def followed(self, verdict: Verdict) -> list[Row]:
        """Return the consequences, with ranks grouped by failure class."""
        folded: dict[str, list[int]] = {}
        for item in verdict.consequences:
            folded.setdefault(item.words, []).extend([] if item.rank is None else [item.rank])
        parts = [
            f"{name}{f' (rank {fm.ranges(tuple(set(ranks)))})' if ranks else ''}"
            for name, ranks in folded.items()
        ]
        return self.part("then", " · ".join(map(self.tr, parts)), TextStyle.DIM, most=1)

    def next_rows(self) -> list[Row]:
        """Say what happens next or which keys to press, including the planned change and the resume step."""
        snapshot, attempt, tr = self.snapshot, self.attempt, self.tr
        decision, state = attempt.decision, snapshot.state
        if state.mode == "observed":
            # stoker cannot restart a job that it did not start.
            command = f"-- {shlex.join(attempt.argv)}" if attempt.argv else "--nproc-per-node N SCRIPT …"
            watched = tr("stoker only watches this: it did not start it and restarts nothing")
            supervised = tr(f"to supervise it: stoker run {command}")
            return self.part("next", watched, most=1) + self.part("", supervised, TextStyle.STRONG, most=1)
        if decision is None:
            return self.part("next", tr("policy has not decided yet"), TextStyle.DIM, most=1)
        is_newest, condition, change = attempt is state.attempt, state.condition, decision.change
        held, over = isinstance(condition, st.HeldOpen), isinstance(condition, st.Finished)
        if is_newest:
            rows = self._now(decision) + self._asked()
        else:
            rows = self.part("next", tr(f"done: attempt {attempt.number + 1} followed"))
        if change is not None and not (held and change == SpecChange()):
            # Restarting with `r` by default is not a suggestion.
            following = state.find(attempt.number + 1)
            arguments = changed_arguments(attempt, following) if following is not None else ""
            label = "on offer" if held and is_newest else "plan"
            rows += self.part(label, tr(change_text(change, arguments)), TextStyle.STRONG, most=2)
            if is_newest and change.batch is not None and (copy := batch_copy(snapshot)):
                rows += self.part("", tr(copy), most=1)
        goes_on = decision.kind is DecisionKind.RESTART or held
        goes_on = goes_on and not (change is not None and change.from_scratch)
        if is_newest and (state.resumable is not None if over else goes_on):
            start = next_start(snapshot)
            where, why = resume_text(snapshot, start)
            if held and where == FROM_FIRST_STEP and start.saved is not None and checkpoint_words(start):
                where = f"from the first step; e, Ctrl-R: from the checkpoint {checkpoint_place(start.saved)}"
                why = checkpoint_path(snapshot)
            rows += self.part("resume", f"{tr(where)}: {tr(why)}" if why else tr(where), most=2)
        return rows

    def _now(self, decision: Decision) -> list[Row]:
        """Say what is happening now or who has to act."""
        snapshot, tr, state = self.snapshot, self.tr, self.snapshot.state
        condition, asked = state.condition, state.open_question
        if isinstance(condition, st.Backoff):
            return [_countdown(condition, self.now, decision, tr)]
        if isinstance(condition, st.Finished):
            text = tr(f"the run is over, exit code {condition.exit_code}")
            rows = self.part("next", text, TextStyle.DIM, most=1)
            rows += self.part("continue", continue_text(snapshot), TextStyle.STRONG, most=1)
            return rows + self.part("again", again_text(snapshot))
        if not isinstance(condition, st.HeldOpen):
            return self.part("next", tr.sentence("decision", decision.kind), most=1)
        until = (
            f" (until {fm.day_and_time(condition.until, self.now)})" if condition.until is not None else ""
        )
        keys = ", ".join(keys_now(snapshot))
        text = f"waiting for you: {keys}{until}" if keys else f"waiting for a person{until}"
        if asked is not None and asked.what in OF_BATCH and asked.what not in state.answers:
            text = "waiting for you: one key answers, then Enter restarts"
        elif keys and not is_held_unwatched(state):
            text = f"waiting for you: {keys} (leaving ends the run)"
        return self.part("next", tr(text), TextStyle.WARN, most=1)

    def _asked(self) -> list[Row]:
        """Return the batch question's possible answers with their keys and effects, and any answer given now or in an earlier run."""
        state, question, tr = self.snapshot.state, self.snapshot.state.open_question, self.tr
        given = state.answers.get(question.what) if question is not None else state.answer
        rows = self.part("answer", given_text(given, tr), most=1) if given is not None else []
        if question is None:
            return rows
        if given is None:
            rows = self.part("asked", question_text(question, tr), TextStyle.WARN)
        for key, answer in zip(ANSWER_KEYS, question.answers, strict=False):
            if given is None or given.value != answer.value:
                text = f"{answer_text(question, answer.value, tr)}: {effect_text(answer, tr)}"
                shown = Span(fit(text, self.width - LABEL).rstrip(), TextStyle.STRONG)
                rows.append(row(Span(fit(f"  {key}", LABEL), TextStyle.KEY), shown))
        return rows

    def why(self) -> list[Row]:
        """Return the reason for the decision, or no rows if the next step already states it."""
        decision = self.attempt.decision
        if decision is None or self.snapshot.state.mode == "observed":
            return []
        change, said = decision.change, ""
        if change is not None:
            said = describe_change(change.batch) if change.batch is not None else change_text(change)
        is_said = bool(said) and said in decision.reason
        return [] if is_said else self.part("why", self.tr(reason_text(self.attempt, decision)))


def reason_text(attempt: st.AttemptState, decision: Decision) -> str:
    """Return the reason for a decision without the leading failure class, which is already in the frame's title."""
    return decision.reason.removeprefix(f"{attempt.failure}: ")


def keys_now(snapshot: Snapshot) -> list[str]:
    """Return the keys that act on a waiting run, starting with the suggested one."""
    now = possible(snapshot)
    keys = ("accept", "Enter"), ("smaller_batch", "b"), ("edit", "e"), ("restart", "r"), ("stop", "s")
    return [key for action, key in keys if action in now]


def _countdown(condition: st.Backoff, now: float, decision: Decision, tr: Tr) -> Row:
    left = max(0.0, condition.until - now)
    whole = max(decision.delay_s, left, 0.001)
    full = round(COUNT_CELLS * (1 - left / whole))
    text = f"restarts by itself in {fm.duration(left)}  " if left > 0 else "restarts now  "
    return row(
        Span(fit(tr("next"), LABEL), TextStyle.DIM),
        Span(tr(text), TextStyle.WARN),
        Span("▰" * full, TextStyle.WARN),
        Span("▱" * (COUNT_CELLS - full), TextStyle.DIM),
    )


def change_text(change: SpecChange, arguments: str = "") -> str:
    """Summarize the next attempt's changes in one line. `arguments` lists the arguments that differ, if known."""
    parts = [describe_change(change.batch)] if change.batch is not None else []
    parts += [f"{name}={value}" for name, value in change.env]
    parts += [f"{name} {value}" for name, value in change.set_args]
    parts += ["another port"] if change.new_port else []
    parts += ["from the start, without a checkpoint"] if change.from_scratch else []
    parts += [arguments or "other arguments"] if change.argv is not None else []
    return " · ".join(parts) or "as it was"
