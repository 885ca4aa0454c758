"""What the build hook does to a source, and what the source must not do so that it works under both names."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("supervisor", "trainer")
SOURCES = [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]
Move = Callable[[bytes, str], bytes]


@pytest.fixture(name="moved")
def _moved(monkeypatch: pytest.MonkeyPatch) -> Move:
    """The hook's own function; hatchling is there only while a wheel is built."""
    monkeypatch.setitem(
        sys.modules, "hatchling.builders.hooks.plugin.interface", SimpleNamespace(BuildHookInterface=object)
    )
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Move = module.moved
    return found


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("from supervisor import x\n", "from stoker.supervisor import x\n"),
        ("import supervisor.run.regular as j, os  # why\n", "import stoker.supervisor.run.regular as j, os  # why\n"),
        ("import os, trainer.loop\n", "import os, stoker.trainer.loop\n"),
        ("from \\\n  trainer.data \\\n  import (a,  # é\n b)\n", "from \\\n  stoker.trainer.data \\\n  import (a,  # é\n b)\n"),
        ("é = 'é'; from  supervisor.text import é\r\n", "é = 'é'; from  stoker.supervisor.text import é\r\n"),
        ("if 1:\n\tfrom supervisor.run import a; from trainer import b\n", "if 1:\n\tfrom stoker.supervisor.run import a; from stoker.trainer import b\n"),
        ("from .supervisor import x\n", "from .supervisor import x\n"),
        ("from supervisorctl import supervisor\nfrom trainers.trainer import y\n", None),
        ('"""from supervisor import x"""\ns = "import trainer"  # from trainer import z\n', None),
        ("supervisor = trainer = 1\nprint(supervisor.trainer)\n", None),
    ],
)  # fmt: skip
def test_imports_move_and_nothing_else_does(source: str, wanted: str | None, moved: Move) -> None:
    assert moved(source.encode(), "x.py").decode() == (wanted or source)


def test_an_import_whose_name_would_change_is_refused(moved: Move) -> None:
    with pytest.raises(ValueError, match=r"^a/x\.py:2: write `from"):
        moved(b"import os\nimport supervisor.run\nsupervisor.run.f()\n", "a/x.py")


def short(source: bytes) -> bytes:
    """`source` with all names as a checkout has them."""
    return re.sub(rb"\bstoker\.(?=supervisor\b|trainer\b)", b"", source)


def strings(tree: ast.Module) -> Iterator[ast.Constant]:
    """String constants of the program: without docstrings and other strings that stand by themselves."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node


def names_a_module(text: str) -> bool:
    """Whether it holds a module's name below one of ours, or what a person or a child would start one by."""
    dotted = re.findall(r"(?<![\w.-])(?:supervisor|trainer)(?:\.[a-z_]+)+", text)
    return any((ROOT / name.replace(".", "/")).is_dir() or (ROOT / f"{name.replace('.', '/')}.py").is_file() for name in dotted) or bool(
        re.search(r"(?:-m|\bimport|\bfrom) (?:supervisor|trainer)\b", text)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("supervisor.cli.", True),
        ("supervisor.keeper.__main__", True),
        ("python -m trainer sample", True),
        ("x; from supervisor.cli import y", True),
        ("--trainer.max_steps", False),
        ("trainer.gpt2.GPT2", False),
        ("the supervisor process", False),
        ("trainer: ", False),
    ],
)
def test_a_name_in_a_string_is_seen(text: str, wrong: bool) -> None:
    assert names_a_module(text) is wrong


def test_each_source_imports_below_stoker_and_names_no_module_in_a_string(moved: Move) -> None:
    named = []
    for path in SOURCES:
        before = path.read_bytes()
        after = moved(before, str(path))
        tree = ast.parse(after)
        imported = [
            name
            for node in ast.walk(tree)
            for name in (
                [str(node.module)]
                if isinstance(node, ast.ImportFrom) and not node.level
                else [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
        ]
        assert not [name for name in imported if name.split(".")[0] in PACKAGES], path
        longer = sum(name.split(".")[0] == "stoker" for name in imported)
        assert len(after) == len(before) + longer * len("stoker."), path
        assert short(after) == short(before), path
        named += [
            f"{path.relative_to(ROOT)}:{node.lineno}: {node.value!r}"
            for node in strings(tree)
            if names_a_module(str(node.value))
        ]
    assert named == []
