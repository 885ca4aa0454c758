"""What a guided start looks at, and the one file that it writes."""

from __future__ import annotations

import os
import shutil
import tempfile
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
    return GuidedStart(look_around(env, cwd), choices, lambda draft: read_draft(draft, env, cwd))


def look_around(env: Mapping[str, str], cwd: Path) -> Around:
    """The folder's scripts and names, the GPUs, SLURM; nothing is started or imported."""
    texts = {}
    for name in islice(_sources(cwd), MOST_FILES):
        try:
            texts[name] = read_regular(cwd / name, MAX_SOURCE_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
    installed = shutil.which("sbatch", path=env.get("PATH")) is not None
    names = frozenset(islice(_names(cwd), MOST_NAMES))
    return Around(likely_scripts(texts), gpu_count(env), slurm_of(env, installed=installed), names)


def _sources(cwd: Path) -> Iterator[str]:
    """Python files of the folder, then of the folders in it."""
    folders = []
    for name in sorted(islice(_names(cwd), MOST_NAMES)):
        if name.endswith(".py") and name.isprintable():
            yield name
        elif not name.startswith(".") and name not in SKIPPED and (cwd / name).is_dir():
            folders.append(name)
    for folder in folders:
        inside = (f"{folder}/{name}" for name in sorted(islice(_names(cwd / folder), MOST_NAMES)))
        yield from (name for name in inside if name.endswith(".py") and name.isprintable())


def _names(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry.name for entry in entries)
    except OSError:
        return


def read_draft(draft: Choices, env: Mapping[str, str], cwd: Path) -> Found:
    """What the script of a draft says of itself. Raises JobError."""
    return found_in(load_draft(draft.file or "new.toml", job_file(draft), env, cwd))


def write_new(path: Path, text: str) -> None:
    """Writes a file that does not exist yet: whole or not at all, and never over another one.

    Raises:
        JobError: the name is taken, or the folder cannot be written.
    """
    try:
        handle, part = tempfile.mkstemp(prefix=".stoker-", suffix=".toml", dir=path.parent)
    except OSError as error:
        raise JobError(f"{path.parent}: {error.strerror}") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(part, 0o666 & ~_umask())
        _link(part, path)
    except FileExistsError:
        raise JobError(f"{path}: it exists and is left as it is: give another name with --out") from None
    except (OSError, UnicodeEncodeError) as error:
        raise JobError(f"{path}: {error.strerror if isinstance(error, OSError) else error}") from error
    finally:
        os.unlink(part)


def _link(part: str, path: Path) -> None:
    """Gives a finished file its name, which nobody may have: unlike a rename, a link never replaces."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:
        # Some file systems (FAT, some network ones) have no hard links.
        text = Path(part).read_bytes()
        with open(path, "xb") as file:
            file.write(text)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
