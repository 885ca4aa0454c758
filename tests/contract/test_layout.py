"""The shape of the code: layers, names of modules, docstrings of packages, complexity of functions."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from radon.complexity import cc_visit
from radon.visitors import Function

ROOT = Path(__file__).resolve().parents[2]
SUPERVISOR = ROOT / "supervisor"

# sitecustomize.py is put on a rank's PYTHONPATH by itself: the folder must not become a package.
NO_PACKAGE = {"supervisor/instrument/on_path", "supervisor/faults/on_path"}

# Cyclomatic complexity (radon). Everywhere: the limit is 40. Where decisions are made: 20.
LIMIT, LIMIT_OF_DECISIONS = 40, 20
DECISIONS = ("supervisor/diagnosis/", "supervisor/job/", "supervisor/policy/")
FILES_ON_DISK = {"keeper.lock", "keeper.log", "run.json"}


def modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


@cache
def layers() -> tuple[str, ...]:
    """The layers of pyproject.toml, left to right as docs/architecture.md writes them."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (contract,) = (each for each in tool["contracts"] if each.get("containers") == ["supervisor"])
    assert contract["name"].startswith("layers:")
    return tuple(contract["layers"])


def test_the_architecture_page_states_the_layers_that_are_enforced() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    stated = re.findall(r"`(cli > [^`]+)`", page)
    assert stated == [" > ".join(layers())]


def test_the_map_lists_the_packages_from_the_lowest_layer_up_with_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|([^|]*)\|$", page, re.MULTILINE)
    ranks = {name.strip(): -rank for rank, layer in enumerate(layers()) for name in layer.split("|")}
    named = [package for package, _, _ in table if package in ranks]
    assert sorted(named) == sorted(ranks)
    assert [ranks[name] for name in named] == sorted(ranks.values())
    files = [
        (package, name)
        for package, *cells in table
        for cell in cells
        for name in re.findall(r"`([\w./]+)`", cell)
    ]
    assert len(files) > 40
    subs = [(p, n) for p, n in files if not any((SUPERVISOR / p / top / n).exists() for top in (".", "tui"))]
    assert subs == []


def test_every_package_has_its_layer() -> None:
    named = {name.strip() for layer in layers() for name in layer.split("|")}
    packages = {path.parent.name for path in SUPERVISOR.glob("*/__init__.py")}
    assert packages == named


@pytest.mark.parametrize("root", ["supervisor", "trainer"])
def test_every_package_says_what_it_is(root: str) -> None:
    folders = {path.parent for path in modules(ROOT / root)}
    silent = []
    for folder in sorted(folders):
        name = folder.relative_to(ROOT).as_posix()
        if name in NO_PACKAGE:
            continue
        init = folder / "__init__.py"
        if not init.exists() or not ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))):
            silent.append(name)
    assert silent == []


def test_a_module_name_occurs_once_in_a_package() -> None:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in (*modules(SUPERVISOR), *modules(ROOT / "trainer")):
        tree, *folders, _ = path.relative_to(ROOT).parts
        package = folders[0] if tree == "supervisor" and folders else tree
        if not path.name.startswith("__"):
            found[f"{package}/{path.name}"].append(path.relative_to(ROOT).as_posix())
    assert [paths for paths in found.values() if len(paths) > 1] == [], "name what each one is about"


# Modules side by side in one package. A command is found by its name: `stoker stop` is cli/stop.py.
MOST_MODULES = 22
ONE_PER_COMMAND = {"supervisor/cli"}


def test_a_package_of_many_modules_has_sub_packages() -> None:
    found: defaultdict[str, int] = defaultdict(int)
    for path in (*modules(SUPERVISOR), *modules(ROOT / "trainer")):
        found[path.parent.relative_to(ROOT).as_posix()] += not path.name.startswith("__")
    assert {name for name, number in found.items() if number > MOST_MODULES} == ONE_PER_COMMAND


MOST_LINES = 60
"""Of a function on one of the walks, without its docstring."""


def functions_of(path: Path) -> dict[str, ast.FunctionDef]:
    """A module's functions and its classes' methods, by name."""
    found: dict[str, ast.FunctionDef] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        inner = (
            [("", node)] if not isinstance(node, ast.ClassDef) else [(f"{node.name}.", n) for n in node.body]
        )
        found |= {f"{owner}{each.name}": each for owner, each in inner if isinstance(each, ast.FunctionDef)}
    return found


def test_the_walks_name_functions_that_exist_and_can_be_read_at_once() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    steps = re.findall(r"^\d+\. `(\S+\.py)` (.+?):", page, re.MULTILINE)
    assert len(steps) > 40
    for module, names in steps:
        functions = functions_of(SUPERVISOR / module)
        for name in re.findall(r"`([\w.]+)`", names):
            assert name in functions, f"{module}: {name}"
            body = functions[name].body[1 if ast.get_docstring(functions[name]) else 0 :]
            assert (body[-1].end_lineno or 0) - body[0].lineno < MOST_LINES, f"{module}: {name}"


def module_of(dotted: str) -> tuple[Path, list[str]] | None:
    """The file that a dotted name such as `run.events.RanksAt` leads to, and the names within it."""
    parts, folder = dotted.removeprefix("supervisor.").split("."), SUPERVISOR
    for place, part in enumerate(parts):
        if (folder / f"{part}.py").is_file():
            return folder / f"{part}.py", parts[place + 1 :]
        if not (folder / part).is_dir():
            return folder / "__init__.py", parts[place:]
        folder /= part
    return folder / "__init__.py", []


def test_no_docstring_names_a_module_that_is_not_there() -> None:
    tops = "|".join(sorted(path.parent.name for path in SUPERVISOR.glob("*/__init__.py")))
    dead = []
    for path in modules(SUPERVISOR):
        for dotted in re.findall(
            rf"``?((?:supervisor\.)?(?:{tops})(?:\.[A-Za-z_]+)+)`", path.read_text(encoding="utf-8")
        ):
            if dotted in FILES_ON_DISK:
                continue
            found = module_of(dotted)
            if found is None or any(
                not re.search(rf"\b{name}\b", found[0].read_text(encoding="utf-8")) for name in found[1]
            ):
                dead.append(f"{path.relative_to(ROOT)}: {dotted}")
    assert dead == []


def test_no_function_is_too_complex() -> None:
    found = {}
    for path in (*modules(SUPERVISOR), *modules(ROOT / "trainer")):
        name = path.relative_to(ROOT).as_posix()
        limit = LIMIT_OF_DECISIONS if name.startswith(DECISIONS) else LIMIT
        for block in cc_visit(path.read_text(encoding="utf-8")):
            if isinstance(block, Function) and block.complexity > limit:
                found[f"{name}:{block.fullname}"] = int(block.complexity)
    assert found == {}, "make it a table, or two functions"
