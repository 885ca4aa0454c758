"""The failure card: what happened, where, what followed, what happens next, what each key would do.

The sentences about the failure itself come from `diagnosis.titles` and `diagnosis.advice`, the reason of the decision from `policy`.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence

from rich.cells import cell_len

from supervisor.job.batch import describe_change
from supervisor.job.spec import OF_BATCH, EntryKind
from supervisor.run import state as st
from supervisor.run.events import RankFailing
from supervisor.run.records import Decision, DecisionKind, Sameness, SpecChange, Verdict
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
    possible,
    resume_text,
)
from supervisor.views.tui.panels.state_words import is_failing, is_held_unwatched
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, cells, fit, row, wrap
from supervisor.views.tui.widgets.panel import UNWRAPPED_CELLS, Panel, View, copied_rows
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
ADVICE_ROWS = 2
WHY_ROWS = 4
CAUSE_ROWS = 3
RESUME_ROWS = 2
# A copy has all of the card.
COPIED_ROWS = 100


class FailureCard(Panel, can_focus=True):
    """Stands before the charts while the newest attempt has failed and no new one runs."""

    number = 1
    uses_clock = True
    # What a second Enter would risk, of which attempt, and until when (monotonic) it is asked.
    confirming: tuple[int | None, str, float] = (None, "", 0.0)

    def confirm(self, attempt: int | None, risk: str, until: float) -> None:
        """Ask for a second Enter in place of the keys, which the person looks at."""
        self.confirming = attempt, risk, until
        self.repaint()

    def needed_rows(self, view: View, width: int) -> int:
        """Rows that the whole card takes at this width, its frame included."""
        before, self.view = self.view, view
        rows = len(self.body(width - 2, 100)) + 2
        self.view = before  # not drawn yet: `show` compares with what was
        return rows

    def titles(self) -> tuple[Row, Row]:
        """Which attempt, when; the class and how sure we are."""
        return self._titles(roomy=self.size.width >= 76)

    def _titles(self, *, roomy: bool) -> tuple[Row, Row]:
        attempt = self.view.snapshot.state.attempt if self.view else None
        if self.view is not None and attempt is not None and is_failing(self.view.snapshot):
            return self._titles_so_far(attempt)
        if attempt is None or attempt.verdict is None:
            return EMPTY, EMPTY
        after = ""
        if roomy and attempt.started_t is not None and attempt.ended_t is not None:
            after = f" after {fm.duration(attempt.ended_t - attempt.started_t)}"
        step = (
            place_of_end(self.view.snapshot.state, self.view.snapshot.step, attempt)
            if self.view is not None
            else ""
        )
        said = (
            f"✗ attempt {attempt.number} failed{after}, {step}"
            if step
            else f"✗ attempt {attempt.number} failed"
        )
        verdict = attempt.verdict
        sure = fm.sure(verdict)
        name = f"{verdict.failure}{f' ({verdict.reason})' if verdict.reason else ''}"
        return (
            row(Span(self.tr(said), TextStyle.BAD)),
            row(Span(name, TextStyle.BAD), Span(self.tr(f" · {sure}") if sure else "", TextStyle.DIM)),
        )

    def copied(self) -> str:
        """The whole card as plain unwrapped lines below the run's name, without control characters and secrets; empty where there is none."""
        attempt = self.view.snapshot.state.attempt if self.view is not None else None
        body = self.body(UNWRAPPED_CELLS, COPIED_ROWS)
        if self.view is None or attempt is None or not body:
            return ""
        left, right = self._titles(roomy=True)
        head = copied_head(self.view.snapshot.state, attempt, self.tr)
        return copied_rows([head, (*left, Span("  "), *right), *body])

    def _titles_so_far(self, attempt: st.AttemptState) -> tuple[Row, Row]:
        """While its launcher has yet to end: the class, where it shows already, and that more may come."""
        step = (
            place_of_end(self.view.snapshot.state, self.view.snapshot.step, attempt)
            if self.view is not None
            else ""
        )
        number = attempt.number
        text = self.tr(f"✗ attempt {number} is failing, {step}" if step else f"✗ attempt {number} is failing")
        name = f"{attempt.verdict.failure} · " if attempt.verdict is not None else ""
        return row(Span(text, TextStyle.BAD)), row(
            Span(name, TextStyle.BAD), Span(self.tr("so far"), TextStyle.WARN)
        )

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The card, what matters most first: in a low pane its end is left to the failure page."""
        attempt = self.view.snapshot.state.attempt if self.view else None
        if self.view is None or attempt is None:
            return []
        if is_failing(self.view.snapshot) and attempt.failing is not None:
            return self._so_far(self.view.snapshot, attempt, attempt.failing, width, height)
        if attempt.verdict is None:
            return []
        verdict, tr = attempt.verdict, self.tr
        inner = width - 2
        snapshot, now = self.view.snapshot, self.view.now
        head = [row(Span(line, TextStyle.STRONG)) for line in wrap(tr(verdict.title), inner, 2)]
        if verdict.confidence < UNSURE:
            head.append(row(Span(tr("not sure: read the evidence before you act"), TextStyle.WARN)))
        head += compared_rows(attempt, inner, tr)
        advice = [
            _labelled("advice" if not (i or j) else "", Span(line), inner, tr)
            for i, text in enumerate(verdict.advice[:3])
            for j, line in enumerate(wrap(tr(text), inner - LABEL, ADVICE_ROWS))
        ]
        cause, own = _cause(attempt, verdict, inner, tr), own_code(snapshot, attempt, "code", inner, tr)
        blocks = [
            [*head, *(own or cause)],
            _next(snapshot, attempt, now, inner, tr, risk=self._risk(attempt)),
            _why(attempt, snapshot, inner, tr),
            cause if own else [],
            _followed(verdict, inner, tr),
            advice,
        ]
        blocks = [block for block in blocks if block]
        gap = [EMPTY] if sum(map(len, blocks)) + len(blocks) - 1 <= height else []
        rows = [line for block in blocks for line in (*gap, *block)][len(gap) :]
        return [(Span(" "), *spans) for spans in rows[:height]]

    def _risk(self, attempt: st.AttemptState) -> str:
        number, risk, until = self.confirming
        return risk if number == attempt.number and time.monotonic() < until else ""

    def _so_far(
        self, snapshot: Snapshot, attempt: st.AttemptState, failing: RankFailing, width: int, height: int
    ) -> Sequence[Row]:
        """What is known while its launcher has yet to end; each row counts only so far."""
        tr, inner, verdict = self.tr, width - 2, attempt.verdict
        job = snapshot.run_file.job if snapshot.run_file is not None else None
        launcher = "the command" if job is not None and job.entry_kind is EntryKind.COMMAND else "torchrun"
        launcher = "the job" if (watched := snapshot.state.mode == "observed") else launcher
        text = tr(failing_line(failing, failing_text(attempt, failing), launcher))
        rows = [row(Span(line, TextStyle.STRONG)) for line in wrap(text, inner, 3)]
        if verdict is not None:
            rows += _wrapped("so far", tr(verdict.title), inner, 2, tr)
            rows += _cause(attempt, verdict, inner, tr)[:3]
            rows += own_code(snapshot, attempt, "code", inner, tr)
        elif failing.path:
            where = place_of(attempt, failing.path, failing.line, tr)
            rows.append(_labelled("cause", Span(where, TextStyle.KEY), inner, tr))
            rows += [_labelled("", Span(line), inner, tr) for line in wrap(failing.text, inner - LABEL, 2)]
        after = "the verdict and what stoker does about it come with its end"
        after = "the verdict comes with its end" if watched else after
        rows.append(_labelled("next", Span(tr(after), TextStyle.DIM), inner, tr))
        return [(Span(" "), *spans) for spans in rows[:height]]


def copied_head(state: st.RunState, attempt: st.AttemptState, tr: Tr) -> Row:
    """What a copy begins with: the run by its id and name, and the attempt."""
    names = dict.fromkeys(filter(None, (state.run_id, state.name)))
    return row(" · ".join([*names, tr(f"attempt {attempt.number}")]))


def _labelled(label: str, text: Span, width: int, tr: Tr) -> Row:
    return row(
        Span(fit(tr(label), LABEL), TextStyle.DIM), Span(fit(text.text, width - LABEL).rstrip(), text.style)
    )


def _wrapped(label: str, text: str, width: int, most: int, tr: Tr) -> list[Row]:
    """As many rows as it takes: what there is to do mostly stands at the end."""
    lines = wrap(text, width - LABEL, most)
    return [_labelled(label if not at else "", Span(line), width, tr) for at, line in enumerate(lines)]


def _cause(attempt: st.AttemptState, verdict: Verdict, width: int, tr: Tr) -> list[Row]:
    """The place of the line that the verdict points at; what it says, where the headline does not."""
    if verdict.cause is None:
        return [_labelled("cause", Span(tr("no line to point at"), TextStyle.DIM), width, tr)]
    where = place_of(attempt, verdict.cause.path, verdict.cause.line, tr)
    text = "" if verdict.title_says_cause else verdict.cause.text.strip()
    if is_stacks(verdict.cause.path):
        text = tr(text)  # our own words on what the stacks show, where a log has its own
    first = _labelled("cause", Span(where, TextStyle.KEY), width, tr)
    leads = tr("L opens the stacks") if is_stacks(verdict.cause.path) else ""
    if leads and cells(first) + cell_len(leads) + 2 <= width:
        first = (*first, Span(f"  {leads}", TextStyle.DIM))
    words = wrap(text, width - LABEL, CAUSE_ROWS) if text else []
    return [first, *(_labelled("", Span(line), width, tr) for line in words)]


def own_line_of(snapshot: Snapshot, attempt: st.AttemptState | None) -> CodeLine | None:
    """The user's own line of an attempt's traceback, where there is one."""
    context = snapshot.nearby.contexts.get(attempt.number) if attempt is not None else None
    return context.own if context is not None else None


def own_code(snapshot: Snapshot, attempt: st.AttemptState, label: str, width: int, tr: Tr) -> list[Row]:
    """The user's own line of the traceback, where there is one: its place, then what stands there."""
    own = own_line_of(snapshot, attempt)
    if own is None:
        return []
    folder = snapshot.run_file.job.cwd if snapshot.run_file is not None else None
    where = f"{of_project(own.path, folder)}:{own.line}"
    room = width - cell_len(fit(tr(label), LABEL)) - cell_len(where) - 2
    code = Span(fit(own.text, room).rstrip(), TextStyle.STRONG) if room >= CODE_LEAST else Span("")
    return [
        row(
            Span(fit(tr(label), LABEL), TextStyle.DIM),
            Span(fit(where, width - LABEL).rstrip(), TextStyle.KEY),
            "  ",
            code,
        )
    ]


def compared_rows(attempt: st.AttemptState, width: int, tr: Tr) -> list[Row]:
    """Of an attempt that was resumed: that it was not the same training as before."""
    compared = attempt.compared
    if compared is None or compared.result is not Sameness.DIFFERS:
        return []
    text = tr.sentence("comparison", "card", values_of(compared))
    return [row(Span(line, TextStyle.WARN)) for line in wrap(text, width, 2)]


def _followed(verdict: Verdict, width: int, tr: Tr) -> list[Row]:
    """Consequences, folded by class and rank."""
    folded: dict[str, list[int]] = {}
    for item in verdict.consequences:
        folded.setdefault(item.words, []).extend([] if item.rank is None else [item.rank])
    if not folded:
        return []
    parts = [
        f"{name}{f' (rank {fm.ranges(tuple(set(ranks)))})' if ranks else ''}"
        for name, ranks in folded.items()
    ]
    return [_labelled("then", Span(" · ".join(map(tr, parts)), TextStyle.DIM), width, tr)]


def _only_watched(attempt: st.AttemptState, width: int, tr: Tr) -> list[Row]:
    """What stoker did not start it cannot restart: said, with the command that would supervise."""
    command = f"-- {shlex.join(attempt.argv)}" if attempt.argv else "--nproc-per-node N SCRIPT …"
    watched = tr("stoker only watches this: it did not start it and restarts nothing")
    return [
        _labelled("next", Span(watched), width, tr),
        _labelled("", Span(tr(f"to supervise it: stoker run {command}"), TextStyle.STRONG), width, tr),
    ]


def _next(
    snapshot: Snapshot, attempt: st.AttemptState, now: float, width: int, tr: Tr, *, risk: str = ""
) -> list[Row]:
    """What is about to happen or which keys are waited for, with what, and from which step; `risk`: of a second Enter."""
    decision = attempt.decision
    condition = snapshot.state.condition
    if snapshot.state.mode == "observed":
        return _only_watched(attempt, width, tr)
    if decision is None:
        return [_labelled("next", Span(tr("policy has not decided yet"), TextStyle.DIM), width, tr)]
    asked, question = _asked_rows(snapshot, width, tr), snapshot.state.open_question
    of_batch = (
        question is not None and question.what in OF_BATCH and question.what not in snapshot.state.answers
    )
    rows = []
    match condition:
        case st.Backoff():
            rows.append(_countdown(condition, now, decision, tr))
        case st.HeldOpen() if risk:
            lines = wrap(tr(f"Enter again: {risk}"), width - LABEL, WHY_ROWS)
            for at, line in enumerate(lines):
                rows.append(_labelled("" if at else "asked", Span(line, TextStyle.WARN), width, tr))
        case st.HeldOpen() if of_batch:
            text = tr("waiting for you: one key answers, then Enter restarts")
            rows.append(_labelled("next", Span(text, TextStyle.WARN), width, tr))
        case st.HeldOpen():
            until = f" (until {fm.day_and_time(condition.until, now)})" if condition.until is not None else ""
            keys = ", ".join(keys_now(snapshot))
            text = tr(f"waiting for you: {keys}{until}" if keys else f"waiting for a person{until}")
            if keys and not is_held_unwatched(snapshot.state):
                text = tr(f"waiting for you: {keys} (leaving ends the run)")
            rows.append(_labelled("next", Span(text, TextStyle.WARN), width, tr))
        case st.Finished():
            text = tr(f"the run is over, exit code {condition.exit_code}")
            rows.append(_labelled("next", Span(text, TextStyle.DIM), width, tr))
            if command := continue_text(snapshot):
                rows.append(_labelled("continue", Span(command, TextStyle.STRONG), width, tr))
            if again := again_text(snapshot):
                rows += _wrapped("again", again, width, WHY_ROWS, tr)
        case _:
            rows.append(_labelled("next", Span(tr.sentence("decision", decision.kind)), width, tr))
    rows += asked
    held = isinstance(condition, st.HeldOpen)
    change = _change_text(decision)
    if change and not (held and decision.change == SpecChange()):  # what `r` does by itself is no offer
        label = "on offer" if held else "plan"
        for at, line in enumerate(wrap(tr(change), width - LABEL, 2)):
            rows.append(_labelled("" if at else label, Span(line, TextStyle.STRONG), width, tr))
        copy = (
            batch_copy(snapshot) if decision.change is not None and decision.change.batch is not None else ""
        )
        rows += [_labelled("", Span(tr(copy)), width, tr)] if copy else []
    over = isinstance(condition, st.Finished)
    if _goes_on(decision, condition) if not over else snapshot.state.resumable is not None:
        where, why = resume_text(snapshot)
        saved = snapshot.state.resumable
        if held and where == FROM_FIRST_STEP and saved is not None and checkpoint_words(snapshot) is not None:
            where = f"from the first step; e, Ctrl-R: from the checkpoint {checkpoint_place(saved)}"
            why = checkpoint_path(snapshot)
        rows += _wrapped("resume", f"{tr(where)}: {tr(why)}" if why else tr(where), width, RESUME_ROWS, tr)
    return rows


def _why(attempt: st.AttemptState, snapshot: Snapshot, width: int, tr: Tr) -> list[Row]:
    """Why that was decided, where what is about to happen does not say it."""
    decision = attempt.decision
    if decision is None or snapshot.state.mode == "observed":
        return []
    batch = decision.change.batch if decision.change is not None else None
    change = describe_change(batch) if batch is not None else _change_text(decision)
    return (
        []
        if change and change in decision.reason
        else _wrapped("why", tr(reason_text(attempt, decision)), width, WHY_ROWS, tr)
    )


def reason_text(attempt: st.AttemptState, decision: Decision) -> str:
    """The reason of a decision without the class of failure before it, which the frame's title has."""
    return decision.reason.removeprefix(f"{attempt.failure}: ")


def keys_now(snapshot: Snapshot) -> list[str]:
    """The keys that do something about a run that waits, the offered one first."""
    now = possible(snapshot, read_only=False, can_adopt=False)
    keys = ("accept", "Enter"), ("smaller_batch", "b"), ("edit", "e"), ("restart", "r"), ("stop", "s")
    return [key for action, key in keys if action in now]


def _asked_rows(snapshot: Snapshot, width: int, tr: Tr) -> list[Row]:
    """What one key answers about the batch, with the numbers of each answer; and what was answered, also in an earlier run."""
    state, question = snapshot.state, snapshot.state.open_question
    given = state.answers.get(question.what) if question is not None else state.answer
    rows = []
    if given is not None:
        rows.append(_labelled("answer", Span(given_text(given, tr)), width, tr))
    elif question is not None:
        for at, line in enumerate(wrap(question_text(question, tr), width - LABEL, WHY_ROWS)):
            rows.append(_labelled("" if at else "asked", Span(line, TextStyle.WARN), width, tr))
    for key, answer in zip(ANSWER_KEYS, question.answers if question is not None else (), strict=False):
        if given is None or given.value != answer.value:
            text = answer_text(question, answer.value, tr) if question is not None else ""
            shown = Span(fit(f"{text}: {effect_text(answer, tr)}", width - LABEL).rstrip(), TextStyle.STRONG)
            rows.append(row(Span(fit(f"  {key}", LABEL), TextStyle.KEY), shown))
    return rows


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


def _change_text(decision: Decision) -> str:
    change = decision.change
    return "" if change is None else change_text(change)


def change_text(change: SpecChange, arguments: str = "") -> str:
    """What the next attempt does differently, in one line. `arguments`: those that differ, where they are known."""
    parts = [describe_change(change.batch)] if change.batch is not None else []
    parts += [f"{name}={value}" for name, value in change.env]
    parts += [f"{name} {value}" for name, value in change.set_args]
    parts += ["another port"] if change.new_port else []
    parts += ["from the start, without a checkpoint"] if change.from_scratch else []
    parts += [arguments or "other arguments"] if change.argv is not None else []
    return " · ".join(parts) or "as it was"


def _goes_on(decision: Decision, condition: st.Condition) -> bool:
    """Whether a next attempt is planned or on offer, so that where it would begin is of interest."""
    if decision.change is not None and decision.change.from_scratch:
        return False  # that stands in the plan
    return decision.kind is DecisionKind.RESTART or isinstance(condition, st.HeldOpen)
