"""Where a script looks for its newest checkpoint by itself, and whether the conditions around that hold for this command line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from supervisor.job.knobs.resuming.checkpoint_flags import takes_path
from supervisor.job.knobs.source.conditions import Known, truth
from supervisor.job.knobs.source.declarations import literal
from supervisor.job.knobs.source.read_source import Guards, ScriptSource, SourceFile, called, guarded, leaf

_FINDS_NEWEST: Final = re.compile(
    r"(last|latest|newest|recent)_?(checkpoint|ckpt|snapshot)(?!\w*(step|epoch|num|name))|(checkpoint|ckpt|snapshot)_?(last|latest|newest)|auto_?resume|"
    r"auto_load_model|restart_from|resume_or_load|^scan_checkpoint|load_latest|maybe_resume|try_resume|resume_if",
    re.IGNORECASE,
)
# `update_last_checkpoint` points to what was saved, and loads nothing.
_KEEPS: Final = re.compile(
    r"^_?(update|save|write|store|set|link|symlink|remove|delete|clean|push|upload|log)_", re.IGNORECASE
)
# Names that mean this wherever they stand; any other one counts in the script itself.
_KNOWN_FINDERS: Final = frozenset({"get_last_checkpoint", "auto_resume_helper", "auto_load_model"})
_SAVES: Final = frozenset(
    {
        "save",
        "save_checkpoint",
        "save_on_master",
        "_save_snapshot",
        "save_snapshot",
        "_save_checkpoint",
        "dump",
        "upload_to_s3",
    }
)
LOADS: Final = re.compile(r"load|resume|restore", re.IGNORECASE)
_KEPT: Final = re.compile(
    r"checkpoint|ckpt|snapshot|resume|last|latest|state|save|model_path|weights", re.IGNORECASE
)
_FOLDER: Final = re.compile(
    r"(exp|out|output|save|work|log|model|checkpoints?|ckpts?|run)_?(dir|folder)$", re.IGNORECASE
)
LISTINGS: Final = frozenset({"glob", "iglob", "rglob", "listdir", "scandir", "iterdir"})
_EXISTS: Final = frozenset({"exists", "isfile", "is_file", "isdir"})
_NEWEST_NAMES: Final = frozenset({"latest", "last", "newest"})
_FILE: Final = re.compile(r"\.(pt|pth|ckpt|tar|bin)$")
OPTIMIZER: Final = re.compile(r"optim|(^|_)opt(_\w)?$", re.IGNORECASE)
NOT_KEPT: Final = re.compile(r"cache|data|label|vocab|tokenizer|pretrain|config", re.IGNORECASE)
_LOADER: Final = re.compile(r"^_?(load|resume|restore|try)\w*(snapshot|checkpoint|ckpt|state)", re.IGNORECASE)
SETTINGS: Final = re.compile(
    r"^(args|cfg|config|opts?|flags|conf|hparams|hps|h|params|\w+_args|\w+_config)$", re.IGNORECASE
)


def holds(source: ScriptSource, test: ast.expr, wanted: bool, known: Mapping[str, Any]) -> bool:
    """Whether a condition is what it must be, or depends on what only the machine knows (does a file exist?)."""
    computed = {
        n.id: truth(values[0], known, None)
        for n in ast.walk(test)
        if isinstance(n, ast.Name) and n.id not in known and len(values := source.computed.get(n.id, ())) == 1
    }
    known = {**known, **{name: value for name, value in computed.items() if value is not None}}
    value = truth(test, known, None)
    if value is not None:
        return value is wanted
    # A setting that is not known is no such thing: the search may be switched off.
    return not any(
        isinstance(n, ast.Attribute)
        and n.attr not in known
        and isinstance(n.value, ast.Name | ast.Attribute)
        and SETTINGS.match(leaf(n.value) or "")
        for n in _atoms(test)
    )


def _atoms(test: ast.expr) -> list[ast.expr]:
    """The parts of a condition that are true or false by themselves."""
    match test:
        case ast.BoolOp(values=values):
            return [atom for value in values for atom in _atoms(value)]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _atoms(operand)
        case _:
            return [test]


@dataclass(frozen=True, slots=True)
class Search:
    """A place that looks for the newest checkpoint, and the conditions around it: (test, what it must be)."""

    what: str
    line: int
    guards: tuple[tuple[ast.expr, bool], ...]


def searches(file: SourceFile, source: ScriptSource, known: Known) -> Iterator[Search]:
    """Every place in a file where the newest checkpoint is looked for without an argument; `known`: what settings are."""
    look = _FileLook(file, source, known)
    for node, guards, functions in guarded(file.tree):
        if len(functions) > 1 and (file.depth or not isinstance(node, ast.Call)):
            continue  # a hook, called by something else and at its own time
        function = functions[-1] if functions else None
        if function is not None and function not in source.used and not function.startswith("__"):
            continue  # never called
        what = look.what(node, function) or look.loads_newest(node, guards)
        if what is not None:
            yield Search(what, getattr(node, "lineno", 0), guards)


class _FileLook:
    """One file, looked through for places that find the newest checkpoint by themselves."""

    def __init__(self, file: SourceFile, source: ScriptSource, known: Known) -> None:
        self.known = known
        self.source = source
        self.functions = [n for n in file.nodes if isinstance(n, ast.FunctionDef)]
        self.depth = file.depth
        self.empty = {n.name for n in self.functions if _FINDS_NEWEST.search(n.name) and _returns_nothing(n)}
        self.named = {f.dest for f in source.flags if takes_path(f"--{f.dest}")} | {
            "resume",
            "resume_from_checkpoint",
        }
        self.saved = _saved_names(file)
        # Weights alone may be a part of the model that every run begins with; with the optimizer's state they are the run's.
        self.with_optimizer = _loads_optimizer(file.calls)
        self.trains = any(called(n) == "backward" for n in file.calls)

    def what(self, node: ast.AST, function: str | None) -> str | None:
        """What a node does to that end, for people."""
        match node:
            case ast.Call():
                return self._call(node)
            case ast.If(test=test, body=body):
                return self._loaded_where_it_exists(test, body)
            case ast.Try(body=body) if function is not None and _LOADER.search(function):
                return self._tried(body, function)
            case _:
                return None

    def _call(self, node: ast.Call) -> str | None:
        name = called(node)
        if any(k.arg == "resume_from_checkpoint" and self._is_whether_any(k.value) for k in node.keywords):
            return "resume_from_checkpoint=True"
        if name == "fit":
            return self._handed_to_fit(node)
        if not self.depth and LOADS.match(name) and self._is_given_folder_and_optimizer(node):
            return f"{name} of a folder"
        if not _FINDS_NEWEST.search(name) or _KEEPS.search(name) or name in self.empty:
            return None
        if any(k.arg == "resume" and not self._is_on(k.value) for k in node.keywords):
            return None  # only where a switch says so: detectron2's `resume_or_load(resume=args.resume)`
        if self.depth and name not in _KNOWN_FINDERS and not (self.trains and name == "load_latest"):
            return None
        return None if {leaf(a) for a in node.args} & self.named else name

    def _is_whether_any(self, value: ast.expr) -> bool:
        """Whether a value is true, or true where checkpoints are listed: ``len(glob("out/checkpoint-*")) > 0``."""
        made = self.source.computed.get(value.id, ()) if isinstance(value, ast.Name) else (value,)
        if len(made) != 1:
            return False
        is_truth = isinstance(made[0], ast.Compare) or (
            isinstance(made[0], ast.Call) and called(made[0]) in {"any", "bool"}
        )
        listed = any(isinstance(n, ast.Call) and called(n) in LISTINGS for n in ast.walk(made[0]))
        return literal(made[0]) is True or (is_truth and listed)

    def loads_newest(self, node: ast.AST, guards: Guards) -> str | None:
        """A file of the newest's usual name that the script loads with the optimizer's state, where a test of what exists leads there."""
        if self.depth or not isinstance(node, ast.Call) or not LOADS.match(called(node)):
            return None
        functions = (n for f in self.source.files for n in f.nodes if isinstance(n, ast.FunctionDef))
        asked = any(self._asks_existence(test) for test, _ in guards)
        if not asked or not any(_loads_optimizer(ast.walk(f)) for f in functions if f.name == called(node)):
            return None
        return f"{called(node)} of the newest checkpoint" if self._is_given_newest(node) else None

    def _is_given_newest(self, node: ast.Call) -> bool:
        """Whether a path of the newest's usual name is handed over, in no folder that a setting names for this or for weights to begin with."""
        return any(
            self._is_newest_path(self.source.computed.get(leaf(argument) or "", ())) for argument in node.args
        )

    def _is_newest_path(self, paths: Sequence[ast.expr]) -> bool:
        """Whether one value, made in some ways, is such a path."""
        if any(n in self.named or NOT_KEPT.search(n) for p in paths for n in leaves_of(ast.walk(p))):
            return False
        texts = {n.value for p in paths for n in ast.walk(p) if isinstance(n, ast.Constant)}
        return bool(texts & _NEWEST_NAMES)

    def _asks_existence(self, test: ast.expr) -> bool:
        """Whether a test is about what exists, itself or by a name that is set to that."""
        names = leaves_of(ast.walk(test))
        parts = [test, *(value for name in names for value in self.source.computed.get(name, ()))]
        return any(asks_existence(ast.walk(part)) for part in parts)

    def _handed_to_fit(self, fit: ast.Call) -> str | None:
        """The function that finds the newest checkpoint for Lightning's training: ``fit(model, ckpt_path=find_last_checkpoint(folder))``."""
        finder = next((k.value for k in fit.keywords if k.arg == "ckpt_path"), None)
        if not isinstance(finder, ast.Call) or not _FINDS_NEWEST.search(called(finder)):
            return None
        return None if {leaf(a) for a in finder.args} & self.named else called(finder)

    def _is_on(self, value: ast.expr) -> bool:
        """Whether a value is true for this command line, as it is or as it is handed to the function that names it."""
        handed = [
            k.value for f in self.source.files for n in f.calls for k in n.keywords if k.arg == leaf(value)
        ]
        return any(truth(v, self.known, None) is True for v in (value, *handed))

    def _is_given_folder_and_optimizer(self, node: ast.Call) -> bool:
        """``load_model(args.exp_dir, model, optimizer)``: what it finds in the folder, which is no flag of its own for this."""
        given = {leaf(a) or "" for a in (*node.args, *(k.value for k in node.keywords))}
        folders = {n for n in given if _FOLDER.search(n) and not NOT_KEPT.search(n)}
        return bool(folders - self.named) and any(OPTIMIZER.search(n) for n in given)

    def _loaded_where_it_exists(self, test: ast.expr, body: Sequence[ast.stmt]) -> str | None:
        path = _exists(test)
        if path is None or path in self.named or path not in self.saved:
            return None
        if any("model_name" in n or "pretrain" in n for n in leaves_of(ast.walk(test))):
            return None  # in the folder of the model that the run begins with
        if not holds(self.source, test, True, self.known):
            return None
        if (
            not (_KEPT.search(path) or (self.with_optimizer and not self.depth and _FILE.search(path)))
            or NOT_KEPT.search(path)
            or not any(_loads(s, weights=self.with_optimizer) for s in body)
        ):
            return None
        return f"{path} is loaded where it exists"

    def _tried(self, body: Sequence[ast.stmt], function: str) -> str | None:
        if function == "load_state_dict" or NOT_KEPT.search(function):
            return None
        given = {a.arg for f in self.functions if f.name == function for a in f.args.args}
        calls = (n for s in body for n in ast.walk(s) if isinstance(n, ast.Call))
        names = {n for c in calls for a in c.args for n in leaves_of(ast.walk(a))} - given
        names |= self._within(names)
        if any(_KEPT.search(n) and n in self.saved for n in names) and not names & (self.named - self.saved):
            return f"{function} tries its own file"
        return None

    def _within(self, names: set[str]) -> set[str]:
        """The names and texts that some names are made of."""
        parts = [part for n in names for value in self.source.computed.get(n, ()) for part in ast.walk(value)]
        texts = {n.value for n in parts if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        return leaves_of(parts) | texts


def _returns_nothing(node: ast.FunctionDef) -> bool:
    """A stub: every return is None, and nothing else is done."""
    values = [n.value for n in ast.walk(node) if isinstance(n, ast.Return)]
    return all(v is None or (isinstance(v, ast.Constant) and v.value is None) for v in values) and not any(
        isinstance(n, ast.Call) for n in ast.walk(node)
    )


def _exists(test: ast.expr) -> str | None:
    """The path that a test asks the existence of, by its last name or the text in it; a negated test asks nothing."""
    for node in ast.walk(test):
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return None
        if isinstance(node, ast.Call) and called(node) in _EXISTS:
            holder = (
                node.args[0]
                if node.args
                else node.func.value
                if isinstance(node.func, ast.Attribute)
                else None
            )
            return _path_name(holder) if holder is not None else None
    return None


def asks_existence(nodes: Iterable[ast.AST]) -> bool:
    """Whether one of some nodes asks if a file exists."""
    return any(isinstance(n, ast.Call) and called(n) in _EXISTS for n in nodes)


def _loads_optimizer(nodes: Iterable[ast.AST]) -> bool:
    """Whether one of some nodes loads the optimizer's state."""
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr == "load_state_dict"
        and OPTIMIZER.search(leaf(n.func.value) or "") is not None
        for n in nodes
    )


def _path_name(node: ast.expr) -> str | None:
    name = leaf(node)
    if name is not None:
        return name
    texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return texts[-1] if texts else None


def _loads(node: ast.stmt, *, weights: bool) -> bool:
    """Whether a statement loads a checkpoint: by a call of such a name, or with a counter in it; `weights`: or anything at all."""
    for inner in ast.walk(node):
        match inner:
            case ast.Call() if weights and LOADS.search(called(inner)):
                return True
            case ast.Call() if _LOADER.search(called(inner)) and called(inner) != "load_state_dict":
                return True
            case ast.Constant(value=str() as text) if re.fullmatch(r"\w*(epoch|step|iter)\w*", text):
                return True
            case _:
                pass
    return False


def _saved_names(file: SourceFile) -> frozenset[str]:
    """Names and texts in the functions that save: what a checkpoint is written to."""
    found: set[str] = set()
    top = [s for s in file.tree.body if not isinstance(s, ast.FunctionDef | ast.ClassDef)]
    for nodes in [*_outermost_functions(file.nodes), [n for s in top for n in ast.walk(s)]]:
        if any(isinstance(n, ast.Call) and called(n) in _SAVES for n in nodes):
            found |= leaves_of(nodes)
            found |= {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return frozenset(found)


def _outermost_functions(nodes: Sequence[ast.AST]) -> list[Sequence[ast.AST]]:
    """The nodes of each function that stands in no other: every node is walked once, however deep functions are nested."""
    found: list[Sequence[ast.AST]] = []
    inner: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and id(node) not in inner:
            within = list(ast.walk(node))
            found.append(within)
            inner |= {id(n) for n in within if isinstance(n, ast.FunctionDef)}
    return found


def leaves_of(nodes: Iterable[ast.AST]) -> set[str]:
    """Every name and attribute among some nodes."""
    return {
        n.id if isinstance(n, ast.Name) else n.attr for n in nodes if isinstance(n, ast.Name | ast.Attribute)
    }


def lists(node: ast.AST) -> bool:
    """Whether files are listed somewhere in a node."""
    return any(isinstance(n, ast.Call) and called(n) in LISTINGS for n in ast.walk(node))


def last_text(node: ast.AST) -> str:
    """The last text in a node; empty where there is none."""
    texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return texts[-1] if texts else ""


def where_it_exists(node: ast.AST | None) -> bool:
    """``path if exists(path) else None``."""
    match node:
        case ast.IfExp(test=test, orelse=ast.Constant(value=None)):
            return asks_existence(ast.walk(test))
        case _:
            return False


def last_of(node: ast.AST) -> ast.expr | None:
    """What the last or the largest is taken of: ``files[-1]``, ``max(files, key=...)``."""
    match node:
        case ast.Subscript(value=whole, slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1))):
            return whole
        case ast.Call(func=ast.Name(id="max"), args=[whole]):
            return whole
        case _:
            return None
