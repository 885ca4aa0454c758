"""The failure card: the failure, its place, its consequences, the next step, and the effect of each key.

The sentences about the failure itself come from `diagnosis.verdict` and `diagnosis.advice`, the reason of the decision from `policy`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

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
CAUSE_ROWS = 3
# A copy contains the whole card.
COPIED_ROWS = 100


class FailureCard(Panel, can_focus=True):
    """Covers the charts while the newest attempt has failed and no new one is running."""

    number = 1
    uses_clock = True

    def needed_rows(self, view: View, width: int) -> int:
        """Rows that the whole card needs at this width, including its frame."""
        before, self.view = self.view, view
        rows = len(self.body(width - 2, 100)) + 2
        self.view = before  # not drawn yet: `show` compares with the old view
        return rows

    def titles(self) -> tuple[Row, Row]:
        """Which attempt, and when; the class and the confidence."""
        return self._titles(roomy=self.size.width >= 76)

    def _titles(self, *, roomy: bool) -> tuple[Row, Row]:
        attempt = self.view.snapshot.state.attempt if self.view else None
        if self.view is None or attempt is None:
            return EMPTY, EMPTY
        snapshot, verdict, is_open = self.view.snapshot, attempt.verdict, is_failing(self.view.snapshot)
        if verdict is None and not is_open:
            return EMPTY, EMPTY
        what = f"✗ attempt {attempt.number} {'is failing' if is_open else 'failed'}"
        if roomy and not is_open and attempt.started_t is not None and attempt.ended_t is not None:
            what += f" after {fm.duration(attempt.ended_t - attempt.started_t)}"
        step = place_of_end(snapshot.state, snapshot.step, attempt)
        left = row(Span(self.tr(f"{what}, {step}" if step else what), TextStyle.BAD))
        if is_open:
            name = f"{verdict.failure} · " if verdict is not None else ""
            return left, row(Span(name, TextStyle.BAD), Span(self.tr("so far"), TextStyle.WARN))
        assert verdict is not None
        sure, reason = fm.sure(verdict), f" ({verdict.reason})" if verdict.reason else ""
        certainty = Span(self.tr(f" · {sure}") if sure else "", TextStyle.DIM)
        return left, row(Span(f"{verdict.failure}{reason}", TextStyle.BAD), certainty)

    def copied(self) -> str:
        """The whole card as plain unwrapped lines below the run's name, without control characters and secrets; empty where there is none."""
        attempt = self.view.snapshot.state.attempt if self.view is not None else None
        body = self.body(UNWRAPPED_CELLS, COPIED_ROWS)
        if self.view is None or attempt is None or not body:
            return ""
        left, right = self._titles(roomy=True)
        head = copied_head(self.view.snapshot.state, attempt, self.tr)
        return copied_rows([head, (*left, Span("  "), *right), *body])

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The card, most important first: in a low pane the rest is left to the failure page."""
        attempt = self.view.snapshot.state.attempt if self.view else None
        if self.view is None or attempt is None:
            return []
        snapshot, tr, inner = self.view.snapshot, self.tr, width - 2
        if is_failing(snapshot) and attempt.failing is not None:
            blocks = [_so_far(snapshot, attempt, attempt.failing, inner, tr)]
        elif attempt.verdict is not None:
            blocks = self._blocks(snapshot, attempt, attempt.verdict, self.view.now, inner)
        else:
            return []
        blocks = [block for block in blocks if block]
        gap = [EMPTY] if sum(map(len, blocks)) + len(blocks) - 1 <= height else []
        rows = [line for block in blocks for line in (*gap, *block)][len(gap) :]
        return [(Span(" "), *spans) for spans in rows[:height]]

    def _blocks(
        self, snapshot: Snapshot, attempt: st.AttemptState, verdict: Verdict, now: float, width: int
    ) -> list[list[Row]]:
        tr = self.tr
        head = [row(Span(line, TextStyle.STRONG)) for line in wrap(tr(verdict.title), width, 2)]
        head += unsure_rows(verdict, tr) + _compared_rows(attempt, width, tr)
        cause, own = _cause(attempt, verdict, width, tr), own_code(snapshot, attempt, width, tr)
        advice: list[Row] = []
        for text in verdict.advice[:3]:
            advice += labelled("" if advice else tr("advice"), tr(text), width, most=2, label_cells=LABEL)
        return [
            [*head, *(own or cause)],
            next_rows(snapshot, attempt, now, width, tr),
            _why(attempt, snapshot, width, tr),
            cause if own else [],
            _followed(verdict, width, tr),
            advice,
        ]


def _so_far(
    snapshot: Snapshot, attempt: st.AttemptState, failing: RankFailing, width: int, tr: Tr
) -> list[Row]:
    """The known facts while its launcher is still ending; each row is provisional."""
    verdict, watched = attempt.verdict, snapshot.state.mode == "observed"
    job = snapshot.run_file.job if snapshot.run_file is not None else None
    launcher = "the command" if job is not None and job.entry_kind is EntryKind.COMMAND else "torchrun"
    text = tr(failing_line(failing, failing_text(attempt, failing), "the job" if watched else launcher))
    rows = [row(Span(line, TextStyle.STRONG)) for line in wrap(text, width, 3)]
    if verdict is not None:
        rows += _part("so far", tr(verdict.title), width, tr, most=2)
        rows += _cause(attempt, verdict, width, tr)[:3]
        rows += own_code(snapshot, attempt, width, tr)
    elif failing.path:
        where = place_of(attempt, failing.path, failing.line, tr)
        rows += _part("cause", where, width, tr, TextStyle.KEY, most=1)
        rows += _part("", failing.text, width, tr, most=2)
    after = "the verdict and what stoker does about it come with its end"
    after = "the verdict comes with its end" if watched else after
    return [*rows, *_part("next", tr(after), width, tr, TextStyle.DIM, most=1)]


def copied_head(state: st.RunState, attempt: st.AttemptState, tr: Tr) -> Row:
    """The head of a copy: the run's id and name, and the attempt."""
    names = dict.fromkeys(filter(None, (state.run_id, state.name)))
    return row(" · ".join([*names, tr(f"attempt {attempt.number}")]))


def unsure_rows(verdict: Verdict, tr: Tr) -> list[Row]:
    """A note that the verdict may be wrong."""
    text = tr("not sure: read the evidence before you act")
    return [row(Span(text, TextStyle.WARN))] if verdict.confidence < UNSURE else []


def _part(
    label: str, text: str, width: int, tr: Tr, style: TextStyle = TextStyle.PLAIN, *, most: int = 4
) -> list[Row]:
    """A labelled text; nothing for an empty one."""
    return labelled(tr(label), text, width, style, most=most, label_cells=LABEL) if text else []


def _cause(attempt: st.AttemptState, verdict: Verdict, width: int, tr: Tr) -> list[Row]:
    """The position of the line that the verdict points at, and its text, unless the headline has it."""
    if verdict.cause is None:
        return _part("cause", tr("no line to point at"), width, tr, TextStyle.DIM, most=1)
    of_stacks = is_stacks(verdict.cause.path)
    text = "" if verdict.title_says_cause else verdict.cause.text.strip()
    text = tr(text) if of_stacks else text  # our own words about the stacks, or a log's own text
    where = place_of(attempt, verdict.cause.path, verdict.cause.line, tr)
    (first,) = _part("cause", where, width, tr, TextStyle.KEY, most=1)
    leads = f"  {tr('L opens the stacks')}" if of_stacks else ""
    if cells(first) + cell_len(leads) <= width:
        first = (*first, Span(leads, TextStyle.DIM))
    return [first, *_part("", text, width, tr, most=CAUSE_ROWS)]


def own_line_of(snapshot: Snapshot, attempt: st.AttemptState | None) -> CodeLine | None:
    """The user's own line of an attempt's traceback, if there is one."""
    context = snapshot.nearby.contexts.get(attempt.number) if attempt is not None else None
    return context.own if context is not None else None


def own_code(snapshot: Snapshot, attempt: st.AttemptState, width: int, tr: Tr) -> list[Row]:
    """The user's own line of the traceback, if there is one: its position, then its text."""
    own = own_line_of(snapshot, attempt)
    if own is None:
        return []
    folder = snapshot.run_file.job.cwd if snapshot.run_file is not None else None
    place = f"{of_project(own.path, folder)}:{own.line}"
    (where,) = labelled(tr("code"), place, width, TextStyle.KEY, most=1, label_cells=LABEL)
    room = width - cells(where) - 2
    code = fit(own.text, room).rstrip() if room >= CODE_LEAST else ""
    return [(*where, Span("  "), Span(code, TextStyle.STRONG))]


def _compared_rows(attempt: st.AttemptState, width: int, tr: Tr) -> list[Row]:
    """For a resumed attempt: a note that it was not the same training as before."""
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
    parts = [
        f"{name}{f' (rank {fm.ranges(tuple(set(ranks)))})' if ranks else ''}"
        for name, ranks in folded.items()
    ]
    return _part("then", " · ".join(map(tr, parts)), width, tr, TextStyle.DIM, most=1)


def next_rows(snapshot: Snapshot, attempt: st.AttemptState, now: float, width: int, tr: Tr) -> list[Row]:
    """What will happen, or which keys to press, with the change and the resume step."""
    decision, state = attempt.decision, snapshot.state
    if state.mode == "observed":
        # stoker cannot restart a job that it did not start.
        command = f"-- {shlex.join(attempt.argv)}" if attempt.argv else "--nproc-per-node N SCRIPT …"
        watched = tr("stoker only watches this: it did not start it and restarts nothing")
        supervised = tr(f"to supervise it: stoker run {command}")
        rows = _part("next", watched, width, tr, most=1)
        return [*rows, *_part("", supervised, width, tr, TextStyle.STRONG, most=1)]
    if decision is None:
        return _part("next", tr("policy has not decided yet"), width, tr, TextStyle.DIM, most=1)
    is_newest, condition = attempt is state.attempt, state.condition
    held, over = isinstance(condition, st.HeldOpen), isinstance(condition, st.Finished)
    rows = []
    if is_newest:
        rows = _now_rows(snapshot, decision, now, width, tr) + _asked_rows(snapshot, width, tr)
    else:
        rows = _part("next", tr(f"done: attempt {attempt.number + 1} followed"), width, tr)
    if decision.change is not None and not (held and decision.change == SpecChange()):
        # The default action of `r` is not an offer.
        following = state.find(attempt.number + 1)
        arguments = changed_arguments(attempt, following) if following is not None else ""
        label, text = (
            "on offer" if held and is_newest else "plan",
            tr(change_text(decision.change, arguments)),
        )
        rows += _part(label, text, width, tr, TextStyle.STRONG, most=2)
        if is_newest and decision.change.batch is not None and (copy := batch_copy(snapshot)):
            rows += _part("", tr(copy), width, tr, most=1)
    goes_on = decision.kind is DecisionKind.RESTART or held
    goes_on = goes_on and not (decision.change is not None and decision.change.from_scratch)
    if is_newest and (state.resumable is not None if over else goes_on):
        start = next_start(snapshot)
        where, why = resume_text(snapshot, start)
        if held and where == FROM_FIRST_STEP and start.saved is not None and checkpoint_words(start):
            where = f"from the first step; e, Ctrl-R: from the checkpoint {checkpoint_place(start.saved)}"
            why = checkpoint_path(snapshot)
        rows += _part("resume", f"{tr(where)}: {tr(why)}" if why else tr(where), width, tr, most=2)
    return rows


def _now_rows(snapshot: Snapshot, decision: Decision, now: float, width: int, tr: Tr) -> list[Row]:
    """What is happening now, or who must act."""
    state = snapshot.state
    asked = state.open_question
    of_batch = asked is not None and asked.what in OF_BATCH and asked.what not in state.answers
    match condition := state.condition:
        case st.Backoff():
            return [_countdown(condition, now, decision, tr)]
        case st.HeldOpen() if of_batch:
            text = "waiting for you: one key answers, then Enter restarts"
            return _part("next", tr(text), width, tr, TextStyle.WARN, most=1)
        case st.HeldOpen():
            until = f" (until {fm.day_and_time(condition.until, now)})" if condition.until is not None else ""
            keys = ", ".join(keys_now(snapshot))
            text = f"waiting for you: {keys}{until}" if keys else f"waiting for a person{until}"
            if keys and not is_held_unwatched(state):
                text = f"waiting for you: {keys} (leaving ends the run)"
            return _part("next", tr(text), width, tr, TextStyle.WARN, most=1)
        case st.Finished():
            text = tr(f"the run is over, exit code {condition.exit_code}")
            rows = _part("next", text, width, tr, TextStyle.DIM, most=1)
            rows += _part("continue", continue_text(snapshot), width, tr, TextStyle.STRONG, most=1)
            return [*rows, *_part("again", again_text(snapshot), width, tr)]
        case _:
            return _part("next", tr.sentence("decision", decision.kind), width, tr, most=1)


def _why(attempt: st.AttemptState, snapshot: Snapshot, width: int, tr: Tr) -> list[Row]:
    """The reason for the decision, unless the next step already states it."""
    decision = attempt.decision
    if decision is None or snapshot.state.mode == "observed":
        return []
    change = decision.change
    said = ""
    if change is not None:
        said = describe_change(change.batch) if change.batch is not None else change_text(change)
    is_said = bool(said) and said in decision.reason
    return [] if is_said else _part("why", tr(reason_text(attempt, decision)), width, tr)


def reason_text(attempt: st.AttemptState, decision: Decision) -> str:
    """The reason of a decision without the leading failure class, which the frame's title has."""
    return decision.reason.removeprefix(f"{attempt.failure}: ")


def keys_now(snapshot: Snapshot) -> list[str]:
    """The keys that act on a waiting run, the offered one first."""
    now = possible(snapshot, read_only=False, can_adopt=False)
    keys = ("accept", "Enter"), ("smaller_batch", "b"), ("edit", "e"), ("restart", "r"), ("stop", "s")
    return [key for action, key in keys if action in now]


def _asked_rows(snapshot: Snapshot, width: int, tr: Tr) -> list[Row]:
    """The answers to the batch question by key, with the numbers of each; and the given answer, even from an earlier run."""
    state, question = snapshot.state, snapshot.state.open_question
    given = state.answers.get(question.what) if question is not None else state.answer
    rows = []
    if given is not None:
        rows += _part("answer", given_text(given, tr), width, tr, most=1)
    elif question is not None:
        rows += _part("asked", question_text(question, tr), width, tr, TextStyle.WARN)
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


def change_text(change: SpecChange, arguments: str = "") -> str:
    """The changes of the next attempt, in one line. `arguments`: the differing ones, if known."""
    parts = [describe_change(change.batch)] if change.batch is not None else []
    parts += [f"{name}={value}" for name, value in change.env]
    parts += [f"{name} {value}" for name, value in change.set_args]
    parts += ["another port"] if change.new_port else []
    parts += ["from the start, without a checkpoint"] if change.from_scratch else []
    parts += [arguments or "other arguments"] if change.argv is not None else []
    return " · ".join(parts) or "as it was"
