"""Finds a third-party script's complete checkpoints by recognizing their on-disk layout. Nothing is unpickled.

Each function in `LAYOUTS` recognizes one layout, its step, and the file written last, which proves that the checkpoint
is complete. `torch.save` writes a zip archive with its directory at the end (torch/serialization.py), so a valid zip is
a complete one. Older formats offer no such proof, so their files are only mentioned to the user.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from supervisor.run.paths import is_run_directory
from supervisor.run.regular import open_regular, read_regular

MAX_ENTRIES = 20_000
MAX_COUNTED = 10_000
MAX_DEPTH = 5
MAX_STATE_BYTES = 64 << 20
MAX_FOUND = 20
MAX_TEXT_BYTES = 256
MAX_PICKLE_BYTES = 16 << 20
LIKE_DEPTH = 3
LIKE_CHECKPOINTS = (".pt", ".pth", ".ckpt", ".safetensors")
TRANSFORMERS: Final = "transformers"
PLAIN: Final = "torch.save"
SAVED_DEPTH: Final = 3
"""Maximum depth of a file within its checkpoint, as in Megatron's ``iter_0000100/mp_rank_00/model_optim_rng.pt``."""

_HF_NAME = re.compile(r"checkpoint-(\d{1,12})")
_WEIGHTS = re.compile(
    r"(?:pytorch_model|model|adapter_model|tf_model)[\w.-]*\.(?:bin|safetensors)|pytorch_model_fsdp_\d+|global_step\d+"
)
_RANDOM_STATES = re.compile(r"random_states_(\d{1,6})\.pkl")
_OPTIMIZER = re.compile(r"optimizer(_\d{1,6})?\.bin")
_NO_WEIGHTS = re.compile(r"(optimizer|scheduler|sampler|dl_state_dict)[\w.-]*")
_MODEL_STATES = re.compile(r".*model_states\.pt")
_SHARDS = re.compile(r".*(?:model|optim)_states\.pt")
_STEP = re.compile(
    r"(?:^|[-_.])(?:global[-_]?)?(?:step|iter|iteration)s?[-_=]?(\d{1,12})(?=[-_.]|$)", re.IGNORECASE
)
_NUMBER = re.compile(r"\d{1,12}")
_PLAIN = re.compile(r"(?P<stem>.+?)\.(?:pt|pth|ckpt)(?:\.tar)?", re.IGNORECASE)
_STATE_NAME = re.compile(
    r"checkpoint|ckpt|chkpt|snapshot|last|latest|current|epoch|step|iter|state|resume|model", re.IGNORECASE
)
_NO_STATE_NAME = re.compile(
    r"best|optim|ema|rng|random|scaler|sched|infer|export|weights|recipe_state", re.IGNORECASE
)
# A string of 3 to 63 bytes in a protocol 2 pickle, as torch.save writes it. These keys mark a training state, not mere weights.
_STATE_KEYS = re.compile(
    rb"X[\x03-\x3f]\x00\x00\x00(?:optim|opt_state|epoch|step|iter|(?:global|train|training|current|cur|last|n|num)_(?:step|epoch|iter))",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A complete checkpoint.

    `path` is absolute and can be passed to a script. `t` is the wall time, in seconds, when the last part was
    written. `step` is None if the name contains no step. `number` is the last number in the name, whatever it
    counts. `counted` is the number of optimizer steps the process had taken at a measured save.
    """

    path: str
    step: int | None
    t: float
    layout: str = ""
    number: int | None = None
    counted: int | None = None


@dataclass(frozen=True, slots=True)
class _Listing:
    """A folder's entries. `ranks` is the number of ranks, if known."""

    path: str
    entries: dict[str, os.DirEntry[str]]
    ranks: int | None = None

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    def written(self, name: str) -> float:
        """Return when an entry was last modified."""
        return self.entries[name].stat(follow_symlinks=False).st_mtime

    def is_file(self, name: str) -> bool:
        entry = self.entries.get(name)
        return entry is not None and entry.is_file(follow_symlinks=False)

    def is_dir(self, name: str) -> bool:
        entry = self.entries.get(name)
        return entry is not None and entry.is_dir(follow_symlinks=False)

    def matching(self, pattern: re.Pattern[str]) -> list[str]:
        return [name for name in self.entries if pattern.fullmatch(name)]

    def inner(self, *names: str) -> str:
        return os.path.join(self.path, *names)

    def checkpoint(self, layout: str, name: str, t: float, *, path: str = "") -> FoundCheckpoint:
        """Build a checkpoint, taking its step from `name`. The path defaults to this folder."""
        return FoundCheckpoint(path or self.path, _step_of(name), t, layout, _number_of(name))

    def text(self, name: str) -> str | None:
        """Return the stripped text of a one-line file, or None if it is missing or too long."""
        if not self.is_file(name):
            return None
        with open_regular(self.inner(name)) as file:
            data = file.read(MAX_TEXT_BYTES + 1)
        return data.decode("utf-8", "replace").strip() if len(data) <= MAX_TEXT_BYTES else None


@dataclass(frozen=True, slots=True)
class Layout:
    """The way one framework lays out its checkpoints.

    Attributes:
        name: shown to the user and in the journal.
        find: returns the checkpoint in a folder's listing, if complete. The second argument is the name of a file in it, or "".
        takes: checks whether the folder has this layout, complete or not, so that its content is not searched. None if a
            checkpoint is a single file.
    """

    name: str
    find: Callable[[_Listing, str], FoundCheckpoint | None]
    takes: Callable[[_Listing], bool] | None = None


def _transformers(here: _Listing, _file: str) -> FoundCheckpoint | None:
    match = _HF_NAME.fullmatch(here.name)
    if match is None or not here.is_file("trainer_state.json"):
        return None
    if here.entries["trainer_state.json"].stat().st_size > MAX_STATE_BYTES:
        return None
    parsed = json.loads(read_regular(Path(here.inner("trainer_state.json"))))
    step = int(match[1])
    if not isinstance(parsed, dict) or parsed.get("global_step") != step or not here.matching(_WEIGHTS):
        return None
    return FoundCheckpoint(here.path, step, here.written("trainer_state.json"), TRANSFORMERS, step)


def _accelerate(here: _Listing, _file: str) -> FoundCheckpoint | None:
    """Recognize Accelerate checkpoints. Ranks write RNG state last (accelerate/checkpointing.py, save_accelerator_state)."""
    states = here.matching(_RANDOM_STATES)
    numbers = sorted(int(match[1]) for name in states if (match := _RANDOM_STATES.fullmatch(name)))
    if not states or len(states) == len(here.entries) or numbers != list(range(len(numbers))):
        return None
    if here.ranks is not None and len(numbers) < here.ranks and not _saved_by_one(here, numbers):
        return None
    if not all(is_zip(here.inner(name)) for name in states):
        return None
    # checkpoint_3 is the third save (ProjectConfiguration.automatic_checkpoint_naming), checkpoint-3 is diffusers' step 3.
    named = _HF_NAME.fullmatch(here.name)
    found = here.checkpoint("accelerate", here.name, max(map(here.written, states)))
    return replace(found, step=int(named[1])) if named else found


def _saved_by_one(here: _Listing, numbers: list[int]) -> bool:
    """Check whether only the main process saved, and saved everything load_state needs. Other RNG states are optional.

    diffusers scripts call save_state on one process. Sharded states (FSDP, DeepSpeed) have no ``optimizer.bin``.
    """
    optimizers = here.matching(_OPTIMIZER)
    has_weights = any(
        here.is_dir(name) or name.endswith((".safetensors", ".bin"))
        for name in here.entries
        if not _NO_WEIGHTS.fullmatch(name)
    )
    whole = all(is_zip(here.inner(name)) for name in optimizers)
    return numbers == [0] and bool(optimizers) and has_weights and whole


def _distributed(here: _Listing, _file: str) -> FoundCheckpoint | None:
    """Recognize a torch.distributed.checkpoint folder. In Lightning's FSDP folders, `meta.pt` is written last."""
    if not here.is_file(".metadata") or not any(name.endswith(".distcp") for name in here.entries):
        return None
    last = ".metadata"
    if here.name.endswith(".ckpt"):
        last = "meta.pt"
        if not here.is_file(last) or not is_zip(here.inner(last)):
            return None
    with open_regular(here.inner(".metadata")) as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b".":  # the end of a pickle
            return None
    return here.checkpoint("torch.distributed.checkpoint", here.name, here.written(last))


def _names_a_folder(here: _Listing) -> bool:
    tag = here.text("latest")
    return bool(tag) and here.is_dir(tag or "")


def _deepspeed(here: _Listing, _file: str) -> FoundCheckpoint | None:
    """Recognize a DeepSpeed checkpoint. `latest` is written once all ranks have saved (deepspeed/runtime/engine.py)."""
    tag = here.text("latest")
    if not tag or "/" in tag or not here.is_dir(tag):
        return None
    inside = _listing(here.inner(tag))
    if inside is None or not inside.matching(_MODEL_STATES):
        return None
    if not all(is_zip(inside.inner(name)) for name in inside.matching(_SHARDS)):
        return None
    return here.checkpoint("DeepSpeed", tag, here.written("latest"))


def _megatron(here: _Listing, _file: str) -> FoundCheckpoint | None:
    """Recognize a Megatron checkpoint. The tracker file is written last (megatron/training/checkpointing.py)."""
    parsed = here.text("latest_checkpointed_iteration.txt")
    if parsed is None or not parsed.isdecimal() or len(parsed) > 12:
        return None
    inside = (
        _listing(here.inner(f"iter_{int(parsed):07d}")) if here.is_dir(f"iter_{int(parsed):07d}") else None
    )
    if inside is None or not inside.entries:
        return None
    written = here.written("latest_checkpointed_iteration.txt")
    return FoundCheckpoint(here.path, int(parsed), written, "Megatron", int(parsed))


def _lightning(here: _Listing, file: str) -> FoundCheckpoint | None:
    if not file.endswith(".ckpt") or "=" not in file:
        return None
    if not is_zip(here.inner(file)):
        return None
    found = re.search(r"(?:^|[-_])step=(\d{1,12})(?:[-_.]|$)", file)
    step = int(found[1]) if found else None
    return FoundCheckpoint(here.inner(file), step, here.written(file), "Lightning", _number_of(file))


def _plain(here: _Listing, file: str) -> FoundCheckpoint | None:
    """Recognize a file that the script itself saved with torch.save and that contains more than just weights."""
    match = _PLAIN.fullmatch(file)
    if match is None or not _STATE_NAME.search(match["stem"]) or _NO_STATE_NAME.search(match["stem"]):
        return None
    if not _has_training_state(here.inner(file)):
        return None
    return here.checkpoint(PLAIN, match["stem"], here.written(file), path=here.inner(file))


LAYOUTS: Final[tuple[Layout, ...]] = (
    Layout(TRANSFORMERS, _transformers, lambda here: _HF_NAME.fullmatch(here.name) is not None),
    Layout("accelerate", _accelerate, lambda here: bool(here.matching(_RANDOM_STATES))),
    Layout(
        "torch.distributed.checkpoint",
        _distributed,
        lambda here: any(name.endswith(".distcp") for name in here.entries),
    ),
    Layout("DeepSpeed", _deepspeed, _names_a_folder),
    Layout("Megatron", _megatron, lambda here: here.is_file("latest_checkpointed_iteration.txt")),
    Layout("Lightning", _lightning),
    Layout(PLAIN, _plain),
)


HOLDERS: Final = frozenset(("DeepSpeed", "Megatron"))
"""Layouts whose path is a folder holding many checkpoints and a file that points to the newest one."""


def find_checkpoints(
    folders: Iterable[Path],
    since_t: float,
    *,
    ranks: int | None = None,
    depth: int = MAX_DEPTH,
    most: int = MAX_FOUND,
) -> list[FoundCheckpoint]:
    """Return up to `most` of the newest complete checkpoints under `folders` written since `since_t`, oldest first.

    Symbolic links are not followed; Lightning's ``last.ckpt`` and most ``latest`` links point to files that are
    found anyway. `ranks` is the number of ranks, if known. A layout with one file per rank is complete only if
    none is missing. Run directories are skipped, but a script's own folders next to them in ``runs`` are not.
    """
    left = [MAX_ENTRIES]
    found: dict[str, FoundCheckpoint] = {}
    for folder in folders:
        for one in _below(os.path.abspath(folder), since_t, left, depth, ranks):
            found.setdefault(one.path, one)
    return sorted(found.values(), key=lambda one: (one.t, one.step or 0))[-most:]


def whole_at(path: str, *, ranks: int | None = None) -> FoundCheckpoint | None:
    """Return the checkpoint at `path` (in the form a script expects), or None if it is incomplete or of unknown layout.

    A file written by `torch.save` may have any name, because the caller vouches for its format.
    """
    path = os.path.abspath(path)
    is_folder, name = os.path.isdir(path), os.path.basename(path)
    here = _listing(path if is_folder else os.path.dirname(path), ranks=ranks)
    if here is None or is_folder:
        return _first(here) if here is not None else None
    if not here.is_file(name):
        return None
    found = _first(here, name)
    if found is not None or not _has_training_state(path):
        return found
    return here.checkpoint(PLAIN, _stem(name), here.written(name), path=path)


def _stem(name: str) -> str:
    match = _PLAIN.fullmatch(name)
    return match["stem"] if match is not None else name


def whole_saved(
    path: str, since_t: float, until_t: float, *, ranks: int | None = None
) -> FoundCheckpoint | None:
    """Return the complete checkpoint that a process saved, in whole or in part, at `path`, or None if there is none.

    In a folder layout, the last part is written after the save itself. A file belongs to the save if it was
    written by `until_t`, whatever its name.
    """
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    for _ in range(SAVED_DEPTH):
        if (here := _listing(folder, ranks=ranks)) is not None:
            one = _first(here)  # a folder may have one layout's name and another one's files
            if one is not None or _is_taken(here):
                return one if one is not None and one.t >= since_t else None
        folder = os.path.dirname(folder)
    if not os.path.isfile(path) or _NO_STATE_NAME.search(_stem(os.path.basename(path))):
        return None
    file = whole_at(path)
    return file if file is not None and since_t <= file.t <= until_t else None


def files_of(path: str, layout: str = "", number: int | None = None) -> dict[str, str]:
    """Return a checkpoint's files, keyed by their path relative to `path`. A single file has an empty key.

    In a folder holding many checkpoints, return the files of `number` and the files next to them, such as the tracker.
    """
    if os.path.isfile(path):
        return {"": path}
    found: dict[str, str] = {}
    for folder, inner, names in os.walk(path):
        if folder == path and layout in HOLDERS:
            inner[:] = [name for name in inner if _number_of(name) == number]
        files = (os.path.join(folder, name) for name in names)
        found |= {os.path.relpath(file, path): file for file in files if os.path.isfile(file)}
    return found


def tree_bytes(path: Path) -> int | None:
    """Return the size in bytes of a file or of everything under a folder, or None if it is gone or has too many files."""
    total = count = 0
    try:
        if not path.is_dir():
            return path.stat().st_size
        for root, _, names in os.walk(path):
            for name in names:
                count += 1
                if count > MAX_COUNTED:
                    return None
                total += os.lstat(os.path.join(root, name)).st_size
    except OSError:
        return None
    return total


def has_checkpoint_names(folders: Iterable[Path]) -> bool:
    """Check whether any file in or just below `folders` is named like a checkpoint. True if there are too many to check."""
    left = MAX_ENTRIES
    for folder in folders:
        for place, inner, names in os.walk(folder):
            left -= len(names) + len(inner)
            if left < 0 or any(name.lower().endswith(LIKE_CHECKPOINTS) for name in names):
                return True
            is_deep = len(Path(place).relative_to(folder).parts) + 1 >= LIKE_DEPTH
            inner[:] = [] if is_deep else [name for name in inner if not name.startswith(".")]
    return False


def is_zip(path: str) -> bool:
    """Check whether a file is a complete zip archive. An unreadable file counts as incomplete."""
    try:
        return zipfile.is_zipfile(path)
    except OSError:
        return False


def _listing(path: str, left: list[int] | None = None, ranks: int | None = None) -> _Listing | None:
    """Return a folder's entries, or None if it is unreadable or has more entries than `left` allows."""
    left = left if left is not None else [MAX_ENTRIES]
    entries: dict[str, os.DirEntry[str]] = {}
    try:
        with os.scandir(path) as found:
            for entry in found:
                left[0] -= 1
                if left[0] < 0:
                    return None
                entries[entry.name] = entry
    except OSError:
        return None
    return _Listing(path, entries, ranks)


def _below(
    folder: str, since_t: float, left: list[int], depth: int, ranks: int | None
) -> Iterator[FoundCheckpoint]:
    here = _listing(folder, left, ranks)
    if here is None or (here.is_dir("nodes") and is_run_directory(Path(folder))):
        return
    one = _first(here)
    if one is not None and one.t >= since_t:
        yield one
    if one is not None or _is_taken(here):
        return
    for name, entry in here.entries.items():
        try:
            if entry.is_dir(follow_symlinks=False):
                if depth > 1 and not name.startswith("."):
                    yield from _below(entry.path, since_t, left, depth - 1, ranks)
            elif (
                entry.is_file(follow_symlinks=False)
                and here.written(name) >= since_t
                and (file := _first(here, name)) is not None
            ):
                yield file
        except OSError:
            continue


def _first(here: _Listing, file: str = "") -> FoundCheckpoint | None:
    """Return the complete checkpoint in a folder, or in `file` inside it, if any. A malformed one counts as incomplete."""
    for row in LAYOUTS:
        if (row.takes is None) == bool(file):
            with contextlib.suppress(OSError, ValueError, RecursionError):
                if (found := row.find(here, file)) is not None:
                    return found
    return None


def _is_taken(here: _Listing) -> bool:
    """Check whether a folder has a known layout, complete or not."""
    with contextlib.suppress(OSError):
        return any(row.takes(here) for row in LAYOUTS if row.takes is not None)
    return False


def _step_of(name: str) -> int | None:
    found = _STEP.findall(name)
    return int(found[-1]) if found else None


def _number_of(name: str) -> int | None:
    found = _NUMBER.findall(name)
    return int(found[-1]) if found else None


def _has_training_state(path: str) -> bool:
    """Check whether a torch.save file is complete and its pickle contains training-state keys."""
    try:
        with zipfile.ZipFile(path) as archive:
            inner = next((one for one in archive.infolist() if one.filename.endswith("data.pkl")), None)
            if (
                inner is None
                or inner.compress_type != zipfile.ZIP_STORED
                or inner.file_size > MAX_PICKLE_BYTES
            ):
                return False
            return _STATE_KEYS.search(archive.read(inner)) is not None
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError):
        return False
