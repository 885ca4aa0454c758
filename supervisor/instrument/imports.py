"""Calls a function of ours once a module of somebody else's has finished importing; imports none of them by itself."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing takes milliseconds to import
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec, SourceFileLoader
    from typing import Any

    find_spec: Any
else:  # what importlib holds, without importing warnings and more
    from _frozen_importlib import ModuleSpec
    from _frozen_importlib import _find_spec as find_spec
    from _frozen_importlib_external import SourceFileLoader

PACKAGE = "_stoker_instrument"
# Module of the script's world -> (module of ours, function of ours, what that looks at); where this is empty, the function is given
# the imported module.
WATCHED = {
    "argparse": ("settings", "argparse_parsed", "ArgumentParser.parse_known_args"),
    "click": ("settings", "click_made", "Command.make_context"),
    "tyro": ("settings", "tyro_made", "_calling.callable_with_args"),
    "absl.flags": ("settings", "absl_parsed", "FlagValues.__call__"),
    "fire": ("settings", "fire_parsed", "core._ParseArgs"),
    "jsonargparse": ("settings", "jsonargparse_parsed", "ArgumentParser.parse_args"),
    "hydra.core.hydra_config": ("settings", "hydra_composed", "HydraConfig.set_config"),
    "yaml": ("settings", "watch_loaders", ""),
    "json": ("settings", "watch_loaders", ""),
    "tomllib": ("settings", "watch_loaders", ""),
    "tomli": ("settings", "watch_loaders", ""),
    "deepspeed.runtime.config": ("settings", "deepspeed_made", "DeepSpeedConfig.__init__"),
    "torch": ("training", "watch_torch", ""),
    "torch.distributed.checkpoint": ("checkpoints", "watch_distributed_checkpoint", ""),
    "safetensors.torch": ("checkpoints", "watch_safetensors", ""),
    "fsspec.core": ("checkpoints", "file_opened", "OpenFile.__enter__"),
    "lightning.fabric.utilities.cloud_io": ("checkpoints", "lightning_saved", "_atomic_save"),
    "lightning_fabric.utilities.cloud_io": ("checkpoints", "lightning_saved", "_atomic_save"),
}

_LIBRARY = (os.path.dirname(os.path.abspath(__file__)) + os.sep, os.path.dirname(os.__file__) + os.sep)
MAX_READ = 200


def is_user_code(frame: Any) -> Any:
    """Whether a frame is of the script and its own modules: not of an installed package, the standard library, or ours."""
    file = frame.f_code.co_filename
    if file.startswith("<"):  # python -c; a frozen module; code that a library makes
        return frame.f_globals.get("__name__") == "__main__"
    return not (file.startswith(_LIBRARY) or "site-packages" in file or "dist-packages" in file)


class Environment:
    """Digits that the script reads in `os.environ`, as name: (text, False for the default that the script gives).

    It is installed before the script's first line, and leaves when training is seen: nothing of it is then compiled into a graph.
    """

    def __init__(self) -> None:
        self.read: dict[str, tuple[Any, bool]] = {}
        self.originals: dict[str, Any] = {}

    def enter(self) -> None:
        """Replace the two methods that read a variable."""
        for name in ("__getitem__", "get"):
            self.originals[name] = getattr(type(os.environ), name)
            setattr(type(os.environ), name, self.reading(self.originals[name]))

    def reading(self, original: Any) -> Any:
        """`original`, and a look at what it read. `get` calls `__getitem__`: where that found nothing, its default is what is read."""

        def read(environ: Any, key: Any, *default: Any, **named: Any) -> Any:
            value = original(environ, key, *default, **named)
            self.seen(key, value, all(value is not held for held in (*default, *named.values())))
            return value

        ours: Any = read  # functools.wraps would take 2 ms to import
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(ours, name, getattr(original, name))
        ours.__wrapped__ = original
        return ours

    def leave(self) -> None:
        """Put the methods back."""
        for name, original in self.originals.items():
            setattr(type(os.environ), name, original)
        self.originals = {}

    def seen(self, key: Any, value: Any, given: Any) -> None:
        """A variable was read; it counts if the script itself did it, and it is a number."""
        try:
            if key in self.read or len(self.read) >= MAX_READ or not str(value).isdigit():
                return
            frame: Any = sys._getframe(2)
            while frame.f_globals.get("__name__") in ("os", "collections.abc", __name__):
                frame = frame.f_back
            if is_user_code(frame):
                self.read[key] = (value, given)
        except Exception:  # noqa: BLE001 - then nothing is known of the environment
            self.leave()


environment = Environment()


# Python attributes a warning to the nearest caller whose file has "importlib" and "_bootstrap" in its name left out, and dynamo
# neither compiles nor traces into a file of this beginning. So a warning that torch.load gives for its caller still names the
# script's line, and a compiled function that calls backward() is cut and compiled as it would have been.
UNSEEN = "<frozen importlib._bootstrap> of stoker: "
# Hooks of torch that dynamo traces as a part of the function which it compiles. Their first statement leaves then; a function that
# it may not trace would cut the graph.
TRACED = ("before_forward", "after_step", "called")


class Loader(SourceFileLoader):
    """Loads a module of ours from its source or its ``.pyc``, with another file name in its code."""

    def get_code(self, fullname: Any) -> Any:
        """The module's code, renamed."""
        return _unseen(super().get_code(fullname))


def _unseen(code: Any) -> Any:
    inner = tuple(_unseen(held) if isinstance(held, type(code)) else held for held in code.co_consts)
    name = code.co_filename if code.co_name in TRACED else UNSEEN + code.co_filename
    return code.replace(co_consts=inner, co_filename=name)


class Finder:
    """First on `sys.meta_path`: finds what the others find, and has the loader tell when the module is there."""

    def __init__(self) -> None:
        self.waiting: dict[str, tuple[str, str, str]] = {}

    def find_spec(self, name: Any, path: Any = None, target: Any = None) -> Any:
        """The spec that another finder gives, its loader wrapped; None for every module that is not watched."""
        if name.startswith(PACKAGE + "."):
            file = os.path.join(os.path.dirname(os.path.abspath(__file__)), name[len(PACKAGE) + 1 :] + ".py")
            ours: Any = ModuleSpec(name, Loader(name, file), origin=file)
            ours.has_location = True  # it gets a __file__, and its .pyc is used
            return ours
        entry = self.waiting.pop(name, None)
        if entry is None:
            return None
        spec = find_spec(name, path, target)  # it asks this finder, too, which no longer knows the name
        if spec is None:
            self.waiting[name] = entry  # a script may make it importable later
            return None
        # Builtin and frozen modules share one loader, a class; one with slots takes no function of ours.
        loader = spec.loader
        if isinstance(loader, type) or not hasattr(loader, "__dict__"):
            return spec
        original = loader.exec_module

        def exec_module(module: Any) -> None:
            original(module)
            if module.__name__ == name:
                run(entry, module)

        loader.exec_module = exec_module
        return spec


def _ours(name: str) -> Any:
    __import__(PACKAGE + "." + name)
    return sys.modules[PACKAGE + "." + name]


def run(entry: tuple[str, str, str], module: Any) -> None:
    """Call the function of ours that `entry` names; an error of it is noted, and is nobody else's business."""
    ours, function, target = entry
    try:
        wire = _ours("wire")
        if PACKAGE + ".apply" in sys.modules:
            _ours("apply").argv_is_there()
        _ours("settings").begin()
    except Exception:  # noqa: BLE001 - no wire, no measurements; the script knows nothing of either
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
    """Watch for the modules of `WATCHED`; those that stand imported already are patched at once."""
    environment.enter()
    finder = Finder()
    sys.meta_path.insert(0, finder)
    if os.environ.get("STOKER_APPLY"):  # first: the words are read when the first watched module is there
        _ours("apply").begin()
    finder.waiting = dict(WATCHED)
    for name in [name for name in WATCHED if name in sys.modules]:
        run(finder.waiting.pop(name), sys.modules[name])
