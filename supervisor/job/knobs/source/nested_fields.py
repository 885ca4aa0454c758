"""Fields of dataclasses under the names that a command line knows them by: those of the fields that their class stands in come first."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from supervisor.job.knobs.source.declarations import ScriptFlag
from supervisor.job.knobs.source.trees import SourceFile, leaf, leaves

# Parsers that name a field by the fields above it; one class stands in so many places at most.
_NESTING_PARSERS: Final = frozenset({"tyro", "draccus", "pyrallis", "jsonargparse", "pydantic_config"})
_PLACES: Final = 4
_DEPTH: Final = 6


def placed_fields(
    flags: Sequence[ScriptFlag], files: Sequence[SourceFile], modules: frozenset[str], by_key: bool
) -> Iterator[ScriptFlag]:
    """The flags, and each field of a dataclass under the fields that its class stands in: tyro's ``--train.batch_size``, OmegaConf's ``train.batch_size``."""
    if not (by_key or modules & _NESTING_PARSERS):
        yield from flags
        return
    holders: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    derived: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        for node in file.nodes:
            if isinstance(node, ast.ClassDef):
                for base in node.bases:
                    derived[leaf(base) or ""].append(node.name)
                for item in node.body:
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                        for name in leaves(item.annotation):
                            holders[name].append((item.target.id, node.name))
    for flag in flags:
        if not flag.owner:
            yield flag
        for above in _above(flag.owner, holders, derived, 0) if flag.owner else ():
            yield replace(flag, names=(f"{'' if by_key else '--'}{above}{flag.dest}",))


def _above(
    owner: str, holders: Mapping[str, list[tuple[str, str]]], derived: Mapping[str, list[str]], depth: int
) -> list[str]:
    """The keys above the fields of a class, once for each place that it or a class derived from it stands in."""
    classes = [owner, *derived.get(owner, ())]
    places = [(field, holder) for c in classes for field, holder in holders.get(c, ()) if holder != c]
    if not places or depth > _DEPTH:
        return [""]
    found = [
        f"{above}{field}."
        for field, holder in places
        for above in _above(holder, holders, derived, depth + 1)
    ]
    return found[:_PLACES]
