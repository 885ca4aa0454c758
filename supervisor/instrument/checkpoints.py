"""Checkpoints that were written and loaded, by path, and the paths that the script looked for before it trained.

An attempt whose plan is not confirmed yet has the variable ``STOKER_CONFIRM``: each save waits, before its first byte, for the file
``confirmed`` in the telemetry folder, at most `CONFIRM_S`. A file that the script itself opened is empty before `torch.save` is called.
"""

from __future__ import annotations

import collections
import functools
import glob
import os
import pathlib
import shutil
import sys
import time
from types import SimpleNamespace
from typing import Any

from .imports import is_user_code
from .training import RECORD_S, optimizer_step
from .wire import Look, watch, wire

CONFIRM_S = 20.0
"""How long the saves of one process wait, all together. Then they go on, and a `note` says so."""
POLL_S = 0.02
MAX_SOUGHT = 500
MAX_SOUGHT_AT = 20
"""Paths that one line of the script looked for: a data set of a million files looks for as many."""
LEVELS = 3
"""How far below a folder that was listed a checkpoint may be saved: ``runs/checkpoint-100/model.pt`` is two below ``runs``."""
MAX_SAVED = 500
_exists = os.path.exists


class Checkpoints:
    """Checkpoints that this process saved, loaded or looked for."""

    def __init__(self) -> None:
        self.saved: Any = collections.OrderedDict()
        """The newest save at each path: the step of its state, whether that is to be written, and when one was written."""
        self.pending: Any = {}  # folder that an asynchronous save is writing -> the step of its state
        self.loaded: Any = None
        self.sought: dict[Any, str] = {}
        self.sought_at: collections.Counter[Any] = collections.Counter()
        self.waited_s = 0.0
        self.awaited = os.path.join(wire.folder, "confirmed") if os.environ.get("STOKER_CONFIRM") else None

    def wait(self) -> None:
        """Before a save: wait for the keeper's word that this attempt is what was planned, or that it ends the attempt."""
        if self.awaited is None:
            return
        if self.loaded is not None or "RANK" in os.environ or "LOCAL_RANK" in os.environ:
            wire.start_reporting()  # a save before the first step is judged by what was loaded
        wire.flush()  # what the keeper judges by
        while not wire.off and not _exists(self.awaited):
            if self.waited_s >= CONFIRM_S:
                wire.record("note", code="unconfirmed_save", where="step %d" % wire.step)
                break
            began = time.monotonic()
            time.sleep(POLL_S)
            self.waited_s += time.monotonic() - began
        self.awaited = None

    def save_ended(self, path: str, step: int) -> None:
        """A checkpoint is at `path`, with the state after `step` optimizer steps of this process."""
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
        """Write the newest save at each path but where one was written in the last `not_within_s` seconds."""
        now = time.monotonic()
        for path, entry in list(self.saved.items()):
            if entry.is_new and now - entry.written_at >= not_within_s:
                entry.is_new, entry.written_at = False, now
                wire.record("saved", path=path, step=entry.step)

    def state_came_back(self, args: Any, _kwargs: Any) -> Look:
        """`Optimizer.load_state_dict`."""
        yield
        if self.loaded is not None:  # else it is a copy within the process
            step = optimizer_step(args[0])
            wire.record("loaded", path=self.loaded, step=wire.step, optimizer_state=True, optimizer_step=step)

    def seek(self, path: str | None, by: str) -> None:
        """The script looked for `path`. A folder that is there and is then listed: the list says more."""
        is_wanted = path is not None and not wire.step and len(self.sought) < MAX_SOUGHT
        if is_wanted and (path not in self.sought or by in _LISTINGS):
            self.sought[path] = by

    def look(self, name: str, args: Any, kwargs: Any) -> None:
        """A function that looks for a path: of interest before the first step, and where no library called it.

        The patch stays, and does nothing after the first step: a function that the script took meanwhile can still be pickled.
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
        """Write what the script looked for, now that it saves there."""
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
    """The absolute path that `value` names: a text, a path, or an open file of that name; else None."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        value = getattr(value, "name", None)
        if not isinstance(value, str) or not _exists(value):
            return None
    text = os.fsdecode(os.fspath(value))
    return None if "://" in text or not text else os.path.abspath(text)


def _argument(position: int, name: str) -> Any:
    """A function of (args, kwargs): the path that an argument names. Of a stream of a distributed checkpoint, None."""

    def path_of(args: Any, kwargs: Any) -> str | None:
        path = _path_of(args[position] if len(args) > position else kwargs.get(name))
        return None if path is None or path.endswith(".distcp") else path

    return path_of


def _folder(args: Any, kwargs: Any) -> str | None:
    """The folder of `torch.distributed.checkpoint`: its name, or the path of what reads or writes it."""
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
        yield
        checkpoints.save_ended(path, step)

    return save


def _loads(path_of: Any) -> Any:
    def load(args: Any, kwargs: Any) -> Look:
        path = path_of(args, kwargs)
        if path is None or not _exists(path):
            checkpoints.seek(path, "load")
            return
        checkpoints.loaded = path  # an optimizer's state may be given back inside of the call
        yield
        wire.record("loaded", path=path, step=wire.step)

    return load


lightning_saved = _saves(_argument(1, "filepath"))
"""Lightning writes a buffer of `torch.save` to its file by itself."""


def watch_torch(torch: Any) -> None:
    """`torch.save` and `torch.load` under both of their names, optimizers' states, and what the script does with paths."""
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
    if found:  # what was saved there is a checkpoint under the new name
        step = checkpoints.saved[found[-1]].step
        if not _exists(source):
            checkpoints.saved.pop(source, None)
        checkpoints.save_ended(target, step)


def watch_safetensors(module: Any) -> None:
    """`save_model` and `load_model` call these two."""
    watch(module, "save_file", _saves(_argument(1, "filename")))
    watch(module, "load_file", _loads(_argument(0, "filename")))


def watch_distributed_checkpoint(module: Any) -> None:
    """Whole folders: of the streams in them, dozens a checkpoint, nothing is recorded."""
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
        checkpoints.pending[path] = wire.step  # the save in another thread takes it from there
