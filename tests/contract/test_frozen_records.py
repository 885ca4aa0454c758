"""Records that go from part to part do not change on the way: dataclasses of the pure packages are frozen."""

from __future__ import annotations

import ast
from pathlib import Path

SUPERVISOR = Path(__file__).parents[2] / "supervisor"
PURE = ("job", "policy", "diagnosis", "run", "preflight")
# Working memory of one call or one object, which its module alone sees.
WORKING = {
    "job/config/setting_values.py": {"Resolver"},
    "job/knobs/written_facts.py": {"Loader", "Rank", "_Count"},
    "policy/health/early_signs.py": {"_Gpu", "_Spike"},
    "diagnosis/hang/stuck_collectives.py": {"_Group"},
}


def mutable(path: Path) -> set[str]:
    """Dataclasses of a module that are not frozen."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            for decorator in node.decorator_list:
                text = ast.unparse(decorator)
                if text.startswith("dataclass") and "frozen=True" not in text:
                    found.add(node.name)
    return found


def test_records_of_the_pure_packages_are_frozen() -> None:
    found = {
        str(path.relative_to(SUPERVISOR)): names
        for package in PURE
        for path in (SUPERVISOR / package).rglob("*.py")
        if (names := mutable(path))
    }
    assert found == WORKING
