"""The settings that a training script declares, in whatever style it declares them: parsed, never run.

Read are calls of argparse, click, typer and absl with literal arguments, fields of dataclasses and parameters of functions
where a parser is made of them (HfArgumentParser, simple-parsing, tyro, fire, jsonargparse), dicts of defaults that are
handed to a parser, and plain assignments of a script whose arguments override its globals (nanoGPT's configurator).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

Literal = int | float | str | bool | None

# Calls that make a parser of dataclasses, and of a function's parameters.
_DATACLASS_PARSERS: Final = frozenset(
    {
        "HfArgumentParser", "TrlParser", "H4ArgumentParser", "ArgumentParser", "DataclassArgumentParser", "parse_args_into_dataclasses",
        "add_arguments", "tyro", "simple_parsing", "draccus", "pyrallis", "chz",
    }
)  # fmt: skip
_DATACLASS_MODULES: Final = frozenset(
    {"simple_parsing", "tyro", "draccus", "pyrallis", "trl", "jsonargparse", "pydantic_config"}
)
_FUNCTION_PARSERS: Final = frozenset({"Fire", "CLI", "auto_cli", "run", "cli", "command"})
_FUNCTION_MODULES: Final = frozenset({"fire", "jsonargparse", "typer", "tyro", "defopt"})
_ABSL: Final = {"DEFINE_integer": "int", "DEFINE_string": "str", "DEFINE_float": "float", "DEFINE_bool": "bool", "DEFINE_boolean": "bool", "DEFINE_enum": "str"}  # fmt: skip
_HELPERS: Final = frozenset({"add_arg", "add_arguments"})
_TYPED: Final = frozenset({"int", "float", "str", "bool"})
_CONTINUES: Final = re.compile(r"\b(resum|continu|restor|restart|reload)|checkpoint", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ScriptFlag:
    """One setting a script declares. `default` and `choices` only where they are literals.

    `type`: ``int``, ``str`` ... where the declaration names it. `const`: what a flag with ``nargs='?'`` means without a value; False for a switch that turns off. `newest`: the word for the newest checkpoint that its help gives; `continues`: its help speaks of continuing from a checkpoint.
    `default_known`: False where the default is computed. `owner`: the dataclass that declares it, or the name of the argument group; `line` and `file` say where.
    """

    names: tuple[str, ...]
    dest: str
    default: Literal
    is_switch: bool
    choices: tuple[str, ...] = ()
    type: str | None = None
    optional_value: bool = False
    const: Literal = None
    required: bool = False
    owner: str = ""
    default_known: bool = True
    newest: str = ""
    continues: bool = False
    line: int = 0
    file: str = ""

    @property
    def where(self) -> str:
        """The file and line of the declaration, for people."""
        return f"{self.file or 'the script'}:{self.line}"


def declared_flags(
    tree: ast.Module,
    nodes: Sequence[ast.AST],
    modules: frozenset[str],
    file: str = "",
    *,
    by_key: bool = False,
) -> tuple[ScriptFlag, ...]:
    """Every setting that a parsed file declares, in the order of the file.

    Args:
        tree: the file.
        nodes: all nodes of the tree.
        modules: top names of the packages that the script and its local imports import.
        file: its name, for people.
        by_key: the command line's keys are laid over the fields of dataclasses (``OmegaConf.from_cli()``).
    """
    flags: list[ScriptFlag] = []
    called = {_called(node) for node in nodes if isinstance(node, ast.Call)}
    dataclasses = (
        by_key
        or bool(modules & _DATACLASS_MODULES)
        or bool(called & (_DATACLASS_PARSERS - {"ArgumentParser"}))
    )
    # A function of **kwargs behind Fire sets the fields of config classes, which stand in files of their own.
    dataclasses |= "fire" in modules and "Fire" not in called
    functions = _parsed_functions(tree, nodes, modules)
    for node in nodes:
        match node:
            case ast.Call():
                flags += _of_call(node)
            case ast.ClassDef() if dataclasses or modules & {"transformers", "tap"}:
                flags += _of_dataclass(node, own=dataclasses)
            case ast.FunctionDef(name=name) if name in functions or _is_command(node):
                flags += _of_function(node)
            case _:
                pass
    flags += _of_dict_defaults(nodes, called)
    flags += _of_globals(tree)
    return tuple(replace(flag, file=file) for flag in flags)


def _of_call(call: ast.Call) -> Iterator[ScriptFlag]:
    name = _called(call)
    word = literal(call.args[0]) if name in _HELPERS and call.args else None
    if (
        isinstance(word, str) and word.isidentifier()
    ):  # adds the dashes: `add_arg("batch_size", int, 8, "help")`
        default = literal(call.args[2]) if len(call.args) > 2 else _keyword(call, "default")
        typed = (
            call.args[1]
            if len(call.args) > 1
            else next((k.value for k in call.keywords if k.arg == "type"), None)
        )
        yield ScriptFlag(
            (f"--{word}",), word, default, is_switch=False, type=_type_name(typed), line=call.lineno
        )
    elif (
        name.endswith(("add_argument", "add_arg"))
        or (name == "option" and isinstance(call.func, ast.Name | ast.Attribute))
        or _adds_flag(call, name)
    ):
        flag = _argument(call, click=name == "option")
        if flag:
            yield flag
    elif name in _ABSL and call.args:
        word = literal(call.args[0])
        if isinstance(word, str):
            default = literal(call.args[1]) if len(call.args) > 1 else _keyword(call, "default")
            yield ScriptFlag(
                (f"--{word}",),
                word,
                default,
                is_switch=_ABSL[name] == "bool",
                type=_ABSL[name],
                line=call.lineno,
            )


def _adds_flag(call: ast.Call, name: str) -> bool:
    """configargparse's short form of ``add_argument``, which sets have too: told by the flag and by what is said of it."""
    word = literal(call.args[0]) if name == "add" and call.args else None
    said = {k.arg for k in call.keywords} & {"help", "type", "action", "default", "nargs"}
    return isinstance(word, str) and word.startswith("-") and bool(said)


def _argument(call: ast.Call, *, click: bool) -> ScriptFlag | None:
    words = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    names, name = _flag_names(words)
    if name is None:
        return None
    given = {k.arg: k.value for k in call.keywords if k.arg}
    value = {name: literal(node) for name, node in given.items()}
    dest = next((w for w in words if not w.startswith("-")), None) if click else value.get("dest")
    choices, default = given.get("choices"), given.get("default")
    listed = choices.elts if isinstance(choices, ast.List | ast.Tuple) else []
    return ScriptFlag(
        names=names,
        dest=dest if isinstance(dest, str) else name,
        default=value.get("default"),
        is_switch=value.get("action") in {"store_true", "store_false"} or value.get("is_flag") is True,
        choices=tuple(str(literal(c)) for c in listed),
        type=_type_name(given.get("type")),
        optional_value=value.get("nargs") == "?",
        const=False if value.get("action") == "store_false" else value.get("const"),
        required=value.get("required") is True,
        default_known=default is None or isinstance(default, ast.Constant) or value["default"] is not None,
        newest=_newest_word(said := _help_text(given.get("help"))),
        continues=_CONTINUES.search(said) is not None,
        line=call.lineno,
    )


def _help_text(help_: ast.expr | None) -> str:
    texts = [n.value for n in ast.walk(help_) if isinstance(n, ast.Constant)] if help_ is not None else []
    return " ".join(str(text) for text in texts)


def _newest_word(help_: str) -> str:
    """``latest`` of the help "a snapshot, or 'latest'"."""
    found = re.search(r"['\"`](latest|last|newest|auto)['\"`]", help_)
    return found[1] if found is not None else ""


def _flag_names(words: list[str]) -> tuple[tuple[str, ...], str | None]:
    """The spellings of a flag, and the name that its value goes by; None for a positional argument."""
    names = tuple(name for word in words for name in word.split("/") if name.startswith("-"))
    long = [n for n in names if n.startswith("--")] or [n for n in names if len(n) > 2]
    return names, long[0].lstrip("-").replace("-", "_") if long else None


def _type_name(node: ast.expr | None) -> str | None:
    match node:
        case ast.Name(id=name) if name in _TYPED:
            return name
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return "bool" if "bool" in name.lower() else "int" if name == "INT" else name
        case ast.Call() as call:
            return "int" if "Int" in _called(call) else None
        case _:
            return None


def _of_dataclass(node: ast.ClassDef, *, own: bool) -> Iterator[ScriptFlag]:
    bases = {_leaf_name(base) for base in node.bases}
    is_dataclass = any(
        "dataclass" in (_leaf_name(d) or "") or "config" in (_leaf_name(d) or "") for d in node.decorator_list
    )
    extends = any(
        base and (base == "Tap" or base.endswith(("TrainingArguments", "Config", "Arguments")))
        for base in bases
    )
    if not (is_dataclass or extends) or not (own or extends):
        return
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            name = item.target.id
            default = _field_default(item.value)
            yield ScriptFlag(
                names=_spellings(name),
                dest=name,
                default=default,
                is_switch=False,
                type=_annotation(item.annotation),
                owner=node.name,
                default_known=default is not None or _is_none(item.value),
                line=item.lineno,
            )


def _field_default(node: ast.expr | None) -> Literal:
    if isinstance(node, ast.Call):
        return _keyword(node, "default")
    return literal(node)


def _is_none(node: ast.expr | None) -> bool:
    """Whether a field's default is None, outright or in ``field(default=None)``."""
    if isinstance(node, ast.Call):
        node = next((k.value for k in node.keywords if k.arg == "default"), None)
    return isinstance(node, ast.Constant) and node.value is None


def _annotation(node: ast.expr | None) -> str | None:
    for inner in ast.walk(node) if node is not None else ():
        if isinstance(inner, ast.Name) and inner.id in _TYPED:
            return inner.id
    return None


def _parsed_functions(tree: ast.Module, nodes: Sequence[ast.AST], modules: frozenset[str]) -> frozenset[str]:
    """Functions whose parameters become flags: ``fire.Fire(train)``, ``CLI(setup)``, ``typer.run(main)``."""
    if not modules & _FUNCTION_MODULES:
        return frozenset()
    functions = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    # A command of several subcommands hands its functions over in a dict, from another file.
    found: set[str] = {"setup", "main"} & functions if "jsonargparse" in modules else set()
    for node in nodes:
        if isinstance(node, ast.Call) and _called(node) in _FUNCTION_PARSERS:
            if not node.args:
                found |= {"main", "train"} & functions
            for argument in node.args[:1]:
                found |= {n.id for n in ast.walk(argument) if isinstance(n, ast.Name) and n.id in functions}
    return frozenset(found)


def _is_command(node: ast.FunctionDef) -> bool:
    """Typer's ``@app.command()``; click's options are read from its decorators instead."""
    return any(isinstance(d, ast.Call) and _called(d) == "command" for d in node.decorator_list) and not any(
        isinstance(d, ast.Call) and _called(d) in {"option", "argument"} for d in node.decorator_list
    )


def _of_function(node: ast.FunctionDef) -> Iterator[ScriptFlag]:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    positional = [*node.args.posonlyargs, *node.args.args]
    gap = len(positional) - len(node.args.defaults)
    defaults: list[ast.expr | None] = [*([None] * gap), *node.args.defaults, *node.args.kw_defaults]
    for argument, default in zip(arguments, defaults, strict=True):
        value = default
        if isinstance(value, ast.Call) and _called(value) == "Option":  # typer
            value = value.args[0] if value.args else None
        yield ScriptFlag(
            names=_spellings(argument.arg),
            dest=argument.arg,
            default=literal(value),
            is_switch=False,
            type=_annotation(argument.annotation),
            required=default is None,
            owner=node.name,
            default_known=default is None
            or isinstance(default, ast.Constant)
            or literal(default) is not None,
            line=argument.lineno,
        )


def _of_dict_defaults(nodes: Sequence[ast.AST], called: set[str]) -> Iterator[ScriptFlag]:
    """``defaults = dict(batch_size=1, ...)`` of a script that makes a parser of such a dict."""
    if not any(name.startswith("add_dict") or name == "set_defaults" for name in called):
        return
    for node in nodes:
        match node:
            case ast.Assign(value=ast.Call(func=ast.Name(id="dict"), keywords=keywords)):
                for keyword in keywords:
                    if keyword.arg:
                        yield _plain(keyword.arg, literal(keyword.value), keyword.value.lineno)
            case ast.Assign(value=ast.Dict(keys=keys, values=values)):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield _plain(key.value, literal(value), value.lineno)
            case _:
                pass


def _of_globals(tree: ast.Module) -> Iterator[ScriptFlag]:
    """Plain assignments at the top of a script that executes a configurator over its own globals."""
    if not any(_overrides_globals(node) for node in tree.body):
        return
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                number = constant(value)
                if number is not None:
                    yield ScriptFlag((f"--{name}",), name, number, is_switch=False, line=node.lineno)
            case _:
                pass


def _overrides_globals(node: ast.stmt) -> bool:
    """``exec(open('configurator.py').read())``: arguments of the form --name=value replace the script's globals."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Name(id="exec"), args=[inner, *_])):
            return any(
                isinstance(n, ast.Constant) and isinstance(n.value, str) and "config" in n.value
                for n in ast.walk(inner)
            )
        case _:
            return False


def _plain(name: str, default: Literal, line: int) -> ScriptFlag:
    return ScriptFlag(_spellings(name), name, default, is_switch=False, line=line)


def _spellings(name: str) -> tuple[str, ...]:
    return (f"--{name}",)


def literal(node: ast.expr | None) -> Literal:
    """A constant, with its sign; None for anything else."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Constant(value=(bool() | int() | float() | str()) as value):
            return value
        case _:
            return None


def constant(node: ast.expr | None) -> Literal:
    """A constant or a product of whole constants, such as ``5 * 8``."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            first, second = constant(left), constant(right)
            if isinstance(first, int) and isinstance(second, int) and max(abs(first), abs(second)) < 1 << 40:
                return first * second
            return None
        case _:
            return literal(node)


def _keyword(call: ast.Call, name: str) -> Literal:
    return literal(next((k.value for k in call.keywords if k.arg == name), None))


def _called(call: ast.Call) -> str:
    return _leaf_name(call.func) or ""


def _leaf_name(node: ast.expr) -> str | None:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call() as call:
            return _called(call)
        case _:
            return None
