"""Each library has its one place, and records of the pure packages do not change: looked for in every file, so that a new module stands behind the walls by itself."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PURE = ("text", "job", "diagnosis", "policy")
# What opens files, starts things, asks the clock or throws dice.
IMPURE = frozenset(
    ("asyncio", "io", "logging", "random", "select", "shutil", "signal", "socket", "subprocess", "tempfile", "threading",
        "concurrent", "time")
)  # fmt: skip


@cache
def imported(package: str) -> frozenset[tuple[str, str]]:
    """(file, top-level module) of every import of a package, also within functions."""
    found: set[tuple[str, str]] = set()
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            found.update((path.relative_to(ROOT).as_posix(), name.partition(".")[0]) for name in names)
    return frozenset(found)


@pytest.mark.parametrize(
    ("library", "place"),
    [
        ("textual", "supervisor/views/tui/"),
        ("rich", "supervisor/views/tui/"),
        ("plotext", "supervisor/views/headless/still_chart.py"),
        ("pynvml", "supervisor/sources/gpu.py"),
        ("watchdog", "supervisor/sources/"),
        ("re2", "supervisor/"),
        ("hyperscan", "supervisor/diagnosis/"),
        ("torch", None),
        ("trainer", None),
    ],
)
def test_a_library_is_imported_in_its_place_alone(library: str, place: str | None) -> None:
    users = {path for path, name in imported("supervisor") if name == library}
    assert bool(users) == (place is not None)
    assert [path for path in users if place is None or not path.startswith(place)] == []


def test_the_trainer_needs_little() -> None:
    known = {
        "torch",
        "numpy",
        "yaml",
        "safetensors",
        "trainer",
        "pyarrow",  # to read a parquet file
        "tokenizers",  # to train and read a tokenizer.json
    }
    others = {name for _, name in imported("trainer")} - known - sys.stdlib_module_names
    assert others == set(), "trackers are imported by name, where a user asked for one"


@pytest.mark.parametrize("room", PURE)
def test_a_pure_room_opens_nothing_and_knows_no_time(room: str) -> None:
    found = {name for path, name in imported("supervisor") if path.startswith(f"supervisor/{room}/")}
    assert found & IMPURE == set()
    for path in sorted((ROOT / "supervisor" / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in {"open", "print", "input"}, f"{path}:{node.lineno}"
                assert not called.endswith((".read_text", ".read_bytes", ".write_text", ".open")), path
            elif isinstance(node, ast.Attribute):
                assert ast.unparse(node) != "os.environ", f"{path}:{node.lineno}"


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("send", {"supervisor/run/control.py", "supervisor/run/ownership.py"}),
        (
            "start_detached",
            {
                "supervisor/keeper/process/detach.py",
                "supervisor/keeper/process/takeover.py",
                "supervisor/cli/start_run.py",
            },
        ),
    ],
)
def test_what_acts_on_a_run_has_its_gates(name: str, places: set[str]) -> None:
    """A request is put, and a keeper is started, only where it was checked whose the folder is."""
    found = set()
    for path in sorted((ROOT / "supervisor").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case (
                    ast.FunctionDef(name=called)
                    | ast.Call(
                        func=ast.Name(id=called) | ast.Attribute(value=ast.Name(id="control"), attr=called)
                    )
                ) if called == name:
                    found.add(path.relative_to(ROOT).as_posix())
    assert found == places


SUPERVISOR = Path(__file__).parents[2] / "supervisor"
FROZEN = ("job", "policy", "diagnosis", "run", "preflight")
# Working memory of one call or one object, which its module alone sees.
WORKING = {
    "job/config/setting_values.py": {"Resolver"},
    "job/knobs/written_facts.py": {"Loader", "Rank", "_Count"},
    "policy/health/early_signs.py": {"_Gpu", "_Spike"},
    "policy/health/memory_forecast.py": {"_Rank"},
    "policy/health/slow_steps.py": {"RankTimes"},
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
        for package in FROZEN
        for path in (SUPERVISOR / package).rglob("*.py")
        if (names := mutable(path))
    }
    assert found == WORKING
