"""Record which checkpoints were written and loaded, by path, and which paths the script looked for before training.

While an attempt's plan is unconfirmed, ``STOKER_CONFIRM`` is set. Before writing its first byte, each save then waits at most
`CONFIRM_S` for a file named ``confirmed`` in the telemetry folder. A file that the script opened is empty until `torch.save`.
"""

from __future__ import annotations

import collections
import functools
import glob
import os
import pathlib
import shutil
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

from .imports import is_user_code
from .training import RECORD_S, optimizer_step
from .wire import Look, watch, wire

CONFIRM_S = 20.0
"""Total time, in seconds, that a process's saves may wait. After that, they proceed and a `note` is recorded."""
POLL_S = 0.02
MAX_SOUGHT = 500
MAX_SOUGHT_AT = 20
"""Maximum number of paths recorded per script line. Loading a data set of a million files may check a million paths."""
LEVELS = 3
"""How deep a checkpoint may lie below a listed folder: ``runs/checkpoint-100/model.pt`` is two levels below ``runs``."""
MAX_SAVED = 500
_exists = os.path.exists


class Checkpoints:
    """The checkpoints that this process saved, loaded or looked for."""

    def __init__(self) -> None:
        self.saved: Any = collections.OrderedDict()
        """The latest save at each path: the step of its state, whether a record is due, and when it was last recorded."""
        self.pending: Any = {}  # folder of an asynchronous save in progress -> the step of its state
        self.loaded: Any = None
        self.sought: dict[Any, str] = {}
        self.sought_at: collections.Counter[Any] = collections.Counter()
        self.waited_s = 0.0
        self.awaited = os.path.join(wire.folder, "confirmed") if os.environ.get("STOKER_CONFIRM") else None

    def wait(self) -> None:
        """Block a save until the keeper confirms that this attempt matches the plan, or stops the attempt."""
        if self.awaited is None:
            return
        if self.loaded is not None or "RANK" in os.environ or "LOCAL_RANK" in os.environ:
            wire.start_reporting()  # a save before the first step is judged by the loaded checkpoint
        wire.flush()  # the keeper judges by these records
        while not wire.off and not _exists(self.awaited):
            if self.waited_s >= CONFIRM_S:
                wire.record("note", code="unconfirmed_save", where="step %d" % wire.step)
                break
            began = time.monotonic()
            time.sleep(POLL_S)
            self.waited_s += time.monotonic() - began
        self.awaited = None

    def save_ended(self, path: str, step: int) -> None:
        """Record that a checkpoint was saved at `path`, with the state after `step` optimizer steps in this process."""
        if not (os.path.isfile(path) or os.path.isdir(path)):
            return
        entry = self.saved.pop(path, None) or SimpleNamespace(written_at=float("-inf"))
        entry.step, entry.is_new = step, True
        self.saved[path] = entry
        if len(self.saved) > MAX_SAVED:
            self.saved.popitem(last=False)
        self.look_back(path)
        self.flush(RECORD_S)

    def flush(self, not_within_s: float = 0.0) -> None:
        """Record the latest save at each path, skipping paths recorded within the last `not_within_s` seconds."""
        now = time.monotonic()
        for path, entry in list(self.saved.items()):
            if entry.is_new and now - entry.written_at >= not_within_s:
                entry.is_new, entry.written_at = False, now
                wire.record("saved", path=path, step=entry.step)

    def state_came_back(self, args: Any, _kwargs: Any) -> Look:
        """Observe `Optimizer.load_state_dict`."""
        yield
        if self.loaded is not None:  # otherwise the state is copied within the process
            step = optimizer_step(args[0])
            wire.record("loaded", path=self.loaded, step=wire.step, optimizer_state=True, optimizer_step=step)

    def seek(self, path: str | None, by: str) -> None:
        """Record that the script looked for `path`. If it both checked for a folder and listed it, keep the listing."""
        is_wanted = path is not None and not wire.step and len(self.sought) < MAX_SOUGHT
        if is_wanted and (path not in self.sought or by in _LISTINGS):
            self.sought[path] = by

    def look(self, name: str, args: Any, kwargs: Any) -> None:
        """Record a path lookup that the script itself, not a library, makes before the first step.

        The patch remains after the first step but does nothing, so a function the script has stored can still be pickled.
        """
        if wire.step or len(self.sought) >= MAX_SOUGHT:
            return
        frame: Any = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename == glob.__file__:
            frame = frame.f_back
        place = (frame.f_code, frame.f_lineno)
        if is_user_code(frame) and self.sought_at[place] < MAX_SOUGHT_AT:
            self.sought_at[place] += 1
            self.seek(_path_of(args[0] if args else kwargs.get("path", ".")), name)

    def look_back(self, path: str) -> None:
        """Record the script's lookups that led to this save."""
        folder = path
        for level in range(LEVELS + 1 if self.sought else 0):
            by = self.sought.get(folder)
            if by is not None and (level == 0 or by in _YES_OR_NO + _LISTINGS):
                del self.sought[folder]
                wire.record("sought", path=folder, by=by, saved=path, step=wire.step)
            folder = os.path.dirname(folder)


checkpoints = Checkpoints()
_YES_OR_NO = ("exists", "lexists", "isfile", "isdir", "is_file", "is_dir")
_LISTINGS = ("listdir", "scandir", "iterdir", "glob", "rglob")


def _path_of(value: Any) -> Any:
    """Return the absolute path of `value` (text, a path, or a named open file), or None if it has none."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        value = getattr(value, "name", None)
        if not isinstance(value, str) or not _exists(value):
            return None
    text = os.fsdecode(os.fspath(value))
    return None if "://" in text or not text else os.path.abspath(text)


def _argument(position: int, name: str) -> Any:
    """Return a function that maps (args, kwargs) to an argument's path, or to None for a distributed checkpoint's stream."""

    def path_of(args: Any, kwargs: Any) -> str | None:
        path = _path_of(args[position] if len(args) > position else kwargs.get(name))
        return None if path is None or path.endswith(".distcp") else path

    return path_of


def _folder(args: Any, kwargs: Any) -> str | None:
    """Return a `torch.distributed.checkpoint` folder, given by name or as the path of its reader or writer."""
    streams = [kwargs.get("storage_writer"), kwargs.get("storage_reader"), *args[1:2]]
    named = [kwargs.get("checkpoint_id"), *(getattr(stream, "path", None) for stream in streams)]
    return next((_path_of(value) for value in named if isinstance(value, (str, os.PathLike))), None)


def _saves(path_of: Any) -> Any:
    def save(args: Any, kwargs: Any) -> Look:
        path = path_of(args, kwargs)
        if path is None:
            return  # a buffer
        step = checkpoints.pending.pop(path, None)
        if step is None:
            step = wire.step
            checkpoints.wait()
        began = time.perf_counter()
        yield
        if threading.current_thread() is threading.main_thread():
            wire.save_s += time.perf_counter() - began
        checkpoints.save_ended(path, step)

    return save


def _loads(path_of: Any) -> Any:
    def load(args: Any, kwargs: Any) -> Look:
        path = path_of(args, kwargs)
        if path is None or not _exists(path):
            checkpoints.seek(path, "load")
            return
        checkpoints.loaded = path  # an optimizer's state may be restored inside the call
        yield
        wire.record("loaded", path=path, step=wire.step)

    return load


lightning_saved = _saves(_argument(1, "filepath"))
"""Needed because Lightning calls `torch.save` on a buffer and then writes the buffer to the file itself."""


def watch_torch(torch: Any) -> None:
    """Observe `torch.save` and `torch.load` under both names, optimizer state loading, and the script's path functions."""
    watch(torch.serialization, "save", _saves(_argument(1, "f")), torch)
    watch(torch.serialization, "load", _loads(_argument(0, "f")), torch)
    watch(torch.optim.Optimizer, "load_state_dict", checkpoints.state_came_back)
    wire.writers.append(checkpoints.flush)
    for owner, name in ((os, "rename"), (os, "replace"), (os, "link"), (shutil, "copyfile")):
        watch(owner, name, _move)  # shutil.move calls os.rename, and shutil.copy calls copyfile
    for name in _YES_OR_NO + _LISTINGS:
        for place in (os.path, os, pathlib.Path):
            watch(place, name, functools.partial(checkpoints.look, name))


def _move(args: Any, kwargs: Any) -> Look:
    if not checkpoints.saved or kwargs.get("src_dir_fd") is not None or kwargs.get("dst_dir_fd") is not None:
        return
    source = _path_of(args[0] if args else kwargs.get("src"))
    target = _path_of(args[1] if len(args) > 1 else kwargs.get("dst", kwargs.get("target")))
    yield
    if source is None or target is None:
        return
    found = [path for path in list(checkpoints.saved) if path == source or path.startswith(source + os.sep)]
    if found:  # files saved there become a checkpoint under the new name
        step = checkpoints.saved[found[-1]].step
        if not _exists(source):
            checkpoints.saved.pop(source, None)
        checkpoints.save_ended(target, step)


def watch_safetensors(module: Any) -> None:
    """Observe the two functions underlying `save_model` and `load_model`."""
    watch(module, "save_file", _saves(_argument(1, "filename")))
    watch(module, "load_file", _loads(_argument(0, "filename")))


def watch_distributed_checkpoint(module: Any) -> None:
    """Observe checkpoint folders as a whole. Individual streams, of which a checkpoint has dozens, are not recorded."""
    saver, loader = module.state_dict_saver, module.state_dict_loader
    for name in ("save", "save_state_dict"):
        watch(saver, name, _saves(_folder), module)
    for name in ("load", "load_state_dict"):
        watch(loader, name, _loads(_folder), module)
    watch(saver, "async_save", _save_later, module)


def _save_later(args: Any, kwargs: Any) -> None:
    path = _folder(args, kwargs)
    if path is not None:
        checkpoints.wait()
        checkpoints.pending[path] = wire.step  # the save in another thread reads the step from there
