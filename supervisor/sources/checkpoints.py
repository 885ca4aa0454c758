"""Whole checkpoints, and files that look like one, that a foreign script left in its folders: transformers' and Lightning's. Nothing is unpickled.

What counts as whole: of transformers a ``checkpoint-<step>`` with weights and a ``trainer_state.json`` of that step, which
the Trainer writes after them (transformers/trainer.py, ``_save_checkpoint``); of Lightning a ``.ckpt`` that is a zip to its
end, as ``torch.save`` writes one (torch/serialization.py), with its step in the name. Other layouts are not guessed at: of
a bare ``.pt`` nobody can tell from outside whether it was written to its end, so it is only ever named to a person.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_ENTRIES = 20_000
MAX_DEPTH = 5
MAX_STATE_BYTES = 64 << 20
MAX_FOUND = 20
LIKE_DEPTH = 3
LIKE_CHECKPOINTS = (".pt", ".pth", ".ckpt", ".safetensors")
_HF = re.compile(r"checkpoint-(\d{1,12})")
_LIGHTNING = re.compile(r"(?:^|[-_])step=(\d{1,12})(?:[-_.]|$)")
_WEIGHTS = re.compile(
    r"(?:pytorch_model|model|adapter_model|tf_model)[\w.-]*\.(?:bin|safetensors)|pytorch_model_fsdp_\d+|global_step\d+"
)


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A whole checkpoint. `path` as a script takes it, absolute; `t`: wall seconds of its last part."""

    path: str
    step: int
    t: float


def find_checkpoints(folders: Iterable[Path], since_t: float) -> list[FoundCheckpoint]:
    """The newest whole checkpoints below `folders` that were written from `since_t` on, at most `MAX_FOUND`, by step.

    Symbolic links are not followed: Lightning's ``last.ckpt`` and many a ``latest`` name what is found anyway.
    """
    left = [MAX_ENTRIES]
    found: dict[str, FoundCheckpoint] = {}
    for folder in folders:
        for one in _below(folder, since_t, left, MAX_DEPTH):
            found.setdefault(one.path, one)
    return sorted(found.values(), key=lambda one: (one.step, one.t))[-MAX_FOUND:]


@dataclass(frozen=True, slots=True)
class LikelyFile:
    """A file with a checkpoint's name. `path`: absolute; `t`: wall seconds of its last change."""

    path: str
    t: float


def newest_like_checkpoint(folders: Iterable[Path], since_t: float) -> LikelyFile | None:
    """The newest file below `folders` that is named like a checkpoint and was written from `since_t` on.

    Only names and times are looked at, of at most `MAX_ENTRIES` entries, `LIKE_DEPTH` folders deep; hidden folders and
    symbolic links are passed over.
    """
    left = [MAX_ENTRIES]
    found: LikelyFile | None = None
    for folder in folders:
        for entry in _files(folder, left, LIKE_DEPTH):
            if not entry.name.lower().endswith(LIKE_CHECKPOINTS):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if status.st_size and status.st_mtime >= since_t and (found is None or status.st_mtime > found.t):
                found = LikelyFile(os.path.abspath(entry.path), status.st_mtime)
    return found


def _files(folder: Path, left: list[int], depth: int) -> Iterator[os.DirEntry[str]]:
    """The files of a folder, then those of the folders in it."""
    deeper: list[Path] = []
    try:
        with os.scandir(folder) as listing:
            for entry in listing:
                left[0] -= 1
                if left[0] < 0:
                    return
                if entry.is_file(follow_symlinks=False):
                    yield entry
                elif depth > 1 and not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    deeper.append(Path(entry.path))
    except OSError:
        return
    for inner in deeper:
        yield from _files(inner, left, depth - 1)


def _below(folder: Path, since_t: float, left: list[int], depth: int) -> Iterator[FoundCheckpoint]:
    try:
        with os.scandir(folder) as listing:
            entries = []
            for entry in listing:
                left[0] -= 1
                if left[0] < 0:
                    return
                entries.append(entry)
    except OSError:
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                match = _HF.fullmatch(entry.name)
                one = _transformers(Path(entry.path), int(match[1]), since_t) if match else None
                if one is not None:
                    yield one
                elif match is None and depth > 1 and not entry.name.startswith("."):
                    yield from _below(Path(entry.path), since_t, left, depth - 1)
            elif entry.name.endswith(".ckpt") and entry.is_file(follow_symlinks=False):
                one = _lightning(entry, since_t)
                if one is not None:
                    yield one
        except OSError:
            continue


def _transformers(folder: Path, step: int, since_t: float) -> FoundCheckpoint | None:
    state = folder / "trainer_state.json"
    try:
        status = state.stat()
        if status.st_mtime < since_t or status.st_size > MAX_STATE_BYTES:
            return None
        parsed = json.loads(state.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict) or parsed.get("global_step") != step:
        return None
    whole = any(_WEIGHTS.fullmatch(name) for name in os.listdir(folder))
    return FoundCheckpoint(os.path.abspath(folder), step, status.st_mtime) if whole else None


def _lightning(entry: os.DirEntry[str], since_t: float) -> FoundCheckpoint | None:
    match = _LIGHTNING.search(entry.name)
    status = entry.stat()
    if match is None or status.st_mtime < since_t or not zipfile.is_zipfile(entry.path):
        return None
    return FoundCheckpoint(os.path.abspath(entry.path), int(match[1]), status.st_mtime)
