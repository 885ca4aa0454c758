"""Find the interpreter that has torch, without importing torch."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from supervisor.job.errors import JobError
from supervisor.job.spec import EntryKind, JobSpec

# Starting Python takes about 20 ms, but can take seconds on a cold network filesystem.
ASK_TIMEOUT_S: Final = 20.0

# Find torch by its spec and read its version from a file, because importing torch would take seconds and may
# touch the GPU. `python -c` puts the current folder first on the path, so a json.py there would be run.
_ASK: Final = """
import sys
path, sys.path = sys.path, [entry for entry in sys.path if entry]
import importlib.util, json, os
sys.path = path
version, build = None, {}
spec = importlib.util.find_spec("torch")
if spec is not None and spec.submodule_search_locations:
    version = "unknown"
    path = os.path.join(list(spec.submodule_search_locations)[0], "version.py")
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition("=")
                name, value = name.partition(":")[0].strip(), value.strip().strip("'\\"")
                if name == "__version__":
                    version = value
                elif name in ("cuda", "hip") and value != "None":
                    build[name] = value
    except OSError:
        pass
print(json.dumps({"python": "%d.%d.%d" % sys.version_info[:3], "torch": version, **build}))
"""


# The bundled trainer needs 3.11. torchrun, as we call it, exists since torch 2.0, which needs 3.8.
TRAINER_FLOOR: Final = (3, 11)
FLOOR: Final = (3, 8)
_ACTIVE: Final = ("VIRTUAL_ENV", "CONDA_PREFIX")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A target interpreter. `torch_version` is None if torch is missing, which is allowed only for a plain command.

    `torch_cuda` is the CUDA version torch was built for, such as "12.8", or None; `torch_hip` is the same for ROCm.
    """

    path: str
    version: str
    torch_version: str | None
    why: str
    torch_cuda: str | None = None
    torch_hip: str | None = None


def find_interpreter(spec: JobSpec, env: Mapping[str, str]) -> Interpreter:
    """Return the interpreter that launches `spec`.

    ``--python`` is binding. Otherwise, use the first of $VIRTUAL_ENV, $CONDA_PREFIX, python3 on PATH and our own
    interpreter that has torch. A plain command brings its own interpreter, so the result is reported but never refused.

    Raises:
        JobError: no interpreter has torch, or the one given by ``--python`` lacks torch, does not run, or is too old.
    """
    is_command = spec.entry_kind is EntryKind.COMMAND
    floor = TRAINER_FLOOR if spec.entry_kind is EntryKind.TRAINER else FLOOR
    if spec.python is not None:
        path, why = _bound_path(spec.python, env), f"--python {spec.python}"
        if not os.path.isfile(path):
            raise JobError(f"{why}: no such interpreter")
        found = _ask(path, why, env)
        if found is None:
            raise JobError(f"{why}: does not run as a Python interpreter")
        if found.torch_version is None and not is_command:
            raise JobError(f"{why}: it has no torch: install it there, or name another one")
        return _fit(found, floor)
    places = _places(env)
    for path, why in places:
        found = _ask(path, why, env)
        if found is not None and found.torch_version is not None:
            return _fit(found, floor)
    if is_command:
        why = "stoker's own interpreter; none has torch"
        return Interpreter(sys.executable, platform.python_version(), None, why)
    looked = ", ".join(dict.fromkeys(path for path, _ in places))
    raise JobError(
        f"no Python with torch found (looked at {looked}): name one with --python PATH, or install torch"
    )


# Read a file of the package's metadata and do not import the package, which may take seconds and touch the GPU.
_ASK_VERSION: Final = """
import importlib.metadata, importlib.util, os, re, sys
try:
    print(importlib.metadata.version(sys.argv[1]))
except importlib.metadata.PackageNotFoundError:
    spec = importlib.util.find_spec(sys.argv[1])
    text = open(spec.origin, encoding="utf-8").read() if spec and spec.origin else ""
    found = re.search(r"^__version__ = .([\\w.+]+)", text, re.M)
    print(found[1] if found else "")
"""


def installed_version(interpreter: str, package: str, env: Mapping[str, str]) -> str | None:
    """Return the version of a package in an interpreter's environment, or None if unknown. The package is not imported."""
    # Run in "/", because files in the current folder would take precedence over installed ones.
    return _answer([interpreter, "-c", _ASK_VERSION, package], env, ASK_TIMEOUT_S, "/").strip() or None


def interpreter_of(spec: JobSpec, otherwise: str, env: Mapping[str, str]) -> str:
    """Return the Python that runs a job's ranks. For a command, it is the command itself or the one named in its shebang."""
    if spec.entry_kind is not EntryKind.COMMAND or spec.python is not None:
        return otherwise
    program = spec.entry if os.sep in spec.entry else shutil.which(spec.entry, path=env.get("PATH"))
    program = os.path.join(spec.cwd, program) if program else ""
    if re.fullmatch(r"python[\d.]*", os.path.basename(program)):
        return program
    try:
        with open(program, "rb") as file:
            first = file.readline(512)
    except OSError:
        return otherwise
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    return words[0] if len(words) == 1 and "python" in os.path.basename(words[0]) else otherwise


def _answer(argv: list[str], env: Mapping[str, str], timeout_s: float, cwd: str | None = None) -> str:
    """Run a program and return its stdout, or "" if it cannot be run."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            cwd=cwd,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


def _places(env: Mapping[str, str]) -> list[tuple[str, str]]:
    active = [(os.path.join(env[name], "bin", "python"), f"${name}") for name in _ACTIVE if env.get(name)]
    on_path = shutil.which("python3", path=env.get("PATH"))
    found = [(on_path, "python3 on PATH")] if on_path else []
    return [*active, *found, (sys.executable, "stoker's own interpreter")]


def _ask(path: str, why: str, env: Mapping[str, str]) -> Interpreter | None:
    """Query an interpreter about itself. Return None if it is not Python or does not start."""
    try:
        told = json.loads(_answer([path, "-c", _ASK], env, ASK_TIMEOUT_S)) if os.path.isfile(path) else None
        return told and Interpreter(
            path, str(told["python"]), told["torch"], why, told.get("cuda"), told.get("hip")
        )
    except (ValueError, KeyError, TypeError):
        return None


def _bound_path(named: str, env: Mapping[str, str]) -> str:
    path = os.path.expanduser(named)
    return os.path.abspath(path) if os.sep in path else shutil.which(path, path=env.get("PATH")) or path


def _fit(found: Interpreter, floor: tuple[int, int]) -> Interpreter:
    major, minor, *_ = (int(part) for part in found.version.split("."))
    if (major, minor) < floor:
        wanted = ".".join(str(part) for part in floor)
        raise JobError(
            f"{found.path} is Python {found.version}, at least {wanted} is needed: name another with --python"
        )
    return found


def trainer_main() -> str:
    """Return the absolute path of the bundled trainer's ``__main__.py``, next to this package."""
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return os.path.join(here, "trainer", "__main__.py")


GIT_TIMEOUT_S: Final = 3.0


def commit_of(cwd: str) -> str | None:
    """Return the commit of the user's checkout, ending in "+" if modified, or None if there is no checkout or git is too slow."""
    words = ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    return _answer(words, os.environ, GIT_TIMEOUT_S, cwd).strip() or None
