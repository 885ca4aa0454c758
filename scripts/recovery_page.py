"""Write the tables of docs/recovery.md: the rules of policy and the fault matrix. The text around them is written by hand."""  # noqa: INP001 - a script, not a package

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "recovery.md"
sys.path.insert(0, str(ROOT))

from supervisor.policy.rule_words import WORDS  # noqa: E402
from supervisor.policy.rules import REASON_RULES, RULES, Answer, Rule  # noqa: E402
from tests.integration.matrix import MATRIX  # noqa: E402


def rules_table() -> str:
    """One row a rule, with all classes and reasons that have it."""
    named: dict[str, list[str]] = {}
    for failure, rule in RULES.items():
        named.setdefault(_row(rule), []).append(f"`{failure.value}`")
        for (of, reason), own in REASON_RULES.items():
            if of is failure:
                named.setdefault(_row(own), []).append(f"`{failure.value}` / {reason.value}")
    rows = ["| class | what stoker does | how often | waits first for |", "|---|---|---|---|"]
    return "\n".join([*rows, *(f"| {', '.join(names)} | {row}" for row, names in named.items())])


def _row(rule: Rule) -> str:
    restarts = rule.answer not in {Answer.STOP, Answer.HOLD, Answer.REQUEUE}
    often = ("`--max-retries`" if rule.max_times is None else str(rule.max_times)) if restarts else "-"
    often += ", only after progress" if rule.requires_progress and restarts else ""
    first = ", ".join(proof.value.replace("_", " ") for proof in rule.show_first)
    shown = f"{first} ({rule.wait_s:.0f} s)" if restarts else "-"
    return f"{WORDS[rule.answer]} | {often} | {shown} |"


def matrix_table() -> str:
    """One row a fault."""
    rows = [
        "| failure (`--fault`) | verdict | rank | decision | change | outcome | exit |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in MATRIX:
        verdict = case.failure.value + (f" / {case.reason.value}" if case.reason else "")
        rank = "-" if case.rank is None else str(case.rank)
        rows.append(
            f"| {case.what} (`{case.fault}`) | {verdict} | {rank} | {case.decision.value} | {case.change or '-'} "
            f"| {case.outcome} | {case.exit_code} |"
        )
    return "\n".join(rows)


def page(text: str) -> str:
    """`text` with both tables as they are now."""
    for name, table in (("rules", rules_table()), ("matrix", matrix_table())):
        start, end = f"<!-- {name}: made by scripts/recovery_page.py -->\n", f"\n<!-- end of {name} -->"
        before, _, rest = text.partition(start)
        _, _, after = rest.partition(end)
        text = f"{before}{start}{table}{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
