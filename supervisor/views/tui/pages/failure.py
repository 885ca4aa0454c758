"""The failure page: verdict, evidence in context, consequences, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from supervisor.run import state as st
from supervisor.run.records import Consequence, Verdict
from supervisor.views import format as fm
from supervisor.views.logs.reading import LogAt
from supervisor.views.model.cause_context import AFTER_LINES, BEFORE_LINES
from supervisor.views.tui.pages.text_page import Page, resumed_rows, section
from supervisor.views.tui.panels.failure_card import LABEL, FailureText, reason_text
from supervisor.views.tui.panels.state_words import failures
from supervisor.views.tui.widgets.paint import LABEL as PAGE_LABEL
from supervisor.views.tui.widgets.paint import Row, Span, TextStyle, fit, labelled, row, wrap
from supervisor.views.tui.widgets.panel import View
from supervisor.views.wording.kinds import place_of_end
from supervisor.views.wording.phrases import is_stacks, place_of, used_batch_lines

NUMBER_CELLS = 8
FOLLOWED = 24


class FailurePage(Page):
    """A page about a failed attempt. The left and right keys switch between failed attempts."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *Page.BINDINGS,
        Binding("left", "attempt(-1)", "earlier failure"),
        Binding("right", "attempt(1)", "later failure"),
    ]
    heading = "failure"
    uses_clock = True
    _chosen: int | None = None

    def titles(self) -> tuple[Row, Row]:
        """Return the title, which says which failed attempt is shown."""
        left, right = super().titles()
        failed, attempt = self._failed(), self.attempt
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
        """Return the page's rows."""
        snapshot, attempt, tr = view.snapshot, self.attempt, view.tr
        resumed = resumed_rows(snapshot.state, width, tr)
        if attempt is None or attempt.verdict is None:
            text = "nothing has failed yet: when something does, its cause stands here"
            return [row(Span(tr(text), TextStyle.DIM)), *resumed]
        verdict, told = attempt.verdict, FailureText(snapshot, attempt, width, view.now, tr)
        advice = section(tr, "what to do") if verdict.advice else []
        for text in verdict.advice:
            advice += labelled("·", tr(text), width, most=4, label_cells=2)
        return [
            *_head(told, verdict),
            *resumed,
            *section(tr, "cause"),
            *_cause(told, verdict),
            *_batches(told, verdict),
            *_followed(told, verdict),
            *advice,
            *_policy(told),
        ]

    def inner_keys(self) -> Sequence[tuple[str, str, str]]:
        """Return the keys for other failures and for the log line in the verdict."""
        own = [("← →", "other failure", "focused.attempt(-1)")] if len(self._failed()) > 1 else []
        place = cause_of(self.attempt)
        if place is not None:
            own.append(("L", "stacks" if is_stacks(place.path) else "its log", "open_log"))
            own.append(("y", "copy", "copy"))
        return [*own, *super().inner_keys()]

    def action_attempt(self, way: int) -> None:
        """Show a different failed attempt."""
        failed, attempt = self._failed(), self.attempt
        if attempt is None:
            return
        at = min(max(failed.index(attempt) + way, 0), len(failed) - 1)
        self._chosen = failed[at].number if at < len(failed) - 1 else None
        self.action_edge(-1)

    def _failed(self) -> list[st.AttemptState]:
        return failures(self.view.snapshot.state) if self.view is not None else []

    @property
    def attempt(self) -> st.AttemptState | None:
        """The failed attempt on the page, which is the latest unless the user chose another."""
        failed = self._failed()
        if self._chosen is not None:
            return next((each for each in failed if each.number == self._chosen), None)
        return failed[-1] if failed else None


def cause_of(attempt: st.AttemptState | None) -> LogAt | None:
    """Return the log line that an attempt's verdict points to, if any."""
    cause = attempt.verdict.cause if attempt is not None and attempt.verdict is not None else None
    if attempt is None or cause is None:
        return None
    return LogAt(attempt=attempt.number, path=cause.path, line=cause.line)


def _head(told: FailureText, verdict: Verdict) -> list[Row]:
    snapshot, attempt, tr = told.snapshot, told.attempt, told.tr
    rows = told.warned(f"✗ {tr(verdict.title)}", TextStyle.BAD, 4)
    parts = [sure] if (sure := fm.sure(verdict)) else []
    if verdict.rank is not None:
        held_up = verdict.cause is not None and is_stacks(verdict.cause.path)
        parts.append(f"rank {verdict.rank} {'kept the others waiting' if held_up else 'fell first'}")
    elif len(verdict.ranks) > 1:
        parts.append(f"ranks {fm.ranges(verdict.ranks)} alike")
    if verdict.node is not None:
        parts.append(f"node {verdict.node}")
    parts += filter(None, [place_of_end(snapshot.state, snapshot.step, attempt)])
    parts += [f"exit code {attempt.exit_code}"] if attempt.exit_code is not None else []
    reason = f" ({tr(verdict.reason.value.replace('_', ' '))})" if verdict.reason else ""
    name = f"{verdict.failure.value}{reason}"
    rows += told.warned(" · ".join([name, *map(tr, parts)]), TextStyle.DIM)
    if attempt.verdict_provisional:
        rows += told.warned(tr("provisional: its processes are still ending, and more may come"))
    rows += told.unsure(verdict)
    same = snapshot.state.same_failure(verdict, attempt.number)
    if same:
        rows += told.warned(
            tr(f"the same failure as attempt{'s' if len(same) > 1 else ''} {fm.ranges(same)}")
        )
    return rows


def _cause(told: FailureText, verdict: Verdict) -> list[Row]:
    """Return rows that show the user's own code and the log line in context."""
    cause, tr, width = verdict.cause, told.tr, told.width
    if cause is None:
        return [row(Span(tr("no line to point at: exit codes and silence told it"), TextStyle.DIM))]
    where = place_of(told.attempt, cause.path, cause.line, tr)
    label = "stacks" if is_stacks(cause.path) else "log"
    rows = [*told.own_code(), *told.part(label, where, TextStyle.KEY, most=1)]
    context = told.snapshot.nearby.contexts.get(told.attempt.number)
    if context is None or not context.lines:
        rows += told.warned(cause.text.strip(), TextStyle.PLAIN, 6)
        if context is not None and context.trouble:
            rows.append(row(Span(tr(context.trouble), TextStyle.DIM)))
        return rows
    for number, text in enumerate(context.lines, start=context.first):
        if not context.line - BEFORE_LINES <= number <= context.line + AFTER_LINES:
            continue
        numbered = f"{number:>{NUMBER_CELLS - 2}} "
        if number != context.line:
            shown = Span(fit(text, width - NUMBER_CELLS).rstrip(), TextStyle.DIM)
            rows.append(row(Span(f" {numbered}", TextStyle.FRAME), shown))
            continue
        indent = " " * min(len(text) - len(text.lstrip()), width // 3)
        lines = wrap(text, width - NUMBER_CELLS - len(indent), 6) or [""]
        rows.append(row(Span(f"▸{numbered}", TextStyle.BAD), Span(indent + lines[0], TextStyle.STRONG)))
        rows += [row(Span(" " * NUMBER_CELLS), Span(line, TextStyle.STRONG)) for line in lines[1:]]
    return rows


def _batches(told: FailureText, verdict: Verdict) -> list[Row]:
    """Return a row for each rank that says which batch it was working on."""
    rows: list[Row] = []
    for text in used_batch_lines(verdict.batches, told.tr):
        rows += told.part("" if rows else "batch", text, most=2)
    return rows


def _followed(told: FailureText, verdict: Verdict) -> list[Row]:
    """Return the consequences, merging a message that several ranks logged into a single row."""
    if not verdict.consequences:
        return []
    tr, folded = told.tr, dict[tuple[str, str], list[Consequence]]()
    for item in verdict.consequences:
        folded.setdefault((item.words, item.text.strip()), []).append(item)
    count = len(verdict.consequences)
    many = f"{count} lines: consequences, not causes" if count > 1 else "a consequence, not the cause"
    rows = section(tr, "what followed", many)
    for (what, text), items in list(folded.items())[:FOLLOWED]:
        ranks = tuple(sorted({item.rank for item in items if item.rank is not None}))
        who = f"{'ranks' if len(ranks) > 1 else 'rank'} {fm.ranges(ranks)}" if ranks else "a log"
        where = place_of(told.attempt, items[0].path, items[0].line, tr).removeprefix(f"{tr(who)} ")
        rows += labelled(tr(who), f"{tr(what)}  {where}  {text}", told.width, TextStyle.DIM, most=2)
    if len(folded) > FOLLOWED:
        rows.append(row(Span(tr(f"… {len(folded) - FOLLOWED} more kinds"), TextStyle.DIM)))
    return rows


def _policy(told: FailureText) -> list[Row]:
    """Return the decision, its reason and what happens next, as on the card."""
    attempt, tr = told.attempt, told.tr
    rows, decision = section(tr, "what stoker does"), attempt.decision
    if decision is not None and told.snapshot.state.mode != "observed":
        who = "" if attempt.decided_by == "policy" else tr(f" (decided by {attempt.decided_by})")
        kind, why = tr.sentence("decision", decision.kind), tr(reason_text(attempt, decision))
        rows += labelled(kind, f"{why}{who}", told.width)
    wider = " " * (PAGE_LABEL - LABEL)
    of_card = told._replace(width=told.width - len(wider)).next_rows()
    return [*rows, *((label._replace(text=label.text + wider), *text) for label, *text in of_card)]
