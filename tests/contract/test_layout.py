"""The shape of the code: layers, names of modules, docstrings of packages, complexity of functions.

Each list of exceptions may only shrink: an entry that is no longer needed fails its test, so that it is taken out.
"""

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

# Module names that occur more than once below one package of supervisor/, each with what the two mean.
SAME_NAME = {
    "views/commands.py": "logs: the view commands of a log; tui: the command palette",
    "views/page.py": "logs: one page of lines; pages: the base of all pages",
    "views/screen.py": "dashboard, logs: the screen of that name",
}

# sitecustomize.py is put on a rank's PYTHONPATH by itself: the folder must not become a package.
NO_PACKAGE = {"supervisor/inject"}

# Cyclomatic complexity (radon). Everywhere: the limit is 40. Where decisions are made: 20.
LIMIT, LIMIT_OF_DECISIONS = 40, 20
DECISIONS = ("supervisor/diagnosis/", "supervisor/job/", "supervisor/policy/")
# What is above its limit now, with the figure that it may not exceed.
TOO_COMPLEX: dict[str, int] = {}


def modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


@cache
def layers() -> tuple[str, ...]:
    """The layers of pyproject.toml, left to right as docs/architecture.md writes them; an optional one only if it is there."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (contract,) = (each for each in tool["contracts"] if each["type"] == "layers")
    assert contract["name"].startswith("layers:")
    kept = (layer for layer in contract["layers"] if not is_optional(layer) or folder_of(layer).is_dir())
    return tuple(layer.strip("()") for layer in kept)


def is_optional(layer: str) -> bool:
    return layer.startswith("(") and layer.endswith(")")


def folder_of(layer: str) -> Path:
    return SUPERVISOR / layer.strip("()")


def test_the_architecture_page_states_the_layers_that_are_enforced() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    stated = re.findall(r"`(cli > [^`]+ > text)`", page)
    assert stated == [" > ".join(layers())]


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
    for path in modules(SUPERVISOR):
        package = path.relative_to(SUPERVISOR).parts[0]
        if not path.name.startswith("__"):
            found[f"{package}/{path.name}"].append(path.relative_to(ROOT).as_posix())
    twice = {key: paths for key, paths in found.items() if len(paths) > 1}
    assert {key: paths for key, paths in twice.items() if key not in SAME_NAME} == {}, (
        "name what each one is about"
    )
    assert set(SAME_NAME) - set(twice) == set(), "once only now: take it out of SAME_NAME"


@cache
def complexities() -> dict[str, int]:
    """Functions and methods above the limit that holds for their package, by ``path:name``."""
    found = {}
    for path in (*modules(SUPERVISOR), *modules(ROOT / "trainer")):
        name = path.relative_to(ROOT).as_posix()
        limit = LIMIT_OF_DECISIONS if name.startswith(DECISIONS) else LIMIT
        for block in cc_visit(path.read_text(encoding="utf-8")):
            if isinstance(block, Function) and block.complexity > limit:
                found[f"{name}:{block.fullname}"] = int(block.complexity)
    return found


def test_no_function_is_too_complex() -> None:
    worse = {name: value for name, value in complexities().items() if value > TOO_COMPLEX.get(name, 0)}
    assert worse == {}, (
        f"more than {LIMIT}, or {LIMIT_OF_DECISIONS} in {DECISIONS}: make it a table, or two functions"
    )


def test_the_list_of_complex_functions_only_shrinks() -> None:
    assert set(TOO_COMPLEX) - set(complexities()) == set(), (
        "simple now (or renamed): take it out of TOO_COMPLEX"
    )
