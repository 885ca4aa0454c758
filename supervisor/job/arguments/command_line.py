"""Parses a command line into its settings and its launch (launchers, number of ranks, script).

Settings may be spelled ``--name value``, ``--name=value``, ``-n value``, ``key=value`` or ``KEY.NAME value``. The
launchers are torchrun and its older spellings, accelerate, deepspeed, composer, srun and mpirun, which may be
chained. If the number of ranks is not given, it stays unknown until measured; it is never assumed to be 1.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

# yacs keys (`CfgNode.merge_from_list`), each followed by its value: upper case, or before a number. Any other pair may be two files.
_PAIRED = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z0-9_]+)+ .*|([A-Za-z_]\w*(\.\w+)+|[A-Z][A-Z_]+) \d+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting: ``--name value``, ``--name=value``, ``-n value``, ``key=value`` or yacs-style ``TRAIN.LR value``."""

    name: str
    value: str | None
    at: int
    joined: bool  # value in the same word


def set_value(args: Sequence[str], name: str, value: str) -> tuple[str, ...]:
    """Set a flag in `args`: in place, in the user's spelling, or else appended as ``--name=value``.

    An empty value means a bare switch; a name without dashes is a ``key=value`` setting. Every occurrence is set,
    because argparse uses the last. A ``key=value`` setting whose value has an equals sign (Lightning's
    ``epoch=3-step=40.ckpt``) is quoted, because Hydra rejects a second one outside quotes.
    """
    if not name.startswith("-") and "=" in value and not _is_quoted(value):
        value = f'"{value}"' if "'" in value else f"'{value}'"
    result = list(args)
    found = [s for s in settings_of(args) if _spelled(s.name) == _spelled(name)]
    for setting in reversed(found):
        if not value:
            continue
        if setting.joined:
            result[setting.at] = f"{setting.name}={value}"
        elif setting.value is not None:
            result[setting.at + 1] = value
        else:
            result.insert(setting.at + 1, value)
    if not found:
        if not value:
            result.append(name)
        elif name.startswith("-") and not name.startswith("--"):
            result += [name, value]
        else:
            result.append(f"{name}={value}")
    return tuple(result)


def names_of(args: Sequence[str]) -> list[str]:
    """Return the names of all settings on a command line, in order."""
    return [s.name for s in settings_of(args)]


def value_of(args: Sequence[str], name: str) -> str | None:
    """Return the last value of a flag in `args`, or None."""
    return next(reversed(values_of(args, name)), None)


def values_of(args: Sequence[str], name: str) -> list[str | None]:
    """Return every value given for a flag in `args`, in order. A bare switch has the value None."""
    return _values_of(tuple(args)).get(_spelled(name), [])


def differing(*lines: Sequence[str]) -> list[tuple[str, tuple[str | None, ...]]]:
    """Return the settings that differ between command lines: the name as first written and its value on each line.

    A value is None if missing and empty for a bare switch. If a setting is repeated, all of its values are compared.
    """
    names: dict[str, str] = {}
    for name in (name for args in lines for name in names_of(args)):
        names.setdefault(_spelled(name), name)
    found = []
    for name in names.values():
        given = [values_of(args, name) for args in lines]
        values = tuple(" ".join(each or "" for each in every) if every else None for every in given)
        if len(set(values)) > 1:
            found.append((name, values))
    return found


def settings_of(args: Sequence[str]) -> Sequence[Setting]:
    """Return every setting on a command line, in order, skipping words that are neither flags nor ``key=value``."""
    return _settings_of(tuple(args))


@lru_cache(maxsize=8)  # looked up for every candidate setting: without a cache, 2,000 words took 60 s
def _settings_of(args: tuple[str, ...]) -> Sequence[Setting]:
    found: list[Setting] = []
    for at, word in enumerate(args):
        if word.startswith("-") and not _is_number(word):
            name, equals, value = word.partition("=")
            if equals:
                found.append(Setting(name, value, at, joined=True))
                continue
            ahead = args[at + 1] if at + 1 < len(args) else None
            is_value = ahead is not None and (not ahead.startswith("-") or _is_number(ahead))
            found.append(Setting(name, ahead if is_value else None, at, joined=False))
        elif _PAIRED.fullmatch(" ".join(args[at : at + 2])):
            found.append(Setting(word, args[at + 1], at, joined=False))
        else:
            match = re.fullmatch(r"\+{0,2}([A-Za-z_][\w./@]*)=(.*)", word, re.DOTALL)
            if match:
                value = match[2][1:-1] if _is_quoted(match[2]) else match[2]
                found.append(Setting(word.partition("=")[0], value, at, joined=True))
    return tuple(found)


def _is_quoted(value: str) -> bool:
    return len(value) > 1 and value[0] == value[-1] and value[0] in "'\""


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", word) is not None


@lru_cache(maxsize=8)  # looked up name by name: without a cache, 120 kB of words took over 10 s
def _values_of(args: tuple[str, ...]) -> dict[str, list[str | None]]:
    found: dict[str, list[str | None]] = {}
    for setting in _settings_of(args):
        found.setdefault(_spelled(setting.name), []).append(setting.value)
    return found


def _spelled(name: str) -> str:
    """Normalize a name. argparse users mix dashes and underscores inside a name, but not at its start."""
    return name.lstrip("+").replace("_", "-")


_TORCHRUN: Final = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
_ACCELERATE: Final = frozenset({"accelerate", "accelerate-launch", "accelerate.commands.launch"})
_FREE: Final = frozenset({"srun", "mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.hydra"})
"""Launchers that can run any program, so ``-m`` is one of their own flags."""
# Each launcher's flags for the number of ranks. A count computed from several flags is treated as unknown.
_COUNTS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(_TORCHRUN, ("--nproc-per-node",)),
    **dict.fromkeys(_ACCELERATE, ("--num-processes",)),
    **dict.fromkeys(("deepspeed", "ds", "deepspeed.launcher.runner"), ("--num-gpus",)),
    **dict.fromkeys(("composer", "composer.cli.launcher"), ("-n", "--nproc")),
    **dict.fromkeys(_FREE, ("-n", "-np", "--np", "--n", "-c")),
    "srun": ("-n", "--ntasks"),
}
# Without a count, accelerate's configuration file may have one, and srun's tasks may be per node.
_COUNTED_ELSEWHERE: Final = _ACCELERATE | {"srun"}
# Launcher flags without a value. Any other flag takes the next word, unless that word is the script.
_SWITCHES: Final = frozenset(
    {
        "--standalone", "--no-python", "--no_python", "-m", "--module", "--use-env", "--use_env", "--run-path", "--run_path", "--multi_gpu",
        "--multi-gpu", "--cpu", "--use_cpu", "--use-cpu", "--use_fsdp", "--use_deepspeed", "--use-deepspeed", "--tpu", "--same_network",
        "--use_megatron_lm", "--debug", "--quiet", "-q", "--use_xpu", "--ipex", "--use_ipex", "--enable_cpu_affinity", "--no_local_rank",
        "--no_ssh", "--force_multi", "--bind_cores_to_rank", "--save_pid", "--allow-run-as-root", "--oversubscribe", "--label", "-l",
        "--exclusive", "--unbuffered", "-u", "-v", "--verbose", "--tag-output", "--report-bindings", "--no-tee", "-O", "-OO", "-s", "-E", "-I", "-B",
    }
)  # fmt: skip
_TWO_VALUES: Final = frozenset({"-mca", "--mca", "-env", "-genv"})
_WRAPPERS: Final = frozenset({"env", "nohup", "time", "timeout", "numactl", "nice", "stdbuf", "taskset", "uv", "poetry", "pipenv", "conda", "sudo", "exec", "unbuffer", "run"})  # fmt: skip
_MACHINES: Final = ("--num_machines", "--num_nodes", "--nnodes", "--hostfile", "-H", "--mpirun_hostfile", "--host", "--world_size", "--include", "-i", "--exclude", "-e")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Launch:
    """How a command line starts its ranks, and the program it runs.

    `launcher` is the innermost one; `ranks` is the number of ranks in the job, or None if not given. `machines` is True if
    a launcher's flags list machines or ask for several. `args_at` is the index of the script's first argument.
    """

    launcher: str = ""
    ranks: int | None = None
    machines: bool = False
    script: str | None = None
    module: str | None = None
    program: str | None = None
    args_at: int = 0

    @property
    def name(self) -> str:
        """The program's name: a console program or module in full, or a script without its folder."""
        return self.program or self.module or posixpath.basename(self.script or "")

    @property
    def several(self) -> str:
        """Why the launch may start more than one rank, worded for the user, or empty if it starts only one."""
        if self.machines:
            return "names machines"
        if self.ranks is None:
            return "starts several, perhaps" if self.launcher in _COUNTED_ELSEWHERE else ""
        return f"starts {self.ranks}" if self.ranks > 1 else ""


def read_launch(command: Sequence[str]) -> Launch:
    """Parse a command line (program and arguments). In a chain of launchers, the innermost one starts the ranks."""
    words = list(command)
    launcher, at = "", 0
    ranks: int | None = None
    machines = as_module = False
    while at < len(words):
        name = _program(words, at)
        if name in _WRAPPERS or _is_assignment(words[at]):
            at = _after_wrapper(words, at)
            continue
        start = at + (3 if _is_python(words[at]) else 1)
        if name == "accelerate" and words[start : start + 1] == ["launch"]:
            start += 1
        elif name not in _COUNTS or name == "accelerate":
            break
        at, as_module = _own_flags(words, start, free=name in _FREE)
        flags = words[start:at]
        launcher, ranks = name, _count(name, flags)
        machines = machines or _names_machines(flags)
    script, module, program, args_at = _what(words, at, as_module=as_module, launched=bool(launcher))
    return Launch(launcher, ranks, machines, script, module, program, args_at)


_CONTAINERS: Final = {
    "docker": "run",
    "podman": "run",
    "nerdctl": "run",
    "apptainer": "exec",
    "singularity": "exec",
}


def container_options(words: Sequence[str], folders: Sequence[str], variables: Sequence[str]) -> str:
    """Return the container options needed to measure inside a container, or "" if there is no container.

    Args:
        words: the program and its arguments.
        folders: folders to mount at the same paths; only the first is writable.
        variables: environment variables to pass on. apptainer passes all of them by default.
    """
    for at, word in enumerate(words):
        name = posixpath.basename(word)
        if not {_CONTAINERS.get(name), "run"} & set(words[at + 1 :]) or name not in _CONTAINERS:
            continue
        if _CONTAINERS[name] == "exec":
            return f"{name} --bind {','.join(folders)}"
        mounts = [f"-v {folder}:{folder}{':ro' if number else ''}" for number, folder in enumerate(folders)]
        return " ".join([f"{name} run", *mounts, *(f"-e {variable}" for variable in variables)])
    return ""


def _is_python(word: str) -> bool:
    return re.fullmatch(r"python[\d.]*", posixpath.basename(word)) is not None


def _program(words: Sequence[str], at: int) -> str:
    """Return the program at this word, or the module in the case of ``python -m torch.distributed.run``."""
    if _is_python(words[at]):
        return words[at + 2] if words[at + 1 : at + 2] == ["-m"] and at + 2 < len(words) else ""
    return posixpath.basename(words[at])


def _is_assignment(word: str) -> bool:
    return re.match(r"[A-Za-z_]\w*=", word) is not None and not word.endswith(".py")


def _after_wrapper(words: Sequence[str], at: int) -> int:
    """Return the index of the program that a wrapper runs, past the wrapper's own flags and their values."""
    for index in range(at + 1, len(words)):
        word = words[index]
        if _is_python(word) or _is_assignment(word) or posixpath.basename(word) in _WRAPPERS | _COUNTS.keys():
            return index
    return next((i for i in range(at + 1, len(words)) if not words[i].startswith("-")), len(words))


def _own_flags(words: Sequence[str], at: int, *, free: bool) -> tuple[int, bool]:
    """Return the index just past a launcher's own flags, and whether a module follows."""
    as_module = False
    while at < len(words):
        word = words[at]
        if not word.startswith("-"):
            return at, as_module
        if word == "--":
            return at + 1, as_module
        as_module = as_module or (word in {"-m", "--module"} and not free)
        if word in _TWO_VALUES:
            at += 3
        elif "=" in word or word in _SWITCHES or _joined(word) or _takes_nothing(words[at + 1 : at + 2]):
            at += 1
        else:
            at += 2
    return len(words), as_module


def _takes_nothing(ahead: Sequence[str]) -> bool:
    """Check whether a flag takes no value because the next word is another flag or a program."""
    if not ahead or ahead[0].startswith("-"):
        return bool(ahead)
    return ahead[0].endswith(".py") or _is_python(ahead[0]) or posixpath.basename(ahead[0]) in _COUNTS


def _joined(word: str) -> bool:
    """Check for a short flag with its value attached, such as ``-n4``."""
    return re.fullmatch(r"-[a-zA-Z]\d+", word) is not None


def _what(
    words: Sequence[str], at: int, *, as_module: bool, launched: bool
) -> tuple[str | None, str | None, str | None, int]:
    """Identify the script, module or console program, and the index of its first argument."""
    if at >= len(words):
        return None, None, None, len(words)
    word = words[at]
    if _is_python(word):
        at += 1
        while at < len(words) and words[at].startswith("-") and words[at] != "-m":
            at += 2 if words[at] in {"-W", "-X"} else 1
        if words[at : at + 1] == ["-m"]:
            return None, words[at + 1] if at + 1 < len(words) else None, None, min(at + 2, len(words))
        word = words[at] if at < len(words) else ""
    if as_module:
        return None, word, None, at + 1
    if word.endswith(".py") or (launched and "/" in word and not word.endswith(".sh")):
        return word, None, None, at + 1
    return None, None, word or None, at + 1


def _names_machines(flags: Sequence[str]) -> bool:
    return any((value_of(flags, flag) or "1") not in {"1", "1:1"} for flag in _MACHINES)


def _count(name: str, flags: Sequence[str]) -> int | None:
    """Return the number of ranks a launcher starts, or None if no single flag gives it."""
    if _names_machines(flags) or {"--cpu", "--use_cpu", "--use-cpu"} & set(flags):
        return None
    for flag in _COUNTS[name]:
        joined = (word[2:] for word in flags if len(flag) == 2 and word.startswith(flag) and _joined(word))
        text = value_of(flags, flag) or next(joined, "")
        if text.isascii() and text.isdigit() and 0 < len(text) < 7 and int(text):
            return int(text)
    return None
