"""The page docs/failures.md, made from the classes and the signature tables."""

from __future__ import annotations

from supervisor.diagnosis.classes import class_texts
from supervisor.diagnosis.tables import Role, Signature, Signatures
from supervisor.run.failures import FailureClass

_HEAD = """\
# Failure classes

Made from `supervisor/diagnosis/signatures/*.toml` and `supervisor/diagnosis/classes.py` by `python scripts/failures_page.py`: do not edit by hand.

A verdict names one class, the first rank that fell, and the causing line. Causes come before consequences: a peer's
"connection closed" or a watchdog's timeout is the root only where nothing else is there. What cannot be told is `unknown`.
"""


def failures_page(signatures: Signatures) -> str:
    """The whole page as Markdown."""
    parts = [_HEAD]
    for failure, text in class_texts().items():
        own = [
            entry
            for entry in signatures.entries
            if entry.failure is failure and entry.role is not Role.ADVICE
        ]
        parts.append(f"## {failure.value}: {text.title}\n\n{text.meaning}\n")
        if failure not in (FailureClass.HEALTHY, FailureClass.UNKNOWN):
            parts.extend(_lines(own))
        if text.advice:
            parts.append("**What to do.** " + " ".join(text.advice) + "\n")
        parts.append(f"**What stoker does.** {text.stoker} (action `{text.action.value}`)\n")
    return "\n".join(parts)


def _lines(entries: list[Signature]) -> list[str]:
    if not entries:
        return []
    rows = ["| signature | role | a line that shows it | must not claim |", "| --- | --- | --- | --- |"]
    for entry in sorted(entries, key=lambda item: (item.role is not Role.CAUSE, -item.strength)):
        sample = entry.samples[0].strip().replace("|", "\\|").replace("`", "'")
        shown = sample if len(sample) <= 140 else sample[:139] + "…"
        rows.append(
            f"| {entry.id} | {entry.role.value} | `{shown}` | {entry.must_not.replace('|', chr(92) + '|')} |"
        )
    return ["\n".join(rows) + "\n"]
