"""What a training script's source says about its batch: parsed, never run.

Besides the settings that it declares (`declarations`): reads of environment variables by a literal name, where a batch
size goes when it reaches a DataLoader, which numbers are divided by which others, what is passed on to calls
under a telling name, and the conditions under which the script refuses its own settings.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from supervisor.job.knobs.source.declarations import Literal, ScriptFlag, constant, declared_flags, literal
from supervisor.job.knobs.source.trees import (
    MAX_NESTING,
    MAX_SOURCE_CHARS,
    Guards,
    SourceFile,
    called,
    guarded,
    imported_modules,
    leaf,
    leaves,
    parse,
    variable,
)

__all__ = [
    "MAX_SOURCE_CHARS",
    "Demand",
    "Guards",
    "Passed",
    "Ratio",
    "ScriptFlag",
    "ScriptSource",
    "SourceFile",
    "called",
    "guarded",
    "leaf",
    "leaves",
    "parse",
    "scan_files",
    "scan_source",
]

# Parsers that name a field by the fields above it; one class stands in so many places at most.
_NESTING_PARSERS: Final = frozenset({"tyro", "draccus", "pyrallis", "jsonargparse", "pydantic_config"})
_PLACES: Final = 4
_DEPTH: Final = 6
_TELLING: Final = ("TrainingArguments", "HfArgumentParser", "SFTConfig", "DPOConfig", "TrlParser")
# Words in names of what a batch is passed on as: such keywords of calls are kept.
_KEPT: Final = (
    "batch",
    "accum",
    "update_freq",
    "resume",
    "ckpt_path",
    "devices",
    "num_nodes",
    "overwrite_output_dir",
)
_COUNTS: Final = re.compile(r"idx|index|size|num|count|step|batches$")
_RANGES: Final = frozenset({"range", "trange"})
_STEPS: Final = frozenset({"step", "zero_grad"})
_CUTTING: Final = frozenset({"chunk", "array_split", "tensor_split"})
_ALIAS_DEPTH: Final = 6


@dataclass(frozen=True, slots=True)
class Ratio:
    """One division or, where not `whole`, one remainder: the name that is divided, and every name that it is divided by."""

    left: str
    right: frozenset[str]
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Passed:
    """A keyword of a call: ``TrainingArguments(per_device_train_batch_size=8)``."""

    call: str
    keyword: str
    leaf: str | None
    value: Literal
    where: str


@dataclass(frozen=True, slots=True)
class Demand:
    """A condition that must hold (``assert``), or must not (``if …: raise``); `guards`: the tests of the ifs around it."""

    test: ast.expr
    must_hold: bool
    where: str
    guards: tuple[tuple[ast.expr, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class ScriptSource:
    """What a script's files say, and the attribute names that it hands undivided to a DataLoader as batch size.

    `variables`: environment variables that it reads, with their literal default if they have one. In the sets
    a variable is named ``env:NAME``. `words`: names and attributes in its code that are about resuming, or transformers.
    `handed`: (name, the name that is passed on as it, or that it is a share of). `computed`: what a name is set to.
    `renamed`: (name, the name that it is set to). `fields`: constants of class bodies with an annotation. `used`: every name and attribute that is read. `aliases`: names that a local variable is computed from. `cuts`: names that say into how many pieces a tensor or a list is cut, with where. `strides`: names of the step of a loop over a range, such as the samples of a batch. `fallbacks`: (name, the name that stands in for it where it is not set).
    `paces`: names that say after how many micro-batches the optimizer steps; `of_loss`: names that a loss is divided by.
    """

    flags: tuple[ScriptFlag, ...] = ()
    undivided: frozenset[str] = frozenset()
    divided: frozenset[str] = frozenset()
    variables: tuple[tuple[str, Literal], ...] = ()
    words: frozenset[str] = frozenset()
    ratios: tuple[Ratio, ...] = ()
    aliases: Mapping[str, frozenset[str]] = field(default_factory=dict)
    fallbacks: tuple[tuple[str, str], ...] = ()
    passed: tuple[Passed, ...] = ()
    demands: tuple[Demand, ...] = ()
    literals: Mapping[str, tuple[tuple[Literal, str], ...]] = field(default_factory=dict)
    spelled: Mapping[str, str] = field(default_factory=dict)
    modules: frozenset[str] = frozenset()
    files: tuple[SourceFile, ...] = ()
    used: frozenset[str] = frozenset()
    renamed: frozenset[tuple[str, str]] = frozenset()
    fields: Mapping[str, Literal] = field(default_factory=dict)
    handed: frozenset[tuple[str, str]] = frozenset()
    computed: Mapping[str, tuple[ast.expr, ...]] = field(default_factory=dict)
    cuts: Mapping[str, str] = field(default_factory=dict)
    strides: frozenset[str] = frozenset()
    paces: frozenset[str] = frozenset()
    of_loss: frozenset[str] = frozenset()

    def accumulates(self, name: str) -> bool:
        """Whether the loss is divided by a number, whatever it is called, and the optimizer steps once in so many micro-batches or pieces."""
        names = self.same_as(name)
        return bool(names & self.of_loss) and (bool(names & self.paces) or self.cuts_by(name) is not None)

    def bases(self) -> dict[str, set[str]]:
        """The classes of all files with the names of what they are derived from."""
        return {
            node.name: {leaf(base) or "" for base in node.bases}
            for file in self.files
            for node in file.nodes
            if isinstance(node, ast.ClassDef)
        }

    def calls(self, depth: int = MAX_NESTING) -> set[str]:
        """The names of all that is called in files up to so many imports from the script, and of the classes that those are derived from."""
        found: set[str] = set()
        new = {called(n) for file in self.files if file.depth <= depth for n in file.calls}
        bases = self.bases()
        while new:
            found |= new
            new = {base for name in new for base in bases.get(name, ())} - found
        return found

    def flag(self, name: str) -> ScriptFlag | None:
        """The declared flag of this spelling; dashes and underscores within a name are one."""
        exact = next((f for f in self.flags if name in f.names), None)
        if exact is not None:
            return exact
        plain = name.replace("_", "-")
        return next((f for f in self.flags if any(n.replace("_", "-") == plain for n in f.names)), None)

    def passes_undivided(self, dest: str) -> bool:
        """Whether `dest` reaches a DataLoader as it is, and is divided nowhere."""
        return dest in self.undivided and dest not in self.divided

    def uses(self, dest: str) -> bool:
        """Whether a setting is read anywhere: by name, or with all others at once (``**vars(args)``)."""
        return dest in self.used or "*" in self.used

    def unused(self, name: str) -> str | None:
        """Where a flag is declared that a script with a training loop reads nowhere; None for all else."""
        flag = self.flag(name) if name.startswith("-") else None
        if (
            flag is None or flag.owner or "backward" not in self.used
        ):  # else the loop is elsewhere, and so may be the use
            return None
        return None if self.uses(flag.dest) else flag.where

    def behind(self, names: Iterable[str]) -> frozenset[str]:
        """The names, and all that they are computed from."""
        found: set[str] = set()
        open_ = {n.lower() for n in names}
        for _ in range(_ALIAS_DEPTH):
            found |= open_
            open_ = {inner for name in open_ for inner in self.aliases.get(name, ())} - found
            if not open_:
                break
        return frozenset(found)

    def same_as(self, name: str) -> frozenset[str]:
        """The name, and those that are set to it and nothing else (``total = args.total``)."""
        return self._followed(name, self.renamed)

    def _followed(self, name: str, steps: frozenset[tuple[str, str]]) -> frozenset[str]:
        found = {name.lower()}
        for _ in range(3):
            found |= {other for other, origin in steps if origin in found}
        return frozenset(found)

    def cuts_by(self, part: str) -> str | None:
        """Where something is cut into `part` pieces, maybe by another name; None where nothing is."""
        names = self._followed(part, self.renamed | self.handed)
        return next((where for name, where in self.cuts.items() if name in names), None)

    def cuts_evenly(self, total: str, part: str) -> bool:
        """Whether each batch is cut into `part` pieces, of which the source says that `total` must be a multiple."""
        lefts = self.same_as(total)
        multiple = any(not r.whole and r.left in lefts and part.lower() in r.right for r in self.ratios)
        return multiple and self.cuts_by(part) is not None

    def divides(self, total: str, part: str, *, outright: bool = False) -> bool:
        """Whether `total` is divided by a product that `part` is a factor of, or tested to be a multiple of it.

        Args:
            total: what is divided, or shared out first and then divided.
            part: what divides it, maybe by another name.
            outright: only a division by `part` under its own name counts.
        """
        lefts, part = self.same_as(total), part.lower()
        parts = frozenset({part})
        if not outright:
            lefts |= self._followed(total, self.renamed | self.handed)
            parts |= self._followed(part, self.renamed | self.handed)
        return any(
            r.left in lefts
            and any(p != r.left for p in parts & (r.right if outright else self.behind(r.right)))
            and (r.whole or not outright)
            for r in self.ratios
        )


def scan_source(text: str | None) -> ScriptSource:
    """Reads one script's text; anything that is not Python is simply unknown."""
    return scan_files([("", text)] if text else [])


def scan_files(texts: Sequence[tuple[str, str] | tuple[str, str, int]]) -> ScriptSource:
    """Reads a script and the local files that it imports, the script first: (path, text, imports in between)."""
    files: list[SourceFile] = []
    for path, text, *depth in texts:
        file = parse(text, path, depth[0] if depth else 0)
        if file is not None:
            files.append(file)
    modules = frozenset(module for file in files for module in imported_modules(file))
    facts = _Facts()
    flags: list[ScriptFlag] = []
    by_key = "omegaconf" in modules and any(called(n) == "from_cli" for file in files for n in file.calls)
    for file in files:
        flags += declared_flags(file.tree, file.nodes, modules, file.path, by_key=by_key)
        facts.read(file)
    if files and "hydra" in modules and any(called(n) == "main" for n in files[0].calls):
        flags = [
            f for f in flags if not f.owner
        ]  # fields of its structured configs: overridden by key, no flags
    return facts.done(tuple(_placed_fields(flags, files, modules, by_key)), modules, tuple(files))


class _Facts:
    """Collects over files; lives for one call."""

    def __init__(self) -> None:
        self.variables: dict[str, Literal] = {}
        self.words: set[str] = set()
        self.aliases: defaultdict[str, set[str]] = defaultdict(set)
        self.direct: dict[str, str] = {}
        self.literals: defaultdict[str, list[tuple[Literal, str]]] = defaultdict(list)
        self.spelled: dict[str, str] = {}
        self.undivided: set[str] = set()
        self.divided: set[str] = set()
        self.ratios: list[Ratio] = []
        self.fallbacks: list[tuple[str, str]] = []
        self.passed: list[Passed] = []
        self.demands: list[Demand] = []
        self.used: set[str] = set()
        self.renamed: set[tuple[str, str]] = set()
        self.handed: set[tuple[str, str]] = set()
        self.computed: defaultdict[str, list[ast.expr]] = defaultdict(list)
        self.fields: dict[str, Literal] = {}
        self.cuts: dict[str, str] = {}
        self.strides: set[str] = set()
        self.paces: set[str] = set()
        self.of_loss: set[str] = set()
        self.path = ""
        self.wholesale = False

    def read(self, file: SourceFile) -> None:
        self.path = file.path
        for node in file.nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                self._assignment(node)
        for node in file.nodes:
            self._node(node)
        for node, guards, _ in guarded(file.tree):
            match node:
                case ast.Assert(test=test):
                    self.demands.append(Demand(test, must_hold=True, where=self._at(node), guards=guards))
                case ast.If(test=test, body=body) if any(isinstance(s, ast.Raise) for s in body):
                    self.demands.append(Demand(test, must_hold=False, where=self._at(node), guards=guards))
                case _:
                    pass

    def _node(self, node: ast.AST) -> None:
        match node:
            case ast.Name() | ast.Attribute():
                word = node.id if isinstance(node, ast.Name) else node.attr
                if isinstance(node.ctx, ast.Load):
                    self.used.add(word)
                if "resume" in word or word.endswith(_TELLING):
                    self.words.add(word)
            case ast.Subscript():
                self._variable(node)
                self.used.add(leaf(node) or "")
                if isinstance(node.slice, ast.Slice):  # every n-th sample: `batch[i::n]`
                    self._cut(node.slice.step, node)
            case ast.Call():
                self._variable(node)
                self._call(node)
            case ast.For():
                self._loop(node)
            case ast.If(test=test, body=body):
                self._pace(test, body)
            case ast.BinOp(left=left, op=ast.Div() | ast.FloorDiv() | ast.Mod() as op, right=right):
                self._ratio(left, right, whole=not isinstance(op, ast.Mod))
            case ast.AugAssign(target=target, op=ast.Div() | ast.FloorDiv(), value=value):
                self.used.add(leaf(target) or "")
                self._ratio(target, value)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._fallback(body, orelse, test)
            case ast.BoolOp(op=ast.Or(), values=[first, second]):
                self._fallback(first, second, first)
            case _:
                pass

    def _at(self, node: ast.AST) -> str:
        return f"{self.path or 'the script'}:{getattr(node, 'lineno', 0)}"

    def _variable(self, node: ast.expr) -> None:
        read = variable(node)
        if read:
            self.variables.setdefault(*read)

    def _assignment(self, node: ast.Assign | ast.AnnAssign) -> None:
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        if not isinstance(target, ast.Name | ast.Attribute) or node.value is None:
            return
        name = target.id if isinstance(target, ast.Name) else target.attr
        if "loss" in name.lower():
            self._divided_loss(node.value)
        value = constant(node.value)
        if value is None:
            self._computed(target, name, node.value)
            return
        self.literals[name.lower()].append((value, self._at(node)))
        self.spelled.setdefault(name.lower(), name)
        if isinstance(node, ast.AnnAssign):
            self.fields[name] = value

    def _computed(self, target: ast.Name | ast.Attribute, name: str, value: ast.expr) -> None:
        """What a name that is no constant is made from."""
        self.computed[name].append(value)
        source = leaf(value)
        if isinstance(target, ast.Name) and source and source != name and not isinstance(value, ast.Name):
            self.direct[name] = source
        match value:
            case ast.BinOp(left=left, op=ast.FloorDiv()) if whole := leaf(left):
                self.handed.add((name.lower(), whole.lower()))
            case _:
                pass
        if source and source.lower() != name.lower():
            self.renamed.add((name.lower(), source.lower()))
        if isinstance(value, ast.Call) and called(value) == "gcd":
            return  # what two numbers have in common: dividing by it divides by neither
        within = {inner.lower() for inner in leaves(value)} - {name.lower()}
        if 0 < len(within) <= 12:
            self.aliases[name.lower()] |= within

    def _ratio(self, left: ast.expr, right: ast.expr, *, whole: bool = True) -> None:
        names = leaves(left)
        if whole and any("loss" in name.lower() for name in names):
            self.of_loss.add((leaf(right) or "").lower())
        if whole:
            self.divided.update(self.direct.get(name, name) for name in names)
        rights = frozenset(name.lower() for name in leaves(right))
        # `total / world / micro` divides the total by both.
        while isinstance(left, ast.BinOp) and isinstance(left.op, ast.Div | ast.FloorDiv):
            rights |= {name.lower() for name in leaves(left.right)}
            left = left.left
        first = leaf(left)
        # A product on the left is divided as a whole: `n * batch / accum` says nothing of batch / accum alone.
        if first is not None and rights:
            self.ratios.append(Ratio(first.lower(), rights, whole))

    def _backward(self, call: ast.Call) -> None:
        for part in (*call.args, *([call.func.value] if isinstance(call.func, ast.Attribute) else [])):
            self._divided_loss(part)

    def _loop(self, node: ast.For) -> None:
        match node:
            case ast.For(iter=ast.Call(func=ast.Name(id="range"), args=[_, _, step])):
                self.strides.add((leaf(step) or "").lower())
            case ast.For(target=ast.Name(id=index), iter=ast.Call(args=[*_, pieces]) as counted) if (
                called(counted) in _RANGES
            ):
                self._pieces_by_helper(node, index, pieces)
                inside = {called(n) for s in node.body for n in ast.walk(s) if isinstance(n, ast.Call)}
                if "backward" in inside and not inside & _STEPS:
                    self.paces.add((leaf(pieces) or "").lower())
            case _:
                pass

    def _divided_loss(self, value: ast.expr) -> None:
        match value:
            case ast.BinOp(op=ast.Div(), right=right):
                self.of_loss.add((leaf(right) or "").lower())
            case _:
                pass

    def _pace(self, test: ast.expr, body: Sequence[ast.stmt]) -> None:
        """``if (i + 1) % n == 0: optimizer.step()``: once in n micro-batches."""
        every = [n.right for n in ast.walk(test) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod)]
        if every and any(_steps_optimizer(n) for s in body for n in ast.walk(s)):
            self.paces |= {(leaf(n) or "").lower() for n in every}

    def _pieces(self, call: ast.Call) -> None:
        """The number of pieces is a method's first argument and a function's second."""
        if call.args:
            self._cut(call.args[min(1, len(call.args) - 1)], call)
        self._cut(next((k.value for k in call.keywords if k.arg == "chunks"), None), call)

    def _pieces_by_helper(self, loop: ast.For, index: str, pieces: ast.expr) -> None:
        """``for i in range(n): piece = take(batch, i, n)``: the helper takes the i-th of n pieces."""
        name = (leaf(pieces) or "").lower()
        for node in ast.walk(loop) if name else ():
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            given = [*node.value.args, *(k.value for k in node.value.keywords)]
            plain = {(leaf(a) or "").lower() for a in given if isinstance(a, ast.Name | ast.Attribute)}
            batches = [p for p in plain - {name} if "batch" in p and not _COUNTS.search(p)]
            if index.lower() in plain and name in plain and batches:
                self.cuts.setdefault(name, self._at(node))

    def _cut(self, pieces: ast.expr | None, node: ast.AST) -> None:
        name = leaf(pieces)
        if name is not None:
            self.cuts.setdefault(name.lower(), self._at(node))

    def _fallback(self, first: ast.expr, second: ast.expr, test: ast.expr) -> None:
        one, other = leaf(first), leaf(second)
        if (
            one
            and other
            and one.lower() != other.lower()
            and one.lower() in {n.lower() for n in leaves(test)}
        ):
            self.fallbacks.append((one.lower(), other.lower()))

    def _call(self, call: ast.Call) -> None:
        name = called(call)
        self.used.add(leaf(call) or "")
        if name in {"vars", "from_argparse_args", "asdict"} or any(k.arg is None for k in call.keywords):
            self.wholesale = True
        if name in _CUTTING:
            self._pieces(call)
        if name == "backward":
            self._backward(call)
        if name.endswith("DataLoader"):
            value = next((k.value for k in call.keywords if k.arg == "batch_size"), None)
            value = value or (call.args[1] if len(call.args) > 1 else None)
            found = leaf(value)
            if found:
                self.undivided.add(self.direct.get(found, found))
        for keyword in call.keywords:
            if keyword.arg and any(word in keyword.arg for word in _KEPT):
                origin = leaf(keyword.value)
                if origin and origin.lower() != keyword.arg.lower() and not name.endswith("DataLoader"):
                    self.handed.add((keyword.arg.lower(), origin.lower()))
                self.passed.append(
                    Passed(
                        name,
                        keyword.arg,
                        leaf(keyword.value),
                        literal(keyword.value),
                        self._at(keyword.value),
                    )
                )

    def done(
        self, flags: tuple[ScriptFlag, ...], modules: frozenset[str], files: tuple[SourceFile, ...]
    ) -> ScriptSource:
        return ScriptSource(
            flags=flags,
            undivided=frozenset(self.undivided),
            divided=frozenset(self.divided),
            variables=tuple(self.variables.items()),
            words=frozenset(self.words),
            ratios=tuple(self.ratios),
            aliases={name: frozenset(inner) for name, inner in self.aliases.items()},
            fallbacks=tuple(self.fallbacks),
            passed=tuple(self.passed),
            demands=tuple(self.demands),
            literals={name: tuple(values) for name, values in self.literals.items()},
            spelled=self.spelled,
            modules=modules,
            files=files,
            renamed=frozenset(self.renamed),
            handed=frozenset(self.handed),
            computed={name: tuple(values) for name, values in self.computed.items()},
            fields=self.fields,
            cuts=self.cuts,
            strides=frozenset(self.strides),
            paces=frozenset(self.paces),
            of_loss=frozenset(self.of_loss),
            used=frozenset(self.used | ({"*"} if self.wholesale else set())),
        )


def _steps_optimizer(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr="zero_grad")):
            return True
        case ast.Call(func=ast.Attribute(attr="step", value=holder), args=arguments):
            name = (leaf(holder) or "").lower()
            return (
                "opt" in name or "scaler" in name or any("opt" in (leaf(a) or "").lower() for a in arguments)
            )
        case _:
            return False


def _placed_fields(
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
