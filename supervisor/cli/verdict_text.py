"""Print a verdict for the user: cause, location, surrounding lines, consequences, advice, and how it was reached."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from supervisor.diagnosis.root_cause import Ended, ended_by
from supervisor.diagnosis.scan.matched_lines import Candidate
from supervisor.diagnosis.scan.signature_tables import strength_word
from supervisor.diagnosis.verdict import EarlierJob, Examination
from supervisor.run.records import Cause, Consequence, Verdict
from supervisor.text.redact import redact_text
from supervisor.text.tracebacks import CodeLine

MOST_CONSEQUENCES = 5
MOST_CANDIDATES = 30
_ENDED = {
    Ended.TOLD: "an exit code, or the word of a launcher, a scheduler or a shell",
    Ended.RAISED: "an exception's traceback, or a crash report",
    Ended.NOT_SHOWN: "nothing",
}
SHOWN_CHARACTERS = 160

# Returns the lines around a cause by number, and the user's own code line if a traceback ends there.
ContextReader = Callable[[str, int], tuple[list[tuple[int, str]], CodeLine | None]]
Translate = Callable[[str], str]


def verdict_lines(
    path: str,
    attempt: int | None,
    verdict: Verdict,
    context: ContextReader | None,
    again: Sequence[str] = (),
    tr: Translate = str,
    *,
    ended_t: float | None = None,
) -> list[str]:
    """Return the lines to print. Control characters in log text are removed.

    `again` lists earlier occurrences, `ended_t` is the end time from a run's journal, and `tr` translates our own text.
    """
    where = f"{path} ({tr(f'attempt {attempt}')})" if attempt is not None else path
    reason = f", {tr(verdict.reason.value.replace('_', ' '))}" if verdict.reason is not None else ""
    lines = [
        f"{where}: {tr(verdict.title)}",
        f"  {verdict.failure.value}{reason}",
    ]
    if not verdict.is_plain_error:
        lines[-1] += f" · {tr(f'{100 * verdict.confidence:.0f} % sure')}"
    if verdict.node is not None:
        lines[-1] += tr(f" · node {verdict.node}")
    if ended_t is not None:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ended_t))
        lines[-1] += f" · {tr(f'ended {at}')}"
    if verdict.signature:  # a folder from another person may contain a stoker.toml
        lines.append(f"  {tr(f'by your signature {verdict.signature}')}")
    lines += [f"  {tr(text)}" for text in again]
    if verdict.cause is not None:
        lines += ["", *_cause_lines(verdict.cause, context, tr)]
    if verdict.batches:
        from supervisor.views.wording.phrases import used_batch_lines

        lines += ["", f"  {tr('batch')}", *(f"    {text}" for text in used_batch_lines(verdict.batches))]
    if verdict.consequences:
        lines += ["", *_consequence_lines(verdict.consequences, tr)]
    if verdict.advice:
        lines += ["", f"  {tr('what to do')}", *(f"    {tr(text)}" for text in verdict.advice)]
    return lines


def _cause_lines(cause: Cause, context: ContextReader | None, tr: Translate) -> list[str]:
    """Return the cause's location, the user's own code line, and the surrounding lines."""
    place = cause.path if cause.line is None else f"{cause.path}:{cause.line}"
    lines = [f"  {tr('cause')}  {place}"]
    around, own = (
        context(cause.path, cause.line) if context is not None and cause.line is not None else ([], None)
    )
    if own is not None:
        label = tr("code").ljust(len(tr("cause")))
        lines.append(f"  {label}  {own.path}:{own.line}  {own.text[:200]}".rstrip())
    if not around:
        return [*lines, f"    {cause.text[:300]}"]
    return lines + [
        f"  {'>' if number == cause.line else ' '} {number:>6}  {text[:200]}" for number, text in around
    ]


def _consequence_lines(consequences: Sequence[Consequence], tr: Translate) -> list[str]:
    """Return one line per kind of consequence, with the ranks it affected."""
    lines = [f"  {tr('what followed')} ({len(consequences)})"]
    folded: dict[str, list[Consequence]] = {}
    for item in consequences:
        folded.setdefault(item.words, []).append(item)
    for words, items in list(folded.items())[:MOST_CONSEQUENCES]:
        ranks = sorted({item.rank for item in items if item.rank is not None})
        who = f"{tr(ranks_text(ranks))}: " if ranks else ""
        place = items[0].path if items[0].line is None else f"{items[0].path}:{items[0].line}"
        lines.append(f"    {who}{tr(words)}  {place}")
    if len(folded) > MOST_CONSEQUENCES:
        lines.append(f"    … {tr(f'and {len(folded) - MOST_CONSEQUENCES} more')}")
    return lines


def earlier_job_lines(jobs: Sequence[EarlierJob], tr: Translate = str) -> list[str]:
    """Return one line for each earlier job in the same file as the diagnosed one."""
    if not jobs:
        return []
    lines = ["", f"  {tr('earlier jobs in this file')} ({len(jobs)})"]
    places = [tr(f"lines {job.first_line} to {job.last_line}") for job in jobs]
    width = max(map(len, places))
    for place, job in zip(places, jobs, strict=True):
        verdict = job.verdict
        at = (
            f", {tr(f'line {verdict.cause.line}')}"
            if verdict.cause is not None and verdict.cause.line
            else ""
        )
        lines.append(f"    {place:<{width}}  {verdict.failure.value}{at} · {tr(verdict.title)}")
    return lines


def explanation_lines(found: Examination, tr: Translate = str) -> list[str]:
    """Explain a verdict: the candidates, the rule that fired, the rules that yielded to it, and the corrections."""
    facts, decision = found.facts, found.decision
    shown = facts.candidates[:MOST_CANDIDATES]
    lines = ["", f"  {tr('candidates')} ({len(facts.candidates)})"]
    for item in shown:
        lines += _candidate_lines(item, facts.scans[item.source].path, tr)
    if len(facts.candidates) > len(shown):
        lines.append(f"    … {tr(f'and {len(facts.candidates) - len(shown)} more')}")
    lines += ["", f"  {tr('rule that fired')}", f"    {decision.rule.name}: {tr(decision.rule.why)}"]
    if yielded := decision.yielded():
        lines += ["", f"  {tr('rules that matched too, and yielded')}"]
        lines += [f"    {rule.name}: {tr(rule.why)}" for rule in yielded]
    if decision.corrections:
        lines += ["", f"  {tr('corrected by other evidence')}"]
        lines += [f"    {item.name}: {tr(item.why)}" for item in decision.corrections]
    lines += ["", f"  {tr('what shows that it ended')}", f"    {tr(_ENDED[ended_by(facts)])}"]
    if limits := decision.limits():
        lines += ["", f"  {tr('why it is not more certain')}"]
        lines += [f"    {100 * item.at_most:.0f} %  {tr(item.why)}" for item in limits]
    return lines


def _candidate_lines(item: Candidate, path: str, tr: Translate) -> list[str]:
    who = f" · {tr(ranks_text([item.rank]))}" if item.rank is not None else ""
    warning = f", {tr('a warning')}" if item.soft else ""
    kind = (
        f"{item.failure.value} · {tr(item.signature.role.value)}, {tr(strength_word(item.strength))}{warning}"
    )
    return [
        f"    {path}:{item.line}{who} · {item.signature.id} · {kind}",
        f"      {redact_text(item.text.strip())[:SHOWN_CHARACTERS]}",
    ]


def ranks_text(ranks: Sequence[int]) -> str:
    """Format ranks as ``rank 3`` or ``ranks 0, 2``."""
    many = "s" if len(ranks) > 1 else ""
    return f"rank{many} {', '.join(map(str, ranks[:8]))}" + (" …" if len(ranks) > 8 else "")
