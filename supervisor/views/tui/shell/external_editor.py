"""Suspend the app and open a file from a run in the user's editor, at a given line."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from textual.app import App, SuspendNotSupported

from supervisor.run.regular import open_regular

EDITORS = ("nano", "vim", "vi", "emacs")
# Editors that take the line after the file name.
COLON_EDITORS = frozenset(["hx", "helix", "kak", "subl", "zed", "micro"])
CODE_EDITORS = frozenset(["code", "codium", "cursor"])
COUNTED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Spot:
    """A line in a file. `number` is its 1-based line number, or None if it has not been counted yet."""

    path: str
    offset: int
    number: int | None

    def counted(self) -> int | None:
        """Return the line number, counting lines if necessary, or None if the file cannot be read."""
        if self.number is not None:
            return self.number
        number, left = 1, self.offset
        try:
            with open_regular(self.path) as file:
                while left > 0 and (data := file.read(min(left, COUNTED_BYTES))):
                    number += data.count(b"\n")
                    left -= len(data)
        except OSError:
            return None
        return number


def source_spot(path: str, number: int, folder: str | None) -> tuple[Spot, bool] | str:
    """Return the source line a log refers to and whether it is in the job's folder, or why the file cannot be opened.

    A log can name anything, so only regular files are opened, and links are resolved before folders are compared.
    """
    if not os.path.isabs(path) and folder is None:
        return f"{path}: its folder is not known"
    real = os.path.join(folder or "/", path)
    try:
        real = os.path.realpath(real)
        if not stat.S_ISREG(os.stat(real).st_mode):
            return f"{real}: not a regular file"
    except (OSError, ValueError) as error:
        return f"{real}: {error.strerror if isinstance(error, OSError) else error}"
    above = os.path.realpath(folder) if folder is not None else None
    return Spot(real, 0, number), above is not None and os.path.commonpath([real, above]) == above


def editor_argv(spot: Spot, env: Mapping[str, str]) -> list[str] | str:
    """Return the command that opens the editor, or a message if there is no editor."""
    words = _named(env, ("VISUAL", "EDITOR"), EDITORS)
    if not words:
        return "no editor: set EDITOR"
    name = os.path.basename(words[0])
    number = spot.counted()
    if number is None:
        return [*words, spot.path]
    if name in CODE_EDITORS:
        return [*words, "--goto", f"{spot.path}:{number}"]
    if name in COLON_EDITORS:
        return [*words, f"{spot.path}:{number}"]
    return [*words, f"+{number}", spot.path]


def _named(env: Mapping[str, str], variables: tuple[str, ...], otherwise: tuple[str, ...]) -> list[str]:
    """Return the first configured command that is available, split into arguments, or else the first available default."""
    for variable in variables:
        try:
            words = shlex.split(env.get(variable, ""))
        except ValueError:  # an unfinished quote
            continue
        if words and shutil.which(words[0]):
            return words
    return next(([name] for name in otherwise if shutil.which(name)), [])


def run_outside(app: App[object], argv: list[str]) -> str:
    """Run a command in the terminal, without a shell, and wait for it to exit. Return an error message, if any."""
    try:
        with app.suspend():
            done = subprocess.run(argv, check=False)
    except SuspendNotSupported:
        return "this terminal cannot be lent to another program"
    except OSError as error:
        return f"{argv[0]}: {error.strerror}"
    app.refresh(layout=True)
    return f"{os.path.basename(argv[0])} ended with {done.returncode}" if done.returncode else ""
