"""The sentences that source files hold, read from their syntax trees: what a catalogue must know."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

# Stands where a sentence has a value that only a run knows.
GAP = "\0"
# Patterns, what a program logs for its author, and programs for another interpreter are no sentences for a person.
SILENT_CALLS = frozenset(
    [
        "Lazy", "search", "match", "fullmatch", "compile", "sub", "_number", "_size", "dedent", "size_words",
        "startswith", "LookupError", "warning", "info", "getattr", "ValueError", "RuntimeError", "query_one", "join",
        "partition",
    ]
)  # fmt: skip
PROSE = re.compile(r"[A-Za-z]{2,}[,:;]? [a-z(]|[a-z]{3,} \0|\0 [a-z]{3,}")


def sentences(path: Path) -> Iterator[str]:
    """All that reads like a sentence, with gaps; alternatives are given one by one."""
    for text in _texts(ast.parse(path.read_text(encoding="utf-8"))):
        if PROSE.search(text):
            yield text


def arguments_of(path: Path, names: frozenset[str]) -> Iterator[str]:
    """What is handed to the callables of these names, single words too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and _name(node.func) in names:
            for argument in node.args:
                yield from (text for text in _forms(argument) if re.search(r"[A-Za-z]{2}", text))


def strings(path: Path) -> Iterator[str]:
    """Every string there is."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _texts(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr() | ast.BinOp(op=ast.Add()):
            yield from _forms(node)
            return
        case (
            ast.Compare()
            | ast.Expr(value=ast.Constant())
            | ast.Raise(exc=ast.Call(func=ast.Name(id="LookupError")))
        ):
            return
        case ast.Assert(test=test):
            yield from _texts(test)
            return
        case ast.Call(func=func) if _name(func) in SILENT_CALLS:
            return
        case ast.Call(func=ast.Name(id="_Row"), args=[_, _, advice, *_]):  # the second is a pattern
            yield from _texts(advice)
            return
        case ast.AnnAssign(target=ast.Name(id=name)) if name.endswith("_ERROR"):
            return
    for child in ast.iter_child_nodes(node):
        yield from _texts(child)


def _forms(node: ast.AST) -> list[str]:
    """What a string expression may become."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=values):
            return ["".join(parts) for parts in itertools.product(*map(_forms, values))]
        case ast.FormattedValue(value=value):
            return _forms(value)
        case ast.IfExp(body=body, orelse=orelse):
            return [*_forms(body), *_forms(orelse)]
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return ["".join(parts) for parts in itertools.product(_forms(left), _forms(right))]
        case _:
            return [GAP]


def _name(func: ast.AST) -> str:
    match func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""
