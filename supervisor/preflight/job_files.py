"""Opens what `job` reads: job files, presets, product settings, a script's text; counts devices."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from supervisor.job.config_files import MAX_BYTES, parse_config
from supervisor.job.errors import JobError
from supervisor.job.settings import ConfigFile
from supervisor.job.source_scan import MAX_SOURCE_CHARS

_SUFFIXES: Final = (".toml", ".yaml", ".yml", ".py")


def preset_folders() -> tuple[Path, ...]:
    """Where presets lie: beside the package in a wheel, at the root of a checkout."""
    package = Path(__file__).resolve().parent.parent
    return (package / "configs", package.parent / "configs")


def load_config(name: str, *, cwd: Path, presets: tuple[Path, ...] | None = None) -> ConfigFile:
    """Reads a job file by path, or a preset by name (``dual_gpu/balanced``); a path wins.

    Raises:
        JobError: no such file or preset (with the presets there are), unreadable, or not a job file.
    """
    path = Path(name).expanduser()
    here = path if path.is_absolute() else cwd / path
    if here.is_file():
        return _read(here, name)
    if here.is_dir():
        raise JobError(f"--config {name}: this is a folder; name a file in it")
    folders = preset_folders() if presets is None else presets
    if not path.is_absolute() and ".." not in path.parts:
        for folder in folders:
            for suffix in ("", *_SUFFIXES):
                preset = folder / f"{name}{suffix}"
                if preset.is_file() and preset.suffix in _SUFFIXES:
                    return _read(preset, name)
    known = sorted({_preset_name(f, p) for f in folders for p in f.glob("*/*") if p.suffix in _SUFFIXES})
    hint = f"presets are {', '.join(known)}" if known else "name a .toml, .yaml or .py file"
    raise JobError(f"--config {name}: no such file or preset: {hint}")


def load_settings(cwd: Path, env: Mapping[str, str]) -> tuple[ConfigFile | None, ConfigFile | None]:
    """Product settings: ``./stoker.toml`` and ``$XDG_CONFIG_HOME/stoker/config.toml``, where they exist.

    Raises:
        JobError: one exists and cannot be read.
    """
    home = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".config")
    project, user = cwd / "stoker.toml", Path(home) / "stoker" / "config.toml"
    return (
        _read(project, "stoker.toml") if project.is_file() else None,
        _read(user, str(user)) if user.is_file() else None,
    )


def read_script(path: str | None, cwd: Path) -> str | None:
    """The text of a script, to be parsed and not run; None where there is none or it is no text.

    Raises:
        JobError: a script is named and does not exist, is a folder, or cannot be read (exit code 2).
    """
    if path is None:
        return None
    here = cwd / Path(path).expanduser()
    if here.is_dir():
        raise JobError(f"{path}: this is a folder; name the script in it")
    try:
        with here.open("rb") as file:
            data = file.read(MAX_SOURCE_CHARS)
    except FileNotFoundError:
        near = _nearest_script(here)
        raise JobError(
            f"{path}: no such script{f': did you mean {near}?' if near else f' in {cwd}'}"
        ) from None
    except OSError as error:
        raise JobError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def count_gpus(env: Mapping[str, str]) -> int:
    """GPUs that a rank would see: CUDA_VISIBLE_DEVICES where it is set, else the device files of the driver."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    present = sum(1 for entry in Path("/dev").glob("nvidia[0-9]*") if entry.name[6:].isdigit())
    if visible is None:
        return present
    listed = 0
    for part in visible.split(","):
        # CUDA stops at the first entry that is not a device, such as -1.
        if not part.strip() or part.strip().startswith("-"):
            break
        listed += 1
    return min(listed, present)


def count_cpus() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _read(path: Path, shown: str) -> ConfigFile:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise JobError(f"{shown}: cannot be read: {error.strerror}") from None
    name = shown if shown.endswith(path.suffix) else str(path)
    return ConfigFile(name, parse_config(name, data), data.decode("utf-8", "replace"))


def _preset_name(folder: Path, path: Path) -> str:
    return path.relative_to(folder).with_suffix("").as_posix()


def _nearest_script(path: Path) -> str | None:
    import difflib

    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix == ".py"]
    except OSError:
        return None
    near = difflib.get_close_matches(path.name, names, n=1)
    return str(path.parent / near[0]) if near else None
