"""Write docs/reliability.md from the tests that bear a `fault` mark: fault × promise × test."""  # noqa: INP001 - a script, not a package

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reliability.md"
AREAS = {
    "processes": "Processes: kills, orphans, adoption, stopping",
    "journal and disk": "The journal, the disk and the clock",
    "recovery": "Restarts, hangs and waiting",
    "logs and load": "Logs and load",
    "hostile input": "Hostile input",
    "secrets and access": "Secrets, and who may act",
    "nodes": "Several nodes",
}
# The marks that leave a test to another target than `make test`; the first of them that a test bears counts.
SIGNS = {"cluster": "**", "thorough": "***", "e2e": "*"}

HEAD = """\
# Reliability

What can go wrong, what stoker guarantees then, and the test of each. Generated from the tests' `fault` marks by `python scripts/reliability_page.py`; do
not edit it by hand. The tests use real processes and files. An error that the system cannot be made to show (a stale descriptor, state D) is injected.

Larger matrices keep their results in `bench/results`: `bench/fuzz.py` runs all parsers on mutated input, `make soak` runs for hours, and
`make faults SEED=n COUNT=m` draws m kills (200) of keeper, launcher, agent, ranks and viewers from seed n, with rounds of a full disk, a set
clock, a truncated journal, a suspension and a slow `fsync` in between. After each fault no process may be left, no second copy of the job may have run,
the journal must fold, and `stoker continue` must work. The same seed continues an unfinished run; `python bench/fault_run.py --seed n --round NAME`
repeats one round.

Not shown: GPUs, NCCL and network filesystems were not available.
"""


class Row(NamedTuple):
    """One fault mark. `test`: ``tests/…/test_x.py::test_name``; `sign`: which target runs it, of `SIGNS`, "" for `make test`."""

    area: str
    fault: str
    promise: str
    test: str
    sign: str


def rows() -> Iterator[Row]:
    """The marks of all tests, in the order of their files.

    Raises:
        ValueError: a mark that has not three plain texts, or an unknown area.
    """
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        of_file = " ".join(ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign))
        for node in tree.body:
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            marks = [ast.unparse(decorator) for decorator in node.decorator_list]
            sign = next((sign for mark, sign in SIGNS.items() if f"pytest.mark.{mark}" in marks), "")
            if not sign and "pytest.mark.e2e" in of_file:
                sign = SIGNS["e2e"]
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.fault":
                    test = f"{path.relative_to(ROOT)}::{node.name}"
                    area, fault, promise = (ast.literal_eval(argument) for argument in decorator.args)
                    if area not in AREAS:
                        raise ValueError(f"{test}: {area!r} is none of {', '.join(AREAS)}")
                    yield Row(area, fault, promise, test, sign)


def page() -> str:
    """The whole page as Markdown."""
    found = list(rows())
    parts = [
        HEAD,
        f"{len(found)} faults. `make e2e` runs the tests with *, `make cluster` those with **, `make thorough` those with ***, `make test` the others.\n",
    ]
    for area, title in AREAS.items():
        parts.append(f"## {title}\n\n| fault | promise | test |\n|---|---|---|")
        for row in found:
            if row.area == area:
                file, _, name = row.test.partition("::")
                shown = name.removeprefix("test_").replace("_", " ") + row.sign
                parts.append(f"| {row.fault} | {row.promise} | [{shown}](../{file}) |")
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
