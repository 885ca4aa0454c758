"""The failure page: verdict, evidence in its context, consequences, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from supervisor.run import state as st
from supervisor.run.records import Consequence, DecisionKind, Verdict
from supervisor.text.tracebacks import CodeLine
from supervisor.views import format as fm
from supervisor.views.logs.reading import LogAt
from supervisor.views.model.cause_context import AFTER_LINES, BEFORE_LINES
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.pages.text_page import Page, resumed_rows, section
from supervisor.views.tui.panels.failure_card import (
    LABEL,
    copied_head,
    next_rows,
    own_code,
    own_line_of,
    reason_text,
    unsure_rows,
)
from supervisor.views.tui.panels.possible_actions import with_resume_declared
from supervisor.views.tui.panels.state_words import failures
from supervisor.views.tui.widgets.paint import LABEL as PAGE_LABEL
from supervisor.views.tui.widgets.paint import Row, Span, TextStyle, fit, labelled, row, wrap
from supervisor.views.tui.widgets.panel import UNWRAPPED_CELLS, View, copied_rows
from supervisor.views.wording.kinds import place_of_end
from supervisor.views.wording.phrases import is_stacks, place_of
from supervisor.views.wording.start_warnings import foreseen, foreseen_text
from supervisor.views.wording.translate import Tr

NUMBER_CELLS = 8
FOLLOWED = 24


class FailurePage(Page):
    """One failed attempt; left and right switch between the failed ones."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *Page.BINDINGS,
        Binding("left", "attempt(-1)", "earlier failure", show=False),
        Binding("right", "attempt(1)", "later failure", show=False),
    ]
    heading = "failure"
    uses_clock = True

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self._chosen: int | None = None

    def titles(self) -> tuple[Row, Row]:
        """Which of the failed attempts is shown."""
        left, right = super().titles()
        failed = failures(self.view.snapshot.state) if self.view else []
        attempt = self._attempt(failed)
        if attempt is None:
            return left, right
        text = f" · attempt {attempt.number}"
        if len(failed) > 1:
            text += f" ({failed.index(attempt) + 1} of {len(failed)}, ← →)"
        cause = cause_of(attempt)
        if cause is not None:
            text += " · L opens the stacks" if is_stacks(cause.path) else " · L opens its log"
        return (*left, Span(self.tr(text), TextStyle.DIM)), right

    def rows(self, view: View, width: int) -> Sequence[Row]:
        """The page."""
        snapshot = view.snapshot
        attempt = self._attempt(failures(snapshot.state))
        if attempt is None or attempt.verdict is None:
            text = "nothing has failed yet: when something does, its cause stands here"
            resumed = resumed_rows(snapshot.state, width, view.tr)
            return [row(Span(view.tr(text), TextStyle.DIM)), *resumed]
        verdict, tr = attempt.verdict, view.tr
        return [
            *_head(attempt, verdict, snapshot, width, tr),
            *resumed_rows(snapshot.state, width, tr),
            *_cause(snapshot, attempt, verdict, width, tr),
            *_followed(attempt, verdict, width, tr),
            *_advice(verdict, width, tr),
            *_policy(snapshot, attempt, view.now, width, tr),
        ]

    def copied(self) -> str:
        """The whole page as plain unwrapped lines below the run's name."""
        attempt = self._attempt(failures(self.view.snapshot.state)) if self.view is not None else None
        if self.view is None or attempt is None:
            return super().copied()
        rows = self.rows(self.view, UNWRAPPED_CELLS)
        return copied_rows([copied_head(self.view.snapshot.state, attempt, self.tr), *rows])

    def inner_keys(self) -> Sequence[tuple[str, str, str]]:
        """Keys to the other failures, and to the line that the page points at."""
        own = []
        if self.view is not None and len(failures(self.view.snapshot.state)) > 1:
            own.append(("← →", "other failure", "focused.attempt(-1)"))
        place = self.place()
        if place is not None:
            own.append(("L", "stacks" if is_stacks(place.path) else "its log", "open_log"))
            own.append(("y", "copy", "copy"))
        return [*own, *super().inner_keys()]

    def place(self) -> LogAt | None:
        """The line that the page points at."""
        return cause_of(self._attempt(failures(self.view.snapshot.state))) if self.view else None

    def own(self) -> CodeLine | None:
        """The user's own line of the visible failure."""
        return (
            own_line_of(self.view.snapshot, self._attempt(failures(self.view.snapshot.state)))
            if self.view
            else None
        )

    def action_attempt(self, way: int) -> None:
        """Another failed attempt."""
        failed = failures(self.view.snapshot.state) if self.view else []
        attempt = self._attempt(failed)
        if attempt is None:
            return
        at = min(max(failed.index(attempt) + way, 0), len(failed) - 1)
        self._chosen = failed[at].number if at < len(failed) - 1 else None
        self.to_top()
        self.repaint()

    def _attempt(self, failed: list[st.AttemptState]) -> st.AttemptState | None:
        if self._chosen is not None:
            return next((a for a in failed if a.number == self._chosen), None)
        return failed[-1] if failed else None


def cause_of(attempt: st.AttemptState | None) -> LogAt | None:
    """The line that an attempt's verdict points at."""
    cause = attempt.verdict.cause if attempt is not None and attempt.verdict is not None else None
    if attempt is None or cause is None:
        return None
    return LogAt(attempt=attempt.number, path=cause.path, line=cause.line)


def _head(attempt: st.AttemptState, verdict: Verdict, snapshot: Snapshot, width: int, tr: Tr) -> list[Row]:
    state = snapshot.state
    reason = f" ({tr(verdict.reason.value.replace('_', ' '))})" if verdict.reason else ""
    rows = [row(Span(line, TextStyle.BAD)) for line in wrap(f"✗ {tr(verdict.title)}", width, 4)]
    name = f"{verdict.failure.value}{reason}"
    parts = [sure] if (sure := fm.sure(verdict)) else []
    if verdict.rank is not None:
        held_up = verdict.cause is not None and is_stacks(verdict.cause.path)
        parts.append(
            f"rank {verdict.rank} kept the others waiting" if held_up else f"rank {verdict.rank} fell first"
        )
    elif len(verdict.ranks) > 1:
        parts.append(f"ranks {fm.ranges(verdict.ranks)} alike")
    if verdict.node is not None:
        parts.append(f"node {verdict.node}")
    parts += filter(None, [place_of_end(snapshot.state, snapshot.step, attempt)])
    parts += [f"exit code {attempt.exit_code}"] if attempt.exit_code is not None else []
    rows.append(row(Span(" · ".join([name, *map(tr, parts)]), TextStyle.DIM)))
    if attempt.verdict_provisional:
        rows.append(
            row(Span(tr("provisional: its processes are still ending, and more may come"), TextStyle.WARN))
        )
    rows += unsure_rows(verdict, tr)
    for finding in foreseen(state, verdict.failure):
        rows += [row(Span(line, TextStyle.WARN)) for line in wrap(foreseen_text(finding, tr), width, 3)]
        if finding.fix:
            rows += [row(Span(line, TextStyle.DIM)) for line in wrap(f"→ {tr(finding.fix)}", width, 3)]
    same = state.same_failure(verdict, attempt.number)
    if same:
        many = "s" if len(same) > 1 else ""
        text = f"the same failure as attempt{many} {fm.ranges(same)}"
        rows.append(row(Span(tr(text), TextStyle.WARN)))
    return rows


def _cause(snapshot: Snapshot, attempt: st.AttemptState, verdict: Verdict, width: int, tr: Tr) -> list[Row]:
    cause = verdict.cause
    context = snapshot.nearby.contexts.get(attempt.number)
    if cause is None:
        shown = "no line to point at: exit codes and silence told it"
        return [*section(tr, "cause"), row(Span(tr(shown), TextStyle.DIM))]
    where = place_of(attempt, cause.path, cause.line, tr)
    rows = [*section(tr, "cause"), *own_code(snapshot, attempt, width, tr)]
    label = "stacks" if is_stacks(cause.path) else "log"
    rows.append(
        row(
            Span(fit(tr(label), LABEL), TextStyle.DIM),
            Span(fit(where, width - LABEL).rstrip(), TextStyle.KEY),
        )
    )
    if context is None or not context.lines:
        rows += [row(Span(line)) for line in wrap(cause.text.strip(), width, 6)]
        if context is not None and context.trouble:
            rows.append(row(Span(tr(context.trouble), TextStyle.DIM)))
        return rows
    for number, text in enumerate(context.lines, start=context.first):
        here = number == context.line
        if not context.line - BEFORE_LINES <= number <= context.line + AFTER_LINES:
            continue
        mark = Span(
            f"{'▸' if here else ' '}{number:>{NUMBER_CELLS - 2}} ", TextStyle.BAD if here else TextStyle.FRAME
        )
        if here:
            indent = " " * min(len(text) - len(text.lstrip()), width // 3)
            lines = wrap(text, width - NUMBER_CELLS - len(indent), 6) or [""]
            rows.append(row(mark, Span(indent + lines[0], TextStyle.STRONG)))
            rows += [row(Span(" " * NUMBER_CELLS), Span(line, TextStyle.STRONG)) for line in lines[1:]]
        else:
            rows.append(row(mark, Span(fit(text, width - NUMBER_CELLS).rstrip(), TextStyle.DIM)))
    return rows


def _followed(attempt: st.AttemptState, verdict: Verdict, width: int, tr: Tr) -> list[Row]:
    """Consequences, folded: one row for a message that several ranks logged."""
    if not verdict.consequences:
        return []
    folded: dict[tuple[str, str], list[Consequence]] = {}
    for item in verdict.consequences:
        folded.setdefault((item.words, item.text.strip()), []).append(item)
    count = len(verdict.consequences)
    many = f"{count} lines: consequences, not causes" if count > 1 else "a consequence, not the cause"
    rows = section(tr, "what followed", many)
    for (what, text), items in list(folded.items())[:FOLLOWED]:
        ranks = tuple(sorted({item.rank for item in items if item.rank is not None}))
        who = f"{'ranks' if len(ranks) > 1 else 'rank'} {fm.ranges(ranks)}" if ranks else "a log"
        where = place_of(attempt, items[0].path, items[0].line, tr).removeprefix(f"{tr(who)} ")
        shown = f"{tr(what)}  {where}  {text}"
        rows += labelled(tr(who), shown, width, TextStyle.DIM, most=2)
    if len(folded) > FOLLOWED:
        rows.append(row(Span(tr(f"… {len(folded) - FOLLOWED} more kinds"), TextStyle.DIM)))
    return rows


def _advice(verdict: Verdict, width: int, tr: Tr) -> list[Row]:
    rows = section(tr, "what to do") if verdict.advice else []
    for text in verdict.advice:
        rows += labelled("·", tr(text), width, most=4, label_cells=2)
    return rows


def _policy(snapshot: Snapshot, attempt: st.AttemptState, now: float, width: int, tr: Tr) -> list[Row]:
    """The decision with its reason, and what will happen next, as on the card."""
    rows, decision = section(tr, "what stoker does"), attempt.decision
    if decision is not None and snapshot.state.mode != "observed":
        who = "" if attempt.decided_by == "policy" else tr(f" (decided by {attempt.decided_by})")
        kind, why = tr.sentence("decision", decision.kind), tr(reason_text(attempt, decision))
        rows += labelled(kind, f"{why}{who}", width)
    wider = " " * (PAGE_LABEL - LABEL)
    of_card = next_rows(snapshot, attempt, now, width - len(wider), tr)
    rows += [(label._replace(text=label.text + wider), *text) for label, *text in of_card]
    is_failed = decision is not None and decision.kind is not DecisionKind.SUCCEED
    if attempt is snapshot.state.attempt and is_failed and (declared := with_resume_declared(snapshot)):
        rows += labelled(tr("next time"), declared, width)
    return rows
