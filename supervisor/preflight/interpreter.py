"""Finds the interpreter that has torch, without importing torch."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from supervisor.job.errors import JobError

# Starting Python takes about 20 ms; on a cold network file system it can take seconds.
ASK_TIMEOUT_S: Final = 20.0
# `torchrun --help` imports torch: 2 s measured on 2 cores, more on a cold disk.
HELP_TIMEOUT_S: Final = 60.0

# Finds torch by its spec and reads its version from a file: importing it would cost seconds and may
# touch the GPU.
_ASK: Final = """
import importlib.util, json, os, sys
version = None
spec = importlib.util.find_spec("torch")
if spec is not None and spec.submodule_search_locations:
    version = "unknown"
    path = os.path.join(list(spec.submodule_search_locations)[0], "version.py")
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.startswith("__version__"):
                    version = line.split("=", 1)[1].strip().strip("'\\"")
                    break
    except OSError:
        pass
print(json.dumps({"python": list(sys.version_info[:3]), "torch": version, "path": sys.executable}))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A target interpreter. `torch_version` None: it has no torch (allowed only for a plain command)."""

    path: str
    version: tuple[int, int, int]
    torch_version: str | None
    why: str

    @property
    def version_text(self) -> str:
        """Such as ``3.11.9``."""
        return ".".join(str(part) for part in self.version)


def find_interpreter(
    python_flag: str | None, env: Mapping[str, str], *, at_least: tuple[int, int] = (3, 8)
) -> Interpreter:
    """The interpreter to launch with.

    `python_flag` binds. Otherwise the first of $VIRTUAL_ENV, $CONDA_PREFIX, python3 on PATH and our own
    that has torch.

    Raises:
        JobError: none has torch, or the bound one has not, does not run, or is older than `at_least`.
    """
    if python_flag is not None:
        path = os.path.expanduser(python_flag)
        path = path if os.sep in path else shutil.which(path, path=env.get("PATH")) or path
        found = _ask(path, f"--python {python_flag}", env)
        if found is None:
            raise JobError(f"--python {python_flag}: does not run as a Python interpreter")
        return _fit(found, at_least)
    tried: list[str] = []
    for path, why in _places(env):
        found = _ask(path, why, env)
        if found is not None and found.torch_version is not None:
            return _fit(found, at_least)
        tried.append(path)
    looked = ", ".join(dict.fromkeys(tried)) or "nowhere"
    raise JobError(
        f"no Python with torch found (looked at {looked}): name one with --python PATH, or install torch"
    )


def torchrun_flags(interpreter: str, env: Mapping[str, str]) -> frozenset[str]:
    """Every flag that the target's ``torchrun --help`` lists; empty if it cannot be asked."""
    try:
        done = subprocess.run(
            [interpreter, "-m", "torch.distributed.run", "--help"],
            capture_output=True,
            timeout=HELP_TIMEOUT_S,
            check=False,
            env=dict(env),
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    return frozenset(re.findall(r"--[a-z][\w-]*", done.stdout.decode("utf-8", "replace")))


def _places(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if env.get(name):
            yield os.path.join(env[name], "bin", "python"), f"${name}"
    on_path = shutil.which("python3", path=env.get("PATH"))
    if on_path:
        yield on_path, "python3 on PATH"
    yield sys.executable, "stoker's own interpreter"


def _ask(path: str, why: str, env: Mapping[str, str]) -> Interpreter | None:
    if not os.path.isfile(path):
        return None
    try:
        done = subprocess.run(
            [path, "-c", _ASK],
            capture_output=True,
            timeout=ASK_TIMEOUT_S,
            check=False,
            env=dict(env),
            stdin=subprocess.DEVNULL,
        )
        told = json.loads(done.stdout)
        version = tuple(told["python"])
        return Interpreter(path, (version[0], version[1], version[2]), told["torch"], why)
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, IndexError, TypeError):
        return None  # not a Python, or one that does not start: the next place is asked


def _fit(found: Interpreter, at_least: tuple[int, int]) -> Interpreter:
    if found.torch_version is None:
        raise JobError(f"{found.why}: {found.path} has no torch: install it there, or name another --python")
    if found.version[:2] < at_least:
        wanted = ".".join(str(part) for part in at_least)
        raise JobError(f"{found.path} is Python {found.version_text}: at least {wanted} is needed")
    return found
