"""How a script resumes from its newest checkpoint: by itself, by a flag, or not at all, as its source shows.

A script that looks for its newest checkpoint counts as resuming by itself only where the conditions around that hold for this
command line. A flag counts with a value where the source compares with it, else as one that takes a checkpoint's path.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from supervisor.job.arguments.assignments import Setting, settings_of, value_of
from supervisor.job.config.edit import NEW
from supervisor.job.knobs.batch_settings.candidates import plain_name
from supervisor.job.knobs.batch_settings.names import words_of
from supervisor.job.knobs.conventions import HF, Convention
from supervisor.job.knobs.places import Places, is_argument
from supervisor.job.knobs.resuming.checkpoint_flags import find_start, is_open, takes_path
from supervisor.job.knobs.source.conditions import known_values, truth
from supervisor.job.knobs.source.declarations import literal
from supervisor.job.knobs.source.read_source import (
    ScriptFlag,
    ScriptSource,
    SourceFile,
    called,
    guarded,
    leaf,
)
from supervisor.job.spec import NAMED, Knobs

_RESUME_WORDS: Final = frozenset(
    {
        "resume",
        "resume_from",
        "resume_from_checkpoint",
        "from_resume",
        "auto_resume",
        "resume_training",
        "load_enable",
        "resume_latest",
        "ckpt_load_enable",
    }
)
# Values by which scripts say "the newest checkpoint, if there is one".
_NEWEST: Final = frozenset({"auto", "latest", "last", "true", "newest", "must", "allow"})
_OFF: Final = frozenset({"false", "no", "0", "off", "none", ""})
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
_LOADS: Final = re.compile(r"load|resume|restore", re.IGNORECASE)
_KEPT: Final = re.compile(
    r"checkpoint|ckpt|snapshot|resume|last|latest|state|save|model_path|weights", re.IGNORECASE
)
_ANY_WAY: Final = re.compile(
    r"resume|restore|load_state_dict|load_checkpoint|torch\.load|continue_from|load_state|ckpt_path"
)
_FOLDER: Final = re.compile(
    r"(exp|out|output|save|work|log|model|checkpoints?|ckpts?|run)_?(dir|folder)$", re.IGNORECASE
)
_OPTIMIZER: Final = re.compile(r"optim|opt(_\w)?$", re.IGNORECASE)
_NOT_KEPT: Final = re.compile(r"cache|data|label|vocab|tokenizer|pretrain|config", re.IGNORECASE)
_LOADER: Final = re.compile(r"^_?(load|resume|restore|try)\w*(snapshot|checkpoint|ckpt|state)", re.IGNORECASE)
_SETTINGS: Final = re.compile(
    r"^(args|cfg|config|opts?|flags|conf|hparams|hps|h|params|\w+_args|\w+_config)$", re.IGNORECASE
)
_HF_OFF: Final[Mapping[str, str]] = {
    "do_train": "false",
    "overwrite_output_dir": "false",
    "resume_from_checkpoint": "none",
}
_CHECKPOINTS: Final = frozenset(
    {"ckpt", "checkpoint", "ckpt_path", "checkpoint_path", "load_checkpoint", "load_ckpt"}
)
_OF_WEIGHTS: Final = frozenset({"load_checkpoint_in_model", "load_checkpoint_and_dispatch"})
# How far from the script a search for the newest checkpoint is believed to be on its way.
_DEPTH: Final = 3


def find_resume(
    args: Sequence[str], where: Places, row: Convention | None, given: Knobs, knobs: Knobs
) -> Knobs:
    """`knobs` with what is known of going on from a checkpoint.

    Args:
        args: the command line.
        where: configs, source, environment.
        row: the framework's conventions.
        given: what a person declared.
        knobs: the batch's knobs.
    """
    look = _Look(args, where, row)
    knobs = replace(knobs, framework=row.name if row is not None else "")
    if given.resume:
        return replace(knobs, resume=given.resume, resume_value=given.resume_value, resumes=NAMED)
    itself = "named (--self-resuming)" if given.self_resuming else look.by_itself()
    if itself is not None:
        return replace(knobs, self_resuming=True, resume_path=look.heeded_path(), resumes=itself)
    name, value, why = look.newest_flag()
    if name is not None:
        return replace(knobs, resume=name, resume_value=value, resumes=why)
    path, why = look.path_flag()
    if path is not None:
        return replace(knobs, resume_path=path, resumes=why)
    return replace(knobs, cannot_resume=look.has_no_way(), resume_step=look.step_flag())


@dataclass(frozen=True, slots=True)
class _Look:
    """What of one job is looked at for its resume."""

    args: Sequence[str]
    where: Places
    row: Convention | None

    @property
    def settings(self) -> Sequence[Setting]:
        return settings_of(self.args[self.where.args_at :])

    @property
    def source(self) -> ScriptSource:
        return self.where.source

    def given(self) -> dict[str, str | None]:
        """Every setting that is given, by its last plain name: configs first, the command line over them."""
        found: dict[str, str | None] = dict(_HF_OFF) if self.row is not None and self.row.name == HF else {}
        for values in self.where.configs.values():
            found |= {
                key.rpartition(".")[2]: str(value) for key, value in values.items() if value is not None
            }
        found |= {plain_name(s.name).rpartition(".")[2]: s.value for s in self.settings}
        return found

    # by itself

    def by_itself(self) -> str | None:
        """Why the script resumes by itself, for people; None where it is not known to."""
        given = self.given()
        if any(
            {"no", "resume"} <= set(words_of(s.name)) and (s.value or "true").lower() not in _OFF
            for s in self.settings
        ):
            return None
        if any(
            (given.get(name) or "").lower() == "false"
            for name in ("resume", "resume_from_checkpoint", "auto_resume")
        ):
            return None
        return self._by_convention(given) or self._by_auto_flag() or self._by_source(given)

    def _by_convention(self, given: Mapping[str, str | None]) -> str | None:
        row = self.row
        if row is None:
            return None
        load, save = (value_of(self.args, f"--{name}") for name in ("load", "save"))
        if row.name == "Megatron" and load and save and load == save:
            return "--load is --save"
        for name in row.self_resume:
            value = given.get(name, "false")
            if value is None or value.lower() not in _OFF:
                return f"{name} is on"
        if (
            row.always_resumes
            and not any(name in given for name in row.resume_off)
            and (not row.resume_word or row.resume_word in self._words())
        ):
            return f"{row.name} goes on from its last checkpoint"
        return None

    def _words(self) -> set[str]:
        return {k.arg or "" for f in self.source.files for n in f.calls for k in n.keywords}

    def _by_auto_flag(self) -> str | None:
        """A switch that makes the script look for its newest checkpoint, present or on by default."""
        for setting in self.settings:
            flag = self.source.flag(setting.name)
            if (
                _is_auto(setting.name)
                and (setting.value or "true").lower() not in _OFF
                and (flag is not None or setting.value is None)
            ):
                return f"{setting.name} is on"
        for flag in self.source.flags:
            name = max(flag.names, key=len)
            given = value_of(self.args[self.where.args_at :], name)
            if (
                _is_auto(name)
                and given is None
                and (flag.default is True or str(flag.default).lower() == "true")
            ):
                return f"{name} is on by default ({flag.where})"
        return None

    def _by_source(self, given: Mapping[str, str | None]) -> str | None:
        known = {**self.source.fields, **known_values(self.source, given)}
        for file in self.source.files:
            if file.depth > _DEPTH:
                continue
            for place in _searches(file, self.source):
                if all(_holds(self.source, test, wanted, known) for test, wanted in place.guards):
                    return f"{place.what} in {file.path or 'the script'}:{place.line}"
        return None

    # by a flag

    def newest_flag(self) -> tuple[str | None, str, str]:
        """A flag that can mean "the newest checkpoint" without a path: name, value, why."""
        for setting in self.settings:
            if "_".join(words_of(setting.name)) in _RESUME_WORDS:
                flag = self.source.flag(setting.name)
                if setting.value is None:
                    return setting.name, "", "command line"
                if setting.value.lower() in _NEWEST:
                    return setting.name, setting.value, "command line"
                compared = self._compared(flag.dest if flag is not None else plain_name(setting.name))
                return (setting.name, compared, "command line") if compared else (None, "auto", "")
        in_config = self._in_config()
        if in_config is not None:
            return in_config
        for flag in self.source.flags:
            found = self._flag_value(flag)
            if found is not None:
                return (*found, flag.where)
        if self.row is not None and self.row.resume_flag and self.row.resume_value:
            return self.row.resume_flag, self.row.resume_value, f"{self.row.name}'s own"
        if self.row is not None and self.row.name == "Megatron":
            save = value_of(self.args, "--save")
            if save and value_of(self.args, "--load") is None:
                return "--load", save, "the folder of --save"
        return None, "auto", ""

    def _in_config(self) -> tuple[str, str, str] | None:
        for name in self.where.names():
            if is_argument(name) or "_".join(words_of(name)) not in _RESUME_WORDS:
                continue
            present = self.where.value(name)
            if isinstance(present, bool) and words_of(name)[-1] != "checkpoint":
                return name, "true", "config" if present else "off in the config"
            if isinstance(present, str) and present.lower() in _NEWEST - {"true"}:
                return name, present, "config"
        return None

    def _flag_value(self, flag: ScriptFlag) -> tuple[str, str] | None:
        name = next((n for n in flag.names if "_".join(words_of(n)) in _RESUME_WORDS), None)
        spelled = max(flag.names, key=len)
        if name is None:
            if flag.dest == "init_from" and "resume" in self._compared_values("init_from"):
                return spelled, "resume"
            if _is_latest_switch(flag):
                return self._spelled(flag.dest), "true"
            return None
        if flag.is_switch or (flag.optional_value and self._means_newest(flag)):
            return name, ""
        if set(flag.choices) == {"0", "1"}:
            return name, "1"
        newest = [c for c in (*flag.choices, str(flag.default)) if c.lower() in _NEWEST - {"true"}]
        compared = self._compared(flag.dest)
        value = newest[0] if newest else compared
        return (name, value) if value else None

    def _means_newest(self, flag: ScriptFlag) -> bool:
        """Whether a flag without its value stands for the newest checkpoint: it says so, or the source looks for one."""
        return str(flag.const).lower() in _NEWEST - {"true"} or any(
            re.search(r"latest|newest|last_(run|ckpt|checkpoint)", n) for n in self.source.used
        )

    def _compared(self, dest: str) -> str | None:
        """The word for the newest checkpoint that the source compares a setting with."""
        return next((v for v in self._compared_values(dest) if v.lower() in _NEWEST - {"true"}), None)

    def _compared_values(self, dest: str) -> list[str]:
        found = []
        for file in self.source.files:
            for node in file.nodes:
                if isinstance(node, ast.Compare) and leaf(node.left) == dest:
                    found += [
                        n.value
                        for c in node.comparators
                        for n in ast.walk(c)
                        if isinstance(n, ast.Constant) and isinstance(n.value, str)
                    ]
        return found

    def _spelled(self, dest: str) -> str:
        """A setting in the manner of the command line: ``--key=value`` or ``key=value``."""
        dashed = any(s.name.startswith("--") for s in self.settings)
        return f"--{dest}" if dashed else dest

    def path_flag(self) -> tuple[str | None, str]:
        """A flag or a config's key that takes a checkpoint's path."""
        lone = self.where.lone_config
        found = find_start(self.settings, self.where)
        if found is not None and self._loads_weights_alone():
            return None, ""
        if found is not None and not (found == "--resume_from_checkpoint" and lone):
            return found, "takes a path"
        if found is None and (loaded := self._loaded_with_optimizer()) is not None:
            return loaded, "takes a path"
        for file, values in self.where.configs.items():
            for key in values:
                if takes_path(key) and not self.where.roles.get(file) and file not in self.where.fixed:
                    return f"{file}#{key}", file
        if found is not None and lone:
            return f"{lone}#{NEW}resume_from_checkpoint", lone
        return self._frameworks_own()

    def _frameworks_own(self) -> tuple[str | None, str]:
        """The framework's flag for a path, where the command line or a config shows that the script takes it."""
        row = self.row
        if row is None or not row.resume_flag or row.resume_value or row.name in {HF, "Megatron"}:
            return None, ""
        if row.resume_needs and row.resume_needs not in (*self.args, *self.where.settled):
            return None, ""
        return row.resume_flag, f"{row.name}'s own"

    def _loaded_with_optimizer(self) -> str | None:
        """The script's one flag for a checkpoint (``--ckpt``), where the source loads the optimizer's state too."""
        loads = any(
            called(n) == "load_state_dict"
            and isinstance(n.func, ast.Attribute)
            and _OPTIMIZER.match(leaf(n.func.value) or "")
            for f in self.source.files
            if f.depth == 0
            for n in f.calls
        )
        flags = [f for f in self.source.flags if f.dest in _CHECKPOINTS and is_open(f)] if loads else []
        used = [f for f in flags if self.source.uses(f.dest)]
        return max(used[0].names, key=len) if len(used) == 1 else None

    def _loads_weights_alone(self) -> bool:
        """Whether a script with its own loop and optimizer loads no other state than a model's: its path begins a run, and continues none."""
        files = [f for f in self.source.files if f.depth <= _DEPTH]
        if "backward" not in self.source.used or not any(
            called(n) == "zero_grad" for f in files for n in f.calls
        ):
            return False
        loads = [n for f in files for n in f.calls if _LOADS.search(called(n))]
        weights = {"load_state_dict", "load_weights", "copy_"} & {called(n) for f in files for n in f.calls}
        return (
            bool(weights and loads)
            and not any(_loads_state(n) for n in loads)
            and not any(_names_state(f.nodes) for f in files)
        )

    def heeded_path(self) -> str | None:
        """Of a script on transformers' Trainer that looks for its newest checkpoint: the flag whose path it takes before that."""
        if (
            self.row is None
            or self.row.name != HF
            or not any(_heeds_path(f.nodes) for f in self.source.files)
        ):
            return None
        return self.path_flag()[0]

    def step_flag(self) -> str | None:
        """A flag that takes the step of the checkpoint to go on from."""
        for flag in self.source.flags:
            words = set(words_of(max(flag.names, key=len)))
            if "resume" in words and words & {"step", "epoch", "iter"}:
                return max(flag.names, key=len)
        return None

    def has_no_way(self) -> bool:
        """Whether the source was read, leaves nothing to a framework or to another process, and loads no checkpoint."""
        files = self.source.files
        elsewhere = "subprocess" in self.source.modules or (self.row is not None and self.row.name != HF)
        return (
            bool(files)
            and not elsewhere
            and not any(_ANY_WAY.search(ast.unparse(f.tree)) for f in files if f.depth <= _DEPTH)
        )


def _holds(source: ScriptSource, test: ast.expr, wanted: bool, known: Mapping[str, Any]) -> bool:
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
        and _SETTINGS.match(leaf(n.value) or "")
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


def _heeds_path(nodes: Sequence[ast.AST]) -> bool:
    """Whether a path in `resume_from_checkpoint` is taken before one that is looked for: it is handed on, or asked about first."""
    later = {id(s) for n in nodes if isinstance(n, ast.If) and len(n.orelse) == 1 for s in n.orelse}
    for node in nodes:
        match node:
            case ast.Call():
                if any(
                    k.arg == "resume_from_checkpoint" and _is_setting(_first_of(k.value))
                    for k in node.keywords
                ):
                    return True
            case ast.If(test=test, body=body) if id(node) not in later:
                if any(_is_setting(n) for n in ast.walk(test)) and any(
                    isinstance(s, ast.Assign) and _is_setting(s.value) for s in body
                ):
                    return True
            case _:
                pass
    return False


def _first_of(value: ast.expr) -> ast.expr:
    """What a value is where it is set: the first of ``a or b``, of ``a if a else b``."""
    match value:
        case ast.BoolOp(op=ast.Or(), values=[first, *_]):
            return first
        case ast.IfExp(body=body):
            return body
        case _:
            return value


def _is_setting(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "resume_from_checkpoint"


def _is_auto(name: str) -> bool:
    words = words_of(name)
    return words in (["auto", "resume"], ["load", "enable"], ["autoresume"]) or (
        "auto" in words and "resume" in words and len(words) <= 4
    )


def _is_latest_switch(flag: ScriptFlag) -> bool:
    words = set(words_of(f"--{flag.dest}"))
    return flag.type == "bool" and bool(words & {"latest", "last"}) and bool(words & {"load", "resume"})


@dataclass(frozen=True, slots=True)
class _Search:
    """A place that looks for the newest checkpoint, and the conditions around it: (test, what it must be)."""

    what: str
    line: int
    guards: tuple[tuple[ast.expr, bool], ...]


def _searches(file: SourceFile, source: ScriptSource) -> Iterator[_Search]:
    """Every place in a file where the newest checkpoint is looked for without an argument."""
    look = _FileLook(file, source)
    for node, guards, functions in guarded(file.tree):
        if len(functions) > 1 and (file.depth or not isinstance(node, ast.Call)):
            continue  # a hook, called by something else and at its own time
        function = functions[-1] if functions else None
        if function is not None and function not in source.used and not function.startswith("__"):
            continue  # never called
        what = look.what(node, function)
        if what is not None:
            yield _Search(what, getattr(node, "lineno", 0), guards)


class _FileLook:
    """One file, looked through for places that find the newest checkpoint by themselves."""

    def __init__(self, file: SourceFile, source: ScriptSource) -> None:
        self.depth = file.depth
        self.empty = {
            n.name
            for n in file.nodes
            if isinstance(n, ast.FunctionDef) and _FINDS_NEWEST.search(n.name) and _returns_nothing(n)
        }
        self.named = {f.dest for f in source.flags if takes_path(f"--{f.dest}")} | {
            "resume",
            "resume_from_checkpoint",
        }
        self.saved = _saved_names(file)
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
        if any(k.arg == "resume_from_checkpoint" and literal(k.value) is True for k in node.keywords):
            return "resume_from_checkpoint=True"
        if not self.depth and _LOADS.match(name) and self._is_given_folder_and_optimizer(node):
            return f"{name} of a folder"
        if not _FINDS_NEWEST.search(name) or _KEEPS.search(name) or name in self.empty:
            return None
        if self.depth and name not in _KNOWN_FINDERS and not (self.trains and name == "load_latest"):
            return None
        return None if {leaf(a) for a in node.args} & self.named else name

    def _is_given_folder_and_optimizer(self, node: ast.Call) -> bool:
        """``load_model(args.exp_dir, model, optimizer)``: what it finds in the folder, which is no flag of its own for this."""
        given = {leaf(a) or "" for a in (*node.args, *(k.value for k in node.keywords))}
        folders = {n for n in given if _FOLDER.search(n) and not _NOT_KEPT.search(n)}
        return bool(folders - self.named) and any(_OPTIMIZER.match(n) for n in given)

    def _loaded_where_it_exists(self, test: ast.expr, body: Sequence[ast.stmt]) -> str | None:
        path = _exists(test)
        if path is None or path in self.named or path not in self.saved:
            return None
        if not _KEPT.search(path) or _NOT_KEPT.search(path) or not any(_loads(s) for s in body):
            return None
        return f"{path} is loaded where it exists"

    def _tried(self, body: Sequence[ast.stmt], function: str) -> str | None:
        names = {n for s in body for n in leaves_of(ast.walk(s))}
        if any(_KEPT.search(n) and n in self.saved for n in names) and not names & (self.named - self.saved):
            return f"{function} tries its own file"
        return None


def _loads_state(call: ast.Call) -> bool:
    """Whether a call may load more than weights: it is given or is called on what no model is, or is a helper of another name."""
    name = called(call)
    if name == "load_state_dict" and isinstance(call.func, ast.Attribute):
        return not re.search(
            r"model|net|ema|module|encoder|decoder|vae|lora", (leaf(call.func.value) or "").lower()
        )
    return (
        bool(re.search(r"resume|restore|state$|checkpoint|ckpt|training", name, re.IGNORECASE))
        and name not in _OF_WEIGHTS
    )


def _names_state(nodes: Iterable[ast.AST]) -> bool:
    """Whether a text in the source names the optimizer's part of a checkpoint."""
    return any(
        isinstance(n, ast.Constant)
        and isinstance(n.value, str)
        and re.fullmatch(r"\w*(optim|scheduler|global_step)\w*", n.value)
        for n in nodes
    )


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
        if isinstance(node, ast.Call) and called(node) in {"exists", "isfile", "is_file", "isdir"}:
            holder = (
                node.args[0]
                if node.args
                else node.func.value
                if isinstance(node.func, ast.Attribute)
                else None
            )
            return _path_name(holder) if holder is not None else None
    return None


def _path_name(node: ast.expr) -> str | None:
    name = leaf(node)
    if name is not None:
        return name
    texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return texts[-1] if texts else None


def _loads(node: ast.stmt) -> bool:
    return any(isinstance(n, ast.Call) and _LOADS.search(called(n)) for n in ast.walk(node))


def _saved_names(file: SourceFile) -> frozenset[str]:
    """Names and texts in the functions that save: what a checkpoint is written to."""
    found: set[str] = set()
    for nodes in _outermost_functions(file.nodes) or [file.nodes]:
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
