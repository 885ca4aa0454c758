"""Which files make up the training program: the script, the module or the console script, and what it imports locally.

Nothing is run or imported: names are looked up as paths below the working folder, and imports are read from the text.
"""

from __future__ import annotations

import posixpath
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

Read = Callable[[str], str | None]

# A script rarely says its settings deeper than this; each file costs some 5 ms of parsing before the start.
MAX_FILES: Final = 32
MAX_CHARS: Final = 600_000
MAX_DEPTH: Final = 4
_LOOKUPS: Final = 400
_IMPORT: Final = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]+)|import[ \t]+([\w., \t]+))",
    re.MULTILINE,
)
_TELLING: Final = re.compile(
    r"batch_?size|accum|resume|add_argument|update_freq|TrainingArguments|LightningCLI|load_state|torch\.load|latest|last_checkpoint|load_checkpoint",
    re.IGNORECASE,
)
_STARTS: Final = re.compile(r"\bos\.(system|exec\w+|spawn\w+)\(|\bsubprocess\b|\bPopen\(")
_TRAINS: Final = re.compile(r"\.backward\(|\.fit\(|\.train\(|\.step\(")
_SCRIPT: Final = re.compile(r"(?<![\w/.-])[\w./-]*\w\.py(?=[\s\"'])")
_MOST_STARTED: Final = 8
MAX_FOLDERS = 64  # a name of 400,000 characters, each of them a folder's end, took gigabytes
_ROOTS: Final = (".", "src")
# Never a project's own module: looked up in every folder they would use up the look-ups.
_FOREIGN: Final = frozenset(
    {
        "__future__", "argparse", "collections", "contextlib", "copy", "dataclasses", "datetime", "functools", "glob", "itertools", "json", "logging",
        "math", "numpy", "os", "pandas", "pathlib", "PIL", "random", "re", "scipy", "shutil", "sklearn", "subprocess", "sys", "time", "torch", "tqdm",
        "typing", "wandb", "warnings", "yaml",
    }
)  # fmt: skip
_METADATA: Final = ("pyproject.toml", "setup.py", "setup.cfg")


@dataclass(frozen=True, slots=True)
class Program:
    """The files that were read, the script first: (path, text, imports between it and the script)."""

    files: tuple[tuple[str, str, int], ...] = ()


def read_program(
    read: Read,
    *,
    script: str | None = None,
    module: str | None = None,
    program: str | None = None,
    args: Sequence[str] = (),
) -> Program:
    """Reads the program that a command line names, as far as it lies below the working folder.

    Args:
        read: opens a file by its path; None where there is none.
        script: path of a .py file.
        module: what ``-m`` names.
        program: a console script, looked up in the project's own metadata.
        args: its arguments: a subcommand says which of its imports matter.
    """
    roots = _search_folders(script)
    path = _entry_path(read, roots, script, module, program, args)
    text = read(path) if path else None
    if path is None or text is None:
        return Program()
    subcommand = (
        args[0] if (program or module) and args and re.fullmatch(r"[A-Za-z][\w-]*", args[0]) else None
    )
    if _is_in_own_package(read, path, text):
        roots = [*roots, ".."]
    return Program(tuple(_walk(read, roots, path, text, subcommand)))


def _is_in_own_package(read: Read, path: str, text: str) -> bool:
    """Whether the working folder is a package that the script imports by its name: ``from package.module import ...`` in package/train.py."""
    found = (match[1] or match[3] or "" for match in _IMPORT.finditer(text))
    names = dict.fromkeys(name.partition(".")[0].strip() for name in found)
    within = [name for name in names if re.fullmatch(r"\w+", name) and name not in _FOREIGN]
    return not path.startswith((".", "/")) and any(
        read(f"../{name}/{path}") == text for name in within[:MAX_FOLDERS]
    )


def _search_folders(script: str | None) -> list[str]:
    """Where local modules are looked for: beside the script, then the folders above it down to the working folder."""
    folders: list[str] = []
    here = posixpath.dirname(script) if script else ""
    while here not in {"", "/", "."} and len(folders) < MAX_FOLDERS:
        folders.append(here)
        here = posixpath.dirname(here)
    return list(dict.fromkeys([*folders, *_ROOTS]))


def _entry_path(
    read: Read,
    roots: Sequence[str],
    script: str | None,
    module: str | None,
    program: str | None,
    args: Sequence[str],
) -> str | None:
    if script is not None:
        return script
    if module is not None:
        return _module_path(read, roots, module, entry=True)
    if program is None:
        return None
    if program == "tune" and args[:1] and args[0] == "run":  # torchtune: the recipe is named by its file
        recipe = next((w for w in args[1:] if not w.startswith("-") and not w.isdigit()), "")
        return f"recipes/{recipe.removesuffix('.py')}.py"
    for file in _METADATA:
        text = read(file) or ""
        found = re.search(
            rf"^[\s\"'\[]*(?:scripts\.)?{re.escape(program)}[\"']?\s*=\s*[\"']?([\w.]+):\w+",
            text,
            re.MULTILINE,
        )
        if found:
            return _module_path(read, roots, found[1], entry=False)
    return None


def _module_path(read: Read, roots: Sequence[str], module: str, *, entry: bool) -> str | None:
    base = module.replace(".", "/")
    last = (f"{base}/__main__.py", f"{base}/__init__.py") if entry else (f"{base}/__init__.py",)
    for root in roots:
        for tail in (f"{base}.py", *last):
            path = posixpath.normpath(f"{root}/{tail}")
            if read(path) is not None:
                return path
    return None


def _walk(
    read: Read, roots: Sequence[str], path: str, text: str, subcommand: str | None
) -> Iterator[tuple[str, str, int]]:
    """The script and its local imports, breadth first, within bounds; files that say nothing of batches are only passed through."""
    seen, chars, files, lookups = {path}, 0, 0, 0
    open_: deque[tuple[str, str, int]] = deque([(path, text, 0)])
    while open_ and files < MAX_FILES and chars < MAX_CHARS:
        here, content, depth = open_.popleft()
        if depth == 0 or _TELLING.search(content):
            yield here, content, depth
            files, chars = files + 1, chars + len(content)
        if depth >= MAX_DEPTH:
            continue
        wanted = _chosen(content, subcommand) if depth == 0 and subcommand else None
        started = _started(content, here) if depth == 0 else []
        for candidate in (*started, *_imports(content, here, roots, wanted)):
            if candidate in seen or lookups >= _LOOKUPS:
                continue
            seen.add(candidate)
            lookups += 1
            found = read(candidate)
            if found is not None:
                open_.append((candidate, found, depth + 1))
                if candidate in started:
                    roots = [*roots, posixpath.dirname(candidate) or "."]


def _started(text: str, here: str) -> list[str]:
    """The scripts that a launcher without a training of its own starts as another process: ``os.system("python train.py ...")``."""
    if not _STARTS.search(text) or _TRAINS.search(text):
        return []
    names = dict.fromkeys(n for n in _SCRIPT.findall(text) if n != posixpath.basename(here))
    beside = posixpath.dirname(here)
    places = [
        posixpath.join(folder, n) for n in names for folder in ("", beside, posixpath.join(beside, ".."))
    ]
    return [posixpath.normpath(place) for place in places][:_MOST_STARTED]


def _chosen(text: str, subcommand: str) -> frozenset[str] | None:
    """The imported names that a subcommand stands for; None where the text does not say."""
    found = re.findall(rf"[\"']{re.escape(subcommand)}[\"']\s*:\s*(\w+)", text)
    return frozenset(found) or None


def _imports(text: str, here: str, roots: Sequence[str], wanted: frozenset[str] | None) -> Iterator[str]:
    """Paths that the imports of a file may mean, most likely first."""
    for match in _IMPORT.finditer(text):
        module, names, plain = match.groups()
        if plain is not None:
            if wanted is None:
                for name in plain.split(","):
                    yield from _paths(name.split()[0] if name.split() else "", (), here, roots)
            continue
        listed = [
            part.split() for part in names.strip("() \t\n").replace("\n", " ").split(",") if part.split()
        ]
        if wanted is not None:
            listed = [part for part in listed if part[-1] in wanted]
            if not listed:
                continue
        yield from _paths(module, [part[0] for part in listed], here, roots)


def _paths(module: str, names: Sequence[str], here: str, roots: Sequence[str]) -> Iterator[str]:
    if not module:
        return
    if module.partition(".")[0] in _FOREIGN:
        return
    dots = len(module) - len(module.lstrip("."))
    base = module.lstrip(".").replace(".", "/")
    if dots:
        folder = posixpath.dirname(here)
        for _ in range(dots - 1):
            folder = posixpath.dirname(folder)
        folders: Sequence[str] = [folder or "."]
    else:
        folders = roots
    for folder in folders:
        if base:
            yield posixpath.normpath(f"{folder}/{base}.py")
            yield posixpath.normpath(f"{folder}/{base}/__init__.py")
        for name in names:
            if re.fullmatch(r"[A-Za-z_]\w*", name):
                yield posixpath.normpath(f"{folder}/{base}/{name}.py" if base else f"{folder}/{name}.py")
