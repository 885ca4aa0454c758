"""What a guided start looks at, and the one file that it writes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from supervisor.cli.starting.job_inputs import gpu_count, load_draft
from supervisor.job.errors import JobError
from supervisor.job.guided import (
    Around,
    Choices,
    Found,
    GuidedStart,
    found_in,
    job_file,
    likely_scripts,
    slurm_of,
)
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.preflight.interpreter import find_interpreter
from supervisor.run.nodes import create
from supervisor.run.regular import read_regular

# A folder of more files than this is not gone through further: it is a data set or a home folder.
MOST_NAMES = 2000
MOST_FILES = 60
MAX_SOURCE_BYTES = 256 << 10
# Where no script of the user's own lies.
SKIPPED = frozenset(
    {"runs", "node_modules", "venv", "env", "build", "dist", "tests", "test", "docs", "__pycache__"}
)


def guided_start(choices: Choices, env: Mapping[str, str], cwd: Path) -> GuidedStart:
    """A guided start in a folder.

    Raises:
        JobError: what was given does not work.
    """
    checked: set[object] = set()

    def read(draft: Choices) -> Found:
        spec = load_draft(draft.file or "new.toml", job_file(draft), env, cwd)
        if spec.python is not None and spec.python not in checked:
            find_interpreter(spec, env)
            checked.add(spec.python)
        return found_in(spec)

    return GuidedStart(look_around(env, cwd), choices, read)


def look_around(env: Mapping[str, str], cwd: Path) -> Around:
    """The folder's scripts and names, the GPUs, SLURM, the Python that has torch; no script is run or imported."""
    texts = {}
    for name in islice(_sources(cwd), MOST_FILES):
        try:
            texts[name] = read_regular(cwd / name, MAX_SOURCE_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
    installed = shutil.which("sbatch", path=env.get("PATH")) is not None
    names = frozenset(islice(_names(cwd), MOST_NAMES))
    slurm = slurm_of(env, installed=installed)
    return Around(likely_scripts(texts), gpu_count(env), slurm, names, _torch_here(env))


def _sources(cwd: Path) -> Iterator[str]:
    """Python files of the folder, then of the folders in it."""
    folders = []
    for name in sorted(islice(_names(cwd), MOST_NAMES), key=_named_first):
        if name.endswith(".py") and name.isprintable():
            yield name
        elif not name.startswith(".") and name not in SKIPPED and (cwd / name).is_dir():
            folders.append(name)
    for folder in folders:
        inside = (f"{folder}/{name}" for name in sorted(islice(_names(cwd / folder), MOST_NAMES)))
        yield from (name for name in inside if name.endswith(".py") and name.isprintable())


def _named_first(name: str) -> tuple[bool, str]:
    """Not all are read: those that are named as scripts that train come first."""
    return not any(word in name.lower() for word in ("train", "tune", "main", "run")), name


def _names(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry.name for entry in entries)
    except OSError:
        return


def _torch_here(env: Mapping[str, str]) -> str:
    try:
        found = find_interpreter(JobSpec("", EntryKind.SCRIPT, ""), env)
    except JobError:
        return ""
    return f"torch {found.torch_version} in {found.path}"


def write_new(path: Path, text: str) -> None:
    """Writes a file that does not exist yet: whole or not at all, and never over another one.

    Raises:
        JobError: the name is taken, or the folder cannot be written.
    """
    try:
        if not create(path, text.encode()):
            raise JobError(f"{path}: already exists; give another name with --out")
        path.chmod(0o666 & ~_umask())
    except (OSError, UnicodeEncodeError) as error:
        raise JobError(f"{path}: {error.strerror if isinstance(error, OSError) else error}") from error


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
