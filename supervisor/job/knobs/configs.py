"""The configs of a job, collected: those that its arguments name, those that these name in turn, Hydra's, accelerate's own.

Files are opened by the caller's `read`. A config that only another file names cannot be replaced by a changed copy, and is kept as fixed.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from supervisor.job.arguments.assignments import settings_of
from supervisor.job.arguments.launchers import Launch
from supervisor.job.config.edit import NEW, SUFFIXES, Scalar, bases_of, config_words, read_values
from supervisor.job.knobs.batch_settings.candidates import ACCELERATE, DEEPSPEED
from supervisor.job.knobs.source.declarations import constant, literal
from supervisor.job.knobs.source.read_source import ScriptSource, called, parse

Read = Callable[[str], str | None]
# Hydra configs nest some five deep and have some thirty files; these bound what is opened before the start.
MAX_NESTED: Final = 8
MAX_HYDRA_FILES: Final = 64
_DEEPSPEED_KEYS: Final = frozenset(
    {
        "zero_optimization",
        "train_micro_batch_size_per_gpu",
        "zero_allow_untested_optimizer",
        "steps_per_print",
        "wall_clock_breakdown",
    }
)
_CONFIG_FLAG: Final = re.compile(r"conf|cfg|yaml|yml|json|params|settings|opt(ion)?s?$", re.IGNORECASE)
_YACS: Final = ("_C", "__C", "_CFG", "cfg", "config")
_DEEPSPEED_FLAG: Final = re.compile(r"deepspeed|(^|\W|_)ds_?config", re.IGNORECASE)
_LONE_PARSERS: Final = (
    "HfArgumentParser",
    "TrlParser",
    "H4ArgumentParser",
    "parse_json_file",
    "parse_yaml_file",
)


@dataclass(frozen=True, slots=True)
class Configs:
    """What was collected: see `places.Places`."""

    values: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    settled: Mapping[str, tuple[Scalar, str]] = field(default_factory=dict)
    written: frozenset[str] = frozenset()
    lone: str | None = None


def collect_configs(
    args: Sequence[str],
    launch: Launch,
    source: ScriptSource,
    read: Read,
    given: Mapping[str, str] | None = None,
) -> Configs:
    """Opens and reads every config that a command line leads to.

    Args:
        args: the whole command line behind the program.
        launch: how it was read; `args_at` counts within `args`.
        source: the script.
        read: opens a file by its path.
        given: texts that are known already, by name.
    """
    texts = {**_texts(args, read, given or {}), **_default_texts(args[launch.args_at :], source, read)}
    values: dict[str, Mapping[str, Scalar]] = {name: read_values(name, text) for name, text in texts.items()}
    roles = _roles(args, values, launch)
    fixed: set[str] = set()
    if launch.config is not None and launch.config not in values:
        # accelerate's default config: no word of the command line stands for it.
        values[launch.config], roles[launch.config] = dict(launch.values or {}), ACCELERATE
        fixed.add(launch.config)
    for nested in _nested(values):
        text = read(nested) if nested not in values else None
        if text is not None:
            values[nested] = read_values(nested, text)
            fixed.add(nested)
            roles[nested] = DEEPSPEED
    own = args[launch.args_at :]
    _add_defaults(values, roles, fixed, source)
    assigned = {
        **_python_configs(own, read),
        **_config_functions(own, source, read),
        **_sacred(own, source),
    }
    settled = {**_hydra(own, source, read), **assigned}
    settled |= _settle_bases(texts, values, fixed, own, read)
    written = frozenset(n for n in assigned if n.startswith("--") and not _is_taken(n, source))
    return Configs(values, roles, frozenset(fixed), settled, written, _lone(own, source, values))


def _texts(args: Sequence[str], read: Read, given: Mapping[str, str]) -> dict[str, str]:
    """The configs that the command line names. Hydra's own is overridden by key: a changed copy elsewhere is no config of it."""
    hydras = {s.value for s in settings_of(args) if s.name in {"--config-name", "-cn"}}
    texts = {name: text for name, text in given.items() if name not in hydras}
    for name in config_words(args):
        text = read(name) if name not in hydras and name not in texts else None
        if text is not None:
            texts[name] = text
    return texts


def _default_texts(args: Sequence[str], source: ScriptSource, read: Read) -> dict[str, str]:
    """The configs that flags of the script name by default, where the command line gives no other: ``--config=conf/base.yaml``."""
    given = {s.name.replace("_", "-") for s in settings_of(args)}
    found: dict[str, str] = {}
    for flag in source.flags:
        default = flag.default
        is_config = isinstance(default, str) and default.lower().endswith(SUFFIXES)
        if (
            not is_config
            or not _CONFIG_FLAG.search(flag.dest)
            or given & {n.replace("_", "-") for n in flag.names}
        ):
            continue
        name = f"{max(flag.names, key=len)}={default}"
        text = read(str(default)) if name.startswith("--") and not flag.owner else None
        if text is not None and not bases_of(str(default), text):
            found[name] = text
    return found


def _add_defaults(
    values: dict[str, Mapping[str, Scalar]], roles: Mapping[str, str], fixed: set[str], source: ScriptSource
) -> None:
    """Adds to the one YAML config the keys that yacs' defaults hold (``_C.TRAIN.ACCUM_STEPS = 1``) and it does not, marked as new ones."""
    files = [n for n in values if n not in roles and n not in fixed and n.endswith((".yaml", ".yml"))]
    if ("yacs" not in source.modules and "fvcore" not in source.modules) or len(files) != 1:
        return
    held = values[files[0]]
    sections = {key.rpartition(".")[0] for key in held} | {""}
    defaults: dict[str, Scalar] = {}
    for file in source.files:
        for node in file.nodes:
            match node:
                case ast.Assign(targets=[ast.Attribute() as target], value=value):
                    name = _dotted(target, dict.fromkeys(_YACS, ""))
                    if name is not None and (constant(value) is not None or _is_none(value)):
                        defaults[name] = constant(value)
                case _:
                    pass
    flags = {flag.dest.lower() for flag in source.flags}  # laid over the config: they come first
    new = {
        f"{NEW}{key}": value
        for key, value in defaults.items()
        if key not in held
        and key.rpartition(".")[0] in sections
        and key.rpartition(".")[2].lower() not in flags
    }
    values[files[0]] = {**held, **new}


def _settle_bases(
    texts: Mapping[str, str],
    values: dict[str, Mapping[str, Scalar]],
    fixed: set[str],
    own: Sequence[str],
    read: Read,
) -> dict[str, tuple[Scalar, str]]:
    """The settings of configs that lie over others, which no copy can replace: settled where overrides of such a form are given, else fixed."""
    settled: dict[str, tuple[Scalar, str]] = {}
    for name, text in texts.items():
        laid_over = _laid_over(name, text, read, 0)
        if laid_over and any(not s.name.startswith("-") for s in settings_of(own)):
            settled |= {**laid_over, **{key: (value, name) for key, value in values.pop(name).items()}}
        elif laid_over:
            values[name] = {**{key: value for key, (value, _) in laid_over.items()}, **values[name]}
            fixed.add(name)
    return settled


def _laid_over(name: str, text: str, read: Read, depth: int) -> dict[str, tuple[Scalar, str]]:
    """The settings of the configs that a config is laid over, and where each was read; they are named from its folder."""
    found: dict[str, tuple[Scalar, str]] = {}
    for base in bases_of(name, text) if depth < MAX_NESTED else ():
        file = posixpath.normpath(posixpath.join(posixpath.dirname(name), base))
        inner = read(file)
        if inner is not None:
            own = {key: (value, file) for key, value in read_values(file, inner).items()}
            found |= {**_laid_over(file, inner, read, depth + 1), **own}
    return found


def _is_taken(name: str, source: ScriptSource) -> bool:
    """Whether the script takes a config's assignment as a flag: it declares the flag, or its arguments go through no strict argparse."""
    calls = {called(n) for file in source.files for n in (file.calls if file.depth == 0 else ())}
    strict = {"ArgumentParser", "parse_args"} <= calls and "parse_known_args" not in calls
    return not strict or source.flag(name) is not None


def _roles(args: Sequence[str], values: Mapping[str, Mapping[str, Scalar]], launch: Launch) -> dict[str, str]:
    """Whose each config is, where it is a framework's: a file that a flag names as DeepSpeed's is, however little it holds."""
    named = {s.value for s in settings_of(args) if _DEEPSPEED_FLAG.search(s.name)}
    kinds = {
        name: DEEPSPEED if name in named and name.endswith(".json") else _kind(name, held, launch)
        for name, held in values.items()
    }
    return {name: kind for name, kind in kinds.items() if kind}


def _kind(name: str, values: Mapping[str, Scalar], launch: Launch) -> str:
    if name == launch.config:
        return ACCELERATE
    keys = {key.partition(".")[0] for key in values}
    if "compute_environment" in keys or ("distributed_type" in keys and "num_processes" in keys):
        return ACCELERATE
    batch = {"train_batch_size", "gradient_accumulation_steps"} & keys
    # DeepSpeed's "fp16" is a mapping; TrainingArguments' is true or false.
    nested = {key.partition(".")[0] for key in values if "." in key}
    if keys & _DEEPSPEED_KEYS or (
        batch and name.endswith(".json") and {"fp16", "bf16", "optimizer"} & nested
    ):
        return DEEPSPEED
    return ""


def _nested(values: Mapping[str, Mapping[str, Scalar]]) -> list[str]:
    """Files that a config names as DeepSpeed's."""
    found = []
    for config in values.values():
        for key, value in config.items():
            last = key.rpartition(".")[2]
            if (
                isinstance(value, str)
                and value.endswith(".json")
                and ("deepspeed" in last or last == "ds_config")
            ):
                found.append(value)
    return list(dict.fromkeys(found))


def _lone(
    args: Sequence[str], source: ScriptSource, values: Mapping[str, Mapping[str, Scalar]]
) -> str | None:
    """The one config that stands in place of all arguments (HfArgumentParser's JSON and YAML form)."""
    names = [word for word in args if word in values]
    if len(args) >= 1 and len(names) == 1 and not any(word.startswith("-") for word in args):
        calls = {called(n) for file in source.files for n in file.calls}
        others = [w for w in args if w != names[0] and "=" not in w]
        if len(others) <= 1 and (calls & set(_LONE_PARSERS) or not source.files or others):
            return names[0]
    return None


def _hydra(args: Sequence[str], source: ScriptSource, read: Read) -> dict[str, tuple[Scalar, str]]:
    """The settings of the script's Hydra config and of the groups that it selects, by the key that an override takes."""
    given = {s.name.replace("_", "-"): s.value for s in settings_of(args) if s.name.startswith("-")}
    named = given.get("--config-name") or given.get("-cn")
    folder = given.get("--config-path") or given.get("-cp")
    more = given.get("--config-dir") or given.get("-cd")
    for here, folders, name in _hydra_mains(source):
        # Hydra takes a relative folder below the script's own.
        roots = [posixpath.normpath(posixpath.join(here, folder)), folder] if folder else folders
        for root in [*roots, *([more] if more else [])]:
            hydra = _Hydra(root, args, read)
            hydra.add(posixpath.normpath(posixpath.join(root, named or name)), "", 0)
            if hydra.found:
                hydra.add_more_groups()
                return hydra.found
    return {}


def _hydra_mains(source: ScriptSource) -> Iterator[tuple[str, list[str], str]]:
    """Where ``@hydra.main`` looks for its config: the script's folder, the folders that may be meant, and the name that it gives."""
    for file in source.files:
        here = posixpath.dirname(file.path)
        for node in file.calls:
            match node:
                case ast.Call(func=ast.Attribute(attr="main"), keywords=keywords):
                    given = {k.arg: k.value for k in keywords}
                    path = given.get("config_path")
                    if "config_name" in given:
                        name = literal(given["config_name"]) or ""
                        yield here, _hydra_folders(here, path), str(name)
                    elif str(literal(path)).endswith((".yaml", ".yml")):  # Hydra before 1.0
                        folder, _, name = str(literal(path)).rpartition("/")
                        yield here, [posixpath.normpath(posixpath.join(here, folder))], name
                    elif path is not None:  # the command line names it
                        yield here, _hydra_folders(here, path), ""
                case _:
                    pass


def _hydra_folders(here: str, path: ast.expr | None) -> list[str]:
    """A literal path as it is; of a computed one the names in it, below the script's folder or one above it."""
    folder = literal(path)
    if path is None or _is_none(path) or isinstance(folder, str):
        return [posixpath.normpath(posixpath.join(here, str(folder or ".")))]
    above = [here, *(posixpath.normpath(posixpath.join(here, *[".."] * n)) for n in (1, 2, 3))]
    names = [n for n in ast.walk(path) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    parts = [str(n.value) for n in sorted(names, key=lambda n: (n.lineno, n.col_offset))]
    tails = [posixpath.join(*parts[i:]) for i in range(len(parts))]
    return [posixpath.normpath(posixpath.join(a, t)) for a in above for t in tails]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


@dataclass(frozen=True, slots=True)
class _Default:
    """One entry of a defaults list; `group` empty: another config of the same folder."""

    group: str
    option: str
    absolute: bool = False
    package: str | None = None
    override: bool = False


_ENTRY: Final = re.compile(
    r"(?P<override>override\s+)?(?:optional\s+)?(?:(?P<abs>/)?(?P<group>[\w/-]+?)(?:@(?P<package>[\w.]+))?\s*:\s*)?(?P<option>[\w./-]+|\?\?\?)\s*(?:#.*)?$"
)


class _Hydra:
    """Composes one Hydra config as Hydra does: groups in their order, the file's own values where ``_self_`` stands, else last."""

    def __init__(self, root: str, args: Sequence[str], read: Read) -> None:
        self.root = root
        self.read = read
        self.chosen: dict[str, str] = {}
        self.more: dict[str, str] = {}
        for setting in settings_of(args):
            if not setting.name.startswith("-") and setting.value:
                self.chosen[setting.name.lstrip("+")] = setting.value
                if setting.name.startswith("+"):
                    self.more[setting.name.lstrip("+")] = setting.value
        self.found: dict[str, tuple[Scalar, str]] = {}
        self.files = 0

    def add(self, path: str, prefix: str, depth: int) -> None:
        """Adds one config and what its defaults list names."""
        file = path if path.endswith((".yaml", ".yml")) else f"{path}.yaml"
        text = self.read(file) if depth <= MAX_NESTED and self.files < MAX_HYDRA_FILES else None
        if text is None:
            return
        self.files += 1
        header = re.match(r"#\s*@package:?\s+([\w.]+)", text)
        if header is not None and header[1] != "_group_":
            prefix = "" if header[1] == "_global_" else f"{header[1]}."
        entries = _defaults(text)
        for entry in entries:
            if entry.override:
                self.chosen.setdefault(entry.group, entry.option)
        for entry in (*entries, *(() if _SELF in entries else (_SELF,))):
            if entry == _SELF:
                self.found |= {f"{prefix}{k}": (v, file) for k, v in read_values(file, text).items()}
            elif not entry.override:
                self._entry(entry, posixpath.dirname(file), prefix, depth)

    def _entry(self, entry: _Default, folder: str, prefix: str, depth: int) -> None:
        if not entry.group:
            self.add(posixpath.join(folder, entry.option), prefix, depth + 1)
            return
        option = self.chosen.get(entry.group, entry.option)
        if option in {"null", "???"}:
            return
        package = entry.group.replace("/", ".") if entry.package is None else entry.package
        inner = {"_global_": "", "_here_": prefix}.get(package, f"{prefix}{package}.")
        base = self.root if entry.absolute else folder
        self.add(posixpath.join(base, entry.group, option), inner, depth + 1)

    def add_more_groups(self) -> None:
        """Groups that the command line adds: ``+experiment=large``."""
        for group, option in self.more.items():
            if re.fullmatch(r"[\w./-]+", option):
                self.add(posixpath.join(self.root, group, option), f"{group.replace('/', '.')}.", 1)


_SELF: Final = _Default("", "_self_")


def _defaults(text: str) -> list[_Default]:
    """The entries of a defaults list; a group with several options, which hold no batch in practice, is left out."""
    block = re.search(r"^defaults:\s*\n((?:[ \t]*-.*\n?|[ \t]*#.*\n|\s*\n)+)", text, re.MULTILINE)
    lines = [line for line in (block[1].splitlines() if block else ()) if line.strip().startswith("-")]
    found: list[_Default] = []
    for line in lines:
        if len(line) - len(line.lstrip()) > len(lines[0]) - len(lines[0].lstrip()):
            continue
        entry = _ENTRY.fullmatch(line.strip().lstrip("-").strip().replace('"', "").replace("'", ""))
        if entry is not None:
            group = entry["group"] or ""
            absolute, override = entry["abs"] is not None, entry["override"] is not None
            found.append(_Default(group, entry["option"], absolute, entry["package"], override))
    return found


def _python_configs(args: Sequence[str], read: Read) -> dict[str, tuple[Scalar, str]]:
    """Plain assignments of a ``.py`` config among the arguments, as flags that override them; nanoGPT's, mmengine's."""
    found: dict[str, tuple[Scalar, str]] = {}
    for word in args:
        if word.startswith("-") or not word.endswith(".py") or "=" in word:
            continue
        _read_python(word, read, found, depth=0)
    return found


_DOTTED: Final = re.compile(r"(--\w+)(?:=| )([\w./-]+\.py)(?::(\w+))?")


def _config_functions(args: Sequence[str], source: ScriptSource, read: Read) -> dict[str, tuple[Scalar, str]]:
    """What the function of a config file of ml_collections sets (``--config=c.py:large``), as flags that override it (``--config.lr``)."""
    found: dict[str, tuple[Scalar, str]] = {}
    if "ml_collections" in source.modules:
        for setting in settings_of(args):
            match = _DOTTED.fullmatch(f"{setting.name} {setting.value}")
            if match is not None:
                values = _ConfigFunctions(read).values(match[2], match[3] or "get_config", 0)
                values = values or _ConfigFunctions(read).values(match[2], "get_config", 0)
                found |= {f"{match[1]}.{key}": value for key, value in values.items()}
    return found


def _sacred(args: Sequence[str], source: ScriptSource) -> dict[str, tuple[Scalar, str]]:
    """What the config functions of a sacred experiment set, those that the command line names last: ``python run.py with large lr=1``."""
    functions = [
        (node, decorator.attr, file.path)
        for file in (source.files if "sacred" in source.modules else ())
        for node in file.tree.body
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Attribute)
    ]
    chosen = [f for f in functions if f[1] == "config"]
    chosen += [f for word in args for f in functions if f[1] == "named_config" and f[0].name == word]
    return {
        node.targets[0].id: (literal(node.value), f"{path}:{node.lineno}")
        for function, _, path in chosen
        for node in function.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.Constant)
    }


class _ConfigFunctions:
    """Functions that fill a config step by step: their assignments in order, those of the function that they begin with first."""

    def __init__(self, read: Read) -> None:
        self.read = read

    def values(self, path: str, function: str, depth: int) -> dict[str, tuple[Scalar, str]]:
        """Constants by dotted key, and where each was read; empty where the file has no such function."""
        found: dict[str, tuple[Scalar, str]] = {}
        names: dict[str, str] = {}
        for node in self._assignments(path, function, depth):
            keys = [key for t in node.targets if (key := _dotted(t, names)) is not None]
            if not keys and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Call):
                found |= self._begun_with(node.value, path, depth)
                keys = [""]
            names |= {t.id: keys[0] for t in node.targets if isinstance(t, ast.Name) and keys}
            found |= {
                name: (value, f"{path}:{node.lineno}")
                for key in keys
                for name, value in _constants(node.value, key)
            }
        return found

    def _assignments(self, path: str, function: str, depth: int) -> list[ast.Assign]:
        text = self.read(path)
        file = parse(text, path) if text and depth <= MAX_NESTED else None
        functions = [n for n in (file.tree.body if file else ()) if isinstance(n, ast.FunctionDef)]
        return [s for n in functions if n.name == function for s in n.body if isinstance(s, ast.Assign)]

    def _begun_with(self, call: ast.Call, path: str, depth: int) -> dict[str, tuple[Scalar, str]]:
        """What another function set before: of the same file, or of the module of that name beside it."""
        match call.func:
            case ast.Name(id=name):
                return self.values(path, name, depth + 1)
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                return self.values(posixpath.join(posixpath.dirname(path), f"{module}.py"), name, depth + 1)
            case _:
                return {}


def _dotted(node: ast.expr, names: Mapping[str, str]) -> str | None:
    """The key that ``config.train.lr`` stands for, where ``config`` is the config itself or a part of it."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names or not parts:
        return None
    return ".".join([*([names[node.id]] if names[node.id] else []), *parts])


def _read_python(path: str, read: Read, found: dict[str, tuple[Scalar, str]], *, depth: int) -> None:
    text = read(path)
    file = parse(text, path) if text else None
    if file is None or depth > 4:
        return
    for node in file.tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="_base_")], value=value):
                for base in (
                    n.value
                    for n in ast.walk(value)
                    if isinstance(n, ast.Constant) and isinstance(n.value, str)
                ):
                    _read_python(
                        posixpath.normpath(posixpath.join(posixpath.dirname(path), base)),
                        read,
                        found,
                        depth=depth + 1,
                    )
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() | ast.Dict() as value):
                for key, inner in _of_mapping(value, f"{name}."):
                    found[key] = (inner, path)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                number = constant(value)
                if number is not None:
                    found[f"--{name}"] = (number, path)
            case _:
                pass


def _of_mapping(node: ast.expr, prefix: str) -> list[tuple[str, Scalar]]:
    """Constants of ``dict(a=1, b=dict(c=2))`` by dotted key."""
    pairs: list[tuple[str, ast.expr]] = []
    if isinstance(node, ast.Call) and not node.args:  # `dict(...)`, `ConfigDict(...)`, a helper of the file
        pairs = [(k.arg, k.value) for k in node.keywords if k.arg]
    elif isinstance(node, ast.Call) and called(node) == "ConfigDict":
        return _of_mapping(node.args[0], prefix)
    elif isinstance(node, ast.Dict):
        pairs = [
            (k.value, v)
            for k, v in zip(node.keys, node.values, strict=True)
            if isinstance(k, ast.Constant) and isinstance(k.value, str)
        ]
    found: list[tuple[str, Scalar]] = []
    for key, value in pairs:
        found += _constants(value, f"{prefix}{key}")
    return found


def _constants(node: ast.expr, key: str) -> list[tuple[str, Scalar]]:
    """A constant under its key, or those of a mapping below it."""
    number = constant(node)
    return [(key, number)] if number is not None else _of_mapping(node, f"{key}." if key else "")
