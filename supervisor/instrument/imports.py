"""Runs a function of ours once a watched module has been imported. Imports none of the watched modules itself."""

from __future__ import annotations

import os
import sys

# What importlib and functools hold, without importing them and more: that takes milliseconds. So does typing.
from _frozen_importlib import ModuleSpec, _find_spec  # type: ignore[attr-defined]
from _frozen_importlib_external import SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PACKAGE = "_stoker_instrument"
# Watched module -> (our module, our function, the callable that it observes). If the callable is empty, our function is given the
# imported module.
WATCHED = {
    "argparse": ("settings", "argparse_parsed", "ArgumentParser.parse_known_args"),
    "click": ("settings", "click_made", "Command.make_context"),
    "tyro": ("settings", "tyro_made", "_calling.callable_with_args"),
    "absl.flags": ("settings", "absl_parsed", "FlagValues.__call__"),
    "fire": ("settings", "fire_parsed", "core._ParseArgs"),
    "jsonargparse": ("settings", "jsonargparse_parsed", "ArgumentParser.parse_args"),
    "hydra.core.hydra_config": ("settings", "hydra_composed", "HydraConfig.set_config"),
    **dict.fromkeys(("json", "yaml", "tomllib", "tomli"), ("settings", "watch_loaders", "")),
    "deepspeed.runtime.config": ("settings", "deepspeed_made", "DeepSpeedConfig.__init__"),
    "torch": ("training", "watch_torch", ""),
    "torch.distributed.checkpoint": ("checkpoints", "watch_distributed_checkpoint", ""),
    "safetensors.torch": ("checkpoints", "watch_safetensors", ""),
    "lightning.fabric.utilities.cloud_io": ("checkpoints", "lightning_saved", "_atomic_save"),
    "lightning_fabric.utilities.cloud_io": ("checkpoints", "lightning_saved", "_atomic_save"),
}

_LIBRARY = (os.path.dirname(os.path.abspath(__file__)) + os.sep, os.path.dirname(os.__file__) + os.sep)
MAX_READ = 200


def is_user_code(frame: Any) -> Any:
    """Whether a frame belongs to the script or its own modules, not to an installed package, the standard library, or us."""
    file = frame.f_code.co_filename
    if file.startswith("<"):  # python -c; a frozen module; code that a library makes
        return frame.f_globals.get("__name__") == "__main__"
    return not (file.startswith(_LIBRARY) or "site-packages" in file or "dist-packages" in file)


read: dict[str, tuple[Any, bool]] = {}
"""Numbers that the script read from `os.environ`, as name: (text, False if it is the default that the script gives)."""
_methods: dict[str, Any] = {}


def watch_environment() -> None:
    """Replace the two methods that read a variable, before the script's first line."""
    for name in ("__getitem__", "get"):
        _methods[name] = getattr(type(os.environ), name)
        setattr(type(os.environ), name, _reading(_methods[name]))


def leave_environment() -> None:
    """Put the methods back: once training is seen, so that none of it is compiled into a graph."""
    while _methods:
        setattr(type(os.environ), *_methods.popitem())


def _reading(original: Any) -> Any:
    """Wrap `original` to see what it read. `get` calls `__getitem__`; if that found nothing, the default is what was read."""

    def reading(environ: Any, key: Any, *default: Any, **named: Any) -> Any:
        value = original(environ, key, *default, **named)
        _seen(key, value, all(value is not held for held in (*default, *named.values())))
        return value

    ours: Any = reading
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(ours, name, getattr(original, name))
    ours.__wrapped__ = original
    return ours


def _seen(key: Any, value: Any, given: Any) -> None:
    """Note a variable that was read, if the script itself read it and it is a number."""
    try:
        if key in read or len(read) >= MAX_READ or not str(value).isdigit():
            return
        frame: Any = sys._getframe(2)
        while frame.f_globals.get("__name__") in ("os", "collections.abc", __name__):
            frame = frame.f_back
        if is_user_code(frame):
            read[key] = (value, given)
    except Exception:  # noqa: BLE001 - then the environment is not measured
        leave_environment()


# When Python attributes a warning, it skips callers whose file name contains "importlib" and "_bootstrap". Dynamo does not trace into
# files with this prefix. So a warning that torch.load issues for its caller still names the script's line, and a compiled function
# that calls backward() is split exactly as it would have been.
UNSEEN = "<frozen importlib._bootstrap> of stoker: "
# Dynamo traces these hooks as part of the function that it compiles, and their first statement then returns. A hook that dynamo
# may not trace would break the graph.
TRACED = ("before_forward", "after_step", "called")


class UnseenLoader(SourceFileLoader):
    """Loads a module of ours from its source or its ``.pyc``, with another file name in its code."""

    def get_code(self, fullname: Any) -> Any:
        """The module's code, renamed."""
        return _unseen(super().get_code(fullname))


def _unseen(code: Any) -> Any:
    inner = tuple(_unseen(held) if isinstance(held, type(code)) else held for held in code.co_consts)
    name = code.co_filename if code.co_name in TRACED else UNSEEN + code.co_filename
    return code.replace(co_consts=inner, co_filename=name)


waiting: dict[str, tuple[str, str, str]] = {}
"""The part of `WATCHED` that has not been imported yet."""


class Finder:
    """First on `sys.meta_path`: finds what the other finders find, and makes the loader call us when the module is imported."""

    def find_spec(self, name: Any, path: Any = None, target: Any = None) -> Any:
        """The spec that another finder gives, with its loader wrapped. None for every module that is not watched."""
        entry = waiting.pop(name, None)
        if entry is None:
            if not name.startswith(PACKAGE):
                return None  # with torch, one of 2,000 before the first step
            file = os.path.join(os.path.dirname(os.path.abspath(__file__)), name[len(PACKAGE) + 1 :] + ".py")
            ours: Any = ModuleSpec(name, UnseenLoader(name, file), origin=file)
            ours.has_location = True  # it gets a __file__, and its .pyc is used
            return ours
        spec = _find_spec(name, path, target)  # this finder is asked too, and no longer knows the name
        waiting[name] = entry  # until it is imported: datasets only asks whether torch is there
        if spec is None:
            return None
        # Builtin and frozen modules share one loader, which is a class. A loader with slots cannot be wrapped.
        loader = spec.loader
        if isinstance(loader, type) or not hasattr(loader, "__dict__"):
            return spec
        original = loader.exec_module

        def exec_module(module: Any) -> None:
            original(module)
            if module.__name__ == name and waiting.pop(name, None):
                run(entry, module)

        loader.exec_module = exec_module
        return spec


def _ours(name: str) -> Any:
    __import__(PACKAGE + "." + name)
    return sys.modules[PACKAGE + "." + name]


def run(entry: tuple[str, str, str], module: Any) -> None:
    """Call the function that `entry` names. An error in it is noted and goes no further."""
    ours, function, target = entry
    try:
        wire = _ours("wire")
        _ours("settings").begin()
    except Exception:  # noqa: BLE001 - without the wire nothing is measured, and the script goes on
        return
    with wire.quietly(function):
        look = getattr(_ours(ours), function)
        if not target:
            look(module)
            return
        *path, name = target.split(".")
        for part in path:
            module = getattr(module, part)
        wire.watch(module, name, look)


def start() -> None:
    """Watch for the modules in `WATCHED`. Those that are already imported are patched at once."""
    watch_environment()
    sys.meta_path.insert(0, Finder())
    if os.environ.get("STOKER_APPLY"):  # first: the words are read when the first watched module is there
        _ours("settings").read_plan()
    waiting.update(WATCHED)
    for name in [name for name in WATCHED if name in sys.modules]:
        run(waiting.pop(name), sys.modules[name])
