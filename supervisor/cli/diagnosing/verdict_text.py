"""A verdict for people: what, where, the lines around it, what followed, what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from supervisor.text.decode import strip_escapes

if TYPE_CHECKING:
    from supervisor.diagnosis.judgement import JudgedConsequence, Judgement
    from supervisor.run.records import Consequence, Verdict
    from supervisor.text.ownline import CodeLine

MOST_FOLLOWED = 5

# The lines around a cause by number, and the user's own line of code where a traceback ends in it.
ContextReader = Callable[[str, int], "tuple[list[tuple[int, str]], CodeLine | None]"]


def verdict_lines(
    path: str,
    attempt: int | None,
    verdict: Verdict | Judgement,
    context: ContextReader | None,
    again: Sequence[str] = (),
    tr: Callable[[str], str] = str,
) -> list[str]:
    """The lines to print; whatever came out of a log is free of control characters.

    `again`: where it was seen before. `tr`: tells our sentences in a person's language.
    """
    where = f"{path} ({tr(f'attempt {attempt}')})" if attempt is not None else path
    reason = f", {tr(verdict.reason.value.replace('_', ' '))}" if verdict.reason is not None else ""
    lines = [
        _safe(f"{where}: {tr(verdict.title)}"),
        f"  {verdict.failure.value}{reason} · {tr(f'{100 * verdict.confidence:.0f} % sure')}",
    ]
    if verdict.node is not None:
        lines[-1] += _safe(tr(f" · node {verdict.node}"))
    lines += [_safe(f"  {tr(text)}") for text in again]
    cause = verdict.cause
    if cause is not None:
        place = cause.path if cause.line is None else f"{cause.path}:{cause.line}"
        lines += ["", _safe(f"  {tr('cause')}  {place}")]
        around, own = (
            context(cause.path, cause.line) if context is not None and cause.line is not None else ([], None)
        )
        if own is not None:
            label = tr("code").ljust(len(tr("cause")))
            lines.append(_safe(f"  {label}  {own.path}:{own.line}  {own.text[:200]}".rstrip()))
        if around:
            lines += [
                _safe(f"  {'>' if number == cause.line else ' '} {number:>6}  {text[:200]}")
                for number, text in around
            ]
        else:
            lines.append(_safe(f"    {cause.text[:300]}"))
    if verdict.consequences:
        lines += ["", f"  {tr('what followed')} ({len(verdict.consequences)})"]
        folded: dict[str, list[Consequence | JudgedConsequence]] = {}
        for item in verdict.consequences:
            folded.setdefault(item.words, []).append(item)
        for words, items in list(folded.items())[:MOST_FOLLOWED]:
            ranks = sorted({item.rank for item in items if item.rank is not None})
            who = f"{tr(ranks_text(ranks))}: " if ranks else ""
            place = items[0].path if items[0].line is None else f"{items[0].path}:{items[0].line}"
            lines.append(_safe(f"    {who}{tr(words)}  {place}"))
        if len(folded) > MOST_FOLLOWED:
            lines.append(f"    … {tr(f'and {len(folded) - MOST_FOLLOWED} more')}")
    if verdict.advice:
        lines += ["", f"  {tr('what to do')}", *(_safe(f"    {tr(text)}") for text in verdict.advice)]
    return lines


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 3`` or ``ranks 0, 2``."""
    many = "s" if len(ranks) > 1 else ""
    return f"rank{many} {', '.join(map(str, ranks[:8]))}" + (" …" if len(ranks) > 8 else "")


def _safe(text: str) -> str:
    return strip_escapes(text).replace("\r", "").replace("\n", " ").replace("\t", "    ")
