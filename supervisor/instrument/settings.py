"""The settings that a script was given or took by default: from its words, its parser, its configuration, its environment.

Numbers, booleans and existing paths are written. Of any other text only its type, whether it is empty, and a word of `WORDS`; of a
name that may hold a secret not even that. Where a parser calls the training, its values are read before that call begins.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
from types import ModuleType

from .imports import PACKAGE, environment, is_user_code
from .wire import is_secret, watch, wire

TYPE_CHECKING = False  # typing takes milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from .wire import Look

MOST = {"first": 800, "other": 400, "file": 200}
"""Settings with a word of `_FIRST`, others, and configuration files: a data set read by `json.loads` costs no more after these."""
MAX_FILE_BYTES = 1 << 20
WORDS = ("resume", "scratch", "auto", "latest", "last", "best", "none")
_FEEDS = re.compile(r"batch|accum|micro|(?:^|[_.])(?:g?bs|bsz|mbs|bsize|gas?|update_freq)(?:[_.]|$)")
_FIRST = re.compile(
    _FEEDS.pattern + r"|step|iter|epoch|worker|resum|checkpoint|ckpt|restor|output|snapshot|token"
    r"|(?:^|[_.])(?:load|init_from|out|save|saving)(?:[_.]|$)"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NAME = re.compile(r"(?!(?:\D*\d){5})(?!(?:.*?[A-Za-z]\d+[A-Za-z]){2})[A-Za-z_][\w-]{0,40}|\d\d?")
"""With five digits, or digits between letters twice, it may be a key that is kept as a name."""
_NUMBER = re.compile(r"[+-]?\d{1,12}(?:\.\d{0,12})?(?:[eE][+-]?\d\d?)?")

noted: dict[tuple[str, str, str | None], dict[str, Any]] = {}
"""The facts of each setting by (by, name, file): it is recorded again only if they change."""
counts = dict.fromkeys(MOST, 0)


def begin() -> None:
    """Read the words of this process at the first import of a watched module, and the rest once it trains."""
    if read_argv not in wire.at_start:
        wire.at_start.extend((read_argv, _read_the_rest))
        read_argv()


def has(words: re.Pattern[str], name: str) -> bool:
    """Whether a name has one of the words of `_FEEDS` or `_FIRST`."""
    return words.search(_CAMEL.sub("_", name).lower().replace("-", "_")) is not None


def shown(name: str, value: Any) -> dict[str, Any]:
    """`type`, `empty` and `value` of a setting, as far as they may be written."""
    kind = type(value)
    facts: dict[str, Any] = {"type": kind.__name__ if kind.__module__ == "builtins" else "other"}
    if hasattr(value, "__fspath__"):
        value, facts["type"] = os.fspath(value), "path"
    if isinstance(value, str):
        text = str.__str__(value)  # an enumeration's own __str__ says its class
        facts.update(type="path" if facts["type"] == "path" else "str", empty=not text)
        if _NUMBER.fullmatch(text):
            facts["value"] = float(text) if set(text) & set(".eE") else int(text)
        elif text.lower() in WORDS:
            facts["value"] = text
        elif 0 < len(text) < 4096 and os.path.exists(text):
            facts["value"] = os.path.abspath(text)
    elif kind is bool or (kind in (int, float) and abs(value) < 10**12):  # longer ones are identifiers
        facts["value"] = value
    if is_secret(name):
        facts.pop("value", None)
    return facts


def note(by: str, name: Any, value: Any, words: Any = (), given: Any = None, file: str | None = None) -> None:
    """Record a setting that `by` read. `words` name it on a command line; `given` is False for a default, None if unknown."""
    name = str(name)
    facts = dict(shown(name, value), words=list(words) or None, given=given)
    if noted.get((by, name, file)) == facts or not all(map(_NAME.fullmatch, name.split("."))):
        return
    sort = "first" if has(_FIRST, name) else "other"
    counts[sort] += 1
    if counts[sort] <= MOST[sort]:
        noted[by, name, file] = facts
        wire.record("setting", by=by, name=name, file=file, **facts)


def note_all(by: str, values: object, form: str, words: list[str]) -> None:
    """Record a parser's values, which may be nested. `form`: how a name stands among the `words` of the command line."""
    for name, value in leaves(values):
        names = {form % name: 1, form % (name.replace("_", "-") if by in ("tyro", "fire") else name): 1}
        note(by, name, value, names, is_given(names, words))


def leaves(value: Any, prefix: str = "", depth: int = 6) -> Iterator[tuple[str, Any]]:
    """The leaves of nested dicts, dataclasses and lists, as (path with dots, value); a dict's first 400, a list's first 16."""
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        value = {name: getattr(value, name, None) for name in value.__dataclass_fields__}
    elif isinstance(value, (list, tuple)) and value and isinstance(value[0], dict):
        value = dict(enumerate(value[:16]))
    if not isinstance(value, dict):
        yield prefix, value
    elif depth:
        for name, held in list(value.items())[:400]:
            yield from leaves(held, "%s.%s" % (prefix, name) if prefix else str(name), depth - 1)


def read_argv() -> None:
    """Settings in `sys.argv`: ``--name value``, ``--name=value``, ``-b 16``, ``-b16`` and ``key=value``."""
    words = [word for word in getattr(sys, "argv", [])[1:] if isinstance(word, str)]
    while words and words[-1] != "--multiprocessing-fork":  # such a child is given its parent's words later
        head, equals, text = words.pop(0).partition("=")
        value: Any = text
        name = head.lstrip("-+")
        if not head.startswith("-"):
            if equals and value and not value.startswith("="):
                note("argv", name, value, [name], True)
            continue
        short = not head.startswith("--") and len(name) > 1
        if short and name[1:].isdigit() and not equals:
            head, equals, name, value = head[:2], "=", name[0], name[1:]
        elif short and not has(_FEEDS, name):
            continue  # -pSECRET
        if not equals:
            value = words.pop(0) if words and (_is_value(words[0]) or is_secret(name)) else True
        note("argv", name.replace("-", "_"), value, [head], True)


def _is_value(word: str) -> bool:
    key, equals, value = word.partition("=")
    if equals and _NUMBER.fullmatch(value) and has(_FEEDS, key):
        return False
    return not word.startswith("-") or _NUMBER.fullmatch(word) is not None


def _read_the_rest() -> None:
    environment.leave()
    for name, (value, given) in list(environment.read.items()):
        note("env", name, value, [name], given)
    for name, value in list(vars(sys.modules["__main__"]).items()):
        if type(value) is int and has(_FEEDS, name):
            note("main", name, value)


def outermost(look: Callable[..., None]) -> Callable[..., Look]:
    """`look` for functions that call each other or themselves: the outermost call of a thread alone is looked at.

    It is given (result, args, kwargs, calls, caller): the first arguments of all calls within it, and the calling frame.
    """
    state = threading.local()

    def looking(args: Any, kwargs: Any) -> Look:
        calls = state.__dict__.setdefault("calls", [])
        calls.append(args[:1])
        if len(calls) > 1:
            return
        try:
            result = yield
        finally:
            state.calls = []
        look(result, args, kwargs, calls, sys._getframe(2))

    return looking


def is_given(names: Iterable[str], words: list[str]) -> bool:
    """Whether one of an option's names stands among the words of a command line."""
    heads = {word.partition("=")[0].lstrip("+").replace("_", "-") for word in words}
    short = {word[:2] for word in words if word[:1] == "-" and not word.startswith("--")}
    return not (heads | short).isdisjoint(name.replace("_", "-") for name in names)


def _words_given(_parser: object, args: list[str] | None = None, *_rest: Any, **_more: Any) -> list[str]:
    return [str(word) for word in (sys.argv[1:] if args is None else args)]


@outermost
def argparse_parsed(result: Any, args: Any, kwargs: Any, calls: Any, _caller: Any) -> None:
    """The result of a parser, its subparsers' options with it, under all the words that name an option, abbreviations too."""
    words = _words_given(*args, **kwargs)
    heads = {word.partition("=")[0] for word in words if word.startswith("--")}
    options: dict[str, tuple[Any, list[str]]] = {}
    for (parser,) in calls:
        for action in parser._actions:
            options.setdefault(action.dest, (action.default, []))[1].extend(action.option_strings)
        exact = parser._option_string_actions
        for head in heads.difference(exact):  # an abbreviation
            meant = {exact[word].dest for word in exact if word.startswith(head)}
            if len(meant) == 1:
                options[meant.pop()][1].append(head)
    values = vars(result[0])
    for name, (default, names) in options.items():
        if name in values:
            plain = {type(values[name]), type(default)} <= {int, float, str, bool, type(None)}
            given = is_given(names, words) or (plain and str(values[name]) != str(default))
            note("argparse", name, values[name], dict.fromkeys(names), given)


@outermost
def jsonargparse_parsed(result: Any, args: Any, kwargs: Any, _calls: Any, _caller: Any) -> None:
    """It does not call argparse's parser; a subcommand's settings are named as they are behind that subcommand."""
    values = result.as_dict()
    while isinstance(values.get(values.get("subcommand")), dict):
        values = values[values["subcommand"]]
    note_all("jsonargparse", values, "--%s", _words_given(*args, **kwargs))


def click_made(args: Any, _kwargs: Any) -> Look:
    """The context of a command holds the values before the command begins."""
    context = yield
    for option in [option for option in args[0].params if option.name in context.params]:
        given = not context.get_parameter_source(option.name).name.startswith("DEFAULT")
        note("click", option.name, context.params[option.name], option.opts, given)


@outermost
def tyro_made(result: Any, *_call: Any) -> None:
    """The call that is made of the arguments, before it is called."""
    note_all("tyro", result[0].keywords, "--%s", sys.argv[1:])


def absl_parsed(args: Any, _kwargs: Any) -> Look:
    """All flags, once they are parsed."""
    yield
    for name, flag in args[0]._flags().items():
        if name == flag.name:
            words = ["--" + name] + ["-" + short for short in [flag.short_name] if short]
            note("absl", name, flag.value, words, not flag.using_default_value)


def fire_parsed(args: Any, _kwargs: Any) -> Look:
    """The arguments that are made for a function, before it is called with them; the caller knows the function and the words."""
    result = yield
    caller = sys._getframe(2).f_locals
    values = dict(caller["fn_spec"].kwonlydefaults or {}, **dict(zip(args[0], result[0])))
    note_all("fire", dict(values, **result[1]), "--%s", caller["args"])


def hydra_composed(args: Any, kwargs: Any) -> Look:
    """The configuration that Hydra keeps for the job. Interpolations are left alone: a resolver is the user's code."""
    yield
    config = args[1] if len(args) > 1 else kwargs["cfg"]
    values = sys.modules["omegaconf"].OmegaConf.to_container(config, resolve=False)
    note_all("hydra", values, "%s", values.pop("hydra")["overrides"]["task"])


def deepspeed_made(args: Any, _kwargs: Any) -> Look:
    """The three numbers that DeepSpeed has worked out."""
    yield
    for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        note("deepspeed", name, getattr(args[0], name))


def watch_loaders(module: ModuleType) -> None:
    """What a module's loaders return to the script itself, or to anybody for a file that the command line or the plan names."""

    def loaded(result: Any, args: Any, kwargs: Any, _calls: Any, caller: Any) -> None:
        if wire.step or counts["file"] >= MOST["file"] or not isinstance(result, (dict, list)):
            return
        file, named = _file_of(args[0] if args else next(iter(kwargs.values()), None))
        if PACKAGE + ".apply" in sys.modules:
            sys.modules[PACKAGE + ".apply"].loaded(by, file, result)
        while caller.f_globals.get("__name__", "").partition(".")[0] in ("omegaconf", "yacs"):
            caller = caller.f_back  # they load for the one who calls them
        if named or is_user_code(caller):
            counts["file"] += 1
            for name, value in leaves(result):
                if has(_FIRST, name):
                    note(by, name, value, [name], file=file)

    by = "toml" if module.__name__.startswith("tom") else module.__name__
    look = outermost(loaded)
    owner = sys.modules[module.load.__module__]  # tomllib._parser, by which tomllib's function is pickled
    for name in ("load", "loads", "safe_load", "full_load", "unsafe_load"):
        watch(owner, name, look, module)


def _file_of(source: Any) -> tuple[str | None, bool]:
    """The path of what is loaded, and whether it is a file that the command line or the plan names. A text is compared."""
    words = [str(word).rpartition("=")[2] for word in getattr(sys, "argv", [])[1:]]
    words = [word for word in words if word.endswith((".json", ".yaml", ".yml", ".toml"))]
    if PACKAGE + ".apply" in sys.modules:
        words += [entry["path"] for entry in sys.modules[PACKAGE + ".apply"].plan.files]
    named = _contents(tuple(words))
    if isinstance(source, (str, bytes)):
        text: Any = source.encode("utf-8", "replace") if named and isinstance(source, str) else source
        same = [path for path, held in named.items() if held == text.replace(b"\r\n", b"\n")]
        return (same[0], True) if same else (None, False)
    path = getattr(source, "name", None)
    return (os.path.abspath(path), os.path.abspath(path) in named) if isinstance(path, str) else (None, False)


@functools.lru_cache(maxsize=1)
def _contents(paths: tuple[str, ...]) -> dict[str, bytes]:
    found = {}
    for path in paths:
        if os.path.isfile(path) and os.path.getsize(path) <= MAX_FILE_BYTES:
            with open(path, "rb") as file:
                found[os.path.abspath(path)] = file.read().replace(b"\r\n", b"\n")
    return found
