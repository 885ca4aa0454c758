"""What the checkpoint that a setting names is used for, as the source shows: the training's state, weights alone, the options of the old run.

The setting's value is followed by name: through assignments, loops, returned values, and arguments of the source's own functions.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from functools import cached_property
from typing import Final, NamedTuple

from supervisor.job.knobs.resuming.newest_search import (
    OPTIMIZER,
    asks_existence,
    last_of,
    last_text,
    leaves_of,
    lists,
    where_it_exists,
)
from supervisor.job.knobs.source.conditions import Known, truth
from supervisor.job.knobs.source.declarations import literal
from supervisor.job.knobs.source.read_source import Guards, ScriptSource, called, guarded, leaf, leaves

# Where a name stands (file and outermost function; "" for an attribute or a key, "()" for what a function returns), and the name.
_Key = tuple[str, str]

_MODEL: Final = re.compile(
    r"model|net|ema|module|encoder|decoder|vae|lora|generator|discriminator|backbone|^(self|[gdm])$|policy|actor|critic",
    re.IGNORECASE,
)
_NEWEST_FILE: Final = re.compile(r"(last|latest|newest|current)[^/]*\.\w+$")
_OPTIMIZERS: Final = re.compile(r"(^|\.)\w*(Adam|SGD|Adagrad|Adafactor|RMSprop|Lion|Muon|LBFGS)\w*$")
_CONTINUES: Final = re.compile(r"^(continue|resume)(_|$)|_(continue|resume)$", re.IGNORECASE)
_NUMBERED_FILE: Final = re.compile(r"(\{[^{}]*\}|%\d*d)(\.[a-z]\w*)+$")
_STATE_CALL: Final = re.compile(r"resume|restore|state$|checkpoint|ckpt|training", re.IGNORECASE)
# Calls of frameworks that are handed a checkpoint by such a keyword restore all of it.
_STATE_KEYWORDS: Final = frozenset({"ckpt_path", "resume_from_checkpoint"})
_CHECKPOINTS: Final = re.compile(
    r"ckpt|checkpoint|snapshot|\.pth?$|\.tar$|model|state|epoch|step|resume", re.IGNORECASE
)
_NOT_OWN: Final = re.compile(
    r"pretrain|download|zoo|best|averag|eval|(^|_)test|infer|export|convert", re.IGNORECASE
)
# So many functions are looked at between the top of a file and a search for the newest checkpoint.
_WAYS: Final = 128
_PATHS: Final = frozenset({"join", "Path", "glob", "iglob", "listdir", "mkdir", "makedirs"})
_TRAININGS: Final = frozenset({"fit", "train"})
_WEIGHTS_ONLY: Final = frozenset({"load_module_only", "load_weights_only", "weights_only"})
_WEIGHTS_CALL: Final = re.compile(
    r"^copy_|copy_params|load_(network|weights|pretrained|model)|from_pretrained|checkpoint_(in_model|and_dispatch)",
    re.IGNORECASE,
)
_SHOWS: Final = frozenset({"print", "info", "log", "warning", "debug", "format"})
# Objects of a training that a checkpoint is loaded into, and names that mean too much to be followed.
_NOT_FOLLOWED: Final = re.compile(
    r"self|cls|_+|model\w?|net\w?|ema|\w*optim(izer)?\w*|\w*scheduler|trainer|accelerator|runner|engine|logger|log"
)
_SPECIFIC: Final = re.compile(r"resume|ckpt|checkpoint|snapshot|restore|load|continue", re.IGNORECASE)
_OPTIONS: Final = re.compile(
    r"args|cfg|config|opts?|flags|conf|hparams|hps|training_args|train_args", re.IGNORECASE
)
_ROUNDS: Final = 12


class Use(Enum):
    """What a checkpoint is loaded for, the strongest evidence of a resume first."""

    OPTIMIZER = auto()
    CALL = auto()  # what loads it says so by its name, or is a framework's training
    COUNTER = auto()  # an epoch or a step
    WEIGHTS = auto()


_KEYS: Final = (
    (re.compile(r"optim", re.IGNORECASE), Use.OPTIMIZER),
    (re.compile(r"sched|scaler", re.IGNORECASE), Use.CALL),
    (re.compile(r"epoch|step|iter", re.IGNORECASE), Use.COUNTER),
)


class Form(Enum):
    """What a setting names that is not the path of a checkpoint."""

    NAME = auto()  # an ending is added
    FOLDER = auto()  # the newest checkpoint in it goes by one name


class _Listing(NamedTuple):
    """The statements of a function that list files or name the newest one, and those that take something of these; the names that hold it."""

    made: list[tuple[ast.Assign | ast.Return, Guards]]
    names: set[str]


class LoadedState:
    """The data flow of one source; lives for one call. `known`: what settings are for this command line."""

    def __init__(self, source: ScriptSource, known: Known) -> None:
        self._known = known
        self._modules = source.modules
        self._computed = source.computed
        self._functions: defaultdict[str, list[tuple[str, list[str]]]] = defaultdict(list)
        self._nodes: list[tuple[ast.AST, str, Guards]] = []
        self._shown: set[int] = set()
        self._cache: dict[int, frozenset[_Key]] = {}
        for file in source.files:
            for node, guards, functions in guarded(file.tree):
                scope = f"{file.path}:{functions[0] if functions else ''}"
                self._nodes.append((node, scope, guards))
                if isinstance(node, ast.Call) and called(node) in _SHOWS:
                    self._shown |= {id(n) for n in ast.walk(node)}
            for node in file.nodes:
                if isinstance(node, ast.FunctionDef):
                    self._add_function(node, node.name, file.path)
                elif isinstance(node, ast.ClassDef):
                    for inner in node.body:
                        if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
                            self._add_function(inner, node.name, file.path)
        self._steps = [step for node, scope, _ in self._nodes for step in self._step(node, scope)]
        self._readers = [
            (node, guards, self._keys(part, scope), keyword)
            for node, scope, guards in self._nodes
            if id(node) not in self._shown
            for part, keyword in _read_from(node)
        ]

    def _add_function(self, node: ast.FunctionDef, name: str, path: str) -> None:
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in {"self", "cls"}]
        names += [a.arg for a in node.args.kwonlyargs]
        self._functions[name].append((f"{path}:{node.name}", names))

    def use_of(self, dest: str, *, switch: str = "") -> Use | None:
        """What the checkpoint in a setting is loaded for; None where no loading is seen. `switch`: a setting that is on."""
        known = {name: value for name, value in self._known.items() if name != dest} | {switch: True}
        return self._use_of_any(self._followed(dest), known)

    def _use_of_any(self, names: set[_Key], known: Known) -> Use | None:
        uses = {
            use
            for node, guards, keys, keyword in self._readers
            if keys & names and (use := self._use(node, keyword)) is not None
            if not any(truth(test, known, None) not in {wanted, None} for test, wanted in guards)
        }
        return next((use for use in Use if use in uses), None)

    def form_of(self, dest: str) -> Form | None:
        """What else than a path the source takes a setting for."""
        names = self._followed(dest)
        for node, scope, _ in self._nodes:
            match node:
                case ast.BinOp(left=value, op=ast.Add(), right=ast.Constant(value=str() as end)):
                    form = Form.NAME if re.match(r"\.\w", end) else None
                case ast.JoinedStr(
                    values=[ast.FormattedValue(value=value), ast.Constant(value=str() as end), *_]
                ):
                    form = Form.NAME if re.match(r"\.\w|/", end) else None  # the rest of a path is added
                case ast.Call(args=[value, *others]) if called(node) == "join":
                    newest = (o for o in others if isinstance(o, ast.Constant) and isinstance(o.value, str))
                    form = Form.FOLDER if any(_NEWEST_FILE.search(str(o.value)) for o in newest) else None
                    if any(leaf(o) == dest for o in others if isinstance(o, ast.Name | ast.Attribute)):
                        return Form.NAME
                case _:
                    continue
            if form and isinstance(value, ast.Name | ast.Attribute) and self._keys(value, scope) & names:
                return form
        return None

    def is_folder_of(self, dest: str) -> bool:
        """Whether something is looked up below a setting: it is a folder, or a part of a path."""
        return self._in_path(self._followed(dest))

    def _in_path(self, names: set[_Key]) -> bool:
        for node, scope, _ in self._nodes:
            match node:
                case ast.Call(args=[_, *_] as parts) if called(node) in _PATHS:
                    pass
                case ast.BinOp(left=left, op=ast.Div(), right=right):
                    parts = [left, right]
                case _:
                    continue
            if any(isinstance(p, ast.Name | ast.Attribute) and self._keys(p, scope) & names for p in parts):
                return True
        return False

    def folder_named_by(self, numbers: frozenset[str]) -> str | None:
        """Where a folder's name is made with one of these settings in it (``f"bs{args.batch_size}_run"``), if one is."""
        for node, scope, _ in self._nodes:
            if isinstance(node, ast.Assign) and any(_writes_out(n, numbers) for n in ast.walk(node.value)):
                start = {key for t in node.targets for key in _targets(t, scope)}
                if start and self._in_path(self._reached_from(start)):
                    return f"{scope.rpartition(':')[0] or 'the script'}:{node.lineno}"
        return None

    def unset_partner(self, dest: str, unset: set[str]) -> str:
        """A setting without a value that a path with this one in it is made of too (``f"{a.folder}/{a.step}.pt"``); empty: none is."""
        names = self._followed(dest)
        for node, scope, _ in self._nodes:
            match node:
                case ast.JoinedStr() | ast.BinOp(op=ast.Add() | ast.Mod()):
                    texts = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant))
                    is_path = any(isinstance(text, str) and re.search(r"/|\.\w", text) for text in texts)
                case ast.Call(args=[_, _, *_]):
                    is_path = called(node) in _PATHS
                case _:
                    is_path = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
            made = is_path and id(node) not in self._shown and self._keys(node, scope) & names
            if made and isinstance(node, ast.expr) and (lost := sorted(unset & leaves(node) - {dest})):
                return lost[0]
        return ""

    def numbered_paths(self, dest: str) -> Iterator[tuple[Guards, set[str]]]:
        """Where a setting's number names the file that the optimizer's state is loaded from: the tests around it, the names of the number."""
        names = self._followed(dest)
        known = {name: value for name, value in self._known.items() if name != dest}
        for node, scope, guards in self._nodes:
            if isinstance(node, ast.Assign) and any(
                (value := numbers_file(n)) is not None and self._keys(value, scope) & names
                for n in ast.walk(node.value)
            ):
                reached = self._reached_from({key for t in node.targets for key in _targets(t, scope)})
                if self._use_of_any(reached, known) is Use.OPTIMIZER:
                    yield guards, {name for _, name in names}

    def _listings(self) -> dict[str, _Listing]:
        """By function, what it says of listed files."""
        found: defaultdict[str, _Listing] = defaultdict(lambda: _Listing([], set()))
        for node, scope, guards in self._nodes:
            if isinstance(node, ast.Assign | ast.Return) and node.value is not None:
                made, names = found[scope]
                taken = lists(node.value) or leaves_of(ast.walk(node.value)) & names
                if taken or _NEWEST_FILE.search(last_text(node.value)) or where_it_exists(node.value):
                    made.append((node, guards))
                    if isinstance(node, ast.Assign):
                        names |= {t.id for t in node.targets if isinstance(t, ast.Name)}
        return found

    def newest_of_listings(self) -> Iterator[tuple[str, set[str], set[str], Guards]]:
        """Where the last of some listed files is picked that the optimizer's state is loaded from: ``sorted(glob(folder))[-1]``.

        Yields:
            the place, the names that it is made of, those that its function is given, and all tests on the way to it.
        """
        for scope, (made, held) in self._listings().items():
            path, _, function = scope.rpartition(":")
            nodes = [node for node, _ in made]
            names = leaves_of(inner for node in nodes for inner in ast.walk(node))
            if _NOT_OWN.search(function) or not _speaks_of_checkpoints(nodes, {*names, function}):
                continue
            for node, guards in made:
                if self._picks(node, scope, held):
                    for more, tests in self._ways_to(function):
                        yield f"{path or 'the script'}:{node.lineno}", names, more, (*guards, *tests)

    def _picks(self, node: ast.Assign | ast.Return, scope: str, held: set[str]) -> bool:
        """Whether one of the listed files, which the names `held` hold, or the one that exists, is taken and loaded with the optimizer's state."""
        wholes = [w for n in ast.walk(node) if (w := last_of(n)) is not None]
        picked = any(lists(w) or leaves_of(ast.walk(w)) & held for w in wholes)
        if not picked and not where_it_exists(node.value):
            return False
        reached = self._reached_from(set(_handed_on(node, scope)))
        return self._use_of_any(reached, self._known) is Use.OPTIMIZER

    @cached_property
    def _calls(self) -> dict[str, list[tuple[ast.Call, str, Guards]]]:
        """By the name of what is called, its calls with the function that each stands in and the tests around it."""
        found: defaultdict[str, list[tuple[ast.Call, str, Guards]]] = defaultdict(list)
        for node, scope, guards in self._nodes:
            if isinstance(node, ast.Call):
                found[called(node)].append((node, scope.rpartition(":")[2], guards))
        return found

    def _ways_to(self, function: str) -> Iterator[tuple[set[str], Guards]]:
        """How a function is reached from the top of a file: the names that it is given on the way, and the tests."""
        open_: deque[tuple[str, set[str], Guards]] = deque([(function, set(), ())])
        for _ in range(_WAYS):
            if not open_:
                return
            here, names, tests = open_.popleft()
            if here in {"", "main", "__init__", "__main__"}:
                yield names, tests
                continue
            for node, outer, guards in self._calls.get(here, ())[:_WAYS]:
                given = leaves_of(n for a in (*node.args, *node.keywords) for n in ast.walk(a))
                if outer != here:
                    open_.append((outer, names | given, (*guards, *tests)))

    def loads_under(self, switch: str) -> Iterator[set[str]]:
        """The names in each file that is loaded where a setting is on, where the optimizer's state is loaded too."""
        under = [
            node
            for node, _, guards in self._nodes
            if isinstance(node, ast.Call) and any(wanted and leaf(test) == switch for test, wanted in guards)
        ]
        if any(self._use_of_call(node) is Use.OPTIMIZER for node in under):
            for node in under:
                if called(node) == "load":
                    parts = [p for a in node.args for p in (a, *self._computed.get(leaf(a) or "", ()))]
                    yield leaves_of(n for part in parts for n in ast.walk(part))

    def searches_newest(self, switch: str) -> bool:
        """Whether a switch, under a name that says so, makes the source look for its newest file, and the optimizer's state is loaded."""
        names = self._followed(switch) if self._searches else frozenset()
        return any(keys & names for keys in self._searches)

    @cached_property
    def _searches(self) -> list[frozenset[_Key]]:
        """The settings under which the newest file is looked for (``if continue_training: … exists(folder / "latest.pt")``)."""
        if not any(
            isinstance(n, ast.Call) and self._use_of_call(n) is Use.OPTIMIZER for n, _, _ in self._nodes
        ):
            return []
        return [
            self._keys(node.test, scope)
            for node, scope, _ in self._nodes
            if isinstance(node, ast.If)
            and _CONTINUES.search(leaf(node.test) or "")
            and _looks_for_newest(node.body)
        ]

    def own_file_under(self, switch: str) -> Iterator[set[str]]:
        """The names that the path of the run's own file is made of, where a switch makes the source load it with the optimizer's state.

        ``path = join(out, "state.pth")`` and ``if cfg.resume and exists(path): engine.load(path)``.
        """
        known = {**self._known, switch: True}
        for node, scope, _ in self._nodes:
            if not isinstance(node, ast.If) or switch not in _all_of(node.test):
                continue
            paths = [
                n.args[0]
                for n in ast.walk(node.test)
                if isinstance(n, ast.Call)
                and asks_existence([n])
                and n.args
                and isinstance(n.args[0], ast.Name)
            ]
            for path in paths:
                made = self._computed.get(leaf(path) or "", ())
                if (
                    made
                    and self._use_of_any(self._reached_from(set(self._keys(path, scope))), known)
                    is Use.OPTIMIZER
                ):
                    yield {name for value in made for name in leaves(value)}

    def replaces_options(self, dest: str, batch: str) -> str | None:
        """Where the options that hold the batch are replaced by those that a checkpoint holds, if they are."""
        names = self._followed(dest)
        holders = {
            (scope.rpartition(":")[0], node.value.id)
            for node, scope, _ in self._nodes
            if isinstance(node, ast.Attribute) and node.attr == batch and isinstance(node.value, ast.Name)
        }
        for node, scope, _ in self._nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    replaced = _is_options(value)
                case ast.Call(func=ast.Attribute(attr="update", value=holder), args=[value]):
                    name, replaced = _of_options(holder), True
                case _:
                    continue
            path = scope.rpartition(":")[0]
            if replaced and (path, name) in holders and self._keys(value, scope) & names:
                return f"{path or 'the script'}:{getattr(node, 'lineno', 0)}"
        return None

    def _followed(self, dest: str) -> set[_Key]:
        """Every name that holds the setting's value, or something made of it."""
        return self._reached_from({("", dest)})

    def _reached_from(self, start: set[_Key]) -> set[_Key]:
        found = set(start)
        for _ in range(_ROUNDS):
            new = {key for targets, sources in self._steps if sources & found for key in targets} - found
            if not new:
                break
            found |= new
        return found

    def _step(self, node: ast.AST, scope: str) -> Iterator[tuple[set[_Key], frozenset[_Key]]]:
        """From which names to which a node hands a value on."""
        match node:
            case ast.Assign(targets=targets, value=value):
                yield {k for t in targets for k in _targets(t, scope)}, self._keys(value, scope)
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.NamedExpr(target=target, value=value)
            ):
                yield set(_targets(target, scope)), self._keys(value, scope)
            case (
                ast.For(target=target, iter=value)
                | ast.withitem(optional_vars=ast.expr() as target, context_expr=value)
            ):
                yield set(_targets(target, scope)), self._keys(value, scope)
            case ast.Return(value=ast.expr() as value):
                yield {("()", scope.rpartition(":")[2])}, self._keys(value, scope)
            case ast.Call():
                yield from self._into_call(node, scope)
            case _:
                pass

    def _into_call(self, call: ast.Call, scope: str) -> Iterator[tuple[set[_Key], frozenset[_Key]]]:
        own = self._functions.get(called(call), [])
        for where, names in own:
            for name, value in zip(names, call.args, strict=False):
                yield {(where, name)}, self._keys(value, scope)
        for keyword in call.keywords:
            if keyword.arg:
                targets = {(where, keyword.arg) for where, names in own if keyword.arg in names}
                if not targets and _SPECIFIC.search(keyword.arg):
                    targets = {("", keyword.arg)}
                yield targets, self._keys(keyword.value, scope)

    def _keys(self, node: ast.AST, scope: str) -> frozenset[_Key]:
        """The names in an expression, those of each part looked up once."""
        found = self._cache.get(id(node))
        if found is None:
            parts = [self._keys(part, scope) for part in ast.iter_child_nodes(node)]
            found = self._cache[id(node)] = frozenset(_own_keys(node, scope)).union(*parts)
        return found

    def _use(self, node: ast.AST, keyword: str | None) -> Use | None:
        """What a node that is given the checkpoint or a part of it, maybe by keyword, does with it."""
        match node:
            case (
                ast.Subscript(slice=ast.Constant(value=str() as key))
                | ast.Call(
                    func=ast.Attribute(attr="get" | "pop"), args=[ast.Constant(value=str() as key), *_]
                )
            ):
                return next((use for pattern, use in _KEYS if pattern.search(key)), None)
            case ast.Call() if (
                keyword == "load_path" and called(node) == "Trainer" and "composer" in self._modules
            ):
                return Use.OPTIMIZER
            case ast.Call() if keyword in _STATE_KEYWORDS:
                old = (
                    keyword == "resume_from_checkpoint" and called(node) == "Trainer"
                )  # Lightning's before 2.0
                return Use.OPTIMIZER if called(node) in _TRAININGS or old else Use.CALL
            case ast.Call():
                return Use.OPTIMIZER if self._restores_all(node) else self._use_of_call(node)
            case _:
                return None

    def _restores_all(self, call: ast.Call) -> bool:
        """Whether a framework restores the optimizer too: accelerate's ``load_state``, DeepSpeed's engine, ``load(path, {"optimizer": …})``."""
        name = called(call)
        if name in self._functions or not isinstance(call.func, ast.Attribute):
            return False
        if any(k.arg in _WEIGHTS_ONLY and literal(k.value) is True for k in call.keywords):
            return False
        if name == "load_state" or (name == "load_checkpoint" and "deepspeed" in self._modules):
            return not any(
                k.arg == "load_optimizer_states" and literal(k.value) is False for k in call.keywords
            )
        given = [*call.args, *(k.value for k in call.keywords)]
        return name.startswith("load") and len(given) > 1 and any(self._holds_optimizer(g) for g in given)

    def _holds_optimizer(self, node: ast.expr) -> bool:
        """Whether something is a dict with the optimizer in it, itself or by the name that it was given."""
        parts = [node, *self._computed.get(leaf(node) or "", ())]
        return any(
            isinstance(key, ast.Constant) and OPTIMIZER.search(str(key.value))
            for part in parts
            if isinstance(part, ast.Dict)
            for key in part.keys
        )

    def _is_made_optimizer(self, name: str) -> bool:
        """Whether a name of any kind holds an optimizer by what it is assigned: ``o = torch.optim.AdamW(…)``."""
        made = [part for part in self._computed.get(name, ()) if isinstance(part, ast.Call)]
        return any(_OPTIMIZERS.search(ast.unparse(call.func)) for call in made)

    def _use_of_call(self, call: ast.Call) -> Use | None:
        name = called(call)
        holder = leaf(call.func.value) or "" if isinstance(call.func, ast.Attribute) else ""
        given = {leaf(a) or "" for a in (*call.args, *(k.value for k in call.keywords))}
        with_optimizer = any(OPTIMIZER.search(n) for n in given)
        if name == "load_state_dict":
            weights = Use.WEIGHTS if _MODEL.search(holder) else Use.CALL
            return Use.OPTIMIZER if OPTIMIZER.search(holder) or self._is_made_optimizer(holder) else weights
        if _WEIGHTS_CALL.search(name) and not with_optimizer:
            return Use.WEIGHTS
        by_name = _STATE_CALL.search(name) and (name not in self._functions or with_optimizer)
        return Use.CALL if by_name else None


def _all_of(test: ast.expr) -> set[str]:
    """The names that all have to be true in ``a and b``."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    return {leaf(part) or "" for part in parts}


def _speaks_of_checkpoints(nodes: Sequence[ast.AST], names: set[str]) -> bool:
    texts = {str(n.value) for node in nodes for n in ast.walk(node) if isinstance(n, ast.Constant)}
    return any(_CHECKPOINTS.search(text) for text in names | texts)


def _handed_on(node: ast.AST, scope: str) -> Iterator[_Key]:
    """The names that an assignment sets, or the function that a value is returned from."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _targets(target, scope)
    elif isinstance(node, ast.Return):
        yield "()", scope.rpartition(":")[2]


def _writes_out(node: ast.AST, numbers: frozenset[str]) -> bool:
    """Whether one of some settings stands in a text as it is; their product stays what it is."""
    match node:
        case ast.FormattedValue(value=value):
            return leaf(value) in numbers
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str()), attr="format"), args=args, keywords=keywords
        ):
            return any(leaf(a) in numbers for a in (*args, *(k.value for k in keywords)))
        case ast.Call(func=ast.Name(id="str"), args=[value]):
            return leaf(value) in numbers
        case ast.BinOp(left=ast.Constant(value=str()), op=ast.Mod(), right=value):
            return any(leaf(v) in numbers for v in (value.elts if isinstance(value, ast.Tuple) else [value]))
        case _:
            return False


def _looks_for_newest(body: Sequence[ast.stmt]) -> bool:
    nodes = [n for s in body for n in ast.walk(s)]
    return asks_existence(nodes) and any(
        isinstance(n, ast.Constant) and isinstance(n.value, str) and _NEWEST_FILE.search(n.value)
        for n in nodes
    )


def numbers_file(node: ast.AST) -> ast.expr | None:
    """The number that the name of a file ends with: of ``"{}.pt".format(args.step)`` and of ``f"{args.step}.pt"`` the step."""
    match node:
        case (
            ast.Call(
                func=ast.Attribute(value=ast.Constant(value=str() as text), attr="format"), args=[*_, value]
            )
            | ast.BinOp(left=ast.Constant(value=str() as text), op=ast.Mod(), right=value)
        ):
            pass
        case ast.JoinedStr(values=[*_, ast.FormattedValue(value=value), ast.Constant(value=str() as end)]):
            text = f"{{}}{end}"
        case _:
            return None
    return value if leaf(value) is not None and _NUMBERED_FILE.search(text) is not None else None


def _own_keys(node: ast.AST, scope: str) -> Iterator[_Key]:
    """A node's own name. One of a telling kind is the same wherever it stands: what `**kwargs` hand on has no other trace."""
    match node:
        case ast.Name(id=name):
            yield from ((scope, name), (f"{scope.partition(':')[0]}:", name))
            if _SPECIFIC.search(name):
                yield "", name
        case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str() as name)):
            yield "", name
        case ast.Call():
            yield "()", called(node)
            if (read := leaf(node)) is not None:
                yield "", read
        case _:
            pass


def _read_from(node: ast.AST) -> Iterator[tuple[ast.expr, str | None]]:
    """The parts of a node that a checkpoint may stand in, with their keyword: what a key is read from, what a call is given."""
    match node:
        case (
            ast.Subscript(value=value, slice=ast.Constant(value=str()), ctx=ast.Load())
            | ast.Call(func=ast.Attribute(attr="get" | "pop", value=value), args=[ast.Constant(), *_])
        ):
            yield value, None
        case ast.Call():
            yield from ((argument, None) for argument in node.args)
            yield from ((k.value, k.arg) for k in node.keywords)
        case _:
            pass


def _targets(node: ast.AST, scope: str) -> Iterator[_Key]:
    match node:
        case ast.Name(id=name) if not (_NOT_FOLLOWED.fullmatch(name) or _OPTIONS.fullmatch(name)):
            yield scope, name
        case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str() as name)):
            if not _NOT_FOLLOWED.fullmatch(name):
                yield "", name
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from _targets(part, scope)
        case ast.Starred(value=inner):
            yield from _targets(inner, scope)
        case _:
            pass


def _is_options(value: ast.expr) -> bool:
    """``Namespace(**saved)``, ``checkpoint["args"]``, ``OmegaConf.load(...)``: options made of something that was saved."""
    match value:
        case ast.Call():
            return called(value) in {
                "Namespace",
                "EasyDict",
                "AttrDict",
                "DictConfig",
                "create",
                "load",
                "safe_load",
            }
        case ast.Subscript(slice=ast.Constant(value=str() as key)) | ast.Attribute(attr=key):
            return _OPTIONS.fullmatch(key) is not None
        case _:
            return False


def _of_options(holder: ast.expr) -> str:
    """The options that ``vars(args)`` or ``args.__dict__`` are of."""
    match holder:
        case (
            ast.Call(func=ast.Name(id="vars"), args=[ast.Name(id=name)])
            | ast.Attribute(attr="__dict__", value=ast.Name(id=name))
        ):
            return name
        case _:
            return ""
