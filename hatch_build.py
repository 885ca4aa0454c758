"""Build hook: the wheel holds one package, `stoker`, so that it cannot clash with PyPI's `supervisor` or `trainer`.

`supervisor/` becomes `stoker/supervisor`, `trainer/` becomes `stoker/trainer`, and the presets in `configs/` become package data.
The hook finds absolute imports of the two in the syntax tree and rewrites them; the rest of each file stays the same. It does not
rewrite module names in strings: the code takes those from `__name__` and `__package__`
(tests/contract/test_installed_names.py). An editable install keeps the short names of the checkout.
"""

from __future__ import annotations

import ast
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TOP = "stoker"
PACKAGES = ("supervisor", "trainer")
INIT = '"""stoker, installed: `stoker.supervisor` is the program, `stoker.trainer` the bundled trainer."""\n'
# What the command of an editable install calls: `[project.scripts]` names a module that only the wheel has.
EDITABLE_ENTRY = '"""The command of an editable install."""\n\nfrom supervisor.__main__ import main\n\n__all__ = ["main"]\n'


class OnePackage(BuildHookInterface):
    """Gives hatchling the finished tree instead of the folders of the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the tree. `version` is ``standard`` or ``editable``."""
        self.made = Path(tempfile.mkdtemp(prefix="stoker-wheel-"))
        root = Path(self.root)
        if version == "editable":
            entry = self.made / PACKAGES[0] / "__main__.py"
            entry.parent.mkdir()
            entry.write_text(EDITABLE_ENTRY, encoding="utf-8")
            build_data["force_include_editable"] = {str(self.made): TOP}
            return
        (self.made / "__init__.py").write_text(INIT, encoding="utf-8")
        for name in PACKAGES:
            _copy(root / name, self.made / name)
        _copy(root / "configs", self.made / "supervisor" / "configs")
        for path in self.made.rglob("*.py"):
            path.write_bytes(moved(path.read_bytes(), str(path.relative_to(self.made))))
        build_data["force_include"] = {str(self.made): TOP}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the tree."""
        shutil.rmtree(self.made)


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.py[co]", ".*"))


def moved(source: bytes, path: str) -> bytes:
    """Move the absolute imports of `PACKAGES` in `source` below `TOP`.

    Raises:
        ValueError: ``import supervisor.x`` without ``as``, if the file uses the name that it binds: the name would change.
    """
    starts = [0]  # of each line, in bytes, because the tree counts columns in bytes
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    nodes = list(ast.walk(ast.parse(source)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    places = []
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not node.level and _root(node.module) in PACKAGES:
            after_from = starts[node.lineno - 1] + node.col_offset + len("from")
            places.append(source.index(str(node.module).encode(), after_from))
        elif isinstance(node, ast.Import):
            ours = [alias for alias in node.names if _root(alias.name) in PACKAGES]
            if any(alias.asname is None and _root(alias.name) in names for alias in ours):
                raise ValueError(f"{path}:{node.lineno}: write `from … import …`, or name it with `as`")
            places += [starts[alias.lineno - 1] + alias.col_offset for alias in ours]
    for place in sorted(places, reverse=True):
        source = source[:place] + f"{TOP}.".encode() + source[place:]
    return source


def _root(module: str | None) -> str:
    return (module or "").partition(".")[0]
