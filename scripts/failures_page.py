"""Write docs/failures.md from the classes, the signature tables and the rules of policy."""  # noqa: INP001 - a script, not a package

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "failures.md"
sys.path.insert(0, str(ROOT))

from supervisor.diagnosis.cause.other_evidence import CORRECTIONS  # noqa: E402 - the path comes first
from supervisor.diagnosis.cause.rules import RULES as RULES_OF_THE_ROOT  # noqa: E402
from supervisor.diagnosis.scan.signature_tables import (  # noqa: E402
    WARNING_COSTS,
    Role,
    Signature,
    Strength,
    parse_tables,
)
from supervisor.diagnosis.wording.class_texts import class_texts  # noqa: E402
from supervisor.policy.rule_words import done_about  # noqa: E402
from supervisor.run.failures import FailureClass  # noqa: E402
from supervisor.sources.signature_files import read_tables  # noqa: E402

HEAD = """\
# Failure classes

Made from `supervisor/diagnosis/signatures/*.toml`, the rules in `supervisor/diagnosis/cause/`, `supervisor/diagnosis/wording/class_texts.py` and
`supervisor/policy/rules.py` by `python scripts/failures_page.py`: do not edit by hand.

A verdict names one class, the first rank that failed, and the causing line. Causes come before consequences: a peer's
"connection closed" or a watchdog's timeout is the root only where nothing else is there. What cannot be told is `unknown`.
How a verdict is reached stands [at the end](#how-a-verdict-is-reached); `stoker diagnose --explain PATH` prints it for a log. How to add a signature
says the head of `supervisor/diagnosis/scan/signature_tables.py`.
What stoker does is said in full in [recovery.md](recovery.md): a restart needs a known resume, or no completed step, and where it is not
made, or was made often enough, the run is held for a person, or fails where none is there.
"""

DECISION = """\
## How a verdict is reached

Each line that a signature matches is a candidate, unless it is quoted code, a launcher's echo, or something that the job recovered from. The rules
below are gone through in order; the first that matches gives the root. `stoker diagnose --explain PATH` prints the candidates (place, text, signature,
class, role, strength), the rule that fired, the rules below it that matched too and yielded, and the corrections; with `--json` the same stands
under the key `explanation`. Where no confidence is given, it follows from the strength of the line.
"""
CORRECTED = """\
What is known beside the logs then corrects the root: in each stage the first correction that applies.
"""


def page() -> str:
    """The whole page as Markdown."""
    entries = parse_tables(read_tables()).entries
    parts = [HEAD]
    for failure, text in class_texts().items():
        own = [entry for entry in entries if entry.failure is failure and entry.role is not Role.ADVICE]
        parts.append(f"## {failure.value}: {text.title}\n\n{text.meaning}\n")
        if own and failure not in {FailureClass.HEALTHY, FailureClass.UNKNOWN}:
            parts.append(_table(own))
        if text.advice:
            parts.append("**What to do.** " + " ".join(text.advice) + "\n")
        parts.append(f"**What stoker does.** {done_about(failure)} (suggested: `{text.action.value}`)\n")
    parts += [DECISION, _rules(), CORRECTED, _corrections(), _strengths()]
    return "\n".join(parts)


def _rules() -> str:
    rows = ["| rule | why | confidence |", "| --- | --- | --- |"]
    rows += [f"| {rule.name} | {rule.why} | {rule.confidence or ''} |" for rule in RULES_OF_THE_ROOT]
    return "\n".join(rows) + "\n"


def _corrections() -> str:
    rows = ["| stage | correction | why |", "| --- | --- | --- |"]
    rows += [f"| {_words(item.stage.name)} | {item.name} | {item.why} |" for item in CORRECTIONS]
    return "\n".join(rows) + "\n"


def _strengths() -> str:
    levels = ", ".join(f"{level.word} (from {level.value})" for level in Strength)
    return f"Strengths of signatures, from the weakest: {levels}; a line told as a warning loses {WARNING_COSTS}.\n"


def _words(name: str) -> str:
    return name.lower().replace("_", " ")


def _table(entries: list[Signature]) -> str:
    rows = ["| signature | role | a line that shows it | must not claim |", "| --- | --- | --- | --- |"]
    for entry in sorted(entries, key=lambda item: (item.role is not Role.CAUSE, -item.strength)):
        sample = entry.samples[0].strip().replace("|", "\\|").replace("`", "'")
        shown = sample if len(sample) <= 140 else sample[:139] + "…"
        must_not = entry.must_not.replace("|", "\\|")
        rows.append(f"| {entry.id} | {entry.role.value} | `{shown}` | {must_not} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
