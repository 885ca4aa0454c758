"""The configs of a job, collected: those that its arguments name, those that these name in turn, Hydra's, accelerate's own.

Files are opened by the caller's `read`. A config that only another file names cannot be replaced by a changed copy, and is kept as fixed.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from supervisor.job.arguments.assignments import settings_of, value_of
from supervisor.job.arguments.launchers import Launch
from supervisor.job.config.edit import Scalar, config_words, read_values
from supervisor.job.knobs.candidates import ACCELERATE, DEEPSPEED
from supervisor.job.knobs.declarations import constant, literal
from supervisor.job.knobs.read_source import ScriptSource, called, parse

Read = Callable[[str], str | None]
_DEEPSPEED_KEYS: Final = frozenset(
    {
        "zero_optimization",
        "train_micro_batch_size_per_gpu",
        "zero_allow_untested_optimizer",
        "steps_per_print",
        "wall_clock_breakdown",
    }
)
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
    texts = dict(given or {})
    for name in config_words(args):
        text = texts[name] if name in texts else read(name)
        if text is not None:
            texts[name] = text
    values: dict[str, Mapping[str, Scalar]] = {name: read_values(name, text) for name, text in texts.items()}
    roles = {name: kind for name, v in values.items() if (kind := _kind(name, v, launch))}
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
            if kind := _kind(nested, values[nested], launch):
                roles[nested] = kind
    own = args[launch.args_at :]
    settled = {**_hydra(own, source, read), **_python_configs(own, read)}
    return Configs(values, roles, frozenset(fixed), settled, _lone(own, source, values))


def _kind(name: str, values: Mapping[str, Scalar], launch: Launch) -> str:
    if name == launch.config:
        return ACCELERATE
    keys = {key.partition(".")[0] for key in values}
    if "compute_environment" in keys or ("distributed_type" in keys and "num_processes" in keys):
        return ACCELERATE
    batch = {"train_batch_size", "gradient_accumulation_steps"} & keys
    if keys & _DEEPSPEED_KEYS or (batch and name.endswith(".json") and {"fp16", "bf16", "optimizer"} & keys):
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
        calls = {called(n) for file in source.files for n in ast.walk(file.tree) if isinstance(n, ast.Call)}
        others = [w for w in args if w != names[0] and "=" not in w]
        if len(others) <= 1 and (calls & set(_LONE_PARSERS) or not source.files or others):
            return names[0]
    return None


def _hydra(args: Sequence[str], source: ScriptSource, read: Read) -> dict[str, tuple[Scalar, str]]:
    """The settings of the script's Hydra config and of the groups that it selects, by the key that an override takes."""
    at = _hydra_config(source)
    if at is None:
        return {}
    folder, name = at
    folder = value_of(args, "--config-path") or value_of(args, "-cp") or folder
    name = value_of(args, "--config-name") or value_of(args, "-cn") or name
    found: dict[str, tuple[Scalar, str]] = {}
    overrides = {s.name.lstrip("+"): s.value for s in settings_of(args) if not s.name.startswith("-")}
    _add_hydra(found, posixpath.join(folder, name), "", overrides, read, depth=0)
    return found


def _hydra_config(source: ScriptSource) -> tuple[str, str] | None:
    for file in source.files:
        for node in ast.walk(file.tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "main"
            ):
                given = {k.arg: literal(k.value) for k in node.keywords}
                name = given.get("config_name")
                if isinstance(name, str):
                    folder = given.get("config_path") or "."
                    return posixpath.normpath(posixpath.join(posixpath.dirname(file.path), str(folder))), name
    return None


def _add_hydra(
    found: dict[str, tuple[Scalar, str]],
    path: str,
    prefix: str,
    overrides: Mapping[str, str | None],
    read: Read,
    *,
    depth: int,
) -> None:
    file = path if path.endswith((".yaml", ".yml")) else f"{path}.yaml"
    text = read(file)
    if text is None or depth > 3:
        return
    folder = posixpath.dirname(file)
    for group, option in _defaults(text):
        chosen = overrides.get(group) or option
        if chosen:
            _add_hydra(
                found,
                posixpath.join(folder, group, chosen),
                f"{prefix}{group.replace('/', '.')}.",
                overrides,
                read,
                depth=depth + 1,
            )
    package = "" if re.match(r"#\s*@package\s+_global_", text) else prefix
    for key, value in read_values(file, text).items():
        found[f"{package}{key}"] = (value, file)


def _defaults(text: str) -> list[tuple[str, str]]:
    block = re.search(r"^defaults:\s*\n((?:[ \t]*-.*\n?|[ \t]*#.*\n|\s*\n)+)", text, re.MULTILINE)
    if block is None:
        return []
    pairs = re.findall(r"-\s*(?:override\s+)?/?([\w/]+)(?:@[\w.]+)?:\s*([\w./-]+)", block[1])
    return [(group, option) for group, option in pairs if option not in {"null", "_self_"}]


def _python_configs(args: Sequence[str], read: Read) -> dict[str, tuple[Scalar, str]]:
    """Plain assignments of a ``.py`` config among the arguments, as flags that override them; nanoGPT's, mmengine's."""
    found: dict[str, tuple[Scalar, str]] = {}
    for word in args:
        if word.startswith("-") or not word.endswith(".py") or "=" in word:
            continue
        _read_python(word, read, found, depth=0)
    return found


def _read_python(path: str, read: Read, found: dict[str, tuple[Scalar, str]], *, depth: int) -> None:
    text = read(path)
    tree = parse(text) if text else None
    if tree is None or depth > 4:
        return
    for node in tree.body:
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
    if isinstance(node, ast.Call) and called(node) == "dict":
        pairs = [(k.arg, k.value) for k in node.keywords if k.arg]
    elif isinstance(node, ast.Dict):
        pairs = [
            (k.value, v)
            for k, v in zip(node.keys, node.values, strict=True)
            if isinstance(k, ast.Constant) and isinstance(k.value, str)
        ]
    found: list[tuple[str, Scalar]] = []
    for key, value in pairs:
        number = constant(value)
        if number is not None:
            found.append((f"{prefix}{key}", number))
        else:
            found += _of_mapping(value, f"{prefix}{key}.")
    return found
