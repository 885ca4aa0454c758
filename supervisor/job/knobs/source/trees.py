"""A parsed file, and what is asked of its nodes all over: the name of a thing, what is called, the tests around it. Nothing is run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from supervisor.job.knobs.source.declarations import Literal, literal

# The longest file of 300 public training repositories has 385,000. What is written most densely makes 700 bytes of tree a character.
MAX_SOURCE_CHARS: Final = 500_000
MAX_NESTING: Final = 200  # code that people write is nested some 60 deep


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One parsed file; `tree` is never run.

    `nodes`: all of the tree, level by level as `ast.walk` gives them: a dozen questions are asked of every node, and a walk costs ten times what
    going through a tuple does. `depth`: imports between it and the script.
    """

    path: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    depth: int = 0

    @property
    def calls(self) -> Iterator[ast.Call]:
        """Every call in the file."""
        return (node for node in self.nodes if isinstance(node, ast.Call))


def parse(text: str, path: str = "", depth: int = 0) -> SourceFile | None:
    """The text as a tree; None where it is not Python, too large, or nested deeper than recursion can walk."""
    if not text or len(text) > MAX_SOURCE_CHARS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    nodes: list[ast.AST] = []
    level: list[ast.AST] = [tree]
    for _ in range(MAX_NESTING):
        nodes += level
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return SourceFile(path, tree, tuple(nodes), depth)
    return None


def imported_modules(file: SourceFile) -> set[str]:
    """Top names of every package that a file imports."""
    found = set()
    for node in file.nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def variable(node: ast.expr) -> tuple[str, Literal] | None:
    """The environment variable that an expression reads, and its literal default."""
    match node:
        case ast.Subscript(value=holder, slice=ast.Constant(value=str() as name)) if _is_environ(holder):
            return name, None
        case ast.Call(
            func=ast.Attribute(value=holder, attr="get"), args=[ast.Constant(value=str() as name), *rest]
        ) if _is_environ(holder):
            return name, literal(rest[0]) if rest else None
        case ast.Call(args=[ast.Constant(value=str() as name), *rest]) if called(node) == "getenv":
            return name, literal(rest[0]) if rest else None
        case _:
            return None


def _is_environ(node: ast.expr) -> bool:
    match node:
        case ast.Name(id="environ") | ast.Attribute(attr="environ"):
            return True
        case _:
            return False


Guards = tuple[tuple[ast.expr, bool], ...]


def guarded(
    node: ast.AST, guards: Guards = (), functions: tuple[str, ...] = ()
) -> Iterator[tuple[ast.AST, Guards, tuple[str, ...]]]:
    """Every node with the tests of the ifs around it, and the functions that it stands in, outermost first."""
    # A list, not recursion: a generator within a generator at each level made 400 kB of nested calls take 9 s.
    pending = [(child, guards, functions) for child in ast.iter_child_nodes(node)][::-1]
    while pending:
        child, guards, functions = pending.pop()
        yield child, guards, functions
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                below = [(one, guards, (*functions, name)) for one in ast.iter_child_nodes(child)]
            case ast.If(test=test, body=body, orelse=orelse):
                below = [(test, guards, functions)]
                below += [(one, (*guards, (test, True)), functions) for one in body]
                below += [(one, (*guards, (test, False)), functions) for one in orelse]
            case _:
                below = [(one, guards, functions) for one in ast.iter_child_nodes(child)]
        pending += reversed(below)


def called(call: ast.Call) -> str:
    """The last name of what is called: ``train`` of ``trainer.train(...)``."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def leaf(node: ast.expr | None) -> str | None:
    """``args.batch_size``, ``cfg["batch_size"]`` and ``batch_size`` all name ``batch_size``."""
    if isinstance(node, ast.Call | ast.Subscript) and (read := variable(node)):
        return f"env:{read[0]}"
    match node:
        case ast.Call(func=ast.Name(id="int"), args=[value]):
            return leaf(value)
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str() as name), *_]):
            return name
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str() as name), *_]):
            return name
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str() as name)):
            return name
        case _:
            return None


def leaves(node: ast.expr) -> set[str]:
    """The names in an expression; of ``args.batch_size`` the last one alone."""
    found: set[str] = set()
    open_: list[ast.AST] = [node]
    while open_:
        here = open_.pop()
        name = leaf(here) if isinstance(here, ast.expr) else None
        if name is not None:
            found.add(name)
            if isinstance(here, ast.Name | ast.Attribute | ast.Subscript):
                continue
        if isinstance(here, ast.Call):  # what is called is no quantity, but `dist.get_world_size()` is one
            found.add(called(here))
        open_ += (
            ast.iter_child_nodes(here) if not isinstance(here, ast.Call) else [*here.args, *here.keywords]
        )
    return found - {""}
