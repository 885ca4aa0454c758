"""Read a script's settings, explicit or default, from its command line, parser, configuration and environment.

Numbers, booleans and existing paths are recorded. For any other text, only its type, whether it is empty, and whether
it is one of `WORDS` are recorded. For a name that may hold a secret, no value is recorded. If a parser itself calls
the training function, its values are read before the call.

A plan changes settings before the script reads them. ``STOKER_APPLY`` contains the plan as JSON: `argv` (a rank's
command line in the first attempt; null for any process), `options` (each with `words`, `name` and `value`), `environ`,
and `files` (each with `path`, `key` and `value`).
"""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
from contextlib import suppress
from types import ModuleType, SimpleNamespace

from . import imports
from .imports import is_user_code
from .wire import CAMEL, Look, is_secret, quietly, watch, wire

TYPE_CHECKING = False  # importing typing takes milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

MOST = {"first": 800, "other": 400, "file": 200}
"""Limits on settings: names with a `_FIRST` word, other names, and those in files (`json.loads` may read a data set)."""
MAX_FILE_BYTES = 1 << 20
_SPAWNED = "--multiprocessing-fork"
"""The last word on a spawned child's command line. The child receives its parent's command line later."""
WORDS = ("resume", "scratch", "auto", "latest", "last", "best", "none")
_FEEDS = re.compile(
    r"batch|accum|micro|subdivision|(?:^|[_.])(?:g?bs|bsz|mbs|bsize|gas?|update_freq)(?:[_.]|$)"
)
_FIRST = re.compile(
    _FEEDS.pattern + r"|step|iter|epoch|worker|resum|checkpoint|ckpt|restor|output|snapshot|token"
    r"|(?:^|[_.])(?:load|init_from|out|save|saving)(?:[_.]|$)"
)
_NAME = re.compile(r"(?!(?:\D*\d){5})(?!(?:.*?[A-Za-z]\d+[A-Za-z]){2})[A-Za-z_][\w-]{0,40}|\d\d?")
"""Names with five digits, or with digits between letters twice, are rejected: they may be API keys used as names."""
_NO_VALUE = re.compile(r"-(?![\d.])|[\w.+]+=\d+$")
"""Matches the next option or a key with a number, which means that the preceding word is a switch."""
_KEY = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+|[A-Z][A-Z_]+")
"""Matches a key in yacs-style ``KEY VALUE`` arguments (`CfgNode.merge_from_list`): dotted, or in capitals."""
_NUMBER = re.compile(r"[+-]?\d{1,12}(?:\.\d{0,12})?(?:[eE][+-]?\d\d?)?")

noted: dict[tuple[str, str, str | None], dict[str, Any]] = {}
"""Recorded values of each setting, keyed by (by, name, file). A setting is recorded again only if it changes."""
counts = dict.fromkeys(MOST, 0)


def begin() -> None:
    """At the first watched import, apply the plan to the command line and read it. Read the rest once training starts."""
    if plan.late and _SPAWNED not in getattr(sys, "argv", [_SPAWNED]):
        plan.late = False
        with quietly("apply"):
            _change_words()
    if read_argv not in wire.at_start:
        wire.at_start.extend((read_argv, _read_the_rest))
        read_argv()


def has(words: re.Pattern[str], name: str) -> bool:
    """Check whether a name contains one of the words in a pattern such as `_FEEDS` or `_FIRST`."""
    return words.search(CAMEL.sub("_", name).lower().replace("-", "_")) is not None


def shown(name: str, value: Any) -> dict[str, Any]:
    """Return a setting's `type`, `empty` and `value`, omitting whatever must not be recorded."""
    value = os.fspath(value) if hasattr(value, "__fspath__") else value
    kind = type(value)
    facts: dict[str, Any] = {"type": kind.__name__ if kind.__module__ == "builtins" else "other"}
    if isinstance(value, str):
        text = str.__str__(value)  # an enumeration's own __str__ gives its class
        facts.update(type="str", empty=not text)
        if _NUMBER.fullmatch(text):
            facts["value"] = float(text) if set(text) & set(".eE") else int(text)
        elif text.lower() in WORDS:
            facts["value"] = text
        elif 0 < len(text) < 4096 and os.path.exists(text):
            facts["value"] = os.path.abspath(text)
    elif kind is bool or (kind in (int, float) and abs(value) < 10**12):  # longer numbers are identifiers
        facts["value"] = value
    if is_secret(name):
        facts.pop("value", None)
    return facts


def note(by: str, name: Any, value: Any, words: Any = (), given: Any = None, file: str | None = None) -> None:
    """Record a setting read by `by`. `words` are its command-line names. `given` is False for a default and None if unknown."""
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
    """Record a parser's values, which may be nested. `form` turns a name into its spelling in the command line's `words`."""
    for name, value in leaves(values):
        names = {form % name: 1, form % (name.replace("_", "-") if by in ("tyro", "fire") else name): 1}
        note(by, name, value, names, is_given(names, words))


def leaves(value: Any, prefix: str = "", depth: int = 6) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested dicts (first 400 items), lists (first 16) and dataclasses as (dotted path, value)."""
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
    """Record settings from `sys.argv`: ``--name value``, ``--name=value``, ``-b 16``, ``-b16``, ``key=value``, ``KEY 16``."""
    words = [word for word in getattr(sys, "argv", [])[1:] if isinstance(word, str)]
    while words and words[-1] != _SPAWNED:
        head, equals, text = words.pop(0).partition("=")
        value: Any = text
        name = head.lstrip("-+")
        if not head.startswith("-"):
            if not equals and _is_pair(head, *words[:1]):
                value = words.pop(0)
            if value and not value.startswith("="):
                note("argv", name, value, [name], True)
            continue
        short = not head.startswith("--") and len(name) > 1
        if short and name[1:].isdigit() and not equals:
            head, equals, name, value = head[:2], "=", name[0], name[1:]
        elif short and not has(_FEEDS, name):
            continue  # -pSECRET
        if not equals:
            is_pair = _is_pair(*words[:2]) and has(_FEEDS, words[0])
            is_value = words and (is_secret(name) or not (is_pair or _NO_VALUE.match(words[0])))
            value = words.pop(0) if is_value else True
        note("argv", name.replace("-", "_"), value, [head], True)


def _is_pair(key: str = "", value: str = "", *_rest: str) -> bool:
    """Check whether two words form a yacs-style key and number."""
    return value.isdigit() and _KEY.fullmatch(key) is not None


def _shown_word(word: str, before: str, following: str) -> str:
    """Return a command-line word that is safe to record. A plan uses these words to find this process in the next attempt."""
    option, equals, value = word.partition("=")
    if not equals:
        is_key = _is_pair(word, following) and has(_FIRST, word) and not is_secret(before.lstrip("-"))
        is_name = word.startswith("--") or before == "-m" or is_key
        length = len(word) if is_name else 2 if word.startswith("-") else 0
        option, value = word[:length], word[length:]
    if option and not all(map(_NAME.fullmatch, option.lstrip("-+").split("."))):
        return _HIDDEN
    is_hidden = value and "value" not in shown(option.lstrip("-+"), value)
    return option + equals + (_HIDDEN if is_hidden or is_secret(before.lstrip("-")) else value)


def _read_the_rest() -> None:
    words = _command_line()[0]
    shown_words = [_shown_word(*three) for three in zip(words, ["", *words], [*words[1:], ""])]
    wire.argv = shown_words if sum(map(len, words)) < 1 << 15 else None
    imports.leave_environment()
    for name, (value, given) in list(imports.read.items()):
        note("env", name, value, [name], given)
    variables = dict(vars(sys.modules["__main__"]))
    # nanoGPT's style: each --name=value becomes a global of the main program. No parser ran, and a global has the value.
    options = [word[2:].partition("=") for word in sys.argv[1:] if word.startswith("-")]
    parsed = any(by not in ("argv", "env", "yaml", "json", "toml") for by, _, _ in noted)
    takes_words = not parsed and all(equals and option in variables for option, equals, _ in options)
    takes_words = takes_words and any(str(variables[option]) == text for option, _, text in options)
    for name, value in variables.items():
        if type(value) is int and has(_FEEDS, name):
            note("main", name, value, ["--" + name] if takes_words else ())


def outermost(look: Callable[..., None]) -> Callable[..., Look]:
    """When observed functions call each other, call `look` (result, args, kwargs, caller's frame) only for the outermost call."""
    within: set[int] = set()

    def looking(args: Any, kwargs: Any) -> Look:
        thread = threading.get_ident()
        if thread in within:
            return
        within.add(thread)
        try:
            result = yield
        finally:
            within.discard(thread)
        look(result, args, kwargs, sys._getframe(2))

    return looking


def is_given(names: Iterable[str], words: list[str]) -> bool:
    """Check whether a command line contains one of an option's names."""
    heads = {word.partition("=")[0].lstrip("+").replace("_", "-") for word in words}
    short = {word[:2] for word in words if word[:1] == "-" and not word.startswith("--")}
    return not (heads | short).isdisjoint(name.replace("_", "-") for name in names)


def _words_given(_parser: object, args: list[str] | None = None, *_rest: Any, **_more: Any) -> list[str]:
    return [str(word) for word in (sys.argv[1:] if args is None else args)]


def argparse_parsed(args: Any, kwargs: Any) -> Look:
    """Record argparse results under every name of each option, including abbreviations. A nested parser is a subparser."""
    result: Any = yield
    words = _words_given(*args, **kwargs)
    heads = {word.partition("=")[0] for word in words if word.startswith("--")}
    options: dict[str, tuple[Any, list[str]]] = {}
    for action in args[0]._actions:
        options.setdefault(action.dest, (action.default, []))[1].extend(action.option_strings)
    exact = args[0]._option_string_actions
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
def jsonargparse_parsed(result: Any, args: Any, kwargs: Any, _caller: Any) -> None:
    """Record jsonargparse's values, since it bypasses argparse. Names in a subcommand omit the subcommand."""
    values = result.as_dict()
    while isinstance(values.get(values.get("subcommand")), dict):
        values = values[values["subcommand"]]
    note_all("jsonargparse", values, "--%s", _words_given(*args, **kwargs))


def click_made(args: Any, _kwargs: Any) -> Look:
    """Record the values in a command's context, which are available before the command runs."""
    context: Any = yield
    for option in [option for option in args[0].params if option.name in context.params]:
        given = not context.get_parameter_source(option.name).name.startswith("DEFAULT")
        note("click", option.name, context.params[option.name], option.opts, given)


@outermost
def tyro_made(result: Any, *_call: Any) -> None:
    """Record the arguments of the call that tyro builds, before it is executed."""
    note_all("tyro", result[0].keywords, "--%s", sys.argv[1:])


def absl_parsed(args: Any, _kwargs: Any) -> Look:
    """Record all flags once they have been parsed."""
    yield
    for name, flag in args[0]._flags().items():
        if name == flag.name:
            words = ["--" + name] + ["-" + short for short in [flag.short_name] if short]
            note("absl", name, flag.value, words, not flag.using_default_value)


def fire_parsed(args: Any, _kwargs: Any) -> Look:
    """Record the arguments that fire prepares for a call. The function and the command-line words are in the caller's frame."""
    result: Any = yield
    caller = sys._getframe(2).f_locals
    values = dict(caller["fn_spec"].kwonlydefaults or {}, **dict(zip(args[0], result[0])))
    note_all("fire", dict(values, **result[1]), "--%s", caller["args"])


def hydra_composed(args: Any, kwargs: Any) -> Look:
    """Record the job configuration kept by Hydra. Interpolations are left unresolved, since a resolver is user code."""
    yield
    config = args[1] if len(args) > 1 else kwargs["cfg"]
    values = sys.modules["omegaconf"].OmegaConf.to_container(config, resolve=False)
    note_all("hydra", values, "%s", values.pop("hydra")["overrides"]["task"])


def deepspeed_made(args: Any, _kwargs: Any) -> Look:
    """Record the three batch sizes that DeepSpeed computes."""
    yield
    for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        note("deepspeed", name, getattr(args[0], name))


def watch_loaders(module: ModuleType) -> None:
    """Record what a module's loaders return to the script, or to any caller if the file is on the command line or in the plan."""

    def loaded(result: Any, args: Any, kwargs: Any, caller: Any) -> None:
        if wire.step or counts["file"] >= MOST["file"] or not isinstance(result, (dict, list)):
            return
        file, named = _file_of(args[0] if args else next(iter(kwargs.values()), None))
        _change_keys(by, file, result)
        while caller.f_globals.get("__name__", "").partition(".")[0] in ("omegaconf", "yacs"):
            caller = caller.f_back  # these libraries load for their callers
        if named or is_user_code(caller):
            counts["file"] += 1
            for name, value in leaves(result):
                if has(_FIRST, name):
                    note(by, name, value, [name], file=file)

    by = "toml" if module.__name__.startswith("tom") else module.__name__
    look = outermost(loaded)
    owner = sys.modules[module.load.__module__]  # tomllib._parser, the module of tomllib's pickled function
    for name in ("load", "loads", "safe_load", "full_load", "unsafe_load"):
        watch(owner, name, look, module)


def _file_of(source: Any) -> tuple[str | None, bool]:
    """Return the source's path and whether the command line or the plan names it. Text is matched by its contents."""
    words = [str(word).rpartition("=")[2] for word in getattr(sys, "argv", [])[1:]]
    words = [word for word in words if word.endswith((".json", ".yaml", ".yml", ".toml"))]
    named = _contents(tuple(words + [entry["path"] for entry in plan.files]))
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


_HIDDEN = "<redacted>"
"""What the journal contains in place of a secret in recorded words (supervisor/text/redact.py). It matches any text."""
_OF_ONE_RANK = re.compile(r"--?local[_-]rank=\d+|-u")
_RANK = re.compile(r"((?:^|\0)--?(?:[\w-]*[-_])?(?:rank|gpu|device)[=\0])\d+(?![^\0])")
"""Matches words that may differ between an attempt's ranks, such as ``--rank 1`` if a plain shell starts the ranks."""


plan = SimpleNamespace(options=[], files=[], late=False)
"""The changes to make in this process. If `late` is true, change the command line only once `sys.argv` has been filled."""


def read_plan() -> None:
    """Apply the plan before the script's first line runs, if the plan is meant for this process."""
    import json

    with quietly("apply"):
        given = json.loads(os.environ["STOKER_APPLY"])
        options = given.get("options", [])
        own, spawned = _command_line()
        if given["argv"] is not None and not _is_planned(own, given["argv"], options):
            return
        plan.options = options
        plan.files = given.get("files", [])
        plan.late = spawned or not hasattr(sys, "argv")
        for name, value in given.get("environ", {}).items():
            _answer("env", name, os.environ.get(name), value)
            os.environ[name] = str(value)
        if not plan.late:
            _change_words()


def _change_keys(by: str, file: str | None, result: Any) -> None:
    """Set planned keys in a loader's `result` the first time a file is loaded. Dotted keys descend into dicts and lists."""
    for entry in [entry for entry in plan.files if file is not None and _is_same(file, entry["path"])]:
        *path, last = [entry["key"]] if entry["key"] in result else entry["key"].split(".")
        holder = result
        with suppress(AttributeError, LookupError, TypeError, ValueError):  # the file has no such key
            for part in path:
                holder = holder[int(part)] if isinstance(holder, list) else holder[part]
            before = holder.get(last)
            holder[last] = entry["value"]
            plan.files.remove(entry)
            _answer(by, entry["key"], before, entry["value"])


def _answer(by: str, name: str, before: object, after: object) -> None:
    old, new = shown(name, before).get("value"), shown(name, after).get("value")
    wire.record("applied", by=by, name=name, before=old, after=new)


def _command_line() -> tuple[list[str], bool]:
    """Return this process's command line, and whether `multiprocessing` spawned it with its parent's command line."""
    own = list(getattr(sys, "orig_argv", ())) or _words_of("self")
    return (_words_of(os.getppid()), True) if _SPAWNED in own else (own, False)


def _words_of(process: object) -> list[str]:
    with open("/proc/%s/cmdline" % process, "rb") as file:
        return os.fsdecode(file.read()).split("\0")[:-1]


def _is_planned(own: list[str], recorded: list[str], options: list[Any]) -> bool:
    """Check whether a command line equals the recorded one except for planned values and the interpreter's path."""
    rests = []
    for words in (own[1:], recorded[1:]):
        rest = [word for option, _, kept in _pieces(words, options) if option is None for word in kept]
        rest = [word for word in rest if not _OF_ONE_RANK.fullmatch(word)]
        rests.append(_RANK.sub(r"\1", "\0".join(rest)).split("\0"))
    return len(rests[0]) == len(rests[1]) and all(map(_is_same, *rests))


def _is_same(own: str, recorded: str) -> bool:
    if _HIDDEN in recorded:
        around = map(re.escape, recorded.split(_HIDDEN))
        return re.fullmatch(".*".join(around), own, re.DOTALL) is not None
    same_name = os.path.basename(own) == os.path.basename(recorded)
    return own == recorded or (same_name and os.path.realpath(own) == os.path.realpath(recorded))


def _pieces(words: list[str], options: list[Any]) -> Iterator[tuple[Any, str | None, list[str]]]:
    """Split a command line into pieces: the option that is set (or None), its old value, and the words to use instead."""
    index = 0
    while index < len(words):
        found = (_set_by(option, *words[index : index + 2]) for option in options)
        option, length, before, changed = next(filter(None, found), (None, 1, None, words[index : index + 1]))
        yield option, before, changed
        index += length


def _set_by(option: dict[str, Any], word: str, following: str = "--") -> Any:
    """Return the option, its word count, the old value and the words to use instead, or None if `word` does not set it."""
    new = str(option["value"])
    head, equals, value = word.partition("=")
    if equals and head.lstrip("+") in option["words"]:
        return option, 1, value, [head + "=" + new]
    if not word.startswith("-"):  # a key counts only with a number
        is_set = word in option["words"] and _is_pair(word, following)
        return (option, 2, following, [word, new]) if is_set else None
    if word in option["words"]:
        if option["value"] is True:
            return option, 1, "True", [word]
        if re.match(r"-[^\d.]", following):
            return option, 1, None, [word, new]
        return option, 2, following, [word, new]
    if word[:2] in option["words"] and word[2:].isdigit():
        return option, 1, word[2:], [word[:2] + new]
    return None


def _change_words() -> None:
    kept: list[str] = []
    absent = list(plan.options)
    for option, before, changed in _pieces(sys.argv[1:], plan.options):
        kept.extend(changed)
        if option is not None:
            _answer("argv", option["name"], before, option["value"])
            absent = [other for other in absent if other is not option]
    end = kept.index("--") if "--" in kept else len(kept)
    for option in absent:
        kept[end:end] = _added(option)
        _answer("argv", option["name"], None, option["value"])
    sys.argv[1:] = kept


def _added(option: dict[str, Any]) -> list[str]:
    word = next((word for word in option["words"] if word.startswith("--")), option["words"][0])
    if option["value"] is True and word.startswith("-"):
        return [word]
    is_short = word.startswith("-") and not word.startswith("--")
    return [word, str(option["value"])] if is_short else ["%s=%s" % (word, option["value"])]
