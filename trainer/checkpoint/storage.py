"""Checkpoints: a folder that is complete or does not count.

``step_00000040/`` holds ``meta.json`` (plain facts), ``state.pt`` (tensors; of FSDP2 a share of them for each rank,
``share-00000.pt`` and so on), the data's ``tokenizer.json`` if it has one and, last of all, ``COMMITTED``:
the names, sizes and checksums of the others. It is written as ``step_00000040.tmp``, synced, renamed, and
only then marked, so that a kill at any moment leaves either a committed folder or one that is ignored.
Loading never unpickles objects (``weights_only=True``). It does not depend on world size or micro-batch.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import torch
from torch import Tensor

from trainer.checkpoint.shares import SHARES, joined
from trainer.data.tokenizer import TOKENIZER

FORMAT: Final = 1
MARKER: Final = "COMMITTED"
META: Final = "meta.json"
STATE: Final = "state.pt"
CHUNK: Final = 1 << 20
# Size and checksum by name.
Files: TypeAlias = dict[str, tuple[int, str]]


class CheckpointError(Exception):
    """A checkpoint cannot be written or read: path and reason in one line."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checkpoint in memory: its plain facts and its tensors (on the CPU)."""

    path: Path
    meta: Mapping[str, Any]
    state: Mapping[str, Any]


def folder_of(root: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return root / f"step_{step:08d}"


def step_of(path: Path) -> int:
    """The step in a checkpoint's name, -1 if it has none."""
    match = re.fullmatch(r"step_(\d+)(?:\.old)?", path.name)
    return int(match[1]) if match else -1


def open_root(root: Path) -> int:
    """Makes the folder of checkpoints, and clears away what a killed save left half written.

    Returns:
        The device number of its file system, for `check_root`.

    Raises:
        CheckpointError: it cannot be made, or not be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(root))
        for left in root.glob("step_" + "[0-9]" * 8 + ".tmp"):
            shutil.rmtree(left, ignore_errors=True)
        return os.stat(root).st_dev
    except OSError as error:
        raise CheckpointError(f"checkpoint_dir {root} cannot be written: {error.strerror or error}") from None


def check_root(root: Path, file_system: int) -> None:
    """Refuses a folder that is gone or lies elsewhere now: a lost mount leaves an empty folder on another disk.

    Raises:
        CheckpointError: so it is.
    """
    try:
        found = os.stat(root).st_dev
    except OSError as error:
        raise CheckpointError(
            f"checkpoints could not be written: {root}: {error.strerror or error} (was its mount lost?)"
        ) from None
    if found != file_system:
        raise CheckpointError(
            f"checkpoints could not be written: {root} lies on another file system than at the start (its mount is lost?)"
        )


def save(
    root: Path,
    step: int,
    meta: Mapping[str, Any],
    state: Mapping[str, Any],
    *,
    tokenizer: bytes = b"",
    prepare: Callable[[Path], None] | None = None,
) -> Path:
    """Writes and commits a checkpoint; one process calls this.

    Args:
        root: the folder of checkpoints; it exists (`open_root`).
        step: steps done.
        meta: plain facts.
        state: tensors, in plain dictionaries.
        tokenizer: the tokenizer.json of the data; empty: none is kept.
        prepare: is called with the new folder before tensors are written (for faults).

    Returns:
        The committed folder.

    Raises:
        CheckpointError: no space, no right, no such folder; nothing that was committed before is touched.
    """
    temporary = begin(root, step, prepare=prepare)
    try:
        files = write(temporary, STATE, state)
    except CheckpointError:
        drop(temporary)
        raise
    return finish(temporary, meta, files, tokenizer)


def begin(root: Path, step: int, *, prepare: Callable[[Path], None] | None = None) -> Path:
    """Makes the folder of a checkpoint that is being written; arguments, errors: see `save`."""
    temporary = folder_of(root, step).with_suffix(".tmp")
    with _reported(temporary):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        if prepare is not None:
            prepare(temporary)
    return temporary


def write(temporary: Path, name: str, state: Mapping[str, Any]) -> Files:
    """Writes a file of tensors; returns its size and checksum by its name. Errors: see `save`; what others wrote there stays."""
    with _reported(temporary, clear=False):
        return {name: _written(temporary / name, lambda file: torch.save(dict(state), file))}


def drop(temporary: Path) -> None:
    """Clears away what cannot be finished."""
    shutil.rmtree(temporary, ignore_errors=True)


def finish(temporary: Path, meta: Mapping[str, Any], files: Files, tokenizer: bytes = b"") -> Path:
    """Commits what `begin` began and `write` wrote, whoever wrote it; returns the folder. Arguments, errors: see `save`."""
    final = temporary.with_suffix("")
    record = {"format": FORMAT, "step": step_of(final), **meta}
    text = json.dumps(record, indent=1, sort_keys=True) + "\n"
    with _reported(temporary):
        files = {META: _written(temporary / META, lambda file: file.write(text.encode())), **files}
        if tokenizer:
            files[TOKENIZER] = _written(temporary / TOKENIZER, lambda file: file.write(tokenizer))
        _sync_folder(temporary)
        _put_in_place(temporary, final)
        _commit(final, files)
        _sync_folder(final.parent)
        shutil.rmtree(final.with_name(final.name + ".old"), ignore_errors=True)
    return final


@contextmanager
def _reported(temporary: Path, *, clear: bool = True) -> Iterator[None]:
    """What goes wrong while a checkpoint is written, in one line; half of it is cleared away (`clear`)."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if clear:
            drop(temporary)
        why = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())[:200]
        final = temporary.with_suffix("")
        raise CheckpointError(f"checkpoint {final} could not be written: {why}") from error


def committed(root: Path) -> list[Path]:
    """All committed checkpoints of a folder, newest step first."""
    try:
        found = [path for path in root.iterdir() if step_of(path) >= 0 and (path / MARKER).is_file()]
    except OSError:
        return []
    # An .old folder was set aside for a second save of the same step: it counts only if that one does not.
    return sorted(found, key=lambda path: (step_of(path), path.suffix != ".old"), reverse=True)


def verify(path: Path) -> Mapping[str, Any]:
    """Checks marker, sizes and checksums.

    Returns:
        The checkpoint's plain facts.

    Raises:
        CheckpointError: it is not committed, or not what was committed.
    """
    try:
        marker = json.loads((path / MARKER).read_text(encoding="utf-8"))
        wanted = {str(name): (int(size), str(crc)) for name, (size, crc) in marker["files"].items()}
        if marker["format"] != FORMAT:
            raise CheckpointError(
                f"checkpoint {path} has format {marker['format']}, this trainer reads {FORMAT}"
            )
        for name, (size, crc) in wanted.items():
            if os.sep in name or name.startswith("."):
                raise CheckpointError(f"checkpoint {path}: its marker names a file outside of it: {name!r}")
            found = os.path.getsize(path / name)
            if found != size:
                raise CheckpointError(f"checkpoint {path} is damaged: {name} has {found} bytes, not {size}")
            if _checksum(path / name) != crc:
                raise CheckpointError(f"checkpoint {path} is damaged: the checksum of {name} differs")
        meta = json.loads((path / META).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        missing = os.path.basename(str(error.filename))
        why = "it was never committed" if missing == MARKER else f"{missing} is missing"
        raise CheckpointError(f"{path} is no complete checkpoint: {why}") from None
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(
            f"checkpoint {path} is damaged: its marker or meta.json cannot be read"
        ) from None
    if not isinstance(meta, dict):
        raise CheckpointError(f"checkpoint {path} is damaged: meta.json is no object")
    return meta


def load(path: Path, *, by_rows: bool = False) -> Loaded:
    """Reads a checkpoint after verifying it.

    Args:
        path: its folder.
        by_rows: tensors are mapped from their files, and read as rows are taken of them; such as lie in several files are `Rows`.

    Raises:
        CheckpointError: it cannot be used.
    """
    meta = verify(path)
    names = sorted(each.name for each in path.glob(SHARES)) or [STATE]
    try:
        held = [
            torch.load(path / name, map_location="cpu", weights_only=True, mmap=by_rows or len(names) > 1)
            for name in names
        ]
        state = held[0] if names == [STATE] else joined(held, by_rows=by_rows)
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint {path} cannot be read: {' '.join(str(error).split())[:200]}"
        ) from None
    except Exception as error:  # noqa: BLE001 - the restricted unpickler's own error class is pickle's, kept out of here
        raise CheckpointError(
            f"checkpoint {path} holds more than tensors and is not loaded: {type(error).__name__}"
        ) from None
    return Loaded(path, meta, state)


def newest(root: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, and why newer ones were passed over."""
    passed_over = []
    for path in committed(root):
        try:
            verify(path)
        except CheckpointError as error:
            passed_over.append(str(error))
        else:
            return path, passed_over
    return None, passed_over


def best(root: Path) -> Path | None:
    """The committed checkpoint with the lowest validation loss; None if none was evaluated."""
    found = []
    for path in committed(root):
        try:
            value = json.loads((path / META).read_text(encoding="utf-8")).get("val_loss")
        except (OSError, ValueError, AttributeError):
            continue
        if isinstance(value, float):
            found.append((value, path))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def prune(root: Path, keep: int, protect: set[Path]) -> list[str]:
    """Deletes all but the newest `keep` committed checkpoints (0: none).

    Each is renamed first, so that a kill leaves nothing that looks committed, and the next start clears it away.

    Returns:
        A line for each that could not be deleted: it costs space, but no training.
    """
    complaints = []
    for path in committed(root)[keep:] if keep > 0 else []:
        if path in protect:
            continue
        going = path.with_suffix(".tmp")
        try:
            if going.exists():
                shutil.rmtree(going)
            os.replace(path, going)
            shutil.rmtree(going)
        except OSError as error:
            complaints.append(f"old checkpoint {path} could not be deleted: {error.strerror or error}")
    return complaints


def _put_in_place(temporary: Path, final: Path) -> None:
    """Renames; a folder of the same step steps aside, still committed, until the new one is."""
    old = final.with_name(final.name + ".old")
    if final.exists():
        if (final / MARKER).exists():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(final, old)
        else:
            shutil.rmtree(final)
    os.replace(temporary, final)


def _commit(folder: Path, files: Mapping[str, tuple[int, str]]) -> None:
    text = json.dumps({"format": FORMAT, "files": {name: list(value) for name, value in files.items()}})
    temporary = folder / (MARKER + ".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / MARKER)
    _sync_folder(folder)


class _Sink:
    """A file that counts and sums what is written, and remembers why it could not be.

    torch.save turns a full disk into "unexpected pos 64 vs 0": the reason would be lost.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = 0
        self.checksum = 0
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise
        self.size += len(data)
        self.checksum = zlib.crc32(data, self.checksum)
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def _written(path: Path, write: Callable[[Any], object]) -> tuple[int, str]:
    """Writes a file and forces it to disk.

    Returns:
        Its size and checksum.

    Raises:
        OSError: it could not be written.
    """
    with open(path, "wb") as file:
        sink = _Sink(file)
        try:
            write(sink)
        except RuntimeError:
            if sink.error is not None:
                raise sink.error from None
            raise
        file.flush()
        os.fsync(file.fileno())
    return sink.size, f"{sink.checksum:08x}"


def _checksum(path: Path) -> str:
    value = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            value = zlib.crc32(chunk, value)
    return f"{value:08x}"


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def weights_of(loaded: Loaded, *, ema: bool) -> Mapping[str, Tensor]:
    """The weights by name, or their averages.

    Raises:
        CheckpointError: it holds no averages.
    """
    weights: Mapping[str, Tensor] = loaded.state["model"]
    if not ema:
        return weights
    if not loaded.state.get("ema"):
        raise CheckpointError(
            f"checkpoint {loaded.path} holds no averaged weights: train with ema_decay, or drop --ema"
        )
    return {**weights, **loaded.state["ema"]}


def tokenizer_of(path: Path) -> bytes:
    """The tokenizer.json that was kept with a checkpoint; empty if there is none.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        return (path / TOKENIZER).read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error.strerror or error}") from None


def one_of(path: Path) -> Path:
    """The checkpoint itself, or the newest committed one of a folder of them.

    Raises:
        CheckpointError: there is none.
    """
    if step_of(path) >= 0 or (path / MARKER).exists():
        return path
    found = committed(path)
    if not found:
        raise CheckpointError(f"{path}: no committed checkpoint is there")
    return found[0]
